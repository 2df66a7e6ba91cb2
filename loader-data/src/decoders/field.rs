//! Decodes the value of one field.

use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::decode::Decode;
use crate::{
    error::{DataProblem, Result},
    record::Record,
};

/// Decodes an encoded field of a record to a tensor.
///
/// A field that becomes tokens must be a text. A field that becomes an image or audio must be bytes, a text in
/// base64, or a record with the field `bytes`, as in the columns of Hugging Face's `datasets` (`{bytes, path}`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FieldDecoder {
    /// Decodes an image, to a tensor of shape `[3, height, width]`, and its masks.
    #[cfg(feature = "image-folder")]
    Image(super::image_column::ImageColumn),
    /// Decodes audio, to a tensor of `f32` of shape `[channels, frames]`.
    #[cfg(feature = "audio")]
    Audio(super::audio::AudioTransform),
    /// Converts a text to tokens, a sequence of `i64`.
    #[cfg(all(feature = "formats", feature = "tokenizer"))]
    Tokens(super::token_column::TokenColumn),
}

#[cfg(feature = "image-folder")]
impl From<super::image_column::ImageColumn> for FieldDecoder {
    fn from(column: super::image_column::ImageColumn) -> Self {
        Self::Image(column)
    }
}

#[cfg(feature = "audio")]
impl From<super::audio::AudioTransform> for FieldDecoder {
    fn from(transform: super::audio::AudioTransform) -> Self {
        Self::Audio(transform)
    }
}

impl FieldDecoder {
    fn decoder(&self) -> &dyn Decode {
        match self {
            #[cfg(feature = "image-folder")]
            Self::Image(column) => column,
            #[cfg(feature = "audio")]
            Self::Audio(transform) => transform,
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(column) => column,
        }
    }

    /// Returns the name of what is decoded, for errors.
    pub(super) fn kind(&self) -> &'static str {
        self.decoder().kind()
    }

    /// Checks the options, which may have been deserialised.
    pub(super) fn validate(&self) -> Result<(), DataProblem> {
        self.decoder().validate()
    }

    /// Replaces the field `name` of `record` by a tensor, and also the masks of an image.
    pub(super) fn decode(&self, record: &mut Record, name: &str, rng: &mut ChaCha8Rng) -> Result<()> {
        let decoded = self.decoder().decode(record, name, rng)?;
        record.set(name, decoded);
        Ok(())
    }

    /// Returns a fingerprint of the decoder; `None` if it changes neither the number nor the order of samples.
    pub(super) fn fingerprint(&self) -> Option<String> {
        self.decoder().fingerprint()
    }
}
