//! The footer of a Parquet file: its schema, and where its row groups are.

use std::{ops::Range, sync::Arc};

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions},
    },
    basic::Type as PhysicalType,
    file::metadata::{
        ColumnChunkMask, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
        ParquetStatisticsPolicy, RowGroupMetaData,
    },
};

use super::file::{ParquetFile, malformed};
use crate::{
    arrow_rows::{ColumnKind, PartitionValue},
    error::{DataError, DataProblem, Position, Result},
    source::Blob,
};

/// Number of bytes at the end of a file that are read first. Most footers fit.
const TAIL: u64 = 64 << 10;
const MAGIC: &[u8; 4] = b"PAR1";
const MAGIC_ENCRYPTED: &[u8; 4] = b"PARE";
/// Length of the footer (4 bytes) and the magic number.
const TRAILER: u64 = 8;

/// Decodes the footer of the file. Statistics of columns are left out.
///
/// # Errors
/// Returns an error if the footer is not valid.
pub(super) fn decode_footer(blob: &Arc<Blob>, footer: &[u8]) -> Result<ParquetMetaData> {
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    ParquetFile::new(Arc::clone(blob))
        .guard(|| ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options)))
}

/// Reads the footer of the file.
///
/// # Errors
/// Returns an error if the file cannot be read or is not Parquet.
pub(super) fn read_footer(blob: &Blob) -> Result<Vec<u8>> {
    let failed = |problem| DataError::new(&blob.file().location, problem);
    let len = blob.len();
    if len < MAGIC.len() as u64 + TRAILER {
        let reason =
            if len == 0 { "the file is empty".to_owned() } else { format!("it has only {len} bytes") };
        return Err(failed(malformed(reason)));
    }
    let mut tail = blob.read(len.saturating_sub(TAIL)..len)?;
    let trailer = tail.split_off(tail.len() - TRAILER as usize);
    let (size, magic) = trailer.split_at(4);
    if magic == MAGIC_ENCRYPTED {
        return Err(failed(DataProblem::Unsupported("its footer is encrypted".to_owned())));
    }
    if magic != MAGIC {
        // A file that begins as Parquet has lost its end.
        let problem = if blob.read(0..4)? == MAGIC {
            DataProblem::Truncated
        } else {
            malformed("it does not begin and end with `PAR1`")
        };
        return Err(failed(problem));
    }
    let size = u64::from(u32::from_le_bytes(size.try_into().expect("it has 4 bytes")));
    let end = len - TRAILER;
    let Some(start) = end.checked_sub(size).filter(|&start| start >= MAGIC.len() as u64) else {
        let problem = malformed(format!("its footer of {size} bytes is longer than the file"));
        return Err(failed(problem).at(Position::Offset(end)));
    };
    if size as usize <= tail.len() {
        return Ok(tail.split_off(tail.len() - size as usize));
    }
    blob.read(start..end)
}

/// A file whose columns can be read.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) blob: Arc<Blob>,
    pub(super) footer: Arc<Footer>,
}

/// The decoded footer of a file, and how a record is made of its columns.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) metadata: ArrowReaderMetadata,
    pub(super) mask: ProjectionMask,
    /// The names of the columns of a record.
    pub(super) names: Arc<[Arc<str>]>,
    /// The value of each column of a record that the folders of the file give; `None` for a column in the file.
    pub(super) partition: Vec<Option<PartitionValue>>,
    /// For each column of a record that is in the file, its index among the columns that the library returns.
    pub(super) order: Vec<usize>,
    /// Number of bytes of the metadata in memory.
    pub(super) bytes: usize,
}

impl Footer {
    /// Decodes the footer of a file whose columns have been checked. With `with_pages`, reads also the index of
    /// its pages, if it has one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not valid Parquet.
    pub(super) fn decode(
        blob: &Arc<Blob>,
        encoded: &[u8],
        columns: &[(String, ColumnKind)],
        with_pages: bool,
    ) -> Result<Self> {
        let metadata = decode_footer(blob, encoded)?;
        let schema = arrow_schema(blob, &metadata)?;
        let source = ParquetFile::new(Arc::clone(blob));
        let partition = PartitionValue::of(columns, blob.file());
        let mut roots = Vec::with_capacity(columns.len());
        for ((name, _), _) in columns.iter().zip(&partition).filter(|(_, value)| value.is_none()) {
            let missing = || source.malformed(format!("it has no column `{name}` any more"));
            roots.push(schema.fields().iter().position(|field| field.name() == name).ok_or_else(missing)?);
        }
        let mask = ProjectionMask::roots(metadata.file_metadata().schema_descr(), roots.iter().copied());
        let metadata = if with_pages { read_pages(&source, metadata, &mask)? } else { metadata };
        let options = ArrowReaderOptions::new().with_schema(Arc::new(schema));
        let metadata = source.guard(|| ArrowReaderMetadata::try_new(Arc::new(metadata), options))?;
        let mut sorted = roots.clone();
        sorted.sort_unstable();
        let order =
            roots.iter().map(|root| sorted.binary_search(root).expect("it has the same items")).collect();
        let bytes = metadata.metadata().memory_size();
        let names = columns.iter().map(|(name, _)| Arc::from(name.as_str())).collect();
        Ok(Self { metadata, mask, names, partition, order, bytes })
    }

    pub(super) fn row_group(&self, group: usize) -> &RowGroupMetaData {
        self.metadata.metadata().row_group(group)
    }

    /// True if the index of the group's pages was read.
    pub(super) fn has_pages(&self, group: usize) -> bool {
        let Some(pages) = self.metadata.metadata().page_index() else { return false };
        let columns = self.row_group(group).num_columns();
        (0..columns)
            .filter(|&leaf| self.mask.leaf_included(leaf))
            .all(|leaf| pages.offset_index(group, leaf).is_some())
    }
}

/// Reads the index of the pages of the columns in `mask`.
fn read_pages(
    source: &ParquetFile,
    metadata: ParquetMetaData,
    mask: &ProjectionMask,
) -> Result<ParquetMetaData> {
    source.guard(|| {
        let columns = ColumnChunkMask::from_projection(mask, metadata.file_metadata().schema_descr());
        let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
            .with_offset_index_policy(PageIndexPolicy::Optional)
            .with_offset_index_mask(columns);
        reader.read_page_indexes(source)?;
        reader.finish()
    })
}

/// Returns the schema of the file, with one type for each kind of text, bytes and list, and without dictionaries.
///
/// The library reads timestamps of the type INT96 in nanoseconds by default, and years before 1677 and after 2262,
/// which 64 bits cannot hold then, become others. They are read in microseconds, as Spark writes them.
///
/// # Errors
/// Returns an error if the schema is invalid.
pub(super) fn arrow_schema(blob: &Arc<Blob>, metadata: &ParquetMetaData) -> Result<Schema> {
    ParquetFile::new(Arc::clone(blob)).guard(|| {
        let metadata = Arc::new(metadata.clone());
        let options = ArrowReaderOptions::new();
        let with_arrow = ArrowReaderMetadata::try_new(Arc::clone(&metadata), options.clone());
        // Some writers store an Arrow schema with types that Arrow does not have, such as Polars' 128-bit integers. The
        // types of Parquet are there all the same.
        let metadata = with_arrow
            .or_else(|_| ArrowReaderMetadata::try_new(metadata, options.with_skip_arrow_metadata(true)))?;
        // The values of a column chunk are those of a leaf of the schema, in the same order.
        let leaves = metadata.parquet_schema().columns().iter();
        let mut leaves = leaves.map(|leaf| leaf.physical_type() == PhysicalType::INT96);
        let schema = metadata.schema();
        let fields = plain_fields(schema.fields(), &mut leaves);
        Ok::<_, parquet::errors::ParquetError>(Schema::new_with_metadata(fields, schema.metadata().clone()))
    })
}

/// Returns the range of each selected column of a row group.
///
/// # Errors
/// Returns the reason if a range is not inside the file, which has `len` bytes.
pub(super) fn column_ranges(
    group: &RowGroupMetaData,
    mask: &ProjectionMask,
    len: u64,
) -> Result<Vec<Range<u64>>, String> {
    let columns = group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf));
    let range = |(_, column): (usize, &parquet::file::metadata::ColumnChunkMetaData)| {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let start = u64::try_from(start).ok();
        let end = start.and_then(|start| start.checked_add(u64::try_from(column.compressed_size()).ok()?));
        match (start, end.filter(|&end| end <= len)) {
            _ if column.file_path().is_some_and(|path| !path.is_empty()) => {
                Err(format!("column `{}` is in another file", column.column_path().string()))
            }
            (Some(start), Some(end)) => Ok(start..end),
            _ => Err(format!("column `{}` is not inside the file", column.column_path().string())),
        }
    };
    columns.map(range).collect()
}

/// Returns the plain types of `fields`. For each leaf, `leaves` returns whether it has the type INT96.
fn plain_fields(fields: &Fields, leaves: &mut dyn Iterator<Item = bool>) -> Fields {
    fields.iter().map(|field| plain_field(field, leaves)).collect()
}

fn plain_field(field: &FieldRef, leaves: &mut dyn Iterator<Item = bool>) -> FieldRef {
    let plain: Field = field.as_ref().clone();
    Arc::new(plain.with_data_type(plain_type(field.data_type(), leaves)))
}

fn plain_type(data_type: &DataType, leaves: &mut dyn Iterator<Item = bool>) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain_type(values, leaves),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => DataType::List(plain_field(item, leaves)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(plain_field(item, leaves), *len),
        DataType::Struct(fields) => DataType::Struct(plain_fields(fields, leaves)),
        DataType::Map(entries, sorted) => DataType::Map(plain_field(entries, leaves), *sorted),
        leaf => match (leaf, leaves.next()) {
            (DataType::Timestamp(_, zone), Some(true)) => {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            (DataType::LargeUtf8 | DataType::Utf8View, _) => DataType::Utf8,
            (DataType::LargeBinary | DataType::BinaryView, _) => DataType::Binary,
            _ => leaf.clone(),
        },
    }
}
