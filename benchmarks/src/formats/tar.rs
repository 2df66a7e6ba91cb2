//! Samples of a tar archive in WebDataset's layout: the member `f32`, the bytes of 1024 numbers; and `cls`, a
//! label.

use std::{
    fs::File,
    hint::black_box,
    io::{BufReader, Read},
    path::Path,
};

use anyhow::Context;
use loader_core::{AnyTensor, DType, DataLoader, IterableDataset};
use loader_data::{Columns, FieldOptions, TarShards, Value};

use super::Column;
use crate::options::Options;

pub(super) fn loader(options: &Options, path: &Path) -> anyhow::Result<DataLoader<Columns>> {
    let shards = TarShards::open(path)?.fields(FieldOptions::new().select(["f32", "cls"]));
    let samples = shards.map(|mut sample, _cx| {
        if let Some(Value::Bytes(bytes)) = sample.get("f32") {
            let numbers = AnyTensor::from_bytes(DType::F32, [bytes.len() / size_of::<f32>()], bytes)?;
            sample.set("f32", numbers);
        }
        Ok(sample)
    });
    Ok(DataLoader::stream(samples).options(options.loader()).shards(1).build()?)
}

pub(super) fn columns(batch: &Columns) -> anyhow::Result<Vec<Column>> {
    Ok(vec![Column::of_f32(&batch.tensor("f32")?), Column::of(&batch.tensor("cls")?, i64::cast_unsigned)])
}

/// Reads all members, and collects the numbers and labels into batches.
pub(super) fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let mut archive = tar::Archive::new(BufReader::with_capacity(1 << 20, File::open(path)?));
    let (mut data, mut numbers, mut labels) = (Vec::new(), Vec::<f32>::new(), Vec::<i64>::new());
    let mut samples = 0;
    for entry in archive.entries().context("the file is no archive")? {
        let mut entry = entry?;
        data.clear();
        entry.read_to_end(&mut data)?;
        if entry.path_bytes().ends_with(b".f32") {
            let (words, _) = data.as_chunks();
            numbers.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
            continue;
        }
        labels.push(std::str::from_utf8(&data)?.parse()?);
        samples += 1;
        if labels.len() == options.batch_size() {
            let next = (Vec::with_capacity(numbers.len()), Vec::with_capacity(labels.len()));
            black_box((std::mem::replace(&mut numbers, next.0), std::mem::replace(&mut labels, next.1)));
        }
    }
    Ok(samples)
}
