//! An array as the header of a file describes it.

use std::io::Read;

use loader_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::DataProblem;

/// Maximum number of bytes into which deflate unpacks one byte. A header that claims more is damaged.
const MAX_DEFLATE_RATIO: u64 = 1032;

/// The bytes that compressed arrays may have in memory, all of a dataset together.
#[derive(Debug)]
pub(super) struct Budget {
    used: u64,
    max: u64,
}

impl Budget {
    pub(super) fn new(max: u64) -> Self {
        Self { used: 0, max }
    }

    fn take(&mut self, len: u64) -> Result<(), DataProblem> {
        self.used = self.used.saturating_add(len);
        if self.used > self.max {
            Err(DataProblem::UnpackedTooLarge { len: self.used, max: self.max })
        } else {
            Ok(())
        }
    }
}

/// An array in a file.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Type of the elements, or an error if no tensor can have it. The error counts only if the array is
    /// selected.
    pub(super) element: Result<ElementType, DataProblem>,
    pub(super) elements: Elements,
}

/// Type of the elements of an array, and their byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ElementType {
    pub(super) dtype: DType,
    pub(super) is_big_endian: bool,
}

impl ElementType {
    pub(super) fn little_endian(dtype: DType) -> Self {
        Self { dtype, is_big_endian: false }
    }
}

/// Where the elements of an array are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Elements {
    /// In the file, row after row.
    File {
        /// Offset of the first row.
        offset: u64,
        /// Number of bytes from the start of a row to the start of the next; `None` if the rows
        /// follow each other without a gap.
        stride: Option<u64>,
    },
    /// In memory that all workers share, because they are compressed in the file.
    Memory(Tensor<u8>),
}

impl Elements {
    pub(super) fn at(offset: u64) -> Self {
        Self::File { offset, stride: None }
    }

    /// Reads `len` bytes, which `budget` must have, from `reader`, which unpacks `packed` bytes.
    pub(super) fn unpack(
        mut reader: impl Read,
        len: u64,
        packed: u64,
        budget: &mut Budget,
    ) -> Result<Self, DataProblem> {
        if len > packed.saturating_mul(MAX_DEFLATE_RATIO) {
            return Err(DataProblem::Truncated);
        }
        budget.take(len)?;
        let memory = |error: loader_core::TensorError| DataProblem::Memory(error.to_string());
        let mut bytes = Tensor::<u8>::zeros([len as usize]).map_err(memory)?;
        reader.read_exact(bytes.as_mut_slice().map_err(memory)?)?;
        // The reader verifies the checksum when it reaches the end.
        if reader.read(&mut [0])? != 0 {
            return Err(DataProblem::Malformed {
                format: "compressed array",
                reason: "there are bytes after the last element".to_owned(),
            });
        }
        Ok(Self::Memory(bytes))
    }
}

/// Returns the number of bytes of the elements, or an error if the number overflows.
pub(super) fn bytes_of(shape: &[usize], dtype: DType) -> Result<u64, DataProblem> {
    let product = shape.iter().try_fold(dtype.size(), |product, &size| product.checked_mul(size));
    product.map(|bytes| bytes as u64).ok_or(DataProblem::Truncated)
}
