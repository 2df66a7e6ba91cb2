//! The faults that are tried.

use anyhow::Context;

/// A fault, and the setting of the loader with which it is tried.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Name of the same fault in `benchmarks/faults/faults.py`; `None` if PyTorch has no counterpart.
    pub(crate) pytorch: Option<&'static str>,
    /// Description in the tables.
    pub(crate) description: &'static str,
    pub(crate) action: Action,
    pub(crate) setting: Setting,
}

/// What happens at batch [`FAULT_BATCH`](crate::host::FAULT_BATCH).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    /// A worker gets SIGKILL.
    Kill,
    /// A worker gets SIGSTOP.
    Stop,
    /// A sample does this once.
    Sample(InSample),
    /// A sample does this on every attempt to load it.
    Always(InSample),
    /// The program holds all batches and has few descriptors.
    HoldAll,
    /// The program drops the iterator in mid-epoch, while a worker is in this state.
    Drop(State),
    /// A persistent worker is killed between two epochs.
    KillBetweenEpochs,
    /// A worker is killed, and the program was started with SIGCHLD ignored.
    SigchldIgnored,
    /// A worker is killed, and a thread of the program waits for every child.
    ReaperThread,
    /// Main ends in this way, while a worker is in this state.
    Main(End, State),
}

/// What a sample does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InSample {
    Abort,
    Segfault,
    Exit,
    CloseAll,
    Allocate,
    Hang,
    BlockSignalsAndHang,
    Fork(Child),
}

/// What the child does after a sample has forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Child {
    ExitsAtOnce,
    Sleeps,
    /// The child returns from the sample like its parent, and so loads further samples.
    Loads,
}

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Working,
    Stuck,
    StuckWithSignalsBlocked,
    Stopped,
}

/// How main ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Abort,
    Exit,
    Exec,
}

/// The setting of the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    Defaults,
    Timeout,
    SampleTimeout,
    Hedge,
}

const fn fault(
    name: &'static str,
    pytorch: &'static str,
    description: &'static str,
    action: Action,
) -> Fault {
    Fault { name, pytorch: Some(pytorch), description, action, setting: Setting::Defaults }
}

const fn stop(
    name: &'static str,
    pytorch: Option<&'static str>,
    description: &'static str,
    setting: Setting,
) -> Fault {
    Fault { name, pytorch, description, action: Action::Stop, setting }
}

/// All faults, in the order of the tables: those in an epoch, then those at a drop, then ends of main.
pub(crate) const FAULTS: &[Fault] = &[
    fault("none", "none", "no fault", Action::Nothing),
    fault("kill", "worker-killed", "worker killed (SIGKILL)", Action::Kill),
    fault("abort", "worker-aborts", "sample aborts, once", Action::Sample(InSample::Abort)),
    fault("segfault", "worker-segfaults", "sample segfaults, once", Action::Sample(InSample::Segfault)),
    fault("exit", "worker-exits", "sample calls `exit(0)`, once", Action::Sample(InSample::Exit)),
    fault(
        "close",
        "sample-closes",
        "sample closes all descriptors from 3 on, once",
        Action::Sample(InSample::CloseAll),
    ),
    fault(
        "allocate",
        "memory-limited",
        "sample allocates more than `RLIMIT_AS` allows, once",
        Action::Sample(InSample::Allocate),
    ),
    fault(
        "fork-exits",
        "sample-forks",
        "sample forks, the child exits at once",
        Action::Sample(InSample::Fork(Child::ExitsAtOnce)),
    ),
    fault(
        "fork-sleeps",
        "sample-forks-sleeper",
        "sample forks, the child sleeps for 5 s",
        Action::Sample(InSample::Fork(Child::Sleeps)),
    ),
    Fault {
        name: "fork-loads",
        pytorch: None,
        description: "sample forks, the child returns from it as the worker does",
        action: Action::Sample(InSample::Fork(Child::Loads)),
        setting: Setting::Defaults,
    },
    fault("always", "sample-kills", "same sample always kills its worker", Action::Always(InSample::Abort)),
    fault("rest", "persistent-killed", "persistent worker killed between epochs", Action::KillBetweenEpochs),
    fault(
        "sigchld",
        "sigchld-ignored-before",
        "SIGCHLD ignored before the loader is built, worker killed",
        Action::SigchldIgnored,
    ),
    fault(
        "reaper",
        "reaper",
        "a thread of the program reaps every child, worker killed",
        Action::ReaperThread,
    ),
    fault("descriptors", "descriptors-held", "limit of 64 descriptors, all batches held", Action::HoldAll),
    stop("stop", Some("worker-stopped"), "worker stopped (SIGSTOP)", Setting::Defaults),
    stop(
        "stop-timeout",
        Some("worker-stopped-timeout"),
        "worker stopped (SIGSTOP), `timeout` 3 s",
        Setting::Timeout,
    ),
    stop(
        "stop-sample-timeout",
        None,
        "worker stopped (SIGSTOP), `sample_timeout` 1 s",
        Setting::SampleTimeout,
    ),
    stop("stop-hedge", None, "worker stopped (SIGSTOP), `hedge`", Setting::Hedge),
    fault("drop", "drop", "no fault", Action::Drop(State::Working)),
    fault("drop-stuck", "drop-stuck", "worker stuck for 30 s", Action::Drop(State::Stuck)),
    fault("drop-stopped", "drop-stopped", "worker stopped (SIGSTOP)", Action::Drop(State::Stopped)),
    fault(
        "drop-deaf",
        "drop-blocked-stuck",
        "worker stuck, all signals blocked",
        Action::Drop(State::StuckWithSignalsBlocked),
    ),
    fault("main-kill", "main-killed", "killed (SIGKILL)", Action::Main(End::Kill, State::Working)),
    fault(
        "main-kill-stuck",
        "main-killed-stuck",
        "killed (SIGKILL), a worker stuck for 30 s",
        Action::Main(End::Kill, State::Stuck),
    ),
    fault("main-abort", "main-aborts", "aborts", Action::Main(End::Abort, State::Working)),
    fault("main-exit", "main-exits", "exits", Action::Main(End::Exit, State::Working)),
    fault("main-exec", "main-execs", "execs another program", Action::Main(End::Exec, State::Working)),
];

impl Fault {
    pub(crate) fn find(name: &str) -> anyhow::Result<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name).with_context(|| format!("there is no fault `{name}`"))
    }
}
