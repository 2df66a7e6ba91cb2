//! Datasets of records by name, as a config describes them.

#[cfg(feature = "schema")]
mod schema;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(feature = "schema")]
pub(crate) use schema::any_kind;

use super::nested;
use crate::{
    decoders::DecodedRecords,
    error::DataError,
    formats::{
        arrays, arrow_files, audio_files, csv_files, file_table, json_lines, parquet, tar_shards, text_lines,
        tokens,
    },
    options::SourceOptions,
    record::Record,
    source::{Compression, Files, Location, without_bad, without_credentials},
};

/// Ends of the names of files with arrays. MNIST's files are named `train-images-idx3-ubyte`. A folder does not
/// stand for the compressed ones, which are often beside the unpacked ones.
const ARRAY_ENDS: [&str; 6] = [".npy", ".npy.gz", ".npz", ".safetensors", "-ubyte", "-ubyte.gz"];

/// Makes the enums from two lists of formats: the name in a config, the variant, the options with the method
/// that opens them, and the dataset.
macro_rules! formats {
    (
        maps: { $($map_kind:literal $map:ident($map_options:path).$map_open:ident -> $map_dataset:ty;)* }
        streams: { $($kind:literal $stream:ident($options:path).$open:ident -> $dataset:ty;)* }
    ) => {
        /// A dataset of records, described by a table such as the section `[dataset]` of a config. `kind`
        /// names the format; the other keys are those of its options.
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

            /// Returns the JSON Schemas of the keys of each kind, without `kind`, in the order of
            /// [`KINDS`](Self::KINDS). What they refer to is in the definitions of `generator`.
            #[cfg(feature = "schema")]
            pub fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema> {
                use schemars::JsonSchema;

                vec![
                    $(<$map_options>::json_schema(generator),)*
                    $(<$options>::json_schema(generator),)*
                ]
            }

            /// Name of the format in a config.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$map(_) => $map_kind,)*
                    $(Self::$stream(_) => $kind,)*
                }
            }

            /// Makes relative paths start at `folder`, such as the folder of the config.
            pub fn relative_to(&mut self, folder: impl AsRef<Path>) {
                self.relative_to_each(|_| folder.as_ref().to_owned());
            }

            /// Makes each relative path start at the folder that `folder` returns for its key, such as
            /// `path`, `files.image` or `dataset.path`. A config may have keys of several files, see
            /// `loader_core::config::Config::location`.
            pub fn relative_to_each(&mut self, folder: impl Fn(&str) -> PathBuf) {
                for (key, path) in self.paths_mut() {
                    if let Location::Path(relative) = Location::new(&*path) {
                        *path = folder(&key).join(relative);
                    }
                }
            }

            /// Returns the config with each path and URL [as errors show it](crate::without_credentials), for
            /// printing.
            #[must_use]
            pub fn without_credentials(mut self) -> Self {
                for (_, path) in self.paths_mut() {
                    *path = without_credentials(&*path).into();
                }
                self
            }

            /// Returns the paths with their keys.
            pub(crate) fn paths_mut(&mut self) -> Vec<(String, &mut PathBuf)> {
                match self {
                    $(Self::$map(options) => options.paths_mut().collect(),)*
                    $(Self::$stream(options) => options.paths_mut().collect(),)*
                }
            }

            /// Replaces the files by `files`, such as some of those that [`files`](Self::files) has returned,
            /// and returns true. Changes nothing and returns false for datasets that need all of their files:
            /// arrays with the key `files`, `audio-folder`, `mix`, `cached` and `packed`.
            pub fn set_files(&mut self, files: Vec<PathBuf>) -> bool {
                match self {
                    $(Self::$map(options) => options.set_files(files),)*
                    $(Self::$stream(options) => options.set_files(files),)*
                }
            }

            /// Opens the dataset.
            ///
            /// # Errors
            /// Returns the error of the format.
            pub fn open(&self) -> Result<Records, DataError> {
                let mut config = self.clone();
                let source = config.take_decoded().unwrap_or_default();
                let decoders = source.decoders()?;
                Ok(match config {
                    $(Self::$map(options) => {
                        source.refuse_drop_nulls()?;
                        Records::Map(DecodedRecords::new(FormatDataset::$map(options.$map_open()?), decoders))
                    })*
                    $(Self::$stream(options) => {
                        let records = FormatStream::$stream(options.$open()?);
                        records.field_names().map_or(Ok(()), |names| source.check_drop_nulls(&names))?;
                        Records::Stream(DecodedRecords::new(records, decoders).drop_nulls(source.drop_nulls))
                    })*
                })
            }

            /// Removes the keys `images`, `audio`, `tokenizers` and `drop_nulls`. Returns options that have them, if
            /// the kind has these keys.
            fn take_decoded(&mut self) -> Option<SourceOptions> {
                match self {
                    $(Self::$map(options) => options.take_decoded(),)*
                    $(Self::$stream(options) => options.take_decoded(),)*
                }
            }
        }

        /// A map-style dataset of any format, without the decoding of fields.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant is named after its dataset
        pub enum FormatDataset {
            $($map($map_dataset),)*
        }

        impl Dataset for FormatDataset {
            type Sample = Record;

            fn len(&self) -> usize {
                match self {
                    $(Self::$map(dataset) => dataset.len(),)*
                }
            }

            fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
                match self {$(
                    Self::$map(dataset) => {
                        cx.pass_collated::<Self, $map_dataset>();
                        dataset.get(index, cx)
                    }
                )*}
            }

            fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
                match self {$(
                    Self::$map(dataset) => {
                        cx.pass_collated::<Self, $map_dataset>();
                        dataset.get_many(indices, cx)
                    }
                )*}
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

        /// A stream of any format, without the decoding of fields.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant is named after its dataset
        pub enum FormatStream {
            $($stream($dataset),)*
        }

        /// A position in a shard of a [`FormatStream`].
        #[derive(Debug, Serialize, Deserialize)]
        #[doc(hidden)]
        pub enum RecordSnapshot {
            $($stream(<$dataset as SnapshotDataset>::Snapshot),)*
        }

        impl IterableDataset for FormatStream {
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

            fn layers(&self) -> u8 {
                match self {
                    $(Self::$stream(dataset) => dataset.layers(),)*
                }
            }
        }

        /// The records of a shard, of any format.
        enum ShardRecords<$($stream),*> {
            $($stream($stream),)*
        }

        impl<$($stream: Iterator<Item = anyhow::Result<Record>>),*> Iterator for ShardRecords<$($stream),*> {
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
        ),*> SnapshotIterator for ShardRecords<$($stream),*> {
            type Snapshot = RecordSnapshot;

            fn snapshot(&self) -> anyhow::Result<RecordSnapshot> {
                match self {
                    $(Self::$stream(records) => records.snapshot().map(RecordSnapshot::$stream),)*
                }
            }
        }

        impl SnapshotDataset for FormatStream {
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
                        cx.pass_collated::<Self, $dataset>();
                        ShardRecords::$stream(dataset.iter_from(shard, cx, snapshot)?)
                    }
                )*})
            }
        }
    };
}

formats! {
    maps: {
        "arrays" Arrays(arrays::ArraysOptions).open -> arrays::Arrays;
        "arrow" Arrow(arrow_files::ArrowOptions).open -> arrow_files::Arrow;
        "audio-files" AudioFiles(audio_files::AudioFilesOptions).open -> audio_files::AudioFiles;
        "audio-folder" AudioFolder(audio_files::AudioFolderOptions).open_records -> audio_files::AudioRecords;
        "audio-table" AudioTable(file_table::AudioTableOptions).open -> file_table::AudioTable;
        "cached" Cached(nested::CachedOptions).open -> nested::RecordCache;
        "csv" Csv(csv_files::CsvOptions).open -> csv_files::Csv;
        "image-table" ImageTable(file_table::ImageTableOptions).open -> file_table::ImageTable;
        "json-lines" JsonLines(json_lines::JsonLinesOptions).open -> json_lines::JsonLines;
        "parquet" Parquet(parquet::ParquetOptions).open -> parquet::Parquet;
        "indexed-tar" IndexedTar(tar_shards::TarOptions).open_indexed -> tar_shards::IndexedTar;
        "text-lines" TextLines(text_lines::TextLinesOptions).open_records -> text_lines::TextRecords;
        "tokens" Tokens(tokens::TokensOptions).open -> tokens::TokenRecords;
    }
    streams: {
        "arrow-stream" ArrowStream(arrow_files::ArrowOptions).open_stream -> arrow_files::ArrowStream;
        "csv-stream" CsvStream(csv_files::CsvOptions).open_stream -> csv_files::CsvStream;
        "json-lines-stream" JsonLinesStream(json_lines::JsonLinesOptions).open_stream -> json_lines::JsonLinesStream;
        "mix" Mix(nested::MixOptions).open -> nested::RecordMix;
        "packed" Packed(nested::PackedOptions).open -> nested::RecordWindows;
        "parquet-stream" ParquetStream(parquet::ParquetOptions).open_stream -> parquet::ParquetStream;
        "tar" Tar(tar_shards::TarOptions).open -> tar_shards::TarShards;
        "text-lines-stream" TextLinesStream(text_lines::TextLinesOptions).open_records_stream
            -> text_lines::TextRecordsStream;
    }
}

impl FormatStream {
    /// Returns the names of the fields that all records have; `None` if only reading the records tells them.
    fn field_names(&self) -> Option<Vec<String>> {
        match self {
            Self::ArrowStream(rows) => Some(rows.field_names()),
            Self::CsvStream(rows) => Some(rows.columns().into_iter().map(|(name, _)| name).collect()),
            Self::JsonLinesStream(rows) => rows.field_names(),
            Self::ParquetStream(rows) => Some(rows.field_names()),
            Self::Tar(samples) => samples.field_names(),
            Self::TextLinesStream(_) => Some(vec![text_lines::FIELD.to_owned()]),
            Self::Mix(_) | Self::Packed(_) => None,
        }
    }
}

/// The files of a dataset that were found, and the errors of those that cannot be reached.
#[derive(Debug)]
pub struct ListedFiles {
    /// The path or URL of each file, and its number of bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// The errors of the other files.
    pub errors: Vec<DataError>,
}

impl RecordConfig {
    /// Returns the dataset of the files that `pattern` stands for. The extension of `name` determines the format. All
    /// options have their defaults, except that the samples of an index of Megatron (`.idx`) are documents.
    /// Returns `None` if the extension determines no format: raw files of tokens do not tell the type of their
    /// tokens, and images are in folders of classes or in other files.
    pub fn of_extension(name: &Path, pattern: &Path) -> Option<Self> {
        let name = Location::new(name).file_name().to_ascii_lowercase();
        let ends = |extensions: &[&str]| extensions.iter().any(|extension| name.ends_with(extension));
        let (stem, compression) = Compression::split(&name);
        let is_compressed = compression.is_some();
        let stem_ends = |extensions: &[&str]| extensions.iter().any(|extension| stem.ends_with(extension));
        if stem_ends(&[".jsonl", ".ndjson"]) {
            let options = json_lines::JsonLinesOptions::new(pattern);
            Some(if is_compressed { Self::JsonLinesStream(options) } else { Self::JsonLines(options) })
        } else if stem_ends(&csv_files::EXTENSIONS) {
            let options = csv_files::CsvOptions::new(pattern);
            Some(if is_compressed { Self::CsvStream(options) } else { Self::Csv(options) })
        } else if ends(&arrow_files::EXTENSIONS) {
            Some(Self::Arrow(arrow_files::ArrowOptions::new(pattern)))
        } else if stem_ends(&text_lines::EXTENSIONS) {
            let options = text_lines::TextLinesOptions::new(pattern);
            Some(if is_compressed { Self::TextLinesStream(options) } else { Self::TextLines(options) })
        } else if ends(&ARRAY_ENDS) {
            Some(Self::Arrays(arrays::ArraysOptions::new(pattern)))
        } else if ends(&audio_files::EXTENSIONS) {
            Some(Self::AudioFiles(audio_files::AudioFilesOptions::new(pattern)))
        } else if ends(&[".idx"]) {
            let documents =
                tokens::TokensOptions::new(pattern).format(tokens::TokenFormat::Megatron).documents(true);
            Some(Self::Tokens(documents))
        } else if ends(&parquet::EXTENSIONS) {
            Some(Self::Parquet(parquet::ParquetOptions::new(pattern)))
        } else if ends(&tar_shards::EXTENSIONS) {
            Some(Self::Tar(tar_shards::TarOptions::new(pattern)))
        } else {
            None
        }
    }

    /// Returns the folders of caches: of datasets that are `cached`, and those in the options `store`. For a mix
    /// it returns those of its parts.
    pub fn cache_folders(&self) -> Vec<PathBuf> {
        if let Self::Mix(options) = self {
            return options.parts().flat_map(Self::cache_folders).collect();
        }
        if let Self::Packed(options) = self {
            return options.dataset().cache_folders();
        }
        // A cached dataset may be in another one.
        let is_cache =
            |key: &str| matches!(key.trim_start_matches("dataset."), "folder" | "store.cache.folder");
        let mut config = self.clone();
        let paths = config.paths_mut().into_iter();
        paths.filter_map(|(key, path)| is_cache(&key).then(|| path.clone())).collect()
    }

    /// Lists the files as [`files`](Self::files) does. A folder or a pattern leaves out each file that is not regular or
    /// cannot be reached, such as a broken symbolic link; its error is returned too.
    ///
    /// # Errors
    /// As for [`files`](Self::files).
    pub fn files_and_errors(&self) -> Result<ListedFiles, DataError> {
        let (files, errors) = without_bad(|| self.files());
        Ok(ListedFiles { files: files?, errors })
    }

    /// Opens the dataset as [`open`](Self::open) does, without the files that
    /// [`files_and_errors`](Self::files_and_errors) leaves out.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_without_bad_files(&self) -> Result<Records, DataError> {
        without_bad(|| self.open()).0
    }

    /// False if the config has no key for its files.
    #[cfg(feature = "config")]
    pub(crate) fn names_files(&mut self) -> bool {
        let has_parts = matches!(self, Self::Mix(_) | Self::Cached(_) | Self::Packed(_));
        has_parts || self.paths_mut().iter().any(|(key, _)| !key.starts_with("store."))
    }

    /// Selects the columns `names` of Arrow and Parquet files, and returns true. Changes nothing and returns false for
    /// other kinds.
    pub fn select_columns(&mut self, names: Vec<String>) -> bool {
        match self {
            Self::Arrow(options) | Self::ArrowStream(options) => options.select(names),
            Self::Parquet(options) | Self::ParquetStream(options) => options.select(names),
            _ => return false,
        }
        true
    }

    /// Lists the files of the dataset, in its order, and reads none of them: the path or URL of each, and its
    /// number of bytes. Of Megatron's pairs of token files it lists the indexes. Of arrays it lists the files
    /// with all fields, then those of single fields.
    ///
    /// # Errors
    /// Returns an error if a pattern stands for no file, or a file is not a regular file.
    pub fn files(&self) -> Result<Vec<(PathBuf, u64)>, DataError> {
        let mut config = self.clone();
        // Listing needs no decoders, of which those of text would be read from files.
        drop(config.take_decoded());
        let files = match config {
            Self::Arrays(options) => {
                return Ok(options.sources()?.iter().flat_map(|source| entries(&source.files)).collect());
            }
            Self::Arrow(options) | Self::ArrowStream(options) => options.files(),
            Self::Csv(options) => options.files(),
            Self::CsvStream(options) => options.stream_files(),
            Self::AudioFiles(options) => options.files(),
            Self::AudioTable(options) => options.files(),
            Self::ImageTable(options) => options.files(),
            Self::AudioFolder(options) => options.files(),
            Self::Cached(options) => return options.files(),
            Self::Mix(options) => return options.files(),
            Self::Packed(options) => return options.files(),
            Self::JsonLines(options) => options.source.files(&json_lines::EXTENSIONS),
            Self::JsonLinesStream(options) => options.source.stream_files(&json_lines::EXTENSIONS),
            Self::Parquet(options) | Self::ParquetStream(options) => {
                options.source.files(&parquet::EXTENSIONS)
            }
            Self::IndexedTar(options) | Self::Tar(options) => options.source.files(&tar_shards::EXTENSIONS),
            Self::TextLines(options) => options.source.files(&text_lines::EXTENSIONS),
            Self::TextLinesStream(options) => options.source.stream_files(&text_lines::EXTENSIONS),
            Self::Tokens(options) => options.files(),
        }?;
        Ok(entries(&files).collect())
    }
}

/// Serialises `config` [without credentials](RecordConfig::without_credentials).
pub(crate) fn serialize_without_credentials<S: Serializer>(
    config: &RecordConfig,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    config.clone().without_credentials().serialize(serializer)
}

thread_local! {
    /// True if the last [`RecordConfig`] inside another one could not be deserialised. serde passes errors on as text,
    /// which does not tell the dataset of the keys that it lists.
    static IS_OF_INNER: Cell<bool> = const { Cell::new(false) };
}

/// Deserialises a dataset that is a part of another one. An error comes with true if it is about a dataset that is
/// deeper inside.
pub(crate) fn inner_dataset<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<RecordConfig, (D::Error, bool)> {
    IS_OF_INNER.set(false);
    RecordConfig::deserialize(deserializer).map_err(|error| (error, IS_OF_INNER.replace(true)))
}

/// Deserialises the key `dataset` of another dataset.
pub(crate) fn boxed_dataset<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<RecordConfig>, D::Error> {
    inner_dataset(deserializer).map(Box::new).map_err(|(error, _)| error)
}

/// Returns the path or URL of each file, and its number of bytes.
fn entries(files: &Files) -> impl Iterator<Item = (PathBuf, u64)> {
    (0..files.len()).map(|index| {
        let file = files.get(index);
        (file.location.as_path().to_owned(), file.len)
    })
}

/// A map-style dataset of records of any format, whose fields with images, audio and text are decoded.
pub type RecordDataset = DecodedRecords<FormatDataset>;

/// A stream of records of any format, whose fields with images, audio and text are decoded.
pub type RecordStream = DecodedRecords<FormatStream>;

/// What a [`RecordConfig`] describes.
#[derive(Debug, Clone)]
pub enum Records {
    /// Random access.
    Map(RecordDataset),
    /// Reading in order.
    Stream(RecordStream),
}
