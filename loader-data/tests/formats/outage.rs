//! Streams of files on a server that stops answering in the middle of an epoch: no sample is lost.

use std::{fs, io::Write, iter, path::Path, time::Duration};

use flate2::{Compression, write::GzEncoder};
use loader_core::{
    DataLoader, Dataset as _, EndsShard, Error, IterableDataset as _, OnBadSample, SampleContext,
    SampleDigest, Shard, State, collate::Batch, pack::Packing,
};
use loader_data::{
    DataError, DataProblem, IndexPlace, JsonLinesOptions, Record, RecordConfig, Records, StoreOptions,
    TarShards,
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::Deserialize;

use crate::{
    everywhere::watched,
    server::{Fault, Server},
};

/// Number of rows of a file. Each has 4 KB, so that a file is larger than what a reader asks for at once.
const ROWS: u32 = 1000;

/// A row of JSON lines.
#[derive(Deserialize)]
struct Row {
    text: String,
}

/// Text that does not compress well.
fn noise(row: u32) -> String {
    let mut state = u64::from(row) + 1;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 58) as u8)
    };
    (0..4000).map(|_| letter()).filter(|letter| letter.is_ascii_alphanumeric()).collect()
}

fn json_lines(rows: u32) -> Vec<u8> {
    (0..rows)
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

/// How a server fails.
#[derive(Debug, Clone, Copy)]
struct ServerFault {
    fault: Fault,
    max_retries: usize,
    timeout: Duration,
    /// A part of the text of the error.
    text: &'static str,
}

const STATUS: ServerFault = ServerFault {
    fault: Fault::Status(500),
    max_retries: 0,
    timeout: Duration::from_secs(20),
    text: "status 500",
};

/// Every way in which a server fails.
const ALL: [ServerFault; 5] = [
    STATUS,
    ServerFault { max_retries: 1, ..STATUS },
    ServerFault {
        fault: Fault::Cut(1000),
        max_retries: 1,
        text: "the connection to the server was cut",
        ..STATUS
    },
    ServerFault {
        fault: Fault::Short(1000),
        max_retries: 1,
        text: "an answer ended after 1000 of",
        ..STATUS
    },
    ServerFault {
        fault: Fault::StallAfter(1000),
        timeout: Duration::from_secs(2),
        text: "no complete answer from the server",
        ..STATUS
    },
];

/// The number of workers, that of the resumed run, whether there are snapshots, and whether the outage is late.
type Run = (usize, usize, bool, bool);

const RUNS: [Run; 3] = [(0, 2, false, false), (0, 0, true, true), (2, 1, true, false)];

/// Makes a loader of a stream, with a number of workers, and with or without snapshots.
macro_rules! loader {
    ($stream:expr, $workers:expr, $with_snapshots:expr) => {{
        let loader = DataLoader::stream($stream).shards(2).batch_size(3).num_workers($workers).digest(true);
        let loader = loader.on_bad_sample(OnBadSample::Skip).max_bad_samples(1_000_000);
        if $with_snapshots { loader.snapshots().build() } else { loader.build() }.unwrap()
    }};
}

/// Files on a server.
struct Case {
    server: Server,
    /// The config of the dataset, which reads the bucket.
    config: &'static str,
}

impl Case {
    fn new(config: &'static str, files: &[(&str, Vec<u8>)]) -> Self {
        let server = Server::start();
        files.iter().for_each(|(name, content)| server.put(&format!("bucket/{name}"), content.clone()));
        Self { server, config }
    }

    fn options(&self, outage: ServerFault) -> StoreOptions {
        StoreOptions {
            endpoint: Some(self.server.url("")),
            skip_signature: true,
            allow_http: true,
            timeout: outage.timeout,
            max_retries: outage.max_retries,
            ..StoreOptions::default()
        }
    }

    /// Checks the stream of the config.
    fn check(&self) {
        self.check_outages(&[STATUS]);
    }

    fn check_outages(&self, outages: &[ServerFault]) {
        for &outage in outages {
            self.check_loader(outage, |workers, with_snapshots| {
                let config: RecordConfig = serde_json::from_str(self.config).unwrap();
                let Records::Stream(stream) = self.options(outage).scope(|| config.open()).unwrap() else {
                    panic!("no stream")
                };
                loader!(stream, workers, with_snapshots)
            });
        }
    }

    /// Checks that an outage ends the epoch with one error for each shard that it meets, and that runs resumed
    /// from the states after these errors, and after the end, load the other samples of the epoch.
    fn check_loader<B: Batch>(&self, outage: ServerFault, build: impl Fn(usize, bool) -> DataLoader<B>) {
        let runs =
            if outage.max_retries == 0 && outage.fault == STATUS.fault { &RUNS[..] } else { &RUNS[2..] };
        for &run @ (workers, resumed_with, with_snapshots, is_late) in runs {
            let _watched = watched();
            let what = format!("{} in {outage:?}, {run:?}", self.config);
            let loader = build(workers, with_snapshots);
            self.server.requests();
            let whole = digest(&loader, &loader.state());
            let requests = self.server.seen();
            assert!(requests >= 4, "{what}: {requests} requests show little");

            let loader = build(workers, with_snapshots);
            let answered = if is_late { requests - 2 } else { requests / 2 };
            let answered = iter::repeat_n(Fault::Slow(1), answered);
            self.server.fail(answered.chain(iter::repeat_n(outage.fault, 10_000)));
            let mut batches = loader.epoch(0).unwrap();
            let mut states = Vec::new();
            while let Some(batch) = batches.next() {
                let Err(error) = batch else { continue };
                let Error::DatasetFailed { failure, .. } = &error else { panic!("{what}: {error:?}") };
                let text = failure.chain.join(": ");
                assert!(text.contains(outage.text), "{what}: {text}");
                assert!(text.contains("the shard cannot be read further"), "{what}: {text}");
                states.push(serde_json::to_string(&batches.state()).unwrap());
            }
            assert_eq!(
                batches.report().bad_samples.len(),
                0,
                "{what}: {:?}",
                batches.report().bad_samples.first()
            );
            assert!((1..=2).contains(&states.len()), "{what}: {} errors", states.len());
            assert_eq!(batches.state().epoch(), 0, "{what}: the epoch has a rest");
            states.push(serde_json::to_string(&batches.state()).unwrap());
            let read = batches.report().digest.unwrap().samples();
            assert!(read < whole.samples(), "{what}: the outage came too late");
            drop(batches);

            self.server.recover();
            for state in states {
                let state: State = serde_json::from_str(&state).unwrap();
                assert_eq!(digest(&build(resumed_with, with_snapshots), &state), whole, "{what}");
            }
        }
    }
}

/// Returns the digest of the epoch after the rest of it was read.
fn digest<B: Batch>(loader: &DataLoader<B>, state: &State) -> SampleDigest {
    let mut batches = loader.resume(state).unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    assert_eq!(batches.report().bad_samples.len(), 0);
    batches.report().digest.unwrap()
}

#[test]
fn json_lines_in_blocks() {
    let config = r#"{"kind": "json-lines-stream", "path": "s3://bucket/", "block_bytes": 1000000}"#;
    Case::new(config, &[("a.jsonl", json_lines(ROWS))]).check_outages(&ALL);
}

#[test]
fn compressed_json_lines() {
    let config = r#"{"kind": "json-lines-stream", "path": "s3://bucket/"}"#;
    let files = [("a.jsonl.gz", gzip(&json_lines(ROWS))), ("b.jsonl.zst", zstd(&json_lines(ROWS)))];
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
    Case::new(config, &files).check_outages(&ALL);
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

#[test]
fn rows_with_random_access_that_are_packed_as_a_stream() {
    let case = Case::new("packed rows", &[("a.jsonl", json_lines(60))]);
    for outage in ALL {
        case.check_loader(outage, |workers, with_snapshots| {
            let files = JsonLinesOptions::new("s3://bucket/a.jsonl").index(IndexPlace::None);
            let rows = case.options(outage).scope(|| files.open()).unwrap().rows::<Row>();
            let documents =
                rows.map(|row, _cx| Ok(row.text.bytes().take(100).map(i64::from).collect::<Vec<_>>()));
            let packed = documents.into_stream().shuffle(true).pack(Packing::new(150).look_ahead(4)).unwrap();
            loader!(packed, workers, with_snapshots)
        });
    }
}

#[test]
fn a_mix_of_a_stream_and_rows_with_random_access() {
    let config = r#"{"kind": "mix", "exhausted": "drop", "parts": [
        {"kind": "json-lines", "path": "s3://bucket/a.jsonl", "index": "none", "shuffle": true},
        {"kind": "csv-stream", "path": "s3://bucket/b.csv", "weight": 0.2}
    ]}"#;
    Case::new(config, &[("a.jsonl", json_lines(60)), ("b.csv", csv())]).check();
}

/// Reads archives, of which the second is gone or replaced after the dataset was opened. Returns the results of the
/// items, also of those after an error at which a loader stops.
fn with_a_faulty_file(fault: impl Fn(&Server)) -> Vec<anyhow::Result<Record>> {
    let case = Case::new("", &[("a.tar", archive()), ("b.tar", archive()), ("c.tar", archive())]);
    let shards = case.options(STATUS).scope(|| TarShards::open("s3://bucket/*.tar")).unwrap();
    fault(&case.server);
    let mut cx = SampleContext::new(0);
    shards.iter(Shard::new(0, 1), &mut cx).unwrap().collect()
}

#[test]
fn one_file_that_is_gone_or_replaced_is_one_error_that_ends_the_shard() {
    let faults: [(_, fn(&Server)); 2] = [
        ("gone", |server| server.remove("bucket/b.tar")),
        ("replaced", |server| server.put("bucket/b.tar", "another file")),
    ];
    for (what, fault) in faults {
        let items = with_a_faulty_file(fault);
        assert_eq!(items.len(), 2 * ROWS as usize + 1, "{what}");
        let error = items[ROWS as usize].as_ref().unwrap_err();
        assert!(error.is::<EndsShard>(), "{what}");
        let problem = &error.downcast_ref::<DataError>().unwrap().problem;
        assert!(matches!(problem, DataProblem::NotFound | DataProblem::Changed { .. }), "{what}: {problem}");
        assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1, "{what}");
    }
}

/// A bucket that the credentials may not read is an error of the first request, and no file is taken as missing.
#[test]
fn a_store_that_refuses_access_is_named_at_once() {
    let _watched = watched();
    let server = Server::start();
    let address = server.url("");
    let options = StoreOptions {
        endpoint: Some(address.clone()),
        skip_signature: true,
        allow_http: true,
        timeout: Duration::from_secs(20),
        ..StoreOptions::default()
    };
    for pattern in ["s3://private/rows/", "s3://private/rows/*.jsonl", "s3://private/{000..999}.jsonl"] {
        for status in [401, 403] {
            server.fail(iter::repeat_n(Fault::Status(status), 2000));
            server.requests();
            let rows = JsonLinesOptions::new(pattern).store(options.clone()).open();
            let error = rows.unwrap_err();
            server.recover();
            let host = address.strip_prefix("http://").unwrap().trim_end_matches('/');
            let refused =
                format!("the server {host} refuses access with status {status}; check the credentials");
            let text = error.to_string();
            assert!(text.starts_with("`s3://private/") && text.contains(&refused), "{text}");
            assert!(server.seen() <= 32, "{} requests for {pattern}", server.seen());
        }
    }
}
