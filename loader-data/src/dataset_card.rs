//! The header of a dataset's README.md on the Hugging Face Hub, which names the files of its configurations and
//! splits. It is YAML between two lines `---`.

use std::{path::PathBuf, slice, str};

use glob::Pattern;
use serde::Deserialize;

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, Location, OneOrMany, StoreOptions, is_glob},
};

/// Name of the file with the header.
const README: &str = "README.md";

/// Max number of bytes that are searched for the end of the header.
const MAX_BYTES: u64 = 16 << 20;

/// Name of the configuration that is the default without `default: true`.
const DEFAULT: &str = "default";

/// The split of files that the header names without a split.
const TRAIN: &str = "train";

/// What of a dataset is wanted; by default its default configuration, and the only split of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) config: Option<&'a str>,
    pub(crate) split: Option<&'a str>,
}

impl Wanted<'_> {
    /// Returns the files of the dataset in `folder`, as patterns.
    ///
    /// # Errors
    /// Returns an error if the folder has no README.md whose header names files, if it has no such configuration
    /// or split, or if the header is damaged or names files outside of the folder.
    pub(crate) fn files(self, folder: &Location, store: &StoreOptions) -> Result<Vec<PathBuf>> {
        let option = if self.config.is_some() { "config" } else { "split" };
        let invalid = |reason: String| DataError::new(folder, DataProblem::InvalidOption { option, reason });
        if !folder.is_folder() {
            return Err(invalid(format!("needs a folder with a {README} as the path")));
        }
        match Card::read(folder, store)? {
            Some(card) => card.files(self),
            None => Err(invalid(format!(
                "the folder has no {README} with `configs` in its header; give the files as the path instead"
            ))),
        }
    }
}

/// What the header of a folder's README.md says about its default configuration.
#[cfg(feature = "formats")]
#[derive(Debug)]
#[doc(hidden)]
pub enum CardData {
    /// It names these files.
    Files(Box<crate::RecordConfig>),
    /// It names this folder. The names of the files in it tell their format and splits.
    Folder(PathBuf),
}

#[cfg(feature = "formats")]
impl CardData {
    /// Reads the header of the README.md in `folder`. Returns `None` if there is none, if it names no files, or if
    /// their extensions are of no known format.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] if there are several configurations without a default, or several
    /// splits. Also returns an error if the header is damaged, or names files that do not exist.
    #[doc(hidden)]
    pub fn read(folder: impl AsRef<std::path::Path>) -> Result<Option<Self>, DataError> {
        let store = StoreOptions::current();
        let folder = Location::new(folder);
        let Some(card) = Card::read(&folder, &store)? else { return Ok(None) };
        let patterns = card.files(Wanted::default())?;
        if let [one] = &patterns[..]
            && Location::new(one).is_folder()
        {
            return Ok(Some(Self::Folder(one.clone())));
        }
        let files = Files::list_with(&patterns, &[""], &store)?;
        let of_file = |number| {
            let file = files.get(number).location;
            crate::RecordConfig::of_extension(file.as_path(), folder.as_path())
        };
        let Some(mut config) = (0..files.len()).find_map(of_file) else { return Ok(None) };
        config.set_files(patterns);
        Ok(Some(Self::Files(Box::new(config))))
    }
}

/// The header of a README.md that has configurations.
#[derive(Debug)]
struct Card {
    folder: Location,
    readme: Location,
    configs: Vec<Configuration>,
}

#[derive(Debug, Deserialize)]
struct Header {
    configs: Option<Vec<Configuration>>,
}

/// A configuration of the dataset. Its other keys are options of `datasets`.
#[derive(Debug, Deserialize)]
struct Configuration {
    config_name: String,
    #[serde(default)]
    default: bool,
    /// The folder that the patterns begin at.
    data_dir: Option<String>,
    data_files: Option<DataFiles>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`data_files` is neither a pattern, nor a list of patterns, nor a list of `split` and `path`"
)]
enum DataFiles {
    Patterns(OneOrMany),
    Splits(Vec<SplitFiles>),
}

#[derive(Debug, Deserialize)]
struct SplitFiles {
    split: String,
    path: OneOrMany,
}

impl Card {
    /// Reads the header. Returns `None` if there is no README.md, or if it has no configurations.
    fn read(folder: &Location, store: &StoreOptions) -> Result<Option<Self>> {
        let readme = folder.join(README);
        let Some(files) = Files::find(&readme, store)? else { return Ok(None) };
        let blob = files.open(0)?;
        let text = blob.read(0..blob.len().min(MAX_BYTES))?;
        let Some(header) = header(&text) else { return Ok(None) };
        // Headers of other programs stay unread.
        if !header.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"configs:")) {
            return Ok(None);
        }
        let malformed = |reason: String| {
            DataError::new(&readme, DataProblem::Malformed { format: "YAML in its header", reason })
        };
        let header = str::from_utf8(header).map_err(|error| malformed(error.to_string()))?;
        let Header { configs } =
            yaml_serde::from_str(header).map_err(|error| malformed(error.to_string()))?;
        let configs = configs.unwrap_or_default();
        let folder = folder.clone();
        Ok((!configs.is_empty()).then_some(Self { folder, readme, configs }))
    }

    /// Returns the files that are `wanted`, as patterns.
    fn files(&self, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
        let patterns = || -> Result<_, DataProblem> {
            let config = self.configuration(wanted.config)?;
            let data_dir = config.data_dir.as_deref().unwrap_or_default();
            let located = |pattern: &str| self.located(data_dir, pattern);
            match config.patterns(wanted.split)? {
                Some(patterns) => patterns.into_iter().map(located).collect(),
                None => Ok(vec![located("**")?]),
            }
        };
        patterns().map_err(|problem| DataError::new(&self.readme, problem))
    }

    fn configuration(&self, name: Option<&str>) -> Result<&Configuration, DataProblem> {
        let names = || joined(self.configs.iter().map(|config| &config.config_name[..]));
        let invalid = |reason| DataProblem::InvalidOption { option: "config", reason };
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

    /// Returns the path or URL of the files that `pattern` stands for in the folder `data_dir` of the dataset.
    fn located(&self, data_dir: &str, pattern: &str) -> Result<PathBuf, DataProblem> {
        let mut parts = parts(data_dir)?;
        parts.extend(self::parts(pattern)?);
        // In a pattern of Hugging Face, `**` at the end stands for all files in all folders; a glob takes it for the
        // folders.
        let is_folder = match parts.pop() {
            Some("**") if parts.iter().any(|part| is_glob(part)) => {
                parts.extend(["**", "*"]);
                false
            }
            Some("**") => true,
            last => {
                parts.extend(last);
                false
            }
        };
        let mut name = parts.join("/");
        if is_folder && matches!(self.folder, Location::Url(_)) && !name.is_empty() {
            name.push('/');
        }
        let folder = match (&self.folder, self.folder.as_path().to_str()) {
            (Location::Path(_), Some(folder)) if is_glob(&name) => {
                Location::Path(Pattern::escape(folder).into())
            }
            (Location::Url(_), Some(folder)) if is_glob(&name) => Location::Url(Pattern::escape(folder)),
            _ => self.folder.clone(),
        };
        Ok(if name.is_empty() { folder } else { folder.join(&name) }.as_path().to_owned())
    }
}

impl Configuration {
    /// Returns the patterns of the files of `split`, or of the only split. Returns `None` if the configuration names no
    /// files.
    fn patterns(&self, split: Option<&str>) -> Result<Option<Vec<&str>>, DataProblem> {
        let invalid = |reason| DataProblem::InvalidOption { option: "split", reason };
        let splits = match &self.data_files {
            Some(DataFiles::Patterns(patterns)) => vec![(TRAIN, patterns)],
            Some(DataFiles::Splits(splits)) => {
                splits.iter().map(|split| (&split.split[..], &split.path)).collect()
            }
            None => Vec::new(),
        };
        let names = || joined(splits.iter().map(|(name, _)| *name));
        let config = &self.config_name;
        let mut found = splits.iter().filter(|(name, _)| split.is_none_or(|split| split == *name));
        match (found.next(), found.next(), split) {
            (Some((_, patterns)), None, _) => Ok(Some(patterns.texts())),
            (Some(_), Some(_), Some(split)) => {
                Err(invalid(format!("the header has the split `{split}` of `{config}` twice")))
            }
            (Some(_), Some(_), None) => {
                Err(invalid(format!("set it to one of the splits of `{config}`: {}", names())))
            }
            (None, _, None) => Ok(None),
            (None, _, Some(_)) if splits.is_empty() => Err(invalid(format!(
                "the header names no files of `{config}`; give the files as the path instead"
            ))),
            (None, _, Some(split)) => {
                Err(invalid(format!("there is no split `{split}` of `{config}`; there are: {}", names())))
            }
        }
    }
}

impl OneOrMany {
    fn texts(&self) -> Vec<&str> {
        let patterns = match self {
            Self::One(pattern) => slice::from_ref(pattern),
            Self::Many(patterns) => patterns,
        };
        // YAML is Unicode.
        patterns.iter().filter_map(|pattern| pattern.to_str()).collect()
    }
}

/// Returns the header of a README.md without its lines `---`, if there is one.
fn header(readme: &[u8]) -> Option<&[u8]> {
    let text = readme.strip_prefix(b"\xef\xbb\xbf").unwrap_or(readme).trim_ascii_start();
    let (first, text) = text.split_at(text.iter().position(|&byte| byte == b'\n')? + 1);
    if first.trim_ascii_end() != b"---" {
        return None;
    }
    let mut end = 0;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if line.trim_ascii_end() == b"---" {
            return Some(&text[..end]);
        }
        end += line.len();
    }
    None
}

/// Returns the names that `pattern` consists of.
///
/// # Errors
/// Returns an error if the pattern may stand for files outside of the folder that it begins at.
fn parts(pattern: &str) -> Result<Vec<&str>, DataProblem> {
    let leads_out =
        pattern.starts_with('/') || pattern.contains("://") || pattern.split('/').any(|part| part == "..");
    // Braces could stand for `..`, and have no meaning in a pattern of Hugging Face.
    if leads_out || pattern.contains('{') {
        let what = if leads_out { "leads out of the folder" } else { "has braces" };
        return Err(DataProblem::Pattern(format!(
            "`{pattern}` in the header {what}; name files in the folder"
        )));
    }
    Ok(pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect())
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_between_two_lines() {
        for (readme, expected) in [
            ("---\nconfigs: []\n---\n# Title\n", Some("configs: []\n")),
            ("\u{feff}\n---\r\nconfigs: []\r\n---", Some("configs: []\r\n")),
            ("---\n---\n", Some("")),
            ("---\nconfigs: []\n", None),
            ("# Title\n---\nconfigs: []\n---\n", None),
            ("----\nconfigs: []\n---\n", None),
            ("---", None),
            ("", None),
        ] {
            assert_eq!(header(readme.as_bytes()), expected.map(str::as_bytes), "{readme:?}");
        }
    }

    #[test]
    fn a_pattern_stays_in_its_folder() {
        assert_eq!(parts("./data//train-*").unwrap(), ["data", "train-*"]);
        assert_eq!(parts("..data/a..b/...").unwrap(), ["..data", "a..b", "..."]);
        for outside in ["../a", "a/../../b", "/etc/a", "..", "https://host/a", "{.,a}./b"] {
            assert!(matches!(parts(outside), Err(DataProblem::Pattern(_))), "{outside}");
        }
    }

    #[test]
    fn patterns_begin_at_the_folder_of_the_readme() {
        let located = |folder: &str, data_dir, pattern| {
            let folder = Location::new(folder);
            let card = Card { readme: folder.join(README), folder, configs: Vec::new() };
            card.located(data_dir, pattern).unwrap().to_str().unwrap().to_owned()
        };
        for (folder, data_dir, pattern, expected) in [
            ("hub", "", "data/train-*", "hub/data/train-*"),
            ("hub", "en", "./a.csv", "hub/en/a.csv"),
            ("hub", "", "**", "hub"),
            ("hub", "en/", "train/**", "hub/en/train"),
            ("hub", "", "*/**", "hub/*/**/*"),
            ("hub[1]", "", "a.csv", "hub[1]/a.csv"),
            ("hub[1]", "", "*.csv", "hub[[]1[]]/*.csv"),
            ("s3://bucket/hub/", "en", "train/**", "s3://bucket/hub/en/train/"),
            ("s3://bucket/hub/", "", "**", "s3://bucket/hub/"),
            ("s3://bucket/hub/", "", "data/train-*", "s3://bucket/hub/data/train-*"),
        ] {
            assert_eq!(located(folder, data_dir, pattern), expected);
        }
    }
}
