//! Rows in memory, and the samples that they become.

use std::sync::Arc;

use arrow_buffer::Buffer;
use loader_core::DType;
use serde::de::DeserializeOwned;

use super::{Cells, ColumnKind};
use crate::{
    error::DataProblem,
    record::{FieldOptions, Numbers, Record, Rows, Value},
};

/// Some decoded rows.
#[derive(Debug)]
pub(crate) struct Batch {
    names: Arc<[Arc<str>]>,
    columns: Vec<Column>,
    rows: usize,
    /// Number of bytes in memory.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Column {
    cells: Cells,
    /// The dtype, the shape of a value, and the bytes of all values, if they are numbers of one shape.
    numbers: Option<(DType, Vec<usize>, Buffer)>,
}

impl Batch {
    /// Creates a batch of `rows` rows, which take `bytes` bytes of memory. Each column has a name.
    pub(crate) fn new(names: &Arc<[Arc<str>]>, columns: Vec<Cells>, rows: usize, bytes: u64) -> Self {
        let column = |cells: Cells| Column { numbers: cells.all_numbers(), cells };
        let columns = columns.into_iter().map(column).collect();
        Self { names: Arc::clone(names), columns, rows, bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Returns a copy of row `row`.
    fn record(&self, row: usize) -> Result<Record, DataProblem> {
        let field = |(name, column): (&Arc<str>, &Column)| Ok((Arc::clone(name), column.cells.value(row)?));
        let fields: Result<Vec<(Arc<str>, Value)>, DataProblem> =
            self.names.iter().zip(&self.columns).map(field).collect();
        fields.map(Record::from_fields)
    }
}

impl Rows for Batch {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    fn value(&self, column: usize, row: usize) -> Result<Value, DataProblem> {
        self.columns[column].cells.value(row)
    }

    fn numbers(&self, column: usize) -> Option<Numbers<'_>> {
        let (dtype, shape, bytes) = self.columns[column].numbers.as_ref()?;
        Some(Numbers { dtype: *dtype, shape, bytes })
    }
}

/// Turns decoded rows into samples.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    /// The options that are applied to each record.
    fields: Arc<FieldOptions>,
    /// True if a sample is a copy of its row; false if it refers to the decoded rows.
    is_copied: bool,
}

impl Samples {
    /// Prepares samples of rows that have the columns `columns`, which `fields` select.
    pub(crate) fn new(fields: &FieldOptions, columns: &[(String, ColumnKind)]) -> Self {
        let dtype_of = |name: &str| columns.iter().find(|(column, _)| column == name)?.1.dtype();
        Self { fields: Arc::new(fields.for_columns(dtype_of)), is_copied: true }
    }

    /// Returns the same samples for a dataset that may be collated at once
    /// ([`SampleContext::is_collated`](loader_core::SampleContext::is_collated)).
    pub(crate) fn collated(&self, is_collated: bool) -> Self {
        // Options may refuse a row, so they need its values.
        Self { fields: Arc::clone(&self.fields), is_copied: !is_collated || !self.fields.is_default() }
    }

    /// Returns row `row` of `batch`.
    ///
    /// # Errors
    /// Returns an error if the options or the type of the sample refuse the row, or if there is no memory for
    /// a tensor.
    pub(crate) fn sample<R: DeserializeOwned + 'static>(
        &self,
        batch: &Arc<Batch>,
        row: usize,
    ) -> Result<R, DataProblem> {
        let record = if self.is_copied {
            self.fields.apply(batch.record(row)?)?
        } else {
            Record::from_row(Arc::<Batch>::clone(batch), row)
        };
        record.into_row()
    }
}
