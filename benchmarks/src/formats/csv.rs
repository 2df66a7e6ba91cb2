//! Rows of a CSV file: `x0` to `x7`, numbers; and `label`, an integer.

use std::{fs::File, hint::black_box, io::BufReader, path::Path};

use csv::{ByteRecord, Reader};
use loader_core::{DType, DataLoader, Sample};
use loader_data::{ColumnType, Columns, CsvOptions, CsvStream};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Column;
use crate::options::Options;

/// Number of columns of `f32`.
const NUMBERS: usize = 8;

#[derive(Debug, Deserialize, Sample)]
pub(super) struct Row {
    x0: f32,
    x1: f32,
    x2: f32,
    x3: f32,
    x4: f32,
    x5: f32,
    x6: f32,
    x7: f32,
    label: i64,
}

/// Opens the file as rows of the type [`Row`].
pub(super) fn loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<RowBatch>> {
    let rows = CsvStream::open(path)?.rows::<Row>();
    Ok(DataLoader::stream(rows).options(options.loader()).shards(1).build()?)
}

/// Opens the file as records, whose fields are known only when the program runs.
pub(super) fn record_loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Columns>> {
    let csv = (0..NUMBERS).fold(CsvOptions::new(path), |csv, number| {
        csv.column_type(format!("x{number}"), ColumnType::Number(DType::F32))
    });
    Ok(DataLoader::stream(csv.open_stream()?).options(options.loader()).shards(1).build()?)
}

pub(super) fn columns(batch: &RowBatch) -> anyhow::Result<Vec<Column>> {
    let RowBatch { x0, x1, x2, x3, x4, x5, x6, x7, label } = batch;
    let numbers = [x0, x1, x2, x3, x4, x5, x6, x7].map(Column::of_f32);
    Ok(numbers.into_iter().chain([Column::of(label, i64::cast_unsigned)]).collect())
}

pub(super) fn record_columns(batch: &Columns) -> anyhow::Result<Vec<Column>> {
    let numbers = (0..NUMBERS).map(|number| Ok(Column::of_f32(&batch.tensor(&format!("x{number}"))?)));
    let mut columns: Vec<Column> = numbers.collect::<anyhow::Result<_>>()?;
    columns.push(Column::of(&batch.tensor("label")?, i64::cast_unsigned));
    Ok(columns)
}

/// The columns of a batch.
#[derive(Default)]
struct Batch {
    numbers: [Vec<f32>; NUMBERS],
    labels: Vec<i64>,
}

impl Batch {
    /// Returns an empty batch with room for as much.
    fn empty(&self) -> Self {
        Self {
            numbers: self.numbers.each_ref().map(|column| Vec::with_capacity(column.len())),
            labels: Vec::with_capacity(self.labels.len()),
        }
    }

    fn push(&mut self, row: &Row) {
        let Row { x0, x1, x2, x3, x4, x5, x6, x7, label } = *row;
        for (column, number) in self.numbers.iter_mut().zip([x0, x1, x2, x3, x4, x5, x6, x7]) {
            column.push(number);
        }
        self.labels.push(label);
    }
}

/// Reads the file record by record, parses each as a [`Row`], or with `--records` as a map of JSON values, and collects
/// the rows into batches.
pub(super) fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let mut reader = Reader::from_reader(BufReader::with_capacity(1 << 20, File::open(path)?));
    let (headers, mut record) = (reader.byte_headers()?.clone(), ByteRecord::new());
    let (mut batch, mut rows) = (Batch::default(), 0);
    while reader.read_byte_record(&mut record)? {
        batch.push(&if options.records {
            parse_map(record.deserialize(Some(&headers))?)?
        } else {
            record.deserialize(Some(&headers))?
        });
        rows += 1;
        if batch.labels.len() == options.batch_size() {
            let next = batch.empty();
            black_box(std::mem::replace(&mut batch, next));
        }
    }
    Ok(rows)
}

/// Takes the fields of a row from a map of JSON values.
fn parse_map(map: Map<String, Value>) -> anyhow::Result<Row> {
    Ok(serde_json::from_value(Value::Object(map))?)
}
