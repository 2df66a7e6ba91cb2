//! Which format a file has, and the arrays in it.

use std::{
    io::{BufReader, Read},
    path::Path,
    sync::Arc,
};

use flate2::bufread::MultiGzDecoder;

use super::{
    Array, ArrayFormat, Elements,
    array::{Budget, ElementType, bytes_of},
    cifar, idx, npy, npz, safetensors,
};
use crate::{
    error::{DataError, DataProblem, Result},
    source::Blob,
};

/// Extensions of the files that a folder stands for.
pub(super) const EXTENSIONS: [&str; 3] = [".npy", ".npz", ".safetensors"];

const GZIP: &[u8] = b"\x1f\x8b";

/// Reads which arrays a file contains. Unpacks those that are compressed and for whose names `is_wanted` returns
/// true; the elements of the others are not to be read. A format without magic bytes must be given.
pub(super) fn arrays(
    blob: &Arc<Blob>,
    format: Option<ArrayFormat>,
    is_wanted: &dyn Fn(&str) -> bool,
    budget: &mut Budget,
) -> Result<Vec<Array>> {
    if let Some(format) = format {
        return cifar::arrays(blob.len(), format).map_err(|problem| blob.error(0, problem));
    }
    let name = blob.file().location.file_name();
    let mut start = [0; 6];
    let known = blob.len().min(6) as usize;
    blob.read_exact_at(&mut start[..known], 0)?;
    let start = &start[..known];
    if name.ends_with(".safetensors") {
        safetensors::arrays(blob)
    } else if npz::MAGIC.iter().any(|magic| start.starts_with(magic)) {
        npz::arrays(blob, is_wanted, budget)
    } else {
        single(blob, &name, start, is_wanted, budget).map(|array| vec![array])
    }
}

/// Reads a file with one array, which is named after the file.
fn single(
    blob: &Arc<Blob>,
    file: &str,
    start: &[u8],
    is_wanted: &dyn Fn(&str) -> bool,
    budget: &mut Budget,
) -> Result<Array> {
    let of_file = |problem| blob.problem(0, problem);
    let name = file.strip_suffix(".gz").unwrap_or(file);
    let name = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut reader = BufReader::new(blob.reader(0..blob.len()));
    if start.starts_with(GZIP) {
        let mut reader = BufReader::new(MultiGzDecoder::new(reader));
        let (element, shape, _) = header(&mut reader).map_err(of_file)?;
        let bytes = bytes_of(&shape, element.dtype).map_err(of_file)?;
        let elements = if is_wanted(&name) {
            Elements::unpack(reader, bytes, blob.len(), budget).map_err(of_file)?
        } else {
            Elements::at(0)
        };
        return Ok(Array { name, shape, element: Ok(element), elements });
    }
    let (element, shape, offset) = header(&mut reader).map_err(of_file)?;
    let end = bytes_of(&shape, element.dtype).map_err(of_file)?.checked_add(offset);
    if end != Some(blob.len()) {
        return Err(wrong_size(blob, end));
    }
    Ok(Array { name, shape, element: Ok(element), elements: Elements::at(offset) })
}

/// Reads the header of a file with one array: the type of its elements, its shape, and the length of the
/// header.
fn header(reader: &mut BufReader<impl Read>) -> Result<(ElementType, Vec<usize>, u64), DataProblem> {
    use std::io::BufRead;

    let start = reader.fill_buf()?;
    if start.starts_with(npy::MAGIC) {
        let header = npy::read_header(reader)?;
        return Ok((header.element?, header.shape, header.len));
    }
    if idx::is_idx(start) {
        return idx::read_header(reader);
    }
    Err(DataProblem::Malformed {
        format: "array file",
        reason: "it begins neither as NumPy's files nor as IDX files do; \
                 the name of a safetensors file must end with .safetensors, and CIFAR needs `format`"
            .to_owned(),
    })
}

fn wrong_size(blob: &Blob, expected: Option<u64>) -> DataError {
    match expected {
        Some(expected) if expected < blob.len() => blob.error(
            expected,
            DataProblem::Malformed {
                format: "array file",
                reason: format!("there are {} bytes after the last element", blob.len() - expected),
            },
        ),
        _ => blob.error(blob.len(), DataProblem::Truncated),
    }
}
