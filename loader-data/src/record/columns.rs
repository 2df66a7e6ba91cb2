//! Batches of records.

use std::{fmt, ops::Index, sync::Arc};

use loader_core::{AnyTensor, BytesArray, Element, Tensor, TensorError, pack::Fill};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Value, names::Name};

/// A batch of [`Record`](crate::Record)s: one [`Column`] for each field, in the order of the first record.
///
/// # Examples
/// ```
/// use loader_core::{Sample, collate::Stack};
/// use loader_data::Record;
///
/// let mut stack = Record::stack(2);
/// for line in [r#"{"label": 3, "text": "a"}"#, r#"{"label": 4, "text": "b"}"#] {
///     stack.push(serde_json::from_str(line)?)?;
/// }
/// let batch = stack.finish()?;
/// assert_eq!(batch.tensor::<i64>("label")?.as_slice(), [3, 4]);
/// assert_eq!(batch["text"].texts(), Some(["a".to_owned(), "b".to_owned()].as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Columns {
    pub(super) columns: Vec<(Arc<str>, Column)>,
}

/// The values of one field in a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Column {
    /// Numbers: shape `[B]` for single numbers, `[B, ..S]` for tensors of shape `S`. Booleans are `Bool`.
    Tensor(AnyTensor),
    /// Sequences of different lengths.
    Padded {
        /// The padded sequences, shape `[B, longest, ..S]`.
        values: AnyTensor,
        /// Length of each sequence before padding, shape `[B]`.
        lengths: Tensor<u64>,
    },
    /// Texts.
    Texts(Vec<String>),
    /// Bytes.
    Bytes(BytesArray),
    /// Records.
    Columns(Columns),
    /// Lists, unchanged.
    Values(Vec<Value>),
}

impl Column {
    /// Returns the tensor, or `None` if this is another kind of column.
    pub fn tensor(&self) -> Option<&AnyTensor> {
        if let Self::Tensor(tensor) = self { Some(tensor) } else { None }
    }

    /// Returns the texts, or `None` if this is another kind of column.
    pub fn texts(&self) -> Option<&[String]> {
        if let Self::Texts(texts) = self { Some(texts) } else { None }
    }

    /// Returns the bytes, or `None` if this is another kind of column.
    pub fn bytes(&self) -> Option<&BytesArray> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// Why [`Columns::tensor`] returns no tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The batch has no such column.
    #[error("the batch has no column `{name}`; it has: {available}")]
    Missing {
        /// The column that was asked for.
        name: String,
        /// The columns of the batch, separated by commas.
        available: String,
    },
    /// The column is not a tensor.
    #[error("column `{name}` is not a tensor, but a list of texts, bytes, records or padded sequences")]
    NotATensor {
        /// The column.
        name: String,
    },
    /// The tensor has another dtype.
    #[error("column `{name}`: {error}")]
    DType {
        /// The column.
        name: String,
        /// The two dtypes.
        error: TensorError,
    },
}

impl Columns {
    /// Returns column `name`.
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(column, _)| &**column == name).map(|(_, column)| column)
    }

    /// Removes column `name` and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Column> {
        let position = self.columns.iter().position(|(column, _)| &**column == name)?;
        Some(self.columns.remove(position).1)
    }

    /// Returns the columns in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.columns.iter().map(|(name, column)| (&**name, column))
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// True if there are no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns column `name` as a tensor of `T`, which shares the data of the batch.
    ///
    /// # Errors
    /// Returns [`ColumnError`] if there is no such column, or it is not a tensor of `T`.
    pub fn tensor<T: Element>(&self, name: &str) -> Result<Tensor<T>, ColumnError> {
        let column = self.get(name).ok_or_else(|| ColumnError::Missing {
            name: name.to_owned(),
            available: self.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", "),
        })?;
        let Column::Tensor(tensor) = column else {
            return Err(ColumnError::NotATensor { name: name.to_owned() });
        };
        tensor.clone().downcast().map_err(|error| ColumnError::DType { name: name.to_owned(), error })
    }

    /// Returns the number of tokens of all padded columns together, without and with padding. Each item of a sequence
    /// is one token, whatever its shape, so a sequence of 30 boxes has 30 tokens, and a batch with the padded columns
    /// `tokens` and `labels` counts both. If the batch has the columns of packed windows, counts the tokens of the
    /// windows only. Returns `None` if no column is padded.
    pub fn fill(&self) -> Option<Fill> {
        if let Some(fill) = self.fill_of_windows() {
            return Some(fill);
        }
        let padded = self.columns.iter().filter_map(|(_, column)| match column {
            Column::Padded { values, lengths } => {
                let capacity = values.shape().iter().take(2).product::<usize>() as u64;
                Some(Fill { tokens: lengths.as_slice().iter().sum(), capacity })
            }
            _ => None,
        });
        padded.reduce(|one, other| one + other)
    }

    /// Returns the fill of packed windows; `None` if the batch has none.
    fn fill_of_windows(&self) -> Option<Fill> {
        let (Column::Tensor(tokens), Column::Tensor(segments), Column::Padded { values, .. }) =
            (self.get("tokens")?, self.get("segments")?, self.get("cu_seqlens")?)
        else {
            return None;
        };
        let (&[windows, ends], offsets) = (values.shape(), values.as_slice::<i32>()?) else { return None };
        if tokens.shape() != segments.shape() || tokens.len() != windows || ends == 0 {
            return None;
        }
        let last = offsets.chunks_exact(ends).filter_map(|offsets| u64::try_from(*offsets.last()?).ok());
        Some(Fill { tokens: last.sum(), capacity: tokens.numel() as u64 })
    }
}

/// Returns the columns in order, with their names.
impl IntoIterator for Columns {
    type Item = (Arc<str>, Column);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.columns.into_iter()
    }
}

impl Index<&str> for Columns {
    type Output = Column;

    /// # Panics
    /// Panics if there is no such column.
    fn index(&self, name: &str) -> &Column {
        self.get(name).unwrap_or_else(|| panic!("the batch has no column `{name}`"))
    }
}

impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let columns = Vec::<(Name, Column)>::deserialize(deserializer)?;
        Ok(Self { columns: columns.into_iter().map(|(Name(name), column)| (name, column)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use loader_core::{Sample, collate::Stack};

    use super::*;
    use crate::record::{Record, Scalar};

    #[test]
    fn the_fill_counts_the_items_of_all_padded_columns() {
        let sequence = |shape: &[usize]| {
            let items = Tensor::from_vec(vec![7i64; shape.iter().product()], shape).unwrap();
            Value::Ragged(items.into(), Scalar::new(0i64))
        };
        let mut stack = Record::stack(2);
        for (tokens, boxes) in [(3, 1), (1, 2)] {
            let row =
                [("n", Value::from(1i64)), ("tokens", sequence(&[tokens])), ("boxes", sequence(&[boxes, 4]))];
            stack.push(row.into_iter().collect()).unwrap();
        }
        let mut batch = stack.finish().unwrap();
        assert_eq!(batch.fill(), Some(Fill { tokens: 4 + 3, capacity: 2 * 3 + 2 * 2 }));
        batch.remove("boxes");
        assert_eq!(batch.fill(), Some(Fill { tokens: 4, capacity: 6 }));
        batch.remove("tokens");
        assert_eq!(batch.fill(), None);
    }

    #[test]
    fn a_column_of_another_type_is_refused() {
        let mut stack = Record::stack(1);
        stack.push(serde_json::from_str(r#"{"a": 1, "b": "x"}"#).unwrap()).unwrap();
        let batch = stack.finish().unwrap();
        assert!(matches!(batch.tensor::<f32>("a"), Err(ColumnError::DType { .. })));
        assert!(matches!(batch.tensor::<f32>("b"), Err(ColumnError::NotATensor { .. })));
        let missing = batch.tensor::<f32>("c").unwrap_err();
        assert_eq!(missing.to_string(), "the batch has no column `c`; it has: a, b");
    }
}
