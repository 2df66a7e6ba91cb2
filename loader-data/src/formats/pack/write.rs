//! Writes the archives of a plan, and checks them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::internal::own_files;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tar::{Builder, EntryType, Header as TarHeader};
use xxhash_rust::xxh3::Xxh3;

use super::rows;
use super::{
    PackError, PackFormat, PackPlan,
    error::failed,
    manifest::{Manifest, ShardEntry, replace},
    member::{Content, Member, unreadable},
};
use crate::{parallel, source::Blob};

/// What was packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackSummary {
    /// Number of archives.
    pub shards: usize,
    /// Number of samples in them.
    pub samples: usize,
    /// Number of archives that were there already.
    pub kept: usize,
}

impl PackPlan {
    /// Writes the archives to the folder `output`, which is created, on all cores. Archives that an earlier
    /// call has finished are kept if their checksums are right and the files that they were made from have
    /// not changed.
    ///
    /// The archives depend only on the names and contents of the files and on the options: a call that
    /// continues after a kill gives the same bytes. `progress` is called with the number of bytes that were
    /// read since its last call; if it returns false, the packing stops.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written, or if `output` has files of another origin.
    pub fn write(
        &self,
        output: impl AsRef<Path>,
        progress: impl Fn(u64) -> bool + Sync,
    ) -> Result<PackSummary, PackError> {
        let output = output.as_ref();
        let inside = |folder: &Path| match (folder.canonicalize(), self.source.canonicalize()) {
            (Ok(inner), Ok(outer)) if inner.starts_with(&outer) => {
                Err(PackError::InsideSource(output.to_owned()))
            }
            _ => Ok(()),
        };
        // Before the folder is made: in the source, it would be a folder of data.
        let absolute = std::path::absolute(output).map_err(failed(output))?;
        absolute.ancestors().find(|folder| folder.exists()).map_or(Ok(()), inside)?;
        fs::create_dir_all(output).map_err(failed(output))?;
        // A `..` may follow a folder that did not exist.
        inside(output)?;
        let _lock = lock(output)?;
        let manifest = Mutex::new(self.manifest(output)?);
        let kept = parallel::map(self.shards.len(), |shard| {
            let name = self.format.name(shard);
            let known = manifest.lock().unwrap_or_else(PoisonError::into_inner).entries.get(&name).cloned();
            if known.is_some_and(|known| is_intact(output, &known)) {
                let bytes = self.samples_of(shard).iter().flatten().map(Member::len).sum();
                return if progress(bytes) { Ok(true) } else { Err(PackError::Stopped) };
            }
            let entry = self.write_shard(shard, output, &progress)?;
            manifest.lock().unwrap_or_else(PoisonError::into_inner).add(entry)?;
            Ok(false)
        })?;
        self.remove_surplus(output)?;
        // The lines were added in the order in which the archives were finished.
        manifest.into_inner().unwrap_or_else(PoisonError::into_inner).write()?;
        Ok(PackSummary {
            shards: self.shards.len(),
            samples: self.samples.len(),
            kept: kept.into_iter().filter(|kept| *kept).count(),
        })
    }

    /// Reads the manifest of an earlier call in `output`, without archives of files that have changed since,
    /// or makes a new one.
    fn manifest(&self, output: &Path) -> Result<Manifest, PackError> {
        let mut manifest = match Manifest::read_own(output)? {
            Some(manifest) => manifest,
            None if has_files(output).map_err(failed(output))? => {
                return Err(PackError::NotOurs(output.to_owned()));
            }
            None => Manifest::new(output, self.header.clone()),
        };
        let is_same = |other: &super::manifest::Header| {
            let mut header = self.header.clone();
            // Files may have been added to the source or removed from it.
            (header.shards, header.classes) = (other.shards, other.classes.clone());
            header == *other
        };
        if !is_same(&manifest.header) {
            return Err(PackError::OtherManifest(output.join("manifest.jsonl")));
        }
        manifest.header = self.header.clone();
        // Until this call has replaced them, `check_packed` must not find old archives intact beside new
        // ones.
        let current = (0..self.shards.len()).map(|shard| (self.format.name(shard), self.source_hash(shard)));
        let current: BTreeMap<_, _> = current.collect();
        manifest.entries.retain(|name, entry| current.get(name) == Some(&entry.source));
        // Also removes a line that a kill has cut off.
        manifest.write()?;
        Ok(manifest)
    }

    /// Removes the archives after the last one, which an earlier call has made of more files. A kill may have
    /// left some that are not in the manifest.
    fn remove_surplus(&self, output: &Path) -> Result<(), PackError> {
        let surplus = surplus(output, self.format, self.shards.len())?;
        surplus.iter().try_for_each(|path| fs::remove_file(path).map_err(failed(path)))
    }

    /// Writes an archive under a temporary name, and renames it when it is whole.
    fn write_shard(
        &self,
        shard: usize,
        output: &Path,
        progress: &(impl Fn(u64) -> bool + Sync),
    ) -> Result<ShardEntry, PackError> {
        let name = self.format.name(shard);
        let (path, temporary) = (output.join(&name), output.join(format!("{name}.tmp")));
        let failed = failed(&path);
        let file = own_files::make_anew(&temporary, 0o666).map_err(&failed)?;
        let hashed = Hashed { inner: BufWriter::with_capacity(1 << 20, file), hash: Xxh3::new(), bytes: 0 };
        let samples = self.samples_of(shard);
        let after = |member: &Member| if progress(member.len()) { Ok(()) } else { Err(PackError::Stopped) };
        let Hashed { inner, hash, bytes } = match self.format {
            PackFormat::Tar => {
                let mut archive = Builder::new(hashed);
                for member in samples.iter().flatten() {
                    append(&mut archive, member, &path)?;
                    after(member)?;
                }
                archive.into_inner().map_err(&failed)?
            }
            PackFormat::Parquet => rows::write(hashed, &self.columns, samples, &path, after)?,
        };
        let file = inner.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().and_then(|()| replace(&temporary, &path)).map_err(&failed)?;
        let (xxh128, source) = (format!("{:032x}", hash.digest128()), self.source_hash(shard));
        Ok(ShardEntry { shard: name, samples: samples.len(), bytes, xxh128, source })
    }
}

fn append(archive: &mut Builder<impl Write>, member: &Member, output: &Path) -> Result<(), PackError> {
    let mut header = TarHeader::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(member.len());
    match &member.content {
        Content::Text(text) => {
            archive.append_data(&mut header, &member.name, text.as_bytes()).map_err(failed(output))
        }
        Content::File(file) => {
            let blob = Arc::new(Blob::open(file.clone()).map_err(|error| unreadable(file, error))?);
            let written = archive.append_data(&mut header, &member.name, blob.reader(0..file.len));
            written.map_err(|error| match error.downcast() {
                Ok(error) => unreadable(file, error),
                Err(error) => failed(output)(error),
            })
        }
    }
}

/// Hashes and counts what is written.
struct Hashed<W> {
    inner: W,
    hash: Xxh3,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns the archives in the folder `output` after the last of `shards` archives, whole ones and those under temporary
/// names.
fn surplus(output: &Path, format: PackFormat, shards: usize) -> Result<Vec<PathBuf>, PackError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(output).map_err(failed(output))? {
        let path = entry.map_err(failed(output))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = format.number(name.strip_suffix(".tmp").unwrap_or(name));
        if number.is_some_and(|number| number >= shards) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Checks the archives in the folder `output`. Returns the number of archives, and a sentence about each that is
/// missing, damaged, or left over from a call that has packed more files.
///
/// # Errors
/// Returns an error if there is no manifest, or it cannot be read.
pub fn check_packed(output: impl AsRef<Path>) -> Result<(usize, Vec<String>), PackError> {
    let output = output.as_ref();
    let manifest = Manifest::read(output)?.ok_or_else(|| PackError::NotOurs(output.to_owned()))?;
    let format = PackFormat::of_manifest(&manifest.header.format);
    let format = format.ok_or_else(|| PackError::OtherManifest(output.join("manifest.jsonl")))?;
    let names: Vec<_> = (0..manifest.header.shards).map(|shard| format.name(shard)).collect();
    let found = parallel::map(names.len(), |shard| {
        let path = output.join(&names[shard]);
        Ok::<_, PackError>(match manifest.entries.get(&names[shard]) {
            None => Some(format!("`{}` is not finished", path.display())),
            Some(_) if !path.exists() => Some(format!("`{}` is missing", path.display())),
            Some(entry) if !is_intact(output, entry) => Some(format!(
                "`{}` is damaged: it does not have the checksum of the manifest",
                path.display()
            )),
            Some(_) => None,
        })
    })?;
    let mut problems: Vec<_> = found.into_iter().flatten().collect();
    let surplus = surplus(output, format, names.len())?;
    // Readers of a folder take no file with a temporary name.
    let surplus: Vec<_> =
        surplus.iter().filter(|path| path.extension().is_none_or(|end| end != "tmp")).collect();
    let left_over = |path: &&PathBuf| {
        format!("`{}` is left over from an earlier call; remove it, or pack the files again", path.display())
    };
    problems.extend(surplus.iter().map(left_over));
    Ok((names.len() + surplus.len(), problems))
}

/// True if the file has the size and the checksum of `entry`.
fn is_intact(folder: &Path, entry: &ShardEntry) -> bool {
    let path = folder.join(&entry.shard);
    let hash = || -> io::Result<String> {
        let mut file = File::open(&path)?;
        if file.metadata()?.len() != entry.bytes {
            return Ok(String::new());
        }
        let mut hashed = Hashed { inner: io::sink(), hash: Xxh3::new(), bytes: 0 };
        io::copy(&mut file, &mut hashed)?;
        Ok(format!("{:032x}", hashed.hash.digest128()))
    };
    hash().is_ok_and(|hash| hash == entry.xxh128)
}

/// True if the folder has files. A kill may have left the manifest under its temporary name.
fn has_files(folder: &Path) -> io::Result<bool> {
    let mut names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name()));
    names.try_fold(false, |found, name| Ok(found || name? != "manifest.tmp"))
}

/// Locks the folder until the file is dropped.
fn lock(folder: &Path) -> Result<File, PackError> {
    let file = File::open(folder).map_err(failed(folder))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(PackError::Locked(folder.to_owned())),
        Err(error) => Err(failed(folder)(error.into())),
    }
}
