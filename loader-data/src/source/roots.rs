//! Folders that files must not leave through symbolic links.

use std::{ffi::OsString, fs, io};

use serde::{Deserialize, Serialize};

use super::Location;
use crate::error::{DataError, DataProblem, Result};

/// The folders without symbolic links that the files which a file names must be in; none if that file is on a server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Roots(Vec<OsString>);

impl Roots {
    /// Returns the folder of `file`. If the file is a symbolic link itself, as in the cache of the Hugging Face Hub, it may
    /// also name files beside its target.
    ///
    /// # Errors
    /// Returns an error if `file` does not exist or cannot be reached.
    pub(crate) fn of(file: &Location) -> Result<Self> {
        let (Location::Path(path), Location::Path(folder)) = (file, file.folder().or_here()) else {
            return Ok(Self::default());
        };
        let failed = |error: io::Error| DataError::new(file, error);
        let target = Location::from(fs::canonicalize(path).map_err(failed)?).folder();
        let folder = fs::canonicalize(folder).map_err(failed)?;
        Ok(Self(vec![folder.into(), target.as_path().into()]))
    }

    /// Returns where symbolic links on the way to `file` lead if that is in none of the folders.
    ///
    /// # Errors
    /// Returns an error if `file` does not exist or cannot be reached.
    pub(crate) fn target_outside(&self, file: &Location) -> Result<Option<Location>> {
        let Location::Path(path) = file else { return Ok(None) };
        let target = fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DataError::new(file, DataProblem::NotFound),
            _ => DataError::new(file, error),
        })?;
        let is_inside = self.0.iter().any(|root| target.starts_with(root));
        Ok((!is_inside).then(|| Location::from(target)))
    }
}
