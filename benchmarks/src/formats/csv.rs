//! Rows of a CSV file: `x0` to `x7`, numbers; and `label`, an integer.

use std::{fs::File, hint::black_box, io::BufReader, path::Path};

use loader_core::{DType, DataLoader};
use loader_data::{ColumnType, Columns, CsvOptions};

use super::Column;
use crate::options::Options;

/// Number of columns of `f32`.
const NUMBERS: usize = 8;

pub(super) fn loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Columns>> {
    let csv = (0..NUMBERS).fold(CsvOptions::new(path), |csv, number| {
        csv.column_type(format!("x{number}"), ColumnType::Number(DType::F32))
    });
    Ok(DataLoader::stream(csv.open_stream()?).options(options.loader()).shards(1).build()?)
}

pub(super) fn columns(batch: &Columns) -> anyhow::Result<Vec<Column>> {
    let numbers = (0..NUMBERS).map(|number| Ok(Column::of_f32(&batch.tensor(&format!("x{number}"))?)));
    let mut columns: Vec<Column> = numbers.collect::<anyhow::Result<_>>()?;
    columns.push(Column::of(&batch.tensor("label")?, i64::cast_unsigned));
    Ok(columns)
}

/// Reads the file record by record, parses each as a tuple, and collects the rows into batches.
pub(super) fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let mut reader = csv::Reader::from_reader(BufReader::with_capacity(1 << 20, File::open(path)?));
    let (headers, mut record) = (reader.byte_headers()?.clone(), csv::ByteRecord::new());
    let (mut numbers, mut labels) = (Vec::new(), Vec::new());
    let mut rows = 0;
    while reader.read_byte_record(&mut record)? {
        let (of_row, label) = record.deserialize::<([f32; NUMBERS], i64)>(Some(&headers))?;
        numbers.push(of_row);
        labels.push(label);
        rows += 1;
        if labels.len() == options.batch_size() {
            let next = (Vec::with_capacity(numbers.len()), Vec::with_capacity(labels.len()));
            black_box((std::mem::replace(&mut numbers, next.0), std::mem::replace(&mut labels, next.1)));
        }
    }
    Ok(rows)
}
