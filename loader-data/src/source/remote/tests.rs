//! Tests with a small server, whose answers go wrong.

use std::{
    env,
    io::{BufRead, Read, Write},
    net::TcpStream,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use loader_core::DatasetMemory;
use object_store::{ObjectStoreExt, path::Path as ObjectPath};

use super::{
    super::{Blob, CacheOptions, Files, ReadAhead, StoreOptions},
    address::Address,
    io::ALL_PERMITS,
    object::wait,
    stores::Stores,
};
use crate::error::{DataError, DataProblem};

#[allow(unreachable_pub, reason = "tests/formats has this file too")]
#[path = "../../../tests/formats/server.rs"]
pub(super) mod server;

use server::{Fault, Server};

pub(super) fn options() -> StoreOptions {
    StoreOptions {
        allow_http: true,
        skip_signature: true,
        timeout: Duration::from_secs(2),
        ..StoreOptions::default()
    }
}

/// Bytes that differ everywhere.
pub(super) fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn on_s3(server: &Server) -> StoreOptions {
    StoreOptions { endpoint: Some(server.url("")), ..options() }
}

fn list(pattern: &str, options: &StoreOptions) -> Result<Vec<String>, DataError> {
    let files = Files::list_with([pattern], &[".txt"], options)?;
    Ok((0..files.len()).map(|file| files.get(file).location.to_string()).collect())
}

fn problem(pattern: &str, options: &StoreOptions) -> DataProblem {
    list(pattern, options).unwrap_err().problem
}

#[test]
fn files_of_a_bucket_are_listed_by_name_folder_and_pattern() {
    let server = Server::start();
    for name in ["a.txt", "a 1%.txt", "b/c.txt", "b/.hidden.txt", "b/d/e.txt", "b/d/e.csv", "b.txt"] {
        server.put(&format!("bucket/data/{name}"), name);
    }
    for name in ["_temporary/a.txt", "_a=1/_c.txt", "_a=1/a.txt"] {
        server.put(&format!("table/rows/{name}"), name);
    }
    let options = on_s3(&server);
    let names = |pattern: &str| {
        let listed = list(&format!("s3://bucket/{pattern}"), &options).unwrap();
        listed
            .iter()
            .map(|name| name.trim_matches('`')["s3://bucket/data/".len()..].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("data/"), ["a 1%.txt", "a.txt", "b.txt", "b/c.txt", "b/d/e.txt"]);
    assert_eq!(names("data/*.txt"), ["a 1%.txt", "a.txt", "b.txt"]);
    assert_eq!(names("data/b/**/*.*"), ["b/c.txt", "b/d/e.csv", "b/d/e.txt"]);
    assert_eq!(names("data/b/?.txt"), ["b/c.txt"]);
    assert_eq!(names("data/{b,a}.txt"), ["b.txt", "a.txt"]);
    assert_eq!(names("data/a 1%.txt"), ["a 1%.txt"]);
    assert_eq!(names("data/b/d/e.csv"), ["b/d/e.csv"]);
    assert_eq!(names("").len(), 5);
    let rows = |pattern: &str, extension: &str| {
        let files = Files::list_with([format!("s3://table/rows/{pattern}")], &[extension], &options).unwrap();
        (0..files.len()).map(|file| files.get(file).location.file_name()).collect::<Vec<_>>()
    };
    for pattern in ["", "*", "**/*.txt"] {
        assert_eq!(rows(pattern, ".txt"), ["a.txt"], "{pattern}: the partition `_a=1`");
    }
    assert_eq!(rows("_temporary/", ".txt"), ["a.txt"]);
    assert_eq!(rows("_a=1/_*.txt", ".txt"), ["_c.txt"]);
    assert_eq!(rows("", "c.txt"), ["_c.txt"], "in a format of other files");

    let files = Files::list_with(["s3://bucket/data/a 1%.txt"], &[], &options).unwrap();
    assert_eq!(files.open(0).unwrap().read(0..8).unwrap(), b"a 1%.txt");
    assert!(matches!(problem("s3://bucket/data/*.json", &options), DataProblem::NotFound));
    assert!(matches!(problem("s3://bucket/data/{a,z}.txt", &options), DataProblem::NotFound));
    assert!(matches!(problem("s3://bucket/none/", &options), DataProblem::NoFiles { .. }));
    assert!(matches!(problem("s3://bucket/none.txt", &options), DataProblem::NotFound));
    for pattern in ["", "a/", "*.txt", "a/**/*.txt", "a.txt"] {
        let missing = problem(&format!("s3://none/{pattern}"), &options);
        assert!(matches!(missing, DataProblem::NoSuchBucket), "{pattern}: {missing}");
    }

    let endpoint = Some("https://me:secret@host".to_owned());
    let with_password = problem("s3://bucket/a.txt", &StoreOptions { endpoint, ..options });
    assert!(matches!(with_password, DataProblem::Unsupported(_)), "{with_password}");
}

#[test]
fn a_table_beside_the_files_is_not_theirs() {
    let server = Server::start();
    for name in
        ["a/x.parquet", "t/_delta_log/0.json", "t/x.parquet", "metadata/v1.metadata.json", "i/data/y.parquet"]
    {
        server.put(&format!("bucket/data/{name}"), name);
    }
    let options = on_s3(&server);
    let list =
        |pattern: &str| Files::list_with([format!("s3://bucket/data/{pattern}")], &[".parquet"], &options);
    for pattern in ["a/", "a/*.parquet", "[ai]/**/*.parquet", "a*/x.parquet"] {
        assert!(list(pattern).is_ok(), "{pattern}");
    }
    for pattern in ["", "t/", "t/*", "*/x.parquet", "**/*.parquet"] {
        let error = list(pattern).unwrap_err();
        assert!(
            matches!(error.problem, DataProblem::TableFormat { format: "Delta Lake" }),
            "{pattern}: {error}"
        );
    }
    server.put("bucket/data/t/y.csv", "y");
    for pattern in ["t/", "t/*.csv", "**/*.csv"] {
        let files = Files::list_with([format!("s3://bucket/data/{pattern}")], &[".csv"], &options);
        assert!(files.is_ok(), "{pattern}: a table has no rows in CSV files");
    }
}

#[test]
fn the_files_of_paimon_tell_its_tables() {
    let server = Server::start();
    let options = on_s3(&server);
    for (table, snapshot) in [("table", "snapshot-1"), ("mine", "1.json")] {
        for name in ["manifest/m", "schema/schema-0", &format!("snapshot/{snapshot}"), "bucket-0/x.parquet"] {
            server.put(&format!("bucket/{table}/{name}"), name);
        }
        for pattern in ["", "bucket-*", "bucket-?/*.parquet", "**/*.parquet"] {
            let url = format!("s3://bucket/{table}/{pattern}");
            let listed = Files::list_with([&url], &[".parquet"], &options).map_err(|error| error.problem);
            match listed {
                Ok(_) => assert_eq!(table, "mine", "{url}"),
                Err(DataProblem::TableFormat { format: "Paimon" }) => assert_eq!(table, "table", "{url}"),
                Err(problem) => panic!("{url}: {problem}"),
            }
        }
    }
}

#[test]
fn two_versions_of_a_data_set_are_refused() {
    let server = Server::start();
    for name in ["1/dataset_info.json", "1/x.txt", "2/dataset_info.json", "2/y/x.txt"] {
        server.put(&format!("bucket/data/{name}"), name);
    }
    let options = on_s3(&server);
    for pattern in ["", "*", "**/*.txt"] {
        let problem = problem(&format!("s3://bucket/data/{pattern}"), &options);
        let DataProblem::SeveralDataSets { folders } = problem else { panic!("{pattern}: {problem}") };
        assert_eq!(folders, "`s3://bucket/data/1`, `s3://bucket/data/2`", "{pattern}");
    }
    assert_eq!(list("s3://bucket/data/{1,2}/", &options).unwrap().len(), 2, "both are named");
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
    for key in ["a//b.txt", "a/../b.txt"] {
        let server = Server::start();
        server.put("bucket/data/c.txt", "c");
        server.put(&format!("bucket/data/{key}"), "");
        let error = list("s3://bucket/data/", &on_s3(&server)).unwrap_err();
        assert!(error.to_string().contains(&format!("the key `data/{key}`")), "{error}");
    }
}

#[test]
fn a_wildcard_that_matches_a_folder_stands_for_its_files() {
    let server = Server::start();
    let names =
        ["a.txt", "sub/b.txt", "sub/c.csv", "sub/.hidden.txt", "sub/deep/d.txt", "sub/deep/.git/e.txt"];
    names.iter().for_each(|name| server.put(&format!("bucket/data/{name}"), *name));
    let options = on_s3(&server);
    let names = |pattern: &str| {
        let listed = list(&format!("s3://bucket/{pattern}"), &options).unwrap();
        let names = listed.iter().map(|name| name.trim_matches('`')["s3://bucket/data/".len()..].to_owned());
        names.collect::<Vec<_>>()
    };
    let all = ["a.txt", "sub/b.txt", "sub/deep/d.txt"];
    assert_eq!(names("data/*"), all);
    assert_eq!(names("dat?"), all);
    assert_eq!(names("data/s*b"), all[1..]);
    assert_eq!(names("data/*/"), all[1..], "only a folder matches");
    assert_eq!(names("d*a/sub/deep"), all[2..]);
    assert_eq!(
        names("data/**/*"),
        ["a.txt", "sub/b.txt", "sub/c.csv", "sub/deep/d.txt"],
        "each file is listed once"
    );
    assert_eq!(names("data/a*"), ["a.txt"]);

    // Some programs store an empty object in place of a folder.
    server.put("bucket/data/sub/", "");
    server.put("bucket/data/sub/deep/", "");
    assert_eq!(names("data/*"), all);
    assert_eq!(names("data/s*b/*"), ["sub/b.txt", "sub/c.csv", "sub/deep/d.txt"]);
    let whole = Files::list_with(["s3://bucket/data/"], &[""], &options).unwrap();
    assert_eq!(whole.len(), 4, "the folders are no files");
    server.put("bucket/data/other/f.csv", "f");
    let empty = list("s3://bucket/data/*", &options).unwrap_err();
    assert!(matches!(empty.problem, DataProblem::NoFiles { .. }), "{empty}");
    assert_eq!(empty.file, "`s3://bucket/data/other/`");
}

#[test]
fn a_name_that_exists_is_no_pattern() {
    let server = Server::start();
    for name in ["a[1].txt", "a1.txt", "b*.txt", "b1.txt", "c[1]/d.txt", "c1/e.txt"] {
        server.put(&format!("bucket/{name}"), name);
    }
    let options = on_s3(&server);
    let names = |pattern: &str| list(&format!("s3://bucket/{pattern}"), &options).unwrap();
    for name in ["a[1].txt", "b*.txt", "c[1]/d.txt"] {
        assert_eq!(names(name), [format!("`s3://bucket/{name}`")]);
    }
    assert_eq!(names("c[1]/"), ["`s3://bucket/c[1]/d.txt`"]);
    assert_eq!(names("a[0-2].txt"), ["`s3://bucket/a1.txt`"]);
}

#[test]
fn files_of_an_http_server_are_named_and_their_urls_are_taken_as_they_are() {
    let server = Server::start();
    for name in ["refs/x/part-8.txt", "refs/x/part-9.txt", "empty.txt"] {
        server.put(name, if name == "empty.txt" { "" } else { name });
    }
    let url = server.url("refs%2Fx/part-{8..9}.txt?X-Signature=secret%2F");
    let files = Files::list_with([&url], &[], &options()).unwrap();
    assert_eq!(files.open(1).unwrap().read(0..17).unwrap(), b"refs/x/part-9.txt");
    assert!(server.requests().iter().all(|request| request.target.ends_with(".txt?X-Signature=secret%2F")));
    let empty = Files::list_with([server.url("empty.txt")], &[], &options()).unwrap();
    assert_eq!(empty.open(0).unwrap().read(0..0).unwrap(), b"");
    assert!(matches!(problem(&server.url("refs/*.txt"), &options()), DataProblem::Unsupported(_)));
    assert!(matches!(problem(&server.url("refs/"), &options()), DataProblem::Unsupported(_)));
    assert!(matches!(problem(&server.url("none"), &options()), DataProblem::NotFound));
    for (fault, expected) in [
        (Fault::NoRanges, "the server does not send parts of files; "),
        (Fault::Range(None), "does not say how many bytes the file "),
        (Fault::Range(Some("bytes 0-0/*")), "does not say how many bytes the file "),
        (Fault::NoLength, "does not say how many bytes the file "),
        (Fault::Range(Some("bytes 5-5/17")), "the server sends another part of the file"),
        (Fault::Redirect, "the server redirects in a circle, "),
    ] {
        // More than the redirects that are followed.
        server.fail([fault; 20]);
        let error = list(&server.url("refs/x/part-8.txt?X-Signature=secret"), &options()).unwrap_err();
        server.recover();
        assert!(matches!(&error.problem, DataProblem::Store(text) if text.contains(expected)), "{error}");
        let url = server.url("refs/x/part-8.txt");
        assert!(error.to_string().contains(&url) && !error.to_string().contains("secret"), "{error}");
    }
    let encrypted = StoreOptions { allow_http: false, ..options() };
    assert!(matches!(problem(&server.url("refs/x/part-8.txt"), &encrypted), DataProblem::Store(_)));
}

/// Puts a file of 20 MiB on a server and opens it. Returns the server without requests, the file and its content.
fn large_file() -> (Server, Arc<Blob>, Vec<u8>) {
    let server = Server::start();
    let expected = content(20 << 20);
    server.put("a.bin", expected.clone());
    let files = Files::list_with([server.url("a.bin")], &[], &options()).unwrap();
    let blob = files.open(0).unwrap();
    server.requests();
    (server, blob, expected)
}

/// Waits until the server has seen `count` requests. Returns how many it has seen.
pub(super) fn seen(server: &Server, count: usize) -> usize {
    // Other tests hold permits to send requests ahead.
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.seen() < count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Enough time for a request that must not be sent.
    std::thread::sleep(Duration::from_millis(50));
    server.seen()
}

#[test]
fn a_process_sends_8_requests_ahead_and_those_that_a_caller_waits_for() {
    let _permits = ALL_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    (0..12_u8).for_each(|number| server.put(&format!("{number}.bin"), [number; 100]));
    let cache = CacheOptions { folder: folder.path().to_owned(), max_bytes: 1 << 30 };
    let options = StoreOptions { timeout: Duration::from_secs(120), ..options() };
    let with_cache = StoreOptions { cache: Some(cache), ..options.clone() };
    let files = |options| Files::list_with([server.url("{0..11}.bin")], &[], options).unwrap();
    let (files, cached) = (files(&options), files(&with_cache));
    let begin = |files: &Files, number: usize| {
        let blob = files.open(number).unwrap();
        let whole = 0..100;
        ReadAhead::start(&blob, vec![whole], &DatasetMemory::default()).unwrap()
    };
    server.requests();
    server.fail([Fault::Stall; 8]);
    let stalled: Vec<_> = (0..8).map(|number| begin(&files, number)).collect();
    assert_eq!(seen(&server, 8), 8);
    let needed = [(8_u8, begin(&files, 8)), (9, begin(&cached, 9))];
    let unwanted = [begin(&files, 10), begin(&cached, 11)];
    assert_eq!(seen(&server, 8), 8, "8 requests have no answer");
    for (number, ahead) in needed {
        assert_eq!(ahead.read().unwrap(), [vec![number; 100]]);
    }
    assert_eq!(server.seen(), 10);
    drop(unwanted);
    drop(stalled);
    let _later = begin(&files, 0);
    assert_eq!(seen(&server, 11), 11, "the requests that were dropped are not sent, and hold no permits");
}

#[test]
fn ranges_are_read_together_and_a_reader_reads_ahead() {
    let (server, blob, expected) = large_file();
    let ranges = [5_000_000..5_000_100, 10..20, 12..12, 100_000..100_010, 15..30];
    for (range, read) in ranges.iter().zip(blob.read_ranges(&ranges).unwrap()) {
        assert_eq!(read, expected[range.start as usize..range.end as usize], "{range:?}");
    }
    assert_eq!(server.requests().len(), 2, "the ranges near the beginning are one request");
    assert!(matches!(blob.read(0..(20 << 20) + 1).unwrap_err().problem, DataProblem::Truncated));

    let mut reader = blob.reader(7..expected.len() as u64);
    assert!(!reader.fill_buf().unwrap().is_empty());
    assert_eq!(seen(&server, 2), 2, "the second chunk is fetched before it is asked for");
    server.requests();
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert!(read == expected[7..]);
    assert!(server.requests().len() <= 4, "chunks grow to 8 MiB");
}

#[test]
fn a_reader_fetches_little_after_the_end_that_it_expects() {
    let (server, blob, expected) = large_file();
    let mut reader = blob.reader(7..expected.len() as u64).expect_end(4 << 20);
    let mut read = vec![0; (4 << 20) - 7];
    reader.read_exact(&mut read).unwrap();
    assert!(read == expected[7..4 << 20]);
    let mut rest = vec![0; 1 << 20];
    // Enough time for a request that must not be sent.
    std::thread::sleep(Duration::from_millis(50));
    let ranges: Vec<_> = server.requests().into_iter().filter_map(|request| request.range).collect();
    let ends: Vec<_> = ranges.iter().map(|range| range.end).collect();
    let tail = (4 << 20) + (64 << 10);
    assert_eq!(ends.last(), Some(&tail), "{ranges:?}");
    reader.read_exact(&mut rest).unwrap();
    assert!(rest == expected[4 << 20..5 << 20], "the reader reads on if it is asked to");
}

#[test]
fn faults_are_retried_and_the_bytes_are_right() {
    let server = Server::start();
    let expected = content(300_000);
    server.put("tagged.bin", expected.clone());
    server.put_with("untagged.bin", expected.clone(), None, Some("Tue, 03 Nov 2026 10:00:00 GMT"));
    server.put_with("weak.bin", expected.clone(), Some("W/\"1\""), None);
    for name in ["tagged.bin", "untagged.bin", "weak.bin"] {
        let files = Files::list_with([server.url(name)], &[], &options()).unwrap();
        let blob = files.open(0).unwrap();
        for faults in [
            vec![Fault::Status(500), Fault::Status(503)],
            vec![Fault::Cut(0)],
            vec![Fault::Cut(100_000), Fault::Cut(50_000)],
            vec![Fault::Stall],
            vec![Fault::StallAfter(1000)],
            vec![Fault::Short(1000)],
            vec![Fault::Slow(20)],
        ] {
            server.fail(faults.iter().copied());
            server.requests();
            let read = blob.read(0..300_000);
            assert!(read.unwrap() == expected, "{name}, {faults:?}");
            let expected = faults.len() + usize::from(!matches!(faults[0], Fault::Slow(_)));
            assert_eq!(server.requests().len(), expected, "{name}, {faults:?}");
        }
    }
}

#[test]
fn what_stays_wrong_is_a_typed_error_within_the_deadline() {
    let server = Server::start();
    server.put("a.bin", content(1000));
    let short = StoreOptions { timeout: Duration::from_millis(400), ..options() };
    let files = Files::list_with([server.url("a.bin?X-Signature=secret")], &[], &short).unwrap();
    let blob = files.open(0).unwrap();
    let read = |fault: Fault| {
        server.fail([fault; 40]);
        let started = Instant::now();
        let error = blob.read(0..1000).unwrap_err();
        // Much more than the deadline, because the machine may be busy.
        assert!(started.elapsed() < Duration::from_secs(10), "{fault:?}: {error}");
        assert!(!format!("{error} {error:?} {blob:?}").contains("secret"), "{error:?}");
        server.recover();
        error.problem
    };
    assert!(matches!(read(Fault::Status(503)), DataProblem::Server { status: 503 }));
    assert!(matches!(read(Fault::Status(400)), DataProblem::Server { status: 400 }));
    for status in [401, 403] {
        let problem = read(Fault::Status(status));
        let address = server.url("");
        let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
        let expected = format!(
            "the server {address} refuses access with status {status}; check the credentials in the environment and \
             what they permit, or set `skip_signature` for a public bucket"
        );
        assert_eq!(problem.to_string(), expected);
        assert_eq!(problem.is_outage(), status == 401, "a token that has expired concerns all files");
    }
    assert!(matches!(read(Fault::Stall), DataProblem::Timeout { .. }));
    assert!(matches!(read(Fault::StallAfter(10)), DataProblem::Timeout { .. }));
    let cut = read(Fault::Cut(10));
    assert!(matches!(cut, DataProblem::Unreadable(_) | DataProblem::Timeout { .. }), "{cut}");
    let refused = problem("http://127.0.0.1:1/a", &short);
    assert!(matches!(refused, DataProblem::Unreadable(_)), "{refused}");
}

#[test]
fn another_version_and_a_removed_file_are_errors() {
    let server = Server::start();
    let modified = |hour| format!("Tue, 03 Nov 2026 {hour}:00:00 GMT");
    for (name, etags) in [
        ("etag", [Some("\"1\""), Some("\"2\"")]),
        ("weak", [Some("W/\"1\""), Some("W/\"2\"")]),
        ("none", [None, None]),
    ] {
        server.put_with(name, "old content", etags[0], Some(&modified(10)));
        let files = Files::list_with([server.url(name)], &[], &options()).unwrap();
        let blob = files.open(0).unwrap();
        assert_eq!(blob.read(4..11).unwrap(), b"content");
        server.put_with(name, "new content", etags[1], Some(&modified(11)));
        let changed = blob.read(4..11).unwrap_err();
        assert!(matches!(changed.problem, DataProblem::Changed { .. }), "{name}: {changed}");
        server.put_with(name, "short", etags[0], Some(&modified(10)));
        let changed = blob.read(4..11).unwrap_err();
        assert!(matches!(changed.problem, DataProblem::Changed { .. }), "{name}: {changed}");
        server.remove(name);
        assert!(matches!(blob.read(4..11).unwrap_err().problem, DataProblem::NotFound), "{name}");
    }
}

/// Needs a server that is compatible with S3: `.ci/long cloud` starts one.
#[test]
#[ignore = "needs a server: .ci/long cloud"]
fn on_a_real_s3_server() {
    let endpoint = env::var("S3_TEST_ENDPOINT").expect("`.ci/long cloud` sets it");
    let bucket = format!("loader-test-{}", std::process::id());
    put_bucket(&endpoint, &bucket);
    let options = StoreOptions { endpoint: Some(endpoint), skip_signature: false, ..options() };
    let stores = Stores::new(options.clone()).unwrap();
    let store = stores.get(&Address::parse(&format!("s3://{bucket}/")).unwrap()).unwrap();
    let put = |key: &str, content: Vec<u8>| {
        let (store, key) = (Arc::clone(&store), ObjectPath::parse(key).unwrap());
        wait(async move { Ok(store.put(&key, content.into()).await.unwrap()) }).unwrap();
    };
    // A server lists at most a thousand files at once.
    (0..1100).for_each(|number| put(&format!("many/{number:04}.txt"), vec![b'x']));
    let large = content(9 << 20);
    put("data/a 1%+ü.txt", large.clone());
    put("data/b/c.txt", b"c".to_vec());
    let names = |pattern: &str| list(&format!("s3://{bucket}/{pattern}"), &options).unwrap().len();
    assert_eq!(
        (names("many/"), names("many/1*.txt"), names("data/"), names("data/*.txt")),
        (1100, 100, 2, 1)
    );

    let files = Files::list_with([format!("s3://{bucket}/data/*.txt")], &[], &options).unwrap();
    let blob = files.open(0).unwrap();
    let ranges = [5..9 << 20, 0..3, (8 << 20) - 1..(8 << 20) + 1];
    for (range, read) in ranges.iter().zip(blob.read_ranges(&ranges).unwrap()) {
        assert!(read == large[range.start as usize..range.end as usize], "{range:?}");
    }
    put("data/a 1%+ü.txt", vec![0; 9 << 20]);
    let changed = blob.read(0..3).unwrap_err();
    assert!(matches!(changed.problem, DataProblem::Changed { .. }), "{changed}");
    assert!(matches!(problem(&format!("s3://{bucket}/none"), &options), DataProblem::NotFound));
    for pattern in ["*", "a.txt"] {
        let missing = problem(&format!("s3://no-such-bucket/{pattern}"), &options);
        assert!(matches!(missing, DataProblem::NoSuchBucket), "{pattern}: {missing}");
    }
}

fn put_bucket(endpoint: &str, bucket: &str) {
    let mut connection = TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).unwrap();
    write!(
        connection,
        "PUT /{bucket} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}
