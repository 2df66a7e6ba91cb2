//! The program that workers run.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use loader_ipc::process;

use super::{forked::ForkedTemplate, template::Template};

/// A program that workers run, with its arguments, for
/// [`Builder::worker_program`](crate::Builder::worker_program). With these arguments, the program must call
/// `loader::init()` or serve a `loader::Registry`.
///
/// # Examples
/// ```
/// use loader_core::WorkerProgram;
///
/// // For an extension of Python: the module `package.worker` calls into the extension.
/// let program = WorkerProgram::new("python3").args(["-m", "package.worker"]);
/// # let _ = program;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) start: Start,
}

/// How a worker starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Main starts the program.
    Program,
    /// The program is a template, which forks the worker.
    Template,
    /// A template that main has forked from itself forks the worker. There is no program.
    Forked(Arc<ForkedTemplate>),
}

impl WorkerProgram {
    /// The program at the path `program`, without arguments. A name without a slash is looked up in `PATH`,
    /// then in the working directory.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), start: Start::Program }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Declares that the program, with these arguments, is a template: main starts it once, it loads what
    /// workers need, and it forks a worker whenever main asks for one. A worker then starts in milliseconds,
    /// although the program takes seconds to load its libraries. Main waits until it has loaded them;
    /// [`timeout`](crate::Builder::timeout) limits the wait. The program must serve a `loader::Template`.
    ///
    /// All loaders of main that name the same program and arguments share one template, which stays until
    /// main ends. A worker gets main's working directory and CPUs of the moment, and everything else, such as
    /// resource limits, from the template. If main's environment has changed when an iterator starts its
    /// workers, main starts another template in place of the first. The template needs pidfds (Linux 5.3);
    /// without them, starting a worker is an error.
    ///
    /// # Examples
    /// ```
    /// use loader_core::WorkerProgram;
    ///
    /// let program = WorkerProgram::new("python3").args(["-m", "package.template"]).template();
    /// # let _ = program;
    /// ```
    #[must_use]
    pub fn template(mut self) -> Self {
        self.start = Start::Template;
        self
    }

    /// Workers are forks of `template`, a process that main has forked from itself.
    #[doc(hidden)]
    pub fn forked(template: Arc<ForkedTemplate>) -> Self {
        Self { program: PathBuf::new(), args: Vec::new(), start: Start::Forked(template) }
    }

    /// Starts the template now, unless it runs, so that it loads its libraries while main does other work.
    /// Without this call, the first iterator starts the template and waits for it. If the program is not a
    /// template, this call does nothing.
    ///
    /// # Errors
    /// If the program does not exist, or the system cannot start it.
    pub fn start_template(&self) -> io::Result<()> {
        match self.start {
            Start::Template => Template::start_early(process::locate(&self.program)?, self.args.clone()),
            Start::Program | Start::Forked(_) => Ok(()),
        }
    }
}

macro_rules! from_paths {
    ($($path:ty),* $(,)?) => {
        $(
            impl From<$path> for WorkerProgram {
                fn from(program: $path) -> Self {
                    Self::new(program)
                }
            }
        )*
    };
}

from_paths!(&str, String, &String, &Path, PathBuf, &PathBuf, &OsStr, OsString);
