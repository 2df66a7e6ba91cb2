//! Datasets of records that are mixed by weight, as a config describes them.

use std::path::PathBuf;

use loader_core::{
    Dataset, DatasetStream, IterableDataset, MixDataset, SampleContext, Shard, SnapshotDataset,
    SnapshotIterator,
    mix::{Exhausted, Mix, MixError, MixRule},
    pass_on_to_inner,
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

#[cfg(feature = "schema")]
use super::super::records::any_kind;
use super::super::records::{RecordConfig, RecordDataset, RecordStream, Records, inner_dataset};
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    record::Record,
};

/// Which datasets are mixed by weight, and how, for example from a config file. Each entry of `parts` is a
/// [`RecordConfig`] with the key `weight` (default 1) and, if it is map-style, `shuffle` (default false). The
/// module [`mix`](loader_core::mix) describes `rule`, `exhausted` and `num_samples`.
///
/// A program mixes datasets of its own types with [`MixDataset`] or
/// [`MixSampler`](loader_core::sampler::MixSampler).
///
/// # Examples
/// ```
/// use loader_data::RecordConfig;
///
/// let text = r#"{"kind": "mix", "exhausted": "repeat", "parts": [
///     {"kind": "parquet-stream", "path": "web/*.parquet", "weight": 0.75},
///     {"kind": "json-lines", "path": "code/*.jsonl", "weight": 0.25, "shuffle": true}
/// ]}"#;
/// let config: RecordConfig = serde_json::from_str(text)?;
/// assert_eq!(config.kind(), "mix");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MixOptions {
    #[cfg_attr(feature = "schema", schemars(with = "Vec<PartSchema>"))]
    parts: Vec<PartOptions>,
    #[serde(default)]
    rule: MixRule,
    #[serde(default)]
    exhausted: Exhausted,
    #[serde(default)]
    num_samples: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct PartOptions {
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    shuffle: bool,
    #[serde(flatten, deserialize_with = "dataset_of_part")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    dataset: RecordConfig,
}

/// The schema of [`PartOptions`]: the keys of a dataset of any kind, and those of the part.
#[cfg(feature = "schema")]
struct PartSchema;

#[cfg(feature = "schema")]
impl schemars::JsonSchema for PartSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Part".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let part = PartOptions::json_schema(generator).to_value();
        any_kind(generator, part["properties"].as_object().unwrap_or(&serde_json::Map::new()))
    }
}

/// Adds the keys of a part to those that an error lists, unless they are the keys of a table or of a dataset in the
/// part.
fn dataset_of_part<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<RecordConfig, D::Error> {
    // The first keys of a format, of `audio-folder`, of `cached`, of `mix` and of `packed`.
    let keys_of_kinds = [
        "one of `path`, `config`",
        "one of `path`, `store`",
        "one of `folder`, `version`",
        "one of `parts`, `rule`",
        "one of `window`, `method`",
    ];
    inner_dataset(deserializer).map_err(|(error, is_of_deeper_dataset)| match error.to_string().trim_end() {
        unknown if !is_of_deeper_dataset && keys_of_kinds.iter().any(|keys| unknown.contains(keys)) => {
            D::Error::custom(format!("{unknown}, `weight`, `shuffle`"))
        }
        _ => error,
    })
}

fn one() -> f64 {
    1.0
}

impl MixOptions {
    /// Opens the datasets.
    ///
    /// # Errors
    /// Returns the error of a dataset, and an error if a weight or another option is invalid.
    pub fn open(&self) -> Result<RecordMix> {
        let streams = self.parts.iter().map(PartOptions::open).collect::<Result<Vec<_>>>()?;
        let mix = || -> Result<_, MixError> {
            let mix = Mix::new(self.parts.iter().map(|part| part.weight))?;
            let mix = mix.rule(self.rule).exhausted(self.exhausted);
            let mix = self.num_samples.map_or(Ok(mix.clone()), |samples| mix.num_samples(samples))?;
            MixDataset::new(streams, mix)
        };
        mix().map(|dataset| RecordMix { dataset }).map_err(|error| invalid("parts", error.to_string()))
    }

    pub(crate) fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        let files = self.parts.iter().map(|part| part.dataset.files()).collect::<Result<Vec<_>>>()?;
        Ok(files.concat())
    }

    /// Returns the configs of the parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &RecordConfig> {
        self.parts.iter().map(|part| &part.dataset)
    }

    /// Returns the paths of all parts, with the key of the parts.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let paths = self.parts.iter_mut().flat_map(|part| part.dataset.paths_mut());
        paths.map(|(_, path)| ("parts".to_owned(), path))
    }

    /// Returns nothing: each dataset decodes its own fields.
    pub(crate) fn take_decoded(&self) -> Option<SourceOptions> {
        None
    }

    /// Returns false: each dataset has files of its own.
    pub(crate) fn set_files(&self, _files: Vec<PathBuf>) -> bool {
        false
    }
}

impl PartOptions {
    fn open(&self) -> Result<MixPart> {
        MixPart::open(&self.dataset, self.shuffle, |reason| invalid("shuffle", reason))
    }
}

fn invalid(option: &'static str, reason: String) -> DataError {
    DataError::new("the mix", DataProblem::InvalidOption { option, reason })
}

/// The records of several datasets, mixed by weight. Opened by [`MixOptions::open`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordMix {
    dataset: MixDataset<MixPart>,
}

impl RecordMix {
    /// Opens a dataset as a mix with one part. `invalid` makes the error about an option.
    pub(crate) fn of_one(
        config: &RecordConfig,
        shuffle_documents: bool,
        invalid: impl Fn(&'static str, String) -> DataError,
    ) -> Result<Self> {
        let part = MixPart::open(config, shuffle_documents, |reason| invalid("shuffle_documents", reason))?;
        let mix = Mix::new([1.0]).and_then(|mix| MixDataset::new([part], mix));
        mix.map(|dataset| Self { dataset }).map_err(|error| invalid("dataset", error.to_string()))
    }
}

impl IterableDataset for RecordMix {
    type Sample = Record;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Record>> + Send> {
        self.dataset.iter(shard, cx)
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    pass_on_to_inner!(adds_layers: 0);

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }
}

impl SnapshotDataset for RecordMix {
    type Snapshot = <MixDataset<MixPart> as SnapshotDataset>::Snapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<Record>, Snapshot = Self::Snapshot> + Send>
    {
        self.dataset.iter_from(shard, cx, snapshot)
    }
}

/// A dataset of a mix.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MixPart {
    Map(DatasetStream<RecordDataset>),
    Stream(RecordStream),
}

/// A position in a shard of a [`MixPart`].
#[derive(Debug, Serialize, Deserialize)]
pub enum PartSnapshot {
    Map(u64),
    Stream(StreamSnapshot),
}

type StreamSnapshot = <RecordStream as SnapshotDataset>::Snapshot;

impl MixPart {
    /// Opens the dataset as a stream. `invalid` makes the error for `shuffle` with a dataset without random access.
    fn open(config: &RecordConfig, shuffle: bool, invalid: impl FnOnce(String) -> DataError) -> Result<Self> {
        match config.open()? {
            Records::Map(records) => Ok(Self::Map(records.into_stream().shuffle(shuffle))),
            Records::Stream(_) if shuffle => {
                Err(invalid(format!("`{}` is a stream; use a kind with random access", config.kind())))
            }
            Records::Stream(records) => Ok(Self::Stream(records)),
        }
    }
}

impl IterableDataset for MixPart {
    type Sample = Record;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Record>> + Send> {
        self.iter_from(shard, cx, None)
    }

    fn len(&self) -> Option<usize> {
        match self {
            Self::Map(records) => IterableDataset::len(records),
            Self::Stream(records) => IterableDataset::len(records),
        }
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        match self {
            Self::Map(records) => IterableDataset::setup(records, cx),
            Self::Stream(records) => IterableDataset::setup(records, cx),
        }
    }

    fn fingerprint(&self) -> String {
        match self {
            Self::Map(records) => IterableDataset::fingerprint(records),
            Self::Stream(records) => IterableDataset::fingerprint(records),
        }
    }

    fn layers(&self) -> u8 {
        match self {
            Self::Map(records) => IterableDataset::layers(records),
            Self::Stream(records) => IterableDataset::layers(records),
        }
    }
}

impl SnapshotDataset for MixPart {
    type Snapshot = PartSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<PartSnapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<Record>, Snapshot = PartSnapshot> + Send>
    {
        match (self, snapshot) {
            (Self::Map(records), None) => Ok(PartRecords::Map(records.iter_from(shard, cx, None)?)),
            (Self::Map(records), Some(PartSnapshot::Map(snapshot))) => {
                Ok(PartRecords::Map(records.iter_from(shard, cx, Some(snapshot))?))
            }
            (Self::Stream(records), None) => Ok(PartRecords::Stream(records.iter_from(shard, cx, None)?)),
            (Self::Stream(records), Some(PartSnapshot::Stream(snapshot))) => {
                Ok(PartRecords::Stream(records.iter_from(shard, cx, Some(snapshot))?))
            }
            _ => anyhow::bail!("the state is of a mix of other kinds of datasets"),
        }
    }
}

/// The records of a part in a shard.
enum PartRecords<M, S> {
    Map(M),
    Stream(S),
}

impl<M: Iterator, S: Iterator<Item = M::Item>> Iterator for PartRecords<M, S> {
    type Item = M::Item;

    fn next(&mut self) -> Option<M::Item> {
        match self {
            Self::Map(records) => records.next(),
            Self::Stream(records) => records.next(),
        }
    }
}

impl<M, S> SnapshotIterator for PartRecords<M, S>
where
    M: SnapshotIterator<Snapshot = u64>,
    S: SnapshotIterator<Item = M::Item, Snapshot = StreamSnapshot>,
{
    type Snapshot = PartSnapshot;

    fn snapshot(&self) -> anyhow::Result<PartSnapshot> {
        match self {
            Self::Map(records) => records.snapshot().map(PartSnapshot::Map),
            Self::Stream(records) => records.snapshot().map(PartSnapshot::Stream),
        }
    }
}
