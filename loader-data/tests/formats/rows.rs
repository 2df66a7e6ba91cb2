//! Datasets of rows of a type that implements `Deserialize` and nothing else.

use std::fmt::Debug;

use loader_core::{Order, prelude::*};
use loader_data::{
    Arrays, Arrow, ArrowStream, Csv, CsvStream, JsonLines, JsonLinesStream, Parquet, ParquetStream, TarShards,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[expect(dead_code, reason = "no row is loaded")]
struct Row {
    x: f32,
}

fn is_clone_and_debug<T: Clone + Debug>() {}

#[test]
fn a_dataset_can_be_copied_and_split_whatever_its_rows_are() -> anyhow::Result<()> {
    is_clone_and_debug::<Arrays<Row>>();
    is_clone_and_debug::<Arrow<Row>>();
    is_clone_and_debug::<ArrowStream<Row>>();
    is_clone_and_debug::<CsvStream<Row>>();
    is_clone_and_debug::<JsonLines<Row>>();
    is_clone_and_debug::<JsonLinesStream<Row>>();
    is_clone_and_debug::<Parquet<Row>>();
    is_clone_and_debug::<ParquetStream<Row>>();
    is_clone_and_debug::<TarShards<Row>>();
    is_clone_and_debug::<loader_data::IndexedTar<Row>>();

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, "x\n1\n2\n3\n4\n5\n")?;
    let parts = Csv::open(&path)?.rows::<Row>().random_split_by_fractions(&[0.8, 0.2], 7, Order::Native)?;
    let counts: Vec<usize> = parts.iter().map(Dataset::len).collect();
    assert_eq!(counts, [4, 1]);
    Ok(())
}
