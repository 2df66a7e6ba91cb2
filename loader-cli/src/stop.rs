//! The reasons why a command ends early.

#[cfg(feature = "formats")]
mod of_formats;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use loader_core::{Error, MergeError, RankError, config::ConfigError};
use loader_data::{DatasetError, ImageFolderError, ImageFolderOptions, TransformError};
use signal_hook::{consts::SIGINT, low_level::signal_name};

#[derive(Debug)]
pub(crate) enum Stop {
    /// Help or the version was printed. The exit status says whether the user asked for it.
    HelpPrinted(u8),
    /// An argument is invalid, or the arguments contradict each other.
    InvalidArguments(String),
    InvalidConfig(ConfigError),
    /// A dataset cannot be opened or packed.
    Dataset(DatasetProblem),
    InvalidTransform(TransformError),
    /// The loader could not be built, or no workers started.
    Loader(Error),
    /// An error that was printed already ended the epoch.
    Reported,
    /// Standard output cannot be written. A closed pipe is not an error, as in `loader plan ... | head`.
    Output(io::Error),
    /// A file that the command was asked to write cannot be written.
    FileNotWritten {
        path: PathBuf,
        error: io::Error,
    },
    /// The file of `--resume` cannot be used.
    StateNotUsable {
        path: PathBuf,
        problem: StateProblem,
    },
    /// The files of `--resume` are not those of all ranks of a run.
    StatesNotMerged(MergeError),
    /// Errors have ended shards of this epoch before their ends. The state of the run is saved.
    EpochNotRead {
        epoch: u64,
    },
    /// `loader tune` could not compare settings in this time.
    TooLittleTime(Duration),
    /// The contact sheet would have no image.
    NoImages(String),
    /// The signals that end the command cannot be handled.
    NoSignals(io::Error),
    Interrupted(Ending),
}

/// Why a dataset cannot be opened or packed.
#[derive(Debug)]
pub(crate) struct DatasetProblem {
    /// The kind of the error, for programs.
    kind: &'static str,
    message: String,
    /// True if what the user asked for is wrong; false if the command failed to do it.
    is_wrong_request: bool,
}

/// Why a state cannot be resumed.
#[derive(Debug)]
pub(crate) enum StateProblem {
    NotRead(io::Error),
    NotAState(serde_json::Error),
    /// It is of another version, or of a run with another dataset or other options.
    Refused(Error),
}

/// The number of the signal that ends the command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending(pub(crate) i32);

impl Ending {
    /// Exit status: 128 plus the number of the signal.
    pub(crate) fn status(self) -> u8 {
        // The numbers are below 32.
        128 + self.0 as u8
    }

    fn message(self) -> String {
        match self.0 {
            SIGINT => "interrupted".to_owned(),
            signal => format!("ended by {}", signal_name(signal).unwrap_or("a signal")),
        }
    }
}

impl Stop {
    /// Returns a function that turns the error of writing the file `path` into a `Stop`.
    pub(crate) fn not_written(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::FileNotWritten { path: path.to_owned(), error }
    }

    /// Returns the error of a dataset of the kind `kind`, which this command was built without.
    pub(crate) fn without_formats(kind: &str) -> Self {
        Self::InvalidArguments(format!(
            "this `loader` was built with the kind `{}` only; for `{kind}`, build it with `--features formats`",
            ImageFolderOptions::KIND
        ))
    }

    /// Returns the exit status of the command.
    pub(crate) fn status(&self) -> ExitCode {
        const FAILED: u8 = 1;
        const WRONG_REQUEST: u8 = 2;
        ExitCode::from(match self {
            Self::InvalidArguments(_)
            | Self::InvalidConfig(_)
            | Self::InvalidTransform(_)
            | Self::StateNotUsable { .. }
            | Self::StatesNotMerged(_) => WRONG_REQUEST,
            Self::Dataset(DatasetProblem { is_wrong_request: true, .. }) => WRONG_REQUEST,
            Self::Loader(
                Error::InvalidOption { .. }
                | Error::ConflictingOptions { .. }
                | Error::RankUnknown(_)
                | Error::CpuNotAllowed { .. }
                | Error::EmptyDataset
                | Error::WorkerProgramMissing { .. },
            ) => WRONG_REQUEST,
            Self::HelpPrinted(status) => *status,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Dataset(_)
            | Self::Loader(_)
            | Self::Reported
            | Self::EpochNotRead { .. }
            | Self::Output(_)
            | Self::FileNotWritten { .. }
            | Self::TooLittleTime(_)
            | Self::NoImages(_)
            | Self::NoSignals(_) => FAILED,
            Self::Interrupted(ending) => ending.status(),
        })
    }

    /// Returns the kind of the error, for programs, and its message. Returns `None` if there is nothing to
    /// print, or if it was printed already.
    pub(crate) fn message(&self) -> Option<(&'static str, String)> {
        Some(match self {
            Self::InvalidArguments(message) => ("InvalidArguments", message.clone()),
            Self::InvalidConfig(error) => ("InvalidConfig", error.to_string()),
            Self::Dataset(DatasetProblem { kind, message, .. }) => (kind, message.clone()),
            Self::InvalidTransform(error) => ("InvalidTransform", error.to_string()),
            Self::Loader(error) => (error.kind(), error.to_string()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return None,
            Self::Output(error) => ("OutputFailed", format!("cannot write to standard output: {error}")),
            Self::FileNotWritten { path, error } => {
                ("OutputFailed", format!("`{}` cannot be written: {error}", path.display()))
            }
            Self::EpochNotRead { epoch } => (
                "EpochNotRead",
                format!(
                    "errors ended epoch {epoch} before all of its data was read; remove their cause, then run the \
                     command again with --resume, which reads the rest"
                ),
            ),
            Self::TooLittleTime(time) => (
                "TooLittleTime",
                format!(
                    "{time:?} was too short to compare the settings, and nothing was written; give a longer --time"
                ),
            ),
            Self::NoImages(reason) => ("NoImages", format!("--contact-sheet: {reason}")),
            Self::NoSignals(error) => {
                ("System", format!("cannot handle the signals that end the command: {error}"))
            }
            Self::HelpPrinted(_) | Self::Reported => return None,
            Self::StateNotUsable { path, problem } => {
                let (kind, problem) = problem.message();
                (kind, format!("--resume: `{}` {problem}", path.display()))
            }
            Self::StatesNotMerged(error) => ("StatesNotMerged", format!("--resume: {error}")),
            Self::Interrupted(ending) => ("Interrupted", ending.message()),
        })
    }
}

impl StateProblem {
    /// Returns the kind of the error, for programs, and the rest of a sentence about the file.
    fn message(&self) -> (&'static str, String) {
        match self {
            Self::NotRead(error) => ("StateNotRead", format!("cannot be read: {error}")),
            Self::NotAState(error) => (
                "StateNotRead",
                format!("is not the state of a run: {error}; give a file that `--save-state` wrote"),
            ),
            Self::Refused(error) => {
                let hint = match error {
                    Error::StateMismatch { part: "rank" | "world_size", .. } => {
                        "; `--resume` merges the states if it has the files of all ranks"
                    }
                    _ => "",
                };
                (error.kind(), format!("cannot be resumed: {error}{hint}"))
            }
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::InvalidConfig(error)
    }
}

impl From<ImageFolderError> for Stop {
    fn from(error: ImageFolderError) -> Self {
        match error {
            ImageFolderError::Transform(error) => error.into(),
            error => {
                let (kind, message) = ("DatasetNotOpened", error.to_string());
                Self::Dataset(DatasetProblem { kind, message, is_wrong_request: true })
            }
        }
    }
}

impl From<DatasetError> for Stop {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::Images(error) => error.into(),
            #[cfg(feature = "formats")]
            DatasetError::Records(error) => error.into(),
            error => Self::InvalidArguments(error.to_string()),
        }
    }
}

impl From<TransformError> for Stop {
    fn from(error: TransformError) -> Self {
        match error {
            TransformError::UnusedSize => Self::InvalidArguments(error.to_string()),
            error => Self::InvalidTransform(error),
        }
    }
}

impl From<RankError> for Stop {
    fn from(error: RankError) -> Self {
        Self::Loader(error.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Loader(error)
    }
}
