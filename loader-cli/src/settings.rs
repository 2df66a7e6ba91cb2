//! The settings of a run, in order of precedence: command line, environment, config, defaults.

use std::{fs, io, path::Path};

use loader_core::{
    LaunchedRank, LauncherMode, LoaderOptions, RankError,
    config::{Config, LayeredOptions},
};
use loader_data::{DatasetConfig, ImageFolderOptions, KindOnly};
use serde::Serialize;

#[cfg(feature = "formats")]
use crate::layout;
use crate::{
    arguments::{DatasetArguments, RunArguments, is_url},
    options::LoaderArguments,
    stop::Stop,
};

/// The settings of a run, printed in the event `start`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Settings {
    pub(crate) dataset: DatasetConfig,
    pub(crate) loader: LoaderOptions,
    /// What the launcher says about the rank, unless the user gave it.
    #[serde(skip)]
    pub(crate) launched: Option<LaunchedRank>,
}

impl Settings {
    pub(crate) fn new(arguments: &RunArguments) -> Result<Self, Stop> {
        let mut target = read(&arguments.target, &arguments.loader)?;
        target.apply(&arguments.images)?;
        let Target { dataset, options, .. } = target;
        let (mut loader, launched) = with_rank(options.options().clone())?;
        if arguments.samples.is_some() {
            // `--samples` draws samples in random order, so `shuffle` has no effect.
            loader.shuffle = None;
            if launched.as_ref().is_some_and(|launched| launched.world_size == 1) {
                // The share of the only process is the whole dataset.
                (loader.rank, loader.world_size) = (None, None);
            }
            if loader.rank.is_some() || loader.world_size.is_some() {
                let origin = launched.map(|launched| format!(" ({launched})")).unwrap_or_default();
                let message = format!(
                    "--samples draws from the whole dataset, but rank and world_size select a share of it{origin}; \
                     leave out --samples, or load without a rank (under a launcher: --launcher off)"
                );
                return Err(Stop::InvalidArguments(message));
            }
        }
        Ok(Self { dataset: dataset.resolved()?, loader, launched })
    }
}

/// Finds the rank that the launcher of this process gave it, unless the options say otherwise.
pub(crate) fn with_rank(
    mut options: LoaderOptions,
) -> Result<(LoaderOptions, Option<LaunchedRank>), RankError> {
    options.launcher.get_or_insert(LauncherMode::Auto);
    options.with_launched_rank()
}

/// What a target names.
pub(crate) struct Target {
    pub(crate) dataset: DatasetConfig,
    /// The options of the loader in order of precedence.
    pub(crate) options: LayeredOptions,
    /// The config, if the target is one.
    pub(crate) config: Option<Config<KindOnly>>,
}

impl Target {
    /// Puts the options of the command line into the dataset.
    pub(crate) fn apply(&mut self, arguments: &DatasetArguments) -> Result<(), Stop> {
        arguments.apply_to(&mut self.dataset)?;
        // Without a config, the command chooses the kind, and only a stream can leave out records.
        #[cfg(feature = "formats")]
        if self.config.is_none()
            && arguments.drops_nulls()
            && let DatasetConfig::Records(config) = &mut self.dataset
        {
            **config = layout::in_order((**config).clone());
        }
        Ok(())
    }
}

/// Returns the dataset that `target` names, and the options of the loader.
pub(crate) fn read(target: &Path, arguments: &LoaderArguments<false>) -> Result<Target, Stop> {
    let (dataset, config) = read_target(target)?;
    let of_config = config.as_ref().map(LayeredOptions::new).unwrap_or_default();
    let options = of_config.under_env()?.under_command_line(arguments.options.clone());
    Ok(Target { dataset, options, config })
}

/// Reads the config at `target`. If `target` is a folder, returns settings for the data files in it, or
/// otherwise for the images in it; if it is the name of other data files, or a pattern for such names,
/// settings for them.
fn read_target(target: &Path) -> Result<(DatasetConfig, Option<Config<KindOnly>>), Stop> {
    let is_config = target.extension().is_some_and(|extension| extension == "toml");
    #[cfg(feature = "formats")]
    if !is_config && let Some(dataset) = layout::of_target(target)? {
        return Ok((dataset, None));
    }
    let is_missing = || fs::metadata(target).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if !is_config && !is_url(target) && is_missing() {
        let message = format!("`{}`: no such file or folder; check the path", target.display());
        return Err(Stop::InvalidArguments(message));
    }
    #[cfg(feature = "formats")]
    if target.is_dir() {
        layout::refuse_other_layouts(target)?;
    }
    if target.is_dir() || (!is_config && !target.exists()) {
        // If the folder cannot be listed, opening the dataset returns the error.
        let images = ImageFolderOptions::new(target);
        return Ok((DatasetConfig::ImageFolder(images), None));
    }
    if !is_config {
        return Err(unknown_file(target));
    }
    let (dataset, config) = DatasetConfig::load(target)?;
    // Another package of the build may have turned on the other kinds in `loader-data`.
    if !cfg!(feature = "formats") && !matches!(dataset, DatasetConfig::ImageFolder(_)) {
        return Err(Stop::without_formats(dataset.kind()));
    }
    Ok((dataset, Some(config)))
}

/// Returns the error of a file whose name tells no format.
fn unknown_file(target: &Path) -> Stop {
    let is_binary = target.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("bin"));
    let is_json = target.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let hint = match cfg!(feature = "formats") {
        true if is_json => {
            " nor a data file: a .json file may have one array of all rows; write each object on a line of its own, for \
             example with `jq -c '.[]' FILE.json > FILE.jsonl`, and give the .jsonl file"
        }
        true if is_binary => {
            " nor a data file whose extension tells its format; token files need a config with `kind = \"tokens\"`, and \
             CIFAR's files one with `kind = \"arrays\"`"
        }
        true => " nor a data file whose extension tells its format, such as .jsonl, .parquet or .tar",
        false => "; for data files, build this `loader` with `--features formats`",
    };
    let message = format!("`{}` is neither a folder nor a config (a .toml file){hint}", target.display());
    Stop::InvalidArguments(message)
}
