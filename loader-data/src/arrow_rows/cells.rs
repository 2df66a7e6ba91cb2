//! The decoded values of a column.

use std::{borrow::Cow, ops::Range, sync::Arc};

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, ListArray,
    MapArray, PrimitiveArray, StringArray, StructArray,
    types::{Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType},
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use loader_core::{AnyTensor, DType};

use super::number_type;
use crate::{
    error::DataProblem,
    record::{Record, Scalar, Value, stacked},
};

/// The values of a column in some rows. Each kind of array is told apart once, not once for each row.
#[derive(Debug)]
pub(crate) struct Cells {
    nulls: Option<NullBuffer>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Null,
    Bool(BooleanBuffer),
    Number(DType, Buffer),
    Text(StringArray),
    Bytes(BinaryArray),
    FixedBytes(FixedSizeBinaryArray),
    List(OffsetBuffer<i32>, Box<Cells>),
    FixedList(usize, Box<Cells>),
    Record(Vec<(Arc<str>, Cells)>),
}

impl Cells {
    /// Takes the values of `array`.
    ///
    /// # Errors
    /// Returns the type of the array, or of a part of it, if it is not supported.
    pub(crate) fn new(array: &ArrayRef) -> Result<Self, String> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        let values = match array.data_type() {
            DataType::Null => Values::Null,
            DataType::Boolean => Values::Bool(typed::<BooleanArray>(array)?.values().clone()),
            DataType::Utf8 => Values::Text(typed::<StringArray>(array)?.clone()),
            DataType::Binary => Values::Bytes(typed::<BinaryArray>(array)?.clone()),
            DataType::FixedSizeBinary(_) => Values::FixedBytes(typed::<FixedSizeBinaryArray>(array)?.clone()),
            DataType::Decimal32(..) => Values::Number(DType::F64, decimals::<Decimal32Type>(array)?),
            DataType::Decimal64(..) => Values::Number(DType::F64, decimals::<Decimal64Type>(array)?),
            DataType::Decimal128(..) => Values::Number(DType::F64, decimals::<Decimal128Type>(array)?),
            DataType::Decimal256(..) => Values::Number(DType::F64, decimals::<Decimal256Type>(array)?),
            DataType::List(_) => {
                let list = typed::<ListArray>(array)?;
                Values::List(list.offsets().clone(), Self::new(list.values())?.into())
            }
            DataType::Map(..) => {
                let map = typed::<MapArray>(array)?;
                let entries: ArrayRef = Arc::new(map.entries().clone());
                Values::List(map.offsets().clone(), Self::new(&entries)?.into())
            }
            DataType::FixedSizeList(..) => {
                let list = typed::<FixedSizeListArray>(array)?;
                // `values` begins with the first value of the first row, even if the array is a slice.
                Values::FixedList(list.value_length() as usize, Self::new(list.values())?.into())
            }
            DataType::Struct(fields) => {
                let columns = typed::<StructArray>(array)?.columns();
                let cells = fields
                    .iter()
                    .zip(columns)
                    .map(|(field, column)| Ok((Arc::from(field.name().as_str()), Self::new(column)?)));
                Values::Record(cells.collect::<Result<_, String>>()?)
            }
            other => {
                let dtype = number_type(other).ok_or_else(|| other.to_string())?;
                let data = array.to_data();
                let width = dtype.size();
                let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
                Values::Number(dtype, bytes)
            }
        };
        Ok(Self { nulls, values })
    }

    /// Returns the value of row `row`.
    ///
    /// # Errors
    /// Returns [`DataProblem::Memory`] if there is no memory for a tensor.
    pub(crate) fn value(&self, row: usize) -> Result<Value, DataProblem> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(Value::Null);
        }
        Ok(match &self.values {
            Values::Null => Value::Null,
            Values::Bool(bits) => Value::Bool(bits.value(row)),
            Values::Number(dtype, bytes) => {
                let width = dtype.size();
                Value::Number(Scalar::from_bytes(*dtype, &bytes[row * width..(row + 1) * width]))
            }
            Values::Text(texts) => Value::Text(texts.value(row).to_owned()),
            Values::Bytes(list) => Value::Bytes(list.value(row).to_owned()),
            Values::FixedBytes(list) => Value::Bytes(list.value(row).to_owned()),
            Values::List(offsets, items) => {
                items.sequence(offsets[row] as usize..offsets[row + 1] as usize)?
            }
            Values::FixedList(len, items) => items.sequence(row * len..(row + 1) * len)?,
            Values::Record(fields) => {
                let fields = fields.iter().map(|(name, cells)| Ok((Arc::clone(name), cells.value(row)?)));
                Value::Record(Record::from_fields(fields.collect::<Result<_, DataProblem>>()?))
            }
        })
    }

    /// Returns the values of all rows if they are numbers, or lists of numbers with one shape: the dtype, the
    /// shape of a value, and the bytes of all values.
    pub(super) fn all_numbers(&self) -> Option<(DType, Vec<usize>, Buffer)> {
        if self.nulls.is_some() {
            return None;
        }
        let of_items = |len: usize, first: usize, items: &Self| {
            let (dtype, mut shape, bytes) = items.all_numbers()?;
            let item = shape.iter().product::<usize>() * dtype.size();
            shape.insert(0, len);
            Some((dtype, shape, bytes.slice(first * item)))
        };
        match &self.values {
            Values::Number(dtype, bytes) => Some((*dtype, Vec::new(), bytes.clone())),
            Values::FixedList(len, items) => of_items(*len, 0, items),
            Values::List(offsets, items) => {
                let mut lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]);
                let len = lengths.next()?;
                lengths
                    .all(|other| other == len)
                    .then(|| of_items(len as usize, offsets[0] as usize, items))?
            }
            _ => None,
        }
    }

    /// Returns the values of `rows` as one value: a tensor if they are numbers of one shape, or else a list.
    fn sequence(&self, rows: Range<usize>) -> Result<Value, DataProblem> {
        let mut shape = vec![rows.len()];
        if let Some((dtype, bytes)) = self.numbers(rows.clone(), &mut shape) {
            let tensor = AnyTensor::from_bytes(dtype, shape, &bytes);
            return tensor.map(Value::Tensor).map_err(|error| DataProblem::Memory(error.to_string()));
        }
        let list = rows.map(|row| self.value(row)).collect::<Result<Vec<_>, _>>()?;
        // As in JSON, a list of tensors of one shape is a tensor.
        let is_of_tensors = matches!(list.first(), Some(Value::Tensor(_)));
        Ok(is_of_tensors.then(|| stacked(&list)).flatten().map_or(Value::List(list), Value::Tensor))
    }

    /// Returns the bytes of `rows`, and adds to `shape` the shape of a row. `None` if they are not numbers of
    /// one shape, or one of them is null.
    fn numbers(&self, rows: Range<usize>, shape: &mut Vec<usize>) -> Option<(DType, Cow<'_, [u8]>)> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.slice(rows.start, rows.len()).null_count() > 0) {
            return None;
        }
        match &self.values {
            Values::Number(dtype, bytes) => {
                let width = dtype.size();
                Some((*dtype, bytes[rows.start * width..rows.end * width].into()))
            }
            Values::Bool(bits) => {
                Some((DType::Bool, rows.map(|row| u8::from(bits.value(row))).collect::<Vec<_>>().into()))
            }
            Values::FixedList(len, items) => {
                shape.push(*len);
                items.numbers(rows.start * len..rows.end * len, shape)
            }
            _ => None,
        }
    }
}

fn typed<T: Array + 'static>(array: &ArrayRef) -> Result<&T, String> {
    array.as_any().downcast_ref().ok_or_else(|| array.data_type().to_string())
}

/// Converts decimals to `f64`, rounded to the nearest.
fn decimals<T: DecimalType>(array: &ArrayRef) -> Result<Buffer, String> {
    let decimals = typed::<PrimitiveArray<T>>(array)?;
    let number = |row| {
        if decimals.is_null(row) {
            return Ok(0.0);
        }
        decimals.value_as_string(row).parse().map_err(|_| array.data_type().to_string())
    };
    let numbers: Vec<f64> = (0..decimals.len()).map(number).collect::<Result<_, String>>()?;
    Ok(Buffer::from_vec(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_of_each_width_are_floats() {
        fn check<T: DecimalType>(numbers: [T::Native; 2]) {
            let array = PrimitiveArray::<T>::from_iter([Some(numbers[0]), None, Some(numbers[1])]);
            let array: ArrayRef = Arc::new(array.with_precision_and_scale(7, 3).unwrap());
            let cells = Cells::new(&array).unwrap();
            let values: Vec<_> = (0..3).map(|row| cells.value(row).unwrap()).collect();
            assert_eq!(values, [Value::from(-1.005), Value::Null, Value::from(1234.567)], "{array:?}");
        }
        check::<Decimal32Type>([-1005, 1_234_567]);
        check::<Decimal64Type>([-1005, 1_234_567]);
        check::<Decimal128Type>([-1005, 1_234_567]);
        check::<Decimal256Type>([(-1005).into(), 1_234_567.into()]);
    }
}
