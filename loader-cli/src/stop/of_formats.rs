//! Turns the errors of datasets and of packing into reasons to stop.

use loader_data::{DataError, PackError};

use super::{DatasetProblem, Stop};

impl From<DataError> for Stop {
    fn from(error: DataError) -> Self {
        Self::Dataset(DatasetProblem {
            kind: "DatasetNotOpened",
            message: error.to_string(),
            is_wrong_request: true,
        })
    }
}

impl From<PackError> for Stop {
    fn from(error: PackError) -> Self {
        let has_failed = matches!(
            error,
            PackError::Source(_)
                | PackError::Changed(_)
                | PackError::Output { .. }
                | PackError::Locked(_)
                | PackError::Stopped
        );
        Self::Dataset(DatasetProblem {
            kind: "NotPacked",
            message: error.to_string(),
            is_wrong_request: !has_failed,
        })
    }
}
