//! Writes samples as the rows of Parquet files.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    iter,
    path::Path,
    sync::Arc,
};

use arrow_array::{
    ArrayRef, RecordBatch,
    builder::{BinaryBuilder, Int64Builder, StringBuilder},
};
use arrow_schema::{DataType, Field, Schema};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, GzipLevel},
    errors::ParquetError,
    file::properties::{EnabledStatistics, WriterProperties},
};

use super::{
    PackError,
    error::failed,
    member::{Content, Member},
};
use crate::{
    error::{DataError, DataProblem},
    formats::tar_shards::{
        KEY,
        decoding::{FieldKind, integer, text},
        name::key_and_field,
    },
};

/// Maximum number of bytes of the values of a row group, unless one row has more. A writer holds them about three
/// times.
const GROUP_BYTES: u64 = 16 << 20;

/// Maximum number of rows of a row group.
const GROUP_ROWS: usize = 10_000;

/// Maximum number of bytes of a value. Parquet counts the bytes of a page with 31 bits.
const MAX_VALUE_BYTES: u64 = 1 << 30;

/// Level of compression, from 0 to 9. Higher ones make files of photographs no smaller.
const GZIP_LEVEL: u32 = 1;

/// Maximum number of columns. Each needs memory and a place in each row group.
const MAX_COLUMNS: usize = 1000;

/// Returns the names of the fields of the samples, which are the columns after the key.
///
/// # Errors
/// Returns an error if a file is too large for a value, if its field has the name of the column of the keys, or if
/// there are too many fields.
pub(super) fn columns(samples: &[Vec<Member>]) -> Result<Vec<String>, PackError> {
    let mut names = BTreeSet::new();
    for member in samples.iter().flatten() {
        let field = split(member).1;
        if let Content::File(file) = &member.content {
            let path = || file.location.as_path().to_owned();
            if field == KEY {
                return Err(PackError::Name(path()));
            }
            if file.len > MAX_VALUE_BYTES {
                return Err(PackError::TooLarge { path: path(), max: MAX_VALUE_BYTES });
            }
        }
        names.insert(field);
    }
    match names.len() {
        found if found > MAX_COLUMNS => Err(PackError::TooManyFields { found, max: MAX_COLUMNS }),
        _ => Ok(names.into_iter().collect()),
    }
}

/// Writes a file with the samples to `output`. Calls `after` with each member that was read.
pub(super) fn write<W: Write + Send>(
    output: W,
    columns: &[String],
    samples: &[Vec<Member>],
    path: &Path,
    after: impl Fn(&Member) -> Result<(), PackError>,
) -> Result<W, PackError> {
    let not_written = |error: ParquetError| failed(path)(io_error(error));
    let key = Field::new(KEY, DataType::Utf8, false);
    let field = |name: &String| Field::new(name, Cells::new(FieldKind::of(name)).data_type(), true);
    let fields: Vec<Field> = iter::once(key).chain(columns.iter().map(field)).collect();
    let schema = Arc::new(Schema::new(fields));
    // Each page is a gzip member, whose checksum every reader verifies. The library cannot write checksums of pages.
    // Alternative considered: Zstandard, which is faster. Rejected because the library writes its frames without
    // checksums, so readers would return other values of a damaged file.
    let gzip = GzipLevel::try_new(GZIP_LEVEL).map_err(not_written)?;
    // Without dictionaries and statistics, which would hold and repeat whole values. The version of the library must
    // not change the bytes.
    let properties = WriterProperties::builder()
        .set_created_by("loader pack".to_owned())
        .set_compression(Compression::GZIP(gzip))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut writer =
        ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties)).map_err(not_written)?;
    let mut rest = samples;
    while !rest.is_empty() {
        let (group, others) = rest.split_at(rows_of_group(rest));
        let cells = cells(columns, group, &after)?;
        let written = RecordBatch::try_new(Arc::clone(&schema), cells)
            .map_err(ParquetError::from)
            .and_then(|rows| writer.write(&rows))
            .and_then(|()| writer.flush());
        written.map_err(not_written)?;
        rest = others;
    }
    writer.into_inner().map_err(not_written)
}

/// Returns the columns of a row group.
fn cells(
    columns: &[String],
    group: &[Vec<Member>],
    after: &impl Fn(&Member) -> Result<(), PackError>,
) -> Result<Vec<ArrayRef>, PackError> {
    let mut keys = StringBuilder::new();
    let mut cells: Vec<Cells> = columns.iter().map(|name| Cells::new(FieldKind::of(name))).collect();
    for sample in group {
        let mut row: Vec<Option<&Member>> = vec![None; columns.len()];
        for member in sample {
            // `columns` has the fields of all members.
            if let Ok(column) = columns.binary_search(&split(member).1) {
                row[column] = Some(member);
            }
        }
        keys.append_value(sample.first().map(|member| split(member).0).unwrap_or_default());
        for (cells, member) in iter::zip(&mut cells, row) {
            let Some(member) = member else {
                cells.push_null();
                continue;
            };
            cells.push(member.read()?).map_err(|problem| match &member.content {
                Content::File(file) => PackError::Source(DataError::new(&file.location, problem)),
                Content::Text(_) => PackError::Source(DataError::new(&member.name, problem)),
            })?;
            after(member)?;
        }
    }
    let keys: ArrayRef = Arc::new(keys.finish());
    Ok(iter::once(keys).chain(cells.into_iter().map(Cells::finish)).collect())
}

/// Returns the key and the field of a member.
fn split(member: &Member) -> (String, String) {
    let (key, field) = key_and_field(member.name.as_bytes()).unwrap_or_default();
    (String::from_utf8_lossy(key).into_owned(), String::from_utf8_lossy(field).to_ascii_lowercase())
}

/// Returns the number of the first samples that form a row group.
fn rows_of_group(samples: &[Vec<Member>]) -> usize {
    let mut bytes = 0u64;
    let fits = |sample: &&Vec<Member>| {
        bytes = sample.iter().map(Member::len).fold(bytes, u64::saturating_add);
        bytes <= GROUP_BYTES
    };
    samples.iter().take(GROUP_ROWS).take_while(fits).count().max(1)
}

fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

/// The values of a column.
enum Cells {
    Texts(StringBuilder),
    Integers(Int64Builder),
    Bytes(BinaryBuilder),
}

impl Cells {
    fn new(kind: FieldKind) -> Self {
        match kind {
            FieldKind::Text | FieldKind::Json => Self::Texts(StringBuilder::new()),
            FieldKind::Integer => Self::Integers(Int64Builder::new()),
            FieldKind::Bytes => Self::Bytes(BinaryBuilder::new()),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Texts(_) => DataType::Utf8,
            Self::Integers(_) => DataType::Int64,
            Self::Bytes(_) => DataType::Binary,
        }
    }

    fn push(&mut self, value: Vec<u8>) -> Result<(), DataProblem> {
        match self {
            Self::Texts(cells) => cells.append_value(text(value)?),
            Self::Integers(cells) => cells.append_value(integer(&value)?),
            Self::Bytes(cells) => cells.append_value(value),
        }
        Ok(())
    }

    fn push_null(&mut self) {
        match self {
            Self::Texts(cells) => cells.append_null(),
            Self::Integers(cells) => cells.append_null(),
            Self::Bytes(cells) => cells.append_null(),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Texts(mut cells) => Arc::new(cells.finish()),
            Self::Integers(mut cells) => Arc::new(cells.finish()),
            Self::Bytes(mut cells) => Arc::new(cells.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::source::{DataFile, Location};

    fn sample(lens: &[u64]) -> Vec<Member> {
        let member = |(number, &len): (usize, &u64)| {
            let location = Location::new("a.bin");
            let content =
                Content::File(DataFile { location, len, version: String::new(), partition: Vec::new() });
            Member { name: format!("a.{number}.bin"), content }
        };
        lens.iter().enumerate().map(member).collect()
    }

    #[test]
    fn a_row_group_has_a_max_number_of_bytes_and_rows() {
        const MIB: u64 = 1 << 20;
        let rows =
            |samples: &[&[u64]]| rows_of_group(&samples.iter().map(|lens| sample(lens)).collect::<Vec<_>>());
        assert_eq!(rows(&[&[10 * MIB], &[3 * MIB, 3 * MIB], &[1]]), 2);
        assert_eq!(rows(&[&[9 * MIB, 9 * MIB], &[1]]), 1);
        assert_eq!(rows(&[&[1][..]; GROUP_ROWS + 1]), GROUP_ROWS);
    }

    #[test]
    fn values_are_compressed() {
        let text = Content::Text("a word ".repeat(10_000));
        let samples = [vec![Member { name: "a.txt".to_owned(), content: text }]];
        let written = write(Vec::new(), &["txt".to_owned()], &samples, Path::new("out"), |_| Ok(())).unwrap();
        assert!(written.len() < 2_000, "{}", written.len());
    }

    #[test]
    fn no_changed_bit_of_a_page_changes_a_value() {
        let values = [Content::Text("a word".to_owned()), Content::Text("words".to_owned())];
        let samples = values.map(|content| vec![Member { name: "a.txt".to_owned(), content }]);
        let written = write(Vec::new(), &["txt".to_owned()], &samples, Path::new("out"), |_| Ok(())).unwrap();
        let read = |bytes: Vec<u8>| {
            let rows = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes))?.build()?;
            rows.collect::<Result<Vec<_>, _>>().map_err(ParquetError::from)
        };
        let expected = read(written.clone()).unwrap();
        let footer = u32::from_le_bytes(*written[..written.len() - 4].last_chunk().unwrap()) as usize;
        let (mut errors, pages) = (0, written.len() - footer - 8);
        for bit in 8 * b"PAR1".len()..8 * pages {
            let mut damaged = written.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The library may panic on a damaged header, and the loader catches it.
            match catch_unwind(|| read(damaged)) {
                Ok(Ok(rows)) => assert_eq!(rows, expected, "bit {bit}"),
                Ok(Err(_)) | Err(_) => errors += 1,
            }
        }
        // Many bits of the headers of pages and of the gzip members mean nothing to a reader.
        assert!(errors > 4 * pages, "{errors} of {} bits", 8 * pages);
    }

    #[test]
    fn what_is_no_value_is_refused() {
        assert_eq!(columns(&[sample(&[1, 2]), sample(&[1])]).unwrap(), ["0.bin", "1.bin"]);
        let large = columns(&[sample(&[MAX_VALUE_BYTES + 1])]).unwrap_err();
        assert!(matches!(large, PackError::TooLarge { .. }), "{large}");
        let many = columns(&[sample(&[1; MAX_COLUMNS + 1])]).unwrap_err();
        assert!(matches!(many, PackError::TooManyFields { found: 1001, .. }), "{many}");
    }
}
