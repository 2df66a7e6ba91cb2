//! Streams begin to fetch the next file on a server while they read one.

use std::{
    thread,
    time::{Duration, Instant},
};

use loader_core::{IterableDataset, SampleContext, Shard};
use loader_data::{DataError, DataProblem, Record, RecordConfig, RecordStream, Records, StoreOptions, Value};

use crate::{
    everywhere::watched,
    server::{Fault, Server},
};

const FILES: usize = 5;
const ROWS: usize = 3;

const TAR: &str = r#"{"kind": "tar", "path": "s3://bucket/{0..4}.tar", "fields": ["txt"]}"#;
const LINES: &str = r#"{"kind": "json-lines-stream", "path": "s3://bucket/{0..4}.jsonl"}"#;
const COMPRESSED: &str = r#"{"kind": "json-lines-stream", "path": "s3://bucket/{0..4}.jsonl.gz"}"#;

/// Starts a server with small files of each format.
fn server() -> Server {
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
    server
}

fn open(server: &Server, config: &str) -> RecordStream {
    let options = StoreOptions {
        endpoint: Some(server.url("")),
        skip_signature: true,
        allow_http: true,
        timeout: Duration::from_secs(20),
        max_retries: 0,
        ..StoreOptions::default()
    };
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

/// Returns the numbers of the files that the server was asked for, and waits until `count` of them are there.
fn asked(server: &Server, count: usize) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.seen() < count && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    // Enough time for a request that must not be sent.
    thread::sleep(Duration::from_millis(50));
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
fn the_program_does_not_wait_for_files_that_arrive_while_it_works() {
    for config in [TAR, LINES] {
        let _watched = watched();
        let server = server();
        let stream = open(&server, config);
        let latency = Duration::from_millis(200);
        server.set_latency(latency);
        let waited = |work: Duration| {
            let mut cx = SampleContext::new(0);
            let items = stream.iter(Shard::new(0, 1), &mut cx).unwrap();
            let (mut waited, mut before, mut rows) = (Duration::ZERO, Instant::now(), 0);
            for item in items {
                item.unwrap();
                waited += before.elapsed();
                thread::sleep(work);
                before = Instant::now();
                rows += 1;
            }
            assert_eq!(rows, FILES * ROWS);
            waited
        };
        // Each file takes the program longer than the server needs for the next one. A busy machine gets a second try.
        let is_quick = |_| waited(latency / 2) < 3 * latency;
        assert!((0..2).any(is_quick), "{config}: without reading ahead, it waits for {FILES} files");
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
