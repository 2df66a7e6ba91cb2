//! Rows of a file of JSON lines: `text`, about 200 characters; `tokens`, 32 integers; and `label`, an
//! integer.

use std::{
    fs::File,
    hint::black_box,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, bail};
use loader_core::{DataLoader, IterableDataset, Tensor};
use loader_data::{Columns, JsonLinesStream};
use serde::Deserialize;
use serde_json::Value;

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

/// The columns of a batch.
#[derive(Default)]
struct Batch {
    tokens: Vec<i64>,
    labels: Vec<i64>,
    texts: Vec<String>,
}

impl Batch {
    /// Returns an empty batch with room for as much.
    fn empty(&self) -> Self {
        Self {
            tokens: Vec::with_capacity(self.tokens.len()),
            labels: Vec::with_capacity(self.labels.len()),
            texts: Vec::with_capacity(self.texts.len()),
        }
    }

    fn push(&mut self, row: Row) {
        self.tokens.extend(row.tokens);
        self.labels.push(row.label);
        self.texts.push(row.text);
    }
}

/// Reads the file line by line, parses each line as a [`Row`], or with `--records` as any JSON value, and
/// collects the rows into batches.
pub(super) fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut line, mut batch, mut rows) = (Vec::new(), Batch::default(), 0);
    while file.read_until(b'\n', &mut line)? > 0 {
        batch.push(if options.records { parse_record(&line)? } else { serde_json::from_slice(&line)? });
        line.clear();
        rows += 1;
        if batch.labels.len() == options.batch_size() {
            let next = batch.empty();
            black_box(std::mem::replace(&mut batch, next));
        }
    }
    Ok(rows)
}

/// Parses a line as any JSON value and takes the fields from it.
fn parse_record(line: &[u8]) -> anyhow::Result<Row> {
    let mut record = serde_json::from_slice::<Value>(line)?;
    let tokens = record["tokens"].as_array().context("`tokens` is not a list")?;
    let tokens = tokens.iter().map(Value::as_i64).collect::<Option<_>>().context("not an integer")?;
    let label = record["label"].as_i64().context("`label` is not an integer")?;
    let Value::String(text) = record["text"].take() else { bail!("`text` is not a text") };
    Ok(Row { text, tokens, label })
}
