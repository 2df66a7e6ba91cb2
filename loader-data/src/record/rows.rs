//! Records that are a row of decoded columns.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use loader_core::DType;

use super::Value;
use crate::error::DataProblem;

/// Decoded rows, column by column.
pub(crate) trait Rows: fmt::Debug + Send + Sync {
    /// The names of the columns.
    fn names(&self) -> &[Arc<str>];

    /// Returns the value of a column in a row.
    ///
    /// # Errors
    /// Returns [`DataProblem::Memory`] if there is no memory for a tensor.
    fn value(&self, column: usize, row: usize) -> Result<Value, DataProblem>;

    /// Returns a column if all of its values are numbers, or tensors of one dtype and shape.
    fn numbers(&self, column: usize) -> Option<Numbers<'_>>;
}

/// The numbers of a column: those of its first row, then those of the second, and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers<'a> {
    pub(crate) dtype: DType,
    /// Shape of a value; empty for a single number.
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

/// The fields of a record.
#[derive(Debug, Clone)]
pub(super) enum Fields {
    Values(NamedValues),
    Row(Row),
}

pub(super) type NamedValues = Vec<(Arc<str>, Value)>;

/// A row of decoded columns. Its values are copied when something other than a batch asks for them.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) rows: Arc<dyn Rows>,
    pub(super) row: usize,
    values: OnceLock<NamedValues>,
}

impl Row {
    fn copy(&self) -> NamedValues {
        let value = |(column, name): (usize, &Arc<str>)| {
            let value = self.rows.value(column, self.row);
            (Arc::clone(name), value.unwrap_or_else(|problem| panic!("{problem}")))
        };
        self.rows.names().iter().enumerate().map(value).collect()
    }
}

#[cfg(any(feature = "columnar", test))]
impl super::Record {
    /// Creates a record that is row `row` of `rows`. As long as the record exists, so do all rows: use it
    /// only for a batch ([`SampleContext::is_collated`](loader_core::SampleContext::is_collated)).
    pub(crate) fn from_row(rows: Arc<dyn Rows>, row: usize) -> Self {
        #[cfg(test)]
        super::REFERENCES.set(super::REFERENCES.get() + 1);
        Self { fields: Fields::Row(Row { rows, row, values: OnceLock::new() }) }
    }
}

/// # Panics
/// The methods panic if a row is copied and there is no memory for a tensor.
impl Fields {
    pub(super) fn values(&self) -> &NamedValues {
        match self {
            Self::Values(values) => values,
            Self::Row(row) => row.values.get_or_init(|| row.copy()),
        }
    }

    pub(super) fn values_mut(&mut self) -> &mut NamedValues {
        if let Self::Row(row) = self {
            *self = Self::Values(row.values.take().unwrap_or_else(|| row.copy()));
        }
        match self {
            Self::Values(values) => values,
            Self::Row(_) => unreachable!("it was just copied"),
        }
    }

    pub(super) fn into_values(mut self) -> NamedValues {
        std::mem::take(self.values_mut())
    }
}

impl Default for Fields {
    fn default() -> Self {
        Self::Values(Vec::new())
    }
}
