//! The row groups of all files, as the footers list them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::{DatasetMemory, SharedVec, SharedVecError, Tensor};
use parquet::{arrow::ProjectionMask, basic::Type as PhysicalType};
use serde::{Deserialize, Serialize};

use super::{
    batches::{Batches, Selection},
    file::{FORMAT, are_read_together, malformed},
    footer::{Footer, OpenFile, arrow_schema, column_ranges, decode_footer, read_footer},
};
use crate::{
    arrow_rows::{ColumnKind, Samples, partition_columns, select_columns},
    error::{DataError, DataProblem, Position, Result},
    parallel,
    record::FieldOptions,
    source::{Files, ReadAhead},
};

/// Maximum number of decoded footers that a worker keeps, if they have more than [`MAX_FOOTER_BYTES`] bytes in memory.
const MAX_FOOTERS: usize = 64;

/// Number of bytes of decoded footers that a worker keeps, whatever their number. A footer of 3 columns in one row group
/// has 3 KB, one of 20 columns in 10 row groups 94 KB, and with the index of its pages 109 KB. Shards that read the same
/// files, and random rows, would otherwise decode the footers of more than [`MAX_FOOTERS`] files again and again, and
/// fetch the index of the pages with another request for each row.
const MAX_FOOTER_BYTES: usize = 16 << 20;

/// Maximum number of bytes of the footers that main gives to the workers.
const MAX_SHARED_FOOTERS: usize = 64 << 20;

/// A row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) file: usize,
    /// Number of the row group in its file.
    pub(super) number: usize,
    /// Index of its first row in its file.
    pub(super) first_in_file: u64,
    /// Index of its first row among the rows of all files.
    pub(super) first: u64,
    pub(super) rows: usize,
    /// Number of bytes of the selected columns before compression, as the file says.
    pub(super) bytes: u64,
}

/// Number of words that a row group has in the table.
const WORDS: usize = 6;

/// The files of a dataset with their row groups. The list of row groups and the footers are in shared memory. Each
/// worker decodes the footer of a file when it first reads the file: what it decodes is a tree of small allocations,
/// which processes cannot share.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) files: Files,
    /// Shape `[row groups, WORDS]`. Row groups without rows are left out.
    groups: Tensor<u64>,
    /// The encoded footer of each file. It is empty if it has more bytes than the share of the file in
    /// [`MAX_SHARED_FOOTERS`]; a worker then reads it from the file.
    footers: SharedVec<EncodedFooter>,
    pub(super) rows: usize,
    /// The columns that are read, in the order of the record.
    columns: Vec<(String, ColumnKind)>,
    /// True if one of them has timestamps of the type INT96.
    has_int96: bool,
    pub(super) fields: FieldOptions,
    #[serde(skip)]
    open: Mutex<OpenTable>,
}

#[derive(Debug, Default)]
struct OpenTable {
    samples: Option<Samples>,
    /// The footers used last, with the index of the file; the flag tells whether the index of the pages was read.
    footers: VecDeque<((usize, bool), Arc<Footer>)>,
}

impl Clone for Table {
    fn clone(&self) -> Self {
        Self {
            files: self.files.clone(),
            groups: self.groups.clone(),
            footers: self.footers.clone(),
            rows: self.rows,
            columns: self.columns.clone(),
            has_int96: self.has_int96,
            fields: self.fields.clone(),
            open: Mutex::default(),
        }
    }
}

impl Table {
    /// Reads the footers of `files`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, is not valid Parquet, or has other columns than the first
    /// one.
    pub(super) fn open(files: Files, fields: FieldOptions) -> Result<Self> {
        let partition = partition_columns(&files)?;
        let first = FileGroups::read(&files, 0, &partition, None, &fields)?;
        let columns = first.columns.clone();
        let mut found = vec![first];
        let read = |file| FileGroups::read(&files, file + 1, &partition, Some(&columns), &fields);
        found.extend(parallel::map_on(parallel::READS, files.len() - 1, read)?);

        let has_int96 = found.iter().any(|found| found.has_int96);
        let (mut words, mut rows) = (Vec::new(), 0u64);
        for (file, found) in found.iter().enumerate() {
            let mut first_in_file = 0;
            for (number, group) in found.groups.iter().enumerate().filter(|(_, group)| group.rows > 0) {
                words.extend([file as u64, number as u64, first_in_file, rows, group.rows, group.bytes]);
                first_in_file += group.rows;
                rows += group.rows;
            }
        }
        let memory = |error: &dyn ToString| {
            DataError::new("the list of row groups", DataProblem::Memory(error.to_string()))
        };
        let footers = SharedVec::new(found.into_iter().map(|found| found.footer));
        let footers = footers.map_err(|error| memory(&error))?;
        let count = words.len() / WORDS;
        let groups = Tensor::from_vec(words, [count, WORDS]).map_err(|error| memory(&error))?;
        let rows = usize::try_from(rows).map_err(|error| memory(&error))?;
        Ok(Self { files, groups, footers, rows, columns, has_int96, fields, open: Mutex::default() })
    }

    /// Returns the same files with other options.
    ///
    /// # Errors
    /// As for [`open`](Self::open): the footers are read again if the columns change.
    pub(super) fn with_fields(self, fields: FieldOptions) -> Result<Self> {
        if fields.selected() == self.fields.selected() {
            let failed = |problem| DataError::new(self.files.get(0).location, problem);
            fields.check_names(self.columns.iter().map(|(name, _)| name)).map_err(failed)?;
            return Ok(Self { fields, open: Mutex::default(), ..self });
        }
        Self::open(self.files, fields)
    }

    /// Number of row groups.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn group(&self, index: usize) -> Group {
        let row = self.groups.row(index);
        Group {
            file: row[0] as usize,
            number: row[1] as usize,
            first_in_file: row[2],
            first: row[3],
            rows: row[4] as usize,
            bytes: row[5],
        }
    }

    /// Returns the index of the row group that has row `row` of all rows.
    pub(super) fn group_of(&self, row: usize) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.group(middle).first <= row as u64 { low = middle + 1 } else { high = middle }
        }
        low.saturating_sub(1)
    }

    /// Starts to read a row group. `ahead` may be what [`begin`](Self::begin) has returned for it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has changed since it was opened.
    pub(super) fn read(
        &self,
        group: Group,
        selection: Selection<'_>,
        ahead: Option<ReadAhead>,
    ) -> Result<Batches> {
        let file = self.file(group.file, matches!(selection, Selection::Rows(_)))?;
        Batches::new(&file, group.number, selection, ahead)
    }

    /// Starts to fetch the columns of row group `index` from a server. Returns `None` as [`ReadAhead::start`] does, and
    /// if the columns are too large to be read together, or if the footer of their file must be read first.
    pub(super) fn begin(&self, index: usize, memory: &DatasetMemory) -> Option<ReadAhead> {
        let group = self.group(index);
        if !self.files.is_remote(group.file) || !self.has_footer(group.file) {
            return None;
        }
        let OpenFile { blob, footer } = self.file(group.file, false).ok()?;
        let ranges = column_ranges(footer.row_group(group.number), &footer.mask, blob.len()).ok()?;
        are_read_together(&ranges).then(|| ReadAhead::start(&blob, ranges, memory))?
    }

    /// True if any file lies on a server.
    pub(super) fn is_remote(&self) -> bool {
        (0..self.files.len()).any(|file| self.files.is_remote(file))
    }

    /// True if opening file `index` does not read its footer.
    fn has_footer(&self, index: usize) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.footers.iter().any(|(key, _)| *key == (index, false))
            || self.footers.get(index).is_ok_and(|footer| !footer.0.is_empty())
    }

    /// Returns file `index`, and opens it if it is not open.
    fn file(&self, index: usize, with_pages: bool) -> Result<OpenFile> {
        let blob = self.files.open(index)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.footers.iter().position(|(key, _)| *key == (index, with_pages)) {
            let found = open.footers.remove(at).expect("`position` has found it");
            let footer = Arc::clone(&found.1);
            open.footers.push_front(found);
            return Ok(OpenFile { blob, footer });
        }
        let failed =
            |error: SharedVecError| DataError::new("the footers", DataProblem::Memory(error.to_string()));
        let mut encoded = self.footers.get(index).map_err(failed)?.0;
        if encoded.is_empty() {
            encoded = read_footer(&blob)?;
        }
        let footer = Arc::new(Footer::decode(&blob, &encoded, &self.columns, with_pages)?);
        open.footers.push_front(((index, with_pages), Arc::clone(&footer)));
        let bytes = |open: &OpenTable| open.footers.iter().map(|(_, footer)| footer.bytes).sum::<usize>();
        while open.footers.len() > MAX_FOOTERS && bytes(&open) > MAX_FOOTER_BYTES {
            open.footers.pop_back();
        }
        Ok(OpenFile { blob, footer })
    }

    /// Returns what turns decoded rows into samples, which refer to the rows if they are collated at once.
    pub(super) fn samples(&self, is_collated: bool) -> Samples {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.samples.get_or_insert_with(|| Samples::new(&self.fields, &self.columns)).collated(is_collated)
    }

    /// Text for the fingerprint: which rows there are, which columns, and the unit of timestamps of the type INT96, which
    /// the files do not say.
    pub(super) fn fingerprint(&self) -> String {
        let groups = self.len();
        format!(
            "{}, {} rows in {groups} groups{}{}",
            self.files.fingerprint(),
            self.rows,
            self.fields.fingerprint(),
            if self.has_int96 { ", INT96 in microseconds" } else { "" }
        )
    }

    /// Returns the columns and their types.
    pub(super) fn columns(&self) -> &[(String, ColumnKind)] {
        &self.columns
    }
}

impl Table {
    /// Returns an error about row `row` of `group`.
    pub(super) fn error(&self, group: Group, row: usize, problem: impl Into<DataProblem>) -> DataError {
        let position = Position::Row(group.first_in_file + row as u64);
        DataError::new(self.files.get(group.file).location, problem).at(position)
    }
}

/// The encoded footer of a file, or nothing if a worker is to read it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct EncodedFooter(#[serde(with = "serde_bytes")] Vec<u8>);

/// What the footer of a file says.
struct FileGroups {
    columns: Vec<(String, ColumnKind)>,
    has_int96: bool,
    groups: Vec<GroupSize>,
    footer: EncodedFooter,
}

struct GroupSize {
    rows: u64,
    bytes: u64,
}

impl FileGroups {
    /// Reads the footer of file `index`, whose folders give the columns `partition`. Its columns must be `expected`, if
    /// given.
    fn read(
        files: &Files,
        index: usize,
        partition: &[(String, ColumnKind)],
        expected: Option<&[(String, ColumnKind)]>,
        fields: &FieldOptions,
    ) -> Result<Self> {
        let blob = files.open(index)?;
        let failed = |problem| DataError::new(&blob.file().location, problem);
        let footer = read_footer(&blob)?;
        let metadata = decode_footer(&blob, &footer)?;
        let schema = arrow_schema(&blob, &metadata)?;
        let (columns, positions) =
            select_columns(FORMAT, &schema, partition, expected, fields).map_err(failed)?;
        let leaves = metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::roots(leaves, positions);
        let is_int96 = |leaf| leaves.column(leaf).physical_type() == PhysicalType::INT96;
        let has_int96 = (0..leaves.num_columns()).any(|leaf| mask.leaf_included(leaf) && is_int96(leaf));
        let groups = metadata.row_groups().iter().enumerate().map(|(number, group)| {
            let invalid = |reason: String| failed(malformed(format!("row group {number}: {reason}")));
            column_ranges(group, &mask, blob.len()).map_err(invalid)?;
            // So many rows that an index of them takes 4 bytes.
            let rows = u32::try_from(group.num_rows());
            let rows = rows.map_err(|_| invalid(format!("it has {} rows", group.num_rows())))?;
            let columns = group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf));
            let sizes = columns.map(|(_, column)| u64::try_from(column.uncompressed_size()).unwrap_or(0));
            Ok(GroupSize { rows: rows.into(), bytes: sizes.fold(0, u64::saturating_add) })
        });
        let groups = groups.collect::<Result<_>>()?;
        let is_shared = footer.len() <= MAX_SHARED_FOOTERS / files.len();
        let footer = EncodedFooter(if is_shared { footer } else { Vec::new() });
        Ok(Self { columns, has_int96, groups, footer })
    }
}
