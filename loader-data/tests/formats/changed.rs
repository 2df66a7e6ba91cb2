//! Files that another program writes to during an epoch.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use loader_core::{DType, DataLoader, Error, SampleContext, Shard, SnapshotDataset, collate::Batch};
use loader_data::{
    Arrow, DataError, DataProblem, FieldOptions, JsonLines, JsonLinesStream, ParquetOptions, TarShards,
    Tokens,
};

use crate::parquet::fixture;

/// Checks, without and with workers, that an epoch fails when its file is written to after the first batch, or cut off.
/// The write is in place and has the same bytes, so that no decoder can find it.
fn assert_noticed<B: Batch>(content: &[u8], load: impl Fn(&Path, usize) -> DataLoader<B>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, content).unwrap();
    for (workers, is_cut_off) in [(0, false), (2, false), (0, true)] {
        let loader = load(&path, workers);
        let mut batches = loader.epoch(0).unwrap();
        batches.next().unwrap().unwrap();
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        if is_cut_off {
            file.set_len(content.len() as u64 / 2).unwrap()
        } else {
            file.write_all(content).unwrap()
        }
        let error = batches.find_map(Result::err).expect("the epoch ended without an error");
        let failure = match &error {
            Error::DatasetFailed { failure, .. } => failure,
            // A worker that opens its dataset after the write notices the change at once.
            Error::OpenFailed { failure, .. } if workers > 0 => failure,
            _ => panic!("{workers} workers: {error:?}"),
        };
        let text = failure.chain.join(": ");
        assert!(text.contains("has changed since the dataset was opened"), "{workers} workers: {text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
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

/// The files have the same sizes as before, so the fingerprint of the state is that of the dataset.
#[test]
fn a_shard_that_has_fewer_lines_than_were_read_before_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let loader =
        || DataLoader::stream(JsonLinesStream::open(&path).unwrap()).shards(1).batch_size(1).build().unwrap();
    fs::write(&path, "{\"n\": 1}\n{\"n\": 2}\n{\"n\": 3}\n{\"n\": 4}\n").unwrap();
    let before = loader();
    let mut batches = before.epoch(0).unwrap();
    batches.by_ref().take(3).for_each(|batch| drop(batch.unwrap()));
    let state = batches.state();
    fs::write(&path, "{\"n\": 1111111111}\n{\"n\": 2222222222}\n").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 36);
    let after = loader();
    let error = after.resume(&state).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("only 2 samples now, and 3 of it were read before"), "{error}");
}

#[test]
fn a_position_after_the_last_row_of_a_shard_is_an_error() {
    fn assert_refused<D: SnapshotDataset<Snapshot = u64>>(rows: &D, len: u64) {
        let mut cx = SampleContext::new(0);
        let shard = Shard::new(0, 1);
        assert_eq!(rows.iter_at(shard, len, &mut cx).unwrap().unwrap().count(), 0);
        let at = rows.iter_at(shard, len + 1, &mut cx).map(drop).unwrap_err();
        let from = rows.iter_from(shard, &mut cx, Some(len + 1)).map(drop).unwrap_err();
        for error in [at, from] {
            let problem = &error.downcast_ref::<DataError>().unwrap().problem;
            assert!(
                matches!(problem, DataProblem::ShardTooShort { position, found } if (*position, *found) == (len + 1, len)),
                "{error}"
            );
        }
    }
    let parquet = ParquetOptions::new(fixture("train-00001-of-00002.parquet"));
    assert_refused(&parquet.open_stream().unwrap(), 23);
    assert_refused(&parquet.shuffle_blocks(2.try_into().unwrap()).open_stream().unwrap(), 23);
    let arrow = crate::arrow::fixture("saved/data-00001-of-00002.arrow");
    assert_refused(&Arrow::open(arrow).unwrap().stream(), 23);
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
