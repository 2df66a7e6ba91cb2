//! The dataset [`AudioFolder`].

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use loader_core::{Dataset, SampleContext, Tensor};
use rand::Rng;
use serde::{Deserialize, Serialize};
use symphonia::core::io::MediaSource;
use xxhash_rust::xxh3::Xxh3;

use super::EXTENSIONS;
use crate::{
    decoders::AudioTransform,
    error::{DataError, DataProblem, Result},
    options::keys::{Keys, NoOtherKeys},
    record::{Record, Value},
    source::{BlobCursor, Files, Location, StoreOptions},
};

/// A dataset of audio files in one sub-folder per class, on disk or on a server.
///
/// A sample is `(audio, label)`: the audio is a `Tensor<f32>` of shape `[channels, frames]`, as
/// [`AudioTransform`] describes, and the label is the number of its class as `u32`. A batch is a
/// `Tensor<f32>` of shape `[B, channels, frames]` and a `Tensor<u32>` of shape `[B]`; without a crop, the
/// files of a batch must have the same length.
///
/// The classes are the sub-folders, numbered in the order of their names. The files of a class are those
/// named `.wav`, `.flac`, `.mp3`, `.ogg` or `.oga` in its folder and in all folders inside it. Files are
/// ordered by path, numbers in it by their value. Names that start with a dot are skipped.
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{AudioFolder, AudioTransform};
///
/// # let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/audio/");
/// # let folder = tempfile::tempdir()?;
/// # std::env::set_current_dir(&folder)?;
/// # for (from, to) in [("s16.wav", "commands/no/1.wav"), ("s16.flac", "commands/yes/2.flac")] {
/// #     std::fs::create_dir_all(std::path::Path::new(to).parent().unwrap())?;
/// #     std::fs::copy(format!("{files}{from}"), to)?;
/// # }
/// let transform = AudioTransform::new(16_000).mono().random_crop(8_000);
/// let commands = AudioFolder::open("commands", transform)?;
/// assert_eq!(commands.classes(), ["no", "yes"]);
/// let (audio, label) = commands.get(1, &mut SampleContext::new(7))?;
/// assert_eq!((audio.shape(), label), ([1, 8_000].as_slice(), 1));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AudioFolder {
    root: String,
    classes: Vec<String>,
    files: Files,
    /// Hash of the paths, for the fingerprint.
    listing: u64,
    transform: AudioTransform,
}

/// What to read as an [`AudioFolder`], for example from a config file: the folder `path`, and the options of
/// [`AudioTransform`].
///
/// # Examples
/// ```
/// use loader_data::AudioFolderOptions;
///
/// let text = r#"{"path": "commands", "sample_rate": 16000, "mono": true, "crop": {"random": 16000}}"#;
/// let options: AudioFolderOptions = serde_json::from_str(text)?;
/// assert_eq!(options.open().unwrap_err().to_string(), "`commands`: no such file; check the path");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AudioFolderOptions {
    path: PathBuf,
    #[serde(default)]
    store: Option<StoreOptions>,
    #[serde(flatten)]
    transform: AudioTransform,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    no_other_keys: NoOtherKeys<Self>,
}

impl Keys for AudioFolderOptions {
    fn keys() -> Vec<&'static str> {
        [&["path", "store"], AudioTransform::KEYS].concat()
    }
}

impl AudioFolderOptions {
    /// Returns the options for the folder at `path`, a path or a URL that ends with `/`.
    pub fn new(path: impl AsRef<Path>, transform: AudioTransform) -> Self {
        Self { path: path.as_ref().to_owned(), store: None, transform, no_other_keys: NoOtherKeys::default() }
    }

    /// Sets how files are read from servers. The default are the options of the
    /// [scope](crate::StoreOptions::scope).
    #[must_use]
    pub fn store(self, store: StoreOptions) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Opens the folder. Lists the files and reads none of them.
    ///
    /// # Errors
    /// Returns an error if the folder is missing or cannot be listed, if a file is in no class folder, if a
    /// class folder has no audio files, if the names of two class folders differ only in bytes that are not Unicode, or
    /// if an option of the transform is invalid.
    pub fn open(&self) -> Result<AudioFolder> {
        let location = Location::new(&self.path);
        let failed = |problem| DataError::new(&location, problem);
        self.transform.validate().map_err(failed)?;
        let files = self.files()?;
        let root = location.as_path().to_string_lossy().into_owned();
        let (mut classes, mut names) = (BTreeSet::new(), BTreeMap::new());
        let mut listing = Xxh3::new();
        for index in 0..files.len() {
            let file = files.get(index).location;
            let path = file.as_path().to_string_lossy();
            let Some((class, rest)) = class_of(&path, &root) else {
                return Err(DataError::new(&file, DataProblem::NoClass { folder: location.to_string() }));
            };
            for part in [class, rest] {
                listing.update(&(part.len() as u64).to_le_bytes());
                listing.update(part.as_bytes());
            }
            classes.insert(class.to_owned());
            if let Some(name) = folder_name(&file, &location)
                && *names.entry(class.to_owned()).or_insert_with(|| name.clone()) != name
            {
                return Err(DataError::new(&file, DataProblem::SameClass { class: class.to_owned() }));
            }
        }
        if let Location::Path(path) = &location {
            check_for_empty_classes(Path::new(path), &classes).map_err(failed)?;
        }
        let classes = classes.into_iter().collect();
        Ok(AudioFolder { root, classes, files, listing: listing.digest(), transform: self.transform.clone() })
    }

    /// Opens the folder as a dataset of records.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_records(&self) -> Result<AudioRecords> {
        Ok(AudioRecords(self.open()?))
    }

    pub(crate) fn files(&self) -> Result<Files> {
        let store = self.store.clone().unwrap_or_else(StoreOptions::current);
        Files::list_with([&self.path], &EXTENSIONS, &store)
    }
}

#[cfg(feature = "formats")]
impl AudioFolderOptions {
    /// Returns nothing: a sample has no encoded fields.
    pub(crate) fn take_decoded(&self) -> Option<crate::options::SourceOptions> {
        None
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let path = std::iter::once(("path".to_owned(), &mut self.path));
        path.chain(self.store.iter_mut().filter_map(StoreOptions::path_mut))
    }

    /// Returns false: without the folder, files have no class.
    pub(crate) fn set_files(&self, _files: Vec<PathBuf>) -> bool {
        false
    }
}

impl AudioFolder {
    /// Opens the folder at `path`, a path or a URL that ends with `/`. Lists the files and reads none of
    /// them.
    ///
    /// # Errors
    /// As for [`AudioFolderOptions::open`].
    pub fn open(path: impl AsRef<Path>, transform: AudioTransform) -> Result<Self> {
        AudioFolderOptions::new(path, transform).open()
    }

    /// Returns the names of the classes; a label is an index in this list. Bytes of a name that are not
    /// Unicode are replaced by U+FFFD.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the label of sample `index` without loading its audio, or `None` if there is no such sample.
    pub fn label(&self, index: usize) -> Option<u32> {
        (index < self.files.len()).then(|| self.label_of(&self.files.get(index).location))
    }

    /// Returns the labels of all samples in order, for example to build a weighted sampler. Loads no audio.
    pub fn labels(&self) -> impl Iterator<Item = u32> {
        (0..self.files.len()).map_while(|index| self.label(index))
    }

    fn label_of(&self, file: &Location) -> u32 {
        let file = file.as_path().to_string_lossy();
        let class = class_of(&file, &self.root).map_or("", |(class, _)| class);
        let label = self.classes.binary_search_by(|known| known.as_str().cmp(class));
        label.expect("`open` has collected the classes of all files") as u32
    }

    fn load(&self, index: usize, rng: &mut impl Rng) -> Result<(Tensor<f32>, u32)> {
        let blob = self.files.open(index)?;
        let location = &blob.file().location;
        let source: Box<dyn MediaSource> = if blob.is_remote() {
            Box::new(io::Cursor::new(blob.read(0..blob.len())?))
        } else {
            Box::new(BlobCursor::new(&blob))
        };
        let audio = self.transform.decode_source(source, rng).map_err(|problem| match problem {
            DataProblem::Unreadable(error) => blob.read_error(0, error),
            problem => DataError::new(location, problem),
        })?;
        Ok((audio, self.label_of(location)))
    }
}

impl Dataset for AudioFolder {
    type Sample = (Tensor<f32>, u32);

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        anyhow::ensure!(index < self.len(), "there is no sample {index}; the folder has {}", self.len());
        Ok(self.load(index, cx.rng())?)
    }

    /// Returns the numbers of files and classes, a hash of the path of each file below the folder, and the transform.
    /// The path of the folder itself and the contents of the files are not part of it.
    fn fingerprint(&self) -> String {
        let (files, classes) = (self.files.len(), self.classes.len());
        format!(
            "audio_folder({files} files in {classes} classes #{:016x}, {:?})",
            self.listing, self.transform
        )
    }
}

/// The samples of an [`AudioFolder`] as [`Record`]s with the fields `audio`, a tensor of shape `[channels,
/// frames]`, and `label`, an `i64`. It is opened by [`AudioFolderOptions::open_records`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AudioRecords(AudioFolder);

impl Dataset for AudioRecords {
    type Sample = Record;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        let (audio, label) = self.0.get(index, cx)?;
        let fields: [(&str, Value); 2] = [("audio", audio.into()), ("label", i64::from(label).into())];
        Ok(fields.into_iter().collect())
    }

    /// Returns the fingerprint of the folder.
    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
}

/// Returns the class of `file`, and the rest of its path below the class folder.
fn class_of<'a>(file: &'a str, root: &str) -> Option<(&'a str, &'a str)> {
    file.strip_prefix(root)?.trim_start_matches('/').split_once('/')
}

/// Returns the name of the class folder of a local `file`, with the bytes that are not Unicode.
fn folder_name(file: &Location, root: &Location) -> Option<OsString> {
    let (Location::Path(file), Location::Path(root)) = (file, root) else { return None };
    let below = Path::new(file).strip_prefix(root).ok()?;
    below.iter().next().map(OsStr::to_owned)
}

/// Fails if a folder in `root` is none of the `classes`, because the labels of the others would differ from
/// those in another part of the dataset.
fn check_for_empty_classes(root: &Path, classes: &BTreeSet<String>) -> Result<(), DataProblem> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !classes.contains(&name) && entry.path().is_dir() {
            return Err(DataProblem::EmptyClass { class: name, extensions: EXTENSIONS.join(" or ") });
        }
    }
    Ok(())
}

impl MediaSource for BlobCursor {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len())
    }
}
