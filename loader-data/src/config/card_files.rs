//! The datasets that the header of a README.md names.

use std::path::{Path, PathBuf};

use super::records::RecordConfig;
use crate::{
    error::DataError,
    formats::{file_table::TABLE_NAMES, json_lines::JsonLinesOptions},
    options::dataset_card::{CsvSettings, DefaultFiles},
    source::{Compression, Location},
};

/// The files that the header of a folder's README.md names: those of its default configuration and its only split.
#[derive(Debug)]
#[doc(hidden)]
pub struct CardFiles {
    /// Name of the configuration.
    pub config: String,
    /// The folder of which they are all files, if there is one.
    pub folder: Option<PathBuf>,
    pub files: Vec<PathBuf>,
    csv: CsvSettings,
}

impl CardFiles {
    /// Reads the header of the README.md in `folder`. Returns `None` if it names no files.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] if there are several configurations without a default, or several
    /// splits, or if the configuration has an option of the format that is not read, and [`DataProblem::Malformed`] if
    /// the header cannot be read. Also returns an error if it names files that do not exist.
    ///
    /// [`DataProblem::InvalidOption`]: crate::DataProblem::InvalidOption
    /// [`DataProblem::Malformed`]: crate::DataProblem::Malformed
    #[doc(hidden)]
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<Self>, DataError> {
        let Some(found) = DefaultFiles::read(&Location::new(folder))? else { return Ok(None) };
        let DefaultFiles { config, folder, files, options } = found;
        let csv = if files.iter().all(|file| is_csv(file)) {
            options.csv()?
        } else {
            options.none().map(|()| CsvSettings::default())?
        };
        Ok(Some(Self { config, folder, files, csv }))
    }

    /// Returns settings for one of the files: its format, which its extension tells, and the options that the header sets
    /// for it. In a header, `.json` stands for JSON lines. Returns `None` if the extension is that of no format.
    #[doc(hidden)]
    pub fn config_of(&self, file: &Path) -> Option<RecordConfig> {
        let name = Location::new(file).file_name().to_ascii_lowercase();
        let mut config = match Compression::split(&name) {
            (stem, None) if stem.ends_with(".json") => RecordConfig::JsonLines(JsonLinesOptions::new(file)),
            (stem, Some(_)) if stem.ends_with(".json") => {
                RecordConfig::JsonLinesStream(JsonLinesOptions::new(file))
            }
            _ => RecordConfig::of_extension(file, file)?,
        };
        if let RecordConfig::Csv(options) | RecordConfig::CsvStream(options) = &mut config {
            options.set(&self.csv);
        }
        Some(config)
    }
}

/// True if `file` is CSV, and no table of images or audio files, whose format has no options.
fn is_csv(file: &Path) -> bool {
    let config = RecordConfig::of_extension(file, file);
    matches!(config, Some(RecordConfig::Csv(_) | RecordConfig::CsvStream(_)))
        && !TABLE_NAMES.iter().any(|name| file.ends_with(name))
}
