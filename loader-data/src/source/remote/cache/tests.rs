//! Tests of the cache with real files, real processes and a small server.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use loader_core::DatasetMemory;

use super::super::{
    io::ALL_PERMITS,
    tests::{
        content, options, seen,
        server::{Fault, Server},
    },
};
use crate::{
    CacheOptions, StoreOptions,
    error::DataProblem,
    source::{Blob, Files, ReadAhead},
};

const BLOCK: usize = 8 << 20;

fn cached(folder: &Path, max_bytes: u64) -> StoreOptions {
    let cache = CacheOptions { folder: folder.to_owned(), max_bytes };
    StoreOptions { cache: Some(cache), timeout: Duration::from_secs(20), ..options() }
}

/// Opens a file as a process that has just started would.
fn open(url: &str, options: &StoreOptions) -> Arc<Blob> {
    Files::list_with([url], &[], options).unwrap().open(0).unwrap()
}

fn named(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|name| name == extension)).collect();
    found.sort();
    found
}

/// Number of requests for each block. The first request of a list asks for one byte and is not counted.
fn per_block(server: &Server, blocks: usize) -> Vec<usize> {
    let mut counts = vec![0; blocks];
    for range in server.requests().into_iter().filter_map(|request| request.range) {
        if range != (0..1) {
            assert_eq!(range.start % BLOCK, 0, "whole blocks are fetched");
            counts[range.start / BLOCK] += 1;
        }
    }
    counts
}

#[test]
fn blocks_are_fetched_once_by_all_who_read_at_the_same_time() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let expected = content(3 * BLOCK + 1000);
    server.put("a.bin", expected.clone());
    server.set_latency(Duration::from_millis(20));
    let (url, options) = (server.url("a.bin"), cached(folder.path(), 1 << 30));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(open(&url, &options).read(0..expected.len() as u64).unwrap() == expected));
        }
    });
    assert_eq!(per_block(&server, 4), [1; 4]);
    let blob = open(&url, &options);
    let ranges = [BLOCK as u64 - 5..BLOCK as u64 + 5, 7..9, 3..3, 0..3 * BLOCK as u64];
    for (range, read) in ranges.iter().zip(blob.read_ranges(&ranges).unwrap()) {
        assert!(read == expected[range.start as usize..range.end as usize], "{range:?}");
    }
    assert_eq!(per_block(&server, 4), [0; 4]);
    assert!(named(folder.path(), "tmp").is_empty());
}

#[test]
fn a_read_ahead_that_is_dropped_fetches_only_the_blocks_that_it_has_asked_for() {
    let _permits = ALL_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put_with("a.bin", vec![0; 10 * BLOCK], Some("\"1\""), None);
    let blob = open(&server.url("a.bin"), &cached(folder.path(), 1 << 30));
    server.set_latency(Duration::from_millis(200));
    server.requests();
    let ranges = (0..10).map(|block| block * BLOCK as u64..block * BLOCK as u64 + 1).collect();
    let ahead = ReadAhead::start(&blob, ranges, &DatasetMemory::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.seen() == 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    drop(ahead);
    // Up to 8, if no other test sends requests ahead.
    let asked_for = seen(&server, 1);
    while named(folder.path(), "block").len() < asked_for && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(asked_for <= 8, "{asked_for} requests");
    assert_eq!(seen(&server, asked_for), asked_for);
    assert_eq!(named(folder.path(), "block").len(), asked_for);
}

#[test]
fn a_large_read_ahead_takes_the_free_permits_and_blocks_no_other_read() {
    let _permits = ALL_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put_with("large.bin", vec![0; 9 * BLOCK], Some("\"1\""), None);
    server.put("small.bin", "small");
    let options = StoreOptions { timeout: Duration::from_secs(120), ..options() };
    let with_cache = StoreOptions { cache: cached(folder.path(), 1 << 30).cache, ..options.clone() };
    let begin = |blob: &Arc<Blob>, ranges| ReadAhead::start(blob, ranges, &DatasetMemory::default()).unwrap();
    let small = open(&server.url("small.bin"), &options);
    for options in [&options, &with_cache] {
        let large = open(&server.url("large.bin"), options);
        server.requests();
        server.fail([Fault::Stall; 7]);
        let whole = 0..5;
        let stalled: Vec<_> = (0..7).map(|_| begin(&small, vec![whole.clone()])).collect();
        assert_eq!(seen(&server, 7), 7);
        // No reader waits for these requests, so they share the one permit that is free.
        let many =
            begin(&large, (0..9).map(|block| block * BLOCK as u64..block * BLOCK as u64 + 1).collect());
        let one = begin(&small, vec![whole]);
        assert_eq!(seen(&server, 17), 17, "9 requests of the large read and one of the small one");
        drop((stalled, many, one));
    }
}

#[test]
fn what_the_cache_has_is_read_without_a_thread() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put_with("a.bin", vec![7; BLOCK + 10], Some("\"1\""), None);
    let blob = open(&server.url("a.bin"), &cached(folder.path(), 1 << 30));
    let begin = || {
        let ranges = vec![0..3, 5..5, BLOCK as u64 - 2..BLOCK as u64 + 2];
        ReadAhead::start(&blob, ranges, &DatasetMemory::default())
    };
    blob.read(0..1).unwrap();
    assert_eq!(begin().expect("one block is missing").read().unwrap(), [vec![7; 3], vec![], vec![7; 4]]);
    assert!(begin().is_none(), "nothing is read ahead");
    fs::remove_file(&named(folder.path(), "block")[0]).unwrap();
    assert!(begin().is_some());
}

#[test]
fn a_damaged_block_is_fetched_again() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let expected = content(BLOCK + 300_000);
    server.put("a.bin", expected.clone());
    let (url, options) = (server.url("a.bin"), cached(folder.path(), 1 << 30));
    let blob = open(&url, &options);
    let whole = 0..expected.len() as u64;
    assert!(blob.read(whole.clone()).unwrap() == expected);
    per_block(&server, 2);
    for round in 0..40_usize {
        for path in named(folder.path(), "block") {
            let mut bytes = fs::read(&path).unwrap();
            let at = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % bytes.len();
            match round % 4 {
                0 => bytes.truncate(at),
                _ => bytes[at] ^= 1 << (round % 8),
            }
            fs::write(&path, bytes).unwrap();
        }
        assert!(blob.read(whole.clone()).unwrap() == expected, "round {round}");
        assert_eq!(per_block(&server, 2), [1, 1], "round {round}");
    }
    // A block under the name of another.
    let blocks = named(folder.path(), "block");
    fs::copy(&blocks[0], &blocks[1]).unwrap();
    assert!(blob.read(whole).unwrap() == expected);
}

#[test]
fn another_version_is_another_block() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let options = cached(folder.path(), 1 << 30);
    for text in ["old content", "new content"] {
        server.put("a.bin", text);
        assert_eq!(open(&server.url("a.bin"), &options).read(0..11).unwrap(), text.as_bytes());
    }
    assert_eq!(named(folder.path(), "block").len(), 2);
    server.put_with("dated.bin", "dated", None, Some("Tue, 03 Nov 2026 10:00:00 GMT"));
    assert_eq!(open(&server.url("dated.bin"), &options).read(0..5).unwrap(), b"dated");
    assert_eq!(named(folder.path(), "block").len(), 3);
    // A file that may change without a trace is not kept.
    server.put_with("unknown.bin", "unknown", None, None);
    assert_eq!(open(&server.url("unknown.bin"), &options).read(0..7).unwrap(), b"unknown");
    assert_eq!(named(folder.path(), "block").len(), 3);
}

#[test]
fn blocks_that_were_not_read_for_the_longest_time_make_room() {
    const MIB: usize = 1 << 20;
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let options = cached(folder.path(), 8 << 20);
    let read = |number: usize| {
        let name = format!("{number}.bin");
        let expected = vec![number as u8; MIB];
        server.put(&name, expected.clone());
        assert!(open(&server.url(&name), &options).read(0..MIB as u64).unwrap() == expected);
        server.requests().iter().any(|request| request.range.as_ref().is_some_and(|range| range.len() == MIB))
    };
    let hour = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hours);
    for number in 0..20 {
        assert!(read(number));
        let bytes: u64 =
            named(folder.path(), "block").iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes <= 8 << 20, "{bytes} bytes");
        for path in named(folder.path(), "block") {
            let file = fs::File::open(path).unwrap();
            if file.metadata().unwrap().modified().unwrap() > hour(1000) {
                file.set_modified(hour(number as u64)).unwrap();
            }
        }
        assert!(!read(0), "the block that is always read stays");
    }
    assert!(read(1), "a block that was not read for long is gone");
}

#[test]
fn without_a_usable_folder_reads_go_to_the_server() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("a.bin", "content");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for unusable in [file.join("cache"), file, PathBuf::from("/proc/cache")] {
        let blob = open(&server.url("a.bin"), &cached(&unusable, 1 << 30));
        assert_eq!(blob.read(0..7).unwrap(), b"content", "{}", unusable.display());
        assert_eq!(blob.read(0..7).unwrap(), b"content");
    }
    let small = Files::list_with([server.url("a.bin")], &[], &cached(folder.path(), 1000)).unwrap_err();
    assert!(matches!(small.problem, DataProblem::Store(_)), "{small}");
}

/// The part of another process in a test: it reads a whole file, whose content it knows.
fn as_another_process() -> bool {
    let Ok(url) = env::var("CACHE_TEST_URL") else { return false };
    let blob = open(&url, &cached(Path::new(&env::var_os("CACHE_TEST_FOLDER").unwrap()), 1 << 30));
    assert!(blob.read(0..blob.len()).unwrap() == content(blob.len() as usize));
    true
}

/// Starts another process that runs `test`.
fn start(test: &str, url: &str, folder: &Path, wrapper: &[&str]) -> Child {
    let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let program = env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.args([&test, "--exact", "--test-threads=1"]);
    command.env("CACHE_TEST_URL", url).env("CACHE_TEST_FOLDER", folder);
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn killed_processes_leave_nothing_wrong() {
    if as_another_process() {
        return;
    }
    const TEST: &str = "killed_processes_leave_nothing_wrong";
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let expected = content(4 * BLOCK);
    server.put("a.bin", expected.clone());
    let url = server.url("a.bin");
    server.set_latency(Duration::from_millis(30));
    let mut killed = 0;
    for delay in [0, 20, 40, 60, 80, 120, 160, 200] {
        let mut process = start(TEST, &url, folder.path(), &[]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.seen() == 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(delay));
        process.kill().unwrap();
        killed += usize::from(process.wait().unwrap().code().is_none());
        server.requests();
    }
    assert!(killed > 0, "all processes had ended before they were killed");
    // What a process that was killed while it wrote leaves behind.
    fs::write(folder.path().join("0.1-0.tmp"), "part").unwrap();
    let mut processes: Vec<_> = (0..3).map(|_| start(TEST, &url, folder.path(), &[])).collect();
    assert!(processes.iter_mut().all(|process| process.wait().unwrap().success()));
    assert!(per_block(&server, 4).iter().all(|count| *count <= 1), "no block is fetched twice");
    assert!(open(&url, &cached(folder.path(), 1 << 30)).read(0..expected.len() as u64).unwrap() == expected);
    assert_eq!(per_block(&server, 4), [0; 4]);
    assert_eq!(named(folder.path(), "block").len(), 4);

    server.put("b.bin", "another block makes room first");
    open(&server.url("b.bin"), &cached(folder.path(), 1 << 30)).read(0..7).unwrap();
    assert!(named(folder.path(), "tmp").is_empty());
}

#[test]
fn a_full_disk_is_bypassed() {
    if as_another_process() {
        return;
    }
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("a.bin", content(BLOCK + 5));
    // A disk of 4 MiB, in a namespace of its own.
    let mount =
        format!("mount -t tmpfs -o size=4m,mode=700 tmpfs {} && exec \"$@\"", folder.path().display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &mount, "sh"];
    let possible = Command::new("unshare").args(&wrapper[1..]).arg("true").stderr(Stdio::null()).status();
    if !possible.is_ok_and(|status| status.success()) {
        println!("SKIPPED: a full disk: this user may not mount");
        return;
    }
    let mut process = start("a_full_disk_is_bypassed", &server.url("a.bin"), folder.path(), &wrapper);
    assert!(process.wait().unwrap().success());
    assert_eq!(per_block(&server, 2), [1, 1]);
}

#[test]
fn a_folder_or_a_block_that_other_users_can_change_is_not_used() {
    let (server, outer) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("a.bin", "right");
    let (url, folder) = (server.url("a.bin"), outer.path().join("cache"));
    let options = cached(&folder, 1 << 30);
    let read = || open(&url, &options).read(0..5).unwrap();
    assert_eq!(read(), b"right");
    let [block] = &named(&folder, "block")[..] else { panic!("not one block") };
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    server.requests();
    let fetched = || per_block(&server, 1)[0];
    set_mode(block, 0o660);
    assert_eq!((&*read(), fetched()), (&b"right"[..], 1));
    assert_eq!((&*read(), fetched()), (&b"right"[..], 0), "the block was replaced");
    if nix::unistd::geteuid().is_root() {
        chown(block, Some(4321), None).unwrap();
        assert_eq!((&*read(), fetched()), (&b"right"[..], 1));
    } else {
        println!("SKIPPED: a block of another user: only root can make one");
    }
    let victim = outer.path().join("victim");
    fs::rename(block, &victim).unwrap();
    symlink(&victim, block).unwrap();
    assert_eq!((&*read(), fetched()), (&b"right"[..], 1), "a link");
    for path in [&folder, &folder.join("locks")] {
        set_mode(path, 0o770);
        let refused = Files::list_with([&*url], &[], &options).and_then(|files| files.open(0)).unwrap_err();
        assert!(refused.to_string().contains("other users may write to"), "{refused}");
        set_mode(path, 0o700);
    }
}
