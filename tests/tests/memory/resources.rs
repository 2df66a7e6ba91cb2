//! Limits that are reached: a typed error that says what to do, nothing left, and it goes on when there is room again.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, prelude::*};
use loader_tests::{
    alone::{alone, alone_under, become_user},
    datasets::{Large, Noise, put_lives, take_life},
    digest, processes, skipped,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{Signal, raise},
};

use serde::{Deserialize, Serialize};

/// Runs `action` with a lower limit on a resource.
fn limited<T>(resource: Resource, limit: u64, action: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, limit.min(hard), hard).unwrap();
    let outcome = action();
    setrlimit(resource, soft, hard).unwrap();
    outcome
}

/// Loads an epoch and holds its batches, so that each needs memory of its own; drops them at an error, and goes on. Gives the errors.
fn load_and_hold() -> Vec<Error> {
    let loader = DataLoader::builder(Large { count: 20, bytes: 10 }).num_workers(2).build();
    let batches = match loader.and_then(|loader| loader.iter()) {
        Ok(batches) => batches,
        Err(error) => return vec![error],
    };
    let (mut held, mut errors) = (Vec::new(), Vec::new());
    for batch in batches {
        match batch {
            Ok(batch) => held.push(batch),
            Err(error) => {
                errors.push(error);
                held.clear();
            }
        }
        assert!(errors.len() < 100, "it goes on for ever: {:?}", errors[0]);
    }
    errors
}

/// Loads with each of `limits`. Each error must name `way_out`, and there must be one; gives the kinds.
fn assert_told(
    resource: Resource,
    limits: impl IntoIterator<Item = u64>,
    way_out: &str,
) -> BTreeSet<&'static str> {
    let before = Before::take();
    let mut kinds = BTreeSet::new();
    for limit in limits {
        let (errors, took) = timed(|| limited(resource, limit, load_and_hold));
        assert_soon(took);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(way_out), "with {limit}: {error:?}: {text}");
            kinds.insert(error.kind());
        }
        before.assert_nothing_left();
    }
    assert!(load_and_hold().is_empty(), "it works again with room");
    before.assert_nothing_left();
    println!("{kinds:?}");
    assert!(!kinds.is_empty(), "the limits were never reached");
    kinds
}

// PyTorch: P-24, U14
#[test]
fn descriptors_at_the_start_and_in_the_epoch() {
    alone(|| {
        let used = processes::open_descriptors() as u64 - 1;
        let kinds = assert_told(Resource::RLIMIT_NOFILE, used..used + 50, "`ulimit -n`");
        // With room for the workers, the memory of the first slots is what fails.
        let in_epoch = kinds.contains("SharedMemoryExhausted") || kinds.contains("System");
        assert!(kinds.contains("WorkerNotStarted") && in_epoch, "{kinds:?}");
    });
}

#[test]
fn processes_and_threads_of_the_user() {
    alone(|| {
        if !become_user(54_321) {
            return skipped("only root can become a user who has no other processes");
        }
        assert_told(Resource::RLIMIT_NPROC, 0..14, "`ulimit -u`");
    });
}

#[test]
fn address_space() {
    alone(|| {
        drop(load_and_hold());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        // Nothing that a Rust program allocates on its heap may be what fails, so not too little.
        assert_told(
            Resource::RLIMIT_AS,
            (0..4000).step_by(250).map(|room| 1024 * (size + room)),
            "`ulimit -v`",
        );
    });
}

// PyTorch: X17, N15, U02
#[test]
fn size_of_files() {
    alone(|| {
        let limits = [0, 100, 4096, 100_000, 140_000];
        assert_told(Resource::RLIMIT_FSIZE, limits, "`ulimit -f`");
    });
}

/// The folder for temporary files cannot be used: the loader uses another one, and leaves nothing there.
fn assert_another_folder_is_used(tmpdir: &str) {
    assert!(env::var("TMPDIR").unwrap().ends_with(tmpdir));
    let left = || {
        let entries =
            ["/tmp", "/dev/shm"].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".loader-")).count()
    };
    let load = || {
        let builder = DataLoader::builder(Noise { count: 60 }).batch_size(4).num_workers(2);
        digest(builder.build().unwrap().iter().unwrap()).unwrap()
    };
    let expected =
        digest(DataLoader::builder(Noise { count: 60 }).batch_size(4).build().unwrap().iter().unwrap())
            .unwrap();
    assert_eq!(load(), expected);
    let before = Before::now();
    (0..2).for_each(|_| assert_eq!(load(), expected));
    before.assert_nothing_left();
    // Those of other tests come and go.
    let deadline = Instant::now() + Duration::from_secs(5);
    while left() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(left(), 0);
}

#[test]
fn no_folder_for_temporary_files() {
    alone_under(&["env", "TMPDIR=/nowhere"], || assert_another_folder_is_used("/nowhere"));
}

#[test]
fn an_empty_name_of_the_folder_for_temporary_files() {
    alone_under(&["env", "TMPDIR="], || assert_another_folder_is_used(""));
}

#[test]
fn a_folder_for_temporary_files_that_cannot_be_written() {
    // Root can write in almost any other.
    alone_under(&["env", "TMPDIR=/sys"], || assert_another_folder_is_used("/sys"));
}

#[test]
fn a_folder_for_temporary_files_with_a_long_path() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("a".repeat(127));
    fs::create_dir(&long).unwrap();
    alone_under(&["env", &format!("TMPDIR={}", long.display())], || assert_another_folder_is_used("aaa"));
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
}

/// As in a chroot without device files.
#[test]
fn no_device_files() {
    let may_mount =
        || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if Path::new("/dev/null").exists() && !may_mount() {
        return skipped("this user may make no namespace for mounts");
    }
    let script = "mount -t tmpfs tmpfs /dev && exec \"$@\"";
    alone_under(&["unshare", "--mount", "sh", "-c", script, "sh"], || {
        assert!(!Path::new("/dev/null").exists());
        let digest = |workers| {
            let builder = DataLoader::builder(Noise { count: 60 }).num_workers(workers);
            digest(builder.build().unwrap().iter().unwrap()).unwrap()
        };
        assert_eq!(digest(2), digest(0));
    });
}

// PyTorch: N15, U02
#[test]
fn shared_memory_limit() {
    alone(|| {
        let before = Before::take();
        let build = |workers| {
            let builder = DataLoader::builder(Noise { count: 60 }).batch_size(4).num_workers(workers);
            builder.shared_memory_limit(6 << 16).build().unwrap()
        };
        let expected = digest(build(0).iter().unwrap()).unwrap();
        let mut batches = build(2).iter().unwrap();
        let (mut held, mut refused, mut noise) = (Vec::new(), 0, Digest::new());
        while let Some(batch) = batches.next() {
            match batch {
                Ok(batch) => {
                    noise.add(&batches.last_batch().unwrap().indices, &batch);
                    held.push(batch);
                }
                Err(Error::SharedMemoryExhausted { problem }) => {
                    assert!(problem.contains("batches are held by the program"), "{problem}");
                    refused += 1;
                    held.clear();
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(refused > 0);
        assert_eq!((noise.order(), noise.content()), expected, "nothing is lost");
        drop((held, batches));
        before.assert_nothing_left();
    });
}

/// Kills its process when it is dropped in a worker, once.
#[derive(Debug, Serialize, Deserialize)]
struct Bomb(Vec<u8>);

impl Bomb {
    fn fuse() -> PathBuf {
        env::temp_dir().join("fuse")
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if loader_ipc::process::is_worker() && fs::remove_file(Self::fuse()).is_ok() {
            raise(Signal::SIGKILL).unwrap();
        }
    }
}

/// The batch is dropped in its worker when the larger slot that it needs is refused.
#[test]
fn a_slot_that_cannot_grow_and_a_worker_that_dies_of_it() {
    alone(|| {
        let before = Before::take();
        let builder = DataLoader::builder(Noise { count: 10 }).num_workers(1).on_warning(|_| {});
        let loader = builder.collate(|_| Ok(Bomb(vec![1; 300_000]))).build().unwrap();
        File::create(Bomb::fuse()).unwrap();
        let mut batches = loader.iter().unwrap();
        let refused = || batches.by_ref().map(|batch| batch.unwrap_err().to_string()).collect::<Vec<_>>();
        let (errors, took) = limited(Resource::RLIMIT_FSIZE, 200_000, || timed(refused));
        assert_soon(took);
        assert!(errors.len() == 10 && errors.iter().all(|text| text.contains("`ulimit -f`")), "{errors:?}");
        assert_eq!(batches.report().restarts, 1);
        drop((batches, loader));
        before.assert_nothing_left();
    });
}

/// One shard of numbers, each a batch. The snapshot behind the 40th is larger than any slot; number 75 needs a larger slot than the others,
/// and number 76 kills its worker when it is tried first.
#[derive(Debug, Serialize, Deserialize)]
struct LargeSnapshot {
    lives: PathBuf,
}

struct LargeSnapshotIter {
    lives: PathBuf,
    next: u64,
}

impl Iterator for LargeSnapshotIter {
    type Item = anyhow::Result<Vec<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        self.next += 1;
        if number == 76 && take_life(&self.lives, 76) {
            raise(Signal::SIGKILL).unwrap();
        }
        (number < 79).then(|| Ok(vec![number; if number == 75 { 62_500 } else { 1 }]))
    }
}

impl SnapshotIterator for LargeSnapshotIter {
    type Snapshot = (u64, Vec<u8>);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.next, vec![0; 700_000]))
    }
}

impl IterableDataset for LargeSnapshot {
    type Sample = Vec<u64>;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Vec<u64>>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for LargeSnapshot {
    type Snapshot = (u64, Vec<u8>);

    fn iter_from(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Vec<u64>>, Snapshot = Self::Snapshot> + Send,
    > {
        let next = snapshot.map_or(0, |(next, _)| next);
        Ok(LargeSnapshotIter { lives: self.lives.clone(), next })
    }
}

/// A worker dies while a later task of its shard has no slot, and no slot can be made for the snapshot at which the shard is opened again.
#[test]
fn a_shard_that_cannot_be_opened_again_ends_and_repeats_nothing() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        put_lives(folder.path(), &[(76, 1)]);
        let builder = DataLoader::stream(LargeSnapshot { lives: folder.path().to_owned() }).snapshots();
        let builder = builder.snapshot_every(40).num_workers(1).prefetch_factor(12);
        let loader = builder.shared_memory_limit(768 << 10).on_warning(|_| {}).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut numbers = Vec::new();
        let mut error = None;
        for _ in 0..74 {
            numbers.push(batches.next().unwrap().unwrap().as_slice()[0]);
        }
        limited(Resource::RLIMIT_FSIZE, 600_000, || {
            for batch in batches.by_ref() {
                match batch {
                    Ok(batch) => numbers.push(batch.as_slice()[0]),
                    Err(other) => assert!(error.replace(other).is_none(), "{error:?}"),
                }
            }
        });
        assert_eq!(numbers, (0..=75).collect::<Vec<_>>());
        let Some(error @ Error::SendFailed { .. }) = error else { panic!("{error:?}") };
        assert!(error.to_string().contains("`ulimit -f`"), "{error}");
    });
}
