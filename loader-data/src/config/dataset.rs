//! The section `[dataset]` of a config, for every kind of dataset.
//!
//! A section is read twice: first its key `kind`, then all keys as those of this kind, so that an error names
//! the keys that the kind has. An untagged enum would say only that no kind fits.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

#[cfg(feature = "formats")]
use super::records::{RecordConfig, Records};
use crate::{
    formats::image_folder::{ImageFolder, ImageFolderError, ImageFolderOptions},
    images::{PixelOption, TransformError},
};

/// A dataset of any kind, described by a table such as the section `[dataset]` of a config: an image folder, or,
/// with the feature `formats`, records.
///
/// # Examples
/// ```
/// use loader_data::{DatasetConfig, ImageFolderOptions, OpenDataset};
///
/// let config = DatasetConfig::ImageFolder(ImageFolderOptions::new("photos"));
/// assert_eq!(config.kind(), "image-folder");
/// let OpenDataset::F32(images) = config.resolved()?.open()? else { panic!("the default type is f32") };
/// assert_eq!(images.classes()[0], "animal");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive] // the feature `formats` adds a variant
pub enum DatasetConfig {
    /// Folders of images.
    ImageFolder(ImageFolderOptions),
    /// Records of any format.
    #[cfg(feature = "formats")]
    Records(#[serde(serialize_with = "super::records::serialize_without_credentials")] Box<RecordConfig>),
}

/// The name of a kind in a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KindName {
    /// [`ImageFolderOptions::KIND`].
    ImageFolder,
    /// One of [`RecordConfig::KINDS`].
    #[cfg(feature = "formats")]
    Records,
}

/// The key `kind` of a section. The other keys depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct KindOnly {
    /// The value of the key.
    pub kind: KindName,
}

/// An open dataset.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum OpenDataset {
    /// An image folder with pixels of type `f32`.
    F32(ImageFolder<f32>),
    /// An image folder with pixels of type `u8`.
    U8(ImageFolder<u8>),
    /// Records.
    #[cfg(feature = "formats")]
    Records(Box<Records>),
}

/// Why a [`DatasetConfig`] cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum DatasetError {
    /// The error of an image folder.
    Images(#[from] ImageFolderError),
    /// The error of a format.
    #[cfg(feature = "formats")]
    Records(#[from] crate::error::DataError),
}

impl DatasetConfig {
    /// Name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ImageFolder(_) => ImageFolderOptions::KIND,
            #[cfg(feature = "formats")]
            Self::Records(config) => config.kind(),
        }
    }

    /// Returns the config with the defaults of an image folder filled in.
    ///
    /// # Errors
    /// As for [`ImageFolderOptions::resolved`].
    pub fn resolved(self) -> Result<Self, TransformError> {
        Ok(match self {
            Self::ImageFolder(options) => Self::ImageFolder(options.resolved()?),
            #[cfg(feature = "formats")]
            records => records,
        })
    }

    /// Opens the dataset.
    ///
    /// # Errors
    /// Returns the error of the kind.
    pub fn open(&self) -> Result<OpenDataset, DatasetError> {
        Ok(match self {
            Self::ImageFolder(options) if options.pixels == Some(PixelOption::U8) => {
                OpenDataset::U8(options.open_u8()?)
            }
            Self::ImageFolder(options) => OpenDataset::F32(options.open_f32()?),
            #[cfg(feature = "formats")]
            Self::Records(config) => OpenDataset::Records(Box::new(config.open()?)),
        })
    }
}

#[cfg(feature = "formats")]
impl DatasetConfig {
    /// Names of all kinds.
    pub const KINDS: [&str; RecordConfig::KINDS.len() + 1] = {
        let mut kinds = [ImageFolderOptions::KIND; RecordConfig::KINDS.len() + 1];
        let mut number = 1;
        while number < kinds.len() {
            kinds[number] = RecordConfig::KINDS[number - 1];
            number += 1;
        }
        kinds
    };

    /// Reads the keys of the section `[dataset]` from JSON.
    ///
    /// # Errors
    /// Returns an error if the kind or a key is unknown, or a value has the wrong type.
    ///
    /// # Examples
    /// ```
    /// use loader_data::DatasetConfig;
    ///
    /// let config = DatasetConfig::from_json(serde_json::json!({"kind": "csv", "path": "rows.csv"}))?;
    /// assert_eq!(config.kind(), "csv");
    /// # anyhow::Ok(())
    /// ```
    pub fn from_json(keys: serde_json::Value) -> Result<Self, serde_json::Error> {
        Ok(match KindOnly::deserialize(&keys)?.kind {
            KindName::ImageFolder => Self::ImageFolder(serde_json::from_value(keys)?),
            KindName::Records => Self::Records(serde_json::from_value(keys)?),
        })
    }
}

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &String::deserialize(deserializer)?[..] {
            ImageFolderOptions::KIND => Ok(Self::ImageFolder),
            #[cfg(feature = "formats")]
            name => {
                if DatasetConfig::KINDS.contains(&name) {
                    Ok(Self::Records)
                } else {
                    Err(D::Error::unknown_variant(name, &DatasetConfig::KINDS))
                }
            }
            #[cfg(not(feature = "formats"))]
            name => Err(D::Error::custom(format!(
                "this program was built with the kind `{}` only; for `{name}`, build it with `--features formats`",
                ImageFolderOptions::KIND
            ))),
        }
    }
}
