//! What is packed into an archive.

use super::PackError;
use crate::source::Blob;
use crate::{
    error::{DataError, DataProblem},
    source::DataFile,
};

/// A member of an archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    File(DataFile),
    Text(String),
}

impl Member {
    pub(super) fn len(&self) -> u64 {
        match &self.content {
            Content::File(file) => file.len,
            Content::Text(text) => text.len() as u64,
        }
    }

    /// Number of bytes in an archive.
    pub(super) fn packed_len(&self) -> u64 {
        // A name of more than 100 bytes is a member of its own.
        let name =
            if self.name.len() > 100 { 512 + (self.name.len() as u64 + 1).next_multiple_of(512) } else { 0 };
        name + 512 + self.len().next_multiple_of(512)
    }

    /// Reads the content.
    pub(super) fn read(&self) -> Result<Vec<u8>, PackError> {
        match &self.content {
            Content::Text(text) => Ok(text.clone().into_bytes()),
            Content::File(file) => {
                let read = Blob::open(file.clone()).and_then(|blob| blob.read(0..file.len));
                read.map_err(|error| unreadable(file, error))
            }
        }
    }
}

/// Returns the error of a file that cannot be read.
pub(super) fn unreadable(file: &DataFile, error: DataError) -> PackError {
    match error.problem {
        DataProblem::Changed { .. } => PackError::Changed(file.location.as_path().to_owned()),
        _ => PackError::Source(error),
    }
}
