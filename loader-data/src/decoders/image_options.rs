//! Options of a column of images.

use serde::{Deserialize, Serialize};

use super::image_column::{ImageColumn, PixelType};
use crate::images::{
    DEFAULT_SIZE, PixelOption, StandardTransform, Transform, TransformError, TransformOptions,
};

/// How the images of a column are decoded, for example from a config file.
///
/// # Examples
/// ```
/// use loader_data::ImageOptions;
///
/// let train: ImageOptions = serde_json::from_str(r#"{"transform": "train", "size": 160, "dtype": "uint8"}"#)?;
/// let own: ImageOptions = serde_json::from_str(r#"{"transform": [{"resize": {"size": 64}}]}"#)?;
/// assert!(train.column().is_ok() && own.column().is_ok());
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ImageOptions {
    transform: TransformOptions,
    /// Width and height of the result of a standard transform.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u32>,
    dtype: PixelType,
    exif_orientation: bool,
    /// The fields with masks of the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    masks: Vec<String>,
}

impl ImageOptions {
    /// Returns what decodes the images. With pixels of type `u8`, a standard transform does not normalise.
    ///
    /// # Errors
    /// Returns [`TransformError`] if the transform or the size is invalid.
    pub fn column(&self) -> Result<ImageColumn, TransformError> {
        let pixels = match self.dtype {
            PixelType::F32 => PixelOption::F32,
            PixelType::U8 => PixelOption::U8,
        };
        let transform = match (&self.transform, self.size) {
            // A size alone is that of the result, too.
            (TransformOptions::Standard(StandardTransform::None), Some(size)) => {
                Transform::new().resize_exact(size, size)
            }
            (TransformOptions::Standard(name), size) => name.steps(size.unwrap_or(DEFAULT_SIZE), pixels),
            (TransformOptions::Steps(steps), _) => steps.clone(),
        };
        Ok(ImageColumn::new(self.turned(transform), self.dtype)?.masks(&self.masks))
    }

    fn turned(&self, transform: Transform) -> Transform {
        if self.exif_orientation { transform.exif_orientation(true) } else { transform }
    }
}
