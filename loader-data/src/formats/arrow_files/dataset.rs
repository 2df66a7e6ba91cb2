//! The dataset [`Arrow`].

use std::{
    marker::PhantomData,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use derive_where::derive_where;
use loader_core::{Dataset, DatasetMemory, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ArrowOptions, ArrowStream, body::Body, index::IndexEntry, table::Table};
use crate::{
    error::{DataError, Result},
    part_cache::PartCache,
    record::{FieldOptions, Record},
};

/// The rows of Arrow IPC files, with random access: files (Feather version 2), and streams, as Hugging Face
/// `datasets` caches them. A sample is a [`Record`], or a type of your own that implements `Deserialize`, see
/// [`rows`](Self::rows).
///
/// # How it reads them
/// Opening reads the message of each record batch once, up to 16 files at the same time, and checks that all
/// files have the same columns. The list of record batches is in memory that all workers share: about 200
/// bytes for a record batch of three columns.
///
/// A row costs a few small reads (`pread`) of each selected column, whatever the size of its record batch:
/// any order is cheap. A record batch whose buffers are compressed (LZ4, Zstandard; Feather files of pyarrow
/// are by default) must be decompressed as a whole. A worker keeps the batches that it used last, see
/// [`cache_bytes`](ArrowOptions::cache_bytes); for random access to more data than that, write the files
/// without compression.
///
/// # Errors
/// A sample fails with a [`DataError`] that names the file and the row if the data is damaged, if the row
/// does not fit the type of the sample, or if the file has changed since it was opened.
///
/// # Examples
/// ```
/// use loader_core::DataLoader;
/// use loader_data::Arrow;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrow");
/// # std::env::set_current_dir(folder)?;
/// // Written by the `save_to_disk` of Hugging Face's datasets.
/// let rows = Arrow::open("saved/data-*.arrow")?;
/// let loader = DataLoader::builder(rows).batch_size(4).shuffle(true).seed(1).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<f32>("x")?.shape(), [4, 3]);
/// assert_eq!(batch["text"].texts().unwrap().len(), 4);
/// # anyhow::Ok(())
/// ```
#[derive_where(Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Arrow<R = Record> {
    table: Table,
    cache_bytes: u64,
    #[serde(skip)]
    cache: Mutex<PartCache<Body>>,
    row: PhantomData<fn() -> R>,
}

impl Arrow<Record> {
    /// Opens the files that `pattern` stands for, with all their columns: a file, a folder (all files in it
    /// and its sub-folders whose names end with `.arrow`, `.arrows`, `.feather` or `.ipc`, ordered by path),
    /// or a name with braces and wildcards, such as `data-*.arrow`. Of a folder that `save_to_disk` of
    /// Hugging Face's `datasets` wrote (with `state.json`), it opens the data files in their order, and no
    /// files that `datasets` cached there. To open only some columns, use [`ArrowOptions`]. Folders that are named
    /// `column=value` are columns as for `Parquet::open`.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, a folder has splits (`dataset_dict.json`), a file
    /// cannot be read or is not valid Arrow IPC, a column has a type that is not supported, or a file or its
    /// folders have other columns than the first one. A stream without the message that ends it is truncated.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        ArrowOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        ArrowOptions::new_all(patterns).open()
    }
}

impl<R> Arrow<R> {
    pub(super) fn new(table: Table, cache_bytes: u64) -> Self {
        Self { table, cache_bytes, cache: Mutex::default(), row: PhantomData }
    }

    /// Returns rows of type `T`. Its fields are found by their names; columns that it does not have are read
    /// and dropped, so select those that it has.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Dataset, DatasetMemory, SampleContext};
    /// use loader_data::Arrow;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Row {
    ///     x: Vec<f32>,
    ///     label: u8,
    /// }
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrow");
    /// # std::env::set_current_dir(folder)?;
    /// let rows = Arrow::open("saved/data-*.arrow")?.rows::<Row>();
    /// let row = rows.get(7, &mut SampleContext::new(0))?;
    /// assert_eq!((row.x.len(), row.label), (3, 7));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> Arrow<T> {
        Arrow::new(self.table, self.cache_bytes)
    }

    /// Sets which columns are read, and the dtypes of their numbers. If other columns are selected, the
    /// messages are read again; [`ArrowOptions::fields`] saves that.
    ///
    /// # Errors
    /// Returns [`DataError`] if a selected column does not exist, or as for [`open`](Arrow::open).
    pub fn fields(self, fields: FieldOptions) -> Result<Self, DataError> {
        Ok(Self::new(self.table.with_fields(fields)?, self.cache_bytes))
    }

    /// Reads the rows in order, without random access.
    #[must_use]
    pub fn stream(self) -> ArrowStream<R> {
        ArrowStream::new(self.table)
    }

    /// Returns the name and the type of each column that is read, such as `("x", "list of 3 float32")`.
    pub fn columns(&self) -> Vec<(String, String)> {
        self.table.columns().iter().map(|(name, kind)| (name.clone(), kind.to_string())).collect()
    }

    /// Opens a record batch, or returns it from the cache. The cache reserves its bytes from `memory`.
    fn body(&self, batch: &IndexEntry, memory: &DatasetMemory) -> Result<Arc<Body>> {
        if !self.table.is_compressed(batch) {
            return self.table.body(batch, false).map(Arc::new);
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(body) = cache.get(batch.index) {
            return Ok(body);
        }
        let body = Arc::new(self.table.body(batch, false)?);
        if let Some(reserved) = cache.make_room(body.bytes, self.cache_bytes, memory) {
            cache.insert(batch.index, &body, reserved, self.cache_bytes);
        }
        Ok(body)
    }
}

impl<R> Clone for Arrow<R> {
    fn clone(&self) -> Self {
        Self::new(self.table.clone(), self.cache_bytes)
    }
}

impl<R: DeserializeOwned + Send + 'static> Dataset for Arrow<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.table.index.rows
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<R> {
        let mut samples = self.get_many(&[index], cx)?;
        Ok(samples.pop().expect("`get_many` returns a sample for each index"))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<R>> {
        // The places in the batch, ordered by the row.
        let mut places: Vec<usize> = (0..indices.len()).collect();
        places.sort_by_key(|&place| indices[place]);
        let mut samples: Vec<Option<R>> = Vec::new();
        samples.resize_with(indices.len(), || None);
        let to_samples = self.table.samples(cx.is_collated::<Self>());
        let mut rest = &places[..];
        while let Some(&first) = rest.first() {
            assert!(indices[first] < self.len(), "index {} of {} rows", indices[first], self.len());
            let batch = self.table.index.batch_of(indices[first]);
            let start = batch.first as usize;
            let count = rest.partition_point(|&place| indices[place] - start < batch.rows);
            let of_batch;
            (of_batch, rest) = rest.split_at(count);
            let mut wanted: Vec<usize> = of_batch.iter().map(|&place| indices[place] - start).collect();
            wanted.dedup();
            let ranges: Vec<_> = wanted
                .chunk_by(|one, other| one + 1 == *other)
                .map(|run| run[0] as u64..run[0] as u64 + run.len() as u64)
                .collect();
            let read =
                self.body(&batch, cx.memory()).and_then(|body| self.table.read(&batch, &body, &ranges));
            let rows = read.map_err(|error| self.table.error(&batch, wanted[0], error.problem))?;
            for &place in of_batch {
                let row = indices[place] - start;
                let at = wanted.binary_search(&row).expect("it is wanted");
                let sample = to_samples.sample(&rows, at);
                samples[place] = Some(sample.map_err(|problem| self.table.error(&batch, row, problem))?);
            }
        }
        Ok(samples.into_iter().flatten().collect())
    }

    fn fingerprint(&self) -> String {
        format!("arrow({})", self.table.fingerprint())
    }
}
