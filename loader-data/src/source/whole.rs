//! Whether the files that a folder or wildcards stand for are those of one data set, and all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    fs,
    path::{Path, PathBuf},
};

use super::{Location, found::is_number};
use crate::error::{DataError, DataProblem, Result};

/// The folders in which a table format keeps its log, and the name of the format. A table has all of these folders.
pub(super) const LOGS: [(&[LogFolder], &str); 4] = [
    (&[("_delta_log", None)], "Delta Lake"),
    (&[(".hoodie", None)], "Hudi"),
    (&[("_spark_metadata", None)], SPARK),
    (
        &[
            ("manifest", None),
            ("schema", Some(|name| is_numbered(name, "schema-"))),
            ("snapshot", Some(|name| name == "LATEST" || is_numbered(name, "snapshot-"))),
        ],
        PAIMON,
    ),
];
const SPARK: &str = "Spark Structured Streaming";
const PAIMON: &str = "Paimon";
/// Those of which a table may have rows in any file. Tables of the other formats have rows only in files with an extension
/// of [`TABLE_ROWS`].
const OF_ANY_FILES: [&str; 2] = [SPARK, PAIMON];
/// Extensions of the files in which a table has its rows.
const TABLE_ROWS: [&str; 3] = [".parquet", ".orc", ".avro"];
/// The folder in which Iceberg keeps its metadata, and the end of the names of the files there.
pub(super) const ICEBERG: (&str, &str) = ("metadata", ".metadata.json");
pub(super) const ICEBERG_NAME: &str = "Iceberg";
/// The folder beside it in which Iceberg keeps the rows. Other folders may have files of another origin.
pub(super) const ICEBERG_DATA: &str = "data";
/// What the names of the Parquet files of a DuckLake begin with, before a UUID. Its log is in a database.
const DUCKLAKE: &str = "ducklake-";
/// Folders whose sub-folders are versions of one data set, and the names of these: in the cache of the Hugging Face
/// Hub, and in Kaggle's.
const VERSIONS: [Versions; 2] = [("snapshots", is_commit), ("versions", is_number)];
/// The file that says that a folder is a whole data set, which `datasets` or `tensorflow_datasets` has written.
pub(super) const DESCRIPTION: &str = "dataset_info.json";
/// Another one, of Arrow files.
pub(super) const STATE: &str = "state.json";
/// How many folders a message names.
const MAX_NAMED: usize = 3;
/// What stands between the number of a part and the number of parts in the name of a file.
const OF: [&str; 2] = ["-of-", "_of_"];

/// The name of a folder of a log. If other folders often have this name, also a function, which is true for the name of
/// a file that only a log's folder has.
pub(super) type LogFolder = (&'static str, Option<fn(&str) -> bool>);

/// The name of a folder of versions, and a function that is true for their names.
type Versions = (&'static str, fn(&str) -> bool);

/// The parts of the data sets with one name, by what the parts of one have in common and by their numbers.
type Parts<'a> = BTreeMap<Part, BTreeMap<u64, &'a Location>>;

/// Fails unless the `files` for which `given`, a local folder or pattern, stands are those of one data set, and all of
/// them. `pattern` is empty for a folder.
pub(crate) fn check(given: &Location, pattern: &str, files: &[&Location]) -> Result<()> {
    let resolved = with_canonical_folders(files)?;
    refuse_tables(&resolved)?;
    refuse_missing_parts(pattern, files.iter().copied())?;
    refuse_several(files.iter().copied(), |description| description.exists())
        .and_then(|()| refuse_linked(files, &resolved))
        .map_err(|problem| DataError::new(given, problem))
}

/// Fails if a folder of local `files`, or one around it, is that of a table with a log of its own, whose files also
/// have rows that were deleted or replaced, or never committed.
pub(super) fn refuse_table_formats(files: &[&Location]) -> Result<()> {
    refuse_tables(&with_canonical_folders(files)?)
}

/// Returns local `files` with the absolute paths of their folders, which have no symbolic links: the working directory,
/// or the target of a link, may be in a table or be a version. Files on servers stay the same.
fn with_canonical_folders(files: &[&Location]) -> Result<Vec<Location>> {
    let mut known: HashMap<&Path, PathBuf> = HashMap::new();
    let mut resolved = Vec::with_capacity(files.len());
    for &file in files {
        let Location::Path(path) = file else {
            resolved.push(file.clone());
            continue;
        };
        let path = Path::new(path);
        let given = path.parent().unwrap_or(Path::new(""));
        let folder = match known.entry(given) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => {
                let folder = Path::new(".").join(given).canonicalize();
                vacant.insert(folder.map_err(|error| DataError::new(file, error))?)
            }
        };
        resolved.push(folder.join(path.file_name().unwrap_or_default()).into());
    }
    Ok(resolved)
}

/// As [`refuse_table_formats`], for files whose folders have no links.
fn refuse_tables(files: &[Location]) -> Result<()> {
    let mut seen = HashSet::new();
    for file in files {
        let Location::Path(path) = file else { continue };
        let name = file.file_name();
        if is_of_ducklake(&name) {
            let problem = DataProblem::TableFormat { format: "DuckLake" };
            return Err(DataError::new(file.folder(), problem));
        }
        let extension = Path::new(path).extension();
        for folder in Path::new(path).ancestors().skip(1) {
            if !seen.insert((folder, extension)) {
                break;
            }
            if let Some((table, format)) = table_of(folder, &name) {
                let table = Location::from(table.to_owned());
                return Err(DataError::new(table, DataProblem::TableFormat { format }));
            }
        }
    }
    Ok(())
}

/// Returns the folder of the table whose files are in `folder` or below it, and the name of its format. `name` is that of
/// such a file.
fn table_of<'a>(folder: &'a Path, name: &str) -> Option<(&'a Path, &'static str)> {
    let has = |(folder_name, is_of_log): &LogFolder| match is_of_log {
        None => folder.join(folder_name).is_dir(),
        Some(is_of_log) => names_in(&folder.join(folder_name)).any(|name| is_of_log(&name)),
    };
    let is_such =
        |(folders, format): &&(&[LogFolder], &str)| may_have_rows(format, name) && folders.iter().all(has);
    if let Some((_, format)) = LOGS.iter().find(is_such) {
        return Some((folder, format));
    }
    let table =
        folder.parent().filter(|_| may_have_rows(ICEBERG_NAME, name) && folder.ends_with(ICEBERG_DATA))?;
    let is_iceberg = names_in(&table.join(ICEBERG.0)).any(|name| is_metadata_of_iceberg(&name));
    is_iceberg.then_some((table, ICEBERG_NAME))
}

/// Returns the names in `folder`; none if it cannot be listed.
fn names_in(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().map_while(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// True if a table of the format `format` may have rows in a file of this name.
pub(super) fn may_have_rows(format: &str, name: &str) -> bool {
    OF_ANY_FILES.contains(&format) || TABLE_ROWS.iter().any(|extension| name.ends_with(extension))
}

/// True if a file in the folder `metadata` has the name of Iceberg's: `v3.metadata.json`, or `00003-`, a UUID and the
/// end. A compressed one has `.gz` before the end.
pub(super) fn is_metadata_of_iceberg(name: &str) -> bool {
    let Some(version) = name.strip_suffix(ICEBERG.1) else { return false };
    let version = version.strip_suffix(".gz").unwrap_or(version);
    match version.split_once('-') {
        Some((number, uuid)) => is_number(number) && is_uuid(uuid),
        None => is_numbered(version, "v"),
    }
}

/// True if the name is `prefix` and a number.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(is_number)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// True if DuckLake has given a file this name.
pub(super) fn is_of_ducklake(name: &str) -> bool {
    let uuid = name.strip_prefix(DUCKLAKE).and_then(|rest| rest.get(..36));
    name.ends_with(".parquet") && uuid.is_some_and(is_uuid)
}

/// True if the files of a format with these `extensions` may be parts of a data set. A recording is a sample.
pub(super) fn may_be_parts(extensions: &[&str]) -> bool {
    !extensions.contains(&".wav")
}

/// Fails if one of the parts of a data set is missing, which their names count: `train-00001-of-00002.parquet`. Also
/// fails if the names of a folder's parts have different counts, or different hashes at the same number: a writer has
/// left the parts of an older data set of the same name. A pattern whose wildcards are in the numbers chooses among the
/// parts.
pub(super) fn refuse_missing_parts<'a>(
    pattern: &str,
    files: impl IntoIterator<Item = &'a Location>,
) -> Result<()> {
    let last = pattern.rsplit('/').next().unwrap_or_default();
    let is_of_number = |before: &str| before.ends_with(['*', '?', ']', '}']) || before.ends_with(is_digit);
    let has_numbers = OF.iter().any(|of| last.match_indices(of).any(|(at, _)| is_of_number(&last[..at])));
    let mut sets: BTreeMap<(Location, String), Parts<'_>> = BTreeMap::new();
    for file in files {
        let name = file.file_name();
        if let Some((set, number, part)) = OF.iter().find_map(|of| Part::of(&name, of)) {
            let folder = file.folder().or_here();
            let parts = sets.entry((folder.clone(), set)).or_default();
            let other = parts.entry(part).or_default().insert(number, file).map(Location::file_name);
            if let Some(other) = other.filter(|other| hash_of_part(other) != hash_of_part(&name)) {
                return Err(DataError::new(folder, DataProblem::SamePart { one: other, other: name }));
            }
        }
    }
    for ((folder, _), parts) in sets {
        let mut all = parts.iter();
        if let (Some((one, _)), Some((other, _))) = (all.next(), all.next()) {
            let [one, other] = [one, other].map(|part| format!("{}*", part.named("*")));
            return Err(DataError::new(folder, DataProblem::SeveralPartCounts { one, other }));
        }
        for (part, numbers) in parts.into_iter().filter(|_| !has_numbers) {
            let count: u64 = part.count.parse().unwrap_or(0);
            if numbers.len() as u64 >= count {
                continue;
            }
            // Most tools count from 0, some from 1.
            let from = u64::from(!numbers.contains_key(&0) && numbers.contains_key(&count));
            let missing = (from..).find(|number| !numbers.contains_key(number)).unwrap_or(from);
            // A count without leading zeros is beside numbers without them.
            let width = if part.count.starts_with('0') { part.count.len() } else { 1 };
            let pattern = format!("{}*", part.named("*"));
            let part = part.named(&format!("{missing:0width$}"));
            return Err(DataError::new(folder, DataProblem::MissingPart { part, pattern }));
        }
    }
    Ok(())
}

/// Fails if some of the `files` are in different folders each of which is a whole data set: a cache keeps older
/// versions and other data sets, and their rows would come one after the other. `exists` is true for the path of a file
/// that exists.
pub(super) fn refuse_several<'a>(
    files: impl IntoIterator<Item = &'a Location>,
    exists: impl Fn(&Path) -> bool,
) -> Result<(), DataProblem> {
    // The data set that each folder is in.
    let mut known: HashMap<&Path, Option<&Path>> = HashMap::new();
    let mut data_sets = BTreeSet::new();
    for file in files {
        let is_arrow = file.file_name().ends_with(".arrow");
        let is_whole = |folder: &Path| {
            is_version(folder)
                || exists(&folder.join(DESCRIPTION))
                || (is_arrow && exists(&folder.join(STATE)))
        };
        let (mut passed, mut found) = (Vec::new(), None);
        for folder in file.as_path().ancestors().skip(1).take_while(|folder| !folder.ends_with("..")) {
            if let Some(known) = known.get(folder) {
                found = *known;
                break;
            }
            passed.push(folder);
            if is_whole(folder) {
                found = Some(folder);
                break;
            }
        }
        known.extend(passed.into_iter().map(|folder| (folder, found)));
        data_sets.extend(found);
    }
    if data_sets.len() < 2 {
        return Ok(());
    }
    let shown = |folder: &&Path| Location::new(folder).or_here().to_string();
    let mut folders: Vec<_> = data_sets.iter().take(MAX_NAMED).map(shown).collect();
    if let Some(more) = data_sets.len().checked_sub(MAX_NAMED).filter(|&more| more > 0) {
        folders.push(format!("{more} more"));
    }
    Err(DataProblem::SeveralDataSets { folders: folders.join(", ") })
}

/// Fails if `files` stand for several versions of a data set, or for a version twice, which only the folders tell to which
/// symbolic links lead. `resolved` has these folders. Links to versions of different data sets are no mistake.
fn refuse_linked(files: &[&Location], resolved: &[Location]) -> Result<(), DataProblem> {
    let (mut versions, mut given) = (HashMap::new(), HashMap::new());
    for (file, target) in files.iter().zip(resolved) {
        let Location::Path(path) = target else { continue };
        let Some(version) = Path::new(path).ancestors().find(|folder| is_version(folder)) else { continue };
        let folder = file.folder();
        let before = versions.insert(version.parent(), version).filter(|before| *before != version);
        let other = given.insert(path, folder.clone()).filter(|other| *other != folder);
        let two = before.map(|before| [before, version].map(Location::new));
        if let Some(two) = two.or(other.map(|other| [other, folder])) {
            let [one, other] = two.map(|folder| folder.or_here().to_string());
            return Err(DataProblem::SeveralDataSets { folders: format!("{one}, {other}") });
        }
    }
    Ok(())
}

/// True if the folder is a version of a data set in a cache.
fn is_version(folder: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let Some((version, of)) = name(folder).zip(folder.parent().and_then(name)) else { return false };
    VERSIONS.iter().any(|(name, is_version)| of == *name && is_version(&version))
}

fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
}

/// Returns the name of the data set whose part is a file of this name: `train` of `train-00001-of-00002.parquet`.
#[doc(hidden)]
pub fn set_of_part(name: &str) -> Option<&str> {
    OF.iter().find_map(|of| split_part(name, of)).map(|(set, ..)| set)
}

/// Returns the name of the data set, what stands before the number of the part, the number, the number of parts, and
/// the rest of the name.
fn split_part<'a>(name: &'a str, of: &str) -> Option<(&'a str, [&'a str; 4])> {
    let (before, after) = name.rsplit_once(of)?;
    let (count, rest) = after.split_at(after.len() - after.trim_start_matches(is_digit).len());
    let (before, number) = before.split_at(before.trim_end_matches(is_digit).len());
    let set = if before.is_empty() { before } else { before.strip_suffix(['-', '_', '.'])? };
    (!number.is_empty() && !count.is_empty()).then_some((set, [before, number, count, rest]))
}

/// Returns the hash after the number of parts in the name of a file; an empty text if there is none. A short suffix may
/// be the code of a language, and digits may be a date.
fn hash_of_part(name: &str) -> &str {
    let suffix = OF.iter().find_map(|of| split_part(name, of)).map_or("", |(_, [.., rest])| suffix_of(rest));
    let is_long = |hash: &&str| hash.len() >= 8 && hash.contains(|digit: char| digit.is_ascii_alphabetic());
    hash_in(suffix).filter(is_long).unwrap_or_default()
}

/// Returns what stands between the number of parts and the extension, where `rest` is all that follows that number.
fn suffix_of(rest: &str) -> &str {
    rest.split('.').next().unwrap_or_default()
}

/// Returns the hash or the UUID that `suffix`, such as `-5f1e`, consists of.
fn hash_in(suffix: &str) -> Option<&str> {
    let is_hash = |hash: &&str| is_uuid(hash) || hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    suffix.strip_prefix('-').filter(is_hash)
}

/// True if git has given a commit this name.
pub(super) fn is_commit(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the names of the parts of one data set have in common.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// What stands before the number: `train-`.
    before: String,
    /// What stands before the number of parts, one of [`OF`].
    of: &'static str,
    /// The number of parts, as it is written: `00002`.
    count: String,
}

impl Part {
    /// Returns the name of the data set, the number of the part, and what the parts have in common: `train`, 1 and
    /// `train-*-of-00002` of `train-00001-of-00002.parquet`. What follows the count is part of the name, such as `-en`,
    /// unless it is a hash.
    fn of(name: &str, of: &'static str) -> Option<(String, u64, Self)> {
        let (set, [before, number, count, rest]) = split_part(name, of)?;
        let suffix = Some(suffix_of(rest)).filter(|suffix| hash_in(suffix).is_none()).unwrap_or_default();
        let part = Self { before: before.to_owned(), of, count: count.to_owned() };
        Some((format!("{set}{suffix}"), number.parse().ok()?, part))
    }

    /// Returns the name of the part `number`, without its extension.
    fn named(&self, number: &str) -> String {
        format!("{}{number}{}{}", self.before, self.of, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_is_named() {
        let problem = |paths: &[&str]| {
            let locations: Vec<_> = paths.iter().map(Location::new).collect();
            refuse_missing_parts("d/*", &locations).err().map(|error| error.to_string())
        };
        assert_eq!(
            problem(&[
                "d/a-0-of-2.csv",
                "d/a-1-of-2.csv",
                "d/b-1-of-1.csv",
                "d/list-of-names.csv",
                "d/a-of-b_0_of_1.csv"
            ]),
            None
        );
        assert_eq!(problem(&["d/a-00001-of-00002-0a.parquet", "d/a-00002-of-00002-f1.parquet"]), None);
        assert_eq!(problem(&["d/a-0-of-2-en.csv", "d/a-1-of-2-en.csv", "d/a-0-of-1-de.csv"]), None);
        for (paths, missing) in [
            (&["d/a-00000-of-00002.parquet"][..], "`a-00001-of-00002`"),
            (&["d/a-00001-of-00002.parquet", "e/a-00000-of-00002.parquet"], "`a-00000-of-00002`"),
            (&["a-1-of-3.csv", "a-3-of-3.csv"], "`a-2-of-3`"),
            (&["a_1_of_3.csv", "a_3_of_3.csv"], "`.`: the part `a_2_of_3`"),
            (&["a-of-b_0_of_2.csv"], "`a-of-b_1_of_2`"),
            (&["d/00000-of-00002.csv"], "`00001-of-00002`"),
            (&["d/a.00000-of-00002.csv"], "`a.00001-of-00002`"),
            (&["d/a-9-of-10.csv", "d/a-10-of-10.csv"], "`a-1-of-10`"),
        ] {
            let text = problem(paths).unwrap();
            assert!(text.contains(missing), "{text}");
        }
        for (path, pattern) in [
            ("a-00000-of-00009.csv", "a-0000[01]-of-*"),
            ("a_00000_of_00009.csv", "d/a_0000?_of_*"),
            ("a.00000-of-00009.csv", "*-of-00009*"),
            ("a_00000_of_00009.csv", "a_{00000,00001}_of_00009.csv"),
        ] {
            assert!(refuse_missing_parts(pattern, &[Location::new(path)]).is_ok(), "{pattern}");
            assert!(refuse_missing_parts("a*", &[Location::new(path)]).is_err(), "{path}");
        }
        let words = [Location::new("words_of_wisdom-00000-of-00002.csv")];
        assert!(refuse_missing_parts("words_of_wisdom*", &words).is_err());
    }

    #[test]
    fn parts_of_two_data_sets_with_one_name_are_refused() {
        let problem = |pattern: &str, paths: &[&str]| {
            let locations: Vec<_> = paths.iter().map(Location::new).collect();
            refuse_missing_parts(pattern, &locations).err().map(|error| error.to_string())
        };
        for (paths, one, other) in [
            (&["d/a-0-of-1.csv", "d/a-0-of-2.csv", "d/a-1-of-2.csv"][..], "`a-*-of-1*`", "`a-*-of-2*`"),
            (&["d/a_0_of_1.csv", "d/a_0_of_2.csv", "d/a_1_of_2.csv"], "`a_*_of_1*`", "`a_*_of_2*`"),
            (&["d/a-0-of-1.csv", "d/a_0_of_1.csv"], "`a-*-of-1*`", "`a_*_of_1*`"),
            (&["d/0-of-1.csv", "d/0-of-2.csv"], "`*-of-1*`", "`*-of-2*`"),
            (&["d/a-0-of-1.csv", "d/a-00000-of-00001.csv"], "`a-*-of-00001*`", "`a-*-of-1*`"),
        ] {
            for pattern in ["d", "d/*", "d/*-of-*"] {
                let text = problem(pattern, paths).unwrap();
                assert!(text.contains(one) && text.contains(other), "{text}");
            }
        }
        let [hash, other] = ["0123456789abcdef", "a123456789abcdef"];
        let uuid = "01890a5d-ac96-774b-bcce-b302099a8057";
        let of = |number: u64, suffix: &str| format!("d/a-{number}-of-2{suffix}.parquet");
        for (paths, is_refused) in [
            (&[of(0, &format!("-{hash}")), of(0, &format!("-{other}"))][..], true),
            (&[of(0, &format!("-{uuid}")), of(0, &format!("-{}", uuid.replace('0', "1")))], true),
            (&[of(0, ""), of(0, &format!("-{other}"))], true),
            (&[of(0, "-de"), of(0, "-fa"), of(1, "-de")], false),
            (&[of(0, "-20260101"), of(0, "-20260102"), of(1, "-20260101")], false),
            (&[of(0, "-20260101120000123"), of(0, "-20260102120000123"), of(1, "-20260101")], false),
            (&[of(0, &format!("-{hash}")), of(1, &format!("-{other}"))], false),
            (&[of(0, &format!("-{hash}")), of(1, &format!("-{uuid}"))], false),
        ] {
            let text = problem("d/*", &paths.iter().map(String::as_str).collect::<Vec<_>>());
            let [one, other] = [0, 1].map(|at| paths[at].trim_start_matches("d/"));
            let expected = format!("`d`: has two files of one part, `{one}` and `{other}`");
            assert_eq!(text.as_ref().is_some_and(|text| text.starts_with(&expected)), is_refused, "{text:?}");
            assert_eq!(text.is_some(), is_refused, "{text:?}");
        }
        let apart =
            ["d/a-0-of-1.csv", "d/b-0-of-2.csv", "d/b-1-of-2.csv", "e/a-0-of-2.csv", "e/a-1-of-2.csv"];
        assert_eq!(problem("*", &apart), None);
    }

    #[test]
    fn files_of_several_data_sets_are_refused() {
        let described =
            ["t/a/dataset_info.json", "t/b/dataset_info.json", "t/c/state.json", "dataset_info.json"];
        let folders = |paths: &[&str]| {
            let locations: Vec<_> = paths.iter().map(Location::new).collect();
            let exists = |path: &Path| described.iter().any(|name| path == Path::new(name));
            match refuse_several(&locations, exists) {
                Ok(()) => String::new(),
                Err(DataProblem::SeveralDataSets { folders }) => folders,
                Err(problem) => panic!("{problem}"),
            }
        };
        let [one, other] = ["a", "b"].map(|digit| format!("h/snapshots/{}", digit.repeat(40)));
        for (paths, expected) in [
            (&["t/a/x/1.parquet", "t/a/2.parquet"][..], String::new()),
            (&["t/a/x/1.parquet", "t/b/y/2.parquet"], "`t/a`, `t/b`".to_owned()),
            (
                &["t/a/1.arrow", "t/b/2.arrow", "t/c/3.arrow", "4.arrow"],
                "`.`, `t/a`, `t/b`, 1 more".to_owned(),
            ),
            (&["t/a/1.csv", "t/c/3.csv"], "`.`, `t/a`".to_owned()),
            (&[&format!("{one}/1.parquet"), &format!("{one}/x/1.parquet")], String::new()),
            (&[&format!("{one}/1.parquet"), &format!("{other}/x/1.parquet")], format!("`{one}`, `{other}`")),
            (
                &[&format!("s3://{one}/1.csv"), &format!("s3://{other}/1.csv")],
                format!("`s3://{one}`, `s3://{other}`"),
            ),
            (&["/versions/1/x.csv", "/versions/2/x.csv"], "`/versions/1`, `/versions/2`".to_owned()),
            (&["/versions/en/x.csv", "/versions/fr/x.csv"], String::new()),
        ] {
            assert_eq!(folders(paths), expected, "{paths:?}");
        }
    }

    #[test]
    fn names_tell_the_files_of_tables() {
        let uuid = "01890a5d-ac96-774b-bcce-b302099a8057";
        for (name, expected) in [
            (format!("ducklake-{uuid}.parquet"), true),
            (format!("ducklake-{uuid}-delete.parquet"), true),
            ("ducklake-of-all-rows-that-there-are-in-the-table.parquet".to_owned(), false),
            (format!("{uuid}.parquet"), false),
        ] {
            assert_eq!(is_of_ducklake(&name), expected, "{name}");
        }
        for (name, expected) in [
            ("v1.metadata.json", true),
            ("v1.gz.metadata.json", true),
            ("00001-01890a5d-ac96-774b-bcce-b302099a8057.metadata.json", true),
            ("00001-01890a5d-ac96-774b-bcce-b302099a8057.gz.metadata.json", true),
            ("00001.metadata.json", false),
            ("x.metadata.json", false),
            ("v1.json", false),
        ] {
            assert_eq!(is_metadata_of_iceberg(name), expected, "{name}");
        }
    }
}
