//! The dataset [`AudioFiles`].

use std::path::Path;

use loader_core::{Dataset, SampleContext, internal::get_one_by_one};
use serde::{Deserialize, Serialize};

use super::EXTENSIONS;
use crate::{
    error::{DataError, Result},
    options::format_options,
    parallel,
    record::{Record, Value},
    source::{Files, Location},
};

/// Default of the maximum number of bytes of a file.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Audio files without classes and without a table, on disk or on a server.
///
/// A sample is a [`Record`] with the field `audio`, a record of the encoded `bytes` and the `path` of the file.
/// [`DecodedRecords`](crate::DecodedRecords) decodes it. A worker reads up to 16 files of a batch from a server at the
/// same time.
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{AudioFiles, AudioTransform, DecodedRecords};
///
/// # std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/audio"))?;
/// let clips = AudioFiles::open("s*.flac")?;
/// let clips = DecodedRecords::new(clips, [("audio", AudioTransform::new(16_000).mono())]);
/// assert_eq!(clips.len(), 2);
/// assert!(clips.get(0, &mut SampleContext::new(7))?.get("audio").is_some());
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AudioFiles {
    files: Files,
    max_file_bytes: u64,
}

impl AudioFiles {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and its sub-folders whose
    /// names end with `.wav`, `.flac`, `.mp3`, `.ogg` or `.oga`, ordered by path), or a name with braces and
    /// wildcards. Reads none of them.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        AudioFilesOptions::new(pattern).open()
    }
}

format_options! {
    /// Which audio files to read, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::AudioFilesOptions;
    ///
    /// let options: AudioFilesOptions = serde_json::from_str(r#"{"path": "clips/*.wav", "max_file_bytes": "1 GB"}"#)?;
    /// assert_eq!(options.open().unwrap_err().to_string(), "`clips/*.wav`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct AudioFilesOptions {
        /// Sets the maximum number of bytes of a file. The default is 256 MiB.
        #[serde(with = "loader_core::units::Size")]
        max_file_bytes: u64 = MAX_FILE_BYTES,
    }
}

impl AudioFilesOptions {
    /// Opens the files.
    ///
    /// # Errors
    /// As for [`AudioFiles::open`].
    pub fn open(&self) -> Result<AudioFiles, DataError> {
        Ok(AudioFiles { files: self.files()?, max_file_bytes: self.max_file_bytes })
    }

    pub(crate) fn files(&self) -> Result<Files> {
        self.source.files(&EXTENSIONS)
    }
}

impl AudioFiles {
    fn read(&self, index: usize) -> anyhow::Result<Record> {
        anyhow::ensure!(index < self.len(), "there is no sample {index}; there are {} files", self.len());
        let content = self.files.read(index, self.max_file_bytes, "max_file_bytes")?;
        let file = Record::of_file(content, self.files.get(index).location.shown().into_owned());
        Ok([("audio", Value::Record(file))].into_iter().collect())
    }
}

impl Dataset for AudioFiles {
    type Sample = Record;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Record> {
        self.read(index)
    }

    /// Reads files on a server at the same time.
    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        let is_remote = |&index: &usize| matches!(self.files.get(index).location, Location::Url(_));
        if !indices.iter().filter(|&&index| index < self.len()).any(is_remote) {
            return get_one_by_one(self, indices, cx);
        }
        parallel::read(indices.len(), |number| self.read(indices[number]))
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions.
    fn fingerprint(&self) -> String {
        format!("audio_files({})", self.files.fingerprint())
    }
}
