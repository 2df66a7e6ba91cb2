//! Decodes the rows of a row group.

use std::sync::Arc;

use arrow_array::Array;
use loader_core::{MemoryLimitReached, MemoryReservation, Phase};
use parquet::{
    arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection},
    file::metadata::ColumnChunkMetaData,
};

use super::{
    file::ParquetFile,
    footer::{Footer, OpenFile, column_ranges},
};
use crate::{
    arrow_rows::{Batch, Cells, PartitionValue},
    error::Result,
    source::ReadAhead,
};

/// Maximum number of rows that are decoded at once.
const MAX_ROWS: u64 = 8192;
/// Number of bytes that are decoded at once, at least one row. Larger pieces take longer to decode, because they do not
/// fit into the caches of a processor, and they make the heap of a worker larger.
const BYTES: u64 = 128 << 10;
/// Number of further bytes for each column, because each piece costs some time per column.
const BYTES_PER_COLUMN: u64 = 8 << 10;

/// The rows of a row group that are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Selection<'a> {
    /// All rows from this one on.
    From(usize),
    /// These rows, in ascending order.
    Rows(&'a [usize]),
}

/// Reads rows of a row group, some thousand at once.
pub(super) struct Batches {
    source: ParquetFile,
    footer: Arc<Footer>,
    reader: ParquetRecordBatchReader,
}

impl Batches {
    /// Starts to read row group `group` of `file`. `ahead` may be fetching its columns.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or the row group is invalid.
    pub(super) fn new(
        file: &OpenFile,
        group: usize,
        selection: Selection<'_>,
        ahead: Option<ReadAhead>,
    ) -> Result<Self> {
        let OpenFile { blob, footer } = file;
        let metadata = footer.row_group(group);
        let mut source = ParquetFile::of_group(Arc::clone(blob), group);
        let ranges = column_ranges(metadata, &footer.mask, blob.len());
        let ranges = ranges.map_err(|reason| source.malformed(reason))?;
        let rows = usize::try_from(metadata.num_rows()).unwrap_or(0);
        // With an index of the pages, only the pages that are needed are read.
        if !(matches!(selection, Selection::Rows(_)) && footer.has_pages(group)) {
            source.load(&ranges, ahead)?;
        }
        let input = source.clone();
        let reader = source.guard(|| {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(input, footer.metadata.clone())
                .with_row_groups(vec![group])
                .with_projection(footer.mask.clone())
                .with_batch_size(rows_at_once(footer, group, rows));
            match selection {
                Selection::From(0) => builder,
                Selection::From(first) => builder.with_offset(first),
                Selection::Rows(wanted) => {
                    let ranges = wanted.iter().map(|&row| row..row + 1);
                    builder.with_row_selection(RowSelection::from_consecutive_ranges(ranges, rows))
                }
            }
            .build()
        })?;
        Ok(Self { source, footer: Arc::clone(footer), reader })
    }

    /// Decodes the next rows; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Result<Arc<Batch>>> {
        let Self { source, footer, reader } = self;
        let decode = || match reader.next() {
            Some(Ok(batch)) => {
                let rows = batch.num_rows();
                let mut bytes = batch.get_array_memory_size() as u64;
                let mut order = footer.order.iter();
                let column = |value: &Option<PartitionValue>| {
                    let Some(value) = value else {
                        let at = *order.next().expect("it has an index for each column in the file");
                        return Cells::new(batch.column(at));
                    };
                    let array = value.array(rows);
                    bytes += array.get_array_memory_size() as u64;
                    Cells::new(&array)
                };
                let columns: Result<Vec<_>, String> = footer.partition.iter().map(column).collect();
                let columns = columns.map_err(unsupported)?;
                Ok(Some(Arc::new(Batch::new(&footer.names, columns, rows, bytes))))
            }
            Some(Err(error)) => Err(error.to_string()),
            None => Ok(None),
        };
        source.guard(|| Phase::Decode.measure(decode)).transpose()
    }
}

/// Returns how many rows of row group `group`, which has `rows` rows, are decoded at once.
fn rows_at_once(footer: &Footer, group: usize, rows: usize) -> usize {
    let columns = selected_columns(footer, group).count() as u64;
    let bytes = BYTES + BYTES_PER_COLUMN * columns;
    (bytes.saturating_mul(rows as u64) / decoded_bytes(footer, group).max(1)).clamp(1, MAX_ROWS) as usize
}

fn unsupported(data_type: String) -> String {
    format!("a column has the unexpected type {data_type}")
}

/// Returns the number of bytes of the selected columns of a row group before compression, as the file says.
pub(super) fn decoded_bytes(footer: &Footer, group: usize) -> u64 {
    selected_columns(footer, group)
        .map(|column| u64::try_from(column.uncompressed_size()).unwrap_or(0))
        .fold(0, u64::saturating_add)
}

fn selected_columns(footer: &Footer, group: usize) -> impl Iterator<Item = &ColumnChunkMetaData> {
    let columns = footer.row_group(group).columns().iter().enumerate();
    columns.filter(|(leaf, _)| footer.mask.leaf_included(*leaf)).map(|(_, column)| column)
}

/// Decoded rows that stay in memory.
#[derive(Debug)]
pub(super) struct KeptRows {
    batches: Vec<Arc<Batch>>,
    /// Number of rows up to the end of each batch.
    ends: Vec<usize>,
}

/// Why decoded rows may not stay in memory.
#[derive(Debug)]
pub(super) struct NoRoom {
    /// Min number of bytes that they have.
    pub(super) bytes: u64,
    /// The refusal if they exceed the dataset's part of `memory_limit`; `None` if they exceed the limit of
    /// the caller.
    pub(super) refused: Option<MemoryLimitReached>,
}

impl KeptRows {
    /// Decodes all rows of `batches`: exactly `rows` rows, with at most `limit` bytes in memory. Changes
    /// `reserved` to the number of bytes that they have.
    ///
    /// # Errors
    /// Returns an error if they cannot be decoded. `Ok(Err(_))` says why they may not stay in memory.
    pub(super) fn read(
        mut batches: Batches,
        rows: usize,
        limit: u64,
        reserved: &mut MemoryReservation,
    ) -> Result<Result<Self, NoRoom>> {
        let mut decoded = Self { batches: Vec::new(), ends: Vec::new() };
        let mut bytes = 0_u64;
        while let Some(batch) = batches.next() {
            let batch = batch?;
            bytes = bytes.saturating_add(batch.bytes);
            if bytes > limit {
                return Ok(Err(NoRoom { bytes, refused: None }));
            }
            if let Err(refused) = reserved.grow(bytes.saturating_sub(reserved.bytes())) {
                return Ok(Err(NoRoom { bytes, refused: Some(refused) }));
            }
            decoded.ends.push(decoded.len() + batch.len());
            decoded.batches.push(batch);
        }
        reserved.shrink_to(bytes);
        if decoded.len() == rows {
            Ok(Ok(decoded))
        } else {
            Err(batches.source.malformed(wrong_rows(decoded.len(), rows)))
        }
    }

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the batch that has row `row`, and the index of the row in it.
    pub(super) fn locate(&self, row: usize) -> (&Arc<Batch>, usize) {
        let batch = self.ends.partition_point(|&end| end <= row);
        (&self.batches[batch], row - batch.checked_sub(1).map_or(0, |before| self.ends[before]))
    }
}

/// Returns the problem of a row group that ends too early.
pub(super) fn wrong_rows(found: usize, expected: usize) -> String {
    format!("a row group has {found} rows where its footer says {expected}")
}
