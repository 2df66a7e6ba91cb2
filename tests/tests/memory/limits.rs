//! Limits of the system and of the loader that are reached: a typed error says what to do, nothing is left,
//! and the loader works again when there is room.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, SlotError, prelude::*};
use loader_tests::{
    alone::{alone, alone_under, become_user},
    datasets::{Hoard, Large, Noise, put_tokens, take_token},
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

/// A loader of 20 batches.
fn twenty() -> Result<DataLoader<Tensor<u8>>, Error> {
    DataLoader::builder(Large { count: 20, bytes: 10 }).num_workers(2).build()
}

/// Loads an epoch and holds its batches, so that each needs its own memory. Drops them at an error and
/// continues. Returns the number of batches and the errors.
fn load_and_hold(loader: &DataLoader<Tensor<u8>>) -> (usize, Vec<Error>) {
    let batches = match loader.epoch(0) {
        Ok(batches) => batches,
        Err(error) => return (0, vec![error]),
    };
    let (mut held, mut count, mut errors) = (Vec::new(), 0, Vec::new());
    for batch in batches {
        match batch {
            Ok(batch) => {
                count += 1;
                held.push(batch);
            }
            Err(error) => {
                errors.push(error);
                held.clear();
            }
        }
        assert!(errors.len() < 100, "the errors do not end: {:?}", errors[0]);
    }
    (count, errors)
}

/// Loads with each of `limits`. At least one limit must cause an error, and each error must contain
/// `advice`. Without the limit, the same loader works again. Returns the kinds of the errors.
fn assert_refused(
    resource: Resource,
    limits: impl IntoIterator<Item = u64>,
    advice: &str,
) -> BTreeSet<&'static str> {
    let before = Before::take();
    let mut kinds = BTreeSet::new();
    for limit in limits {
        let loader = twenty().unwrap();
        let load = || twenty().map_or_else(|error| (0, vec![error]), |_| load_and_hold(&loader));
        let ((_, errors), took) = timed(|| limited(resource, limit, load));
        assert_soon(took);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(advice), "with {limit}: {error:?}: {text}");
            kinds.insert(error.kind());
        }
        let (count, errors) = load_and_hold(&loader);
        assert_eq!((count, errors.len()), (20, 0), "after {limit}: {errors:?}");
        drop(loader);
        before.assert_nothing_left();
    }
    println!("{kinds:?}");
    assert!(!kinds.is_empty(), "no limit was reached");
    let expected = BTreeSet::from(["SendFailed", "SharedMemoryExhausted", "System", "WorkerNotStarted"]);
    assert!(kinds.is_subset(&expected), "{kinds:?}");
    kinds
}

// PyTorch: 32, P-01, P-24, U14, X14, X16
#[test]
fn descriptors_at_the_start_and_in_the_epoch() {
    alone(|| {
        let used = processes::open_descriptors() as u64 - 1;
        let kinds = assert_refused(Resource::RLIMIT_NOFILE, used..used + 50, "open files (`ulimit -n`)");
        // With enough descriptors for the workers, there are none for the first slots.
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
        assert_refused(Resource::RLIMIT_NPROC, 0..14, "`ulimit -u`");
    });
}

#[test]
fn errors_name_the_limit_of_address_space() {
    alone(|| {
        load_and_hold(&twenty().unwrap());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        // The limit is never below the current size, because a failed allocation on the heap aborts the
        // program.
        assert_refused(
            Resource::RLIMIT_AS,
            (0..4000).step_by(250).map(|room| 1024 * (size + room)),
            "`ulimit -v`",
        );
    });
}

// PyTorch: X17, N15, U02
#[test]
fn errors_name_the_limit_of_file_sizes() {
    alone(|| {
        let limits = [0, 100, 4096, 100_000, 140_000];
        assert_refused(Resource::RLIMIT_FSIZE, limits, "`ulimit -f`");
    });
}

/// `build` moves the tensors of a dataset into shared memory, also for a loader without workers.
#[test]
fn errors_about_the_tensors_of_a_dataset_name_the_limit() {
    alone(|| {
        for (resource, limit, advice) in
            [(Resource::RLIMIT_NOFILE, 0, "`ulimit -n`"), (Resource::RLIMIT_FSIZE, 4096, "`ulimit -f`")]
        {
            let (rows, more) =
                (Tensor::<u8>::zeros([100, 1000]).unwrap(), Tensor::<u8>::zeros([100]).unwrap());
            let dataset = TensorDataset::new((rows, more)).unwrap();
            let built = limited(resource, limit, || DataLoader::builder(dataset).build());
            let error = built.map(drop).unwrap_err();
            let text = error.to_string();
            let is_right =
                text.starts_with("allocating shared memory for the dataset") && text.contains(advice);
            assert!(is_right, "{error:?}: {text}");
        }
    });
}

/// Checks that a loader which cannot use the folder for temporary files uses another one, and leaves nothing
/// there.
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
    // Other tests may use the folder too, for a short time.
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
    // Root can write into almost any other folder.
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

/// A chroot may have no device files.
#[test]
fn workers_start_without_device_files() {
    let may_mount =
        || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if Path::new("/dev/null").exists() && !may_mount() {
        return skipped("this user may not make a namespace for mounts");
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
fn held_batches_reach_the_shared_memory_limit() {
    alone(|| {
        let before = Before::take();
        let build = |workers| {
            let builder = DataLoader::builder(Noise { count: 60 }).batch_size(4).num_workers(workers);
            builder.shared_memory_limit(6 << 16).build().unwrap()
        };
        let expected = digest(build(0).iter().unwrap()).unwrap();
        let mut batches = build(2).iter().unwrap();
        let (mut held, mut refused, mut noise) = (Vec::new(), 0, BatchDigest::new());
        while let Some(batch) = batches.next() {
            match batch {
                Ok(batch) => {
                    noise.add(&batches.last_batch().unwrap().indices, &batch);
                    held.push(batch);
                }
                Err(Error::SharedMemoryExhausted {
                    source: SlotError::LimitReached { held: counted, .. },
                    ..
                }) => {
                    assert_eq!(counted, held.len());
                    refused += 1;
                    held.clear();
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(refused > 0);
        assert_eq!((noise.order(), noise.content()), expected, "no batch is lost");
        drop((held, batches));
        before.assert_nothing_left();
    });
}

/// Kills its process when it is dropped in a worker while the fuse exists, which it removes.
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
fn a_worker_dies_when_its_slot_cannot_grow() {
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

/// A worker dies while a later task of its shard has no slot, and the snapshot at which the shard would be
/// opened again needs a slot that cannot be made.
#[test]
fn a_shard_that_cannot_be_opened_again_ends_and_repeats_nothing() {
    alone(|| {
        let tokens = tempfile::tempdir().unwrap();
        put_tokens(tokens.path(), &[(76, 1)]);
        // After 40 samples the snapshot has 700,000 bytes, more than any slot.
        let dataset = Hoard { count: 79, bytes: 17_500, emptied_every: 1000 };
        let dataset = dataset.map_with(tokens.path().to_owned(), |tokens, (number, _), _| {
            if number == 76 && take_token(tokens, 76) {
                raise(Signal::SIGKILL)?;
            }
            // Number 75 needs a larger slot than the others.
            Ok(vec![number; if number == 75 { 62_500 } else { 1 }])
        });
        let builder = DataLoader::stream(dataset).snapshots();
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
