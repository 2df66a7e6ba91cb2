//! Patterns with wildcards on the local file system.
//!
//! Alternative considered: the function `glob` of the crate `glob`. Rejected because its `**` follows a link to a folder
//! that contains the link again and again, and so lists each file many times; with several such links it does not end.

use std::{
    cmp::Ordering,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use glob::Pattern;

use super::{Location, found::natural_order, patterns::is_glob};
use crate::error::{DataError, DataProblem, Result};

/// A pattern of paths. A wildcard does not match a hidden name, unless its part of the pattern begins as such a name does.
/// `**` stands for any number of folders that are not hidden.
///
/// Names and wildcards follow links. `**` and the wildcards behind it do not follow a link to a folder that contains it
/// and that the walk of `**` has come through: it would find the same files again.
#[derive(Debug)]
pub(crate) struct LocalPattern {
    /// True if the pattern begins at the root of the file system.
    is_absolute: bool,
    /// True if only folders match.
    ends_with_slash: bool,
    is_hidden: fn(&str) -> bool,
    parts: Vec<PatternPart>,
}

/// What stands between two `/`.
#[derive(Debug)]
enum PatternPart {
    Name(String),
    Wildcards(Pattern),
    /// `**`
    AnyFolders,
}

impl LocalPattern {
    /// `is_hidden` is true for hidden names.
    ///
    /// # Errors
    /// Returns [`DataProblem::Pattern`] if the wildcards are malformed.
    pub(crate) fn new(pattern: &str, is_hidden: fn(&str) -> bool) -> Result<Self, DataProblem> {
        let parsed = |part: &str| Pattern::new(part).map_err(|error| DataProblem::Pattern(error.to_string()));
        // The error has a position in the whole pattern.
        parsed(pattern)?;
        let mut parts = Vec::new();
        for part in pattern.split('/').filter(|part| !matches!(*part, "" | ".")) {
            match part {
                "**" if matches!(parts.last(), Some(PatternPart::AnyFolders)) => {}
                "**" => parts.push(PatternPart::AnyFolders),
                _ if is_glob(part) => parts.push(PatternPart::Wildcards(parsed(part)?)),
                _ => parts.push(PatternPart::Name(part.to_owned())),
            }
        }
        let (is_absolute, ends_with_slash) = (pattern.starts_with('/'), pattern.ends_with('/'));
        Ok(Self { is_absolute, ends_with_slash, is_hidden, parts })
    }

    /// Returns the files and folders that the pattern matches, ordered by the names in their paths, numbers in them by their
    /// value, each path once. A
    /// relative pattern begins at `folder`. If the last part is `**`, the folders that it begins at match.
    ///
    /// # Errors
    /// Returns an error if a folder cannot be read.
    pub(crate) fn matches(&self, folder: &Path) -> Result<Vec<Match>> {
        let start = if self.is_absolute { Path::new("/") } else { folder };
        let mut found = Vec::new();
        walk(start, &self.parts, self.is_hidden, None, &mut found)?;
        found.retain(|found: &Match| !self.ends_with_slash || found.path.is_dir());
        found.sort_by(|one, other| by_names(&one.path, &other.path));
        found.dedup_by(|one, other| one.path == other.path);
        Ok(found)
    }
}

/// Compares the names in two paths, one by one.
fn by_names(one: &Path, other: &Path) -> Ordering {
    let mut others = other.components();
    for name in one.components() {
        let Some(other) = others.next() else { return Ordering::Greater };
        let [name, other] = [name, other].map(|name| name.as_os_str().as_encoded_bytes());
        match natural_order(name, other) {
            Ordering::Equal => {}
            order => return order,
        }
    }
    others.next().map_or(Ordering::Equal, |_| Ordering::Less)
}

/// A path that a pattern matches.
#[derive(Debug)]
pub(crate) struct Match {
    pub(crate) path: PathBuf,
    /// If it is a folder behind `**`: the folders through which the walk has come to it, and itself.
    pub(super) folders: Option<Folders>,
}

/// The folders from the beginning of a walk to the present one, by device and inode.
#[derive(Debug, Clone)]
pub(super) struct Folders(Vec<(u64, u64)>);

impl Folders {
    /// Begins a walk at `folder`.
    pub(super) fn begin(folder: &Path) -> Result<Self> {
        Ok(Self(vec![identity(folder)?]))
    }

    /// Goes on to `folder`. Returns `None` if the walk has come through it: a link has led back to a folder that
    /// contains it.
    pub(super) fn enter(&self, folder: &Path) -> Result<Option<Self>> {
        let identity = identity(folder)?;
        if self.0.contains(&identity) {
            return Ok(None);
        }
        let mut folders = self.0.clone();
        folders.push(identity);
        Ok(Some(Self(folders)))
    }
}

/// Adds what `parts` match in `at` to `found`. `folders`: those from the beginning of the last `**` to the folder `at`;
/// `None` before `**`, and for a file.
fn walk(
    at: &Path,
    parts: &[PatternPart],
    is_hidden: fn(&str) -> bool,
    folders: Option<&Folders>,
    found: &mut Vec<Match>,
) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        found.push(Match { path: or_here(at).to_owned(), folders: folders.cloned() });
        return Ok(());
    };
    match part {
        PatternPart::Name(name) => {
            let path = at.join(name);
            match folders.filter(|_| path.is_dir()) {
                Some(folders) => {
                    let inside = folders.enter(&path)?;
                    walk(&path, rest, is_hidden, Some(inside.as_ref().unwrap_or(folders)), found)
                }
                None if exists(&path)? => walk(&path, rest, is_hidden, None, found),
                None => Ok(()),
            }
        }
        PatternPart::Wildcards(pattern) => {
            let shows_hidden = is_hidden(pattern.as_str());
            for path in paths_in(at, |name| (shows_hidden || !is_hidden(name)) && pattern.matches(name))? {
                match folders.filter(|_| path.is_dir()) {
                    Some(folders) => {
                        if let Some(inside) = folders.enter(&path)? {
                            walk(&path, rest, is_hidden, Some(&inside), found)?;
                        }
                    }
                    None => walk(&path, rest, is_hidden, None, found)?,
                }
            }
            Ok(())
        }
        PatternPart::AnyFolders if !or_here(at).is_dir() => Ok(()),
        PatternPart::AnyFolders if rest.is_empty() => walk(at, rest, is_hidden, folders, found),
        PatternPart::AnyFolders => {
            let mut left = vec![(at.to_owned(), Folders::begin(at)?)];
            while let Some((folder, folders)) = left.pop() {
                walk(&folder, rest, is_hidden, Some(&folders), found)?;
                for path in paths_in(&folder, |name| !is_hidden(name))? {
                    if path.is_dir()
                        && let Some(inside) = folders.enter(&path)?
                    {
                        left.push((path, inside));
                    }
                }
            }
            Ok(())
        }
    }
}

/// Returns the paths in `folder` whose names `is_wanted` accepts. A path that is not a folder has none.
fn paths_in(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let failed = |error| DataError::new(Location::from(or_here(folder).to_owned()), error);
    let entries = match fs::read_dir(or_here(folder)) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if is_wanted(&name.to_string_lossy()) {
            paths.push(folder.join(&name));
        }
    }
    Ok(paths)
}

fn exists(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(DataError::new(Location::from(path.to_owned()), error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the device and the inode of `folder`.
fn identity(folder: &Path) -> Result<(u64, u64)> {
    let folder = or_here(folder);
    let metadata = fs::metadata(folder);
    let metadata = metadata.map_err(|error| DataError::new(Location::from(folder.to_owned()), error))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns `folder`, or `.` if the path is empty.
fn or_here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{super::found::is_dotted, *};

    /// Makes a folder with links to folders that contain them.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["x.csv", "a/y.csv", "a/b/z.csv", "a/.hidden/h.csv", ".h.csv"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        for (to, link) in [("..", "a/up"), ("../..", "a/b/top"), (".", "a/itself"), ("a/b", "other")] {
            symlink(to, folder.path().join(link)).unwrap();
        }
        folder
    }

    #[test]
    fn wildcards_follow_links_and_double_stars_do_not_enter_a_folder_again() {
        let folder = folder();
        for (pattern, expected) in [
            ("*.csv", &["x.csv"][..]),
            ("./a//*.csv", &["a/y.csv"]),
            (".*.csv", &[".h.csv"]),
            ("a/.hidden/*", &["a/.hidden/h.csv"]),
            (".*/x.csv", &[]),
            ("**/*.csv", &["a/b/z.csv", "a/y.csv", "other/z.csv", "x.csv"]),
            ("a/**/**/*.csv", &["a/b/top/x.csv", "a/b/z.csv", "a/up/other/z.csv", "a/up/x.csv", "a/y.csv"]),
            // A name and a wildcard before `**` follow each link.
            ("a/up/*.csv", &["a/up/x.csv"]),
            ("a/up/a/up/*.csv", &["a/up/a/up/x.csv"]),
            ("*/*/*.csv", &["a/b/z.csv", "a/itself/y.csv", "a/up/x.csv", "other/top/x.csv"]),
            ("**/up/x.csv", &["a/up/x.csv"]),
            ("**/u*/x.csv", &[]),
            ("a/**", &["a"]),
            ("a/b/*/", &["a/b/top"]),
            ("none/*", &[]),
            ("x.csv/*", &[]),
            ("x.csv/**", &[]),
        ] {
            let found = LocalPattern::new(pattern, is_dotted).unwrap().matches(folder.path()).unwrap();
            let found: Vec<_> =
                found.iter().map(|found| found.path.strip_prefix(folder.path()).unwrap()).collect();
            let expected: Vec<_> = expected.iter().map(Path::new).collect();
            assert_eq!(found, expected, "{pattern}");
        }
        assert!(matches!(LocalPattern::new("a/**b/*", is_dotted), Err(DataProblem::Pattern(_))));
    }

    #[test]
    fn relative_patterns_begin_in_the_working_directory() {
        for (pattern, expected) in [("**/local_pattern.rs", "src/source/local_pattern.rs"), ("**", ".")] {
            let found = LocalPattern::new(pattern, is_dotted).unwrap().matches(Path::new("")).unwrap();
            let found: Vec<_> = found.iter().map(|found| found.path.as_path()).collect();
            assert_eq!(found, [Path::new(expected)], "{pattern}");
        }
    }
}
