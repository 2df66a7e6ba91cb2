//! Decodes one image.

use loader_core::Phase;
use rand::{Rng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

use super::decode::{Decode, file, of_field};
use crate::{
    error::{DataProblem, Result},
    images::{Drawn, Transform, TransformError, decode_mask},
    record::{Record, Value},
};

/// Decodes an image and applies a [`Transform`], to a tensor of shape `[3, height, width]`. It converts into
/// a [`FieldDecoder`](crate::FieldDecoder).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageColumn {
    transform: Transform,
    dtype: PixelType,
    masks: Vec<String>,
}

/// Type of the pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

    /// Sets the fields with masks of the image; by default there are none. A mask is encoded as
    /// [`decode_mask`](crate::decode_mask) expects, and has the size of the image after
    /// [`exif_orientation`](Transform::exif_orientation). It becomes a tensor of `u8` of shape `[height, width]`, to which
    /// the transform is applied with the numbers that were drawn for the image, as [`Drawn::mask`](crate::Drawn::mask)
    /// does. A field has either an image or a mask.
    #[must_use]
    pub fn masks<N: Into<String>>(mut self, fields: impl IntoIterator<Item = N>) -> Self {
        self.masks = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Returns the fields with masks of the image.
    pub(crate) fn mask_fields(&self) -> &[String] {
        &self.masks
    }

    pub(super) fn new(transform: Transform, dtype: PixelType) -> Result<Self, TransformError> {
        let column = Self { transform, dtype, masks: Vec::new() };
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

    /// Decodes the content of an image file. Returns a tensor, and what was drawn for it.
    pub(crate) fn decode(&self, file: &[u8], rng: &mut impl Rng) -> Result<(Value, Drawn), DataProblem> {
        Ok(match self.dtype {
            PixelType::F32 => {
                let (image, drawn) = self.transform.decode_drawn::<f32>(file, rng)?;
                (image.into(), drawn)
            }
            PixelType::U8 => {
                let (image, drawn) = self.transform.decode_drawn::<u8>(file, rng)?;
                (image.into(), drawn)
            }
        })
    }
}

impl Decode for ImageColumn {
    fn kind(&self) -> &'static str {
        "image"
    }

    fn validate(&self) -> Result<(), DataProblem> {
        let invalid = |error: TransformError| {
            let (option, reason) = ("images", error.to_string());
            DataProblem::InvalidOption { option, reason }
        };
        self.validate().map_err(invalid)
    }

    /// Also replaces the masks.
    fn decode(&self, record: &mut Record, name: &str, rng: &mut ChaCha8Rng) -> Result<Value> {
        let kind = self.kind();
        let decode = |value: &Value| self.decode(&file(kind, name, value)?, rng);
        let (image, drawn) = of_field(record, kind, name, decode)?;
        for mask in self.mask_fields() {
            let decoded = of_field(record, "mask", mask, |value| {
                let file = file("mask", mask, value)?;
                Ok(drawn.mask(&Phase::Decode.measure(|| decode_mask(&file))?)?)
            })?;
            record.set(mask.as_str(), decoded);
        }
        Ok(image)
    }
}
