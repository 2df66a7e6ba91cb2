//! How a worker ended, and what it was doing.

use std::{fmt, time::Duration};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::ExitStatus,
    violation::ProtocolViolation,
};
use nix::sys::signal::Signal;

/// How a worker's process ended: its exit status, and the cause if the loader knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerExit {
    /// The exit status of the process.
    pub status: ExitStatus,
    /// Why it ended. `None` if the loader did not end it and found no cause elsewhere.
    pub cause: Option<ExitCause>,
}

/// Why a worker's process ended, if the loader knows: main killed it, the worker ended by itself, or the
/// kernel killed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExitCause {
    /// Main killed it, because it broke the protocol.
    #[error("it broke the protocol ({0})")]
    Misbehaved(ProtocolViolation),
    /// Main killed it, because a sample took longer than `sample_timeout`.
    #[error("a sample took longer than sample_timeout")]
    SampleTimedOut,
    /// Main killed it, because it made no progress outside of samples (see
    /// [`sample_timeout`](crate::Builder::sample_timeout)).
    #[error("it had made no progress for {elapsed:.1?} (sample_timeout)")]
    NoProgress {
        /// Time since its last progress.
        elapsed: Duration,
    },
    /// Main killed it, because a signal such as SIGSTOP had stopped it while it had work.
    #[error("it had been stopped for {elapsed:.1?}")]
    Stopped {
        /// Time since it was stopped.
        elapsed: Duration,
    },
    /// Main killed it, because a debugger had stopped it while it had work.
    #[error("it had been stopped by a debugger for {elapsed:.1?}")]
    Traced {
        /// Time since it was stopped.
        elapsed: Duration,
    },
    /// Main killed it, because its main thread had ended while it had work.
    #[error("it had been without its main thread for {elapsed:.1?}")]
    MainThreadEnded {
        /// Time since its main thread ended.
        elapsed: Duration,
    },
    /// Main killed it, because it had closed its connection to main while it had work, as a process does that executes
    /// another program.
    #[error("it had closed its connection to main, as a process does that executes another program")]
    LifelineClosed,
    /// It ended by itself, because code of the loader in it had failed, for the reason that the text gives: a defect of
    /// the loader, or a problem of the system.
    #[error("the loader's own code in it failed: {0}")]
    LoaderFailed(String),
    /// Main killed it, because it was on a batch for too long that another worker was loading or had loaded
    /// (see [`hedge`](crate::Builder::hedge)).
    #[error("it was on a batch for too long that another worker has")]
    LateAttempt,
    /// It ended by itself, because it exceeded `worker_memory_limit`.
    #[error("it exceeded worker_memory_limit")]
    MemoryLimitExceeded,
    /// SIGKILL ended it, and the kernel's OOM killer has ended a process since main last checked.
    #[error("out of memory (the kernel's OOM killer ended a process)")]
    OutOfMemory,
}

/// Shows how the process ended, such as "killed by SIGSEGV (11)", or why.
impl fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, cause } = self;
        match cause {
            None => write!(f, "{status}"),
            Some(cause @ ExitCause::OutOfMemory) => write!(f, "{status}, {cause}"),
            Some(cause @ (ExitCause::MemoryLimitExceeded | ExitCause::LoaderFailed(_))) => {
                write!(f, "ended, since {cause}")
            }
            Some(cause) => write!(f, "was killed, since {cause}"),
        }
    }
}

impl WorkerExit {
    /// True if the loader replaces workers in this way without a failure: the worker had become too large, or another
    /// worker had its batch.
    pub(crate) fn is_routine(&self) -> bool {
        matches!(self.cause, Some(ExitCause::MemoryLimitExceeded | ExitCause::LateAttempt))
    }

    /// True if SIGKILL ended the process.
    pub(crate) fn is_sigkill(&self) -> bool {
        matches!(self.status, ExitStatus::Signal { signal, .. } if signal == Signal::SIGKILL as i32)
    }

    /// Returns what the user can do, as the end of a message; empty if the loader knows nothing.
    pub(crate) fn advice(&self) -> &'static str {
        match &self.cause {
            Some(ExitCause::OutOfMemory) => "; use fewer workers or smaller batches",
            None if self.is_sigkill() => {
                "; if no other process sent this SIGKILL, the kernel sent it for lack of memory: use fewer \
                 workers or smaller batches"
            }
            _ => "",
        }
    }
}

/// What a worker is doing, or was doing when it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerActivity {
    /// Number of the worker.
    pub worker: usize,
    /// Its process id.
    pub pid: u32,
    /// Its state.
    pub state: WorkerState,
    /// Number of the batch on which it works. Meaningless if it is starting or idle.
    pub batch: u64,
    /// Index of the sample that it loads. For an iterable dataset, its position in the shard. Meaningful only
    /// if `state` is [`WorkerState::Fetching`].
    pub index: usize,
    /// Time since it entered this state or began this sample.
    pub age: Duration,
}

impl WorkerActivity {
    pub(crate) fn new(worker: usize, pid: u32, snapshot: &WorkerSnapshot) -> Self {
        Self {
            worker,
            pid,
            state: snapshot.state,
            batch: snapshot.task,
            index: usize::try_from(snapshot.sample).unwrap_or(usize::MAX),
            age: snapshot.age,
        }
    }
}

impl fmt::Display for WorkerActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, pid, state, batch, index, .. } = self;
        // Two decimals: the clock that measures it has a resolution of some milliseconds.
        let age = format_args!("{:.2} s", self.age.as_secs_f64()).to_string();
        match state {
            WorkerState::Fetching => {
                write!(f, "worker {worker} (pid {pid}), {state} sample {index} of batch {batch} for {age}")
            }
            WorkerState::FetchingMany => {
                write!(
                    f,
                    "worker {worker} (pid {pid}), fetching all samples of batch {batch} at once for {age}"
                )
            }
            WorkerState::Collating | WorkerState::Sending => {
                write!(f, "worker {worker} (pid {pid}), {state} batch {batch} for {age}")
            }
            WorkerState::Starting => {
                let doing = "it loads libraries, imports a script, or opens the dataset";
                write!(f, "worker {worker} (pid {pid}), {state} for {age} ({doing})")
            }
            _ => write!(f, "worker {worker} (pid {pid}), {state} for {age}"),
        }
    }
}

/// Returns the text that names the worker that ended, how it ended, and what it was doing.
pub(crate) fn ended(exit: &WorkerExit, doing: &WorkerActivity) -> String {
    let WorkerActivity { worker, pid, batch, index, state, .. } = doing;
    let text = format!("worker {worker} (pid {pid}) {exit}");
    match state {
        WorkerState::Starting => text + " before it was ready",
        WorkerState::Idle => text,
        WorkerState::FetchingMany => format!("{text} while fetching all samples of batch {batch} at once"),
        WorkerState::Collating | WorkerState::Sending => format!("{text} while {state} batch {batch}"),
        _ => format!("{text} while {state} sample {index} of batch {batch}"),
    }
}
