//! Streams begin to fetch the next file, row group or record batch on a server while they read one.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use loader_core::{DataLoader, IterableDataset, SampleContext, Shard};
use loader_data::{
    CacheOptions, Columns, DataError, DataProblem, Record, RecordConfig, RecordStream, Records, StoreOptions,
    Value,
};

use crate::{
    everywhere::watched,
    server::{Fault, Server},
};

const FILES: usize = 5;
const ROWS: usize = 3;

const TAR: &str = r#"{"kind": "tar", "path": "s3://bucket/{0..4}.tar", "fields": ["txt"]}"#;
const LINES: &str = r#"{"kind": "json-lines-stream", "path": "s3://bucket/{0..4}.jsonl"}"#;
const COMPRESSED: &str = r#"{"kind": "json-lines-stream", "path": "s3://bucket/{0..4}.jsonl.gz"}"#;

const PARQUET: &str = r#"{"kind": "parquet-stream", "path": "s3://bucket/{0..1}.parquet"}"#;
/// A file without compression, one with LZ4 and one with Zstandard. No column has a dictionary.
const ARROW: &str = r#"{"kind": "arrow-stream", "path": "s3://bucket/{0..2}.arrow", "fields": ["u32", "large_text", "large_list"]}"#;

/// Configs of streams, each with the numbers of rows of the parts that it fetches one after the other.
const PARTS: [(&str, &[usize]); 4] = [
    (TAR, &[ROWS; FILES]),
    (LINES, &[ROWS; FILES]),
    (PARQUET, &[10, 10, 10, 7, 4, 4, 4, 4, 4, 3]),
    (ARROW, &[25, 15, 25, 15, 25, 15]),
];

pub(crate) const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");

/// Number of bytes of shared memory of a loader whose memory is limited.
pub(crate) const SLOTS: u64 = 1 << 20;

/// Returns the config of `PARQUET` with more options.
pub(crate) fn parquet(options: &str) -> String {
    PARQUET.strip_suffix('}').unwrap().to_owned() + options + "}"
}

/// Starts a server with small files of each format.
pub(crate) fn server() -> Server {
    let server = Server::start();
    for file in 0..FILES {
        let lines: String = (0..ROWS).map(|row| format!("{{\"txt\": \"{file}-{row}\"}}\n")).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, lines.as_bytes()).unwrap();
        server.put(&format!("bucket/{file}.jsonl.gz"), gzip.finish().unwrap());
        server.put(&format!("bucket/{file}.jsonl"), lines);
        let mut archive = tar::Builder::new(Vec::new());
        for row in 0..ROWS {
            let text = format!("{file}-{row}");
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{row}.txt"), text.as_bytes()).unwrap();
        }
        server.put(&format!("bucket/{file}.tar"), archive.into_inner().unwrap());
    }
    for (name, fixture) in [
        ("0.parquet", "parquet/train-00000-of-00002.parquet"),
        ("1.parquet", "parquet/train-00001-of-00002.parquet"),
        ("0.arrow", "arrow/types.arrow"),
        ("1.arrow", "arrow/types-lz4.arrow"),
        ("2.arrow", "arrow/types-zstd.arrow"),
    ] {
        server.put(&format!("bucket/{name}"), fs::read(format!("{FIXTURES}/{fixture}")).unwrap());
    }
    server
}

pub(crate) fn options(server: &Server) -> StoreOptions {
    StoreOptions {
        endpoint: Some(server.url("")),
        skip_signature: true,
        allow_http: true,
        timeout: Duration::from_secs(20),
        max_retries: 0,
        ..StoreOptions::default()
    }
}

pub(crate) fn open(server: &Server, config: &str) -> RecordStream {
    open_with(server, config, &options(server))
}

fn open_with(server: &Server, config: &str, options: &StoreOptions) -> RecordStream {
    let config: RecordConfig = serde_json::from_str(config).unwrap();
    let Records::Stream(stream) = options.scope(|| config.open()).unwrap() else { panic!("no stream") };
    server.requests();
    stream
}

fn text(record: &Record) -> String {
    match record.get("txt") {
        Some(Value::Text(text)) => text.clone(),
        other => panic!("{other:?} is not a text"),
    }
}

/// The text of a row of a file.
fn row(file: usize, row: usize) -> String {
    format!("{file}-{row}")
}

/// Waits until the server was asked for `count` ranges. Returns for how many it was asked.
pub(crate) fn requests(server: &Server, count: usize) -> usize {
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.seen() < count && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    // Enough time for a request that must not be sent.
    thread::sleep(Duration::from_millis(50));
    server.seen()
}

/// Returns the numbers of the files that the server was asked for, and waits until `count` of them are there.
fn asked(server: &Server, count: usize) -> Vec<String> {
    requests(server, count);
    let name = |target: &str| target.rsplit('/').next().unwrap().split('.').next().unwrap().to_owned();
    let mut files: Vec<_> = server.requests().iter().map(|request| name(&request.target)).collect();
    // A file and the one after it are asked for at about the same time, by two threads.
    files.sort();
    files
}

#[test]
fn the_next_file_and_no_other_one_is_fetched_before_it_is_read() {
    for config in [TAR, LINES, COMPRESSED] {
        let _watched = watched();
        let server = server();
        let stream = open(&server, config);
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
        for file in 0..FILES {
            assert_eq!(text(&items.next().unwrap().unwrap()), row(file, 0), "{config}");
            let expected = match file {
                0 => vec!["0", "1"],
                _ if file + 1 < FILES => vec![["2", "3", "4"][file - 1]],
                _ => vec![],
            };
            assert_eq!(asked(&server, expected.len()), expected, "{config}: while file {file} is read");
            for number in 1..ROWS {
                assert_eq!(text(&items.next().unwrap().unwrap()), row(file, number), "{config}");
            }
        }
        assert!(items.next().is_none());
    }
}

#[test]
fn the_next_part_and_no_other_one_is_fetched_before_it_is_read() {
    for (config, parts) in PARTS {
        let _watched = watched();
        let server = server();
        let stream = open(&server, config);
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
        for (part, &rows) in parts.iter().enumerate() {
            (0..2).for_each(|_| drop(items.next().unwrap().unwrap()));
            let expected = parts.len().min(part + 2);
            assert_eq!(requests(&server, expected), expected, "{config}: while part {part} is read");
            (2..rows).for_each(|_| drop(items.next().unwrap().unwrap()));
        }
        assert!(items.next().is_none());
        let mut ranges: Vec<_> = server.requests().into_iter().map(|it| (it.target, it.range)).collect();
        ranges.dedup();
        assert_eq!(ranges.len(), parts.len(), "{config}: each part is fetched once");
    }
}

#[test]
fn one_row_group_is_fetched_before_a_shuffled_shard_opens_it() {
    let _watched = watched();
    let server = server();
    for open_groups in [1, 2, 20] {
        let config = parquet(&format!(r#", "shuffle_blocks": {open_groups}"#));
        let stream = open(&server, &config);
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
        items.next().unwrap().unwrap();
        assert_eq!(requests(&server, 2), 2, "{config}");
        assert_eq!(items.filter(Result::is_ok).count(), 59, "{config}");
        assert_eq!(server.seen(), 10, "{config}: each of 10 row groups is fetched once");
    }
}

#[test]
fn only_the_columns_of_the_next_row_group_that_are_read_are_fetched() {
    let _watched = watched();
    let bytes = |fields: &str| {
        let server = server();
        let stream = open(&server, &parquet(fields));
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
        (0..2).for_each(|_| drop(items.next().unwrap().unwrap()));
        assert_eq!(requests(&server, 2), 2);
        server.requests()[1].range.as_ref().unwrap().len()
    };
    assert!(bytes(r#", "fields": ["label"]"#) < bytes(""));
}

#[test]
fn the_program_does_not_wait_for_parts_that_arrive_while_it_works() {
    for (config, parts) in PARTS {
        let _watched = watched();
        let server = server();
        let stream = open(&server, config);
        let latency = Duration::from_millis(200);
        server.set_latency(latency);
        let waited = || {
            let mut cx = SampleContext::new(0);
            let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
            let mut waited = Duration::ZERO;
            for &rows in parts {
                let before = Instant::now();
                (0..rows).for_each(|_| drop(items.next().unwrap().unwrap()));
                waited += before.elapsed();
                // Each part takes the program longer than the server needs for the next one.
                thread::sleep(latency * 3 / 2);
            }
            waited
        };
        // A busy machine gets a second try.
        let is_quick = |_| waited() < 3 * latency;
        assert!((0..2).any(is_quick), "{config}: without reading ahead, it waits for {} parts", parts.len());
    }
}

#[test]
fn an_error_waits_for_the_turn_of_its_file() {
    for config in [TAR, LINES] {
        let _watched = watched();
        let server = server();
        let stream = open(&server, config);
        let name = if config == TAR { "bucket/2.tar" } else { "bucket/2.jsonl" };
        server.remove(name);
        let mut cx = SampleContext::new(0);
        let items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
        let found: Vec<_> = items.map(|item| item.map(|record| text(&record))).collect();
        let files = |files: std::ops::Range<usize>| {
            files.flat_map(|file| (0..ROWS).map(move |number| row(file, number)))
        };
        let is_error = |item: &anyhow::Result<String>| item.is_err();
        assert_eq!(found.iter().position(is_error), Some(2 * ROWS), "{config}: {found:?}");
        let error = found[2 * ROWS].as_ref().unwrap_err().downcast_ref::<DataError>().unwrap();
        assert!(matches!(error.problem, DataProblem::NotFound), "{error}");
        let texts: Vec<_> = found.iter().flatten().cloned().collect();
        assert_eq!(texts, files(0..2).chain(files(3..FILES)).collect::<Vec<_>>(), "{config}");
    }
}

#[test]
fn a_stream_is_dropped_while_the_server_stalls() {
    let _watched = watched();
    let server = server();
    let stream = open(&server, TAR);
    let mut cx = SampleContext::new(0);
    let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
    server.fail([Fault::Slow(1), Fault::Stall]);
    assert_eq!(text(&items.next().unwrap().unwrap()), row(0, 0));
    assert_eq!(asked(&server, 2), ["0", "1"]);
    let started = Instant::now();
    drop(items);
    assert!(started.elapsed() < Duration::from_secs(5), "a stall may last for 20 s");
}

#[test]
fn a_part_that_could_not_be_read_ahead_is_read_in_its_turn() {
    for (config, parts) in PARTS {
        for is_outage in [false, true] {
            let _watched = watched();
            let server = server();
            let stream = open(&server, config);
            let mut cx = SampleContext::new(0);
            let expected: Vec<_> = stream.iter(Shard::new(0, 1), &mut cx).unwrap().map(text_of).collect();
            assert_eq!(expected.iter().flatten().count(), parts.iter().sum::<usize>(), "{config}");
            server.requests();

            // The request for the second part fails, and with an outage also the one that is sent in its turn.
            let failures = if is_outage { 100 } else { 1 };
            server.fail([Fault::Slow(1)].into_iter().chain(vec![Fault::Status(500); failures]));
            let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap().map(text_of);
            let mut found: Vec<_> = items.by_ref().take(2).collect();
            assert_eq!(requests(&server, 2), 2, "{config}");
            // Enough time for the answer: the program does not wait for it.
            thread::sleep(Duration::from_millis(200));
            if !is_outage {
                found.extend(items);
                assert_eq!(found, expected, "{config}");
                assert_eq!(server.seen(), parts.len() + 1, "{config}: one part is fetched again");
                continue;
            }
            found.extend(items.by_ref().take(parts[0]));
            assert_eq!(found[..parts[0]], expected[..parts[0]], "{config}");
            let error = found[parts[0]].as_ref().unwrap_err();
            assert!(error.contains("status 500"), "{config}: {error}");
        }
    }
}

#[test]
fn an_outage_that_the_program_waits_for_is_reported_after_one_request() {
    // With a cache, opening a dataset of Parquet or Arrow files already fetches the blocks of its small files.
    for ((config, parts), is_cached) in PARTS.map(|it| (it, false)).into_iter().chain([(PARTS[0], true)]) {
        let _watched = watched();
        let server = server();
        let folder = tempfile::tempdir().unwrap();
        let cached = CacheOptions { folder: folder.path().to_owned(), max_bytes: 1 << 30 };
        let cache = is_cached.then_some(cached);
        // A request fails after a quarter of `timeout` without a byte.
        let options = StoreOptions { timeout: Duration::from_secs(8), cache, ..options(&server) };
        let stream = open_with(&server, config, &options);
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter(Shard::new(0, 1), &mut cx).unwrap().map(text_of);
        server.fail([Fault::Slow(1), Fault::Stall]);
        let mut found: Vec<_> = items.by_ref().take(2).collect();
        assert_eq!(requests(&server, 2), 2, "{config}");
        found.extend(items.by_ref().take(parts[0] - 1));
        let is_error = |item: &Result<String, String>| item.is_err();
        assert_eq!(found.iter().position(is_error), Some(parts[0]), "{config}: {found:?}");
        let error = found[parts[0]].as_ref().unwrap_err();
        assert!(error.contains("no complete answer from the server"), "{config}: {error}");
        let asked: Vec<_> = server.requests().into_iter().map(|it| (it.target, it.range)).collect();
        let is_again = |at: &usize| asked[..*at].contains(&asked[*at]);
        assert_eq!((0..asked.len()).find(is_again), None, "{config}: no request is sent again: {asked:?}");
    }
}

/// The content of a record, or the error.
fn text_of(item: anyhow::Result<Record>) -> Result<String, String> {
    item.map(|record| format!("{record:?}")).map_err(|error| format!("{error:#}"))
}

/// Makes a loader whose dataset may keep `kept` bytes.
fn loader(stream: RecordStream, kept: u64) -> DataLoader<Columns> {
    let builder = DataLoader::stream(stream).shards(1).batch_size(2);
    builder.memory_limit(SLOTS + kept).shared_memory_limit(SLOTS).build().unwrap()
}

/// Loads an epoch with a dataset that may keep `kept` bytes. Checks the number of requests for the first batch, and that
/// for all batches.
fn check_requests(server: &Server, config: &str, kept: u64, expected: (usize, usize)) {
    let loader = loader(open(server, config), kept);
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    let first = requests(server, expected.0);
    batches.for_each(|batch| drop(batch.unwrap()));
    assert_eq!((first, server.requests().len()), expected, "{config} within {kept} bytes");
}

#[test]
fn nothing_is_read_ahead_that_memory_limit_has_no_room_for() {
    for (config, parts) in PARTS {
        let _watched = watched();
        let server = server();
        check_requests(&server, config, 10, (1, parts.len()));
        check_requests(&server, config, 1 << 16, (2, parts.len()));
    }
    // The rest of a file after its first 512 KiB.
    let _watched = watched();
    let server = Server::start();
    server.put("bucket/0.jsonl", format!("{{\"txt\": \"{}\"}}\n", "x".repeat(1000)).repeat(2000));
    let config = r#"{"kind": "json-lines-stream", "path": "s3://bucket/0.jsonl", "block_bytes": 4000000}"#;
    check_requests(&server, config, 1 << 18, (1, 2));
    check_requests(&server, config, 2 << 20, (2, 2));
    // Half of the rest fits, and then the other half.
    check_requests(&server, config, 1 << 20, (2, 3));
}

#[test]
fn the_next_file_leaves_room_for_the_chunks_of_the_open_one() {
    let _watched = watched();
    let server = Server::start();
    let lines = format!("{{\"txt\": \"{}\"}}\n", "x".repeat(10_000)).repeat(1200);
    for file in 0..3 {
        server.put(&format!("bucket/{file}.jsonl"), lines.as_str());
    }
    let config =
        r#"{"kind": "json-lines-stream", "path": "s3://bucket/{0..2}.jsonl", "block_bytes": 16000000}"#;
    for kept in [5 << 19, 4 << 20] {
        let loader = loader(open(&server, config), kept);
        loader.iter().unwrap().for_each(|batch| drop(batch.unwrap()));
        let chunks: Vec<_> = server.requests().into_iter().map(|request| request.range.unwrap()).collect();
        // A chunk that is not read ahead has 8 MiB.
        let is_ahead = |chunk: &std::ops::Range<usize>| chunk.len() as u64 <= kept;
        assert!(chunks.len() >= 12 && chunks.iter().all(is_ahead), "within {kept} bytes: {chunks:?}");
    }
}

#[test]
fn reading_ahead_changes_no_sample() {
    let shuffled = parquet(r#", "shuffle_blocks": 3"#);
    for (config, least) in PARTS.iter().map(|(config, _)| (*config, 10)).chain([(shuffled.as_str(), 1 << 14)])
    {
        let _watched = watched();
        let server = server();
        let cache = tempfile::tempdir().unwrap();
        let cached = CacheOptions { folder: cache.path().to_owned(), max_bytes: 1 << 30 };
        let with_retries = StoreOptions { max_retries: 5, ..options(&server) };
        let with_cache = StoreOptions { cache: Some(cached), ..with_retries.clone() };
        let all = |options: &StoreOptions, kept: u64, faults: &[Fault]| -> Vec<Columns> {
            let loader = loader(open_with(&server, config, options), kept);
            server.fail(faults.iter().copied());
            loader.epoch(0).unwrap().map(Result::unwrap).collect()
        };
        let faults = [Fault::Slow(1), Fault::Status(503), Fault::Cut(10), Fault::Slow(2), Fault::Status(500)];
        let expected = all(&with_retries, least, &[]);
        for (options, kept) in [(&with_retries, 1 << 30), (&with_cache, 1 << 30), (&with_cache, least)] {
            assert!(all(options, kept, &faults) == expected, "{config} within {kept} bytes");
            server.recover();
            for before in [1, 4, expected.len() - 2] {
                let first = loader(open_with(&server, config, options), kept);
                let mut batches = first.epoch(0).unwrap();
                let mut found: Vec<_> = batches.by_ref().take(before).map(Result::unwrap).collect();
                let state = batches.state();
                drop(batches);
                let rest = loader(open_with(&server, config, options), kept);
                found.extend(rest.resume(&state).unwrap().map(Result::unwrap));
                assert!(found == expected, "{config} within {kept} bytes, resumed after {before} batches");
            }
        }
    }
}

#[test]
fn reading_ahead_makes_no_reservation_of_open_row_groups_fail() {
    let _watched = watched();
    let server = server();
    let config =
        |root: &str| format!(r#"{{"kind": "parquet-stream", "path": "{root}", "shuffle_blocks": 2}}"#);
    let (local, remote) =
        (config(&format!("{FIXTURES}/parquet/train-*.parquet")), config("s3://bucket/{0..1}.parquet"));
    let mut numbers_of_errors = Vec::new();
    for kept in (100..6000).step_by(200) {
        // The errors name different files.
        let load = |config: &str| -> Vec<Option<Columns>> {
            loader(open(&server, config), kept).epoch(0).unwrap().map(Result::ok).collect()
        };
        let found = load(&remote);
        assert!(found == load(&local), "within {kept} bytes");
        // Where a row group that was read ahead is dropped for an open one, the shard reads no other one ahead.
        let requests = server.requests().len();
        assert!(requests <= 11, "{requests} requests for 10 row groups within {kept} bytes");
        numbers_of_errors.push(found.iter().filter(|batch| batch.is_none()).count());
    }
    assert!(numbers_of_errors[0] > 0, "{numbers_of_errors:?}");
    assert!(numbers_of_errors.ends_with(&[0]), "{numbers_of_errors:?}");
}
