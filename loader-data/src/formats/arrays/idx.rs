//! IDX files, such as those of MNIST: the type and the number of dimensions, the big-endian sizes, and the
//! elements.

use std::io::Read;

use loader_core::DType;

use super::array::ElementType;
use crate::error::DataProblem;

/// Reads the header at the start of `reader`. Returns the type of the elements, the shape and the number of
/// bytes of the header.
pub(super) fn read_header(reader: &mut impl Read) -> Result<(ElementType, Vec<usize>, u64), DataProblem> {
    let mut start = [0; 4];
    reader.read_exact(&mut start)?;
    let [_, _, element, rank] = start;
    let dtype = dtype_of(element).ok_or_else(|| DataProblem::Malformed {
        format: "IDX",
        reason: format!("the type of the elements, {element:#04x}, is unknown"),
    })?;
    let mut shape = Vec::with_capacity(usize::from(rank));
    for _ in 0..rank {
        let mut size = [0; 4];
        reader.read_exact(&mut size)?;
        shape.push(u32::from_be_bytes(size) as usize);
    }
    Ok((ElementType { dtype, is_big_endian: dtype.size() > 1 }, shape, 4 + 4 * u64::from(rank)))
}

/// True if a file that begins with `start` may be an IDX file.
pub(super) fn is_idx(start: &[u8]) -> bool {
    matches!(start, [0, 0, element, rank, ..] if dtype_of(*element).is_some() && *rank > 0)
}

fn dtype_of(element: u8) -> Option<DType> {
    Some(match element {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0b => DType::I16,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        _ => return None,
    })
}
