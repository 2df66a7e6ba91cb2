//! The manifest: a file of JSON lines that says what the archives of a folder were made from.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use loader_core::internal::{
    own_files::{self, NotOwn},
    whole_file,
};
use serde::{Deserialize, Serialize};

use super::PackError;

/// Name of the manifest in the folder of the archives.
const NAME: &str = "manifest.jsonl";

/// Maximum number of archives. It keeps a damaged manifest from taking all memory.
pub(super) const MAX_SHARDS: usize = 1_000_000;

/// Maximum number of bytes of a manifest.
const MAX_BYTES: u64 = 1 << 30;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: String,
    pub(super) shard_bytes: u64,
    pub(super) shuffle: Option<u64>,
    /// Number of archives when all are finished. It may differ after files were added to the source.
    pub(super) shards: usize,
    /// The names of the classes, by their numbers in the fields `cls`.
    pub(super) classes: Vec<String>,
}

/// A finished archive: a line of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardEntry {
    /// Name of the file.
    pub(super) shard: String,
    /// Number of samples.
    pub(super) samples: usize,
    /// Size of the file in bytes.
    pub(super) bytes: u64,
    /// XXH3-128 of the file in hexadecimal, as `xxhsum -H2` prints it.
    pub(super) xxh128: String,
    /// Hash of the paths in the source, sizes and modification times of the files in the archive.
    pub(super) source: String,
}

/// The manifest of a folder.
#[derive(Debug)]
pub(super) struct Manifest {
    path: PathBuf,
    pub(super) header: Header,
    pub(super) entries: BTreeMap<String, ShardEntry>,
}

impl Manifest {
    pub(super) fn new(folder: &Path, header: Header) -> Self {
        Self { path: folder.join(NAME), header, entries: BTreeMap::new() }
    }

    /// As [`read`](Self::read), but refuses a manifest that other users can change: packing would keep the archives
    /// that they name, and append to the file.
    pub(super) fn read_own(folder: &Path) -> Result<Option<Self>, PackError> {
        let path = folder.join(NAME);
        match own_files::open(&path, OpenOptions::new().read(true), None) {
            Err(error) if NotOwn::is_in(&error) => Err(PackError::Output { path, error }),
            _ => Self::read(folder),
        }
    }

    /// Reads the manifest in `folder`; `None` if there is none. Ignores lines that a kill or a full disk has
    /// cut off: their archives are unfinished.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, PackError> {
        let path = folder.join(NAME);
        let text = match whole_file::read_text(&path, MAX_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(PackError::Output { path, error }),
        };
        let mut lines = text.lines();
        let header = lines.next().and_then(|line| serde_json::from_str::<Header>(line).ok());
        let Some(header) = header.filter(|header| header.shards <= MAX_SHARDS) else {
            return Err(PackError::OtherManifest(path));
        };
        let entries = lines.filter_map(|line| serde_json::from_str::<ShardEntry>(line).ok());
        let entries = entries.map(|entry| (entry.shard.clone(), entry)).collect();
        Ok(Some(Self { path, header, entries }))
    }

    /// Writes the whole manifest. Readers see the old file or the whole new one, also after a power failure.
    pub(super) fn write(&self) -> Result<(), PackError> {
        let mut text = line(&self.header);
        self.entries.values().for_each(|entry| text.push_str(&line(entry)));
        let temporary = self.path.with_extension("tmp");
        let written = own_files::make_anew(&temporary, 0o644).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // Without it, the new name may be on the disk before the content.
            file.sync_all()
        });
        written
            .and_then(|()| replace(&temporary, &self.path))
            .map_err(|error| PackError::Output { path: self.path.clone(), error })
    }

    /// Adds a finished archive, at the end of the file, and waits until the disk has it.
    pub(super) fn add(&mut self, entry: ShardEntry) -> Result<(), PackError> {
        let append = |mut file: File| file.write_all(line(&entry).as_bytes()).and_then(|()| file.sync_all());
        own_files::open(&self.path, OpenOptions::new().append(true), None)
            .and_then(append)
            .map_err(|error| PackError::Output { path: self.path.clone(), error })?;
        self.entries.insert(entry.shard.clone(), entry);
        Ok(())
    }
}

/// Gives `temporary`, which the disk has, the name `path`. Returns when the disk has the name too.
pub(super) fn replace(temporary: &Path, path: &Path) -> io::Result<()> {
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder)?.sync_all() {
        // Some network file systems cannot do this for a folder.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}

fn line(value: &impl Serialize) -> String {
    // Serialising cannot fail: the values consist of text and numbers.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
