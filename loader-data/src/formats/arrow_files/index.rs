//! The list of record batches.

use std::{collections::HashMap, sync::Arc};

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use loader_core::{Tensor, TensorError};
use serde::{Deserialize, Serialize};

use super::{
    FORMAT,
    body::{Buffer, Codec},
    malformed,
    messages::{Described, Dictionary, Messages, read_messages},
};
use crate::{
    arrow_rows::{ColumnKind, select_columns},
    error::{DataError, Result},
    record::FieldOptions,
    source::Files,
};

/// A record batch, or the values of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) index: usize,
    pub(super) file: usize,
    /// Number of the record batch in its file. A dictionary has that of the record batch that uses it.
    number: usize,
    pub(super) codec: Codec,
    /// Index of its first row in its file.
    pub(super) first_in_file: u64,
    /// Index of its first row among the rows of all files.
    pub(super) first: u64,
    pub(super) rows: usize,
    first_node: usize,
    first_buffer: usize,
}

/// Number of words that an entry has in the index.
const WORDS: usize = 8;

/// The record batches of all files, in shared memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Index {
    /// The record batches in order, then the dictionaries. Shape `[entries, WORDS]`. Record batches without
    /// rows are left out.
    entries: Tensor<u64>,
    /// For each entry, its nodes and then the numbers of data buffers of its views, see [`Described`].
    nodes: Tensor<u64>,
    /// For each entry, its buffers. Shape `[buffers, 2]`.
    buffers: Tensor<u64>,
    /// Number of record batches.
    batches: usize,
    /// Number of rows.
    pub(super) rows: usize,
    dictionaries: Vec<DictionaryEntry>,
    /// The selected columns that are in the files, as files have them, in the order of the record.
    layouts: Vec<Fields>,
    /// For each file, the index of its layout.
    layout_of: Vec<u32>,
}

/// A dictionary of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct DictionaryEntry {
    file: usize,
    id: i64,
    is_delta: bool,
    /// Number of record batches of the file before it.
    batches_before: usize,
    entry: usize,
}

impl Index {
    /// Joins the record batches of all files.
    ///
    /// # Errors
    /// Returns an error if they do not fit into shared memory.
    pub(super) fn new(files: impl Iterator<Item = OpenedFile>) -> Result<Self, TensorError> {
        let mut words = Words::default();
        let (mut texts, mut layouts, mut layout_of) = (Vec::new(), Vec::new(), Vec::new());
        let (mut dictionaries, mut values, mut rows) = (Vec::new(), Vec::new(), 0_u64);
        for (file, opened) in files.enumerate() {
            // Not `==`, which does not compare the numbers of dictionaries.
            let text = format!("{:?}", opened.layout);
            let layout = texts.iter().position(|known| *known == text).unwrap_or(texts.len());
            if layout == texts.len() {
                texts.push(text);
                layouts.push(opened.layout);
            }
            layout_of.push(layout as u32);
            let mut first_in_file = 0;
            for (number, (count, codec, columns)) in
                opened.batches.iter().enumerate().filter(|(_, (count, ..))| *count > 0)
            {
                words.push([file as u64, number as u64, *codec as u64, first_in_file, rows, *count], columns);
                first_in_file += count;
                rows = rows.saturating_add(*count);
            }
            values.extend(opened.dictionaries.into_iter().map(|dictionary| (file, dictionary)));
        }
        let batches = words.entries.len() / WORDS;
        for (file, Dictionary { id, is_delta, batches_before, values }) in values {
            let entry = words.entries.len() / WORDS;
            dictionaries.push(DictionaryEntry { file, id, is_delta, batches_before, entry });
            words.push([file as u64, 0, values.codec as u64, 0, 0, values.rows], &[values]);
        }
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let [entries, nodes, buffers] = words.shared()?;
        Ok(Self { entries, nodes, buffers, batches, rows, dictionaries, layouts, layout_of })
    }

    /// Number of record batches.
    pub(super) fn len(&self) -> usize {
        self.batches
    }

    pub(super) fn entry(&self, index: usize) -> IndexEntry {
        let row = self.entries.row(index);
        IndexEntry {
            index,
            file: row[0] as usize,
            number: row[1] as usize,
            codec: Codec::of(row[2]),
            first_in_file: row[3],
            first: row[4],
            rows: row[5] as usize,
            first_node: row[6] as usize,
            first_buffer: row[7] as usize,
        }
    }

    /// Returns the record batch that has row `row` of all rows.
    pub(super) fn batch_of(&self, row: usize) -> IndexEntry {
        let words: &[[u64; WORDS]] = bytemuck::cast_slice(self.entries.as_slice());
        let after = words[..self.batches].partition_point(|words| words[4] <= row as u64);
        self.entry(after.saturating_sub(1))
    }

    /// The nodes of an entry with the numbers of data buffers of its views, and its buffers.
    pub(super) fn parts(&self, entry: &IndexEntry) -> (&[u64], &[Buffer]) {
        let buffers: &[Buffer] = bytemuck::cast_slice(self.buffers.as_slice());
        let (node, buffer) = if entry.index + 1 < self.entries.len() {
            let next = self.entry(entry.index + 1);
            (next.first_node, next.first_buffer)
        } else {
            (self.nodes.len(), buffers.len())
        };
        (&self.nodes.as_slice()[entry.first_node..node], &buffers[entry.first_buffer..buffer])
    }

    /// The selected columns that are in file `file`, in the order of the record.
    pub(super) fn layout(&self, file: usize) -> &Fields {
        &self.layouts[self.layout_of[file] as usize]
    }

    /// Returns the parts of the dictionary `id` that a record batch uses.
    pub(super) fn dictionary(&self, batch: &IndexEntry, id: i64) -> Vec<IndexEntry> {
        let of_batch = |one: &&DictionaryEntry| {
            (one.file, one.id) == (batch.file, id) && one.batches_before <= batch.number
        };
        let mut parts = Vec::new();
        for one in self.dictionaries.iter().filter(of_batch) {
            if !one.is_delta {
                parts.clear();
            }
            parts.push(IndexEntry { number: batch.number, ..self.entry(one.entry) });
        }
        parts
    }
}

/// The words of an index that is being made.
#[derive(Default)]
struct Words {
    entries: Vec<u64>,
    nodes: Vec<u64>,
    buffers: Vec<u64>,
}

impl Words {
    /// Adds an entry that consists of `columns`.
    fn push(&mut self, words: [u64; WORDS - 2], columns: &[Described]) {
        self.entries.extend(words);
        self.entries.extend([self.nodes.len() as u64, self.buffers.len() as u64 / 2]);
        self.nodes.extend(columns.iter().flat_map(|column| &column.nodes));
        self.nodes.extend(columns.iter().flat_map(|column| &column.views));
        self.buffers.extend(columns.iter().flat_map(|column| column.buffers.iter().flatten()));
    }

    fn shared(self) -> Result<[Tensor<u64>; 3], TensorError> {
        let (entries, nodes, buffers) =
            (self.entries.len() / WORDS, self.nodes.len(), self.buffers.len() / 2);
        Ok([
            Tensor::from_vec(self.entries, [entries, WORDS])?,
            Tensor::from_vec(self.nodes, [nodes])?,
            Tensor::from_vec(self.buffers, [buffers, 2])?,
        ])
    }
}

/// A file whose messages were read.
pub(super) struct OpenedFile {
    pub(super) columns: Vec<(String, ColumnKind)>,
    /// The selected columns that are in the file, in the order of the record.
    layout: Fields,
    /// The record batches, each with its selected columns in this order.
    batches: Vec<(u64, Codec, Vec<Described>)>,
    dictionaries: Vec<Dictionary>,
}

impl OpenedFile {
    /// Reads the messages of file `index`, whose folders give the columns `partition`. Its columns must be `expected`,
    /// if given.
    pub(super) fn read(
        files: &Files,
        index: usize,
        partition: &[(String, ColumnKind)],
        expected: Option<&[(String, ColumnKind)]>,
        fields: &FieldOptions,
    ) -> Result<Self> {
        let blob = files.open(index)?;
        let failed = |problem| DataError::new(&blob.file().location, problem);
        let Messages { schema, batches, mut dictionaries } = read_messages(&blob)?;
        let (columns, positions) =
            select_columns(FORMAT, &schema, partition, expected, fields).map_err(failed)?;
        let layout: Fields = positions.iter().map(|&column| plain_field(&schema, column)).collect();
        dictionaries.retain(|dictionary| values_of(&layout, dictionary.id).is_some());
        let select = |(number, batch): (usize, Described)| {
            let types = schema.fields().iter().map(|field| field.data_type());
            let of_batch = |reason| failed(malformed(format!("record batch {number}: {reason}")));
            let mut found: Vec<_> = batch.columns(types).map_err(of_batch)?.into_iter().map(Some).collect();
            let columns = positions.iter().filter_map(|&column| found[column].take()).collect();
            Ok((batch.rows, batch.codec, columns))
        };
        let batches = batches.into_iter().enumerate().map(select).collect::<Result<_>>()?;
        for dictionary in &dictionaries {
            let values = values_of(&layout, dictionary.id).into_iter();
            let fits = dictionary.values.columns(values);
            fits.map_err(|reason| failed(malformed(format!("dictionary {}: {reason}", dictionary.id))))?;
        }
        Ok(Self { columns, layout, batches, dictionaries })
    }
}

/// Returns a column without its metadata, which may be long.
fn plain_field(schema: &Schema, column: usize) -> FieldRef {
    Arc::new(schema.field(column).clone().with_metadata(HashMap::new()))
}

/// Returns the type of the values of dictionary `id`, if one of `fields` or a part of it uses it.
fn values_of(fields: &Fields, id: i64) -> Option<&DataType> {
    fields.iter().find_map(|field| values_in(field, id))
}

fn values_in(field: &Field, id: i64) -> Option<&DataType> {
    fn inside(data_type: &DataType, id: i64) -> Option<&DataType> {
        match data_type {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _)
            | DataType::Map(item, _) => values_in(item, id),
            DataType::Struct(fields) => values_of(fields, id),
            DataType::Dictionary(_, values) => inside(values, id),
            _ => None,
        }
    }
    match field.data_type() {
        DataType::Dictionary(_, values) if dictionary_id(field) == id => Some(values),
        data_type => inside(data_type, id),
    }
}

/// Returns the number of the dictionary that `field` uses.
#[expect(deprecated, reason = "the replacement is not public: only the crate's own reader gets it")]
pub(super) fn dictionary_id(field: &Field) -> i64 {
    field.dict_id().unwrap_or_default()
}
