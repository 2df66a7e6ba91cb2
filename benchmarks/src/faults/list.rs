//! The list of faults.

use anyhow::Context;

/// A fault.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Name of the same fault in `benchmarks/faults/faults.py`; `None` if PyTorch has no counterpart.
    pub(crate) pytorch: Option<&'static str>,
    /// Description in the tables.
    pub(crate) about: &'static str,
    pub(crate) what: What,
    /// Option that differs from the defaults.
    pub(crate) tune: Tune,
}

/// What happens at batch [`FAULT_BATCH`](crate::host::FAULT_BATCH).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
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

/// What the child of a sample that forks does.
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

/// The option that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tune {
    Defaults,
    Timeout,
    SampleTimeout,
    Hedge,
}

const fn fault(name: &'static str, pytorch: &'static str, about: &'static str, what: What) -> Fault {
    Fault { name, pytorch: Some(pytorch), about, what, tune: Tune::Defaults }
}

const fn stop(name: &'static str, pytorch: Option<&'static str>, about: &'static str, tune: Tune) -> Fault {
    Fault { name, pytorch, about, what: What::Stop, tune }
}

/// All faults, in the order of the tables: those in an epoch, then those at a drop, then ends of main.
pub(crate) const FAULTS: &[Fault] = &[
    fault("none", "none", "no fault", What::Nothing),
    fault("kill", "worker-killed", "worker killed (SIGKILL)", What::Kill),
    fault("abort", "worker-aborts", "sample aborts, once", What::Sample(InSample::Abort)),
    fault("segfault", "worker-segfaults", "sample segfaults, once", What::Sample(InSample::Segfault)),
    fault("exit", "worker-exits", "sample calls `exit(0)`, once", What::Sample(InSample::Exit)),
    fault(
        "close",
        "sample-closes",
        "sample closes all descriptors from 3 on, once",
        What::Sample(InSample::CloseAll),
    ),
    fault(
        "allocate",
        "memory-limited",
        "sample allocates more than `RLIMIT_AS` allows, once",
        What::Sample(InSample::Allocate),
    ),
    fault(
        "fork-exits",
        "sample-forks",
        "sample forks, the child exits at once",
        What::Sample(InSample::Fork(Child::ExitsAtOnce)),
    ),
    fault(
        "fork-sleeps",
        "sample-forks-sleeper",
        "sample forks, the child sleeps for 5 s",
        What::Sample(InSample::Fork(Child::Sleeps)),
    ),
    Fault {
        name: "fork-loads",
        pytorch: None,
        about: "sample forks, the child returns from it as the worker does",
        what: What::Sample(InSample::Fork(Child::Loads)),
        tune: Tune::Defaults,
    },
    fault("always", "sample-kills", "same sample always kills its worker", What::Always(InSample::Abort)),
    fault("rest", "persistent-killed", "persistent worker killed between epochs", What::KillBetweenEpochs),
    fault(
        "sigchld",
        "sigchld-ignored-before",
        "SIGCHLD ignored before the loader is built, worker killed",
        What::SigchldIgnored,
    ),
    fault("reaper", "reaper", "a thread of the program reaps every child, worker killed", What::ReaperThread),
    fault("descriptors", "descriptors-held", "limit of 64 descriptors, all batches held", What::HoldAll),
    stop("stop", Some("worker-stopped"), "worker stopped (SIGSTOP)", Tune::Defaults),
    stop(
        "stop-timeout",
        Some("worker-stopped-timeout"),
        "worker stopped (SIGSTOP), `timeout` 3 s",
        Tune::Timeout,
    ),
    stop("stop-sample-timeout", None, "worker stopped (SIGSTOP), `sample_timeout` 1 s", Tune::SampleTimeout),
    stop("stop-hedge", None, "worker stopped (SIGSTOP), `hedge`", Tune::Hedge),
    fault("drop", "drop", "no fault", What::Drop(State::Working)),
    fault("drop-stuck", "drop-stuck", "worker stuck for 30 s", What::Drop(State::Stuck)),
    fault("drop-stopped", "drop-stopped", "worker stopped (SIGSTOP)", What::Drop(State::Stopped)),
    fault(
        "drop-deaf",
        "drop-blocked-stuck",
        "worker stuck, all signals blocked",
        What::Drop(State::StuckWithSignalsBlocked),
    ),
    fault("main-kill", "main-killed", "killed (SIGKILL)", What::Main(End::Kill, State::Working)),
    fault(
        "main-kill-stuck",
        "main-killed-stuck",
        "killed (SIGKILL), a worker stuck for 30 s",
        What::Main(End::Kill, State::Stuck),
    ),
    fault("main-abort", "main-aborts", "aborts", What::Main(End::Abort, State::Working)),
    fault("main-exit", "main-exits", "exits", What::Main(End::Exit, State::Working)),
    fault("main-exec", "main-execs", "execs another program", What::Main(End::Exec, State::Working)),
];

impl Fault {
    pub(crate) fn find(name: &str) -> anyhow::Result<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name).with_context(|| format!("there is no fault `{name}`"))
    }
}
