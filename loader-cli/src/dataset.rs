//! The `[dataset]` section of a config, and the dataset that it describes.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use loader_data::{ImageFolder, MAX_FILE_BYTES, Step, Transform};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::stop::Stop;

/// Default width and height of the transformed images, in pixels.
const DEFAULT_SIZE: u32 = 224;

/// Name of the kind that reads folders of images.
pub(crate) const IMAGE_FOLDER: &str = "image-folder";

/// The name of a format. `kind` is read before the other keys, which depend on it.
#[derive(Debug, Deserialize)]
pub(crate) struct KindOnly {
    pub(crate) kind: Kind,
}

/// What a config names as `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// JPEG and PNG files with one sub-folder per class.
    ImageFolder,
    /// One of [`RecordConfig::KINDS`](loader_data::RecordConfig::KINDS).
    #[cfg(feature = "formats")]
    Records,
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &String::deserialize(deserializer)?[..] {
            IMAGE_FOLDER => Ok(Self::ImageFolder),
            #[cfg(feature = "formats")]
            name => match KINDS.contains(&name) {
                true => Ok(Self::Records),
                false => Err(D::Error::unknown_variant(name, &KINDS)),
            },
            #[cfg(not(feature = "formats"))]
            name => Err(D::Error::custom(format!(
                "this `loader` was built with the kind `{IMAGE_FOLDER}` only; for `{name}`, build it with \
                 `--features formats`"
            ))),
        }
    }
}

/// Names of all kinds.
#[cfg(feature = "formats")]
pub(crate) const KINDS: [&str; loader_data::RecordConfig::KINDS.len() + 1] = {
    let mut kinds = [IMAGE_FOLDER; loader_data::RecordConfig::KINDS.len() + 1];
    let mut number = 1;
    while number < kinds.len() {
        kinds[number] = loader_data::RecordConfig::KINDS[number - 1];
        number += 1;
    }
    kinds
};

/// The section as it was read from a config or from the command line.
#[derive(Debug, Clone)]
pub(crate) enum DatasetSection {
    Images(ImageSection),
    #[cfg(feature = "formats")]
    Records(Box<loader_data::RecordConfig>),
}

/// The section of an image folder.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageSection {
    /// Always [`Kind::ImageFolder`].
    #[serde(rename = "kind")]
    #[schemars(skip)]
    _kind: Kind,
    /// Folder with one sub-folder of JPEG and PNG files per class
    pub(crate) path: PathBuf,
    /// Transform of the images
    pub(crate) transform: Option<TransformName>,
    /// Width and height of the transformed images, in pixels
    pub(crate) size: Option<u32>,
    /// Type of the pixels
    pub(crate) pixels: Option<Pixels>,
    /// Turn images upright, as the orientation in their EXIF data says
    pub(crate) exif_orientation: Option<bool>,
    /// Maximum size of an image file
    #[serde(default, with = "loader_core::units::Size")]
    pub(crate) max_file_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransformName {
    /// Random resized crop, random flip, normalisation
    Train,
    /// Resize, central crop, normalisation
    Eval,
    /// No transform; all images of a batch must have the same size
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pixels {
    /// 32-bit floats, normalised by the transforms train and eval
    F32,
    /// Bytes, never normalised
    U8,
}

/// The section with all defaults filled in.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum ResolvedDataset {
    Images(ResolvedImages),
    #[cfg(feature = "formats")]
    Records(#[serde(serialize_with = "without_credentials")] Box<loader_data::RecordConfig>),
}

/// The section of an image folder with all defaults filled in.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ResolvedImages {
    kind: &'static str,
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    transform: TransformName,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u32>,
    pixels: Pixels,
    exif_orientation: bool,
    max_file_bytes: u64,
}

/// An open dataset.
#[derive(Debug)]
pub(crate) enum Opened {
    F32(ImageFolder<f32>),
    U8(ImageFolder<u8>),
    #[cfg(feature = "formats")]
    Records(Box<loader_data::Records>),
}

impl ImageSection {
    /// Creates the section for the images in the folder at `path`, with defaults for everything else.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            _kind: Kind::ImageFolder,
            path,
            transform: None,
            size: None,
            pixels: None,
            exif_orientation: None,
            max_file_bytes: None,
        }
    }

    fn resolved(self) -> Result<ResolvedImages, Stop> {
        let Self { path, transform, size, pixels, exif_orientation, max_file_bytes, .. } = self;
        let transform = transform.unwrap_or(TransformName::Train);
        let size = match transform {
            TransformName::None if size.is_some() => {
                let message = "size has no effect with transform none, which does not resize images; \
                               leave out one of them";
                return Err(Stop::InvalidArguments(message.to_owned()));
            }
            TransformName::None => None,
            _ => Some(size.unwrap_or(DEFAULT_SIZE)),
        };
        Ok(ResolvedImages {
            kind: IMAGE_FOLDER,
            path,
            transform,
            size,
            pixels: pixels.unwrap_or(Pixels::F32),
            exif_orientation: exif_orientation.unwrap_or(false),
            max_file_bytes: max_file_bytes.unwrap_or(MAX_FILE_BYTES),
        })
    }
}

impl DatasetSection {
    pub(crate) fn resolved(self) -> Result<ResolvedDataset, Stop> {
        Ok(match self {
            Self::Images(section) => ResolvedDataset::Images(section.resolved()?),
            #[cfg(feature = "formats")]
            Self::Records(config) => ResolvedDataset::Records(config),
        })
    }
}

impl ResolvedDataset {
    pub(crate) fn open(&self) -> Result<Opened, Stop> {
        match self {
            Self::Images(images) => images.open(),
            #[cfg(feature = "formats")]
            Self::Records(config) => Ok(Opened::Records(Box::new(config.open()?))),
        }
    }
}

impl ResolvedImages {
    fn open(&self) -> Result<Opened, Stop> {
        Ok(match self.pixels {
            Pixels::F32 => {
                let images = ImageFolder::open(&self.path)?.max_file_bytes(self.max_file_bytes);
                Opened::F32(images.transform(self.steps())?)
            }
            Pixels::U8 => {
                let images = ImageFolder::open_u8(&self.path)?.max_file_bytes(self.max_file_bytes);
                Opened::U8(images.transform(self.steps())?)
            }
        })
    }

    /// Opens the folder for images as they are in the files.
    pub(crate) fn open_untransformed(&self) -> Result<ImageFolder<u8>, Stop> {
        Ok(ImageFolder::open_u8(&self.path)?.max_file_bytes(self.max_file_bytes))
    }

    /// Opens the folder for images that can be shown: of one size, and not normalised.
    pub(crate) fn open_thumbnails(&self) -> Result<ImageFolder<u8>, Stop> {
        let transform = match self.transform {
            TransformName::None => TransformName::Eval,
            transform => transform,
        };
        let shown = Self { transform, pixels: Pixels::U8, ..self.clone() };
        Ok(self.open_untransformed()?.transform(shown.steps())?)
    }

    fn steps(&self) -> Transform {
        let size = self.size.unwrap_or(DEFAULT_SIZE);
        let standard = match self.transform {
            TransformName::Train => Transform::standard_train(size),
            TransformName::Eval => Transform::standard_eval(size),
            TransformName::None => Transform::new(),
        };
        let transform = match self.pixels {
            Pixels::F32 => standard,
            Pixels::U8 => {
                let steps = standard.steps().iter().filter(|step| !matches!(step, Step::Normalise { .. }));
                steps.cloned().fold(Transform::new(), Transform::step)
            }
        };
        transform.exif_orientation(self.exif_orientation)
    }
}

#[cfg(feature = "formats")]
fn without_credentials<S: Serializer>(
    config: &loader_data::RecordConfig,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    config.clone().without_credentials().serialize(serializer)
}

/// Serialises a path as text. Bytes that are not Unicode are replaced, because JSON must be Unicode.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
