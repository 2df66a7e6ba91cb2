//! The files of a cache in one process.

use std::{
    fmt::Display,
    fs::{self, File, OpenOptions},
    io::{self, Seek, Write},
    os::unix::fs::{DirBuilderExt, FileExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use bytemuck::{cast_slice, cast_slice_mut};
use loader_ipc::own_files;
use nix::sys::resource::{Resource, getrlimit};
use xxhash_rust::xxh3::Xxh3;

use super::{
    CacheError, CachePart,
    identity::{Header, Identity, read_all},
};
use crate::text::print::print_once;

/// Size of an entry in bytes. A page holds a whole number of them.
pub(super) const ENTRY: usize = size_of::<[u64; 4]>();

/// Number of entries that a search reads together.
const BLOCK: usize = 4096;

/// An entry of the index: offset, length, and the two halves of the checksum. All words of an absent one are
/// 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry([u64; 4]);

/// Warns that this process does not add samples to the cache.
pub(super) fn warn_not_filled(folder: &Path, problem: impl Display) {
    print_once(format!("the cache in {} is not filled: {problem}", folder.display()));
}

#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    index: File,
    /// Opened in append mode.
    samples: File,
    /// The random number in the header.
    id: u64,
    /// Offset of the first entry.
    entries: u64,
    /// Maximum size of the file of samples.
    max_bytes: u64,
    /// Maximum size of a file that the kernel lets this process write (`RLIMIT_FSIZE`).
    max_file: u64,
    /// False once a write has failed. Locked during a write, because the threads of a process share the
    /// position in `samples`.
    is_writable: Mutex<bool>,
}

impl Store {
    /// Opens the cache in `folder`, or makes an empty one.
    pub(super) fn open(folder: &Path, identity: &Identity, max_bytes: u64) -> Result<Self, CacheError> {
        let failed = |source| CacheError::System { folder: folder.to_owned(), source };
        let differs =
            |(part, cached, wanted)| CacheError::Differs { folder: folder.to_owned(), part, cached, wanted };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        own_files::check_folder(folder).map_err(failed)?;
        let open = |name, options: &mut OpenOptions| {
            own_files::open(&folder.join(name), options.read(true), None).map_err(failed)
        };
        create(folder, identity).map_err(failed)?;
        let index = open("index", OpenOptions::new().write(true))?;
        let (id, entries) = match Header::read(&index).map_err(failed)? {
            Header::Valid(cached, id, entries) => match identity.difference(&cached) {
                Some(difference) => return Err(differs(difference)),
                None => (id, entries),
            },
            Header::OtherFormat(format) => {
                return Err(differs((CachePart::Format, format.to_string(), Header::FORMAT.to_string())));
            }
            Header::Damaged => return Err(CacheError::NotACache { folder: folder.to_owned() }),
        };
        let samples = open("samples", OpenOptions::new().append(true).create(true))?;
        let (max_file, _) = getrlimit(Resource::RLIMIT_FSIZE).map_err(|error| failed(error.into()))?;
        let (folder, is_writable) = (folder.to_owned(), Mutex::new(true));
        Ok(Self { folder, index, samples, id, entries, max_bytes, max_file, is_writable })
    }

    /// Reads sample `number`. Returns its entry, and its bytes if they are complete.
    pub(super) fn read(&self, number: usize) -> (Entry, Option<Vec<u8>>) {
        // The entry of a sample that the disk cannot read is replaced when the sample is computed.
        let entry = self.entry(number).unwrap_or_default();
        (entry, self.bytes(number, entry).ok().flatten())
    }

    /// Returns the first complete sample of `len` samples, from sample `from` on and then from the beginning on.
    pub(super) fn first_from(&self, from: usize, len: usize) -> io::Result<Option<(usize, Vec<u8>)>> {
        // Most caches are empty or full when a process opens them.
        if self.samples.metadata()?.len() == 0 {
            return Ok(None);
        }
        // The index ends with the last entry that was written.
        let entries = self.index.metadata()?.len().saturating_sub(self.entries).div_ceil(ENTRY as u64);
        let end = len.min(entries.try_into().unwrap_or(len));
        let mut block = vec![Entry::default().0; BLOCK];
        for mut range in [from.min(end)..end, 0..from.min(end)] {
            while !range.is_empty() {
                let numbers = range.start..range.end.min(range.start + BLOCK);
                block.fill(Entry::default().0);
                read_all(
                    &self.index,
                    cast_slice_mut(&mut block[..numbers.len()]),
                    self.entry_at(range.start),
                )?;
                for (number, &entry) in numbers.clone().zip(&block) {
                    if let Some(bytes) = self.bytes(number, Entry(entry))? {
                        return Ok(Some((number, bytes)));
                    }
                }
                range.start = numbers.end;
            }
        }
        Ok(None)
    }

    fn entry(&self, number: usize) -> io::Result<Entry> {
        let mut entry = Entry::default();
        // The index ends with the last entry that was written.
        read_all(&self.index, cast_slice_mut(&mut entry.0), self.entry_at(number))?;
        Ok(entry)
    }

    fn bytes(&self, number: usize, entry: Entry) -> io::Result<Option<Vec<u8>>> {
        if entry == Entry::default() {
            return Ok(None);
        }
        let [offset, len, ..] = entry.0;
        // Checked before the allocation: a torn entry may have any length.
        let available = self.samples.metadata()?.len();
        if offset.checked_add(len).is_none_or(|end| end > available) {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        let is_complete =
            read_all(&self.samples, &mut bytes, offset)? && entry == self.new_entry(number, offset, &bytes);
        Ok(is_complete.then_some(bytes))
    }

    /// Stores sample `number`, whose entry was `seen`. If that fails, this process does not try again, and
    /// warns.
    pub(super) fn write(&self, number: usize, seen: Entry, bytes: &[u8]) {
        let mut is_writable = self.is_writable.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_writable {
            return;
        }
        if let Err(error) = self.append(number, seen, bytes) {
            *is_writable = false;
            let problem = format_args!(
                "a sample cannot be written: {error}; samples that are not in the cache are computed"
            );
            warn_not_filled(&self.folder, problem);
        }
    }

    fn append(&self, number: usize, seen: Entry, bytes: &[u8]) -> io::Result<()> {
        if self.entry(number)? != seen {
            // Another process has stored the sample in the meantime.
            return Ok(());
        }
        let len = bytes.len() as u64;
        let end = self.samples.metadata()?.len().saturating_add(len);
        if end > self.max_bytes {
            return Err(io::Error::other(format!(
                "the cache would exceed its `max_bytes` of {}",
                self.max_bytes
            )));
        }
        // A write beyond the limit would end the process with SIGXFSZ.
        if end.max(self.entry_at(number) + ENTRY as u64) > self.max_file {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // One call, so that no other process writes in between. The bytes of an incomplete write have no
        // entry.
        if (&self.samples).write(bytes)? < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let offset = (&self.samples).stream_position()? - len;
        self.index.write_all_at(cast_slice(&self.new_entry(number, offset, bytes).0), self.entry_at(number))
    }

    fn new_entry(&self, number: usize, offset: u64, bytes: &[u8]) -> Entry {
        let len = bytes.len() as u64;
        let mut hash = Xxh3::new();
        hash.update(cast_slice(&[self.id, number as u64, offset, len]));
        hash.update(bytes);
        let sum = hash.digest128();
        Entry([offset, len, sum as u64, (sum >> 64) as u64])
    }

    /// Returns the offset of the entry of sample `number` in `index`.
    fn entry_at(&self, number: usize) -> u64 {
        self.entries + (number * ENTRY) as u64
    }
}

/// Makes an index without entries, unless there is one.
fn create(folder: &Path, identity: &Identity) -> io::Result<()> {
    if folder.join("index").symlink_metadata().is_ok() {
        return Ok(());
    }
    let mut file = tempfile::Builder::new().prefix("index.").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(&identity.header().map_err(io::Error::other)?)?;
    // After a power cut, a file with this name has its content.
    file.as_file().sync_all()?;
    match file.persist_noclobber(folder.join("index")) {
        Err(refused) if refused.error.kind() != io::ErrorKind::AlreadyExists => Err(refused.error),
        _ => Ok(()),
    }
}
