//! Documents of records that are packed into windows, as a config describes them.

use std::path::PathBuf;

use loader_core::{
    DType, IterableDataset, PackedDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator, Tensor,
    pack::{LongDocuments, PackError, PackMethod, PackedWindow, Packing},
    pass_on_to_inner,
};
use serde::{Deserialize, Serialize};

use super::{
    super::records::{RecordConfig, boxed_dataset},
    mix::RecordMix,
};
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    record::{Record, Scalar, Value},
};

/// Which documents are packed into windows, and how, for example from a config file. `dataset` is a
/// [`RecordConfig`] whose records have the tokens of a document in the field `field` (default `tokens`). The
/// other keys are those of [`Packing`]; `shuffle_windows` is [`Packing::shuffle`].
///
/// A record has the fields of a [`PackedWindow`]. The tokens, positions and segments are of type `i64`.
///
/// # Examples
/// ```
/// use loader_data::RecordConfig;
///
/// let text = r#"{"kind": "packed", "window": 2048, "method": "best-fit", "field": "text", "dataset": {
///     "kind": "json-lines", "path": "train/*.jsonl", "fields": ["text"],
///     "tokenizers": {"text": {"path": "tokenizer.json", "end_of_document": "</s>"}}
/// }}"#;
/// let config: RecordConfig = serde_json::from_str(text)?;
/// assert_eq!(config.kind(), "packed");
/// # anyhow::Ok(())
/// ```
// Alternatives considered:
// - Tables `tokenizer` and `pack` among the keys of each kind. Rejected because `pack` would make a stream of a
//   kind with random access, and because `mix` and `cached`, which have keys of their own, would need both.
// - The tokenizer among the keys of `packed`. Rejected because the tokens of a text are also padded to batches,
//   mixed, and kept by `cached`.
// - The type of the tokens as an option, as `TokensOptions` has it. Rejected because frameworks take `i64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PackedOptions {
    /// Number of tokens of a window.
    window: usize,
    /// How documents are put into windows.
    #[serde(default)]
    method: PackMethod,
    /// Number of documents that are packed together.
    #[serde(default = "look_ahead")]
    look_ahead: usize,
    /// What happens with documents longer than a window.
    #[serde(default)]
    long_documents: LongDocuments,
    /// The token that fills a window after its last document.
    #[serde(default)]
    pad: i64,
    /// Whether the last window of a shard is left out if it is not full.
    #[serde(default)]
    drop_last: bool,
    /// Whether the windows of `look_ahead` documents come in random order.
    #[serde(default)]
    shuffle_windows: bool,
    /// Whether the documents come in random order. The dataset must be read by index.
    #[serde(default)]
    shuffle_documents: bool,
    /// The field with the tokens of a document.
    #[serde(default = "tokens")]
    field: String,
    /// The documents.
    #[serde(deserialize_with = "boxed_dataset")]
    dataset: Box<RecordConfig>,
}

fn look_ahead() -> usize {
    1000
}

fn tokens() -> String {
    "tokens".to_owned()
}

impl PackedOptions {
    /// Opens the documents.
    ///
    /// # Errors
    /// Returns the error of the dataset, and an error if an option is invalid.
    pub fn open(&self) -> Result<RecordWindows> {
        let invalid = |option, reason| {
            DataError::new("the packed dataset", DataProblem::InvalidOption { option, reason })
        };
        let dataset = RecordMix::of_one(&self.dataset, self.shuffle_documents, invalid)?;
        let packing = Packing::new(self.window)
            .method(self.method)
            .look_ahead(self.look_ahead)
            .long_documents(self.long_documents)
            .pad(self.pad)
            .drop_last(self.drop_last)
            .shuffle(self.shuffle_windows);
        let packed = Documents { dataset, field: self.field.clone() }.pack(packing);
        packed.map(|dataset| RecordWindows { dataset }).map_err(|error| {
            let option = match error {
                PackError::NoLookAhead => "look_ahead",
                PackError::InvalidPad { .. } => "pad",
                _ => "window",
            };
            invalid(option, error.to_string())
        })
    }

    pub(crate) fn dataset(&self) -> &RecordConfig {
        &self.dataset
    }

    pub(crate) fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        self.dataset.files()
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        self.dataset.paths_mut().into_iter().map(|(key, path)| (format!("dataset.{key}"), path))
    }

    /// Returns nothing: the dataset decodes its own fields.
    pub(crate) fn take_decoded(&self) -> Option<SourceOptions> {
        None
    }

    /// Returns false: a window may have documents of several files.
    pub(crate) fn set_files(&self, _files: Vec<PathBuf>) -> bool {
        false
    }
}

/// Windows of the documents of a dataset, as records. [`PackedOptions::open`] opens it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordWindows {
    dataset: PackedDataset<Documents>,
}

impl IterableDataset for RecordWindows {
    type Sample = Record;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Record>> + Send> {
        self.iter_from(shard, cx, None)
    }

    pass_on_to_inner!(adds_layers: 0);

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }
}

impl SnapshotDataset for RecordWindows {
    type Snapshot = <PackedDataset<Documents> as SnapshotDataset>::Snapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<Record>, Snapshot = Self::Snapshot> + Send>
    {
        Ok(Converted { items: self.dataset.iter_from(shard, cx, snapshot)?, convert: record })
    }
}

/// Returns the window as a record.
fn record(window: PackedWindow<i64>) -> anyhow::Result<Record> {
    let PackedWindow { tokens, positions, segments, cu_seqlens } = window;
    let end = cu_seqlens.last().copied().unwrap_or(0);
    let shape = [cu_seqlens.len()];
    let cu_seqlens = Value::Ragged(Tensor::from_vec(cu_seqlens, shape)?.into(), Scalar::new(end));
    let fields: [(&str, Value); 4] = [
        ("tokens", tokens.into()),
        ("positions", positions.into()),
        ("segments", segments.into()),
        ("cu_seqlens", cu_seqlens),
    ];
    Ok(fields.into_iter().collect())
}

/// The tokens of the records of a dataset. Public only because a trait names it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Documents {
    /// A mix with one part. The dataset may itself be a packed one, and its type would then contain itself; a mix
    /// boxes the streams of its parts.
    dataset: RecordMix,
    field: String,
}

impl Documents {
    fn tokens(&self, mut record: Record) -> anyhow::Result<Tensor<i64>> {
        let failed = |problem| anyhow::Error::new(DataError::new("a document", problem));
        let Some(value) = record.remove(&self.field) else {
            return Err(failed(DataProblem::missing_field(&self.field, record.iter().map(|(name, _)| name))));
        };
        let value = match value {
            Value::Ragged(tokens, _) => Value::Tensor(tokens),
            other => other,
        };
        match value.convert(DType::I64) {
            Some(Value::Tensor(tokens)) if tokens.shape().len() == 1 => Ok(tokens.downcast()?),
            _ => {
                let expected =
                    "whole numbers (tokens; the option `tokenizers` converts a text to tokens)".to_owned();
                let (field, found) = (self.field.clone(), value.kind());
                Err(failed(DataProblem::WrongType { field, expected, found }))
            }
        }
    }
}

impl IterableDataset for Documents {
    type Sample = Tensor<i64>;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Tensor<i64>>> + Send> {
        self.iter_from(shard, cx, None)
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    fn fingerprint(&self) -> String {
        format!("documents({}, `{}`)", self.dataset.fingerprint(), self.field)
    }

    pass_on_to_inner!(adds_layers: 0);
}

impl SnapshotDataset for Documents {
    type Snapshot = <RecordMix as SnapshotDataset>::Snapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Tensor<i64>>, Snapshot = Self::Snapshot> + Send,
    > {
        let records = self.dataset.iter_from(shard, cx, snapshot)?;
        Ok(Converted { items: records, convert: |record| self.tokens(record) })
    }
}

/// The items of a shard, each converted by a function.
// Not `map_with` of streams: its fingerprint would lack the field of the tokens, so a state would fit another field.
struct Converted<I, F> {
    items: I,
    convert: F,
}

impl<A, B, I, F> Iterator for Converted<I, F>
where
    I: Iterator<Item = anyhow::Result<A>>,
    F: Fn(A) -> anyhow::Result<B>,
{
    type Item = anyhow::Result<B>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.items.next()?.and_then(&self.convert))
    }
}

impl<I: SnapshotIterator, F> SnapshotIterator for Converted<I, F>
where
    Self: Iterator,
{
    type Snapshot = I::Snapshot;

    fn snapshot(&self) -> anyhow::Result<I::Snapshot> {
        self.items.snapshot()
    }
}
