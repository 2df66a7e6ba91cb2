//! Columns whose values are in the names of folders, such as `year=2024`.

use std::{iter, sync::Arc};

use arrow_array::{ArrayRef, Int32Array, NullArray, StringArray};
use loader_core::DType;

use super::ColumnKind;
use crate::{
    error::{DataError, DataProblem, Result},
    source::{DataFile, Files},
};

/// Returns the columns that the folders of `files` give, in order. A column whose values are all 32-bit integers has
/// such numbers, and another one has texts, as pyarrow reads them.
///
/// # Errors
/// Returns [`DataProblem::OtherPartition`] if not all files have the same columns.
pub(crate) fn partition_columns(files: &Files) -> Result<Vec<(String, ColumnKind)>> {
    let first = files.get(0);
    let mut columns: Vec<_> =
        first.partition.iter().map(|(name, _)| (name.clone(), ColumnKind::Null)).collect();
    for file in (0..files.len()).map(|file| files.get(file)) {
        if !file.partition.iter().map(|(name, _)| name).eq(columns.iter().map(|(name, _)| name)) {
            let problem = DataProblem::OtherPartition {
                found: names(&file),
                first: first.location.to_string().into(),
                expected: names(&first),
            };
            return Err(DataError::new(&file.location, problem));
        }
        for ((_, kind), (_, value)) in columns.iter_mut().zip(&file.partition) {
            *kind = match (&*kind, value) {
                (kind, None) => kind.clone(),
                (ColumnKind::Null | ColumnKind::Number(DType::I32), Some(text))
                    if integer(text).is_some() =>
                {
                    ColumnKind::Number(DType::I32)
                }
                _ => ColumnKind::Text,
            };
        }
    }
    Ok(columns)
}

fn names(file: &DataFile) -> String {
    let names: Vec<&str> = file.partition.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() { "(none)".to_owned() } else { names.join(", ") }
}

/// Parses a number as pyarrow does: a sign is a `-`.
fn integer(text: &str) -> Option<i32> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// The value of a column in each row of a file.
#[derive(Debug, Clone)]
pub(crate) struct PartitionValue {
    kind: ColumnKind,
    text: Option<String>,
}

impl PartitionValue {
    /// Returns the value of each of `columns` that the folders of `file` give; `None` for a column in the file.
    pub(crate) fn of(columns: &[(String, ColumnKind)], file: &DataFile) -> Vec<Option<Self>> {
        let value = |(name, kind): &(String, ColumnKind)| {
            let (_, text) = file.partition.iter().find(|(column, _)| column == name)?;
            Some(Self { kind: kind.clone(), text: text.clone() })
        };
        columns.iter().map(value).collect()
    }

    /// Returns the values of `rows` rows.
    pub(crate) fn array(&self, rows: usize) -> ArrayRef {
        let Some(text) = &self.text else { return Arc::new(NullArray::new(rows)) };
        match self.kind {
            ColumnKind::Number(_) => {
                Arc::new(Int32Array::from_value(integer(text).unwrap_or_default(), rows))
            }
            _ => Arc::new(StringArray::from_iter_values(iter::repeat_n(text, rows))),
        }
    }
}
