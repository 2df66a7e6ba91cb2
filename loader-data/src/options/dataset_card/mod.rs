//! The header of a dataset's README.md on the Hugging Face Hub, which names the files of its configurations and
//! splits.

mod find;
mod header;
mod options;

use std::path::PathBuf;

use find::Place;
use header::{Configuration, README};

pub(crate) use options::{CsvSettings, FormatOptions};

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Location, Roots, StoreOptions},
};

/// Name of the configuration that is the default without `default: true`.
const DEFAULT: &str = "default";

/// The split of files to which the header gives none.
const TRAIN: &str = "train";

/// The configuration and the split to read: by default the default configuration, and its only split.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Selection<'a> {
    pub(crate) config: Option<&'a str>,
    pub(crate) split: Option<&'a str>,
}

impl Selection<'_> {
    /// Returns the files of the dataset in `folder`, each once, and the options of the configuration for their format.
    ///
    /// # Errors
    /// Returns an error if the folder has no README.md whose header has configurations, if it has no such
    /// configuration or split, if a pattern stands for no file, if a wildcard matches a file whose name ends with none
    /// of `extensions`, or if the header is damaged or names files outside of the folder.
    pub(crate) fn files(
        self,
        folder: &Location,
        extensions: &[&str],
        store: &StoreOptions,
    ) -> Result<(Vec<PathBuf>, FormatOptions)> {
        let option = if self.config.is_some() { "config" } else { "split" };
        let invalid = |reason: String| DataError::new(folder, DataProblem::InvalidOption { option, reason });
        if !folder.is_folder() {
            let rule = match folder {
                Location::Url(_) => "; the URL of a folder ends with `/`",
                Location::Path(_) => "",
            };
            return Err(invalid(format!("needs a folder with a {README} as the path{rule}")));
        }
        let Some(card) = Card::read(folder, store)? else {
            return Err(invalid(format!(
                "the folder has no {README} with `configs` in its header; give the files as the path instead"
            )));
        };
        let config = card.configuration(self.config)?;
        let places = card.places(config, self.split)?;
        Ok((find::files(&places, &card.roots, extensions, &card.store)?, card.format_options(config)))
    }
}

/// The files of the default configuration and its only split.
#[cfg(feature = "formats")]
pub(crate) struct DefaultFiles {
    /// Name of the configuration.
    pub(crate) config: String,
    /// The folder of which they are all files, if there is one.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    /// What the configuration says about their format.
    pub(crate) options: FormatOptions,
}

#[cfg(feature = "formats")]
impl DefaultFiles {
    /// Reads the header of the README.md in `folder`. Returns `None` if it names no files.
    ///
    /// # Errors
    /// Returns an error if there are several configurations without a default, or several splits, if the header cannot be
    /// read, or if it names files that do not exist.
    pub(crate) fn read(folder: &Location) -> Result<Option<Self>> {
        let Some(card) = Card::read(folder, &StoreOptions::current())? else { return Ok(None) };
        let config = card.configuration(None)?;
        if config.data_files.is_none() {
            return Ok(None);
        }
        let places = card.places(config, None)?;
        let files = find::files(&places, &card.roots, &[""], &card.store)?;
        let folder = match &places[..] {
            [place] => place.whole_folder(),
            _ => None,
        };
        let options = card.format_options(config);
        Ok(Some(Self { config: config.config_name.clone(), folder, files, options }))
    }
}

/// The header of a README.md that has configurations.
#[derive(Debug)]
struct Card {
    folder: Location,
    readme: Location,
    /// The folders that the files must be in.
    roots: Roots,
    configs: Vec<Configuration>,
    store: StoreOptions,
}

impl Card {
    /// Reads the header. Returns `None` if there is no README.md, or if it has no configurations.
    fn read(folder: &Location, store: &StoreOptions) -> Result<Option<Self>> {
        let readme = folder.join(README);
        let configs = header::read(&readme, store)?;
        if configs.is_empty() {
            return Ok(None);
        }
        let (folder, store, roots) = (folder.clone(), store.clone(), Roots::of(&readme)?);
        Ok(Some(Self { folder, readme, roots, configs, store }))
    }

    fn configuration(&self, name: Option<&str>) -> Result<&Configuration> {
        let names = || joined(self.configs.iter().map(|config| &config.config_name[..]));
        let invalid = |reason| self.invalid("config", reason);
        if let Some(name) = name {
            let unknown = || invalid(format!("there is no configuration `{name}`; there are: {}", names()));
            return self.configs.iter().find(|config| config.config_name == name).ok_or_else(unknown);
        }
        let is_default = |config: &&Configuration| {
            config.default || config.config_name == DEFAULT || self.configs.len() == 1
        };
        let mut defaults = self.configs.iter().filter(is_default);
        match (defaults.next(), defaults.next()) {
            (Some(config), None) => Ok(config),
            _ => Err(invalid(format!("set `config` to one of the configurations: {}", names()))),
        }
    }

    fn format_options(&self, config: &Configuration) -> FormatOptions {
        let (config, settings) = (config.config_name.clone(), config.others.clone());
        FormatOptions { readme: self.readme.clone(), config, settings }
    }

    /// Returns where the files of `split` are, or those of the only split.
    fn places(&self, config: &Configuration, split: Option<&str>) -> Result<Vec<Place>> {
        let data_dir = config.data_dir.as_deref().unwrap_or_default();
        let place = |pattern: &String| {
            Place::new(&self.folder, data_dir, pattern)
                .map_err(|problem| DataError::new(&self.readme, problem))
        };
        self.patterns(config, split)?.iter().map(place).collect()
    }

    /// Returns the patterns of the files of `split`, or of the only split.
    fn patterns(&self, config: &Configuration, split: Option<&str>) -> Result<Vec<String>> {
        let name = &config.config_name;
        let Some(data_files) = &config.data_files else {
            let reason =
                format!("the configuration `{name}` has no `data_files`; give the files as the path instead");
            return Err(self.invalid("config", reason));
        };
        let splits = data_files.splits();
        let names = || joined(splits.iter().map(|(name, _)| *name));
        let mut found = splits.iter().filter(|(name, _)| split.is_none_or(|split| split == *name));
        let reason = match (found.next(), found.next(), split) {
            (Some((_, patterns)), None, _) => return Ok(patterns.clone()),
            (Some(_), Some(_), Some(split)) => {
                format!("the configuration `{name}` has the split `{split}` twice; merge the two entries")
            }
            (_, _, None) => format!("set `split` to one of the splits of `{name}`: {}", names()),
            (None, _, Some(split)) => {
                format!("there is no split `{split}` of `{name}`; there are: {}", names())
            }
        };
        Err(self.invalid("split", reason))
    }

    fn invalid(&self, option: &'static str, reason: String) -> DataError {
        DataError::new(&self.readme, DataProblem::InvalidOption { option, reason })
    }
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
