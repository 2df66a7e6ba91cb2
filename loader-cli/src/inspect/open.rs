//! Opens the dataset that `loader inspect` describes.

#[cfg(feature = "formats")]
mod records;

use loader_core::{
    Builder, DataLoader, Dataset, LauncherMode, LoaderOptions, Tensor, Warning, kind::MapStyle,
};
use loader_data::{
    DatasetConfig, ImageFolder, ImageFolderOptions, StandardTransform, Step, Transform, TransformOptions,
};

use super::{
    report::{BadFileEntry, ClassEntry, ColumnEntry},
    statistics::{self, Statistics},
};
use crate::{
    arguments::InspectArguments,
    config,
    settings::{self, Target},
    stop::Stop,
};

/// An open dataset, without the files that cannot be opened.
#[derive(Debug)]
pub(super) struct Source {
    opened: OpenFiles,
    pub(super) bad_files: Vec<BadFileEntry>,
    /// Columns of types that are not supported.
    pub(super) left_out: Vec<ColumnEntry>,
    /// The lines of a config for the target; `None` if the target is a config.
    pub(super) config: Option<String>,
    /// Number of files, without the bad ones.
    pub(super) files: u64,
    /// Number of bytes of these files.
    pub(super) file_bytes: u64,
}

#[derive(Debug)]
enum OpenFiles {
    Images {
        settings: ImageFolderOptions,
        images: Box<ImageFolder<u8>>,
    },
    #[cfg(feature = "formats")]
    Records {
        config: Box<loader_data::RecordConfig>,
        records: Box<loader_data::Records>,
    },
}

impl Source {
    /// Opens the dataset, and returns the options of its loader.
    pub(super) fn open(arguments: &InspectArguments) -> Result<(Self, LoaderOptions), Stop> {
        let Target { dataset, options, .. } = settings::read(&arguments.target, &arguments.loader)?;
        let mut options = options.options().clone();
        // All of the dataset is inspected, unless the options select a share.
        options.launcher.get_or_insert(LauncherMode::Off);
        let is_config = arguments.target.extension().is_some_and(|extension| extension == "toml");
        let dataset = dataset.resolved()?;
        let section = if is_config { None } else { Some(config::dataset_section(&dataset)?) };
        let mut source = match dataset {
            DatasetConfig::ImageFolder(settings) => Self::open_images(settings)?,
            #[cfg(feature = "formats")]
            DatasetConfig::Records(config) => {
                records::open(*config, is_config || options.shuffle == Some(true))?
            }
            dataset => return Err(Stop::without_formats(dataset.kind())),
        };
        source.config = section;
        Ok((source, options))
    }

    fn open_images(settings: ImageFolderOptions) -> Result<Self, Stop> {
        let images = settings.open_untransformed()?;
        let file_bytes = (0..images.len()).filter_map(|index| images.file_bytes(index)).sum();
        let files = images.len() as u64;
        Ok(Self {
            opened: OpenFiles::Images { settings, images: Box::new(images) },
            bad_files: Vec::new(),
            left_out: Vec::new(),
            config: None,
            files,
            file_bytes,
        })
    }

    /// Returns the name of the format, as in a config.
    pub(super) fn kind(&self) -> &'static str {
        match &self.opened {
            OpenFiles::Images { .. } => "image-folder",
            #[cfg(feature = "formats")]
            OpenFiles::Records { config, .. } => config.kind(),
        }
    }

    /// Returns the number of files of each class of an image folder, including files that cannot be read.
    pub(super) fn classes(&self) -> Vec<ClassEntry> {
        match &self.opened {
            OpenFiles::Images { images, .. } => {
                let new = |name: &String| ClassEntry { name: name.clone(), files: 0 };
                let mut classes: Vec<_> = images.classes().iter().map(new).collect();
                images.labels().for_each(|label| classes[label as usize].files += 1);
                classes
            }
            #[cfg(feature = "formats")]
            OpenFiles::Records { .. } => Vec::new(),
        }
    }

    /// Returns a loader whose samples are statistics of the dataset's samples. Images are not transformed.
    pub(super) fn statistics(
        &self,
        options: LoaderOptions,
        warn: impl Fn(&Warning) + Send + Sync + 'static,
    ) -> Result<DataLoader<Statistics>, Stop> {
        match &self.opened {
            OpenFiles::Images { images, .. } => {
                let described =
                    ImageFolder::clone(images).map(|sample, _cx| Ok(statistics::of_image(sample)));
                build(DataLoader::builder(described), options, warn)
            }
            #[cfg(feature = "formats")]
            OpenFiles::Records { records, .. } => records::statistics(records, options, warn),
        }
    }

    /// Returns a loader of images of shape `[3, height, width]`, all of one size, as in the dataset's own
    /// batches.
    pub(super) fn thumbnails(
        &self,
        options: LoaderOptions,
        warn: impl Fn(&Warning) + Send + Sync + 'static,
    ) -> Result<DataLoader<Tensor<u8>>, Stop> {
        match &self.opened {
            OpenFiles::Images { settings, .. } => {
                let images = thumbnails(settings.clone()).open_u8()?.map(|(image, _label), _cx| Ok(image));
                build(DataLoader::builder(images), options, warn)
            }
            #[cfg(feature = "formats")]
            OpenFiles::Records { records, .. } => records::thumbnails(records, options, warn),
        }
    }
}

/// Returns the options for images that can be shown: of one size, and not normalised.
fn thumbnails(mut settings: ImageFolderOptions) -> ImageFolderOptions {
    settings.transform = settings.transform.map(|transform| match transform {
        TransformOptions::Standard(StandardTransform::None) => {
            TransformOptions::Standard(StandardTransform::Eval)
        }
        TransformOptions::Steps(all) => {
            let shown = all.steps().iter().filter(|step| !matches!(step, Step::Normalise { .. }));
            TransformOptions::Steps(shown.copied().fold(Transform::new(), Transform::step))
        }
        standard => standard,
    });
    settings
}

fn build<D: Dataset<Sample: loader_core::Sample>>(
    builder: Builder<MapStyle<D>>,
    options: LoaderOptions,
    warn: impl Fn(&Warning) + Send + Sync + 'static,
) -> Result<DataLoader<<D::Sample as loader_core::Sample>::Batch>, Stop> {
    Ok(builder.options(options).on_warning(warn).build()?)
}
