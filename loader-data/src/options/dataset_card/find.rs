//! Finds the files that a pattern in the header stands for.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, hash_map::Entry},
    fs, io,
    path::{Path, PathBuf},
};

use glob::{MatchOptions, Pattern};

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, LocalPattern, Location, Roots, StoreOptions, check, is_dotted, is_glob},
};

/// Files about a dataset, which no wildcard matches.
const NO_DATA: [&str; 9] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "dummy_data.zip",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
];

/// A pattern in the header, which begins at the folder of the README.md.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder of the README.md.
    root: Location,
    /// The folders before the part of the pattern that has wildcards.
    folders: Vec<String>,
    /// The rest of the pattern, a path relative to these folders. It may have wildcards.
    pattern: String,
}

impl Place {
    /// Finds the place of `pattern`, which begins at `data_dir` in `folder`.
    ///
    /// # Errors
    /// Returns an error if the pattern may stand for files outside of the folder.
    pub(super) fn new(folder: &Location, data_dir: &str, pattern: &str) -> Result<Self, DataProblem> {
        let mut parts = parts(data_dir)?;
        parts.extend(self::parts(pattern)?);
        if parts.is_empty() {
            return Err(DataProblem::Pattern(format!("`{pattern}` in the header names no file")));
        }
        let fixed = parts.iter().position(|part| is_glob(part)).unwrap_or(parts.len().saturating_sub(1));
        let folders = parts[..fixed].iter().map(|&part| part.to_owned()).collect();
        Ok(Self { root: folder.clone(), folders, pattern: parts[fixed..].join("/") })
    }

    /// Returns the folder if the pattern stands for all files in it.
    #[cfg(feature = "formats")]
    pub(super) fn whole_folder(&self) -> Option<PathBuf> {
        matches!(&self.pattern[..], "**" | "**/*").then(|| self.folder().as_path().to_owned())
    }

    /// Returns the folder that the part of the pattern with wildcards begins at.
    fn folder(&self) -> Location {
        self.folder_at(self.folders.len())
    }

    /// Returns the folder that the first `count` folders of the pattern lead to.
    fn folder_at(&self, count: usize) -> Location {
        let mut name = self.folders[..count].join("/");
        if name.is_empty() {
            return self.root.clone();
        }
        if let Location::Url(_) = self.root {
            name.push('/');
        }
        self.root.join(&name)
    }

    /// Returns the files, ordered by path.
    ///
    /// # Errors
    /// As for [`files`].
    fn files(&self, extensions: &[&str], lists: &mut Lists<'_>) -> Result<Vec<PathBuf>> {
        let folder = self.folder();
        let whole = || folder.join(&self.pattern);
        if !is_glob(&self.pattern) {
            return Ok(vec![file(whole())?.as_path().to_owned()]);
        }
        let malformed = |problem| DataError::new(whole(), problem);
        let mut files = match &folder {
            Location::Path(path) => on_disk(&self.pattern, Path::new(path), malformed)?,
            Location::Url(_) => {
                let pattern = Pattern::new(&self.pattern)
                    .map_err(|error| malformed(DataProblem::Pattern(error.to_string())))?;
                let rules = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
                let is_match = |path: &&PathBuf| {
                    relative(path, &folder).is_some_and(|path| pattern.matches_with(&path, rules))
                };
                lists.containing(self)?.iter().filter(is_match).cloned().collect()
            }
        };
        let (name, special) = (file_name(&self.pattern), special_folders(&self.pattern));
        files.retain(|file| {
            let path = relative(file, &folder).unwrap_or_default();
            let file = file_name(&path);
            special_folders(&path) == special && (!NO_DATA.contains(&file) || file == name)
        });
        if files.is_empty() {
            return Err(DataError::new(whole(), DataProblem::NotFound));
        }
        // Otherwise a part of a split could be missing without an error.
        let is_other = |file: &&PathBuf| {
            let name = file.to_string_lossy();
            !extensions.iter().any(|extension| name.ends_with(extension))
        };
        if let Some(other) = files.iter().find(is_other) {
            let reason = format!(
                "it matches `{}`, which does not end with {}; give the files as the path instead",
                relative(other, &folder).unwrap_or_default(),
                extensions.join(" or ")
            );
            return Err(DataError::new(whole(), DataProblem::Pattern(reason)));
        }
        // Braces in the key of an object are expanded.
        let is_pattern = |file: &&PathBuf| {
            let Location::Url(url) = Location::new(file) else { return false };
            url.contains('{')
        };
        match files.iter().find(is_pattern) {
            Some(file) => {
                let reason = "the name of an object has braces; rename it".to_owned();
                Err(DataError::new(Location::new(file), DataProblem::Pattern(reason)))
            }
            None => Ok(files),
        }
    }
}

/// Returns the files that the patterns stand for, in the order of the patterns, each once. The files of one pattern are
/// ordered by path.
///
/// # Errors
/// Returns an error if a pattern stands for no file, if the name of a file that wildcards match ends with none of
/// `extensions`, if a symbolic link leads from a file out of `roots`, or if a file or folder cannot be read.
pub(super) fn files(
    places: &[Place],
    roots: &Roots,
    extensions: &[&str],
    store: &StoreOptions,
) -> Result<Vec<PathBuf>> {
    let mut lists = Lists::new(places, store);
    let (mut files, mut found) = (Vec::new(), HashSet::new());
    for place in places {
        let found = place.files(extensions, &mut lists)?;
        let locations: Vec<_> = found.iter().map(Location::new).collect();
        locations.iter().try_for_each(|file| refuse_outside(file, roots))?;
        if is_glob(&place.pattern) {
            let given = place.folder().join(&place.pattern);
            check(&given, &place.pattern, &locations.iter().collect::<Vec<_>>())?;
        }
        files.extend(found);
    }
    files.retain(|file| found.insert(file.clone()));
    Ok(files)
}

/// Returns an error if a symbolic link leads from `file` out of `roots`. A link that leads nowhere is an error when the file is
/// opened.
fn refuse_outside(file: &Location, roots: &Roots) -> Result<()> {
    let target = match roots.target_outside(file) {
        Err(DataError { problem: DataProblem::NotFound, .. }) => return Ok(()),
        target => target?,
    };
    let Some(target) = target else { return Ok(()) };
    Err(DataError::new(file, DataProblem::LinkOutside { target: target.to_string() }))
}

/// Returns the files in `folder` that `pattern` matches, ordered by path.
fn on_disk(
    pattern: &str,
    folder: &Path,
    malformed: impl Fn(DataProblem) -> DataError,
) -> Result<Vec<PathBuf>> {
    // At the end of a pattern in a header, `**` stands for all files.
    let is_all = pattern == "**" || pattern.ends_with("/**");
    let pattern = if is_all { Cow::Owned(format!("{pattern}/*")) } else { Cow::Borrowed(pattern) };
    let found = LocalPattern::new(&pattern, is_dotted).map_err(malformed)?.matches(folder)?;
    let is_hidden = |path: &Path| {
        let name = path.strip_prefix(folder).unwrap_or(path);
        name.iter().any(|name| is_dotted(&name.to_string_lossy()))
    };
    let paths = found.into_iter().map(|found| found.path);
    let mut files: Vec<_> = paths.filter(|path| !is_hidden(path) && !path.is_dir()).collect();
    files.sort_by(|one, other| Location::new(one).natural_order(&Location::new(other)));
    Ok(files)
}

/// The lists of a server that the patterns of a split are matched against. A list is a request or more, so the patterns
/// with wildcards have one list of the folder that they have in common.
struct Lists<'a> {
    /// The names of this folder, below that of the README.md; `None` without wildcards.
    in_common: Option<&'a [String]>,
    /// The files in a folder and in its sub-folders, by the folder.
    listed: HashMap<PathBuf, Vec<PathBuf>>,
    store: &'a StoreOptions,
}

impl<'a> Lists<'a> {
    fn new(places: &'a [Place], store: &'a StoreOptions) -> Self {
        let globs = places.iter().filter(|place| is_glob(&place.pattern));
        let in_common = globs.map(|place| &place.folders[..]).reduce(in_common);
        Self { in_common, listed: HashMap::new(), store }
    }

    /// Returns a list that has all files in the folder of `place`.
    fn containing(&mut self, place: &Place) -> Result<&[PathBuf]> {
        // The list of a folder does not have the hidden folders in it.
        let is_in = |root: &&[String]| {
            let below = place.folders.strip_prefix(*root);
            below.is_some_and(|below| !below.iter().any(|folder| folder.starts_with('.')))
        };
        let in_common = self.in_common.filter(is_in).map(<[String]>::len);
        let folder = place.folder_at(in_common.unwrap_or(place.folders.len()));
        Ok(match self.listed.entry(folder.as_path().to_owned()) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(listed(&folder, self.store)?),
        })
    }
}

/// Returns the first names that both have in common.
fn in_common<'a>(one: &'a [String], other: &'a [String]) -> &'a [String] {
    let count = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    &one[..count]
}

/// Lists all files in `folder`, which is on a server, and in its sub-folders, ordered by path.
fn listed(folder: &Location, store: &StoreOptions) -> Result<Vec<PathBuf>> {
    let files = match Files::list_with([folder.as_path()], &[""], store) {
        Ok(files) => files,
        Err(DataError { problem: DataProblem::NoFiles { .. }, .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok((0..files.len()).map(|file| files.get(file).location.as_path().to_owned()).collect())
}

/// Returns the path of `file` relative to `folder`; `None` if it is not in the folder. An object may have the name of the
/// folder.
fn relative(file: &Path, folder: &Location) -> Option<String> {
    let path = file.strip_prefix(folder.as_path()).ok()?.to_string_lossy();
    (!path.is_empty()).then(|| path.into_owned())
}

/// Counts the folders of a path or a pattern whose names begin with `__`, such as `__MACOSX`. As in Hugging Face's
/// `datasets`, a pattern matches a file only if both have the same number of them: `*/*` does not match
/// `__MACOSX/a.csv`, but `__*/*` does.
fn special_folders(path: &str) -> usize {
    path.rsplit('/').skip(1).filter(|name| name.starts_with("__")).count()
}

/// Returns a path or a pattern without its folders.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Returns `location`, a pattern without wildcards.
///
/// # Errors
/// Returns an error if it is the path of no file: a path that does not exist could be a pattern for other files.
fn file(location: Location) -> Result<Location> {
    if let Location::Path(path) = &location {
        let problem = match fs::metadata(path) {
            Ok(found) if found.is_dir() => DataProblem::NotAFile { found: "a folder" },
            Err(error) if error.kind() == io::ErrorKind::NotFound => DataProblem::NotFound,
            _ => return Ok(location),
        };
        return Err(DataError::new(location, problem));
    }
    Ok(location)
}

/// Returns the names that `pattern` consists of.
///
/// # Errors
/// Returns an error if the pattern may stand for files outside of the folder that it begins at.
fn parts(pattern: &str) -> Result<Vec<&str>, DataProblem> {
    let leads_out =
        pattern.starts_with('/') || pattern.contains("://") || pattern.split('/').any(|part| part == "..");
    // Braces have no meaning in a pattern of Hugging Face.
    if leads_out || pattern.contains('{') {
        let what = if leads_out {
            "leads out of the folder; name files in the folder"
        } else {
            "has braces, which have no meaning there; list the patterns one by one"
        };
        return Err(DataProblem::Pattern(format!("`{pattern}` in the header {what}")));
    }
    Ok(pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the files of `pattern` in a folder whose own name has wildcards and braces.
    fn found(data_dir: &str, pattern: &str) -> Result<Vec<String>> {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("hub{1,2}[3]");
        for name in [
            "hub{1,2}[3]/a.csv",
            "hub{1,2}[3]/README.md",
            "hub{1,2}[3]/dataset_infos.json",
            "hub{1,2}[3]/.hidden/b.csv",
            "hub{1,2}[3]/__a/d.csv",
            "hub{1,2}[3]/__a/train/__b/__e.csv",
            "hub{1,2}[3]/data/train.csv",
            "hub{1,2}[3]/data/train_extra/c.csv",
            "hub{1,2}[3]/data/train_extra/LICENSE",
            "secret/a.csv",
            "hub1/a.csv",
            "hub13/a.csv",
        ] {
            let path = outer.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let place = Place::new(&Location::from(folder.clone()), data_dir, pattern)
            .map_err(|problem| DataError::new("the header", problem))?;
        let roots = Roots::of(&Location::from(folder.join("README.md")))?;
        let files = files(&[place], &roots, &[".csv", ".json"], &StoreOptions::default())?;
        Ok(files
            .iter()
            .map(|file| file.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned())
            .collect())
    }

    #[test]
    fn wildcards_match_each_file_once() {
        let (a, train, c) = ("a.csv", "data/train.csv", "data/train_extra/c.csv");
        let (d, e) = ("__a/d.csv", "__a/train/__b/__e.csv");
        for (data_dir, pattern, expected) in [
            ("", "**", &[a, train, c][..]),
            ("", "*", &[a]),
            ("", "**/*", &[a, train, c]),
            ("", "*/**", &[train, c]),
            ("", "data/**/*", &[train, c]),
            ("", "data/*", &[train]),
            ("", "data/train*", &[train]),
            ("", "**/train*", &[train]),
            ("", "**/train*/*", &[c]),
            ("./data/", ".//*", &[train]),
            ("data", "train.csv", &[train]),
            ("", "README.md", &["README.md"]),
            ("", "*/../a.csv", &[]),
            ("", "[!b].csv", &[a]),
            ("", ".h*/*", &[]),
            ("", "__a/**", &[d]),
            ("", "__*/*", &[d]),
            ("__a", "*/__b/*", &[e]),
            ("", "__*/**/__b/*", &[e]),
            ("", "**/__b/*", &[]),
            ("", "[_]_a/*", &[]),
        ] {
            assert_eq!(found(data_dir, pattern).unwrap_or_default(), expected, "{data_dir} {pattern}");
        }
        let missing = |pattern| found("", pattern).unwrap_err().problem;
        assert!(matches!(missing("b.csv"), DataProblem::NotFound));
        assert!(matches!(missing("LICENS*"), DataProblem::NotFound));
        assert!(matches!(missing("none/*"), DataProblem::NotFound));
        assert!(matches!(missing("data"), DataProblem::NotAFile { found: "a folder" }));
        assert!(matches!(missing("**a"), DataProblem::Pattern(_)));
    }

    #[test]
    fn a_pattern_stays_in_its_folder() {
        assert_eq!(parts("./data//train-*").unwrap(), ["data", "train-*"]);
        assert_eq!(parts("..data/a..b/...").unwrap(), ["..data", "a..b", "..."]);
        for outside in ["../a", "a/../../b", "/etc/a", "..", "https://host/a", "{.,a}./b"] {
            assert!(matches!(parts(outside), Err(DataProblem::Pattern(_))), "{outside}");
        }
        // `glob` lets the first dot match `..`.
        for outside in
            [".?/secret/a.csv", ".*/secret/*", ".[.]/secret/*.csv", ".?/.?/etc/passwd", "*/.?/a.csv"]
        {
            let error = found("", outside).unwrap_err();
            assert!(matches!(error.problem, DataProblem::NotFound), "{outside} {error}");
        }
    }

    #[test]
    fn patterns_begin_at_the_folder_of_the_readme() {
        for (folder, data_dir, pattern, expected) in [
            ("hub", "", "data/train-*", ("hub/data", "train-*")),
            ("hub", "en", "./a.csv", ("hub/en", "a.csv")),
            ("hub", "", "**", ("hub", "**")),
            ("s3://bucket/hub/", "en", "train/**", ("s3://bucket/hub/en/train/", "**")),
            ("s3://bucket/hub/", "", "*/a", ("s3://bucket/hub/", "*/a")),
        ] {
            let place = Place::new(&Location::new(folder), data_dir, pattern).unwrap();
            assert_eq!((place.folder().as_path().to_str().unwrap(), &place.pattern[..]), expected);
        }
    }

    /// Makes files and links to folders, and returns those that `patterns` match.
    fn found_in(links: &[(&str, &str)], patterns: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["0.csv", "a/1.csv", "a/sub/2.csv", "b/3.csv", "b/.hidden/4.csv", "c/5.csv"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        for (to, link) in links {
            std::os::unix::fs::symlink(to, folder.path().join(link)).unwrap();
        }
        let root = Location::from(folder.path().to_owned());
        let places: Vec<_> = patterns.iter().map(|pattern| Place::new(&root, "", pattern).unwrap()).collect();
        let roots = Roots::of(&root.join("0.csv"))?;
        let files = files(&places, &roots, &[".csv"], &StoreOptions::default())?;
        Ok(files.iter().map(|file| relative(file, &root).unwrap()).collect())
    }

    #[test]
    fn folders_on_disk_without_a_pattern_are_not_read() {
        // A list of all folders would fail, because this link leads nowhere.
        let links = [("missing", "c/link.csv")];
        let patterns = ["b/.hidden/*", "a/sub/*", "a/*", "b/*", "a/**", "c/5.csv"];
        let expected = ["b/.hidden/4.csv", "a/sub/2.csv", "a/1.csv", "b/3.csv", "c/5.csv"];
        assert_eq!(found_in(&links, &patterns).unwrap(), expected);
        assert_eq!(found_in(&links, &["c/*"]).unwrap(), ["c/5.csv", "c/link.csv"]);
    }

    #[test]
    fn a_pattern_matches_the_same_files_whatever_other_patterns_there_are() {
        let links = [("..", "a/up"), ("..", "a/sub/a")];
        for (pattern, expected) in [
            ("a/up/*", &["a/up/0.csv"][..]),
            ("a/*/0.csv", &["a/up/0.csv"]),
            ("*/*/*", &["a/sub/2.csv", "a/up/0.csv"]),
            (
                "a/sub/**",
                &[
                    "a/sub/2.csv",
                    "a/sub/a/1.csv",
                    "a/sub/a/up/0.csv",
                    "a/sub/a/up/b/3.csv",
                    "a/sub/a/up/c/5.csv",
                ],
            ),
            ("**/sub/*", &["a/sub/2.csv"]),
            ("**", &["0.csv", "a/1.csv", "a/sub/2.csv", "b/3.csv", "c/5.csv"]),
        ] {
            assert_eq!(found_in(&links, &[pattern]).unwrap(), expected, "{pattern}");
            for other in ["*", "a/*", "**"] {
                let mut all = found_in(&links, &[other]).unwrap();
                all.extend(expected.iter().map(|&file| file.to_owned()));
                let mut seen = HashSet::new();
                all.retain(|file| seen.insert(file.clone()));
                assert_eq!(found_in(&links, &[other, pattern]).unwrap(), all, "{other} {pattern}");
            }
        }
    }

    #[test]
    fn a_pattern_does_not_leave_its_folder_through_a_link() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("x.csv"), "").unwrap();
        let folder = outside.path().to_str().unwrap();
        let file = format!("{folder}/x.csv");
        let links = [(folder, "ln"), (&*file, "a/x.csv"), ("b", "inside")];
        for pattern in ["ln/*.csv", "ln/x.csv", "l*/**", "**/*.csv", "a/*", "a/x.csv"] {
            let problem = found_in(&links, &[pattern]).unwrap_err().problem;
            let DataProblem::LinkOutside { target } = &problem else { panic!("{pattern}: {problem}") };
            assert!(target.ends_with("/x.csv`"), "{target}");
        }
        assert_eq!(found_in(&links, &["inside/*"]).unwrap(), ["inside/3.csv"]);
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn an_http_server_has_no_wildcards() {
        let folder = Location::new("https://host.invalid/hub/");
        let place = Place::new(&folder, "", "data/train-*").unwrap();
        let error = files(&[place], &Roots::default(), &[".csv"], &StoreOptions::default()).unwrap_err();
        assert!(error.to_string().contains("wildcards on an HTTP server"), "{error}");
        let place = Place::new(&folder, "", "data/train-0.csv").unwrap();
        let files = files(&[place], &Roots::default(), &[".csv"], &StoreOptions::default()).unwrap();
        assert_eq!(files, [Path::new("https://host.invalid/hub/data/train-0.csv")]);
    }
}
