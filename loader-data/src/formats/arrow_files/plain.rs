//! The types of gathered arrays: one type each for texts, bytes and lists, and no dictionaries.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, Field, FieldRef};

use super::items::total;

/// Starts an array of type `data_type` with one value for each of `rows`.
pub(super) fn builder(
    data_type: DataType,
    rows: &[Range<u64>],
    nulls: Option<NullBuffer>,
) -> ArrayDataBuilder {
    ArrayData::builder(data_type).len(total(rows) as usize).nulls(nulls)
}

/// Returns the number of bytes of a value; 0 if the type has no fixed width.
pub(super) fn width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeBinary(width) => u64::try_from(*width).unwrap_or(0),
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

pub(super) fn is_large(data_type: &DataType) -> bool {
    use DataType::{LargeBinary, LargeList, LargeListView, LargeUtf8};
    matches!(data_type, LargeUtf8 | LargeBinary | LargeList(_) | LargeListView(_))
}

pub(super) fn text_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        _ => DataType::Binary,
    }
}

/// Returns `field` with the type of `array`. The field is nullable, because the fields of a null record or
/// list are null.
pub(super) fn plain_field(field: &Field, array: &ArrayRef) -> FieldRef {
    Arc::new(Field::new(field.name(), array.data_type().clone(), true))
}

/// True if a value of this type has bytes in a file.
pub(super) fn has_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null => false,
        DataType::FixedSizeBinary(width) => *width > 0,
        DataType::FixedSizeList(item, len) => *len > 0 && has_bytes(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_bytes(field.data_type())),
        _ => true,
    }
}

/// Extends integers of `width` bytes to 16 bytes.
pub(super) fn widened(numbers: &[u8], width: usize) -> Buffer {
    let number = |bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => i128::from(i32::from_le_bytes(bytes)),
        Err(_) => i128::from(i64::from_le_bytes(bytes.try_into().expect("it has 4 or 8 bytes"))),
    };
    Buffer::from_vec(numbers.chunks_exact(width).map(number).collect())
}
