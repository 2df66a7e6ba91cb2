//! Parquet files, written by pyarrow: see `fixtures/parquet/write.py`.

mod columns;
mod damaged;
mod types;
mod workers;

use std::path::PathBuf;

use loader_core::{Dataset, SampleContext};
use loader_data::{Parquet, Record, Value};
use serde_json::Value as Json;

/// Returns the path of a fixture, which may be a pattern.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet")).join(name)
}

/// Opens fixtures with all their columns.
fn open(name: &str) -> Parquet {
    Parquet::open(fixture(name)).unwrap()
}

/// Returns the rows `indices`, which are loaded together.
fn rows(dataset: &Parquet, indices: &[usize]) -> Vec<Json> {
    let samples = dataset.get_many(indices, &mut SampleContext::new(0)).unwrap();
    samples.into_iter().map(json).collect()
}

/// Returns a record as JSON. Bytes are a list of numbers.
pub(crate) fn json(record: Record) -> Json {
    let Value::Record(record) = without_bytes(Value::Record(record)) else { unreachable!() };
    record.into_row().unwrap()
}

fn without_bytes(value: Value) -> Value {
    match value {
        Value::Bytes(bytes) => Value::List(bytes.into_iter().map(Value::from).collect()),
        Value::List(list) => Value::List(list.into_iter().map(without_bytes).collect()),
        Value::Record(record) => {
            let fields = record.iter().map(|(name, value)| (name.to_owned(), without_bytes(value.clone())));
            Value::Record(fields.collect())
        }
        other => other,
    }
}
