//! The program in which a fault happens. It reads 300 batches of 4 samples of 1 ms each with 2 workers; all
//! other options have their defaults.

use std::{
    fs, io,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, OnBadSample, prelude::*};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal, kill, raise},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use serde::{Deserialize, Serialize};

use crate::list::{Action, Child, End, Fault, InSample, Setting, State};

pub(crate) const BATCHES: usize = 300;
pub(crate) const BATCH_SIZE: usize = 4;
/// The batch at which the fault happens.
pub(crate) const FAULT_BATCH: usize = 100;

/// Name of the file that exists until a fault in a sample has happened.
pub(crate) const ARMED: &str = "armed";
/// Name of the file that a copy of a worker writes when it loads a sample.
pub(crate) const COPY: &str = "copy";
/// True in a forked copy of a worker that returns from the sample that forked it. Relaxed: a forked process
/// has one thread, and inherits the value.
static IS_COPY: AtomicBool = AtomicBool::new(false);

/// The line that the program prints at the end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) workers: Vec<u32>,
    /// Time since the fault.
    pub(crate) milliseconds: f64,
    /// Number of batches with the right content at the right position.
    pub(crate) right: usize,
    /// Text of the first error.
    pub(crate) error: Option<String>,
    /// True if a batch had wrong content.
    pub(crate) wrong: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Samples {
    /// The samples: their own indices. The workers get them in sealed memory, beside the dataset.
    values: Tensor<u64>,
    /// Index in [`IN_SAMPLE`] of what the sample does.
    in_sample: Option<u8>,
    /// True if it does so on every attempt, not only on the first one.
    always: bool,
    /// Path of [`ARMED`]. The worker that removes the file executes a fault that happens once.
    armed: PathBuf,
}

impl Samples {
    /// A dataset without a fault, or with one that happens once in a sample.
    pub(crate) fn new(in_sample: Option<InSample>) -> anyhow::Result<Self> {
        let code = |what| IN_SAMPLE.iter().position(|other| *other == what);
        let in_sample = in_sample.and_then(code).map(u8::try_from).transpose()?;
        let len = BATCHES * BATCH_SIZE;
        let values = Tensor::from_vec((0..len as u64).collect(), [len])?;
        Ok(Self { values, in_sample, always: false, armed: std::env::temp_dir().join(ARMED) })
    }
}

impl Dataset for Samples {
    type Sample = u64;

    fn len(&self) -> usize {
        BATCHES * BATCH_SIZE
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        if IS_COPY.load(Ordering::Relaxed) {
            fs::write(self.armed.with_file_name(COPY), "")?;
        }
        thread::sleep(Duration::from_millis(1));
        if index == FAULT_BATCH * BATCH_SIZE
            && let Some(number) = self.in_sample
            && (self.always || fs::remove_file(&self.armed).is_ok())
        {
            IN_SAMPLE[number as usize].happen()?;
        }
        // A copy returns a wrong value, so that main notices if the copy writes into a batch of the worker.
        Ok(if IS_COPY.load(Ordering::Relaxed) { u64::MAX } else { self.values.as_slice()[index] })
    }
}

const IN_SAMPLE: [InSample; 11] = [
    InSample::Abort,
    InSample::Segfault,
    InSample::Exit,
    InSample::CloseAll,
    InSample::Allocate,
    InSample::Fill,
    InSample::Hang,
    InSample::BlockSignalsAndHang,
    InSample::Fork(Child::ExitsAtOnce),
    InSample::Fork(Child::Sleeps),
    InSample::Fork(Child::Loads),
];

impl InSample {
    fn happen(self) -> anyhow::Result<()> {
        match self {
            Self::Abort => process::abort(),
            Self::Segfault => {
                // The first signal only resets Rust's handler of SIGSEGV; the second one kills the process.
                raise(Signal::SIGSEGV)?;
                raise(Signal::SIGSEGV)?;
            }
            Self::Exit => process::exit(0),
            Self::CloseAll => (3..4096).for_each(|fd| _ = nix::unistd::close(fd)),
            Self::Allocate => {
                let (_, max) = getrlimit(Resource::RLIMIT_AS)?;
                setrlimit(Resource::RLIMIT_AS, 1 << 30, max)?;
                std::hint::black_box(vec![1u8; 4 << 30]);
            }
            Self::Fill => drop(std::hint::black_box(vec![1u8; 1 << 30])),
            Self::Hang => thread::sleep(Duration::from_secs(30)),
            Self::BlockSignalsAndHang => {
                SigSet::all().thread_block()?;
                thread::sleep(Duration::from_secs(30));
            }
            Self::Fork(child) => fork_a_child(child)?,
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "this fault is a sample that forks")]
fn fork_a_child(child: Child) -> anyhow::Result<()> {
    // SAFETY: only this thread exists in the child, so the child must not need a lock that another thread of
    // the worker held at the fork. There is no such lock: the worker's watchdog holds none, and the dataset
    // starts no threads.
    let forked = unsafe { fork() }?;
    match (forked, child) {
        (ForkResult::Parent { .. }, _) => {}
        (ForkResult::Child, Child::Loads) => IS_COPY.store(true, Ordering::Relaxed),
        (ForkResult::Child, Child::ExitsAtOnce) => process::exit(0),
        (ForkResult::Child, Child::Sleeps) => {
            thread::sleep(Duration::from_secs(5));
            process::exit(0);
        }
    }
    Ok(())
}

/// Builds the loader of a run, whose dataset causes the fault if it happens in a sample.
fn build(fault: &Fault) -> anyhow::Result<DataLoader<Tensor<u64>>> {
    let state = match fault.action {
        Action::Drop(state) | Action::Main(_, state) => Some(state),
        _ => None,
    };
    let (in_sample, always) = match (fault.action, state) {
        (Action::Sample(in_sample), _) => (Some(in_sample), false),
        (Action::Always(in_sample), _) => (Some(in_sample), true),
        (_, Some(State::Stuck)) => (Some(InSample::Hang), false),
        (_, Some(State::StuckWithSignalsBlocked)) => (Some(InSample::BlockSignalsAndHang), false),
        _ => (None, false),
    };
    let dataset = Samples { always, ..Samples::new(in_sample)? };
    let builder = DataLoader::builder(dataset).batch_size(BATCH_SIZE).num_workers(2);
    let builder = match fault.setting {
        Setting::Defaults => builder,
        Setting::Timeout => builder.timeout(Duration::from_secs(3)),
        Setting::SampleTimeout => {
            builder.sample_timeout(Duration::from_secs(1)).on_bad_sample(OnBadSample::Error)
        }
        Setting::Hedge => builder.hedge(true),
    };
    Ok(builder.persistent_workers(fault.action == Action::KillBetweenEpochs).build()?)
}

pub(crate) fn run(fault: &Fault) -> anyhow::Result<()> {
    let armed = std::env::temp_dir().join(ARMED);
    fs::write(&armed, "")?;
    let loader = build(fault)?;
    if fault.action == Action::HoldAll {
        let (_, max) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, 64, max)?;
    }
    let mut batches = loader.iter()?;
    let mut report =
        Report { workers: batches.worker_pids(), milliseconds: 0.0, right: 0, error: None, wrong: false };
    println!("{}", serde_json::to_string(&report.workers)?);
    let mut since = Instant::now();
    let mut held = Vec::new();
    let epochs = if fault.action == Action::KillBetweenEpochs { 2 } else { 1 };
    for epoch in 0..epochs {
        if epoch == 1 {
            batches = loader.iter()?;
            report.right = 0;
        }
        let mut expected = 0;
        loop {
            // Not `report.right`, which stays the same after an error: the fault happens once.
            if epoch == 0 && expected == (FAULT_BATCH * BATCH_SIZE) as u64 {
                since = cause(fault, batches.worker_pids(), &armed)?;
                if let Action::Drop(_) = fault.action {
                    drop(batches);
                    report.milliseconds = since.elapsed().as_secs_f64() * 1e3;
                    return print(&report);
                }
            }
            let Some(batch) = batches.next() else { break };
            match batch {
                Ok(batch) => {
                    let right = (expected..expected + BATCH_SIZE as u64).eq(batch.as_slice().iter().copied());
                    report.wrong |= !right;
                    report.right += usize::from(right);
                    if fault.action == Action::HoldAll {
                        held.push(batch);
                    }
                }
                Err(error) => {
                    report.error.get_or_insert(error.to_string());
                    if error.ends_iteration() || matches!(error, Error::TimedOut { .. }) {
                        break;
                    }
                }
            }
            expected += BATCH_SIZE as u64;
        }
        if epoch + 1 < epochs {
            kill(pid(batches.worker_pids()[1]), Signal::SIGKILL)?;
            since = Instant::now();
        }
    }
    report.milliseconds = since.elapsed().as_secs_f64() * 1e3;
    drop(batches);
    print(&report)
}

/// Causes a fault that does not happen in a sample. Returns the time of the fault.
fn cause(fault: &Fault, workers: Vec<u32>, armed: &Path) -> anyhow::Result<Instant> {
    let victim = pid(workers[1]);
    let state = |state| -> anyhow::Result<()> {
        match state {
            State::Working => {}
            State::Stopped => kill(victim, Signal::SIGSTOP)?,
            // The worker loads ahead: it has reached the sample in which it gets stuck, or soon will.
            State::Stuck | State::StuckWithSignalsBlocked => {
                while armed.exists() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(())
    };
    match fault.action {
        Action::Kill | Action::SigchldIgnored => kill(victim, Signal::SIGKILL)?,
        Action::Stop => kill(victim, Signal::SIGSTOP)?,
        Action::ReaperThread => {
            thread::spawn(|| {
                loop {
                    let _ = waitpid(None, Some(WaitPidFlag::WNOHANG));
                    thread::sleep(Duration::from_micros(100));
                }
            });
            thread::sleep(Duration::from_millis(5));
            kill(victim, Signal::SIGKILL)?;
        }
        Action::Drop(wanted) => state(wanted)?,
        Action::Main(end, wanted) => {
            state(wanted)?;
            // Tells the watching process that main ends now.
            println!("now");
            io::stdout().flush()?;
            match end {
                End::Kill => raise(Signal::SIGKILL)?,
                End::Abort => process::abort(),
                End::Exit => process::exit(3),
                End::Exec => return Err(Command::new("sleep").arg("3").exec().into()),
            }
        }
        _ => {}
    }
    Ok(Instant::now())
}

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}

fn print(report: &Report) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(io::stdout().flush()?)
}
