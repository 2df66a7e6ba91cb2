//! Rows in memory, and the samples that they become.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Cells, Kind};
use crate::{
    error::DataProblem,
    record::{FieldOptions, Record, Value},
};

/// Some decoded rows.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) columns: Vec<Cells>,
    pub(crate) rows: usize,
    /// Number of bytes in memory.
    pub(crate) bytes: u64,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Returns row `row` with columns of the given names.
    fn record(&self, names: &[Arc<str>], row: usize) -> Result<Record, DataProblem> {
        let field = |(name, cells): (&Arc<str>, &Cells)| Ok((Arc::clone(name), cells.value(row)?));
        let fields: Result<Vec<(Arc<str>, Value)>, DataProblem> =
            names.iter().zip(&self.columns).map(field).collect();
        fields.map(Record::from_fields)
    }
}

/// Turns decoded rows into samples.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    /// The names of the columns.
    names: Arc<[Arc<str>]>,
    /// The options that are applied to each record.
    fields: Arc<FieldOptions>,
}

impl Samples {
    /// Prepares samples of rows with the columns `columns`, which are those that `fields` select.
    pub(crate) fn new(columns: &[(String, Kind)], fields: &FieldOptions) -> Self {
        let names = columns.iter().map(|(name, _)| Arc::from(name.as_str())).collect();
        Self { names, fields: Arc::new(fields.for_selected()) }
    }

    /// Returns row `row` of `batch`.
    ///
    /// # Errors
    /// Returns an error if the options or the type of the sample refuse the row, or if there is no memory for a tensor.
    pub(crate) fn sample<R: DeserializeOwned + 'static>(
        &self,
        batch: &Batch,
        row: usize,
    ) -> Result<R, DataProblem> {
        let record = batch.record(&self.names, row)?;
        self.fields.apply(record)?.into_row()
    }
}
