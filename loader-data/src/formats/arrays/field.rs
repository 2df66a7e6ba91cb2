//! A field of the rows: an array, or the arrays of several files one after the other.

use loader_core::AnyTensor;
use serde::{Deserialize, Serialize};

use super::{
    Array, Elements,
    array::{ElementType, bytes_of},
};
use crate::{
    error::{DataError, DataProblem, Result},
    record::{Scalar, Value},
    source::{DataFile, Files},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Field {
    pub(super) name: String,
    element: ElementType,
    /// Shape of a row; empty if a row is a number.
    shape: Vec<usize>,
    row_bytes: u64,
    /// The arrays, in the order of the files.
    parts: Vec<FieldPart>,
}

/// The array of a field in one file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct FieldPart {
    /// Index of the file.
    file: usize,
    /// Number of rows in this part and those before it.
    end: usize,
    elements: Elements,
}

impl Field {
    /// Creates the field of an array in `file`, which has the index `number`.
    pub(super) fn new(number: usize, file: &DataFile, array: Array) -> Result<Self, DataProblem> {
        let unsupported = |problem| match problem {
            DataProblem::Unsupported(reason) => {
                DataProblem::Unsupported(format!("field `{}`: {reason}", array.name))
            }
            problem => problem,
        };
        let element = array.element.map_err(unsupported)?;
        let Some((&rows, shape)) = array.shape.split_first() else {
            return Err(DataProblem::WrongType {
                field: array.name,
                expected: "an array with rows".to_owned(),
                found: "a single number; select other fields".to_owned(),
            });
        };
        let row_bytes = bytes_of(shape, element.dtype)?;
        if let Elements::File { offset, stride } = array.elements {
            let before_last = (rows as u64).saturating_sub(1).checked_mul(stride.unwrap_or(row_bytes));
            let last = before_last.and_then(|bytes| bytes.checked_add(offset));
            let end = last.and_then(|last| last.checked_add(row_bytes));
            if rows > 0 && end.is_none_or(|end| end > file.len) {
                return Err(DataProblem::Truncated);
            }
        }
        let part = FieldPart { file: number, end: rows, elements: array.elements };
        Ok(Self { name: array.name, element, shape: shape.to_owned(), row_bytes, parts: vec![part] })
    }

    /// Adds the array of another file, whose rows follow.
    pub(super) fn append(&mut self, other: Self) -> Result<(), DataProblem> {
        if (other.element.dtype, &other.shape) != (self.element.dtype, &self.shape)
            || other.element != self.element
        {
            let (expected, found) = (self.row_type(), other.row_type());
            return Err(DataProblem::WrongType { field: other.name, expected, found });
        }
        let before = self.rows();
        self.parts.extend(other.parts.into_iter().map(|part| FieldPart { end: before + part.end, ..part }));
        Ok(())
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Describes a row, such as `a uint8 array of shape [28, 28]`.
    pub(super) fn row_type(&self) -> String {
        let order = if self.element.is_big_endian { "big-endian " } else { "" };
        match &self.shape[..] {
            [] => format!("{order}{}", self.element.dtype),
            shape => format!("{order}{} array of shape {shape:?}", self.element.dtype),
        }
    }

    /// Reads the rows `indices`. From a server, the rows of one file are fetched together.
    pub(super) fn read(&self, files: &Files, indices: &[usize]) -> Result<Vec<Value>> {
        let mut values = Vec::with_capacity(indices.len());
        let mut rest = indices;
        while let Some(&first) = rest.first() {
            let number = self.parts.partition_point(|part| part.end <= first);
            let part = &self.parts[number];
            let rows = number.checked_sub(1).map_or(0, |before| self.parts[before].end)..part.end;
            let count = rest.iter().take_while(|index| rows.contains(index)).count();
            let of_part;
            (of_part, rest) = rest.split_at(count);
            let failed = |problem| DataError::new(&files.get(part.file).location, problem);
            let starts = of_part.iter().map(|index| (index - rows.start) as u64);
            match &part.elements {
                Elements::Memory(bytes) => {
                    for start in starts.map(|row| (row * self.row_bytes) as usize) {
                        let row = &bytes.as_slice()[start..start + self.row_bytes as usize];
                        values.push(self.value(row).map_err(failed)?);
                    }
                }
                Elements::File { offset, stride } => {
                    let stride = stride.unwrap_or(self.row_bytes);
                    let ranges: Vec<_> =
                        starts.map(|row| offset + row * stride).map(|at| at..at + self.row_bytes).collect();
                    for row in files.open(part.file)?.read_ranges(&ranges)? {
                        values.push(self.value(&row).map_err(failed)?);
                    }
                }
            }
        }
        Ok(values)
    }

    fn value(&self, row: &[u8]) -> Result<Value, DataProblem> {
        let swapped: Vec<u8>;
        let mut row = row;
        let ElementType { dtype, is_big_endian } = self.element;
        if is_big_endian {
            swapped =
                row.chunks_exact(dtype.size()).flat_map(|element| element.iter().rev().copied()).collect();
            row = &swapped;
        }
        if self.shape.is_empty() {
            return Ok(Scalar::from_bytes(dtype, row).into());
        }
        AnyTensor::from_bytes(dtype, self.shape.as_slice(), row)
            .map(Value::Tensor)
            .map_err(|error| DataProblem::Memory(error.to_string()))
    }
}
