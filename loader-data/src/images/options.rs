//! Options of a column of images.

use serde::{Deserialize, Serialize};

use super::{ImageColumn, column::PixelType};
use crate::image_folder::{Step, Transform, TransformError};

/// Default width and height of transformed images, in pixels.
const DEFAULT_SIZE: u32 = 224;

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
    transform: Steps,
    /// Width and height of the result of a standard transform.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u32>,
    dtype: PixelType,
    exif_orientation: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "`transform` is `train`, `eval`, `none` or a list of steps")]
enum Steps {
    Standard(Standard),
    Own(Transform),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Standard {
    Train,
    Eval,
    None,
}

impl Default for Steps {
    fn default() -> Self {
        Self::Standard(Standard::None)
    }
}

impl ImageOptions {
    /// Returns what decodes the images. With pixels of type `u8`, a standard transform does not normalise.
    ///
    /// # Errors
    /// Returns [`TransformError`] if the transform or the size is invalid.
    pub fn column(&self) -> Result<ImageColumn, TransformError> {
        let size = self.size.unwrap_or(DEFAULT_SIZE);
        let transform = match &self.transform {
            Steps::Standard(Standard::Train) => Transform::standard_train(size),
            Steps::Standard(Standard::Eval) => Transform::standard_eval(size),
            // A size alone is that of the result, too.
            Steps::Standard(Standard::None) => match self.size {
                Some(size) => Transform::new().resize_exact(size, size),
                None => Transform::new(),
            },
            Steps::Own(transform) => {
                return ImageColumn::new(self.turned(transform.clone()), self.dtype);
            }
        };
        let is_kept = |step: &&Step| self.dtype == PixelType::F32 || !matches!(step, Step::Normalise { .. });
        let transform =
            transform.steps().iter().filter(is_kept).copied().fold(Transform::new(), Transform::step);
        ImageColumn::new(self.turned(transform), self.dtype)
    }

    fn turned(&self, transform: Transform) -> Transform {
        if self.exif_orientation { transform.exif_orientation(true) } else { transform }
    }
}
