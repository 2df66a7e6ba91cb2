//! The binary files of CIFAR-10 and CIFAR-100: rows of labels and an image, without a header.

use loader_core::DType;

use super::{Array, ArrayFormat, Elements, array::ElementType};
use crate::error::DataProblem;

const IMAGE: [usize; 3] = [3, 32, 32];
const IMAGE_BYTES: u64 = 3 * 32 * 32;

/// Returns the arrays in a file of `len` bytes.
pub(super) fn arrays(len: u64, format: ArrayFormat) -> Result<Vec<Array>, DataProblem> {
    let labels: &[&str] = match format {
        ArrayFormat::Cifar10 => &["label"],
        ArrayFormat::Cifar100 => &["coarse_label", "fine_label"],
    };
    let stride = IMAGE_BYTES + labels.len() as u64;
    if !len.is_multiple_of(stride) {
        return Err(DataProblem::Malformed {
            format: "CIFAR",
            reason: format!("the size of the file, {len} bytes, is not a multiple of {stride}"),
        });
    }
    let rows = (len / stride) as usize;
    let array = |name: &str, offset: usize, row: &[usize]| Array {
        name: name.to_owned(),
        shape: [&[rows], row].concat(),
        element: Ok(ElementType::little_endian(DType::U8)),
        elements: Elements::File { offset: offset as u64, stride: Some(stride) },
    };
    let mut arrays: Vec<_> =
        labels.iter().enumerate().map(|(offset, name)| array(name, offset, &[])).collect();
    arrays.push(array("image", labels.len(), &IMAGE));
    Ok(arrays)
}
