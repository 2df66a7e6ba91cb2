//! Collation of the values of one field.

use std::ops::Range;

use anyhow::anyhow;
use loader_core::{
    AnyTensor, BytesArray, DType, Sample, Tensor,
    collate::{CollateError, CollateProblem, Stack},
};

use super::{
    Column, Record, RecordStack, Scalar, Value,
    number_stack::{NumberStack, common_dtype, in_common_dtype},
    rows::Numbers,
};

/// Collects the values of one field. The first value decides the kind. Values of two kinds are an error, whichever comes
/// first.
#[derive(Debug)]
pub(super) enum FieldStack {
    Tensor(NumberStack),
    Ragged(Vec<(AnyTensor, Scalar)>),
    Texts(Vec<String>),
    Bytes(Vec<Vec<u8>>),
    Records(Box<RecordStack>),
    /// Lists that cannot be rows of a tensor.
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
                Self::Tensor(NumberStack::new(capacity))
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
            (Self::Tensor(stack), Value::List(list)) if list.is_empty() => stack.push_empty_list()?,
            (Self::Ragged(rows), Value::Ragged(tensor, pad)) => rows.push((tensor, pad)),
            (Self::Texts(texts), Value::Text(text)) => texts.push(text),
            (Self::Bytes(list), Value::Bytes(bytes)) => list.push(bytes),
            (Self::Records(stack), Value::Record(record)) => stack.push(record)?,
            (Self::Values(values), value @ Value::List(_)) => values.push(value),
            (Self::Values(values), Value::Tensor(tensor)) if values.iter().all(is_empty_list) => {
                let (expected, found) = (vec![0], tensor.shape().to_vec());
                return Err(CollateProblem::Ragged { expected, found }.into());
            }
            (Self::Tensor(_), Value::Null) => return Err(CollateProblem::Null.into()),
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

fn is_empty_list(value: &Value) -> bool {
    matches!(value, Value::List(list) if list.is_empty())
}

/// Pads each sequence after its end, with its own scalar, to the length of the longest. Sequences without items have the
/// dtype and the shape of the items of the others: a JSON list without items says neither.
fn padded(rows: &[(AnyTensor, Scalar)]) -> Result<Column, CollateError> {
    let with_items = || rows.iter().map(|(tensor, _)| tensor).filter(|tensor| !tensor.is_empty());
    let Some(first) = with_items().next().or(rows.first().map(|(tensor, _)| tensor)) else {
        return Err(CollateProblem::NotASequence.into());
    };
    let [_, item @ ..] = first.shape() else { return Err(CollateProblem::NotASequence.into()) };
    let dtype = with_items().try_fold(first.dtype(), |dtype, tensor| common_dtype(dtype, tensor.dtype()))?;
    let longest = rows.iter().map(|(tensor, _)| tensor.len()).max().unwrap_or(0);
    let shape = [&[longest], item].concat();
    let item_bytes = item.iter().product::<usize>() * dtype.size();
    let mut stack = NumberStack::new(rows.len());
    let mut bytes = vec![0; longest * item_bytes];
    for (tensor, pad) in rows {
        if !tensor.is_empty() && tensor.shape().get(1..) != Some(item) {
            let (expected, found) = (item, tensor.shape().get(1..).unwrap_or_default());
            let problem = anyhow!(
                "its items have shape {found:?}, but those before it {expected:?}; `pad` adds items and makes none larger, so \
                 give all items one shape"
            );
            return Err(CollateProblem::Custom(problem).into());
        }
        let mixed = || CollateProblem::MixedDTypes { expected: dtype, found: tensor.dtype() };
        let filled = if tensor.is_empty() {
            Vec::new().into()
        } else {
            in_common_dtype(tensor.dtype(), tensor.as_bytes(), dtype)?
        };
        bytes[..filled.len()].copy_from_slice(&filled);
        let pad = pad.convert(dtype).ok_or_else(mixed)?;
        for element in bytes[filled.len()..].chunks_exact_mut(dtype.size()) {
            element.copy_from_slice(pad.as_bytes());
        }
        stack.push_row(dtype, &shape, &bytes)?;
    }
    let lengths: Vec<u64> = rows.iter().map(|(tensor, _)| tensor.len() as u64).collect();
    let lengths = Tensor::from_slice(&lengths, [rows.len()]).map_err(CollateProblem::from)?;
    Ok(Column::Padded { values: stack.finish()?, lengths })
}
