//! Streams of files on a server that stops to answer in the middle of an epoch: no sample is lost.

use std::{fs, io::Write, path::Path, time::Duration};

use flate2::{Compression, write::GzEncoder};
use loader_core::{DataLoader, Error, OnBadSample, SampleDigest, State};
use loader_data::{Columns, RecordConfig, Records, StoreOptions};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::{
    everywhere::watched,
    server::{Fault, Server},
};

/// Number of rows of a file. Each has 4 KB, so that a file is larger than what a reader asks for at once.
const ROWS: u32 = 1000;

/// Text that does not compress well.
fn noise(row: u32) -> String {
    let mut state = u64::from(row) + 1;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 58) as u8)
    };
    (0..4000).map(|_| letter()).filter(|letter| letter.is_ascii_alphanumeric()).collect()
}

fn json_lines() -> Vec<u8> {
    (0..ROWS)
        .flat_map(|row| format!("{{\"row\": {row}, \"text\": \"{}\"}}\n", noise(row)).into_bytes())
        .collect()
}

fn csv() -> Vec<u8> {
    let rows = (0..ROWS).flat_map(|row| format!("{row},{}\n", noise(row)).into_bytes());
    b"row,text\n".iter().copied().chain(rows).collect()
}

fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for row in 0..ROWS {
        let text = noise(row);
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("{row}.txt"), text.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    compress_to_vec(content, CompressionLevel::Fastest)
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures")).join(name)).unwrap()
}

/// A stream of files on a server.
struct Case {
    server: Server,
    config: &'static str,
}

impl Case {
    /// `config` reads the bucket, which has `files`.
    fn new(config: &'static str, files: &[(&str, Vec<u8>)]) -> Self {
        let server = Server::start();
        files.iter().for_each(|(name, content)| server.put(&format!("bucket/{name}"), content.clone()));
        Self { server, config }
    }

    fn loader(&self, workers: usize, with_snapshots: bool) -> DataLoader<Columns> {
        let options = StoreOptions {
            endpoint: Some(self.server.url("")),
            skip_signature: true,
            allow_http: true,
            timeout: Duration::from_secs(20),
            max_retries: 0,
            ..StoreOptions::default()
        };
        let config: RecordConfig = serde_json::from_str(self.config).unwrap();
        let Records::Stream(stream) = options.scope(|| config.open()).unwrap() else { panic!("no stream") };
        let loader = DataLoader::stream(stream).shards(2).batch_size(3).num_workers(workers).digest(true);
        let loader = loader.on_bad_sample(OnBadSample::Skip).max_bad_samples(1_000_000);
        if with_snapshots { loader.snapshots().build() } else { loader.build() }.unwrap()
    }

    /// Checks that an outage ends the epoch with one error for each shard that it meets, and that runs resumed
    /// from the states after these errors, and after the end, load the other samples of the epoch.
    fn check(&self) {
        let _watched = watched();
        for (workers, with_snapshots, is_late) in [(0, false, false), (0, true, true), (2, true, false)] {
            let what = format!("{} with {workers} workers, snapshots: {with_snapshots}", self.config);
            let loader = self.loader(workers, with_snapshots);
            self.server.requests();
            let whole = digest(&loader, &loader.state());
            let requests = self.server.seen();
            assert!(requests >= 4, "{what}: {requests} requests show little");

            let loader = self.loader(workers, with_snapshots);
            let answered = if is_late { requests - 2 } else { requests / 2 };
            let faults = [Fault::Slow(1)].iter().cycle().take(answered);
            self.server.fail(faults.chain(&[Fault::Status(500); 10_000]).copied());
            let mut batches = loader.epoch(0).unwrap();
            let mut states = Vec::new();
            while let Some(batch) = batches.next() {
                let Err(error) = batch else { continue };
                let Error::DatasetFailed { failure, .. } = &error else { panic!("{what}: {error:?}") };
                let text = failure.chain.join(": ");
                assert!(text.contains("status 500"), "{what}: {text}");
                assert!(text.contains("the shard cannot be read on"), "{what}: {text}");
                states.push(serde_json::to_string(&batches.state()).unwrap());
            }
            assert!((1..=2).contains(&states.len()), "{what}: {} errors", states.len());
            assert_eq!(batches.state().epoch(), 0, "{what}: the epoch has a rest");
            states.push(serde_json::to_string(&batches.state()).unwrap());
            assert_eq!(batches.report().bad_samples.len(), 0, "{what}");
            let read = batches.report().digest.unwrap().samples();
            assert!(read < whole.samples(), "{what}: the outage came too late");
            drop(batches);

            self.server.recover();
            for state in states {
                let state: State = serde_json::from_str(&state).unwrap();
                assert_eq!(digest(&self.loader(workers, with_snapshots), &state), whole, "{what}");
            }
        }
    }
}

/// Returns the digest of the epoch after the rest of it was read.
fn digest(loader: &DataLoader<Columns>, state: &State) -> SampleDigest {
    let mut batches = loader.resume(state).unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    assert_eq!(batches.report().bad_samples.len(), 0);
    batches.report().digest.unwrap()
}

#[test]
fn json_lines_in_blocks() {
    let config = r#"{"kind": "json-lines-stream", "path": "s3://bucket/", "block_bytes": 1000000}"#;
    Case::new(config, &[("a.jsonl", json_lines())]).check();
}

#[test]
fn compressed_json_lines() {
    let config = r#"{"kind": "json-lines-stream", "path": "s3://bucket/"}"#;
    let files = [("a.jsonl.gz", gzip(&json_lines())), ("b.jsonl.zst", zstd(&json_lines()))];
    Case::new(config, &files).check();
}

#[test]
fn tables_of_csv() {
    let config = r#"{"kind": "csv-stream", "path": "s3://bucket/"}"#;
    Case::new(config, &[("a.csv", csv()), ("b.csv", csv())]).check();
}

#[test]
fn tar_archives() {
    let config = r#"{"kind": "tar", "path": "s3://bucket/"}"#;
    let files = [("a.tar", archive()), ("b.tar.gz", gzip(&archive())), ("c.tar.zst", zstd(&archive()))];
    Case::new(config, &files).check();
}

#[test]
fn row_groups_of_parquet() {
    let files = [
        ("a.parquet", fixture("parquet/train-00000-of-00002.parquet")),
        ("b.parquet", fixture("parquet/train-00001-of-00002.parquet")),
    ];
    Case::new(r#"{"kind": "parquet-stream", "path": "s3://bucket/"}"#, &files).check();
    Case::new(r#"{"kind": "parquet-stream", "path": "s3://bucket/", "shuffle_blocks": 2}"#, &files).check();
}

#[test]
fn record_batches_of_arrow() {
    let file = |part| fixture(&format!("arrow/saved/data-{part:05}-of-00002.arrow"));
    let files = [("a.arrow", file(0)), ("b.arrow", file(1))];
    Case::new(r#"{"kind": "arrow-stream", "path": "s3://bucket/"}"#, &files).check();
}
