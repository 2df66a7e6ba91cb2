//! Why a command ended before it was done.

use std::{io, process::ExitCode};

use loader_core::{Error, config::ConfigError};
use loader_data::{ImageFolderError, TransformError};

#[derive(Debug)]
pub(crate) enum Stop {
    /// The request does not fit together.
    InvalidArguments(String),
    InvalidConfig(ConfigError),
    DatasetNotOpened(ImageFolderError),
    InvalidTransform(TransformError),
    /// The loader could not be built, or no workers started.
    Loader(Error),
    /// It was reported already, and no batch can come after it.
    Reported,
    /// Standard output does not take more. That nobody reads it is no error: `loader plan ... | head`.
    Output(io::Error),
    NoSignals(io::Error),
    Interrupted,
}

/// Exit status after Ctrl-C: 128 and the number of SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

impl Stop {
    pub(crate) fn status(&self) -> ExitCode {
        const FAILED: u8 = 1;
        const WRONG_REQUEST: u8 = 2;
        ExitCode::from(match self {
            Self::InvalidArguments(_)
            | Self::InvalidConfig(_)
            | Self::DatasetNotOpened(_)
            | Self::InvalidTransform(_) => WRONG_REQUEST,
            Self::Loader(
                Error::InvalidOption { .. }
                | Error::ConflictingOptions { .. }
                | Error::EmptyDataset
                | Error::WorkerProgramMissing { .. },
            ) => WRONG_REQUEST,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Loader(_) | Self::Reported | Self::Output(_) | Self::NoSignals(_) => FAILED,
            Self::Interrupted => INTERRUPTED,
        })
    }

    /// What to tell, and a name for programs to go by; `None` when there is nothing to tell (any more).
    pub(crate) fn message(&self) -> Option<(&'static str, String)> {
        Some(match self {
            Self::InvalidArguments(message) => ("InvalidArguments", message.clone()),
            Self::InvalidConfig(error) => ("InvalidConfig", error.to_string()),
            Self::DatasetNotOpened(error) => ("DatasetNotOpened", error.to_string()),
            Self::InvalidTransform(error) => ("InvalidTransform", error.to_string()),
            Self::Loader(error) => (error.kind(), error.to_string()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return None,
            Self::Output(error) => ("OutputFailed", format!("standard output: {error}")),
            Self::NoSignals(error) => ("System", format!("watching for Ctrl-C: {error}")),
            Self::Reported => return None,
            Self::Interrupted => ("Interrupted", "interrupted".to_owned()),
        })
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
        Self::DatasetNotOpened(error)
    }
}

impl From<TransformError> for Stop {
    fn from(error: TransformError) -> Self {
        Self::InvalidTransform(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Loader(error)
    }
}
