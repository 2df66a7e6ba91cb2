//! Starts the process of a worker.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::fd::OwnedFd,
    path::PathBuf,
};

use loader_ipc::{
    cpu_set::CpuSet,
    patience::Patience,
    process::{self, WorkerProcess},
};

use super::{WorkerProgram, template::Template, worker_program::Start};
use crate::{
    error::{Error, start_error::WorkerStartError},
    launch::{
        init::{self, Init},
        ranks,
    },
};

/// Starts the processes of workers: [`Program`] starts the worker program anew for each worker, [`Template`] asks a
/// process that has already loaded the program to fork, and [`ForkedTemplate`](super::ForkedTemplate) a process
/// that main has forked.
pub(crate) trait StartProcess: fmt::Debug + Send + Sync {
    /// Starts a process with `lifeline` as its standard input and `output` as its standard output and error.
    /// `name` is how lists of processes should show it. The process is bound to `cpus`, or inherits main's
    /// mask. It is to be worker number `worker`. Waits with `patience` if another process must start it.
    ///
    /// # Errors
    /// [`WorkerStartError`]. A process may have started nevertheless; it ends when main drops its end of the
    /// lifeline.
    fn start(
        &self,
        name: &OsStr,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        worker: usize,
        patience: &mut Patience<'_>,
    ) -> Result<WorkerProcess, WorkerStartError>;

    /// Prepares for the start of workers that replace others. Main calls it when all workers of a pool have started,
    /// and after each start of a replacement.
    fn prepare_replacements(&self) {}

    /// Returns what it starts, for error messages.
    fn describe(&self) -> String;
}

/// Environment variable that names a worker program.
const PROGRAM_VARIABLE: &str = "LOADER_WORKER";

/// The worker program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    path: PathBuf,
    args: Vec<OsString>,
    /// True if it is the program of this process, which finds the dataset's code by address.
    is_self: bool,
    start: Start,
}

impl Program {
    /// Finds the worker program. Returns the first of these: `explicit`; the program that the environment
    /// variable `LOADER_WORKER` names; this program, if it has called `init()`; the program `loader-worker`
    /// in the folder of this program.
    pub(crate) fn find(
        explicit: Option<&WorkerProgram>,
        init: Init,
        num_workers: usize,
    ) -> Result<Self, Error> {
        let named = explicit.map(|program| (program.clone(), "worker_program"));
        let variable = || Some((env::var_os(PROGRAM_VARIABLE)?.into(), PROGRAM_VARIABLE));
        if let Some((WorkerProgram { program, args, start }, origin)) = named.or_else(variable) {
            let path = match start {
                Start::Forked(_) => Ok(PathBuf::new()),
                Start::Program | Start::Template => process::locate(&program),
            };
            return match path {
                Ok(path) => Ok(Self { path, args, is_self: false, start }),
                Err(source) => Err(Error::WorkerProgramMissing { path: program, origin, source }),
            };
        }
        let of_path = |path, is_self| Self { path, args: Vec::new(), is_self, start: Start::Program };
        if init == Init::InProgram {
            return Ok(of_path(process::THIS_PROGRAM.into(), true));
        }
        let beside = env::current_exe().map(|program| program.with_file_name("loader-worker"));
        match (beside, init) {
            (_, Init::InLibrary(library)) => Err(Error::InitOutsideProgram { num_workers, library }),
            (Ok(path), _) if path.is_file() => Ok(of_path(path, false)),
            _ => Err(match init::library() {
                // There, a call of `init()` would not help.
                Some(library) => Error::InitOutsideProgram { num_workers, library },
                None => Error::InitNotCalled { num_workers },
            }),
        }
    }

    pub(crate) fn is_self(&self) -> bool {
        self.is_self
    }

    /// Returns what starts the program's workers.
    pub(crate) fn into_starter(self) -> Box<dyn StartProcess> {
        match self.start {
            Start::Program => Box::new(self),
            Start::Template => Box::new(Template::new(self.path, self.args)),
            Start::Forked(template) => Box::new(template),
        }
    }
}

impl StartProcess for Program {
    fn start(
        &self,
        name: &OsStr,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        _worker: usize,
        _patience: &mut Patience<'_>,
    ) -> Result<WorkerProcess, WorkerStartError> {
        WorkerProcess::spawn(&self.path, &self.args, cpus, launchers_variables(), name, lifeline, output)
            .map_err(|source| WorkerStartError::NotSpawned { program: self.describe(), source })
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

/// Returns the names of the variables by which a launcher has told this process its rank. Workers do not
/// inherit them.
pub fn launchers_variables() -> impl Iterator<Item = OsString> {
    let names = env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.to_str().is_some_and(ranks::belongs_to_launcher))
}
