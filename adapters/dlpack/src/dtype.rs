//! Converts between the dtypes of the loader and of DLPack.

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use loader_core::DType;

/// Converts a dtype of the loader to the data type of DLPack; `None` if DLPack has none.
pub fn data_type_of(dtype: DType) -> Option<DLDataType> {
    Some(match dtype {
        DType::U8 => DLDataType::U8,
        DType::I8 => DLDataType::I8,
        DType::U16 => DLDataType::U16,
        DType::I16 => DLDataType::I16,
        DType::U32 => DLDataType::U32,
        DType::I32 => DLDataType::I32,
        DType::U64 => DLDataType::U64,
        DType::I64 => DLDataType::I64,
        DType::F16 => DLDataType::scalar(DLDataTypeCode::FLOAT, 16),
        DType::BF16 => DLDataType::scalar(DLDataTypeCode::BFLOAT, 16),
        DType::F32 => DLDataType::F32,
        DType::F64 => DLDataType::F64,
        DType::Bool => DLDataType::BOOL,
        _ => return None,
    })
}

/// Converts a data type of DLPack to the dtype of the loader; `None` if the loader has none, as for vectors of more
/// than one lane.
pub fn dtype_of(data_type: DLDataType) -> Option<DType> {
    let is_same = |dtype: &DType| data_type_of(*dtype).is_some_and(|same| same.matches(data_type));
    DType::ALL.iter().copied().find(is_same)
}

/// Returns a name such as `complex64`, or `float32 in vectors of 4`.
pub(crate) fn name_of(data_type: DLDataType) -> String {
    let code = match data_type.code {
        DLDataTypeCode::INT => "int",
        DLDataTypeCode::UINT => "uint",
        DLDataTypeCode::FLOAT => "float",
        DLDataTypeCode::BFLOAT => "bfloat",
        DLDataTypeCode::COMPLEX => "complex",
        DLDataTypeCode::BOOL => "bool",
        DLDataTypeCode(code) => return format!("with the code {code} and {} bits", data_type.bits),
    };
    let lanes = match data_type.lanes {
        1 => String::new(),
        lanes => format!(" in vectors of {lanes}"),
    };
    format!("{code}{}{lanes}", data_type.bits)
}
