//! The program that a fault happens to: 300 batches of 4 samples of 1 ms each, with 2 workers, everything else at its default.

use std::{
    fs, io,
    io::Write,
    os::unix::process::CommandExt,
    path::PathBuf,
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

use crate::list::{Child, End, Fault, InSample, State, Tune, What};

pub(crate) const BATCHES: usize = 300;
pub(crate) const BATCH: usize = 4;
/// The batch at which it happens.
pub(crate) const AT: usize = 100;

/// The file that a copy of a worker writes when it loads a sample.
pub(crate) const COPY: &str = "copy";
/// Set in a copy of a worker that returns from the sample that made it. Relaxed: a forked process has one thread, and inherits the value.
static IS_COPY: AtomicBool = AtomicBool::new(false);

/// What the program says when it has come to an end of the epoch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) workers: Vec<u32>,
    /// Since the fault.
    pub(crate) milliseconds: f64,
    /// Batches that came right, in their place.
    pub(crate) right: usize,
    pub(crate) error: Option<String>,
    pub(crate) wrong: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Samples {
    in_sample: Option<u8>,
    always: bool,
    /// Removed by whoever lets it happen once.
    life: PathBuf,
}

impl Dataset for Samples {
    type Sample = u64;

    fn len(&self) -> usize {
        BATCHES * BATCH
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<u64> {
        if IS_COPY.load(Ordering::Relaxed) {
            fs::write(self.life.with_file_name(COPY), "")?;
        }
        thread::sleep(Duration::from_millis(1));
        if index == AT * BATCH
            && let Some(number) = self.in_sample
            && (self.always || fs::remove_file(&self.life).is_ok())
        {
            IN_SAMPLE[number as usize].happen()?;
        }
        // A sample that a copy loads is wrong, so that main sees it where the copy writes into the worker's batches.
        Ok(if IS_COPY.load(Ordering::Relaxed) { u64::MAX } else { index as u64 })
    }
}

const IN_SAMPLE: [InSample; 10] = [
    InSample::Abort,
    InSample::Segfault,
    InSample::Exit,
    InSample::CloseAll,
    InSample::Allocate,
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
                // Rust's own handler lets the first one pass, to see whether it comes again.
                raise(Signal::SIGSEGV)?;
                raise(Signal::SIGSEGV)?;
            }
            Self::Exit => process::exit(0),
            Self::CloseAll => (3..4096).for_each(|fd| _ = nix::unistd::close(fd)),
            Self::Allocate => {
                let (_, most) = getrlimit(Resource::RLIMIT_AS)?;
                setrlimit(Resource::RLIMIT_AS, 1 << 30, most)?;
                std::hint::black_box(vec![1u8; 4 << 30]);
            }
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

#[expect(unsafe_code, reason = "what a sample that forks does is what is measured")]
fn fork_a_child(child: Child) -> anyhow::Result<()> {
    // SAFETY: the child has this thread alone. It calls nothing that another thread of the worker may hold a lock of: its watchdog holds
    // none, and the dataset starts no threads.
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

pub(crate) fn run(fault: &Fault) -> anyhow::Result<()> {
    let state = match fault.what {
        What::Drop(state) | What::Main(_, state) => Some(state),
        _ => None,
    };
    let (in_sample, always) = match (fault.what, state) {
        (What::Sample(what), _) => (Some(what), false),
        (What::Always(what), _) => (Some(what), true),
        (_, Some(State::Stuck)) => (Some(InSample::Hang), false),
        (_, Some(State::StuckAndDeaf)) => (Some(InSample::BlockSignalsAndHang), false),
        _ => (None, false),
    };
    let life = std::env::temp_dir().join("life");
    fs::write(&life, "")?;
    let place = |what| IN_SAMPLE.iter().position(|other| *other == what);
    let in_sample = in_sample.and_then(place).map(u8::try_from).transpose()?;
    let dataset = Samples { in_sample, always, life: life.clone() };
    let builder = DataLoader::builder(dataset).batch_size(BATCH).num_workers(2);
    let builder = match fault.tune {
        Tune::Defaults => builder,
        Tune::Timeout => builder.timeout(Duration::from_secs(3)),
        Tune::SampleTimeout => {
            builder.sample_timeout(Duration::from_secs(1)).on_bad_sample(OnBadSample::Error)
        }
        Tune::Hedge => builder.hedge(true),
    };
    let loader = builder.persistent_workers(fault.what == What::KillAtRest).build()?;
    if fault.what == What::HoldAll {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, 64, most)?;
    }
    let mut batches = loader.iter()?;
    let mut said =
        Said { workers: batches.worker_pids(), milliseconds: 0.0, right: 0, error: None, wrong: false };
    println!("{}", serde_json::to_string(&said.workers)?);
    let mut since = Instant::now();
    let mut held = Vec::new();
    let epochs = if fault.what == What::KillAtRest { 2 } else { 1 };
    for epoch in 0..epochs {
        if epoch == 1 {
            batches = loader.iter()?;
            said.right = 0;
        }
        let mut expected = 0;
        loop {
            if epoch == 0 && said.right == AT {
                since = happen(fault, batches.worker_pids(), &life)?;
                if let What::Drop(_) = fault.what {
                    drop(batches);
                    said.milliseconds = since.elapsed().as_secs_f64() * 1e3;
                    return say(&said);
                }
            }
            let Some(batch) = batches.next() else { break };
            match batch {
                Ok(batch) => {
                    let right = (expected..expected + BATCH as u64).eq(batch.as_slice().iter().copied());
                    said.wrong |= !right;
                    said.right += usize::from(right);
                    if fault.what == What::HoldAll {
                        held.push(batch);
                    }
                }
                Err(error) => {
                    said.error.get_or_insert(error.to_string());
                    if error.ends_iteration() || matches!(error, Error::TimedOut { .. }) {
                        break;
                    }
                }
            }
            expected += BATCH as u64;
        }
        if epoch + 1 < epochs {
            kill(pid(batches.worker_pids()[1]), Signal::SIGKILL)?;
            since = Instant::now();
        }
    }
    said.milliseconds = since.elapsed().as_secs_f64() * 1e3;
    drop(batches);
    say(&said)
}

/// Lets the fault happen that is not of a sample; gives when.
fn happen(fault: &Fault, workers: Vec<u32>, life: &std::path::Path) -> anyhow::Result<Instant> {
    let victim = pid(workers[1]);
    let state = |state| -> anyhow::Result<()> {
        match state {
            State::Working => {}
            State::Stopped => kill(victim, Signal::SIGSTOP)?,
            // The sample is loaded ahead: it has taken its life, or is about to.
            State::Stuck | State::StuckAndDeaf => {
                while life.exists() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(())
    };
    match fault.what {
        What::Kill | What::SigchldIgnored => kill(victim, Signal::SIGKILL)?,
        What::Stop => kill(victim, Signal::SIGSTOP)?,
        What::ReaperThread => {
            thread::spawn(|| {
                loop {
                    let _ = waitpid(None, Some(WaitPidFlag::WNOHANG));
                    thread::sleep(Duration::from_micros(100));
                }
            });
            thread::sleep(Duration::from_millis(5));
            kill(victim, Signal::SIGKILL)?;
        }
        What::Drop(wanted) => state(wanted)?,
        What::Main(end, wanted) => {
            state(wanted)?;
            // Read by whoever watches from outside, who then has the time of the end.
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

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}

fn say(said: &Said) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(said)?);
    Ok(io::stdout().flush()?)
}
