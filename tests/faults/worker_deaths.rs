//! Workers that end in every way and at every moment: the epoch is that of an undisturbed run, or the error says why it cannot be.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use loader_core::{Builder, Error, MapStyle, Warning, collate::Batch, fetch::DatasetKind, prelude::*};
use loader_tests::{
    datasets::{Counting, Fault, Large, Mortal, Noise, NoiseSample, Slow},
    digest, processes,
    traces::Before,
};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill, raise},
    },
    unistd::{Pid, Uid, setuid},
};
use serde::{Deserialize, Serialize};

use crate::{alone::alone, assert_soon, timed};

/// How a worker ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum End {
    /// By a signal that it sends itself.
    Signal(i32),
    /// By leaving.
    Exit(i32),
    /// It overflows its stack.
    Overflow,
    /// A destructor panics while it panics.
    PanicsTwice,
    /// It closes descriptors that are not its own, the loader's among them.
    ClosesEverything,
    /// An allocation fails.
    Allocates,
    /// The system has no memory left for the control group of this folder.
    OutOfMemory(PathBuf),
}

impl End {
    fn happen(&self) {
        match self {
            // Rust's own handler lets the first SIGSEGV pass.
            Self::Signal(signal) => (0..2).for_each(|_| raise(Signal::try_from(*signal).unwrap()).unwrap()),
            Self::Exit(code) => process::exit(*code),
            Self::Overflow => drop(std::hint::black_box(overflow(0))),
            Self::PanicsTwice => {
                let _second = PanicsWhenDropped;
                panic!("the first one");
            }
            Self::ClosesEverything => (3..256).for_each(|number: i32| _ = nix::unistd::close(number)),
            Self::Allocates => {
                setrlimit(Resource::RLIMIT_AS, 1 << 28, 1 << 28).unwrap();
                drop(std::hint::black_box(vec![1u8; 1 << 30]));
            }
            Self::OutOfMemory(group) => {
                fs::write(group.join("cgroup.procs"), process::id().to_string()).unwrap();
                drop(std::hint::black_box(vec![1u8; 1 << 30]));
            }
        }
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the second one");
    }
}

#[expect(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let space = std::hint::black_box([depth; 64]);
    overflow(depth + 1) + space[0]
}

/// [`Noise`], and some samples end their worker, each once.
#[derive(Debug, Serialize, Deserialize)]
struct Doomed {
    count: usize,
    at: Vec<usize>,
    end: End,
    /// Where it is noted that they have.
    folder: PathBuf,
}

impl Dataset for Doomed {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<NoiseSample> {
        if self.at.contains(&index) && File::create_new(self.folder.join(index.to_string())).is_ok() {
            self.end.happen();
        }
        Noise { count: self.count }.get(index, cx)
    }
}

fn noise(count: usize) -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count }).batch_size(4).shuffle(true)
}

/// The digest of an epoch without workers.
fn undisturbed(count: usize, epoch: u64) -> (u64, u64) {
    digest(noise(count).build().unwrap().epoch(epoch).unwrap()).unwrap()
}

/// Two samples end their workers with `end`, which the warnings call `reason`; nothing changes.
fn assert_nothing_lost(end: End, reason: &str) {
    static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let before = Before::take();
    let folder = tempfile::tempdir().unwrap();
    let dataset = Doomed { count: 60, at: vec![7, 30], end, folder: folder.path().to_owned() };
    let builder = DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(2);
    let builder = builder.on_warning(|warning| {
        if let Warning::WorkerReplaced { reason, .. } = warning {
            REASONS.lock().unwrap().push(reason.clone());
        }
    });
    let mut batches = builder.build().unwrap().epoch(0).unwrap();
    let (mut content, mut longest) = (Digest::new(), Duration::ZERO);
    while let (Some(batch), took) = timed(|| batches.next()) {
        content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
        longest = longest.max(took);
    }
    assert_eq!((content.order(), content.content()), undisturbed(60, 0));
    assert_eq!(batches.report().restarts, 2);
    let reasons = REASONS.lock().unwrap().clone();
    println!("{reasons:?}; the longest wait took {longest:?}");
    assert!(reasons.len() == 2 && reasons.iter().all(|text| text.contains(reason)));
    assert_soon(longest);
    drop((batches, folder));
    before.assert_nothing_left();
}

#[test]
fn killed() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGKILL as i32), "killed by SIGKILL (9)"));
}

#[test]
fn ended_by_a_bad_access() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGSEGV as i32), "killed by SIGSEGV (11)"));
}

#[test]
fn ended_by_a_bad_instruction() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGILL as i32), "killed by SIGILL (4)"));
}

#[test]
fn ended_by_the_limit_on_processor_time() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGXCPU as i32), "killed by SIGXCPU (24)"));
}

#[test]
fn asked_to_end() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGTERM as i32), "killed by SIGTERM (15)"));
}

#[test]
fn left_with_code_0() {
    alone(|| assert_nothing_lost(End::Exit(0), "exited with code 0"));
}

#[test]
fn left_with_another_code() {
    alone(|| assert_nothing_lost(End::Exit(7), "exited with code 7"));
}

#[test]
fn overflowed_its_stack() {
    // SIGABRT from Rust's guard, which is not up where a worker begins before `main`.
    alone(|| assert_nothing_lost(End::Overflow, "killed by SIG"));
}

#[test]
fn panicked_while_it_panicked() {
    alone(|| assert_nothing_lost(End::PanicsTwice, "killed by SIGABRT (6)"));
}

#[test]
fn closed_every_descriptor() {
    alone(|| assert_nothing_lost(End::ClosesEverything, ""));
}

#[test]
fn ran_into_its_limit_on_memory() {
    alone(|| assert_nothing_lost(End::Allocates, "killed by SIGABRT (6)"));
}

#[test]
fn was_killed_for_want_of_memory() {
    alone(|| {
        let Some(group) = small_group() else {
            return println!("skipped: no control group for memory can be made here");
        };
        assert_nothing_lost(End::OutOfMemory(group.clone()), "killed by SIGKILL (9)");
        fs::remove_dir(group).unwrap();
    });
}

/// A control group with little memory, if this user may make one.
fn small_group() -> Option<PathBuf> {
    let name = format!("loader-faults-{}", process::id());
    let limits = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    limits.into_iter().find_map(|(groups, limit)| {
        let group = Path::new(groups).join(&name);
        fs::create_dir(&group).ok()?;
        // Not with `create`: what a mere folder holds is no limit.
        let limited = File::options().write(true).open(group.join(limit));
        match limited.and_then(|mut file| file.write_all(b"64M")) {
            Ok(()) => Some(group),
            Err(_) => fs::remove_dir(group).map_or(None, |()| None),
        }
    })
}

/// Sends SIGKILL to a process, which may be gone.
pub(crate) fn shoot(pid: u32) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
}

/// Ends a hunt, also when what it is for panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills `most` workers of this process, one every `pause`, while `action` runs.
pub(crate) fn hunting<T>(pause: Duration, most: usize, action: impl FnOnce() -> T) -> (T, usize) {
    let (over, killed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_worker = |pid: &u32| {
        processes::is_running(*pid) && processes::command_line(*pid).starts_with("loader-worker-")
    };
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && killed.load(Ordering::Relaxed) < most {
                let workers: Vec<u32> =
                    processes::children(process::id()).into_iter().filter(is_worker).collect();
                let kills = killed.load(Ordering::Relaxed);
                if let Some(&pid) = workers.get(kills % workers.len().max(1)) {
                    shoot(pid);
                    killed.store(kills + 1, Ordering::Relaxed);
                }
                thread::sleep(pause);
            }
        });
        let _over = Over(&over);
        action()
    });
    println!("{killed:?} workers were killed");
    (outcome, killed.into_inner())
}

/// All batches of two epochs while workers are killed again and again, and of an undisturbed run.
fn assert_same_when_hunted<K, C, W, B>(
    build: impl Fn() -> Builder<K, C, W>,
    finish: impl Fn(Builder<K, C, W>) -> Result<DataLoader<B>, Error>,
) where
    K: DatasetKind,
    B: Batch,
{
    let load = |loader: &DataLoader<B>| [0, 1].map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap());
    let expected = load(&finish(build()).unwrap());
    for stays in [false, true] {
        let builder = build().max_worker_deaths(1000).persistent_workers(stays);
        let loader = finish(builder.on_warning(|_| {})).unwrap();
        let (digests, kills) = hunting(Duration::from_millis(7), 30, || load(&loader));
        assert_eq!(digests, expected, "stays: {stays}");
        assert!(kills > 3);
    }
}

#[test]
fn again_and_again_with_small_batches() {
    alone(|| {
        let before = Before::take();
        assert_same_when_hunted(|| noise(3000).num_workers(2), |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_batches_that_need_larger_slots() {
    alone(|| {
        let before = Before::take();
        let build = || DataLoader::builder(Large { count: 400, bytes: 300_000 }).batch_size(2).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_long_lists_of_indices() {
    alone(|| {
        let before = Before::take();
        let build =
            || DataLoader::builder(Noise { count: 14_000 }).batch_size(700).shuffle(true).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_streams() {
    alone(|| {
        let before = Before::take();
        let build = || DataLoader::stream(Counting { count: 4000 }).batch_size(4).shards(5).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        let counting = || Mortal { count: 1500, fault: Fault::Hang, lives: "/nowhere".into() };
        let build = || DataLoader::stream(counting()).snapshots().batch_size(4).shards(3).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_batches_in_any_order_that_are_held() {
    alone(|| {
        let before = Before::take();
        let builder = DataLoader::builder(Large { count: 200, bytes: 50_000 }).num_workers(2).in_order(false);
        let loader = builder.max_worker_deaths(1000).on_warning(|_| {}).build().unwrap();
        let (mut held, _) = hunting(Duration::from_millis(5), 20, || {
            loader.iter().unwrap().map(Result::unwrap).collect::<Vec<Tensor<u8>>>()
        });
        held.sort_unstable_by_key(|batch| batch.as_slice()[0]);
        assert_eq!(held.len(), 200);
        for (index, batch) in held.iter().enumerate() {
            assert!(batch.as_slice().iter().all(|&byte| byte == index as u8), "batch {index}");
        }
        drop((held, loader));
        before.assert_nothing_left();
    });
}

#[test]
fn while_they_start() {
    alone(|| {
        let before = Before::take();
        let expected = undisturbed(40, 0);
        let loader = noise(40).num_workers(2).on_warning(|_| {}).build().unwrap();
        let (mut right, mut refused) = (0, 0);
        // Seldom enough that some come through.
        for pause in [200, 1000, 3000, 9000] {
            let rounds = || {
                for _ in 0..10 {
                    let (outcome, took) = timed(|| loader.epoch(0).and_then(digest));
                    assert_soon(took);
                    match outcome {
                        Ok(digest) => {
                            assert_eq!(digest, expected);
                            right += 1;
                        }
                        Err(Error::WorkerNotStarted { .. } | Error::WorkerExited { .. }) => refused += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            };
            hunting(Duration::from_micros(pause), 10_000, rounds);
        }
        println!("{right} epochs are right, {refused} were refused");
        assert!(right > 0);
        assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn at_the_sentinel() {
    alone(|| {
        let before = Before::take();
        for (stays, in_order) in [(false, true), (false, false), (true, true)] {
            let dataset = Slow { count: 20, delay: Duration::ZERO };
            let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(stays);
            let loader = builder.in_order(in_order).on_warning(|_| {}).build().unwrap();
            for round in 0..10 {
                let mut batches = loader.iter().unwrap();
                for _ in 0..20 {
                    batches.next().unwrap().unwrap();
                }
                thread::sleep(Duration::from_micros(200 * round));
                batches.worker_pids().into_iter().for_each(shoot);
                let (end, took) = timed(|| batches.next());
                assert!(end.is_none(), "{end:?}");
                assert_soon(took);
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn all_at_once() {
    alone(|| {
        let before = Before::take();
        let mut batches = noise(2000).num_workers(4).on_warning(|_| {}).build().unwrap().epoch(0).unwrap();
        let mut content = Digest::new();
        let mut number = 0;
        while let Some(batch) = batches.next() {
            content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
            if number % 150 == 0 && number < 450 {
                let pids = batches.worker_pids();
                pids.iter().for_each(|&pid| shoot(pid));
                // Nobody is left to load anything.
                processes::wait_until_gone(&pids, Duration::from_secs(5)).unwrap();
            }
            number += 1;
        }
        assert_eq!((content.order(), content.content()), undisturbed(2000, 0));
        assert_eq!(batches.report().restarts, 12);
        drop(batches);
        before.assert_nothing_left();
    });
}

#[test]
fn the_same_one_too_often() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
        let builder = DataLoader::builder(dataset).num_workers(2).max_worker_deaths(4).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        let (mut last, mut next) = (0, 0);
        let error = loop {
            let pid = batches.worker_pids()[1];
            if pid != last {
                // Let it load something, so that it is no batch's fault.
                for _ in 0..5 {
                    assert_eq!(batches.next().unwrap().unwrap().as_slice(), [next]);
                    next += 1;
                }
                shoot(pid);
                last = pid;
            }
            match batches.next().unwrap() {
                Ok(batch) => assert_eq!(batch.as_slice(), [next]),
                Err(error) => break error,
            }
            next += 1;
        };
        let Error::WorkerExited { worker: 1, deaths: 5, given_up: None, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(error.ends_iteration() && batches.next().is_none());
        assert!(error.to_string().contains("it has died 5 times in this epoch"), "{error}");
        drop(batches);
        before.assert_nothing_left();
    });
}

/// The same sample each time, in every epoch and worker.
#[derive(Debug, Serialize, Deserialize)]
struct Poisoned {
    count: usize,
    at: usize,
    end: End,
}

impl Dataset for Poisoned {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<NoiseSample> {
        if index == self.at {
            self.end.happen();
        }
        Noise { count: self.count }.get(index, cx)
    }
}

#[test]
fn always_at_the_same_sample() {
    alone(|| {
        let before = Before::take();
        let ends = [End::Signal(Signal::SIGABRT as i32), End::Signal(Signal::SIGKILL as i32), End::Exit(1)];
        for end in ends {
            let dataset = Poisoned { count: 60, at: 21, end: end.clone() };
            let builder = DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(2);
            let mut batches = builder.on_warning(|_| {}).build().unwrap().epoch(0).unwrap();
            let mut plain = noise(60).build().unwrap().epoch(0).unwrap();
            let mut given_up = 0;
            while let Some(batch) = batches.next() {
                let expected = plain.next().unwrap().unwrap();
                match batch {
                    Ok(batch) => assert_eq!(batch.1.as_slice(), expected.1.as_slice()),
                    Err(error) => {
                        assert!(!error.ends_iteration(), "{error:?}");
                        let Error::WorkerExited { given_up: Some(lost), .. } = error else {
                            panic!("{error:?}");
                        };
                        let indices = &plain.last_batch().unwrap().indices;
                        assert!(lost.indices == *indices && indices.contains(&21));
                        given_up += 1;
                    }
                }
            }
            assert!(plain.next().is_none());
            assert_eq!(given_up, 1, "{end:?}");
        }
        before.assert_nothing_left();
    });
}

#[test]
fn each_end_is_told_without_restarts() {
    alone(|| {
        let before = Before::take();
        let ends = [
            (End::Signal(Signal::SIGBUS as i32), "killed by SIGBUS"),
            (End::Exit(0), "exited with code 0"),
            (End::Allocates, "killed by SIGABRT"),
        ];
        for (end, reason) in ends {
            let builder = DataLoader::builder(Poisoned { count: 60, at: 21, end }).num_workers(2);
            let builder = builder.on_worker_death(OnWorkerDeath::Fail);
            let mut batches = builder.build().unwrap().iter().unwrap();
            let error = batches.by_ref().find_map(Result::err).unwrap();
            assert!(error.ends_iteration() && batches.next().is_none());
            assert!(error.to_string().contains(reason), "{error}");
            assert!(error.to_string().contains("sample 21"), "{error}");
        }
        before.assert_nothing_left();
    });
}

/// Lets a worker die after `spoil`, which makes it impossible to start another one.
fn assert_told_that_none_can_be_started(spoil: impl FnOnce(), way_out: &str) {
    let before = Before::take();
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
    let mut batches =
        DataLoader::builder(dataset).num_workers(2).on_warning(|_| {}).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    spoil();
    shoot(batches.worker_pids()[0]);
    let (error, took) = timed(|| batches.by_ref().find_map(Result::err).unwrap());
    println!("{error} after {took:?}");
    assert_soon(took);
    assert!(error.ends_iteration() && batches.next().is_none());
    assert!(error.to_string().contains(way_out), "{error}");
    drop(batches);
    before.assert_nothing_left();
}

#[test]
fn and_no_descriptor_is_left_for_another() {
    alone(|| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let spoil = || {
            let used = processes::open_descriptors() as u64;
            setrlimit(Resource::RLIMIT_NOFILE, used, hard).unwrap();
        };
        assert_told_that_none_can_be_started(spoil, "`ulimit -n`");
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    });
}

#[test]
fn and_no_thread_is_left_to_start_another() {
    alone(|| {
        // Root has no such limit, and nobody else is the user that it becomes here.
        if setuid(Uid::from_raw(54_322)).is_err() {
            return println!("skipped: only root can become a user who has no other processes");
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
        let spoil = || setrlimit(Resource::RLIMIT_NPROC, 0, hard).unwrap();
        assert_told_that_none_can_be_started(spoil, "`ulimit -u`");
    });
}

#[test]
fn and_the_folder_for_temporary_files_is_gone() {
    alone(|| {
        let spoil = || fs::remove_dir(std::env::temp_dir()).unwrap();
        assert_told_that_none_can_be_started(spoil, "set TMPDIR to a folder that exists");
    });
}

/// Opens the dataset in workers that may have few files open.
#[derive(Debug, Serialize, Deserialize)]
struct FewFiles;

impl Dataset for FewFiles {
    type Sample = u64;

    fn len(&self) -> usize {
        100
    }

    fn setup(&mut self, _cx: &mut Context) -> anyhow::Result<()> {
        // All that there are have higher numbers.
        Ok(setrlimit(Resource::RLIMIT_NOFILE, 3, 3)?)
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

#[test]
fn without_descriptors_for_its_slots() {
    alone(|| {
        let before = Before::take();
        let loader = DataLoader::builder(FewFiles).num_workers(2).on_warning(|_| {}).build().unwrap();
        let (errors, took) = timed(|| loader.iter().unwrap().filter_map(Result::err).collect::<Vec<_>>());
        println!("{errors:?} after {took:?}");
        assert_soon(took);
        assert!(matches!(errors[..], [Error::WorkerExited { .. }]), "{errors:?}");
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn and_the_iterator_is_dropped_before_another_has_come() {
    alone(|| {
        let before = Before::take();
        let loader = noise(4000).num_workers(2).on_warning(|_| {}).build().unwrap();
        for round in 0..30 {
            let mut batches = loader.iter().unwrap();
            batches.next().unwrap().unwrap();
            batches.worker_pids().into_iter().for_each(shoot);
            let started = Instant::now();
            // Long enough that it is noticed, and another one is on its way.
            while started.elapsed() < Duration::from_micros(400 * round) {
                batches.next().unwrap().unwrap();
            }
            let ((), took) = timed(|| drop(batches));
            assert_soon(took);
        }
        drop(loader);
        before.assert_nothing_left();
    });
}
