//! What a run is asked to do: command line over environment over file over defaults.

use std::path::Path;

use loader_core::{LoaderOptions, config::Config};
use serde::Serialize;

use crate::{
    arguments::RunArguments,
    dataset::{DatasetSection, ResolvedDataset},
    stop::Stop,
};

/// A config with nothing left open.
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
        let mut loader = arguments.options().over(LoaderOptions::from_env()?).over(loader);
        if arguments.samples.is_some() {
            // Draws are random as they are.
            loader.shuffle = None;
            if loader.rank.is_some() || loader.world_size.is_some() {
                let message = "samples are drawn from the whole dataset, of which rank and world_size take a share; leave one of them out";
                return Err(Stop::InvalidArguments(message.to_owned()));
            }
        }
        Ok(Self { dataset: dataset.resolved()?, loader })
    }
}

/// The config at `target`, or one that says no more than that the images are there.
fn read_target(target: &Path) -> Result<(DatasetSection, LoaderOptions), Stop> {
    let is_config = target.extension().is_some_and(|extension| extension == "toml");
    if target.is_dir() || (!is_config && !target.exists()) {
        // A folder that is missing is for the dataset to complain about.
        return Ok((DatasetSection::image_folder(target.to_owned()), LoaderOptions::default()));
    }
    if !is_config {
        let message = format!("`{}` is neither a folder nor a config (a .toml file)", target.display());
        return Err(Stop::InvalidArguments(message));
    }
    let Config { mut dataset, loader, .. } = Config::<DatasetSection>::load(target)?;
    // Beside the config, so that both can be moved together and the command can be started from anywhere.
    if let Some(folder) = target.parent() {
        dataset.path = folder.join(&dataset.path);
    }
    Ok((dataset, loader))
}
