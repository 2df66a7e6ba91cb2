//! Decodes one value.

use base64::{Engine, engine::general_purpose::STANDARD};
use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::{
    error::DataProblem,
    image_folder::{Transform, TransformError},
    record::{Record, Value},
};

/// What becomes of an encoded image: a tensor of shape `[3, height, width]`, to which a [`Transform`] was applied.
///
/// The image is bytes, a text in base64, or a record with the field `bytes`, as in the columns of Hugging Face's
/// `datasets` (`{bytes, path}`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageColumn {
    transform: Transform,
    dtype: PixelType,
}

/// Type of the pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PixelType {
    #[default]
    #[serde(rename = "float32")]
    F32,
    #[serde(rename = "uint8")]
    U8,
}

impl ImageColumn {
    /// Pixels of type `f32`, from 0 to 1 before normalisation.
    ///
    /// # Errors
    /// Returns [`TransformError`] if the transform is invalid.
    pub fn f32(transform: Transform) -> Result<Self, TransformError> {
        Self::new(transform, PixelType::F32)
    }

    /// Pixels of type `u8`, from 0 to 255.
    ///
    /// # Errors
    /// Returns [`TransformError`] if the transform is invalid, or normalises.
    pub fn u8(transform: Transform) -> Result<Self, TransformError> {
        Self::new(transform, PixelType::U8)
    }

    pub(super) fn new(transform: Transform, dtype: PixelType) -> Result<Self, TransformError> {
        let column = Self { transform, dtype };
        column.validate()?;
        Ok(column)
    }

    /// Checks the transform, which may have been deserialised.
    pub(crate) fn validate(&self) -> Result<(), TransformError> {
        match self.dtype {
            PixelType::F32 => self.transform.validate_for::<f32>(),
            PixelType::U8 => self.transform.validate_for::<u8>(),
        }
    }

    /// Decodes the content of an image file. Returns a tensor.
    pub(crate) fn decode(&self, file: &[u8], rng: &mut impl Rng) -> Result<Value, DataProblem> {
        Ok(match self.dtype {
            PixelType::F32 => self.transform.decode::<f32>(file, rng)?.into(),
            PixelType::U8 => self.transform.decode::<u8>(file, rng)?.into(),
        })
    }

    /// Decodes the value of the field `name`.
    pub(super) fn decode_value(
        &self,
        name: &str,
        value: &Value,
        rng: &mut impl Rng,
    ) -> Result<Value, DataProblem> {
        let wrong = |expected: &str, found: &Value| DataProblem::WrongType {
            field: name.to_owned(),
            expected: expected.to_owned(),
            found: found.kind(),
        };
        match value {
            Value::Bytes(file) => self.decode(file, rng),
            Value::Text(text) => {
                let file = STANDARD.decode(text.trim_ascii()).map_err(|error| DataProblem::Malformed {
                    format: "an image in base64",
                    reason: error.to_string(),
                })?;
                self.decode(&file, rng)
            }
            Value::Record(image) => match image.get("bytes") {
                Some(bytes @ (Value::Bytes(_) | Value::Text(_))) => self.decode_value(name, bytes, rng),
                Some(Value::Null) | None => Err(wrong("an image with its bytes, not only its path", value)),
                Some(other) => Err(wrong("an image whose field `bytes` is bytes", other)),
            },
            Value::Null => Err(DataProblem::Null { field: name.to_owned() }),
            other => Err(wrong("an image: bytes, a text in base64, or a record with `bytes`", other)),
        }
    }
}

/// Returns the path or the name of the image in field `name`, for errors.
pub(super) fn path_of<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let text = |value: Option<&'a Value>| match value {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = match record.get(name) {
        Some(Value::Record(image)) => text(image.get("path")),
        _ => None,
    };
    path.or_else(|| text(record.get("file_name"))).or_else(|| text(record.get("__key__")))
}
