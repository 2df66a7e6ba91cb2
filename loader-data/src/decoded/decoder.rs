//! Decodes the value of one field.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use rand::Rng;
use serde::{Deserialize, Serialize};

#[cfg(feature = "audio")]
use crate::AudioTransform;
#[cfg(feature = "image-folder")]
use crate::ImageColumn;
use crate::{
    error::{DataProblem, Result},
    record::{Record, Value},
};

/// Decodes an encoded field of a record to a tensor.
///
/// A field that becomes tokens must be a text. A field that becomes an image or audio must be bytes, a text in
/// base64, or a record with the field `bytes`, as in the columns of Hugging Face's `datasets` (`{bytes, path}`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FieldDecoder {
    /// Decodes an image, to a tensor of shape `[3, height, width]`.
    #[cfg(feature = "image-folder")]
    Image(ImageColumn),
    /// Decodes audio, to a tensor of `f32` of shape `[channels, frames]`.
    #[cfg(feature = "audio")]
    Audio(AudioTransform),
    /// Converts a text to tokens, a sequence of `i64`.
    #[cfg(all(feature = "formats", feature = "tokenizer"))]
    Tokens(crate::TokenColumn),
}

#[cfg(feature = "image-folder")]
impl From<ImageColumn> for FieldDecoder {
    fn from(column: ImageColumn) -> Self {
        Self::Image(column)
    }
}

#[cfg(feature = "audio")]
impl From<AudioTransform> for FieldDecoder {
    fn from(transform: AudioTransform) -> Self {
        Self::Audio(transform)
    }
}

impl FieldDecoder {
    /// Returns the name of what is decoded, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "image-folder")]
            Self::Image(_) => "image",
            #[cfg(feature = "audio")]
            Self::Audio(_) => "audio",
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(_) => "tokens of",
        }
    }

    /// Checks the options, which may have been deserialised.
    pub(crate) fn validate(&self) -> Result<(), DataProblem> {
        match self {
            #[cfg(feature = "image-folder")]
            Self::Image(column) => column
                .validate()
                .map_err(|error| DataProblem::InvalidOption { option: "images", reason: error.to_string() }),
            #[cfg(feature = "audio")]
            Self::Audio(transform) => transform.validate(),
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(_) => Ok(()),
        }
    }

    /// Decodes the value of the field `name`. Returns a tensor.
    pub(super) fn decode(&self, name: &str, value: &Value, rng: &mut impl Rng) -> Result<Value, DataProblem> {
        match self {
            #[cfg(feature = "image-folder")]
            Self::Image(column) => column.decode(&self.file(name, value)?, rng),
            #[cfg(feature = "audio")]
            Self::Audio(transform) => Ok(transform.decode(&self.file(name, value)?, rng)?.into()),
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(column) => column.decode(name, value),
        }
    }

    /// Returns a fingerprint of the decoder; `None` if it changes neither the number nor the order of samples.
    pub(super) fn fingerprint(&self) -> Option<String> {
        match self {
            #[cfg(feature = "image-folder")]
            Self::Image(_) => None,
            #[cfg(feature = "audio")]
            Self::Audio(_) => None,
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(column) => Some(column.fingerprint()),
        }
    }

    /// Returns the content of the encoded file in field `name`.
    fn file<'a>(&self, name: &str, value: &'a Value) -> Result<Cow<'a, [u8]>, DataProblem> {
        let wrong = |expected: &str, found: &Value| DataProblem::WrongType {
            field: name.to_owned(),
            expected: format!("{} {expected}", self.kind()),
            found: found.kind(),
        };
        match value {
            Value::Bytes(file) => Ok(file.into()),
            Value::Text(text) => match STANDARD.decode(text.trim_ascii()) {
                Ok(file) => Ok(file.into()),
                Err(error) => Err(DataProblem::Malformed { format: "base64", reason: error.to_string() }),
            },
            Value::Record(file) => match file.get("bytes") {
                Some(bytes @ (Value::Bytes(_) | Value::Text(_))) => self.file(name, bytes),
                Some(Value::Null) | None => Err(wrong("with its bytes, not only its path", value)),
                Some(other) => Err(wrong("whose field `bytes` is bytes", other)),
            },
            Value::Null => Err(DataProblem::Null { field: name.to_owned() }),
            other => Err(wrong("as bytes, a text in base64, or a record with `bytes`", other)),
        }
    }
}

/// Returns the value of an encoded file: a record with its `bytes` and its `path`.
pub(crate) fn encoded_file(bytes: Vec<u8>, path: String) -> Record {
    [("bytes", Value::Bytes(bytes)), ("path", Value::Text(path))].into_iter().collect()
}

/// Returns the path or the name of the file in field `name`, for errors.
pub(super) fn path_of<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let text = |value: Option<&'a Value>| match value {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = match record.get(name) {
        Some(Value::Record(file)) => text(file.get("path")),
        _ => None,
    };
    path.or_else(|| text(record.get("file_name"))).or_else(|| text(record.get("__key__")))
}
