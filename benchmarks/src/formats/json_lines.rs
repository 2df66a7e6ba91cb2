//! Rows of a file of JSON lines: `text`, about 200 characters; `tokens`, 32 integers; and `label`, an
//! integer.

use std::{
    fs::File,
    hint::black_box,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::Context;
use loader_core::{DataLoader, IterableDataset, Tensor};
use loader_data::{Columns, JsonLinesStream};
use serde::Deserialize;

use super::Column;
use crate::options::Options;

#[derive(Debug, Deserialize)]
struct Row {
    text: String,
    tokens: Vec<i64>,
    label: i64,
}

type Rows = (Tensor<i64>, Tensor<i64>, Vec<String>);

/// Opens the file as rows of the type [`Row`].
pub(super) fn loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Rows>> {
    let rows = JsonLinesStream::open(path)?.rows::<Row>();
    let rows = rows.map(|row, _cx| Ok((row.tokens, row.label, row.text)));
    Ok(DataLoader::stream(rows).options(options.loader()).shards(1).build()?)
}

/// Opens the file as records, whose fields are known only when the program runs.
pub(super) fn record_loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Columns>> {
    let rows = JsonLinesStream::open(path)?;
    Ok(DataLoader::stream(rows).options(options.loader()).shards(1).build()?)
}

pub(super) fn columns((tokens, labels, texts): &Rows) -> anyhow::Result<Vec<Column>> {
    Ok(vec![
        Column::of(tokens, i64::cast_unsigned),
        Column::of(labels, i64::cast_unsigned),
        Column::of_texts(texts),
    ])
}

pub(super) fn record_columns(batch: &Columns) -> anyhow::Result<Vec<Column>> {
    Ok(vec![
        Column::of(&batch.tensor("tokens")?, i64::cast_unsigned),
        Column::of(&batch.tensor("label")?, i64::cast_unsigned),
        Column::of_texts(batch["text"].texts().context("`text` is not a column of texts")?),
    ])
}

/// Reads the file line by line and parses each line as a [`Row`], or with `--records` as any JSON value.
pub(super) fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut line, mut rows) = (Vec::new(), 0);
    while file.read_until(b'\n', &mut line)? > 0 {
        if options.records {
            black_box(serde_json::from_slice::<serde_json::Value>(&line)?);
        } else {
            black_box(serde_json::from_slice::<Row>(&line)?);
        }
        line.clear();
        rows += 1;
    }
    Ok(rows)
}
