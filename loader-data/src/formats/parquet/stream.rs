//! The dataset [`ParquetStream`].

use std::{collections::VecDeque, marker::PhantomData, sync::Arc};

use derive_where::derive_where;
use loader_core::{
    DatasetMemory, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator,
    internal::shuffle,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    batches::{Batches, Selection, wrong_rows},
    blocks::Draws,
    file::malformed,
    shuffled::{ShuffledGroups, too_large},
    table::{Group, Table},
};
use crate::{
    arrow_rows::{Batch, Samples, remaining},
    error::{DataError, DataProblem, Result},
    record::Record,
    shard_items::{ShardItems, too_short},
    source::{NextPart, ReadAhead},
};

/// Maximum number of bytes of decoded row groups that a shuffled shard keeps, if nothing else is said.
pub(super) const BLOCK_BYTES: u64 = 1 << 30;

/// A stream fetches its second row group once it has returned this part of the rows of the first one: one in 8. A
/// program that looks at a few rows then fetches one row group. The stream fetches later row groups as early as
/// possible: a program that has read a whole row group mostly reads on, and where the connection is the bottleneck, it
/// should never be idle.
const ROWS_BEFORE_AHEAD: usize = 8;

/// The rows of Parquet files in order, read row group by row group. Created by
/// [`Parquet::stream`](super::Parquet::stream).
///
/// Row group `i` of all files belongs to shard `i % n` of `n`, so there should be at least as many row groups
/// as shards. The shards have unequal numbers of rows if the row groups have, and so do the ranks of a
/// distributed run; stop all ranks at the same step.
///
/// A resumed run, and a worker that replaces a dead one, opens the row group that it needs, and skips rows in
/// it without returning them.
///
/// # Memory
/// A shard that is being read needs at most 64 MiB for compressed columns, and about 128 MiB for decoded rows
/// (more if a single row is larger). With [`shuffle_blocks`](Self::shuffle_blocks) it keeps whole row groups,
/// of at most [`block_bytes`](Self::block_bytes). From a server, it also fetches the compressed columns of the next row
/// group, of at most 64 MiB, if its part of [`memory_limit`](loader_core::Builder::memory_limit) has room for them.
///
/// # Errors
/// A row that does not fit the type of the sample is an error of this sample. If a row group is damaged, the
/// rows from the damage to the end of the group are errors, each of which names its row. So are those of a file
/// that cannot be read. If no file can be read for now, the shard ends, see [`Outage`](loader_core::Outage).
///
/// # Examples
/// ```
/// use loader_core::DataLoader;
/// use loader_data::Parquet;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet");
/// # std::env::set_current_dir(folder)?;
/// // Each shard draws rows at random among two open row groups.
/// let rows = Parquet::open("train-*.parquet")?.stream().shuffle_blocks(2)?;
/// let loader = DataLoader::stream(rows).shards(2).batch_size(8).build()?;
/// for batch in loader.epoch(3)? {
///     assert_eq!(batch?.tensor::<f32>("x")?.shape()[1], 3);
/// }
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ParquetStream<R = Record> {
    table: Table,
    /// Number of open row groups of a shard, if the rows are shuffled.
    open: Option<usize>,
    block_bytes: u64,
    row: PhantomData<fn() -> R>,
}

impl<R> ParquetStream<R> {
    /// Returns the names of the columns that are read.
    #[cfg(feature = "formats")]
    pub(crate) fn field_names(&self) -> Vec<String> {
        self.table.columns().iter().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn new(table: Table) -> Self {
        Self { table, open: None, block_bytes: BLOCK_BYTES, row: PhantomData }
    }

    /// Returns rows of type `T`, see [`Parquet::rows`](super::Parquet::rows).
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> ParquetStream<T> {
        let Self { table, open, block_bytes, row: _ } = self;
        ParquetStream { table, open, block_bytes, row: PhantomData }
    }

    /// Sets the maximum number of bytes of decoded row groups that each shard keeps with
    /// [`shuffle_blocks`](Self::shuffle_blocks), which must be called after this method. The default is 1 GiB. A
    /// worker keeps as much for each of its shards: with 8 shards and 4 workers, twice.
    #[must_use]
    pub fn block_bytes(self, bytes: u64) -> Self {
        Self { block_bytes: bytes, ..self }
    }

    /// Shuffles the rows: in each epoch the row groups are permuted and dealt to the shards, and each shard
    /// keeps `open` of its row groups decoded and draws the next row at random among all their remaining
    /// rows. When a row group has no rows left, the next one is opened. Each row group is decoded once in an
    /// epoch, whatever the number of workers.
    ///
    /// The order depends only on the seed, the epoch, the number of shards and the sizes of the row groups. A
    /// resumed run draws again up to its position without reading, and decodes only the row groups that are
    /// open there.
    ///
    /// Rows of one row group stay within a window of about `open` row groups. More groups mix better and need
    /// more memory.
    ///
    /// # Errors
    /// Returns [`DataProblem::TooLarge`] if the `open` largest row groups together have more than
    /// [`block_bytes`](Self::block_bytes) bytes before compression.
    ///
    /// If these bytes exceed the part of the loader's [`memory_limit`](loader_core::Builder::memory_limit)
    /// that a shard has, the first batch of each shard fails. If the decoded rows of a row group exceed what
    /// the other open row groups leave of `block_bytes` or of this part, the samples of the row group fail.
    /// After a resume or the death of a worker, row groups are decoded in another order, so another row group
    /// may be refused: both limits should leave room.
    ///
    /// # Panics
    /// Panics if `open` is 0.
    pub fn shuffle_blocks(self, open: usize) -> Result<Self, DataError> {
        assert!(open > 0, "at least 1 row group must be open");
        let len = self.largest(open);
        if len > self.block_bytes {
            Err(self.refused(open, too_large(len, self.block_bytes)))
        } else {
            Ok(Self { open: Some(open), ..self })
        }
    }

    /// Returns the number of bytes before compression of the `open` largest row groups, from the footers.
    fn largest(&self, open: usize) -> u64 {
        let mut sizes: Vec<u64> = (0..self.table.len()).map(|group| self.table.group(group).bytes).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        sizes.iter().take(open).copied().fold(0, u64::saturating_add)
    }

    fn refused(&self, open: usize, problem: DataProblem) -> DataError {
        DataError::new(format!("{} open row groups", open.min(self.table.len())), problem)
    }

    /// Returns the rows of `shard` after the first `position` rows.
    ///
    /// # Errors
    /// Returns an error if the open row groups exceed the shard's part of `memory_limit`, or if the shard has fewer rows.
    fn at(&self, shard: Shard, position: u64, cx: &mut SampleContext) -> Result<ShardItems<Stream<'_, R>>>
    where
        R: 'static,
    {
        let groups = 0..self.table.len();
        let order = match self.open {
            None => {
                let later = remaining(shard.of(groups), position, |group| self.table.group(group).rows)?;
                let ahead_from = later.front().map_or(0, |&(group, row)| {
                    row + (self.table.group(group).rows - row) / ROWS_BEFORE_AHEAD
                });
                let memory = cx.memory().clone();
                Order::Groups { later, current: None, ahead: NextPart::default(), ahead_from, memory }
            }
            Some(open) => {
                // Checks before the first row that the limit suffices. Drops the reservation at once, because
                // each row group makes its own.
                let reserved = cx.memory().reserve(self.largest(open));
                drop(reserved.map_err(|refused| self.refused(open, refused.into()))?);
                let mut groups: Vec<usize> = groups.collect();
                shuffle(&mut cx.epoch_rng(), &mut groups);
                let sizes = shard.of(groups).map(|group| (group, self.table.group(group).rows));
                let mut draws = Draws::new(cx.rng(), open, sizes);
                let mut found = 0..position;
                if let Some(found) = found.find(|_| draws.next().is_none()) {
                    return Err(too_short(position, found));
                }
                let memory = cx.memory().clone();
                Order::Blocks(ShuffledGroups::new(&self.table, draws, self.block_bytes, memory))
            }
        };
        let samples = self.table.samples(cx.is_collated::<Self>());
        Ok(ShardItems::new(Stream { table: &self.table, samples, position, order, row: PhantomData }))
    }
}

impl<R: DeserializeOwned + Send + 'static> IterableDataset for ParquetStream<R> {
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
        Some(self.table.rows)
    }

    fn fingerprint(&self) -> String {
        let order = self.open.map_or_else(String::new, |open| format!(", blocks of {open}"));
        format!("parquet_stream({}{order})", self.table.fingerprint())
    }
}

impl<R: DeserializeOwned + Send + 'static> SnapshotDataset for ParquetStream<R> {
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
struct Stream<'a, R> {
    table: &'a Table,
    samples: Samples,
    position: u64,
    order: Order,
    row: PhantomData<fn() -> R>,
}

enum Order {
    /// Row group by row group.
    Groups {
        /// The next row groups, each with its first row to be read.
        later: VecDeque<(usize, usize)>,
        current: Option<Current>,
        /// The row group after the current one, which is being fetched if it lies on a server.
        ahead: NextPart<ReadAhead>,
        /// The row of the current row group from which the next one is fetched.
        ahead_from: usize,
        /// The account of what is read ahead.
        memory: DatasetMemory,
    },
    /// At random among a few open row groups.
    Blocks(ShuffledGroups),
}

/// A row group that is read in order.
struct Current {
    index: usize,
    group: Group,
    /// The next row.
    row: usize,
    /// `None` before the first row is read.
    batches: Option<Batches>,
    batch: Option<Arc<Batch>>,
    /// Index of the next row in `batch`.
    at: usize,
    /// Why the remaining rows cannot be read.
    failed: Option<String>,
}

impl<R: DeserializeOwned + 'static> Iterator for Stream<'_, R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Result<R>> {
        let Self { table, samples, .. } = self;
        let sample = match &mut self.order {
            Order::Groups { later, current, ahead, ahead_from, memory } => loop {
                if let Some(current) = current
                    && current.row < current.group.rows
                {
                    let index = current.index;
                    let begin_next = |ahead: &mut NextPart<_>| {
                        if let Some(&(index, _)) = later.front() {
                            ahead.begin(index as u64, || table.begin(index, memory));
                        }
                    };
                    if current.row == *ahead_from && current.batches.is_some() {
                        begin_next(ahead);
                    }
                    let open = |row| {
                        let fetched = ahead.take(index as u64);
                        let batches = table.read(table.group(index), Selection::From(row), fetched)?;
                        // This comes after the columns of the current group have arrived, and before they are decoded.
                        if row >= *ahead_from {
                            begin_next(ahead);
                        }
                        Ok(batches)
                    };
                    break current.next(table, samples, open);
                }
                if current.is_some() {
                    *ahead_from = 0;
                }
                let (index, row) = later.pop_front()?;
                let group = table.group(index);
                *current =
                    Some(Current { index, group, row, batches: None, batch: None, at: 0, failed: None });
            },
            Order::Blocks(groups) => groups.next(table, samples)?,
        };
        self.position += 1;
        Some(sample)
    }
}

impl<R: DeserializeOwned + 'static> SnapshotIterator for Stream<'_, R> {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.position)
    }
}

impl Current {
    /// Returns the next row. Each row gives one sample or one error, so that positions keep their meaning in
    /// a damaged row group. `open` opens the row group at a row.
    fn next<R: DeserializeOwned + 'static>(
        &mut self,
        table: &Table,
        samples: &Samples,
        mut open: impl FnMut(usize) -> Result<Batches>,
    ) -> Result<R> {
        let row = self.row;
        self.row += 1;
        if let Some(reason) = &self.failed {
            return Err(table.error(self.group, row, malformed(reason)));
        }
        while self.batch.as_ref().is_none_or(|batch| self.at == batch.len()) {
            match self.next_batch(table, row, &mut open) {
                Ok(batch) => (self.batch, self.at) = (Some(batch), 0),
                Err(error) => {
                    self.failed = Some(error.problem.to_string());
                    self.batch = None;
                    return Err(table.error(self.group, row, error.problem));
                }
            }
        }
        let batch = self.batch.as_ref().expect("the loop has set it");
        self.at += 1;
        samples.sample(batch, self.at - 1).map_err(|problem| table.error(self.group, row, problem))
    }

    fn next_batch(
        &mut self,
        table: &Table,
        row: usize,
        open: impl FnOnce(usize) -> Result<Batches>,
    ) -> Result<Arc<Batch>> {
        let batches = match &mut self.batches {
            Some(batches) => batches,
            batches @ None => batches.insert(open(row)?),
        };
        let ended = || table.error(self.group, row, malformed(wrong_rows(row, self.group.rows)));
        batches.next().unwrap_or_else(|| Err(ended()))
    }
}
