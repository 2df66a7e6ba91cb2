//! What decodes fields of records: encoded images and audio become tensors, and texts become tokens.
//!
//! `decode` has the trait of a decoder. `image_column`, `audio` and `token_column` implement it, `field` is any of them, and
//! `records` decodes the fields of the records of any dataset.

#[cfg(feature = "audio")]
pub(crate) mod audio;
#[cfg(any(feature = "audio", feature = "image-folder"))]
mod decode;
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

#[cfg(any(feature = "audio", feature = "image-folder"))]
pub use self::{field::FieldDecoder, records::DecodedRecords};
#[cfg(feature = "image-folder")]
pub use self::{image_column::ImageColumn, image_options::ImageOptions};
#[cfg(feature = "audio")]
pub use audio::AudioTransform;
#[cfg(all(feature = "formats", feature = "tokenizer"))]
pub use token_column::TokenColumn;
#[cfg(feature = "formats")]
pub use token_column::TokenizerOptions;
#[cfg(feature = "tokenizer")]
pub use tokenizer::Tokenizer;
