//! The dataset [`Parquet`].

use std::{
    marker::PhantomData,
    path::Path,
    sync::{Mutex, PoisonError},
};

use derive_where::derive_where;
use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ParquetOptions, ParquetStream, cache::Cache, table::Table};
use crate::{
    error::DataError,
    record::{FieldOptions, Record},
};

/// Maximum number of bytes of decoded row groups that each worker keeps, if nothing else is said.
pub(super) const CACHE_BYTES: u64 = 64 << 20;

/// The rows of Parquet files, with random access. A sample is a [`Record`], or a type of your own that
/// implements `Deserialize`, see [`rows`](Self::rows).
///
/// Opening reads the footers of all files once, up to 16 of them at the same time, and checks that all files
/// have the same columns. The list of row groups (48 bytes each) is in memory that all workers share.
///
/// # Random rows are slow
/// Parquet is made for reading whole columns: to reach one row, the reader decompresses at least one page of
/// each column, and without an index of the pages (`write_page_index=True` in pyarrow) reads the whole
/// columns of the row group. A batch of random rows costs hundreds of microseconds a row. Use
/// [`stream`](Self::stream) with [`shuffle_blocks`](ParquetStream::shuffle_blocks) for training in random order, or
/// convert the data once to a format with cheap access by index. Random access is fine for data that fits
/// into [`cache_bytes`](Self::cache_bytes), and for looking at single rows.
///
/// A worker decodes a whole row group if a batch wants a quarter of its rows, or the second time that it
/// reads rows of it while the groups that it has read in between fit into `cache_bytes`; then it keeps the
/// decoded group. It reads other rows one by one.
///
/// # Errors
/// A sample fails with a [`DataError`] that names the file, and the row where one row is to blame, if the
/// data is damaged, if the row does not fit the type of the sample, or if the file has changed since it was
/// opened.
///
/// # Examples
/// ```
/// use loader_core::DataLoader;
/// use loader_data::{FieldOptions, Parquet, ParquetOptions};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet");
/// # std::env::set_current_dir(folder)?;
/// let rows = ParquetOptions::new("train-*.parquet").fields(FieldOptions::new().select(["x", "label"])).open()?;
/// let loader = DataLoader::builder(rows).batch_size(4).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<f32>("x")?.shape(), [4, 3]);
/// assert_eq!(batch.tensor::<i64>("label")?.as_slice(), [0, 1, 2, 3]);
/// # anyhow::Ok(())
/// ```
#[derive_where(Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Parquet<R = Record> {
    table: Table,
    cache_bytes: u64,
    #[serde(skip)]
    cache: Mutex<Cache>,
    row: PhantomData<fn() -> R>,
}

impl Parquet<Record> {
    /// Opens the files that `pattern` stands for, with all their columns: a file, a folder (all files in it
    /// and its sub-folders whose names end with `.parquet`, ordered by path), or a name with braces and
    /// wildcards, such as `data/train-*.parquet`. To open only some columns, use [`ParquetOptions`].
    ///
    /// A folder that is named `column=value` is a column too, after those of the files, if it lies below the folder
    /// `pattern` or if wildcards or braces stand for its name. A folder that `pattern` names is none.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, a file cannot be read or is not valid Parquet, a
    /// column has a type that is not supported, or a file or its folders have other columns than the first one.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        ParquetOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        ParquetOptions::new_all(patterns).open()
    }
}

impl<R> Parquet<R> {
    pub(super) fn new(table: Table, cache_bytes: u64) -> Self {
        Self { table, cache_bytes, cache: Mutex::default(), row: PhantomData }
    }

    /// Returns rows of type `T`. Its fields are found by their names; columns that it does not have are read
    /// and dropped, so select those that it has.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::Parquet;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Row {
    ///     x: Vec<f32>,
    ///     label: u8,
    /// }
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet");
    /// # std::env::set_current_dir(folder)?;
    /// let rows = Parquet::open("train-*.parquet")?.rows::<Row>();
    /// let row = rows.get(7, &mut SampleContext::new(0))?;
    /// assert_eq!((row.x.len(), row.label), (3, 7));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> Parquet<T> {
        Parquet::new(self.table, self.cache_bytes)
    }

    /// Sets which columns are read, and the dtypes of their numbers. If other columns are selected, the
    /// footers are read again; [`ParquetOptions::fields`] saves that.
    ///
    /// # Errors
    /// Returns [`DataError`] if a selected column does not exist, or as for [`open`](Parquet::open).
    pub fn fields(self, fields: FieldOptions) -> Result<Self, DataError> {
        Ok(Self::new(self.table.with_fields(fields)?, self.cache_bytes))
    }

    /// Sets the maximum number of bytes of decoded row groups that each worker keeps, within its part of the
    /// loader's [`memory_limit`](loader_core::Builder::memory_limit). The default is 64 MiB. A batch may need
    /// more while it is loaded: the row groups that were decoded for it stay until its rows are copied.
    #[must_use]
    pub fn cache_bytes(self, bytes: u64) -> Self {
        Self { cache_bytes: bytes, ..self }
    }

    /// Reads the rows in order, without random access.
    #[must_use]
    pub fn stream(self) -> ParquetStream<R> {
        ParquetStream::new(self.table)
    }

    /// Number of row groups that have rows.
    pub fn row_groups(&self) -> usize {
        self.table.len()
    }

    /// Returns the name and the type of each column that is read, such as `("x", "list of 3 float32")`.
    pub fn columns(&self) -> Vec<(String, String)> {
        self.table.columns().iter().map(|(name, kind)| (name.clone(), kind.to_string())).collect()
    }
}

impl<R> Clone for Parquet<R> {
    fn clone(&self) -> Self {
        Self::new(self.table.clone(), self.cache_bytes)
    }
}

impl<R: DeserializeOwned + Send + 'static> Dataset for Parquet<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.table.rows
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<R> {
        let mut samples = self.get_many(&[index], cx)?;
        Ok(samples.pop().expect("`get_many` returns a sample for each index"))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<R>> {
        // The positions in the batch, ordered by the row.
        let mut positions: Vec<usize> = (0..indices.len()).collect();
        positions.sort_by_key(|&position| indices[position]);
        let mut samples: Vec<Option<R>> = Vec::new();
        samples.resize_with(indices.len(), || None);
        let rows = self.table.samples(cx.is_collated::<Self>());
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = &positions[..];
        while let Some(&first) = rest.first() {
            assert!(indices[first] < self.len(), "index {} of {} rows", indices[first], self.len());
            let index = self.table.group_of(indices[first]);
            let group = self.table.group(index);
            let start = group.first as usize;
            let count = rest.partition_point(|&position| indices[position] < start + group.rows);
            let of_group;
            (of_group, rest) = rest.split_at(count);
            let mut wanted: Vec<usize> = of_group.iter().map(|&position| indices[position] - start).collect();
            wanted.dedup();
            let found = cache.read(&self.table, index, &wanted, self.cache_bytes, cx.memory())?;
            let mut number = 0;
            for &position in of_group {
                let row = indices[position] - start;
                number += usize::from(wanted[number] < row);
                let (batch, at) = found.locate(row, number);
                samples[position] =
                    Some(rows.sample(batch, at).map_err(|problem| self.table.error(group, row, problem))?);
            }
        }
        Ok(samples.into_iter().flatten().collect())
    }

    fn fingerprint(&self) -> String {
        format!("parquet({})", self.table.fingerprint())
    }
}
