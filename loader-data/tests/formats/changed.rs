//! Files that another program writes to during an epoch.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use loader_core::{DType, DataLoader, Error, collate::Batch};
use loader_data::{Arrow, FieldOptions, JsonLines, ParquetOptions, TarShards, Tokens};

use crate::parquet::fixture;

/// Checks, without and with workers, that an epoch fails when its file is written to after the first batch.
/// The write is in place and has the same bytes, so that no decoder can find it.
fn assert_noticed<B: Batch>(content: &[u8], load: impl Fn(&Path, usize) -> DataLoader<B>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, content).unwrap();
    for workers in [0, 2] {
        let loader = load(&path, workers);
        let mut batches = loader.epoch(0).unwrap();
        batches.next().unwrap().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().write_all(content).unwrap();
        let error = batches.find_map(Result::err).expect("the epoch ended without an error");
        let failure = match &error {
            Error::DatasetFailed { failure, .. } => failure,
            // A worker that opens its dataset after the write notices the change at once.
            Error::OpenFailed { failure, .. } if workers > 0 => failure,
            _ => panic!("{workers} workers: {error:?}"),
        };
        let text = failure.chain.join(": ");
        assert!(text.contains("has changed since the dataset was opened"), "{workers} workers: {text}");
    }
}

/// 3 MB, which is much more than a worker reads before the first batch is returned.
fn lines() -> Vec<u8> {
    (0..300)
        .flat_map(|n| format!("{{\"n\": {n}, \"text\": \"{}\"}}\n", "x".repeat(10_000)).into_bytes())
        .collect()
}

#[test]
fn lines_at_random() {
    assert_noticed(&lines(), |path, workers| {
        let rows = JsonLines::open(path).unwrap();
        DataLoader::builder(rows).batch_size(4).shuffle(true).num_workers(workers).build().unwrap()
    });
}

#[test]
fn lines_in_order() {
    assert_noticed(&lines(), |path, workers| {
        let rows = JsonLines::open(path).unwrap().stream().unwrap();
        DataLoader::stream(rows).shards(2).batch_size(4).num_workers(workers).build().unwrap()
    });
}

fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..300 {
        let mut header = tar::Header::new_ustar();
        header.set_size(10_000);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("{number}.bin"), &[7; 10_000][..]).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn archives_at_random() {
    assert_noticed(&archive(), |path, workers| {
        let samples = TarShards::open(path).unwrap().indexed().unwrap();
        DataLoader::builder(samples).batch_size(4).shuffle(true).num_workers(workers).build().unwrap()
    });
}

#[test]
fn archives_in_order() {
    assert_noticed(&archive(), |path, workers| {
        let samples = TarShards::open(path).unwrap();
        DataLoader::stream(samples).shards(1).batch_size(4).num_workers(workers).build().unwrap()
    });
}

#[test]
fn windows_of_tokens() {
    assert_noticed(&[0; 20_000], |path, workers| {
        let windows = Tokens::<i64>::open(path, DType::U16, 65).unwrap();
        DataLoader::builder(windows).batch_size(2).shuffle(true).num_workers(workers).build().unwrap()
    });
}

#[test]
fn rows_of_arrow() {
    let content = fs::read(crate::arrow::fixture("types.arrow")).unwrap();
    assert_noticed(&content, |path, workers| {
        let fields = FieldOptions::new().select(["u64"]);
        let rows = Arrow::open(path).unwrap().fields(fields).unwrap();
        DataLoader::builder(rows).batch_size(1).shuffle(true).num_workers(workers).build().unwrap()
    });
}

#[test]
fn rows_of_parquet() {
    let content = fs::read(fixture("train-00001-of-00002.parquet")).unwrap();
    assert_noticed(&content, |path, workers| {
        let rows = ParquetOptions::new(path).cache_bytes(0).open().unwrap();
        DataLoader::builder(rows).batch_size(1).shuffle(true).num_workers(workers).build().unwrap()
    });
}

#[test]
fn a_state_of_other_files_is_refused_with_their_number_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let loader =
        || DataLoader::builder(JsonLines::open(folder.path()).unwrap()).batch_size(1).build().unwrap();
    write("a.jsonl", "{\"n\": 1}\n{\"n\": 2}\n");
    let before = loader();
    let mut batches = before.epoch(0).unwrap();
    batches.next().unwrap().unwrap();
    let refused = || loader().resume(&batches.state()).map(drop).unwrap_err().to_string();
    write("a.jsonl", "{\"n\": 10}\n{\"n\": 2}\n");
    let larger = refused();
    write("b.jsonl", "{\"n\": 3}\n");
    let more = refused();
    for (error, files, rows) in [(larger, "1 file of 19 bytes #", ""), (more, "2 files of 28 bytes #", "3")] {
        let names = |files: &str| error.contains(&format!("json_lines({files}"));
        assert!(names("1 file of 18 bytes #") && names(files), "{error}");
        assert!(rows.is_empty() || error.contains(&format!("(number of samples: {rows})")), "{error}");
    }
}
