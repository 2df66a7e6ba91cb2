//! Datasets over real files, for the loader. The package `process-loader` exports them as `loader::data`, with
//! its feature `data`.
//!
//! [`ImageFolder`] (feature `image-folder`, on by default) reads images from one sub-folder per class, as
//! torchvision's `ImageFolder` does: JPEG and PNG files, and more types with the feature `more-images`. It
//! decodes them and applies its [`Transform`]: crop, resize, flip, normalise. The decoders are pure Rust.
//!
//! `Tokens` and `TokenDocuments` (feature `tokens`) read files of tokens for language models: raw integers,
//! and Megatron's pairs of an index and a file of tokens.
//!
//! # Examples
//! ```
//! use loader_core::{Dataset, SampleContext};
//! use loader_data::{ImageFolder, Transform};
//!
//! let photos = ImageFolder::open("photos")?.transform(Transform::standard_train(224))?;
//! assert_eq!(photos.classes(), ["animal", "medical", "space", "table", "texture"]);
//!
//! // A loader calls `get` in its workers and collates the samples into a `Tensor<f32>` of shape
//! // [B, 3, 224, 224] and a `Tensor<u32>` of shape [B].
//! let (image, label) = photos.get(0, &mut SampleContext::new(7))?;
//! assert_eq!(image.shape(), [3, 224, 224]);
//! assert_eq!(label, 0);
//! # anyhow::Ok(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "formats", feature = "cloud")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "a single format uses a part of what the formats share"
    )
)]

#[cfg(any(feature = "arrow", feature = "parquet"))]
mod arrow_rows;
#[cfg(any(feature = "image-folder", feature = "schema"))]
mod config;
#[cfg(feature = "records")]
mod decoders;
#[cfg(feature = "records")]
mod error;
mod formats;
#[cfg(feature = "image-folder")]
mod images;
#[cfg(any(feature = "csv", feature = "json-lines", feature = "tar"))]
mod index;
#[cfg(any(feature = "csv", feature = "json-lines"))]
mod lines;
#[cfg(any(
    feature = "arrays",
    feature = "arrow",
    feature = "audio",
    feature = "csv",
    feature = "json-lines",
    feature = "parquet",
    feature = "tar",
    feature = "tokens"
))]
mod options;
#[cfg(any(
    feature = "arrow",
    feature = "audio",
    feature = "csv",
    feature = "json-lines",
    feature = "parquet",
    feature = "tar",
    all(feature = "cloud", feature = "image-folder")
))]
mod parallel;
#[cfg(any(feature = "arrow", feature = "parquet"))]
mod part_cache;
#[cfg(feature = "records")]
mod record;
#[cfg(any(feature = "arrow", feature = "csv", feature = "json-lines", feature = "parquet", feature = "tar"))]
mod shard_items;
#[cfg(feature = "records")]
mod source;

#[cfg(feature = "formats")]
#[doc(hidden)]
pub use config::CardFiles;
#[cfg(feature = "formats")]
pub use config::{
    CachedOptions, FormatDataset, FormatStream, ListedFiles, MixOptions, PackedOptions, RecordCache,
    RecordConfig, RecordDataset, RecordMix, RecordSnapshot, RecordStream, RecordWindows, Records,
};
#[cfg(feature = "image-folder")]
pub use config::{DatasetConfig, DatasetError, KindName, KindOnly, OpenDataset};
#[cfg(feature = "schema")]
pub use config::{kind_schema, schema_generator};
#[cfg(feature = "audio")]
pub use decoders::AudioTransform;
#[cfg(all(feature = "formats", feature = "tokenizer"))]
pub use decoders::TokenColumn;
#[cfg(feature = "tokenizer")]
pub use decoders::Tokenizer;
#[cfg(feature = "formats")]
pub use decoders::TokenizerOptions;
#[cfg(all(feature = "records", any(feature = "audio", feature = "image-folder")))]
pub use decoders::{DecodedRecords, FieldDecoder};
#[cfg(all(feature = "image-folder", feature = "records"))]
pub use decoders::{ImageColumn, ImageOptions};
#[cfg(feature = "records")]
pub use error::{DataError, DataProblem, Position};
#[cfg(feature = "arrays")]
pub use formats::arrays::{ArrayFormat, Arrays, ArraysOptions};
#[cfg(feature = "arrow")]
pub use formats::arrow_files::{Arrow, ArrowOptions, ArrowStream};
#[cfg(feature = "audio")]
pub use formats::audio_files::{
    AudioFiles, AudioFilesOptions, AudioFolder, AudioFolderOptions, AudioRecords,
};
#[cfg(feature = "csv")]
pub use formats::csv_files::{ColumnType, Csv, CsvOptions, CsvStream};
#[cfg(all(
    feature = "csv",
    feature = "json-lines",
    feature = "parquet",
    any(feature = "audio", feature = "image-folder")
))]
#[doc(hidden)]
pub use formats::file_table::TABLE_NAMES;
#[cfg(all(feature = "audio", feature = "csv", feature = "json-lines", feature = "parquet"))]
pub use formats::file_table::{AudioTable, AudioTableOptions};
#[cfg(all(feature = "image-folder", feature = "csv", feature = "json-lines", feature = "parquet"))]
pub use formats::file_table::{ImageTable, ImageTableOptions};
#[cfg(feature = "image-folder")]
pub use formats::image_folder::{ImageFolder, ImageFolderError, ImageFolderOptions};
#[cfg(feature = "json-lines")]
pub use formats::json_lines::{JsonLines, JsonLinesOptions, JsonLinesStream};
#[cfg(feature = "tar")]
pub use formats::pack::{PackError, PackFormat, PackOptions, PackPlan, PackSummary, check_packed};
#[cfg(feature = "parquet")]
pub use formats::parquet::{Parquet, ParquetOptions, ParquetStream};
#[cfg(feature = "tar")]
pub use formats::tar_shards::{IndexedTar, TarOptions, TarPosition, TarShards};
#[cfg(feature = "json-lines")]
pub use formats::text_lines::{TextLines, TextLinesOptions, TextLinesStream, TextRecords, TextRecordsStream};
#[cfg(feature = "tokens")]
pub use formats::tokens::{
    SegmentedTokens, Token, TokenDocuments, TokenFormat, TokenRecords, TokenWindow, TokenWindowBatch,
    TokenWindowStack, Tokens, TokensOptions,
};
#[cfg(feature = "image-folder")]
#[doc(hidden)]
pub use images::IMAGE_EXTENSIONS;
#[cfg(feature = "image-folder")]
pub use images::{
    Drawn, ImageError, ImageProblem, MAX_FILE_BYTES, MAX_PIXELS, MAX_SIDE, Pixel, PixelOption,
    Size as ImageSize, StandardTransform, Step, Transform, TransformError, TransformOptions, decode_mask,
};
#[cfg(any(feature = "csv", feature = "json-lines", feature = "tar"))]
pub use index::{IndexPlace, IndexStatus, StoredIndex};
#[cfg(any(feature = "csv", feature = "json-lines"))]
pub use lines::LineSnapshot;
#[cfg(feature = "records")]
pub use record::{Column, ColumnError, Columns, FieldOptions, Record, RecordStack, Scalar, Value};
#[cfg(feature = "records")]
pub use source::{CacheOptions, StoreOptions, without_credentials};
#[cfg(feature = "records")]
#[doc(hidden)]
pub use source::{is_hidden_in_rows, set_of_part};

/// The programs in the guide to data must run.
#[cfg(all(doctest, feature = "formats"))]
#[doc = include_str!("../../docs/data.md")]
struct Data;

/// The programs in the guide to language models must run.
#[cfg(all(doctest, feature = "formats", feature = "tokenizer"))]
#[doc = include_str!("../../docs/language-models.md")]
struct LanguageModels;
