//! Decodes the images in samples.

use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::{
    error::DataProblem,
    image_folder::{Transform, TransformError},
    record::Value,
};

/// How images are decoded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Images {
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

impl Images {
    pub(super) fn new(transform: Transform, dtype: PixelType) -> Result<Self, TransformError> {
        let images = Self { transform, dtype };
        images.validate()?;
        Ok(images)
    }

    /// Checks the transform, which may come from a config.
    pub(super) fn validate(&self) -> Result<(), TransformError> {
        match self.dtype {
            PixelType::F32 => self.transform.validate_for::<f32>(),
            PixelType::U8 => self.transform.validate_for::<u8>(),
        }
    }

    /// Returns a tensor of shape `[3, height, width]`.
    pub(super) fn decode(&self, data: &[u8], rng: &mut ChaCha8Rng) -> Result<Value, DataProblem> {
        Ok(match self.dtype {
            PixelType::F32 => self.transform.decode::<f32>(data, rng)?.into(),
            PixelType::U8 => self.transform.decode::<u8>(data, rng)?.into(),
        })
    }
}
