//! Decodes the value of one field.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
#[cfg(feature = "image-folder")]
use loader_core::Phase;
use rand::Rng;
use serde::{Deserialize, Serialize};

#[cfg(feature = "audio")]
use super::audio::AudioTransform;
#[cfg(feature = "image-folder")]
use super::image_column::ImageColumn;
#[cfg(all(feature = "formats", feature = "tokenizer"))]
use super::token_column::TokenColumn;
#[cfg(feature = "image-folder")]
use crate::images::decode_mask;
use crate::{
    error::{DataError, DataProblem, Result},
    record::{Record, Value},
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
    Image(ImageColumn),
    /// Decodes audio, to a tensor of `f32` of shape `[channels, frames]`.
    #[cfg(feature = "audio")]
    Audio(AudioTransform),
    /// Converts a text to tokens, a sequence of `i64`.
    #[cfg(all(feature = "formats", feature = "tokenizer"))]
    Tokens(TokenColumn),
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

    /// Replaces the field `name` of `record` by a tensor, and also the masks of an image.
    pub(super) fn decode(&self, record: &mut Record, name: &str, rng: &mut impl Rng) -> Result<()> {
        let decoded: Value = match self {
            #[cfg(feature = "image-folder")]
            Self::Image(column) => {
                let (image, drawn) = of_field(record, self.kind(), name, |value| {
                    column.decode(&file(self.kind(), name, value)?, rng)
                })?;
                for mask in column.mask_fields() {
                    let decoded = of_field(record, "mask", mask, |value| {
                        let file = file("mask", mask, value)?;
                        Ok(drawn.mask(&Phase::Decode.measure(|| decode_mask(&file))?)?)
                    })?;
                    record.set(mask.as_str(), decoded);
                }
                image
            }
            #[cfg(feature = "audio")]
            Self::Audio(transform) => of_field(record, self.kind(), name, |value| {
                Ok(transform.decode(&file(self.kind(), name, value)?, rng)?.into())
            })?,
            #[cfg(all(feature = "formats", feature = "tokenizer"))]
            Self::Tokens(column) => of_field(record, self.kind(), name, |value| column.decode(name, value))?,
        };
        record.set(name, decoded);
        Ok(())
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
}

/// Calls `decode` with the value of the field `name`. An error names the field, and the path of its file if the record
/// has it.
fn of_field<R>(
    record: &Record,
    kind: &str,
    name: &str,
    decode: impl FnOnce(&Value) -> Result<R, DataProblem>,
) -> Result<R> {
    let decoded = match record.get(name) {
        Some(value) => decode(value),
        None => Err(DataProblem::missing_field(name, record.iter().map(|(name, _)| name))),
    };
    decoded.map_err(|problem| {
        let path = path_of(record, name).map_or_else(String::new, |path| format!(" ({path})"));
        DataError::new(format!("{kind} `{name}`{path}"), problem)
    })
}

/// Returns the content of the encoded file in field `name`. `kind` is for errors.
fn file<'a>(kind: &str, name: &str, value: &'a Value) -> Result<Cow<'a, [u8]>, DataProblem> {
    let wrong = |expected: &str, found: &Value| DataProblem::WrongType {
        field: name.to_owned(),
        expected: format!("{kind} {expected}"),
        found: found.kind(),
    };
    match value {
        Value::Bytes(file) => Ok(file.into()),
        Value::Text(text) => match STANDARD.decode(text.trim_ascii()) {
            Ok(file) => Ok(file.into()),
            Err(error) => Err(DataProblem::Malformed { format: "base64", reason: error.to_string() }),
        },
        Value::Record(record) => match record.get("bytes") {
            Some(bytes @ (Value::Bytes(_) | Value::Text(_))) => file(kind, name, bytes),
            Some(Value::Null) | None => Err(wrong("with its bytes, not only its path", value)),
            Some(other) => Err(wrong("whose field `bytes` is bytes", other)),
        },
        Value::Null => Err(DataProblem::Null { field: name.to_owned() }),
        other => Err(wrong("as bytes, a text in base64, or a record with `bytes`", other)),
    }
}

/// Returns the path or the name of the file in field `name`, or the key of `record` and its archive, for errors.
fn path_of(record: &Record, name: &str) -> Option<String> {
    fn text(value: Option<&Value>) -> Option<String> {
        match value {
            Some(Value::Text(text)) => Some(format!("`{text}`")),
            _ => None,
        }
    }
    let path = match record.get(name) {
        Some(Value::Record(file)) => text(file.get("path")),
        _ => None,
    };
    let of_archive = || {
        let key = text(record.get("__key__"))?;
        Some(text(record.get("__url__")).map_or_else(|| key.clone(), |archive| format!("{key} of {archive}")))
    };
    path.or_else(|| text(record.get("file_name"))).or_else(of_archive)
}
