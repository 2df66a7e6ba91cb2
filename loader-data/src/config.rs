//! Datasets of records by name, as a config describes them.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    arrays, arrow_files, audio_files, csv_files,
    decoders::DecodedRecords,
    error::DataError,
    json_lines,
    options::SourceOptions,
    parquet,
    record::Record,
    source::{Compression, Files, Location, without_bad},
    tar_shards, text_lines,
    tokens::TokenFormat,
};

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
                    *path = crate::without_credentials(&*path).into();
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
                        Opened::$stream(dataset.iter_from(shard, cx, snapshot)?)
                    }
                )*})
            }
        }
    };
}

formats! {
    maps: {
        "arrays" Arrays(crate::ArraysOptions).open -> crate::Arrays;
        "arrow" Arrow(crate::ArrowOptions).open -> crate::Arrow;
        "audio-files" AudioFiles(crate::AudioFilesOptions).open -> crate::AudioFiles;
        "audio-folder" AudioFolder(crate::AudioFolderOptions).open_records -> crate::AudioRecords;
        "audio-table" AudioTable(crate::AudioTableOptions).open -> crate::AudioTable;
        "cached" Cached(crate::CachedOptions).open -> crate::RecordCache;
        "csv" Csv(crate::CsvOptions).open -> crate::Csv;
        "image-table" ImageTable(crate::ImageTableOptions).open -> crate::ImageTable;
        "json-lines" JsonLines(crate::JsonLinesOptions).open -> crate::JsonLines;
        "parquet" Parquet(crate::ParquetOptions).open -> crate::Parquet;
        "indexed-tar" IndexedTar(crate::TarOptions).open_indexed -> crate::IndexedTar;
        "text-lines" TextLines(crate::TextLinesOptions).open_records -> crate::TextRecords;
        "tokens" Tokens(crate::TokensOptions).open -> crate::TokenRecords;
    }
    streams: {
        "arrow-stream" ArrowStream(crate::ArrowOptions).open_stream -> crate::ArrowStream;
        "csv-stream" CsvStream(crate::CsvOptions).open_stream -> crate::CsvStream;
        "json-lines-stream" JsonLinesStream(crate::JsonLinesOptions).open_stream -> crate::JsonLinesStream;
        "mix" Mix(crate::MixOptions).open -> crate::RecordMix;
        "packed" Packed(crate::PackedOptions).open -> crate::RecordWindows;
        "parquet-stream" ParquetStream(crate::ParquetOptions).open_stream -> crate::ParquetStream;
        "tar" Tar(crate::TarOptions).open -> crate::TarShards;
        "text-lines-stream" TextLinesStream(crate::TextLinesOptions).open_records_stream -> crate::TextRecordsStream;
    }
}

impl FormatStream {
    /// Returns the names of the fields that all records have; `None` if only reading the records tells them.
    fn field_names(&self) -> Option<Vec<String>> {
        match self {
            Self::ArrowStream(rows) => Some(rows.field_names()),
            Self::CsvStream(rows) => Some(rows.field_names()),
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
        match () {
            () if stem_ends(&[".jsonl", ".ndjson"]) => {
                let options = crate::JsonLinesOptions::new(pattern);
                Some(if is_compressed { Self::JsonLinesStream(options) } else { Self::JsonLines(options) })
            }
            () if stem_ends(&csv_files::EXTENSIONS) => {
                let options = crate::CsvOptions::new(pattern);
                Some(if is_compressed { Self::CsvStream(options) } else { Self::Csv(options) })
            }
            () if ends(&arrow_files::EXTENSIONS) => Some(Self::Arrow(crate::ArrowOptions::new(pattern))),
            () if stem_ends(&text_lines::EXTENSIONS) => {
                let options = crate::TextLinesOptions::new(pattern);
                Some(if is_compressed { Self::TextLinesStream(options) } else { Self::TextLines(options) })
            }
            () if ends(&arrays::ENDS) => Some(Self::Arrays(crate::ArraysOptions::new(pattern))),
            () if ends(&audio_files::EXTENSIONS) => {
                Some(Self::AudioFiles(crate::AudioFilesOptions::new(pattern)))
            }
            () if ends(&[".idx"]) => {
                let documents =
                    crate::TokensOptions::new(pattern).format(TokenFormat::Megatron).documents(true);
                Some(Self::Tokens(documents))
            }
            () if ends(&parquet::EXTENSIONS) => Some(Self::Parquet(crate::ParquetOptions::new(pattern))),
            () if ends(&tar_shards::EXTENSIONS) => Some(Self::Tar(crate::TarOptions::new(pattern))),
            () => None,
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

#[cfg(test)]
mod tests {
    use loader_core::DataLoader;

    use super::*;
    use crate::record::REFERENCES;

    /// Loads two batches of 10 records. Returns how many of the records refer to rows of decoded columns.
    fn references(kind: &str, file: &str, keys: &str) -> usize {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");
        let config = format!(r#"{{"kind": "{kind}", "path": "{folder}/{file}"{keys}}}"#);
        let config: RecordConfig = serde_json::from_str(&config).unwrap();
        REFERENCES.set(0);
        // Without workers, the samples are loaded in this thread.
        let loader = match config.open().unwrap() {
            Records::Map(records) => DataLoader::builder(records).batch_size(10).shuffle(true).build(),
            Records::Stream(records) => DataLoader::stream(records).batch_size(10).shards(1).build(),
        };
        for batch in loader.unwrap().iter().unwrap().take(2) {
            assert_eq!(batch.unwrap().len(), 2);
        }
        REFERENCES.get()
    }

    #[test]
    fn records_of_columns_are_references_unless_something_changes_them() {
        let parquet = "parquet/train-*.parquet";
        for (file, kinds) in
            [(parquet, ["parquet", "parquet-stream"]), ("arrow/saved/*.arrow", ["arrow", "arrow-stream"])]
        {
            for kind in kinds {
                let select = r#", "fields": ["x", "label"]"#;
                assert_eq!(references(kind, file, select), 20, "{kind}");
                let converted = r#", "fields": ["x", "label"], "dtypes": {"label": "int8"}"#;
                assert_eq!(references(kind, file, converted), 0, "{kind}");
            }
        }
        let decoded = r#", "images": {"image": {"size": 4}}"#;
        for kind in ["parquet", "parquet-stream"] {
            assert_eq!(references(kind, "images/train.parquet", decoded), 0, "{kind}");
        }
    }

    /// Returns the error of opening fixtures with more keys.
    fn refusal(kind: &str, files: &str, keys: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");
        let config = format!(r#"{{"kind": "{kind}", "path": "{folder}/{files}", {keys}}}"#);
        let config: RecordConfig = serde_json::from_str(&config).unwrap();
        config.open().unwrap_err().to_string()
    }

    #[test]
    fn options_for_a_field_that_no_record_has_are_refused() {
        for (kind, files) in [
            ("arrays", "arrays/digits.npz"),
            ("arrow", "arrow/saved/*.arrow"),
            ("csv-stream", "csv/part-*.csv"),
            ("parquet", "parquet/train-*.parquet"),
        ] {
            for (option, value) in [("dtypes", "\"int8\""), ("pad", "0.0")] {
                let error = refusal(kind, files, &format!(r#""{option}": {{"lable": {value}}}"#));
                let expected = format!(": option `{option}`: the records have no field `lable`; they have: ");
                assert!(error.contains(&expected), "{kind}: {error}");
            }
        }
        let options = crate::FieldOptions::new().dtype("lable", loader_core::DType::I8);
        let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet/train-*.parquet");
        let error = crate::Parquet::open(files).unwrap().fields(options).unwrap_err().to_string();
        assert!(error.contains("option `dtypes`"), "{error}");
    }

    #[test]
    fn options_that_only_streams_have_are_refused_for_random_access() {
        let error = refusal("parquet", "parquet/train-*.parquet", r#""shuffle_blocks": 2"#);
        assert!(
            error.contains("option `shuffle_blocks`: only a stream has this option (kind `parquet-stream`)"),
            "{error}"
        );
        let error = refusal("indexed-tar", "tar/shard-0.tar", r#""shuffle_files": true"#);
        assert!(
            error.contains("option `shuffle_files`: only a stream has this option (kind `tar`)"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_key_lists_the_known_ones() {
        for &kind in RecordConfig::KINDS {
            let required = match kind {
                "audio-folder" => r#", "path": "x", "sample_rate": 16000"#,
                "cached" => r#", "folder": "x", "dataset": {"kind": "csv"}"#,
                "mix" => r#", "parts": []"#,
                "packed" => r#", "window": 8, "dataset": {"kind": "csv"}"#,
                _ => "",
            };
            let read = |more: &str| {
                serde_json::from_str::<RecordConfig>(&format!(r#"{{"kind": "{kind}"{required}{more}}}"#))
            };
            let refusal = |key: &str| read(&format!(r#", "{key}": [[]]"#)).unwrap_err().to_string();
            let message = refusal("xyz");
            let (_, known) = message.split_once("unknown field `xyz`, expected one of `").expect(&message);
            let known: Vec<&str> = known.split('`').step_by(2).collect();
            for key in &known[..known.len() - 1] {
                assert!(!refusal(key).starts_with("unknown field"), "{kind}: {key}");
            }
            for key in known.iter().filter(|key| key.ends_with("bytes")) {
                let size = |text: &str| read(&format!(r#", "{key}": {text}"#)).unwrap();
                assert_eq!(size(r#""1 KiB""#), size("1024"), "{kind}: {key}");
            }
            let written = serde_json::to_value(read("").unwrap()).unwrap();
            for key in written.as_object().unwrap().keys().filter(|key| *key != "kind") {
                assert!(known.contains(&key.as_str()), "{kind}: {key} is not in {known:?}");
            }
        }
        for (part, last_keys) in [
            (r#""kind": "csv", "weigth": 2.0"#, "`pad`, `weight`, `shuffle`"),
            (r#""kind": "mix", "parts": [], "weigth": 2.0"#, "`num_samples`, `weight`, `shuffle`"),
            (r#""kind": "cached", "weigth": 2.0"#, "`dataset`, `weight`, `shuffle`"),
            (r#""kind": "packed", "weigth": 2.0"#, "`dataset`, `weight`, `shuffle`"),
            (r#""kind": "csv", "store": {"max_retry": 3}"#, "`max_retries`, `cache`"),
            // The keys of a dataset in the part.
            (
                r#""kind": "cached", "folder": "x", "dataset": {"kind": "csv", "weigth": 2.0}"#,
                "`dtypes`, `fill`, `pad`",
            ),
            (
                r#""kind": "packed", "window": 8, "dataset": {"kind": "csv", "weigth": 2.0}"#,
                "`dtypes`, `fill`, `pad`",
            ),
            (r#""kind": "mix", "parts": [{"kind": "csv", "weigth": 2.0}]"#, "`pad`, `weight`, `shuffle`"),
        ] {
            let mix = format!(r#"{{"kind": "mix", "parts": [{{{part}}}]}}"#);
            let message = serde_json::from_str::<RecordConfig>(&mix).unwrap_err().to_string();
            assert!(message.ends_with(last_keys), "{message}");
            assert!(message.matches("`weight`").count() <= 1, "{message}");
        }
    }

    #[test]
    fn options_in_sections_have_units_too() {
        let read =
            |keys: &str| serde_json::from_str::<RecordConfig>(&format!(r#"{{"kind": "csv", {keys}}}"#));
        for (text, number) in [
            (r#""store": {"timeout": "0.5 min"}"#, r#""store": {"timeout": 30}"#),
            (
                r#""store": {"cache": {"folder": "x", "max_bytes": "2 GB"}}"#,
                r#""store": {"cache": {"folder": "x", "max_bytes": 2000000000}}"#,
            ),
            (
                r#""audio": {"a": {"sample_rate": 1, "max_sample_bytes": "1 kB"}}"#,
                r#""audio": {"a": {"sample_rate": 1, "max_sample_bytes": 1000}}"#,
            ),
        ] {
            assert_eq!(read(text).unwrap(), read(number).unwrap(), "{text}");
        }
        let zero = read(r#""store": {"timeout": "0 s"}"#).unwrap_err().to_string();
        assert!(zero.contains("not a positive number of seconds"), "{zero}");
    }

    #[test]
    fn the_extension_of_a_name_tells_the_format() {
        for (name, kind) in [
            ("a.feather", Some("arrow")),
            ("A.TSV", Some("csv")),
            ("a.csv.gz", Some("csv-stream")),
            ("a.tsv.zst", Some("csv-stream")),
            ("a.parquet.gz", None),
            ("a.jsonl", Some("json-lines")),
            ("data.d/A.NDJSON.GZ", Some("json-lines-stream")),
            ("a.b.safetensors", Some("arrays")),
            ("a.npy", Some("arrays")),
            ("a.npy.gz", Some("arrays")),
            ("a.npy.zst", None),
            ("train-images-idx3-ubyte", Some("arrays")),
            ("train-labels-idx1-ubyte.gz", Some("arrays")),
            ("a.txt", Some("text-lines")),
            ("a.TXT.zst", Some("text-lines-stream")),
            ("a.WAV", Some("audio-files")),
            ("*.flac", Some("audio-files")),
            ("a.mp3", Some("audio-files")),
            ("a.ogg", Some("audio-files")),
            ("corpus_text_document.idx", Some("tokens")),
            ("train.bin", None),
            ("a.jpg", None),
            ("*.parquet", Some("parquet")),
            ("s3://bucket/{000..099}.tar.zst", Some("tar")),
            ("https://host/a.parquet?signature=s.jsonl", Some("parquet")),
            ("a.tar.parquet/x", None),
            ("jsonl", None),
        ] {
            let found = RecordConfig::of_extension(Path::new(name), Path::new(name));
            assert_eq!(found.map(|config| config.kind()), kind, "{name}");
        }
    }

    #[test]
    fn files_are_listed_without_their_tokenizers() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/json_lines");
        let text = format!(
            r#"{{"kind": "json-lines", "path": "{folder}/pandas.jsonl", "tokenizers": {{"a": {{"path": "none.json"}}}}}}"#
        );
        let config: RecordConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(config.files().unwrap().len(), 1);
        let error = config.open().unwrap_err().to_string();
        assert!(error.contains("option `tokenizers`"), "{error}");
    }

    #[test]
    fn the_folders_of_caches_are_listed() {
        let text = r#"{"kind": "mix", "parts": [
            {"kind": "csv", "path": "a", "store": {"cache": {"folder": "/b", "max_bytes": 9}}},
            {"kind": "cached", "folder": "/c", "dataset": {"kind": "cached", "folder": "/d", "dataset": {
                "kind": "arrays", "files": {"folder": "x.npy"}
            }}}
        ]}"#;
        let config: RecordConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.cache_folders(), ["/b", "/c", "/d"].map(PathBuf::from));
        let packed = format!(r#"{{"kind": "packed", "window": 8, "dataset": {text}}}"#);
        let packed: RecordConfig = serde_json::from_str(&packed).unwrap();
        assert_eq!(packed.cache_folders(), config.cache_folders());
    }

    #[test]
    fn a_config_is_printed_without_credentials() {
        let text = r#"{"kind": "arrays", "files": {"x": "https://me:secret@host/x.npy", "y": "y?.npy"}}"#;
        let config: RecordConfig = serde_json::from_str(text).unwrap();
        let shown = serde_json::to_string(&config.without_credentials()).unwrap();
        assert!(shown.contains(r#""https://host/x.npy""#) && shown.contains(r#""y?.npy""#), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }
}
