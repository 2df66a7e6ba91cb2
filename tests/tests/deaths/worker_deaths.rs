//! Workers that end in every way: the epoch is that of an undisturbed run, or the error says why it cannot be.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::Mutex,
    time::Duration,
};

use loader_core::{Builder, Error, ExitStatus, Warning, WorkerExit, kind::MapStyle, prelude::*};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{Noise, NoiseSample},
    digest, skipped,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::{
    resource::{Resource, setrlimit},
    signal::{Signal, raise},
};
use serde::{Deserialize, Serialize};

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
    /// It panics in an `extern "C"` function.
    PanicsInC,
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
            Self::PanicsInC => called_by_c(),
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

extern "C" fn called_by_c() {
    panic!("the only one");
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

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        if self.at.contains(&index) && File::create_new(self.folder.join(index.to_string())).is_ok() {
            self.end.happen();
        }
        Noise { count: self.count }.get(index, cx)
    }
}

pub(crate) fn noise(count: usize) -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count }).batch_size(4).shuffle(true)
}

/// The digest of an epoch without workers.
pub(crate) fn undisturbed(count: usize, epoch: u64) -> (u64, u64) {
    digest(noise(count).build().unwrap().epoch(epoch).unwrap()).unwrap()
}

/// Returns a function that is true for the status of a process that `signal` has ended.
fn by(signal: Signal) -> impl Fn(ExitStatus) -> bool {
    move |status| matches!(status, ExitStatus::Signal { signal: by, .. } if by == signal as i32)
}

/// Two samples end their workers with `end`, and `is_expected` is true for each worker's status; nothing changes.
fn assert_nothing_lost(end: End, is_expected: impl Fn(ExitStatus) -> bool) {
    static EXITS: Mutex<Vec<WorkerExit>> = Mutex::new(Vec::new());
    let before = Before::take();
    let folder = tempfile::tempdir().unwrap();
    let goes_on = matches!(end, End::ClosesEverything);
    let dataset = Doomed { count: 60, at: vec![7, 30], end, folder: folder.path().to_owned() };
    let builder = DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(2);
    let builder = builder.on_warning(|warning| {
        if let Warning::WorkerReplaced { exit, .. } = warning {
            EXITS.lock().unwrap().push(exit.clone());
        }
    });
    let mut batches = builder.build().unwrap().epoch(0).unwrap();
    let (mut content, mut longest) = (Digest::new(), Duration::ZERO);
    while let (Some(batch), took) = timed(|| batches.next()) {
        content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
        longest = longest.max(took);
    }
    assert_eq!((content.order(), content.content()), undisturbed(60, 0));
    let restarts = batches.report().restarts;
    // A worker without descriptors goes on with the slots that it has mapped, until its watchdog ends it.
    let is_right = if goes_on { restarts <= 2 } else { restarts == 2 };
    assert!(is_right, "{restarts} restarts");
    let exits = EXITS.lock().unwrap().clone();
    println!("{exits:?}; the longest wait took {longest:?}");
    assert!(exits.len() as u64 == restarts && exits.iter().all(|exit| is_expected(exit.status)));
    assert_soon(longest);
    drop((batches, folder));
    before.assert_nothing_left();
}

// PyTorch: 80
#[test]
fn killed() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGKILL as i32), by(Signal::SIGKILL)));
}

// PyTorch: 40, P-30
#[test]
fn ended_by_a_bad_access() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGSEGV as i32), by(Signal::SIGSEGV)));
}

#[test]
fn ended_by_a_bad_instruction() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGILL as i32), by(Signal::SIGILL)));
}

#[test]
fn ended_by_the_limit_on_processor_time() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGXCPU as i32), by(Signal::SIGXCPU)));
}

#[test]
fn asked_to_end() {
    alone(|| assert_nothing_lost(End::Signal(Signal::SIGTERM as i32), by(Signal::SIGTERM)));
}

#[test]
fn left_with_code_0() {
    alone(|| assert_nothing_lost(End::Exit(0), |status| status == ExitStatus::Code(0)));
}

#[test]
fn left_with_another_code() {
    alone(|| assert_nothing_lost(End::Exit(7), |status| status == ExitStatus::Code(7)));
}

#[test]
fn overflowed_its_stack() {
    // SIGABRT from Rust's guard, which is not up where a worker begins before `main`.
    alone(|| {
        assert_nothing_lost(End::Overflow, |status| {
            matches!(status, ExitStatus::Signal { signal: 6 | 11, .. })
        })
    });
}

#[test]
fn panicked_while_it_panicked() {
    alone(|| assert_nothing_lost(End::PanicsTwice, by(Signal::SIGABRT)));
}

#[test]
fn panicked_in_a_function_that_c_calls() {
    alone(|| assert_nothing_lost(End::PanicsInC, by(Signal::SIGABRT)));
}

#[test]
fn panics_that_abort_are_printed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["worker_deaths::panics_that_abort", "--exact", "--ignored", "--nocapture"]);
    let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for said in ["the first one", "the second one", "the only one"] {
        let count =
            text.lines().filter(|line| line.starts_with("[worker 0] ") && line.contains(said)).count();
        assert_eq!(count, 1, "{said}: {text}");
    }
    let places =
        text.lines().filter(|line| line.contains("panicked at") && line.contains("worker_deaths.rs:"));
    assert_eq!(places.count(), 3, "{text}");
}

#[test]
#[ignore = "for panics_that_abort_are_printed"]
fn panics_that_abort() {
    let _watchdog = Watchdog::start();
    for end in [End::PanicsTwice, End::PanicsInC] {
        let folder = tempfile::tempdir().unwrap();
        let dataset = Doomed { count: 8, at: vec![5], end, folder: folder.path().to_owned() };
        let builder = DataLoader::builder(dataset).batch_size(4).num_workers(1).on_warning(|_| {});
        assert!(builder.build().unwrap().iter().unwrap().all(|batch| batch.is_ok()));
    }
}

#[test]
fn closed_every_descriptor() {
    alone(|| assert_nothing_lost(End::ClosesEverything, |_| true));
}

#[test]
fn ran_into_its_limit_on_memory() {
    alone(|| assert_nothing_lost(End::Allocates, by(Signal::SIGABRT)));
}

// PyTorch: U07
#[test]
fn was_killed_for_want_of_memory() {
    alone(|| {
        let Some(group) = small_group() else {
            return skipped("no control group for memory can be made here");
        };
        assert_nothing_lost(End::OutOfMemory(group.clone()), by(Signal::SIGKILL));
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

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
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
            let batches = builder.on_warning(|_| {}).build().unwrap().epoch(0).unwrap();
            let mut plain = noise(60).build().unwrap().epoch(0).unwrap();
            let mut given_up = 0;
            for batch in batches {
                let expected = plain.next().unwrap().unwrap();
                match batch {
                    Ok(batch) => assert_eq!(batch.1.as_slice(), expected.1.as_slice()),
                    Err(error) => {
                        assert!(!error.ends_iteration(), "{error:?}");
                        let Error::BatchGivenUp { indices: lost, .. } = error else { panic!("{error:?}") };
                        let indices = &plain.last_batch().unwrap().indices;
                        assert!(lost == *indices && indices.contains(&21));
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
            (End::Signal(Signal::SIGBUS as i32), Some(Signal::SIGBUS)),
            (End::Exit(0), None),
            (End::Allocates, Some(Signal::SIGABRT)),
        ];
        for (end, signal) in ends {
            let builder = DataLoader::builder(Poisoned { count: 60, at: 21, end }).num_workers(2);
            let builder = builder.on_worker_death(OnWorkerDeath::Fail);
            let mut batches = builder.build().unwrap().iter().unwrap();
            let error = batches.by_ref().find_map(Result::err).unwrap();
            assert!(error.ends_iteration() && batches.next().is_none());
            let Error::WorkerExited { exit, doing, .. } = error else { panic!("{error:?}") };
            let is_expected =
                signal.map_or(exit.status == ExitStatus::Code(0), |signal| by(signal)(exit.status));
            assert!(is_expected && exit.cause.is_none(), "{exit:?}");
            assert_eq!(doing.index, 21);
        }
        before.assert_nothing_left();
    });
}
