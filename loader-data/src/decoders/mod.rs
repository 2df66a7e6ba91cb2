//! What decodes fields of records: encoded images and audio become tensors, and texts become tokens.
//!
//! `image_column`, `audio` and `token_column` decode one value each, `field` is any of them, and `records` decodes the
//! fields of the records of any dataset.

#[cfg(feature = "audio")]
pub(crate) mod audio;
#[cfg(any(feature = "audio", feature = "image-folder"))]
mod field;
#[cfg(feature = "image-folder")]
mod image_column;
#[cfg(feature = "image-folder")]
mod image_options;
#[cfg(any(feature = "audio", feature = "image-folder"))]
mod records;
#[cfg(feature = "formats")]
mod token_column;
#[cfg(feature = "tokenizer")]
mod tokenizer;

#[cfg(feature = "audio")]
pub use audio::AudioTransform;
#[cfg(any(feature = "audio", feature = "image-folder"))]
pub use field::FieldDecoder;
#[cfg(feature = "image-folder")]
pub use image_column::ImageColumn;
#[cfg(feature = "image-folder")]
pub use image_options::ImageOptions;
#[cfg(any(feature = "audio", feature = "image-folder"))]
pub use records::DecodedRecords;
#[cfg(all(feature = "formats", feature = "tokenizer"))]
pub use token_column::TokenColumn;
#[cfg(feature = "formats")]
pub use token_column::TokenizerOptions;
#[cfg(feature = "tokenizer")]
pub use tokenizer::Tokenizer;
