//! The files of a dataset: listed once in main, opened lazily in the workers.

use std::{
    cell::RefCell,
    collections::{HashSet, VecDeque},
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use loader_core::SharedVec;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::BlobReader;
use super::{
    Blob, Location, StoreOptions, found,
    local_pattern::{Folders, LocalPattern, Match},
    patterns,
    remote::Remote,
    whole,
};
use crate::error::{DataError, DataProblem, Result};

/// Maximum number of files that one worker keeps open.
const MAX_OPEN: usize = 64;

/// Max step of the clock from which local file systems take the times of files. Two writes in one step leave
/// the same time.
const MAX_CLOCK_STEP: Duration = Duration::from_millis(10);

thread_local! {
    /// The errors of the files that [`without_bad`] leaves out; `None` outside of it.
    static LEFT_OUT: RefCell<Option<Vec<DataError>>> = const { RefCell::new(None) };
}

/// Calls `list`. Meanwhile, a folder or a pattern leaves out each file that is not regular or cannot be reached. Returns the
/// errors of these files too.
#[cfg(feature = "formats")]
pub(crate) fn without_bad<T>(list: impl FnOnce() -> T) -> (T, Vec<DataError>) {
    LEFT_OUT.set(Some(Vec::new()));
    (list(), LEFT_OUT.take().unwrap_or_default())
}

/// Leaves a file out in [`without_bad`], and returns its error elsewhere.
fn leave_out(error: DataError) -> Result<()> {
    LEFT_OUT.with_borrow_mut(|left_out| match left_out {
        Some(left_out) => {
            left_out.push(error);
            Ok(())
        }
        None => Err(error),
    })
}

/// A file of a dataset, as it was when the dataset was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataFile {
    pub(crate) location: Location,
    /// Number of bytes.
    pub(crate) len: u64,
    /// Changes when the content changes: the time of the last modification, or the ETag of an object.
    pub(crate) version: String,
    /// The columns that the names of the folders give: each with its value, or `None` for null.
    pub(crate) partition: Vec<(String, Option<String>)>,
}

/// The files of a dataset. The list is in shared memory, once for all workers. A worker opens a file when it
/// first reads it, and keeps the files open that it used last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Files {
    list: SharedVec<DataFile>,
    /// Number of bytes of all files.
    bytes: u64,
    /// Hash of the names, sizes and partitions, for the fingerprint.
    listing: u64,
    pub(super) store: StoreOptions,
    /// The servers, from the first file that lies on one.
    #[serde(skip)]
    pub(super) remote: Mutex<Option<Arc<Remote>>>,
    #[serde(skip)]
    open: Mutex<VecDeque<(usize, Arc<Blob>)>>,
}

impl Files {
    /// Lists files as [`list_with`](Self::list_with) does, with the default options for servers.
    #[cfg(test)]
    pub(crate) fn list<P: AsRef<Path>>(
        patterns: impl IntoIterator<Item = P>,
        extensions: &[&str],
    ) -> Result<Self> {
        Self::list_with(patterns, extensions, &StoreOptions::default())
    }

    /// Lists the files that `patterns` stand for, in the order of the patterns. A pattern is a file, a folder
    /// (all files in it and in its sub-folders whose names end with one of `extensions`, ordered by path, numbers in it by
    /// their value), or a name with braces and wildcards. It is a path or a URL; the URL of a folder ends with
    /// `/`.
    ///
    /// # Errors
    /// Returns an error if a pattern stands for no file, if a file is not a regular file or cannot be read, or if the files
    /// are not all of one table, or not all of it.
    pub(crate) fn list_with<P: AsRef<Path>>(
        patterns: impl IntoIterator<Item = P>,
        extensions: &[&str],
        store: &StoreOptions,
    ) -> Result<Self> {
        let patterns: Vec<P> = patterns.into_iter().collect();
        Self::list_given(&patterns, &[] as &[P], extensions, store)
    }

    /// As [`list_with`](Self::list_with), for patterns that stand for files of `given`, the patterns that the user has
    /// given. The name of a folder of a partition, such as `year=2024`, is a value of a column if `given` does not name
    /// it. If `given` is empty, folders give no columns: they are classes, for example.
    ///
    /// # Errors
    /// As for [`list_with`](Self::list_with). Also returns an error if a column of a folder would be missing.
    pub(crate) fn list_given<P: AsRef<Path>, G: AsRef<Path>>(
        patterns: &[P],
        given: &[G],
        extensions: &[&str],
        store: &StoreOptions,
    ) -> Result<Self> {
        let mut files = Vec::new();
        let remote = Mutex::default();
        for pattern in patterns {
            let location = Location::new(pattern);
            match &location {
                Location::Path(path) => list_paths(Path::new(path), extensions, &mut files)?,
                Location::Url(url) => connect(&remote, store)
                    .map_err(|problem| DataError::new(&location, problem))?
                    .list(url, extensions, &mut files)?,
            }
        }
        if !given.is_empty() {
            found::find_partitions(&mut files, given, extensions)?;
        }
        let (mut listing, mut bytes) = (Xxh3::new(), 0_u64);
        for file in &files {
            bytes = bytes.saturating_add(file.len);
            listing.update(file.location.file_name().as_bytes());
            listing.update(&file.len.to_le_bytes());
            // The files of two partitions may have the same names and sizes.
            listing.update(found::partition_of(&file.location).as_bytes());
            listing.update(&[0xff]);
            for (column, value) in &file.partition {
                // No text has these bytes.
                listing.update(column.as_bytes());
                listing.update(&[if value.is_some() { 0xff } else { 0xfe }]);
                listing.update(value.as_deref().unwrap_or_default().as_bytes());
                listing.update(&[0xff]);
            }
        }
        Ok(Self {
            list: shared(files)?,
            bytes,
            listing: listing.digest(),
            store: store.clone(),
            remote,
            open: Mutex::default(),
        })
    }

    /// Lists the file at `location`. Returns `None` if there is no such file. A path is not a pattern here.
    ///
    /// # Errors
    /// As for [`list_with`](Self::list_with).
    pub(crate) fn find(location: &Location, store: &StoreOptions) -> Result<Option<Self>> {
        // `list_with` takes a path that does not exist for a pattern.
        if let Location::Path(path) = location
            && let Err(error) = fs::metadata(path)
        {
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(None),
                _ => Err(DataError::new(location, error)),
            };
        }
        match Self::list_with([location.as_path()], &[], store) {
            Ok(files) => Ok(Some(files)),
            Err(DataError { problem: DataProblem::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the files `numbers`, in this order.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    #[cfg(all(feature = "cloud", feature = "image-folder"))]
    pub(crate) fn ordered(self, numbers: &[usize]) -> Result<Self> {
        let list = shared(numbers.iter().map(|&number| self.get(number)).collect())?;
        Ok(Self { list, ..self })
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns file `index`.
    ///
    /// # Panics
    /// Panics if there is no such file.
    pub(crate) fn get(&self, index: usize) -> DataFile {
        self.list
            .get(index)
            .expect("the index of a file is below the number of files, and `list` has encoded it")
    }

    /// Opens file `index`, or returns it if it is still open.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or has changed since it was listed.
    pub(crate) fn open(&self, index: usize) -> Result<Arc<Blob>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = open.iter().position(|(file, _)| *file == index) {
            let found = open.remove(position).expect("`position` has found it");
            let blob = Arc::clone(&found.1);
            open.push_front(found);
            return Ok(blob);
        }
        let blob = Arc::new(self.open_new(self.get(index))?);
        open.truncate(MAX_OPEN - 1);
        open.push_front((index, Arc::clone(&blob)));
        Ok(blob)
    }

    /// True if file `index` lies on a server.
    pub(crate) fn is_remote(&self, index: usize) -> bool {
        matches!(self.get(index).location, Location::Url(_))
    }

    /// Starts to read the beginning of a part of file `index`, if the file lies on a server. `reader` returns a reader
    /// of the part. Returns `None` for a local file, and for one that cannot be opened now: opening it later says why.
    pub(crate) fn begin(
        &self,
        index: usize,
        reader: impl FnOnce(&Arc<Blob>) -> BlobReader,
    ) -> Option<BlobReader> {
        if !self.is_remote(index) {
            return None;
        }
        let mut reader = reader(&self.open(index).ok()?);
        reader.begin();
        Some(reader)
    }

    pub(super) fn open_new(&self, file: DataFile) -> Result<Blob> {
        match &file.location {
            Location::Path(_) => Blob::open(file),
            Location::Url(url) => {
                let remote = connect(&self.remote, &self.store)
                    .map_err(|problem| DataError::new(&file.location, problem))?;
                Ok(Blob::remote(remote.open(file.clone(), url)?, file))
            }
        }
    }

    /// Reads the whole file `index`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has more than `max` bytes, which is the value of `option`.
    #[cfg(any(feature = "audio", all(feature = "cloud", feature = "image-folder")))]
    pub(crate) fn read(&self, index: usize, max: u64, option: &'static str) -> Result<Vec<u8>> {
        let blob = self.open(index)?;
        blob.file().check_len(max, option)?;
        blob.read(0..blob.len())
    }

    /// Text for the fingerprint: the number of files, their size, and a hash of their names (without folders except those
    /// of partitions), sizes and columns of partitions. The contents are not part of it.
    ///
    /// Alternative considered: a hash of each file, so that the error of a state names the file that is another one.
    /// Rejected because a fingerprint has at most 200 bytes, and because only the dataset knows the names, so each
    /// dataset that is made of others would have to pass the question on.
    pub(crate) fn fingerprint(&self) -> String {
        let (count, bytes, hash) = (self.len(), self.bytes, self.listing);
        let files = if count == 1 { "file" } else { "files" };
        format!("{count} {files} of {bytes} bytes #{hash:016x}")
    }
}

impl Clone for Files {
    fn clone(&self) -> Self {
        Self {
            list: self.list.clone(),
            bytes: self.bytes,
            listing: self.listing,
            store: self.store.clone(),
            remote: Mutex::new(self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            open: Mutex::default(),
        }
    }
}

fn shared(files: Vec<DataFile>) -> Result<SharedVec<DataFile>> {
    SharedVec::new(files)
        .map_err(|error| DataError::new("the list of files", DataProblem::Memory(error.to_string())))
}

/// Returns the servers, which are prepared at the first call.
pub(super) fn connect(
    remote: &Mutex<Option<Arc<Remote>>>,
    store: &StoreOptions,
) -> Result<Arc<Remote>, DataProblem> {
    let mut remote = remote.lock().unwrap_or_else(PoisonError::into_inner);
    if remote.is_none() {
        *remote = Some(Arc::new(Remote::new(store)?));
    }
    Ok(Arc::clone(remote.as_ref().expect("it was just prepared")))
}

fn list_paths(path: &Path, extensions: &[&str], files: &mut Vec<DataFile>) -> Result<()> {
    // A name that exists is not a pattern, whatever characters it has. One that is not Unicode is not either.
    let (false, Some(text)) = (path.exists(), path.to_str()) else {
        return list_path(path, None, extensions, files);
    };
    let invalid = |problem| DataError::new(Location::from(path.to_owned()), problem);
    for name in patterns::expand_braces(text).map_err(invalid)? {
        if !patterns::is_glob(&name) {
            list_path(Path::new(&name), None, extensions, files)?;
            continue;
        }
        let before = files.len();
        let pattern = LocalPattern::new(&name, found::hidden_names(extensions)).map_err(invalid)?;
        for Match { path, folders } in pattern.matches(Path::new(""))? {
            // An index that is stored beside its data file.
            let is_left_out =
                path.file_name().is_some_and(|file| found::is_left_out(&name, &file.to_string_lossy()));
            if path.extension().is_none_or(|extension| extension != "index") && !is_left_out {
                list_path(&path, folders, extensions, files).or_else(leave_out)?;
            }
        }
        // The files of a folder that matches may match too.
        let mut seen = HashSet::new();
        let found = files.split_off(before).into_iter();
        files.extend(found.filter(|file| seen.insert(file.location.clone())));
        if files.len() == before {
            return Err(invalid(DataProblem::NotFound));
        }
        check(&Location::from(path.to_owned()), &name, &files[before..], extensions)?;
    }
    Ok(())
}

/// Lists a file, or the files in a folder. `folders`: the folders of a walk that has come to this folder.
fn list_path(
    path: &Path,
    folders: Option<Folders>,
    extensions: &[&str],
    files: &mut Vec<DataFile>,
) -> Result<()> {
    let location = Location::from(path.to_owned());
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => DataError::new(&location, DataProblem::NotFound),
        _ => DataError::new(&location, error),
    };
    let metadata = settled_metadata(path).map_err(failed)?;
    if !metadata.is_dir() {
        files.push(DataFile::of(location, &metadata)?);
        return Ok(());
    }
    let before = files.len();
    // `**` also stands for folders without such files.
    let must_have_files = folders.is_none();
    let folders = folders.map_or_else(|| Folders::begin(path), Ok)?;
    let is_hidden = found::hidden_names(extensions);
    let mut left = vec![(path.to_owned(), folders)];
    while let Some((folder, folders)) = left.pop() {
        let failed = |error| DataError::new(Location::from(folder.clone()), error);
        // Behind a link to a folder that contains it, each file also has a shorter path.
        let mut enter = |path: PathBuf| {
            let inside = folders.enter(&path)?;
            left.extend(inside.map(|folders| (path, folders)));
            Ok::<_, DataError>(())
        };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The extension "" lists all files of a folder, and these need not be one data set.
            let is_left_out = extensions != [""] && found::is_beside_data(&name);
            if is_hidden(&name) || is_left_out {
                continue;
            }
            if !extensions.iter().any(|extension| name.ends_with(extension)) {
                // Other files may vanish at any time, such as an index that another process is storing.
                if path.is_dir() {
                    enter(path)?;
                }
                continue;
            }
            match settled_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => enter(path)?,
                Ok(metadata) => match DataFile::of(Location::from(path), &metadata) {
                    Ok(file) => files.push(file),
                    Err(error) => leave_out(error)?,
                },
                Err(error) => leave_out(DataError::new(Location::from(path), error))?,
            }
        }
    }
    if must_have_files && files.len() == before {
        let extensions = extensions.join(" or ");
        return Err(DataError::new(&location, DataProblem::NoFiles { extensions }));
    }
    files[before..].sort_by(|one, other| one.location.natural_order(&other.location));
    // A folder that a wildcard has found is checked with the others.
    if must_have_files {
        check(&location, "", &files[before..], extensions)?;
    }
    Ok(())
}

/// As [`whole::check`].
fn check(given: &Location, pattern: &str, files: &[DataFile], extensions: &[&str]) -> Result<()> {
    let locations: Vec<_> = files.iter().map(|file| &file.location).collect();
    // The extension "" lists all files of a folder, and these need not be one data set.
    if extensions == [""] || !whole::may_be_parts(extensions) {
        return whole::refuse_table_formats(&locations);
    }
    whole::check(given, pattern, &locations)
}

/// Returns the metadata of `path`. If a file was modified in this step of the clock, waits for the next step,
/// so that a later write leaves another time. Does not wait for a program that writes all the time: its next
/// write leaves another time anyway.
fn settled_metadata(path: &Path) -> io::Result<fs::Metadata> {
    let start = Instant::now();
    loop {
        let metadata = fs::metadata(path)?;
        let now = clock_of_files();
        // The time may be in the future if another machine has written the file.
        let in_this_step = now..=now + MAX_CLOCK_STEP;
        let is_settled = !metadata.is_file() || !in_this_step.contains(&metadata.modified()?);
        if is_settled || start.elapsed() > 2 * MAX_CLOCK_STEP {
            return Ok(metadata);
        }
        thread::sleep(MAX_CLOCK_STEP / 10);
    }
}

/// The clock from which local file systems take the times of files.
fn clock_of_files() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    UNIX_EPOCH + Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

impl DataFile {
    /// Returns an error if the file has more than `max` bytes, which is the value of `option`.
    #[cfg(any(feature = "audio", feature = "columnar", all(feature = "cloud", feature = "image-folder")))]
    pub(super) fn check_len(&self, max: u64, option: &'static str) -> Result<()> {
        let len = self.len;
        if len > max {
            return Err(DataError::new(&self.location, DataProblem::TooLarge { len, max, option }));
        }
        Ok(())
    }

    /// Describes the file with the given metadata.
    pub(super) fn of(location: Location, metadata: &fs::Metadata) -> Result<Self> {
        let kind = metadata.file_type();
        let found = match kind {
            _ if kind.is_file() => {
                let modified = metadata.modified().map_err(|error| DataError::new(&location, error))?;
                let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
                let version = format!("modified at {since:?}");
                return Ok(Self { location, len: metadata.len(), version, partition: Vec::new() });
            }
            _ if kind.is_dir() => "a folder",
            _ if kind.is_fifo() => "a named pipe",
            _ if kind.is_socket() => "a socket",
            _ => "a device",
        };
        Err(DataError::new(location, DataProblem::NotAFile { found }))
    }

    /// Returns an error if `now` is not the same content.
    pub(super) fn check_unchanged(&self, now: &Self) -> Result<()> {
        if (self.len, &self.version) == (now.len, &now.version) {
            return Ok(());
        }
        let problem = DataProblem::Changed { expected: self.text(), found: now.text() };
        Err(DataError::new(&self.location, problem))
    }

    /// Size and version.
    pub(super) fn text(&self) -> String {
        format!("{} bytes, {}", self.len, self.version)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn patterns_and_folders_list_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        let files = ["b.txt", "a.txt", "sub/c.txt", "other.csv", ".hidden.txt", "a-10.txt", "a.txt.index"];
        files.into_iter().for_each(write);
        let names = |pattern: &str| {
            let files = Files::list([folder.path().join(pattern)], &[".txt"])?;
            Ok::<_, DataError>(
                (0..files.len()).map(|file| files.get(file).location.file_name()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(names("").unwrap(), ["a-10.txt", "a.txt", "b.txt", "c.txt"]);
        assert_eq!(names("?.txt").unwrap(), ["a.txt", "b.txt"]);
        assert_eq!(names("a.*").unwrap(), ["a.txt"], "an index is no data file");
        assert_eq!(names("*n.txt").unwrap_err().problem.to_string(), DataProblem::NotFound.to_string());
        assert_eq!(names(".h*").unwrap(), [".hidden.txt"]);
        assert_eq!(names("**/*.txt").unwrap(), ["a-10.txt", "a.txt", "b.txt", "c.txt"]);
        let all = ["a-10.txt", "a.txt", "b.txt", "other.csv", "c.txt"];
        assert_eq!(names("**/*").unwrap(), all, "the folder `sub` and its file match");
        assert_eq!(names("{b,a}.txt").unwrap(), ["b.txt", "a.txt"]);
        assert_eq!(names("other.csv").unwrap(), ["other.csv"], "a file is listed whatever its extension is");
        assert!(matches!(names("*.json").unwrap_err().problem, DataProblem::NotFound));
        assert!(matches!(names("{a,z}.txt").unwrap_err().problem, DataProblem::NotFound));
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(matches!(names("empty").unwrap_err().problem, DataProblem::NoFiles { .. }));
    }

    /// Spark writes `_temporary` and `_SUCCESS` beside the rows. In other formats, a class of audio files may be
    /// `_background_noise_`, for example.
    #[test]
    fn names_that_begin_with_an_underscore_are_no_rows_unless_they_are_given() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a=1/x", "_temporary/0/x", "a=1/_y", "_b=1/z", ".c/x"] {
            for extension in ["csv", "wav"] {
                let path = folder.path().join(format!("{name}.{extension}"));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, name).unwrap();
            }
        }
        let names = |pattern: &str, extension| {
            // A partition in a table of CSV is an error.
            let mut files = Vec::new();
            list_paths(&folder.path().join(pattern), &[extension], &mut files).unwrap();
            files.iter().map(|file| file.location.file_name()).collect::<Vec<_>>()
        };
        for pattern in ["", "*", "**", "**/?.csv", "*/*.csv", "a=1/", "_b=*/*.csv"] {
            let expected = ["z.csv", "x.csv"].into_iter().filter(|name| match *name {
                "z.csv" => pattern != "a=1/",
                _ => pattern != "_b=*/*.csv",
            });
            assert_eq!(names(pattern, ".csv"), expected.collect::<Vec<_>>(), "{pattern}");
        }
        for pattern in ["_temporary", "_*/0", "_t*/**/*.csv", "_temporary/*/x.csv"] {
            assert_eq!(names(pattern, ".csv"), ["x.csv"], "{pattern}");
        }
        assert_eq!(names("*/_*.csv", ".csv"), ["_y.csv"]);
        for pattern in ["", "**/*.wav"] {
            assert_eq!(names(pattern, ".wav"), ["z.wav", "x.wav", "_y.wav", "x.wav"], "{pattern}");
        }
    }

    /// A folder with files.
    struct Made(tempfile::TempDir);

    impl Default for Made {
        fn default() -> Self {
            Self(tempfile::tempdir().unwrap())
        }
    }

    impl Made {
        fn write(&self, name: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }

        /// Returns the names of the files for which `pattern` stands.
        fn names(&self, pattern: &str, extension: &str) -> Result<Vec<String>> {
            let files = Files::list([self.0.path().join(pattern)], &[extension])?;
            Ok((0..files.len()).map(|file| files.get(file).location.file_name()).collect())
        }
    }

    #[test]
    fn numbers_have_their_value_and_copies_are_left_out() {
        let folder = Made::default();
        let write = |name: &str| folder.write(name);
        let names = |pattern: &str, extension| folder.names(pattern, extension);
        // Numbers have their value in a folder and behind wildcards.
        ["n/p-10.csv", "n/p-9.csv", "n/p-100.csv"].into_iter().for_each(write);
        for pattern in ["n", "n/*.csv", "**/p-*.csv"] {
            assert_eq!(names(pattern, ".csv").unwrap(), ["p-9.csv", "p-10.csv", "p-100.csv"], "{pattern}");
        }
        // What `map` has written of the same rows is left out.
        ["hf/json-train.arrow", "hf/cache-0123456789abcdef.arrow"].into_iter().for_each(write);
        let cache = "cache-0123456789abcdef.arrow";
        assert_eq!(names("hf/cache-*.arrow", ".arrow").unwrap(), [cache], "a pattern for such files");
        ["described/a.json", "described/config.json", "described/dataset_infos.json"]
            .into_iter()
            .for_each(write);
        assert_eq!(names("described", ".json").unwrap(), ["a.json"]);
        for pattern in ["hf", "hf/*.arrow"] {
            assert_eq!(names(pattern, ".arrow").unwrap(), ["json-train.arrow"], "{pattern}");
        }
    }

    #[test]
    fn the_files_of_tables_with_a_log_are_refused() {
        let folder = Made::default();
        let write = |name: &str| folder.write(name);
        let names = |pattern: &str, extension| folder.names(pattern, extension);
        // A table format, seen from each folder of the table.
        [
            "delta/_delta_log/0.json",
            "delta/a=1/x.parquet",
            "ice/metadata/v1.metadata.json",
            "ice/data/x.parquet",
            "sink/_spark_metadata/0",
            "sink/a.parquet",
            "paimon/manifest/m",
            "paimon/schema/schema-0",
            "paimon/snapshot/LATEST",
            "paimon/dt=1/bucket-0/x.parquet",
            "duck/ducklake-01890a5d-ac96-774b-bcce-b302099a8057.parquet",
        ]
        .into_iter()
        .for_each(write);
        for (pattern, expected) in [
            ("delta", "Delta Lake"),
            ("delta/a=1/*.parquet", "Delta Lake"),
            ("delta/**/*.parquet", "Delta Lake"),
            ("ice", "Iceberg"),
            ("ice/data", "Iceberg"),
            ("ice/data/*.parquet", "Iceberg"),
            ("sink", "Spark Structured Streaming"),
            ("paimon", "Paimon"),
            ("paimon/dt=1/bucket-0", "Paimon"),
            ("paimon/*/*/*.parquet", "Paimon"),
            ("duck", "DuckLake"),
        ] {
            let problem = names(pattern, ".parquet").unwrap_err().problem;
            assert!(
                matches!(problem, DataProblem::TableFormat { format } if format == expected),
                "{pattern}"
            );
        }
        for table in ["sink", "delta", "ice/data", "paimon"] {
            write(&format!("{table}/a.csv"));
        }
        for table in ["sink", "paimon"] {
            let problem = names(table, ".csv").unwrap_err().problem;
            assert!(matches!(problem, DataProblem::TableFormat { .. }), "{table} may have rows in CSV files");
        }
        for pattern in ["delta", "delta/*.csv", "ice"] {
            assert_eq!(
                names(pattern, ".csv").unwrap(),
                ["a.csv"],
                "{pattern}: a table has no rows in CSV files"
            );
        }
        let problem = names("delta/**/*", ".csv").unwrap_err().problem;
        assert!(matches!(problem, DataProblem::TableFormat { .. }), "the Parquet files match too");
        // Folders with the names of those of Paimon, but without its files.
        for name in ["mine/manifest/m", "mine/schema/s", "mine/snapshot/LATEST", "mine/x.parquet"] {
            write(name);
        }
        assert_eq!(names("mine", ".parquet").unwrap(), ["x.parquet"]);
        assert_eq!(names("delta/a=1/x.parquet", ".parquet").unwrap(), ["x.parquet"], "a file that is named");
        write("ice/mine/x.parquet");
        assert_eq!(
            names("ice/mine", ".parquet").unwrap(),
            ["x.parquet"],
            "a folder beside those of the table"
        );
        std::os::unix::fs::symlink(folder.0.path().join("delta/a=1"), folder.0.path().join("linked"))
            .unwrap();
        let problem = names("linked", ".parquet").unwrap_err().problem;
        assert!(matches!(problem, DataProblem::TableFormat { format: "Delta Lake" }));
    }

    #[test]
    fn files_are_those_of_one_data_set_and_all_of_them() {
        let folder = Made::default();
        let write = |name: &str| folder.write(name);
        let names = |pattern: &str, extension| folder.names(pattern, extension);
        // Two versions of a data set in a cache, and two data sets that were saved.
        for data_set in ["cache/json/0", "cache/json/1"] {
            write(&format!("{data_set}/dataset_info.json"));
            write(&format!("{data_set}/json-train.arrow"));
        }
        for pattern in ["cache", "cache/**/*.arrow", "cache/*/*"] {
            let error = names(pattern, ".arrow").unwrap_err();
            assert!(matches!(error.problem, DataProblem::SeveralDataSets { .. }), "{pattern}: {error}");
            assert!(error.to_string().contains("cache/json/0`"), "{error}");
        }
        assert_eq!(names("cache/json/{0,1}", ".arrow").unwrap().len(), 2, "both are named");
        // Versions, through links and `..`.
        let [one, other] = ["a", "b"].map(|digit| format!("hub/snapshots/{}", digit.repeat(40)));
        for (version, link) in [(&one, "link-1"), (&other, "link-2"), (&"hub/snapshots".to_owned(), "all")] {
            std::os::unix::fs::symlink(folder.0.path().join(version), folder.0.path().join(link)).unwrap();
        }
        [&one, &other].into_iter().for_each(|version| write(&format!("{version}/x.csv")));
        for pattern in
            [&format!("{one}/../*/x.csv"), "link-?/*.csv", "all", "all/*/x.csv", "link-*/../*/*.csv"]
        {
            let error = names(pattern, ".csv").unwrap_err();
            let DataProblem::SeveralDataSets { folders } = &error.problem else {
                panic!("{pattern}: {error}")
            };
            assert!(folders.contains(&format!("{one}`")) && folders.contains(&other), "{folders}");
        }
        assert_eq!(names("link-1", ".csv").unwrap(), ["x.csv"]);
        // The same version twice, and versions of two data sets.
        let link = |target: &str, link: &str| {
            std::os::unix::fs::symlink(folder.0.path().join(target), folder.0.path().join(link)).unwrap();
        };
        ["kaggle/versions/3/x.csv", "other/versions/1/x.csv", "mine/x.csv"].into_iter().for_each(write);
        link("kaggle/versions/3", "kaggle/versions/latest");
        let problem = names("kaggle/versions/*/x.csv", ".csv").unwrap_err().problem;
        assert!(matches!(problem, DataProblem::SeveralDataSets { .. }), "{problem}");
        [("kaggle/versions/3", "mine/en"), ("other/versions/1", "mine/de")]
            .into_iter()
            .for_each(|(target, name)| link(target, name));
        assert_eq!(names("mine/*/x.csv", ".csv").unwrap().len(), 2);
        // Parts.
        write("parts/train-00000-of-00002.csv");
        for pattern in ["parts", "parts/train*.csv"] {
            let error = names(pattern, ".csv").unwrap_err().to_string();
            assert!(error.contains("the part `train-00001-of-00002` is missing"), "{error}");
            assert!(error.contains("`train-*-of-00002*`"), "{error}");
        }
        assert_eq!(names("parts/train-*-of-00002*", ".csv").unwrap().len(), 1);
        // What `save_to_disk` leaves of an older data set.
        ["saved/data-0-of-1.arrow", "saved/data-0-of-2.arrow", "saved/data-1-of-2.arrow"]
            .into_iter()
            .for_each(write);
        for pattern in ["saved", "saved/*.arrow", "saved/*-of-*"] {
            let problem = names(pattern, ".arrow").unwrap_err().problem;
            assert!(matches!(problem, DataProblem::SeveralPartCounts { .. }), "{pattern}: {problem}");
        }
        assert_eq!(names("saved/data-*-of-2*", ".arrow").unwrap().len(), 2);
    }

    #[test]
    fn a_link_to_a_folder_that_contains_it_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/b/file.txt"), "").unwrap();
        for (to, link) in [("..", "a/up"), (".", "a/itself"), (".", "root.txt"), ("a/b", "other")] {
            std::os::unix::fs::symlink(to, path(link)).unwrap();
        }
        for extensions in [[".txt"], [""]] {
            let files = Files::list([folder.path()], &extensions).unwrap();
            let names: Vec<_> = (0..files.len()).map(|file| files.get(file).location.to_string()).collect();
            let expected =
                ["a/b/file.txt", "other/file.txt"].map(|name| format!("`{}`", path(name).display()));
            assert_eq!(names, expected);
        }
    }

    /// With two links in a folder, a walk that followed them would find 2^40 paths before the system refused them.
    #[test]
    fn a_pattern_lists_each_file_of_folders_with_links_to_them_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("a/links")).unwrap();
        for name in ["one.txt", "a/two.txt"] {
            fs::write(path(name), "").unwrap();
        }
        for link in ["a/up", "a/too", "a/links/up"] {
            std::os::unix::fs::symlink(folder.path(), path(link)).unwrap();
        }
        for (pattern, expected) in [
            ("**/*.txt", &["a/two.txt", "one.txt"][..]),
            ("**/*", &["a/two.txt", "one.txt"]),
            ("**", &["a/two.txt", "one.txt"]),
            ("a/u*/*.txt", &["a/up/one.txt"]),
            ("a/up/*.txt", &["a/up/one.txt"]),
        ] {
            let files = Files::list([path(pattern)], &[".txt"]).unwrap();
            let names: Vec<_> = (0..files.len()).map(|file| files.get(file).location).collect();
            let expected: Vec<_> = expected.iter().map(|name| Location::from(path(name))).collect();
            assert_eq!(names, expected, "{pattern}");
        }
    }

    #[test]
    fn a_pointer_of_git_lfs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 9\n";
        for (text, is_pointer) in [(pointer, true), ("version https://git", false)] {
            fs::write(&path, text).unwrap();
            let opened = Files::list([&path], &[]).unwrap().open(0).map_err(|error| error.problem);
            assert_eq!(matches!(opened, Err(DataProblem::GitLfsPointer)), is_pointer, "{text}");
        }
    }

    #[test]
    fn a_changed_file_and_a_pipe_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("a.txt"), folder.path().join("pipe"));
        fs::write(&file, "one").unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = Files::list([&pipe], &[]).unwrap_err();
        assert!(matches!(refused.problem, DataProblem::NotAFile { found: "a named pipe" }), "{refused}");

        let files = Files::list([&file], &[]).unwrap();
        assert_eq!(files.open(0).unwrap().read(0..3).unwrap(), b"one");
        let again = Files::list([&file], &[]).unwrap();
        fs::write(&file, "two").unwrap();
        assert!(matches!(again.open(0).unwrap_err().problem, DataProblem::Changed { .. }));
        fs::remove_file(&file).unwrap();
        assert!(matches!(again.open(0).unwrap_err().problem, DataProblem::NotFound));
    }

    #[test]
    fn an_open_file_that_is_written_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        for _ in 0..10 {
            fs::write(&path, "one").unwrap();
            let files = Files::list([&path], &[]).unwrap();
            let blob = files.open(0).unwrap();
            assert_eq!(blob.read(0..3).unwrap(), b"one");
            // At once, in place, with the same size.
            fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(b"two").unwrap();
            assert!(matches!(blob.read(0..3).unwrap_err().problem, DataProblem::Changed { .. }));
            fs::write(&path, "").unwrap();
            let error = blob.read_ranges(std::slice::from_ref(&(1..2))).unwrap_err();
            assert!(matches!(error.problem, DataProblem::Changed { .. }), "{error}");
        }
    }
}
