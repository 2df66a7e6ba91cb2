//! The lines of text files as records.

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use super::{FIELD, TextLines, TextLinesStream};
use crate::{
    error::DataProblem,
    lines::{LineStream, line_stream},
    record::Record,
};

/// The lines of [`TextLines`] as [`Record`]s with the field `text`. It is opened by
/// [`TextLinesOptions::open_records`](crate::TextLinesOptions::open_records).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TextRecords(pub(super) TextLines);

impl Dataset for TextRecords {
    type Sample = Record;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        self.0.get(index, cx).map(record)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        Ok(self.0.get_many(indices, cx)?.into_iter().map(record).collect())
    }

    /// Returns the fingerprint of the lines.
    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
}

/// The lines of a [`TextLinesStream`] as [`Record`]s with the field `text`. It is opened by
/// [`TextLinesOptions::open_records_stream`](crate::TextLinesOptions::open_records_stream).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TextRecordsStream {
    stream: LineStream,
}

impl TextRecordsStream {
    pub(super) fn new(lines: TextLinesStream) -> Self {
        Self { stream: lines.stream }
    }

    fn parse(&self, line: &[u8]) -> Result<Record, DataProblem> {
        super::text(line).map(record)
    }

    fn description(&self) -> String {
        super::dataset::description(&self.stream)
    }
}

line_stream!(TextRecordsStream, Record);

fn record(line: String) -> Record {
    [(FIELD, line)].into_iter().collect()
}
