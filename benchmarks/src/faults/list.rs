//! The faults.

use anyhow::Context as _;

/// One of them.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) what: What,
    /// Options beside the defaults.
    pub(crate) tune: Tune,
}

/// What happens, at batch [`AT`](crate::host::AT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Nothing,
    /// A signal from outside to a worker.
    Kill,
    Stop,
    /// In a sample, once.
    Sample(InSample),
    /// In a sample, each time that it is tried.
    Always(InSample),
    /// All batches are held, with few descriptors.
    HoldAll,
    /// The iterator is dropped in mid-epoch, when a worker is in this state.
    Drop(State),
    /// A worker is killed between two epochs of persistent workers.
    KillAtRest,
    /// A worker is killed, and the program was started with SIGCHLD ignored.
    SigchldIgnored,
    /// A worker is killed, and a thread of the program waits for every child.
    ReaperThread,
    /// Main ends, in this way, while a worker is in this state.
    Main(End, State),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InSample {
    Abort,
    Segfault,
    Exit,
    CloseAll,
    Allocate,
    Hang,
    BlockSignalsAndHang,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Working,
    Stuck,
    StuckAndDeaf,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Abort,
    Exit,
    Exec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tune {
    Defaults,
    Timeout,
    SampleTimeout,
    Hedge,
}

const fn fault(name: &'static str, about: &'static str, what: What) -> Fault {
    Fault { name, about, what, tune: Tune::Defaults }
}

pub(crate) const FAULTS: &[Fault] = &[
    fault("none", "no fault", What::Nothing),
    fault("kill", "worker SIGKILLed", What::Kill),
    fault("always", "same sample always kills its worker", What::Always(InSample::Abort)),
    fault("abort", "sample aborts, once", What::Sample(InSample::Abort)),
    fault("segfault", "sample segfaults, once", What::Sample(InSample::Segfault)),
    fault("exit", "sample calls exit(0), once", What::Sample(InSample::Exit)),
    fault("close", "sample closes all descriptors from 3 on, once", What::Sample(InSample::CloseAll)),
    fault("allocate", "sample allocates more than RLIMIT_AS allows, once", What::Sample(InSample::Allocate)),
    fault("stop", "worker SIGSTOPped", What::Stop),
    Fault {
        name: "stop-timeout",
        about: "worker SIGSTOPped, `timeout` 3 s",
        what: What::Stop,
        tune: Tune::Timeout,
    },
    Fault {
        name: "stop-sample-timeout",
        about: "worker SIGSTOPped, `sample_timeout` 1 s",
        what: What::Stop,
        tune: Tune::SampleTimeout,
    },
    Fault { name: "stop-hedge", about: "worker SIGSTOPped, `hedge`", what: What::Stop, tune: Tune::Hedge },
    fault("rest", "persistent worker killed between epochs", What::KillAtRest),
    fault("descriptors", "64 descriptors, all batches held", What::HoldAll),
    fault("sigchld", "SIGCHLD ignored before the loader, worker killed", What::SigchldIgnored),
    fault("reaper", "a thread reaps every child, worker killed", What::ReaperThread),
    fault("drop", "iterator dropped, nothing wrong", What::Drop(State::Working)),
    fault("drop-stuck", "iterator dropped, worker stuck for 30 s", What::Drop(State::Stuck)),
    fault("drop-stopped", "iterator dropped, worker SIGSTOPped", What::Drop(State::Stopped)),
    fault(
        "drop-deaf",
        "iterator dropped, worker stuck with all signals blocked",
        What::Drop(State::StuckAndDeaf),
    ),
    fault("main-kill", "main SIGKILLed", What::Main(End::Kill, State::Working)),
    fault("main-kill-stuck", "main SIGKILLed, worker stuck for 30 s", What::Main(End::Kill, State::Stuck)),
    fault("main-abort", "main aborts", What::Main(End::Abort, State::Working)),
    fault("main-exit", "main exits", What::Main(End::Exit, State::Working)),
    fault("main-exec", "main execs another program", What::Main(End::Exec, State::Working)),
];

impl Fault {
    pub(crate) fn find(name: &str) -> anyhow::Result<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name).context("no such fault")
    }
}
