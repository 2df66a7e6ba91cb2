//! The settings of a run, in order of precedence: command line, environment, config, defaults.

use std::path::Path;

use loader_core::{LoaderOptions, config::Config};
use serde::Serialize;

use crate::{
    arguments::RunArguments,
    dataset::{DatasetSection, ResolvedDataset},
    stop::Stop,
};

/// The settings of a run, printed in the event `start`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Settings {
    pub(crate) dataset: ResolvedDataset,
    pub(crate) loader: LoaderOptions,
}

impl Settings {
    pub(crate) fn new(arguments: &RunArguments) -> Result<Self, Stop> {
        let (mut dataset, loader) = read_target(&arguments.target)?;
        dataset.transform = arguments.transform.or(dataset.transform);
        dataset.size = arguments.size.or(dataset.size);
        dataset.pixels = arguments.pixels.or(dataset.pixels);
        dataset.max_file_bytes = arguments.max_file_bytes.or(dataset.max_file_bytes);
        let mut loader = arguments.loader.options.clone().over(LoaderOptions::from_env()?).over(loader);
        if arguments.samples.is_some() {
            // `--samples` draws samples in random order, so `shuffle` has no effect.
            loader.shuffle = None;
            if loader.rank.is_some() || loader.world_size.is_some() {
                let message = "--samples draws from the whole dataset, but rank and world_size select a share \
                               of it; leave out --samples, or rank and world_size";
                return Err(Stop::InvalidArguments(message.to_owned()));
            }
        }
        Ok(Self { dataset: dataset.resolved()?, loader })
    }
}

/// Reads the config at `target`. If `target` is a folder, returns settings for the images in it.
fn read_target(target: &Path) -> Result<(DatasetSection, LoaderOptions), Stop> {
    let is_config = target.extension().is_some_and(|extension| extension == "toml");
    if target.is_dir() || (!is_config && !target.exists()) {
        // If the folder is missing, opening the dataset returns the error.
        return Ok((DatasetSection::image_folder(target.to_owned()), LoaderOptions::default()));
    }
    if !is_config {
        let message = format!("`{}` is neither a folder nor a config (a .toml file)", target.display());
        return Err(Stop::InvalidArguments(message));
    }
    let Config { mut dataset, loader, .. } = Config::load_as::<DatasetSection>(target)?;
    // The path is relative to the config, so that both can be moved together and used from any directory.
    if let Some(folder) = target.parent() {
        dataset.path = folder.join(&dataset.path);
    }
    Ok((dataset, loader))
}
