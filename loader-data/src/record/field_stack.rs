//! Collation of the values of one field.

use std::ops::Range;

use loader_core::{
    AnyTensor, BytesArray, DType, Sample, Tensor,
    collate::{AnyStack, CollateError, CollateProblem, Stack},
};

use super::{Column, Record, RecordStack, Scalar, Value, rows::Numbers};

/// Collects the values of one field. The first value decides the kind.
#[derive(Debug)]
pub(super) enum FieldStack {
    Tensor(AnyStack),
    Ragged(Vec<Option<(AnyTensor, Scalar)>>),
    Texts(Vec<String>),
    Bytes(Vec<Vec<u8>>),
    Records(Box<RecordStack>),
    Values(Vec<Value>),
}

impl FieldStack {
    pub(super) fn new(first: &Value, capacity: usize) -> Self {
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

    pub(super) fn push(&mut self, value: Value) -> Result<(), CollateError> {
        match (self, value) {
            (Self::Tensor(stack), Value::Bool(value)) => {
                stack.push_row(DType::Bool, &[], &[u8::from(value)])?
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
            (_, Value::Null) => {
                let problem = "it is null, which no column of a batch can hold; fill it or drop the record";
                return Err(CollateProblem::Custom(anyhow::Error::msg(problem)).into());
            }
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

    /// Adds rows of a column of numbers, all of one source. The caller must have checked with the first row
    /// of this source that its rows fit.
    pub(super) fn push_runs(
        &mut self,
        column: Option<Numbers<'_>>,
        runs: &[(usize, Range<usize>)],
    ) -> Result<(), CollateProblem> {
        let (Self::Tensor(stack), Some(Numbers { dtype, shape, bytes })) = (self, column) else {
            unreachable!("the column of the first row was one of numbers")
        };
        stack.push_rows(dtype, shape, bytes, runs.iter().map(|(_, rows)| rows.clone()))
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

    pub(super) fn finish(self) -> Result<Column, CollateError> {
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

/// Pads each sequence after its end, with its own scalar, to the length of the longest. `None` is a sequence
/// without items.
fn padded(rows: &[Option<(AnyTensor, Scalar)>]) -> Result<Column, CollateError> {
    let Some((first, first_pad)) = rows.iter().flatten().next() else {
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
        let pad = row.as_ref().map_or(first_pad, |(_, pad)| pad);
        for element in bytes[filled.len()..].chunks_exact_mut(pad.as_bytes().len()) {
            element.copy_from_slice(pad.as_bytes());
        }
        stack.push_row(first.dtype(), &shape, &bytes)?;
    }
    let lengths: Vec<u64> = rows.iter().map(|row| length(row) as u64).collect();
    let lengths = Tensor::from_slice(&lengths, [rows.len()]).map_err(CollateProblem::from)?;
    Ok(Column::Padded { values: stack.finish()?, lengths })
}
