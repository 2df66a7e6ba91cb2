//! Fault points: steps of the protocol at which a test can kill a process.
//!
//! Without the feature `fault-points`, they do nothing. With the feature and `FAULT_POINT=worker-send:3` in
//! the environment, a process that reaches that step for the third time removes the file that `FAULT_TOKEN`
//! names, and kills itself. If the file is gone, the process continues: so only one process dies, and its
//! replacement does not. With `FAULT_PAUSE=500`, the process sleeps for 500 ms instead; with `FAULT_PANIC`, it panics.
//!
//! Alternative considered: a crate for fail points. Rejected because its actions cannot kill a process, and
//! because it cannot count across processes.

/// A step of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A worker has read a command and not begun it.
    WorkerReceive,
    /// A worker is about to ask the dataset for the first sample of a batch.
    WorkerFetch,
    /// A worker has the samples of a batch and is about to collate them.
    WorkerCollate,
    /// A worker is about to encode a batch into its slot.
    WorkerWrite,
    /// A worker has encoded a batch into its slot and is about to send `Done`.
    WorkerSend,
    /// A worker has answered a task.
    WorkerAcknowledge,
    /// A worker has found main asleep and is about to wake it.
    WorkerWake,
    /// A worker has begun a task, and is about to give back one of its two slots for the task.
    WorkerGiveBack,
    /// Main is about to give a task to a worker.
    MainDispatch,
    /// Main has read an event.
    MainReceive,
    /// Main is about to return a batch to the user.
    MainReturn,
    /// Main is about to end its workers.
    MainDrop,
}

impl Point {
    /// The steps that a worker takes for every batch, in their order.
    pub const OF_WORKER: [Self; 6] = [
        Self::WorkerReceive,
        Self::WorkerFetch,
        Self::WorkerCollate,
        Self::WorkerWrite,
        Self::WorkerSend,
        Self::WorkerAcknowledge,
    ];
    /// The steps of main, in their order.
    pub const OF_MAIN: [Self; 4] = [Self::MainDispatch, Self::MainReceive, Self::MainReturn, Self::MainDrop];

    /// Returns the name of the step in `FAULT_POINT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WorkerReceive => "worker-receive",
            Self::WorkerFetch => "worker-fetch",
            Self::WorkerCollate => "worker-collate",
            Self::WorkerWrite => "worker-write",
            Self::WorkerSend => "worker-send",
            Self::WorkerAcknowledge => "worker-acknowledge",
            Self::WorkerWake => "worker-wake",
            Self::WorkerGiveBack => "worker-give-back",
            Self::MainDispatch => "main-dispatch",
            Self::MainReceive => "main-receive",
            Self::MainReturn => "main-return",
            Self::MainDrop => "main-drop",
        }
    }
}

/// Marks the line of code where a process reaches `point`.
#[inline]
pub fn point(point: Point) {
    #[cfg(feature = "fault-points")]
    armed::reach(point);
    #[cfg(not(feature = "fault-points"))]
    let _ = point;
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::{
        env, fs,
        path::PathBuf,
        sync::{
            LazyLock,
            atomic::{AtomicU64, Ordering},
        },
        thread,
        time::Duration,
    };

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    struct Fault {
        name: String,
        /// The process dies when this count falls from 1 to 0.
        left: AtomicU64,
        /// The file that a process must remove before it dies, so that only one does.
        token: PathBuf,
        /// How long the process sleeps instead of dying, if `FAULT_PAUSE` is set.
        pause: Option<Duration>,
        panics: bool,
    }

    static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let text = env::var("FAULT_POINT").ok()?;
        let (name, count) = text.split_once(':')?;
        let left = AtomicU64::new(count.parse().ok()?);
        let pause = env::var("FAULT_PAUSE").ok().and_then(|pause| pause.parse().ok());
        let pause = pause.map(Duration::from_millis);
        let (token, panics) = (env::var_os("FAULT_TOKEN")?.into(), env::var_os("FAULT_PANIC").is_some());
        Some(Fault { name: name.to_owned(), left, token, pause, panics })
    });

    pub(super) fn reach(point: Point) {
        let Some(fault) = &*FAULT else { return };
        // Relaxed: only the count matters.
        if fault.name == point.name()
            && fault.left.fetch_sub(1, Ordering::Relaxed) == 1
            && fs::remove_file(&fault.token).is_ok()
        {
            assert!(!fault.panics, "the fault point {} is reached", fault.name);
            match fault.pause {
                Some(pause) => thread::sleep(pause),
                None => drop(raise(Signal::SIGKILL)),
            }
        }
    }
}
