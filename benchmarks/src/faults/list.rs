//! The faults that are tried.

use anyhow::Context;
use nix::libc;

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
    /// This happens to the processes or the files of the loader from outside.
    Outside(Outside),
}

/// What happens to the processes or the files of a loader from outside of its code. Each has a promise that every try
/// must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// Main and its workers are stopped for longer than `timeout`, and then go on.
    Pause,
    /// The processes are in a group with a limit on memory, and a sample exceeds it once.
    MemoryGroup,
    /// The program closes its standard streams before it builds the loader.
    CloseStandardStreams,
    /// The program closes all other descriptors at this moment.
    CloseOthers(Moment),
    /// Main and its workers are in a PID namespace of their own.
    PidNamespace,
    /// The kernel refuses this system call to main and its workers.
    Deny(Call),
    /// The workers' template gets SIGKILL or SIGSTOP at this step.
    Template(Step, Ending),
    /// Main runs as another user than the owner of its folder for a cache.
    OtherUser(User),
    /// A file that the loader has written for a later run is damaged.
    Damage(Artefact),
}

/// When the program closes descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Built,
    InEpoch,
}

/// A system call that a filter refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: i64,
    /// The second argument for which alone it is refused.
    pub(crate) second: Option<u64>,
    /// True if the loader works without it.
    pub(crate) is_optional: bool,
}

/// A part of what a template does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Start,
    Fork,
    BetweenEpochs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Killed,
    Stopped,
}

/// The user that runs main.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// The superuser, in a folder of an ordinary user.
    Root,
    /// An ordinary user, in a folder of another one that all users may write to.
    Ordinary,
}

/// What the loader writes for a later run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Artefact {
    Cache,
    Index,
    State,
    Packed,
}

/// What every try of a fault from outside must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Every batch arrives.
    Survives,
    /// Every batch arrives, or there is an error and no batch is wrong.
    SurvivesOrError,
    /// There is an error.
    Error,
}

impl Outside {
    pub(crate) fn promise(self) -> Promise {
        match self {
            Self::Pause
            | Self::MemoryGroup
            | Self::CloseStandardStreams
            | Self::PidNamespace
            | Self::Template(..)
            | Self::Deny(Call { is_optional: true, .. }) => Promise::Survives,
            Self::CloseOthers(_) | Self::Damage(_) => Promise::SurvivesOrError,
            Self::OtherUser(_) | Self::Deny(Call { is_optional: false, .. }) => Promise::Error,
        }
    }
}

/// What a sample does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InSample {
    Abort,
    Segfault,
    Exit,
    CloseAll,
    Allocate,
    /// It fills a GiB of memory.
    Fill,
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

const fn outside(name: &'static str, description: &'static str, what: Outside) -> Fault {
    Fault { name, pytorch: None, description, action: Action::Outside(what), setting: Setting::Defaults }
}

/// A system call, by its name and number, that the kernel refuses whatever its arguments are.
const fn deny(
    name: &'static str,
    description: &'static str,
    (call, number): (&'static str, i64),
    is_optional: bool,
) -> Fault {
    outside(name, description, Outside::Deny(Call { name: call, number, second: None, is_optional }))
}

const fn template(name: &'static str, description: &'static str, step: Step, ending: Ending) -> Fault {
    outside(name, description, Outside::Template(step, ending))
}

/// All faults, in the order of the tables: those in an epoch, then those at a drop, then ends of main, then those from
/// outside.
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
    outside("pause", "main and workers stopped for 4 s, `timeout` 3 s", Outside::Pause),
    outside(
        "memory-group",
        "a worker grows past the memory limit of the control group, once",
        Outside::MemoryGroup,
    ),
    outside(
        "close-standard",
        "descriptors 0 to 2 closed before the loader is built",
        Outside::CloseStandardStreams,
    ),
    outside(
        "close-built",
        "all descriptors from 3 on closed between `build` and `iter`",
        Outside::CloseOthers(Moment::Built),
    ),
    outside(
        "close-epoch",
        "all descriptors from 3 on closed in mid-epoch",
        Outside::CloseOthers(Moment::InEpoch),
    ),
    outside("pid-namespace", "main is the first process of a PID namespace", Outside::PidNamespace),
    template("template-start-kill", "template killed while it starts", Step::Start, Ending::Killed),
    template("template-start-stop", "template stopped while it starts", Step::Start, Ending::Stopped),
    template(
        "template-fork-kill",
        "template or its fork killed during a request",
        Step::Fork,
        Ending::Killed,
    ),
    template(
        "template-fork-stop",
        "template or its fork stopped during a request",
        Step::Fork,
        Ending::Stopped,
    ),
    template("template-rest-kill", "template killed between epochs", Step::BetweenEpochs, Ending::Killed),
    template("template-rest-stop", "template stopped between epochs", Step::BetweenEpochs, Ending::Stopped),
    deny("deny-pidfd", "`pidfd_open` refused", ("pidfd_open", libc::SYS_pidfd_open), true),
    deny("deny-madvise", "`madvise` refused", ("madvise", libc::SYS_madvise), true),
    deny(
        "deny-affinity",
        "`sched_setaffinity` refused, with `worker_affinity`",
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        false,
    ),
    deny("deny-memfd", "`memfd_create` refused", ("memfd_create", libc::SYS_memfd_create), false),
    deny("deny-fallocate", "`fallocate` refused", ("fallocate", libc::SYS_fallocate), false),
    outside(
        "deny-seals",
        "`fcntl(F_ADD_SEALS)` refused",
        Outside::Deny(Call {
            name: "fcntl",
            number: libc::SYS_fcntl,
            second: Some(libc::F_ADD_SEALS as u64),
            is_optional: false,
        }),
    ),
    deny("deny-socketpair", "`socketpair` refused", ("socketpair", libc::SYS_socketpair), false),
    deny("deny-setsockopt", "`setsockopt` refused", ("setsockopt", libc::SYS_setsockopt), false),
    outside("user-root", "root opens the cache of another user", Outside::OtherUser(User::Root)),
    outside("user-other", "a user opens the cache of another one", Outside::OtherUser(User::Ordinary)),
    outside("damage-cache", "files of a cached dataset damaged", Outside::Damage(Artefact::Cache)),
    outside("damage-index", "stored index of lines damaged", Outside::Damage(Artefact::Index)),
    outside("damage-state", "state damaged", Outside::Damage(Artefact::State)),
    outside("damage-packed", "files of `loader pack` damaged", Outside::Damage(Artefact::Packed)),
];

impl Fault {
    pub(crate) fn find(name: &str) -> anyhow::Result<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name).with_context(|| format!("there is no fault `{name}`"))
    }
}
