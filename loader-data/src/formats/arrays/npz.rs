//! NumPy's `.npz` files: zip archives of `.npy` files.

use std::{io::BufReader, sync::Arc};

use zip::{CompressionMethod, ZipArchive, result::ZipError};

use super::{
    Array, Elements,
    array::{Budget, bytes_of},
    npy::{self, Header},
};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    source::{Blob, BlobCursor},
};

/// First bytes of an archive with members, and of one without.
pub(super) const MAGIC: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Returns the arrays in a file, in the order of the archive. An array that is compressed is unpacked now if
/// `is_wanted` returns true for its name.
pub(super) fn arrays(
    blob: &Arc<Blob>,
    is_wanted: &dyn Fn(&str) -> bool,
    budget: &mut Budget,
) -> Result<Vec<Array>> {
    let mut archive =
        ZipArchive::new(BufReader::new(BlobCursor::new(blob))).map_err(|error| of_zip(blob, error))?;
    let mut arrays = Vec::new();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).map_err(|error| of_zip(blob, error))?;
        let name = member.name().map_err(|error| of_zip(blob, error))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
        let at = |problem| blob.problem(0, problem).at(Position::Member(format!("{name}.npy")));
        let Header { element, shape, len } = npy::read_header(&mut member).map_err(at)?;
        // The archive may claim more bytes than the file has.
        let (packed, unpacked) = (member.compressed_size().min(blob.len()), member.size());
        let bytes = match &element {
            Ok(element) => bytes_of(&shape, element.dtype).map_err(at)?,
            Err(_) => unpacked.saturating_sub(len),
        };
        if len.checked_add(bytes) != Some(unpacked) {
            return Err(at(DataProblem::Truncated));
        }
        let elements = match member.compression() {
            CompressionMethod::Stored => match member.data_start() {
                Some(start) => Elements::at(start + len),
                None => return Err(at(DataProblem::Truncated)),
            },
            _ if element.is_err() || !is_wanted(&name) => Elements::at(0),
            _ => Elements::unpack(member, bytes, packed, budget).map_err(at)?,
        };
        arrays.push(Array { name, shape, element, elements });
    }
    Ok(arrays)
}

fn of_zip(blob: &Blob, error: ZipError) -> DataError {
    match error {
        ZipError::Io(error) => blob.read_error(0, error),
        ZipError::UnsupportedArchive(reason) => blob.error(0, DataProblem::Unsupported(reason.to_owned())),
        error => blob.error(0, DataProblem::Malformed { format: "NumPy's npz", reason: error.to_string() }),
    }
}
