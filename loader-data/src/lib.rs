//! Datasets over real files, for the loader. The package `process-loader` exports them as `loader::data`.
//!
//! [`ImageFolder`] (feature `image-folder`, on by default) reads images from one sub-folder per class, as
//! torchvision's `ImageFolder` does: JPEG and PNG files, and more types with the feature `more-images`. It
//! decodes them and applies its [`Transform`]: crop, resize, flip, normalise. The decoders are pure Rust. The other
//! features add other formats, servers, tokenizers and configs; README.md lists them.
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

#[cfg(feature = "columnar")]
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
#[cfg(feature = "records")]
mod index;
#[cfg(feature = "records")]
mod lines;
#[cfg(feature = "records")]
mod options;
#[cfg(feature = "records")]
mod parallel;
#[cfg(feature = "columnar")]
mod part_cache;
#[cfg(feature = "records")]
mod record;
#[cfg(feature = "records")]
mod shard_items;
#[cfg(feature = "records")]
mod source;

#[cfg(feature = "formats")]
pub use self::{
    config::{
        CachedOptions, CardFiles, FormatDataset, FormatStream, ListedFiles, MixOptions, PackedOptions,
        RecordCache, RecordConfig, RecordDataset, RecordMix, RecordSnapshot, RecordStream, RecordWindows,
        Records,
    },
    decoders::TokenizerOptions,
};
#[cfg(feature = "image-folder")]
pub use self::{
    config::{DatasetConfig, DatasetError, KindName, KindOnly, OpenDataset},
    formats::image_folder::{ImageFolder, ImageFolderError, ImageFolderOptions},
    images::{
        Drawn, IMAGE_EXTENSIONS, ImageError, ImageProblem, MAX_FILE_BYTES, MAX_PIXELS, MAX_SIDE, Pixel,
        PixelOption, Size as ImageSize, StandardTransform, Step, Transform, TransformError, TransformOptions,
        decode_mask,
    },
};
#[cfg(feature = "audio")]
pub use self::{
    decoders::AudioTransform,
    formats::audio_files::{AudioFiles, AudioFilesOptions, AudioFolder, AudioFolderOptions, AudioRecords},
};
#[cfg(feature = "records")]
pub use self::{
    error::{DataError, DataProblem, Position},
    formats::{
        arrays::{ArrayFormat, Arrays, ArraysOptions},
        csv_files::{ColumnType, Csv, CsvOptions, CsvStream},
        json_lines::{JsonLines, JsonLinesOptions, JsonLinesStream},
        tar_shards::{IndexedTar, TarOptions, TarPosition, TarShards},
        text_lines::{TextLines, TextLinesOptions, TextLinesStream, TextRecords, TextRecordsStream},
        tokens::{
            SegmentedTokens, Token, TokenDocuments, TokenFormat, TokenRecords, TokenWindow, TokenWindowBatch,
            TokenWindowStack, Tokens, TokensOptions,
        },
    },
    index::{IndexPlace, IndexStatus, StoredIndex},
    lines::LineSnapshot,
    record::{Column, ColumnError, Columns, FieldOptions, Record, RecordStack, Scalar, Value},
    source::{CacheOptions, StoreOptions, is_hidden_in_rows, set_of_part, without_credentials},
};
#[cfg(feature = "schema")]
pub use config::{kind_schema, schema_generator};
#[cfg(all(feature = "formats", feature = "tokenizer"))]
pub use decoders::TokenColumn;
#[cfg(feature = "tokenizer")]
pub use decoders::Tokenizer;
#[cfg(all(feature = "records", any(feature = "audio", feature = "image-folder")))]
pub use decoders::{DecodedRecords, FieldDecoder};
#[cfg(all(feature = "image-folder", feature = "records"))]
pub use decoders::{ImageColumn, ImageOptions};
#[cfg(feature = "columnar")]
pub use formats::{
    arrow_files::{Arrow, ArrowOptions, ArrowStream},
    file_table::{AudioTable, AudioTableOptions, ImageTable, ImageTableOptions, TABLE_NAMES},
    pack::{PackError, PackFormat, PackOptions, PackPlan, PackSummary, check_packed},
    parquet::{Parquet, ParquetOptions, ParquetStream},
};

/// The programs in the guide to data must run.
#[cfg(all(doctest, feature = "formats"))]
#[doc = include_str!("../../docs/data.md")]
struct Data;

/// The programs in the guide to language models must run.
#[cfg(all(doctest, feature = "formats", feature = "tokenizer"))]
#[doc = include_str!("../../docs/language-models.md")]
struct LanguageModels;
