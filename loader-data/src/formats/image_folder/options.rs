//! Options of image folders.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use super::{error::ImageFolderError, folder::ImageFolder};
use crate::images::{
    DEFAULT_SIZE, MAX_FILE_BYTES, PixelOption, StandardTransform, Transform, TransformError, TransformOptions,
};

/// Which folder of images is read, and how, for example from a config file. Each option is `None` for its
/// default: the transform `train` with a size of 224 pixels, pixels of type `f32`, no turning by EXIF data, and
/// files of at most 256 MiB.
///
/// # Examples
/// ```
/// use loader_data::ImageFolderOptions;
///
/// let text = r#"{"kind": "image-folder", "path": "photos", "transform": [{"resize_exact": {"height": 32, "width": 64}}]}"#;
/// let images = serde_json::from_str::<ImageFolderOptions>(text)?.resolved()?.open_f32()?;
/// let (image, _) = loader_core::Dataset::get(&images, 0, &mut loader_core::SampleContext::new(0))?;
/// assert_eq!(image.shape(), [3, 32, 64]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ImageFolderOptions {
    #[cfg_attr(feature = "schema", schemars(skip))]
    kind: ImageFolderKind,
    /// Folder with one sub-folder of images per class, or its URL
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Transform of the images
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<TransformOptions>,
    /// Width and height of the images that a standard transform makes, in pixels
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Type of the pixels
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixels: Option<PixelOption>,
    /// Turn images upright, as the orientation in their EXIF data says
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exif_orientation: Option<bool>,
    /// How files are read from servers
    #[cfg(feature = "records")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<crate::source::StoreOptions>,
    /// Maximum size of an image file
    #[serde(default, with = "loader_core::units::Size", skip_serializing_if = "Option::is_none")]
    pub max_file_bytes: Option<u64>,
}

/// The name of the format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum ImageFolderKind {
    #[serde(rename = "image-folder")]
    ImageFolder,
}

impl ImageFolderOptions {
    /// The name of the format in a config.
    pub const KIND: &str = "image-folder";

    /// Creates the default options for the images in the folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            kind: ImageFolderKind::ImageFolder,
            path: path.into(),
            transform: None,
            size: None,
            pixels: None,
            exif_orientation: None,
            #[cfg(feature = "records")]
            store: None,
            max_file_bytes: None,
        }
    }

    /// Returns the options with all defaults filled in. Only a standard transform that resizes has a size.
    ///
    /// # Errors
    /// Returns [`TransformError::UnusedSize`] if there is a size that the transform does not use.
    pub fn resolved(self) -> Result<Self, TransformError> {
        let transform = self.transform.unwrap_or(TransformOptions::Standard(StandardTransform::Train));
        let uses_size =
            matches!(transform, TransformOptions::Standard(name) if name != StandardTransform::None);
        if self.size.is_some() && !uses_size {
            return Err(TransformError::UnusedSize);
        }
        Ok(Self {
            transform: Some(transform),
            size: uses_size.then(|| self.size.unwrap_or(DEFAULT_SIZE)),
            pixels: Some(self.pixels.unwrap_or(PixelOption::F32)),
            exif_orientation: Some(self.exif_orientation.unwrap_or(false)),
            max_file_bytes: Some(self.max_file_bytes.unwrap_or(MAX_FILE_BYTES)),
            ..self
        })
    }

    /// Opens the folder with pixels of type `f32`, and ignores the option `pixels`.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be opened, or the transform is invalid.
    pub fn open_f32(&self) -> Result<ImageFolder<f32>, ImageFolderError> {
        let images = self.scope(|| ImageFolder::open(&self.path))?.max_file_bytes(self.max_file_bytes());
        Ok(images.transform(self.steps(PixelOption::F32))?)
    }

    /// Opens the folder with pixels of type `u8`, and ignores the option `pixels`.
    ///
    /// # Errors
    /// As for [`open_f32`](Self::open_f32). Also returns an error if a list of steps normalises.
    pub fn open_u8(&self) -> Result<ImageFolder<u8>, ImageFolderError> {
        Ok(self.open_untransformed()?.transform(self.steps(PixelOption::U8))?)
    }

    /// Opens the folder for images as they are in the files, and ignores the options of the transform.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be opened.
    pub fn open_untransformed(&self) -> Result<ImageFolder<u8>, ImageFolderError> {
        Ok(self.scope(|| ImageFolder::open_u8(&self.path))?.max_file_bytes(self.max_file_bytes()))
    }

    /// Calls `open`. A dataset that it opens reads from servers with the options of `store`.
    fn scope<R>(&self, open: impl FnOnce() -> R) -> R {
        #[cfg(feature = "records")]
        if let Some(store) = &self.store {
            return store.scope(open);
        }
        open()
    }

    fn max_file_bytes(&self) -> u64 {
        self.max_file_bytes.unwrap_or(MAX_FILE_BYTES)
    }

    fn steps(&self, pixels: PixelOption) -> Transform {
        let transform = match &self.transform {
            Some(TransformOptions::Steps(steps)) => steps.clone(),
            Some(TransformOptions::Standard(name)) => name.steps(self.size.unwrap_or(DEFAULT_SIZE), pixels),
            None => StandardTransform::Train.steps(self.size.unwrap_or(DEFAULT_SIZE), pixels),
        };
        if self.exif_orientation == Some(true) { transform.exif_orientation(true) } else { transform }
    }
}

/// Serialises a path as text, and a URL without credentials. Bytes that are not Unicode are replaced, because JSON must be
/// Unicode.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    #[cfg(feature = "records")]
    let text = crate::source::without_credentials(path);
    #[cfg(not(feature = "records"))]
    let text = path.to_string_lossy();
    serializer.serialize_str(&text)
}
