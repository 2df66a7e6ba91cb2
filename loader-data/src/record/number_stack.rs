//! Collation of numbers whose dtype their values decide.

use std::{borrow::Cow, mem, ops::Range};

use loader_core::{
    AnyTensor, DType,
    collate::{AnyStack, CollateError, CollateProblem, Stack},
};

use super::Scalar;

/// An `f64` holds all integers up to this magnitude exactly.
const MAX_EXACT: u64 = 1 << 53;

/// An [`AnyStack`] that becomes one of `f64` where `i64` and `f64` meet: a number without fraction in JSON is an `i64`.
#[derive(Debug)]
pub(super) struct NumberStack {
    capacity: usize,
    stack: AnyStack,
    /// Dtype of the rows; `None` before the first.
    dtype: Option<DType>,
}

impl NumberStack {
    /// Starts a batch of at most `capacity` rows.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, stack: AnyStack::new(capacity), dtype: None }
    }

    pub(super) fn push(&mut self, tensor: AnyTensor) -> Result<(), CollateError> {
        if self.fit(tensor.dtype())? == tensor.dtype() {
            return self.stack.push(tensor);
        }
        Ok(self.push_row(tensor.dtype(), tensor.shape(), tensor.as_bytes())?)
    }

    pub(super) fn push_row(
        &mut self,
        dtype: DType,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<(), CollateProblem> {
        let own = self.fit(dtype)?;
        self.stack.push_row(own, shape, &in_common_dtype(dtype, bytes, own)?)
    }

    /// See [`AnyStack::push_rows`].
    pub(super) fn push_rows(
        &mut self,
        dtype: DType,
        shape: &[usize],
        column: &[u8],
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), CollateProblem> {
        let own = self.fit(dtype)?;
        self.stack.push_rows(own, shape, &in_common_dtype(dtype, column, own)?, ranges)
    }

    /// Adds a list without items, which has the dtype of the other rows.
    pub(super) fn push_empty_list(&mut self) -> Result<(), CollateProblem> {
        self.stack.push_row(self.dtype.unwrap_or(DType::I64), &[0], &[])
    }

    pub(super) fn finish(self) -> Result<AnyTensor, CollateError> {
        self.stack.finish()
    }

    /// Returns the dtype that a row of `dtype` gets.
    fn fit(&mut self, dtype: DType) -> Result<DType, CollateProblem> {
        let own = *self.dtype.get_or_insert(dtype);
        if own == dtype {
            return Ok(own);
        }
        let common = common_dtype(own, dtype)?;
        if common != own {
            let rows = mem::replace(&mut self.stack, AnyStack::new(self.capacity)).finish();
            let rows = rows.map_err(|error| CollateProblem::Custom(error.into()))?;
            if let [count, shape @ ..] = rows.shape() {
                let bytes = in_common_dtype(own, rows.as_bytes(), common)?;
                let range = 0..*count;
                self.stack.push_rows(common, shape, &bytes, [range])?;
            }
            self.dtype = Some(common);
        }
        Ok(common)
    }
}

/// Returns the dtype of a column with numbers of both dtypes.
///
/// # Errors
/// Returns [`CollateProblem::MixedDTypes`] if they differ, unless they are `i64` and `f64`.
pub(super) fn common_dtype(expected: DType, found: DType) -> Result<DType, CollateProblem> {
    match (expected, found) {
        _ if expected == found => Ok(expected),
        (DType::I64, DType::F64) | (DType::F64, DType::I64) => Ok(DType::F64),
        _ => Err(CollateProblem::MixedDTypes { expected, found }),
    }
}

/// Converts rows of the dtype `from` to the [common dtype](common_dtype) of a column.
///
/// # Errors
/// Returns [`CollateProblem::MixedDTypes`] if an integer is above 2^53 in magnitude: an `f64` may not hold it exactly.
pub(super) fn in_common_dtype(
    from: DType,
    bytes: &[u8],
    common: DType,
) -> Result<Cow<'_, [u8]>, CollateProblem> {
    let is_exact = |integer: &[u8]| {
        integer.try_into().is_ok_and(|integer| i64::from_ne_bytes(integer).unsigned_abs() <= MAX_EXACT)
    };
    let is_kept =
        from == common || (from == DType::I64 && bytes.chunks_exact(size_of::<i64>()).all(is_exact));
    let converted = if is_kept { converted_bytes(from, bytes, common) } else { None };
    converted.ok_or(CollateProblem::MixedDTypes { expected: common, found: from })
}

/// Converts elements of the dtype `from`. Returns `None` if the dtype `to` cannot hold one of them.
pub(super) fn converted_bytes(from: DType, bytes: &[u8], to: DType) -> Option<Cow<'_, [u8]>> {
    if from == to {
        return Some(bytes.into());
    }
    let mut converted = Vec::with_capacity(bytes.len() / from.size() * to.size());
    for element in bytes.chunks_exact(from.size()) {
        converted.extend_from_slice(Scalar::from_bytes(from, element).convert(to)?.as_bytes());
    }
    Some(converted.into())
}
