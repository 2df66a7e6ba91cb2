//! The program that workers run.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

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
}

impl WorkerProgram {
    /// The program at the path `program`, without arguments. A name without a slash is looked up in `PATH`,
    /// then in the working directory.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
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
