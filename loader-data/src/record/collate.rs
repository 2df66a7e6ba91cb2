//! Batches of records.

use std::{fmt, ops::Index, sync::Arc};

use loader_core::{
    AnyTensor, BytesArray, DType, Element, Sample, Tensor, TensorError,
    collate::{AnyStack, CollateError, CollateProblem, Convert, Stack},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Record, Scalar, Value, names::Name};

/// A batch of [`Record`]s: one [`Column`] for each field, in the order of the first record.
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
    columns: Vec<(Arc<str>, Column)>,
}

/// The values of one field in a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Column {
    /// Numbers: shape `[B]` for single numbers, `[B, ..S]` for tensors of shape `S`. Truth values are `u8`.
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

/// The [`Stack`] of [`Record`]: one stack for each field. All records must have the fields of the first record.
#[derive(Debug)]
pub struct RecordStack {
    capacity: usize,
    fields: Option<Vec<(Arc<str>, FieldStack)>>,
}

impl Sample for Record {
    type Batch = Columns;
    type Stack = RecordStack;

    fn stack(samples: usize) -> RecordStack {
        RecordStack { capacity: samples, fields: None }
    }
}

impl Convert for Record {
    type Item = Keep;

    fn convert(self) -> Result<Keep, CollateError> {
        Ok(loader_core::collate::Keep(self))
    }
}

type Keep = loader_core::collate::Keep<Record>;

impl Stack for RecordStack {
    type Sample = Record;
    type Batch = Columns;

    fn push(&mut self, record: Record) -> Result<(), CollateError> {
        let Some(stacks) = &mut self.fields else {
            let mut stacks = Vec::with_capacity(record.len());
            for (name, value) in record.fields {
                let mut stack = FieldStack::new(&value, self.capacity);
                stack.push(value).map_err(|error| error.in_field(&*name))?;
                stacks.push((name, stack));
            }
            self.fields = Some(stacks);
            return Ok(());
        };
        // Records of one dataset usually have their fields in the same order.
        let is_same = record.len() == stacks.len()
            && stacks.iter().zip(&record.fields).all(|((one, _), (other, _))| one == other);
        let mut record = record;
        if !is_same {
            let mut sorted = Record::new();
            for (name, _) in &*stacks {
                let missing = || CollateProblem::MissingKey { key: format!("{name:?}") };
                sorted.fields.push((Arc::clone(name), record.remove(name).ok_or_else(missing)?));
            }
            if let Some((name, _)) = record.fields.first() {
                return Err(CollateProblem::NewKey { key: format!("{name:?}") }.into());
            }
            record = sorted;
        }
        for ((name, stack), (_, value)) in stacks.iter_mut().zip(record.fields) {
            stack.push(value).map_err(|error| error.in_field(&**name))?;
        }
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        self.fields.as_ref().is_none_or(|fields| fields.iter().any(|(_, stack)| stack.makes_tensors()))
    }

    fn finish(self) -> Result<Columns, CollateError> {
        let fields = self.fields.unwrap_or_default().into_iter();
        let columns = fields.map(|(name, stack)| {
            let column = stack.finish().map_err(|error| error.in_field(&*name))?;
            Ok((name, column))
        });
        Ok(Columns { columns: columns.collect::<Result<_, CollateError>>()? })
    }
}

/// Collects the values of one field. The first value decides the kind.
#[derive(Debug)]
enum FieldStack {
    Tensor(AnyStack),
    Ragged(Vec<Option<(AnyTensor, Scalar)>>),
    Texts(Vec<String>),
    Bytes(Vec<Vec<u8>>),
    Records(Box<RecordStack>),
    Values(Vec<Value>),
}

impl FieldStack {
    fn new(first: &Value, capacity: usize) -> Self {
        match first {
            Value::Ragged(..) => Self::Ragged(Vec::new()),
            Value::Text(_) => Self::Texts(Vec::new()),
            Value::Bytes(_) => Self::Bytes(Vec::new()),
            Value::Record(_) => Self::Records(Box::new(Record::stack(capacity))),
            Value::List(_) => Self::Values(Vec::new()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Tensor(_) => {
                Self::Tensor(AnyStack::new(capacity))
            }
        }
    }

    fn push(&mut self, value: Value) -> Result<(), CollateError> {
        match (self, value) {
            (Self::Tensor(stack), Value::Bool(value)) => {
                stack.push_row(DType::U8, &[], &[u8::from(value)])?
            }
            (Self::Tensor(stack), Value::Number(number)) => {
                stack.push_row(number.dtype(), &[], number.as_bytes())?
            }
            (Self::Tensor(stack), Value::Tensor(tensor)) => stack.push(tensor)?,
            (Self::Ragged(rows), Value::Ragged(tensor, pad)) => rows.push(Some((tensor, pad))),
            (Self::Ragged(rows), Value::List(list)) if list.is_empty() => rows.push(None),
            // Only sequences without items came before.
            (this @ Self::Values(_), Value::Ragged(tensor, pad)) if this.is_without_items() => {
                let Self::Values(values) = &*this else { unreachable!("it was just matched") };
                let mut rows: Vec<_> = values.iter().map(|_| None).collect();
                rows.push(Some((tensor, pad)));
                *this = Self::Ragged(rows);
            }
            (Self::Texts(texts), Value::Text(text)) => texts.push(text),
            (Self::Bytes(list), Value::Bytes(bytes)) => list.push(bytes),
            (Self::Records(stack), Value::Record(record)) => stack.push(record)?,
            (Self::Values(values), value @ (Value::List(_) | Value::Tensor(_))) => values.push(value),
            (this, value) => {
                let problem = format!(
                    "it is {}, but {} before it; fill it, convert it, or drop the record",
                    value.kind(),
                    this.kind()
                );
                return Err(CollateProblem::Custom(anyhow::Error::msg(problem)).into());
            }
        }
        Ok(())
    }

    fn is_without_items(&self) -> bool {
        matches!(self, Self::Values(values) if values.iter().all(|value| matches!(value, Value::List(list) if list.is_empty())))
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "numbers were",
            Self::Ragged(_) => "sequences of numbers were",
            Self::Texts(_) => "texts were",
            Self::Bytes(_) => "bytes were",
            Self::Records(_) => "records were",
            Self::Values(_) => "lists were",
        }
    }

    fn makes_tensors(&self) -> bool {
        match self {
            Self::Tensor(stack) => stack.makes_tensors(),
            Self::Records(stack) => stack.makes_tensors(),
            _ => false,
        }
    }

    fn finish(self) -> Result<Column, CollateError> {
        Ok(match self {
            Self::Tensor(stack) => Column::Tensor(stack.finish()?),
            Self::Ragged(rows) => padded(&rows)?,
            Self::Texts(texts) => Column::Texts(texts),
            Self::Bytes(list) => Column::Bytes(BytesArray::new(&list).map_err(CollateProblem::from)?),
            Self::Records(stack) => Column::Columns(stack.finish()?),
            Self::Values(values) => Column::Values(values),
        })
    }
}

/// Pads sequences after their end to the length of the longest. `None` is a sequence without items.
fn padded(rows: &[Option<(AnyTensor, Scalar)>]) -> Result<Column, CollateError> {
    let Some((first, pad)) = rows.iter().flatten().next() else {
        return Err(CollateProblem::NotASequence.into());
    };
    let [_, item @ ..] = first.shape() else { return Err(CollateProblem::NotASequence.into()) };
    let length = |row: &Option<(AnyTensor, Scalar)>| row.as_ref().map_or(0, |(tensor, _)| tensor.len());
    let longest = rows.iter().map(length).max().unwrap_or(0);
    let shape = [&[longest], item].concat();
    let item_bytes = item.iter().product::<usize>() * first.dtype().size();
    let mut stack = AnyStack::new(rows.len());
    let mut bytes = vec![0; longest * item_bytes];
    for row in rows {
        let filled = match row {
            Some((tensor, _)) if tensor.dtype() != first.dtype() => {
                return Err(
                    CollateProblem::MixedDTypes { expected: first.dtype(), found: tensor.dtype() }.into()
                );
            }
            Some((tensor, _)) if tensor.shape().get(1..) != Some(item) => {
                let (expected, found) = (first.shape().to_vec(), tensor.shape().to_vec());
                return Err(CollateProblem::Ragged { expected, found }.into());
            }
            Some((tensor, _)) => tensor.as_bytes(),
            None => &[],
        };
        bytes[..filled.len()].copy_from_slice(filled);
        for element in bytes[filled.len()..].chunks_exact_mut(pad.as_bytes().len()) {
            element.copy_from_slice(pad.as_bytes());
        }
        stack.push_row(first.dtype(), &shape, &bytes)?;
    }
    let lengths: Vec<u64> = rows.iter().map(|row| length(row) as u64).collect();
    let lengths = Tensor::from_slice(&lengths, [rows.len()]).map_err(CollateProblem::from)?;
    Ok(Column::Padded { values: stack.finish()?, lengths })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FieldOptions;

    fn batch(options: &FieldOptions, lines: &[&str]) -> Result<Columns, CollateError> {
        let mut stack = Record::stack(lines.len());
        for line in lines {
            stack.push(options.apply(serde_json::from_str(line).unwrap()).unwrap())?;
        }
        stack.finish()
    }

    #[test]
    fn each_kind_of_value_becomes_a_column() {
        let lines = [
            r#"{"n": 1, "flag": true, "t": [1.5, 2], "s": "a", "r": {"x": 1}, "l": ["a", 1], "seq": []}"#,
            r#"{"flag": false, "n": 2, "t": [3.5, 4], "s": "b", "r": {"x": 2}, "l": [], "seq": [7, 8]}"#,
            r#"{"n": 3, "flag": true, "t": [0.5, 1], "s": "c", "r": {"x": 3}, "l": ["b"], "seq": [9]}"#,
        ];
        let batch = batch(&FieldOptions::new().pad("seq", -1.0), &lines).unwrap();
        assert_eq!(batch.tensor::<i64>("n").unwrap().as_slice(), [1, 2, 3]);
        assert_eq!(batch.tensor::<u8>("flag").unwrap().as_slice(), [1, 0, 1]);
        assert_eq!(batch.tensor::<f64>("t").unwrap().shape(), [3, 2]);
        assert_eq!(batch["s"].texts().unwrap(), ["a", "b", "c"]);
        assert!(
            matches!(&batch["r"], Column::Columns(inner) if inner.tensor::<i64>("x").unwrap().len() == 3)
        );
        assert!(matches!(&batch["l"], Column::Values(values) if values.len() == 3));
        let Column::Padded { values, lengths } = &batch["seq"] else { panic!("{:?}", batch["seq"]) };
        assert_eq!((values.shape(), lengths.as_slice()), ([3, 2].as_slice(), [0, 2, 1].as_slice()));
        assert_eq!(values.as_slice::<i64>().unwrap(), [-1, -1, 7, 8, 9, -1]);
    }

    #[test]
    fn records_that_do_not_fit_are_refused_with_the_name_of_the_field() {
        let refused = |lines: &[&str]| batch(&FieldOptions::new(), lines).unwrap_err().to_string();
        assert!(refused(&[r#"{"a": 1}"#, r#"{"a": 1.5}"#]).starts_with("field `a`: dtype float64 differs"));
        assert!(refused(&[r#"{"a": [1]}"#, r#"{"a": [1, 2]}"#]).starts_with("field `a`: shape [2] differs"));
        assert!(refused(&[r#"{"a": 1}"#, r#"{"a": null}"#]).contains("null, but numbers were before it"));
        assert!(refused(&[r#"{"a": null}"#]).contains("field `a`: it is null"));
        assert!(
            refused(&[r#"{"a": 1}"#, r#"{"b": 1}"#])
                .contains("is missing; all samples of a batch must have the same keys")
        );
        assert!(
            refused(&[r#"{"a": {"x": 1}}"#, r#"{"a": {"x": ""}}"#]).starts_with("field `a.x`: it is a text")
        );
    }

    #[test]
    fn a_column_of_another_type_is_refused() {
        let batch = batch(&FieldOptions::new(), &[r#"{"a": 1, "b": "x"}"#]).unwrap();
        assert!(matches!(batch.tensor::<f32>("a"), Err(ColumnError::DType { .. })));
        assert!(matches!(batch.tensor::<f32>("b"), Err(ColumnError::NotATensor { .. })));
        let missing = batch.tensor::<f32>("c").unwrap_err();
        assert_eq!(missing.to_string(), "the batch has no column `c`; it has: a, b");
    }
}
