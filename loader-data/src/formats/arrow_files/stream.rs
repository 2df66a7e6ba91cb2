//! The dataset [`ArrowStream`].

use std::{collections::VecDeque, marker::PhantomData, slice::from_ref, sync::Arc};

use derive_where::derive_where;
use loader_core::{DatasetMemory, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{body::Body, index::IndexEntry, malformed, table::Table};
use crate::{
    arrow_rows::{Batch, Samples, remaining},
    error::Result,
    record::Record,
    shard_items::ShardItems,
    source::{NextPart, ReadAhead},
};

/// Maximum number of rows that are read at once.
const MAX_ROWS: u64 = 8192;
/// Number of bytes that are read at once of a record batch that is not compressed, at least one row.
const MAX_BYTES: u64 = 16 << 20;

/// The rows of Arrow IPC files in order, read record batch by record batch. Created by
/// [`Arrow::stream`](super::Arrow::stream).
///
/// Record batch `i` of all files belongs to shard `i % n` of `n`, so there should be at least as many record
/// batches as shards. To shuffle, use [`Arrow`](super::Arrow) with `shuffle(true)`, or, where the files are
/// compressed or on a server, [`shuffle_buffer`](loader_core::IterableDataset::shuffle_buffer).
///
/// A resumed run, and a worker that replaces a dead one, begins to read at the row that it needs.
///
/// # Memory
/// A shard that is being read needs about 32 MiB (more if a single row is larger); for a compressed record
/// batch, or one on a server, the size of the batch. From a server, it also fetches the next record batch, of at most
/// 64 MiB, if its part of [`memory_limit`](loader_core::Builder::memory_limit) has room for it.
///
/// # Errors
/// A row that is damaged, or does not fit the type of the sample, is an error of this sample. A record batch
/// that cannot be read or decompressed is an error for each of its rows. If no file can be read for now, the shard
/// ends, see [`Outage`](loader_core::Outage).
///
/// # Examples
/// ```
/// use loader_core::DataLoader;
/// use loader_data::Arrow;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrow");
/// # std::env::set_current_dir(folder)?;
/// let rows = Arrow::open("saved/data-*.arrow")?.stream();
/// let loader = DataLoader::stream(rows).shards(2).batch_size(8).build()?;
/// for batch in loader.iter()? {
///     assert_eq!(batch?.tensor::<f32>("x")?.shape()[1], 3);
/// }
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ArrowStream<R = Record> {
    table: Table,
    row: PhantomData<fn() -> R>,
}

impl<R> ArrowStream<R> {
    /// Returns the names of the columns that are read.
    #[cfg(feature = "formats")]
    pub(crate) fn field_names(&self) -> Vec<String> {
        self.table.columns().iter().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn new(table: Table) -> Self {
        Self { table, row: PhantomData }
    }

    /// Returns rows of type `T`, see [`Arrow::rows`](super::Arrow::rows).
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> ArrowStream<T> {
        ArrowStream::new(self.table)
    }

    /// Returns the rows of `shard` after the first `position` rows.
    ///
    /// # Errors
    /// Returns an error if the shard has fewer rows.
    fn at(&self, shard: Shard, position: u64, cx: &SampleContext) -> Result<ShardItems<Rows<'_, R>>>
    where
        R: 'static,
    {
        let index = &self.table.index;
        let later = remaining(shard.of(0..index.len()), position, |batch| index.entry(batch).rows)?;
        let samples = self.table.samples(cx.is_collated::<Self>());
        Ok(ShardItems::new(Rows {
            table: &self.table,
            samples,
            position,
            later,
            current: None,
            ahead: NextPart::default(),
            memory: cx.memory().clone(),
            sample: PhantomData,
        }))
    }
}

impl<R: DeserializeOwned + Send + 'static> IterableDataset for ArrowStream<R> {
    type Sample = R;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<R>> + Send> {
        Ok(self.at(shard, 0, cx)?)
    }

    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<R>> + Send>> {
        Ok(Some(self.at(shard, position, cx)?))
    }

    fn len(&self) -> Option<usize> {
        Some(self.table.index.rows)
    }

    fn fingerprint(&self) -> String {
        format!("arrow_stream({})", self.table.fingerprint())
    }
}

impl<R: DeserializeOwned + Send + 'static> SnapshotDataset for ArrowStream<R> {
    /// Number of rows of the shard that were read.
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<R>, Snapshot = u64> + Send> {
        Ok(self.at(shard, snapshot.unwrap_or(0), cx)?)
    }
}

/// The rows of a shard.
struct Rows<'a, R> {
    table: &'a Table,
    samples: Samples,
    position: u64,
    /// The record batches that are not begun, each with the first row to read.
    later: VecDeque<(usize, usize)>,
    current: Option<Current>,
    /// The record batch after the current one, which is being fetched if it lies on a server.
    ahead: NextPart<ReadAhead>,
    /// The account of what is read ahead.
    memory: DatasetMemory,
    sample: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned + 'static> Iterator for Rows<'_, R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Result<R>> {
        if self.current.as_ref().is_none_or(|current| current.row == current.entry.rows as u64) {
            let (index, row) = self.later.pop_front()?;
            self.current = Some(Current::new(self.table, self.table.index.entry(index), row as u64));
        }
        self.position += 1;
        let Self { table, later, ahead, memory, .. } = self;
        let open = |entry: &IndexEntry| {
            let stored = table.fetch(entry, true, ahead.take(entry.index as u64))?;
            // This comes after the current record batch has arrived, and before it is decompressed.
            if let Some(&(index, _)) = later.front() {
                ahead.begin(index as u64, || table.begin(&table.index.entry(index), memory));
            }
            table.unpack(entry, stored)
        };
        let current = self.current.as_mut().expect("it was just set");
        Some(current.next(table, &self.samples, open))
    }
}

impl<R: DeserializeOwned + 'static> SnapshotIterator for Rows<'_, R> {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.position)
    }
}

/// A record batch that is read in order.
struct Current {
    entry: IndexEntry,
    /// The next row.
    row: u64,
    /// The open record batch, or why it cannot be opened. `None` before the first row is read.
    body: Option<Result<Body, String>>,
    /// The rows that were read, and the index of the first one.
    read: Option<(Arc<Batch>, u64)>,
    /// Number of rows that are read at once.
    step: u64,
}

impl Current {
    fn new(table: &Table, entry: IndexEntry, row: u64) -> Self {
        let bytes = table.stored_bytes(&entry).max(1);
        let step = (MAX_BYTES.saturating_mul(entry.rows as u64) / bytes).clamp(1, MAX_ROWS);
        Self { entry, row, body: None, read: None, step }
    }

    /// Returns the next row. Each row gives one sample or one error, so that positions keep their meaning in
    /// a damaged record batch. `open` opens the record batch.
    fn next<R: DeserializeOwned + 'static>(
        &mut self,
        table: &Table,
        samples: &Samples,
        open: impl FnOnce(&IndexEntry) -> Result<Body>,
    ) -> Result<R> {
        let row = self.row;
        self.row += 1;
        let failed = |problem| table.error(&self.entry, row as usize, problem);
        if self.read.as_ref().is_none_or(|(batch, first)| row >= first + batch.len() as u64) {
            let body = match &mut self.body {
                Some(body) => body.as_ref().map_err(|reason| failed(malformed(reason.as_str())))?,
                none => match open(&self.entry) {
                    Ok(body) => none.insert(Ok(body)).as_ref().expect("it was just set"),
                    Err(error) => {
                        *none = Some(Err(error.problem.to_string()));
                        return Err(failed(error.problem));
                    }
                },
            };
            let rows = row..(row + self.step).min(self.entry.rows as u64);
            let mut read = table.read(&self.entry, body, &[rows]);
            if read.as_ref().is_err_and(|error| !error.problem.is_access_error()) && self.step > 1 {
                // Rows are read one by one, so that only the damaged ones fail.
                self.step = 1;
                read = table.read(&self.entry, body, from_ref(&(row..row + 1)));
            }
            self.read = None;
            self.read = Some((read.map_err(|error| failed(error.problem))?, row));
        }
        let (batch, first) = self.read.as_ref().expect("the row was read");
        samples.sample(batch, (row - first) as usize).map_err(failed)
    }
}
