//! Hugging Face's safetensors: a header in JSON, and the elements of all tensors.

use std::sync::Arc;

use loader_core::DType;
use safetensors::tensor::{Dtype, Metadata};

use super::{Array, Elements, array::ElementType};
use crate::{
    error::{DataProblem, Result},
    source::Blob,
};

/// Maximum number of bytes of a header, as in the library of the format.
const MAX_HEADER: u64 = 100_000_000;

/// Returns the tensors in a file, in the order of their data.
pub(super) fn arrays(blob: &Arc<Blob>) -> Result<Vec<Array>> {
    let malformed = |reason| blob.error(0, DataProblem::Malformed { format: "safetensors", reason });
    let mut len = [0; 8];
    blob.read_exact_at(&mut len, 0)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        return Err(malformed(format!("the header claims to have {len} bytes")));
    }
    let start = 8 + len;
    let header: Metadata =
        serde_json::from_slice(&blob.read(8..start)?).map_err(|error| malformed(error.to_string()))?;
    let end = start + header.data_len() as u64;
    if end != blob.len() {
        return Err(if end > blob.len() {
            blob.error(blob.len(), DataProblem::Truncated)
        } else {
            malformed(format!("there are {} bytes after the last tensor", blob.len() - end))
        });
    }
    let mut tensors: Vec<_> = header.tensors().into_iter().collect();
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let array = |(name, tensor): (String, &safetensors::tensor::TensorInfo)| Array {
        name,
        shape: tensor.shape.clone(),
        element: element_type(tensor.dtype),
        elements: Elements::at(start + tensor.data_offsets.0 as u64),
    };
    Ok(tensors.into_iter().map(array).collect())
}

fn element_type(dtype: Dtype) -> Result<ElementType, DataProblem> {
    Ok(ElementType::little_endian(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        _ => return Err(DataProblem::Unsupported(format!("tensors of type {dtype:?}"))),
    }))
}
