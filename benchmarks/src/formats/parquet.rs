//! Rows of a Parquet file: `x`, 64 `f32`; `weight`, `f32`; and `label`, `i64`.

use std::{fs::File, path::Path};

use loader_core::DataLoader;
use loader_data::{Columns, Parquet};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::Column;
use crate::options::Options;

pub(super) fn loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Columns>> {
    let rows = Parquet::open(path)?.stream();
    Ok(DataLoader::stream(rows).options(options.loader()).shards(1).build()?)
}

pub(super) fn columns(batch: &Columns) -> anyhow::Result<Vec<Column>> {
    Ok(vec![
        Column::of_f32(&batch.tensor("x")?),
        Column::of_f32(&batch.tensor("weight")?),
        Column::of(&batch.tensor("label")?, i64::cast_unsigned),
    ])
}

/// Decodes the file to Arrow arrays, with the number of rows at once that the library has as its default.
pub(super) fn decode(path: &Path) -> anyhow::Result<usize> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()?;
    let mut rows = 0;
    for batch in reader {
        rows += batch?.num_rows();
    }
    Ok(rows)
}
