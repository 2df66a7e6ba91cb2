//! Reads files that are named by the rows of another one.

use std::{fs, io, path::Path};

use super::{DataFile, Files, Location, files::connect};
use crate::error::{DataError, DataProblem, Result};

impl Files {
    /// Reads the current content of a file that is not in the list, with the server options of the list.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has more than `max` bytes, which is the value of
    /// `option`.
    pub(crate) fn read_unlisted(&self, file: &Location, max: u64, option: &'static str) -> Result<Vec<u8>> {
        let described = match file {
            Location::Path(path) => describe(Path::new(path))?,
            Location::Url(url) => connect(&self.remote, &self.store)
                .map_err(|problem| DataError::new(file, problem))?
                .describe(url)?,
        };
        described.check_len(max, option)?;
        let len = described.len;
        self.open_new(described)?.read(0..len)
    }
}

/// Describes the local file at `path` as it is now.
fn describe(path: &Path) -> Result<DataFile> {
    let location = Location::from(path.to_owned());
    match fs::metadata(path) {
        Ok(metadata) => DataFile::of(location, &metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(DataError::new(location, DataProblem::NotFound))
        }
        Err(error) => Err(DataError::new(location, error)),
    }
}
