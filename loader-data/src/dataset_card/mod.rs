//! The header of a dataset's README.md on the Hugging Face Hub, which names the files of its configurations and
//! splits.

mod find;
mod header;
mod splits;

use std::{collections::HashSet, path::PathBuf};

use find::Place;
use header::{Configuration, DataFiles, README};
pub use splits::{SPLIT_NAMES, split_of};

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Location, StoreOptions},
};

/// Name of the configuration that is the default without `default: true`.
const DEFAULT: &str = "default";

/// The split of files whose split neither the header nor their names tell.
const TRAIN: &str = "train";

/// What of a dataset is wanted; by default its default configuration, and the only split of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) config: Option<&'a str>,
    pub(crate) split: Option<&'a str>,
}

impl Wanted<'_> {
    /// Returns the files of the dataset in `folder`, each once. Of those that a wildcard matches, takes only those
    /// whose names end with one of `extensions`.
    ///
    /// # Errors
    /// Returns an error if the folder has no README.md whose header has configurations, if it has no such
    /// configuration or split, if a pattern stands for no file, or if the header is damaged or names files outside of
    /// the folder.
    pub(crate) fn files(
        self,
        folder: &Location,
        extensions: &[&str],
        store: &StoreOptions,
    ) -> Result<Vec<PathBuf>> {
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
        let patterns = match &config.data_files {
            None => return card.split_by_names(config, self.split, extensions),
            Some(data_files) => card.split(config, data_files, self.split)?,
        };
        card.find(config, &patterns, extensions)
    }
}

/// What the header of a folder's README.md says about its default configuration.
#[cfg(feature = "formats")]
#[derive(Debug)]
#[doc(hidden)]
pub enum CardData {
    /// It names these files; they are all files of `folder`, if there is one.
    Files { folder: Option<PathBuf>, files: Vec<PathBuf> },
    /// It names this folder. The names of the files in it tell their format and splits.
    Folder(PathBuf),
}

#[cfg(feature = "formats")]
impl CardData {
    /// Reads the header of the README.md in `folder`. Returns `None` if there is none. Splits whose files do not exist
    /// do not count.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] if there are several configurations without a default, or several
    /// splits, and [`DataProblem::Malformed`] if the header cannot be read. Also returns an error if it names files
    /// that do not exist.
    #[doc(hidden)]
    pub fn read(folder: impl AsRef<std::path::Path>) -> Result<Option<Self>, DataError> {
        let store = StoreOptions::current();
        let Some(card) = Card::read(&Location::new(folder), &store)? else { return Ok(None) };
        let config = card.configuration(None)?;
        let Some(data_files) = &config.data_files else {
            let place = card.place(config, "**")?;
            return Ok(Some(Self::Folder(place.folder.as_path().to_owned())));
        };
        let has_files = |patterns: &&Vec<String>| {
            patterns.iter().any(|pattern| card.find(config, std::slice::from_ref(pattern), &[""]).is_ok())
        };
        let splits = data_files.splits();
        let mut found = splits.iter().map(|(_, patterns)| patterns).filter(has_files);
        let patterns = match (found.next(), found.next()) {
            (Some(patterns), None) => patterns.clone(),
            // The error of the files that do not exist.
            (None, _) => splits.first().map(|(_, patterns)| patterns.clone()).unwrap_or_default(),
            _ => card.split(config, data_files, None)?,
        };
        let files = card.find(config, &patterns, &[""])?;
        let folder = match &patterns[..] {
            [pattern] => card.place(config, pattern)?.whole_folder(),
            _ => None,
        };
        Ok(Some(Self::Files { folder, files }))
    }
}

/// The header of a README.md that has configurations.
#[derive(Debug)]
struct Card {
    folder: Location,
    readme: Location,
    configs: Vec<Configuration>,
    store: StoreOptions,
}

impl Card {
    /// Reads the header. Returns `None` if there is no README.md, or if it has no configurations.
    fn read(folder: &Location, store: &StoreOptions) -> Result<Option<Self>> {
        let readme = folder.join(README);
        let configs = header::read(&readme, store)?;
        let (folder, store) = (folder.clone(), store.clone());
        Ok((!configs.is_empty()).then_some(Self { folder, readme, configs, store }))
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
            _ => Err(invalid(format!("set it to one of the configurations: {}", names()))),
        }
    }

    /// Returns the patterns of the files of `split`, or of the only split.
    fn split(
        &self,
        config: &Configuration,
        data_files: &DataFiles,
        split: Option<&str>,
    ) -> Result<Vec<String>> {
        let splits = data_files.splits();
        let (name, names) = (&config.config_name, || joined(splits.iter().map(|(name, _)| *name)));
        let mut found = splits.iter().filter(|(name, _)| split.is_none_or(|split| split == *name));
        let reason = match (found.next(), found.next(), split) {
            (Some((_, patterns)), None, _) => return Ok(patterns.clone()),
            (Some(_), Some(_), Some(split)) => {
                format!("the header has the split `{split}` of `{name}` twice")
            }
            (Some(_), Some(_), None) => format!("set it to one of the splits of `{name}`: {}", names()),
            (None, _, None) => return Ok(Vec::new()),
            (None, _, Some(split)) => {
                format!("there is no split `{split}` of `{name}`; there are: {}", names())
            }
        };
        Err(self.invalid("split", reason))
    }

    /// Returns the files of a configuration whose files the header does not name. Their names tell their splits.
    fn split_by_names(
        &self,
        config: &Configuration,
        split: Option<&str>,
        extensions: &[&str],
    ) -> Result<Vec<PathBuf>> {
        let place = self.place(config, "**")?;
        let files = place.files(extensions, &self.store)?;
        let split_of = |file: &PathBuf| splits::split_of_path(&place.relative(file));
        let mut names: Vec<_> = files.iter().filter_map(split_of).collect();
        names.sort();
        names.dedup();
        let of = |name: &str| -> Vec<_> {
            files.iter().filter(|file| split_of(file).as_deref() == Some(name)).cloned().collect()
        };
        let (config, told) = (&config.config_name, || joined(names.iter().map(String::as_str)));
        let reason = match (&names[..], split) {
            ([], None | Some(TRAIN)) => return Ok(files),
            ([], Some(split)) => format!("the names of the files of `{config}` tell no split `{split}`"),
            ([one], None) => return Ok(of(one)),
            (_, None) => {
                format!(
                    "the names of the files of `{config}` tell several splits; set it to one of: {}",
                    told()
                )
            }
            (_, Some(split)) if names.iter().any(|name| name == split) => return Ok(of(split)),
            (_, Some(split)) => {
                format!("the names of the files of `{config}` tell no split `{split}`, but: {}", told())
            }
        };
        Err(self.invalid("split", reason))
    }

    /// Returns the files that the patterns stand for, in the order of the patterns, each once.
    fn find(&self, config: &Configuration, patterns: &[String], extensions: &[&str]) -> Result<Vec<PathBuf>> {
        let (mut files, mut found) = (Vec::new(), HashSet::new());
        for pattern in patterns {
            files.extend(self.place(config, pattern)?.files(extensions, &self.store)?);
        }
        files.retain(|file| found.insert(file.clone()));
        Ok(files)
    }

    fn place(&self, config: &Configuration, pattern: &str) -> Result<Place> {
        Place::new(&self.folder, config.data_dir.as_deref().unwrap_or_default(), pattern)
            .map_err(|problem| DataError::new(&self.readme, problem))
    }

    fn invalid(&self, option: &'static str, reason: String) -> DataError {
        DataError::new(&self.readme, DataProblem::InvalidOption { option, reason })
    }
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
