//! The record batches of all files, as their messages list them.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};
use loader_core::DatasetMemory;
use serde::{Deserialize, Serialize};

use super::{
    body::{Body, Codec, Stored, ranges},
    gather::Gather,
    index::{Index, IndexEntry, OpenedFile},
    items::total,
    malformed,
};
use crate::{
    arrow_rows::{Batch, Cells, ColumnKind, PartitionValue, Samples, partition_columns},
    error::{DataError, DataProblem, Position, Result},
    parallel,
    record::FieldOptions,
    source::{Files, ReadAhead},
};

/// Maximum number of bytes of a record batch that is fetched from a server as a whole, when it is read in order.
const MAX_FETCH: u64 = 64 << 20;

/// The files of a dataset with their record batches, in shared memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) files: Files,
    pub(super) index: Index,
    columns: Vec<(String, ColumnKind)>,
    pub(super) fields: FieldOptions,
    pub(super) max_batch_bytes: u64,
    #[serde(skip)]
    open: Mutex<OpenTable>,
}

#[derive(Debug, Default)]
struct OpenTable {
    /// The names of the columns; empty before the first use.
    names: Arc<[Arc<str>]>,
    samples: Option<Samples>,
    /// The values of dictionaries, by the index of their last entry.
    dictionaries: HashMap<usize, ArrayRef>,
}

impl Clone for Table {
    fn clone(&self) -> Self {
        Self {
            files: self.files.clone(),
            index: self.index.clone(),
            columns: self.columns.clone(),
            fields: self.fields.clone(),
            max_batch_bytes: self.max_batch_bytes,
            open: Mutex::default(),
        }
    }
}

impl Table {
    /// Reads the messages of `files`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, is not valid Arrow IPC, or has other columns than the first
    /// one.
    pub(super) fn open(files: Files, fields: FieldOptions, max_batch_bytes: u64) -> Result<Self> {
        let partition = partition_columns(&files)?;
        let first = OpenedFile::read(&files, 0, &partition, None, &fields)?;
        let columns = first.columns.clone();
        let read = |file| OpenedFile::read(&files, file + 1, &partition, Some(&columns), &fields);
        let others = parallel::map_on(parallel::READS, files.len() - 1, read)?;
        let index = Index::new([first].into_iter().chain(others)).map_err(|error| {
            DataError::new("the list of record batches", DataProblem::Memory(error.to_string()))
        })?;
        Ok(Self { files, index, columns, fields, max_batch_bytes, open: Mutex::default() })
    }

    /// Returns the same files with other options.
    ///
    /// # Errors
    /// As for [`open`](Self::open): the messages are read again if the columns change.
    pub(super) fn with_fields(self, fields: FieldOptions) -> Result<Self> {
        if fields.selected() == self.fields.selected() {
            let failed = |problem| DataError::new(self.files.get(0).location, problem);
            fields.check_names(self.columns.iter().map(|(name, _)| name)).map_err(failed)?;
            return Ok(Self { fields, open: Mutex::default(), ..self });
        }
        Self::open(self.files, fields, self.max_batch_bytes)
    }

    /// Number of bytes that the selected columns of a record batch have in the file.
    pub(super) fn stored_bytes(&self, entry: &IndexEntry) -> u64 {
        self.index.parts(entry).1.iter().map(|[_, len]| len).fold(0, |sum: u64, len| sum.saturating_add(*len))
    }

    /// True if a record batch can only be read as a whole.
    pub(super) fn is_compressed(&self, entry: &IndexEntry) -> bool {
        entry.codec != Codec::None
    }

    /// Opens a record batch. If it is read in order and lies on a server, all its columns are fetched
    /// together.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, has changed, or if a compressed batch is damaged or too
    /// large.
    pub(super) fn body(&self, entry: &IndexEntry, is_in_order: bool) -> Result<Body> {
        self.unpack(entry, self.fetch(entry, is_in_order, None)?)
    }

    /// Reads what [`unpack`](Self::unpack) needs. `ahead` may be what [`begin`](Self::begin) has returned for the record
    /// batch.
    pub(super) fn fetch(
        &self,
        entry: &IndexEntry,
        is_in_order: bool,
        ahead: Option<ReadAhead>,
    ) -> Result<Stored> {
        let blob = self.files.open(entry.file)?;
        let is_fetched = is_in_order && blob.is_remote() && self.stored_bytes(entry) <= MAX_FETCH;
        if self.is_compressed(entry) || is_fetched {
            Stored::read(blob, self.index.parts(entry).1, self.max_batch_bytes, ahead)
        } else {
            Ok(Stored::in_file(blob))
        }
    }

    /// Opens a record batch that was fetched.
    pub(super) fn unpack(&self, entry: &IndexEntry, stored: Stored) -> Result<Body> {
        Body::new(stored, self.index.parts(entry).1, entry.codec, self.max_batch_bytes)
    }

    /// Starts to fetch from a server a record batch that is read in order. Returns `None` as [`ReadAhead::start`] does,
    /// and if the record batch has more than 64 MiB.
    pub(super) fn begin(&self, entry: &IndexEntry, memory: &DatasetMemory) -> Option<ReadAhead> {
        if !self.files.is_remote(entry.file) || self.stored_bytes(entry) > MAX_FETCH.min(self.max_batch_bytes)
        {
            return None;
        }
        let blob = self.files.open(entry.file).ok()?;
        ReadAhead::start(&blob, ranges(self.index.parts(entry).1), memory)
    }

    /// Reads rows of a record batch.
    ///
    /// # Errors
    /// Returns an error if they cannot be read or are damaged.
    pub(super) fn read(&self, entry: &IndexEntry, body: &Body, rows: &[Range<u64>]) -> Result<Arc<Batch>> {
        let file = body.blob.file();
        let fields = self.index.layout(entry.file);
        let mut gather = Gather::new(self, entry, body, fields.iter().map(|field| field.data_type()));
        let count = total(rows) as usize;
        let mut fields = fields.iter();
        let mut columns = Vec::with_capacity(self.columns.len());
        let mut bytes = 0;
        for ((name, _), value) in self.columns.iter().zip(PartitionValue::of(&self.columns, file)) {
            let array = match value {
                Some(value) => value.array(count),
                None => {
                    let field = fields.next().expect("it has each column that is in the file");
                    gather.array(field, rows).map_err(|error| in_column(error, name))?
                }
            };
            bytes += array.get_array_memory_size() as u64;
            columns.push(Cells::new(&array).map_err(|data_type| {
                let reason = format!("column `{name}` has the unexpected type {data_type}");
                DataError::new(&file.location, malformed(reason))
            })?);
        }
        Ok(Arc::new(Batch::new(&self.names(), columns, count, bytes)))
    }

    fn names(&self) -> Arc<[Arc<str>]> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.names.is_empty() {
            open.names = self.columns.iter().map(|(name, _)| Arc::from(name.as_str())).collect();
        }
        Arc::clone(&open.names)
    }

    /// Returns the values of the dictionary `id` that a record batch uses; `None` if it has none.
    pub(super) fn dictionary(
        &self,
        batch: &IndexEntry,
        id: i64,
        values: &DataType,
    ) -> Result<Option<ArrayRef>> {
        let parts = self.index.dictionary(batch, id);
        let Some(last) = parts.last() else { return Ok(None) };
        let found = |open: &OpenTable| open.dictionaries.get(&last.index).cloned();
        if let Some(array) = found(&self.open.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Some(array));
        }
        let field = Field::new("", values.clone(), true);
        let mut arrays = Vec::new();
        for entry in &parts {
            let body = self.body(entry, true)?;
            arrays.push(
                Gather::new(self, entry, &body, [values].into_iter())
                    .array(&field, std::slice::from_ref(&(0..entry.rows as u64)))?,
            );
        }
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let joined = arrow_select::concat::concat(&arrays).map_err(|error| {
            DataError::new(self.files.get(batch.file).location, malformed(format!("a dictionary: {error}")))
        })?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.dictionaries.insert(last.index, Arc::clone(&joined));
        Ok(Some(joined))
    }

    /// Returns what turns rows into samples, which refer to the rows if they are collated at once.
    pub(super) fn samples(&self, is_collated: bool) -> Samples {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.samples.get_or_insert_with(|| Samples::new(&self.fields, &self.columns)).collated(is_collated)
    }

    /// Text for the fingerprint: which rows there are, and which columns.
    pub(super) fn fingerprint(&self) -> String {
        let (files, fields) = (self.files.fingerprint(), self.fields.fingerprint());
        format!("{files}, {} rows in {} batches{fields}", self.index.rows, self.index.len())
    }

    /// Returns the columns and their types.
    pub(super) fn columns(&self) -> &[(String, ColumnKind)] {
        &self.columns
    }

    /// Returns an error about row `row` of a record batch.
    pub(super) fn error(&self, batch: &IndexEntry, row: usize, problem: impl Into<DataProblem>) -> DataError {
        let position = Position::Row(batch.first_in_file + row as u64);
        DataError::new(self.files.get(batch.file).location, problem).at(position)
    }
}

/// Names the column in an error about its content.
fn in_column(mut error: DataError, name: &str) -> DataError {
    if let DataProblem::Malformed { reason, .. } = &mut error.problem {
        *reason = format!("column `{name}`: {reason}");
    }
    error
}
