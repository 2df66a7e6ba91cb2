//! The file of a stored index.
//!
//! It consists of 8 header words and the words of the index, each of 8 bytes in the byte order of the machine
//! that wrote it. A machine with another byte order finds another magic number and makes an index of its own.

use std::{
    env,
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use loader_core::internal::own_files::{self, NotOwn};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{IndexPlace, IndexStatus, StoredIndex};
use crate::source::{DataFile, Location};

/// Tells what the words of an index mean. A changed meaning needs another kind.
pub(crate) type IndexKind = [u8; 8];

const MAGIC: IndexKind = *b"LOADRIDX";
const FORMAT: u64 = 1;
const HEADER_WORDS: usize = 8;

/// Data files with fewer bytes get no index in the user's cache folder.
const MIN_CACHED: u64 = 1 << 20;

/// Returns the stored index of `file`, or `None` if there is none that fits its content.
pub(crate) fn load(place: &IndexPlace, kind: IndexKind, file: &DataFile) -> Option<Vec<u64>> {
    read(&path_of(place, kind, file)?, kind, file).ok()
}

/// Describes the stored index of `file`. `status_of` returns the status of its words, which were read whole.
pub(crate) fn check(
    place: &IndexPlace,
    kind: IndexKind,
    file: &DataFile,
    status_of: impl Fn(&[u64]) -> IndexStatus,
) -> StoredIndex {
    let path = path_of(place, kind, file);
    let status = match path.as_ref().map(|path| read(path, kind, file)) {
        None => IndexStatus::NotStored,
        Some(Ok(words)) => status_of(&words),
        Some(Err(status)) => status,
    };
    StoredIndex { file: file.location.shown().into_owned(), path, status }
}

/// Stores the index of `file`. Readers see the old file or the whole new one. An error is ignored: the index
/// is then made again next time.
pub(crate) fn store(place: &IndexPlace, kind: IndexKind, file: &DataFile, words: &[u64]) {
    // Two threads of one process may store the index of one file; Relaxed: only the values must differ.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let Some(path) = path_of(place, kind, file) else { return };
    let number = WRITTEN.fetch_add(1, Relaxed);
    // The name ends with `.index` so that a pattern for data files does not list a file that a kill has left.
    let temporary = path.with_extension(format!("{}-{number}.index", process::id()));
    let written = write(&temporary, &identity(kind, file), words);
    if written.and_then(|()| fs::rename(&temporary, &path)).is_err() {
        // If it cannot be removed either, a later index of this name replaces it.
        fs::remove_file(&temporary).ok();
    }
}

/// Returns the path of the index, or `None` if none is stored.
fn path_of(place: &IndexPlace, kind: IndexKind, file: &DataFile) -> Option<PathBuf> {
    let folder = match place {
        IndexPlace::None => return None,
        IndexPlace::Beside => {
            let Location::Path(path) = &file.location else { return None };
            return Some(appended(path.clone()));
        }
        IndexPlace::Cache if file.len < MIN_CACHED => return None,
        IndexPlace::Cache => cache_folder()?.join("loader/index"),
        IndexPlace::Folder(folder) => folder.clone(),
    };
    let name = format!("{:032x}-{}", location_hash(file), String::from_utf8_lossy(&kind));
    Some(folder.join(appended(name.into())))
}

fn appended(mut name: OsString) -> PathBuf {
    name.push(".index");
    name.into()
}

fn cache_folder() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

fn location_hash(file: &DataFile) -> u128 {
    match &file.location {
        Location::Path(path) => {
            let absolute = std::path::absolute(path).map_or_else(|_| path.clone(), PathBuf::into_os_string);
            xxh3_128(absolute.as_encoded_bytes())
        }
        Location::Url(url) => xxh3_128(url.as_bytes()),
    }
}

/// Returns the header words that an index of `file` must have.
fn identity(kind: IndexKind, file: &DataFile) -> [u64; 5] {
    [u64::from_ne_bytes(MAGIC), FORMAT, u64::from_ne_bytes(kind), file.len, xxh3_64(file.version.as_bytes())]
}

/// Returns the words of the index of `file` at `path`, or why it is not used.
fn read(path: &Path, kind: IndexKind, file: &DataFile) -> Result<Vec<u64>, IndexStatus> {
    let identity = identity(kind, file);
    // Whoever owns the data can change the samples anyway.
    let owner = match &file.location {
        Location::Path(path) => fs::metadata(path).ok().map(|found| found.uid()),
        Location::Url(_) => None,
    };
    let (header, words) = read_words(path, owner).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => IndexStatus::Missing,
        _ if NotOwn::is_in(&error) => IndexStatus::Foreign,
        _ => IndexStatus::Damaged,
    })?;
    if header[0] != identity[0] || header[6] != xxh3_64(bytemuck::cast_slice(&words)) {
        return Err(IndexStatus::Damaged);
    }
    if header[..5] == identity { Ok(words) } else { Err(IndexStatus::Stale) }
}

/// Reads the header and the words of an index.
///
/// # Errors
/// Returns an error if the file cannot be read, or the header is damaged or does not fit the size of the
/// file.
fn read_words(path: &Path, owner: Option<u32>) -> io::Result<([u64; HEADER_WORDS], Vec<u64>)> {
    let mut file = own_files::open(path, OpenOptions::new().read(true), owner)?;
    let len = file.metadata()?.len();
    let mut header = [0_u64; HEADER_WORDS];
    file.read_exact(bytemuck::cast_slice_mut(&mut header))?;
    let [.., count, _, header_hash] = header;
    let expected_len = count.checked_add(HEADER_WORDS as u64).and_then(|words| words.checked_mul(8));
    if header_hash != xxh3_64(bytemuck::cast_slice(&header[..7])) || expected_len != Some(len) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut words: Vec<u64> = Vec::new();
    words.try_reserve_exact(count as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
    words.resize(count as usize, 0);
    file.read_exact(bytemuck::cast_slice_mut(&mut words))?;
    Ok((header, words))
}

fn write(path: &Path, identity: &[u64; 5], words: &[u64]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut header = [0_u64; HEADER_WORDS];
    header[..5].copy_from_slice(identity);
    header[5] = words.len() as u64;
    header[6] = xxh3_64(bytemuck::cast_slice(words));
    header[7] = xxh3_64(bytemuck::cast_slice(&header[..7]));
    let mut file = own_files::make_anew(path, 0o644)?;
    file.write_all(bytemuck::cast_slice(&header))?;
    file.write_all(bytemuck::cast_slice(words))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const KIND: IndexKind = *b"a-test-1";

    fn data_file(folder: &Path) -> DataFile {
        let location = Location::from(folder.join("data.bin"));
        DataFile { location, len: 1000, version: "modified at 1".to_owned(), partition: Vec::new() }
    }

    #[test]
    fn an_index_is_found_only_for_its_file_content_and_kind() {
        let folder = tempfile::tempdir().unwrap();
        let file = data_file(folder.path());
        for place in [IndexPlace::Beside, IndexPlace::Folder(folder.path().join("new/folder"))] {
            assert_eq!(load(&place, KIND, &file), None);
            store(&place, KIND, &file, &[1, 2, 3]);
            assert_eq!(load(&place, KIND, &file), Some(vec![1, 2, 3]));
            assert_eq!(load(&place, *b"a-test-2", &file), None, "another kind");
            assert_eq!(load(&place, KIND, &DataFile { len: 1001, ..file.clone() }), None, "another size");
            let version = "modified at 2".to_owned();
            assert_eq!(load(&place, KIND, &DataFile { version, ..file.clone() }), None, "another time");
            let location = Location::from(folder.path().join("other.bin"));
            assert_eq!(load(&place, KIND, &DataFile { location, ..file.clone() }), None, "another name");
            store(&place, KIND, &file, &[]);
            assert_eq!(load(&place, KIND, &file), Some(vec![]), "replaced");
        }
        assert!(folder.path().join("data.bin.index").is_file());
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "temporary files are left: {left:?}");
    }

    #[test]
    fn the_status_says_why_an_index_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = data_file(folder.path());
        let status_of =
            |words: &[u64]| if words.len() == 3 { IndexStatus::Current } else { IndexStatus::Damaged };
        let status = |file: &DataFile| check(&IndexPlace::Beside, KIND, file, status_of).status;
        assert_eq!(status(&file), IndexStatus::Missing);
        store(&IndexPlace::Beside, KIND, &file, &[1, 2, 3]);
        assert_eq!(status(&file), IndexStatus::Current);
        assert_eq!(status(&DataFile { len: 1001, ..file.clone() }), IndexStatus::Stale);
        store(&IndexPlace::Beside, KIND, &file, &[1, 2]);
        assert_eq!(status(&file), IndexStatus::Damaged, "does not fit");
        fs::write(path_of(&IndexPlace::Beside, KIND, &file).unwrap(), [7; 100]).unwrap();
        assert_eq!(status(&file), IndexStatus::Damaged);
        assert_eq!(check(&IndexPlace::None, KIND, &file, status_of).status, IndexStatus::NotStored);
    }

    #[test]
    fn a_damaged_index_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = data_file(folder.path());
        store(&IndexPlace::Beside, KIND, &file, &[1, 2, 3]);
        let path = path_of(&IndexPlace::Beside, KIND, &file).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), 8 * (HEADER_WORDS + 3));
        let found = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            load(&IndexPlace::Beside, KIND, &file)
        };
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1 << (byte % 8);
            assert_eq!(found(&damaged), None, "byte {byte}");
            assert_eq!(found(&whole[..byte]), None, "cut after {byte} bytes");
        }
        assert_eq!(found(&[whole.as_slice(), &[0]].concat()), None, "a byte too many");
        assert!(found(&whole).is_some());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = data_file(folder.path());
        // A file cannot be a folder, also for root.
        fs::write(folder.path().join("file"), "").unwrap();
        let inside_a_file = IndexPlace::Folder(folder.path().join("file/inside"));
        store(&inside_a_file, KIND, &file, &[1]);
        assert_eq!(load(&inside_a_file, KIND, &file), None);
        // A folder or a named pipe in place of the index.
        fs::create_dir(folder.path().join("data.bin.index")).unwrap();
        store(&IndexPlace::Beside, KIND, &file, &[1]);
        assert_eq!(load(&IndexPlace::Beside, KIND, &file), None);
        fs::remove_dir(folder.path().join("data.bin.index")).unwrap();
        let pipe = folder.path().join("data.bin.index");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(load(&IndexPlace::Beside, KIND, &file), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file is left");
    }

    #[test]
    fn an_index_that_other_users_can_change_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = data_file(folder.path());
        let data = folder.path().join("data.bin");
        fs::write(&data, "").unwrap();
        let path = path_of(&IndexPlace::Beside, KIND, &file).unwrap();
        let status = || check(&IndexPlace::Beside, KIND, &file, |_| IndexStatus::Current).status;
        let store = || store(&IndexPlace::Beside, KIND, &file, &[1]);
        store();
        let set_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o022, 0);
        set_mode(0o664);
        assert_eq!((status(), load(&IndexPlace::Beside, KIND, &file)), (IndexStatus::Foreign, None));
        store();
        assert_eq!(status(), IndexStatus::Current, "it was replaced");
        if nix::unistd::geteuid().is_root() {
            chown(&path, Some(4321), None).unwrap();
            assert_eq!(status(), IndexStatus::Foreign);
            chown(&data, Some(4321), None).unwrap();
            assert_eq!(status(), IndexStatus::Current, "the data file has the same owner");
            chown(&data, Some(0), None).unwrap();
        } else {
            println!("SKIPPED: an index of another user: only root can make one");
        }
        // Links in place of the index, and of the file in which it is written.
        let victim = folder.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert_eq!(status(), IndexStatus::Foreign);
        for number in 0..100 {
            symlink(&victim, path.with_extension(format!("{}-{number}.index", process::id()))).unwrap();
        }
        store();
        assert_eq!(status(), IndexStatus::Current);
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
    }

    #[test]
    fn small_files_have_no_index_in_the_cache() {
        assert_eq!(path_of(&IndexPlace::Cache, KIND, &data_file(Path::new("/x"))), None);
        assert_eq!(path_of(&IndexPlace::None, KIND, &data_file(Path::new("/x"))), None);
    }
}
