//! Datasets of records by name, as a config describes them.

use std::path::{Path, PathBuf};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator};
use serde::{Deserialize, Serialize};

use crate::{error::DataError, record::Record, source::Location};

/// Makes the enums from two lists of formats, each with its name in a config.
macro_rules! formats {
    (
        maps: { $($map_kind:literal $map:ident($map_options:path) -> $map_dataset:ty;)* }
        streams: { $($kind:literal $stream:ident($options:path) -> $dataset:ty;)* }
    ) => {
        /// A dataset of records, described by a table such as the section `[dataset]` of a config. `kind` names the
        /// format; the other keys are those of its options.
        ///
        /// # Examples
        /// ```
        /// use loader_data::RecordConfig;
        ///
        /// let config: RecordConfig = serde_json::from_str(r#"{"kind": "json-lines", "path": "train/*.jsonl"}"#)?;
        /// assert_eq!(config.kind(), "json-lines");
        /// # anyhow::Ok(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant is named after its dataset
        pub enum RecordConfig {
            $(
                #[serde(rename = $map_kind)]
                $map($map_options),
            )*
            $(
                #[serde(rename = $kind)]
                $stream($options),
            )*
        }

        impl RecordConfig {
            /// Names of all kinds.
            pub const KINDS: &[&str] = &[$($map_kind,)* $($kind),*];

            /// Name of the format in a config.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$map(_) => $map_kind,)*
                    $(Self::$stream(_) => $kind,)*
                }
            }

            /// Makes relative paths start at `folder`, such as the folder of the config.
            pub fn relative_to(&mut self, folder: impl AsRef<Path>) {
                match self {
                    $(Self::$map(options) => start_at(options.path_mut(), folder.as_ref()),)*
                    $(Self::$stream(options) => start_at(options.path_mut(), folder.as_ref()),)*
                }
            }

            /// Opens the dataset.
            ///
            /// # Errors
            /// Returns the error of the format.
            pub fn open(&self) -> Result<Records, DataError> {
                Ok(match self {
                    $(Self::$map(options) => {
                        Records::Map(RecordDataset::$map(<$map_dataset>::from_options(options)?))
                    })*
                    $(Self::$stream(options) => {
                        Records::Stream(RecordStream::$stream(<$dataset>::from_options(options)?))
                    })*
                })
            }
        }

        /// A map-style dataset of records, of any format.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant is named after its dataset
        pub enum RecordDataset {
            $($map($map_dataset),)*
        }

        impl Dataset for RecordDataset {
            type Sample = Record;

            fn len(&self) -> usize {
                match self {
                    $(Self::$map(dataset) => dataset.len(),)*
                }
            }

            fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
                match self {
                    $(Self::$map(dataset) => dataset.get(index, cx),)*
                }
            }

            fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
                match self {
                    $(Self::$map(dataset) => dataset.get_many(indices, cx),)*
                }
            }

            fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
                match self {
                    $(Self::$map(dataset) => dataset.setup(cx),)*
                }
            }

            fn fingerprint(&self) -> String {
                match self {
                    $(Self::$map(dataset) => dataset.fingerprint(),)*
                }
            }
        }

        /// A stream of records, of any format.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant is named after its dataset
        pub enum RecordStream {
            $($stream($dataset),)*
        }

        /// A position in a shard of a [`RecordStream`].
        #[derive(Debug, Serialize, Deserialize)]
        #[doc(hidden)]
        pub enum RecordSnapshot {
            $($stream(<$dataset as SnapshotDataset>::Snapshot),)*
        }

        impl IterableDataset for RecordStream {
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
                    $(Self::$stream(dataset) => IterableDataset::len(dataset),)*
                }
            }

            fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
                match self {
                    $(Self::$stream(dataset) => dataset.setup(cx),)*
                }
            }

            fn fingerprint(&self) -> String {
                match self {
                    $(Self::$stream(dataset) => dataset.fingerprint(),)*
                }
            }
        }

        /// The records of a shard, of any format.
        enum Opened<$($stream),*> {
            $($stream($stream),)*
        }

        impl<$($stream: Iterator<Item = anyhow::Result<Record>>),*> Iterator for Opened<$($stream),*> {
            type Item = anyhow::Result<Record>;

            fn next(&mut self) -> Option<Self::Item> {
                match self {
                    $(Self::$stream(records) => records.next(),)*
                }
            }
        }

        impl<$(
            $stream: SnapshotIterator<
                    Item = anyhow::Result<Record>,
                    Snapshot = <$dataset as SnapshotDataset>::Snapshot,
                >
        ),*> SnapshotIterator for Opened<$($stream),*> {
            type Snapshot = RecordSnapshot;

            fn snapshot(&self) -> anyhow::Result<RecordSnapshot> {
                match self {
                    $(Self::$stream(records) => records.snapshot().map(RecordSnapshot::$stream),)*
                }
            }
        }

        impl SnapshotDataset for RecordStream {
            type Snapshot = RecordSnapshot;

            fn iter_from(
                &self,
                shard: Shard,
                cx: &mut SampleContext,
                snapshot: Option<RecordSnapshot>,
            ) -> anyhow::Result<
                impl SnapshotIterator<Item = anyhow::Result<Record>, Snapshot = RecordSnapshot> + Send,
            > {
                Ok(match self {$(
                    Self::$stream(dataset) => {
                        let snapshot = match snapshot {
                            None => None,
                            Some(RecordSnapshot::$stream(snapshot)) => Some(snapshot),
                            Some(_) => anyhow::bail!("the state is of a stream of another format"),
                        };
                        Opened::$stream(dataset.iter_from(shard, cx, snapshot)?)
                    }
                )*})
            }
        }
    };
}

formats! {
    maps: {
        "arrays" Arrays(crate::ArraysOptions) -> crate::Arrays<Record>;
        "json-lines" JsonLines(crate::JsonLinesOptions) -> crate::JsonLines<Record>;
        "parquet" Parquet(crate::ParquetOptions) -> crate::Parquet<Record>;
        "indexed-tar" IndexedTar(crate::TarOptions) -> crate::IndexedTar<Record>;
        "tokens" Tokens(crate::TokensOptions) -> crate::TokenRecords;
    }
    streams: {
        "json-lines-stream" JsonLinesStream(crate::JsonLinesOptions) -> crate::JsonLinesStream<Record>;
        "parquet-stream" ParquetStream(crate::ParquetOptions) -> crate::ParquetStream<Record>;
        "tar" Tar(crate::TarOptions) -> crate::TarShards<Record>;
    }
}

/// Lets the relative paths among `paths` start at `folder`. URLs stay as they are.
fn start_at<'a>(paths: impl IntoIterator<Item = &'a mut PathBuf>, folder: &Path) {
    for path in paths {
        if matches!(Location::new(&*path), Location::Path(_)) {
            *path = folder.join(&*path);
        }
    }
}

/// What a [`RecordConfig`] describes.
#[derive(Debug)]
pub enum Records {
    /// Random access.
    Map(RecordDataset),
    /// Reading in order.
    Stream(RecordStream),
}
