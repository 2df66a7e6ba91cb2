//! Whether the files that a folder or wildcards stand for are those of one data set, and all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::Path,
};

use super::{DataFile, Location, found::is_number};
use crate::error::{DataError, DataProblem, Result};

/// The folders in which table formats keep their logs, and the names of the formats.
const LOGS: [(&str, &str); 2] = [("_delta_log", "Delta Lake"), (".hoodie", "Hudi")];
/// The folder in which Iceberg keeps its metadata, and the end of the names of the files there.
const ICEBERG: (&str, &str) = ("metadata", ".metadata.json");
/// The folder beside it in which Iceberg keeps the rows. Other folders may have files of another origin.
const ICEBERG_DATA: &str = "data";
/// What stands between the number of a part and the number of parts in the name of a file.
const OF: [&str; 2] = ["-of-", "_of_"];

/// Fails if a folder of local `files`, or one around it, is that of a table whose files also have rows that were deleted or
/// replaced.
pub(super) fn refuse_table_formats(files: &[DataFile]) -> Result<()> {
    let (mut written, mut seen) = (HashSet::new(), HashSet::new());
    for file in files {
        let Location::Path(path) = &file.location else { continue };
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        if !is_parquet(&file.location.file_name()) || !written.insert(folder.to_owned()) {
            continue;
        }
        // The working directory, or the target of a link, may be in a table.
        let folder = Path::new(".").join(folder).canonicalize();
        let folder = folder.map_err(|error| DataError::new(&file.location, error))?;
        for folder in folder.ancestors() {
            if !seen.insert(folder.to_owned()) {
                break;
            }
            if let Some((table, format)) = table_of(folder) {
                let table = Location::from(table.to_owned());
                return Err(DataError::new(table, DataProblem::TableFormat { format }));
            }
        }
    }
    Ok(())
}

/// Returns the folder of the table whose files are in `folder` or below it, and the name of its format.
fn table_of(folder: &Path) -> Option<(&Path, &'static str)> {
    if let Some((_, format)) = LOGS.iter().find(|(name, _)| folder.join(name).is_dir()) {
        return Some((folder, format));
    }
    let table = folder.parent().filter(|_| folder.ends_with(ICEBERG_DATA))?;
    let mut entries = fs::read_dir(table.join(ICEBERG.0)).into_iter().flatten().map_while(Result::ok);
    let is_iceberg = entries.any(|entry| is_metadata_of_iceberg(&entry.file_name().to_string_lossy()));
    is_iceberg.then_some((table, "Iceberg"))
}

/// Returns what the keys of a table's files begin with, and the name of the table's format, if an object or a folder with
/// the key `key` is part of the metadata of a table.
#[cfg(feature = "cloud")]
pub(super) fn table_of_key(key: &str) -> Option<(String, &'static str)> {
    let mut start = 0;
    for part in key.split('/') {
        if let Some((_, format)) = LOGS.iter().find(|(name, _)| part == *name) {
            return Some((key[..start].to_owned(), format));
        }
        start += part.len() + 1;
    }
    let (folder, name) = key.rsplit_once('/')?;
    let table = folder.strip_suffix(ICEBERG.0).filter(|table| table.is_empty() || table.ends_with('/'))?;
    is_metadata_of_iceberg(name).then(|| (format!("{table}{ICEBERG_DATA}/"), "Iceberg"))
}

/// Returns the key of the folder of a table that [`table_of_key`] has found.
#[cfg(feature = "cloud")]
pub(super) fn folder_of_table(files: &str) -> &str {
    files.strip_suffix(&format!("{ICEBERG_DATA}/")).unwrap_or(files)
}

/// True if a file in the folder `metadata` has the name of Iceberg's: `v3.metadata.json`, or `00003-`, a UUID and the end.
fn is_metadata_of_iceberg(name: &str) -> bool {
    let version = name
        .strip_suffix(ICEBERG.1)
        .map(|version| version.split_once('-').map_or(version, |(first, _)| first));
    version.is_some_and(|version| is_number(version.strip_prefix('v').unwrap_or(version)))
}

pub(super) fn is_parquet(name: &str) -> bool {
    name.ends_with(".parquet")
}

/// Fails if one of the parts of a data set is missing, which their names count: `train-00001-of-00002.parquet`. Also fails
/// if a folder has the parts of two data sets with one name: a writer has left those of an older one.
/// A pattern whose wildcards are in the numbers chooses among the parts.
pub(crate) fn refuse_missing_parts<'a>(
    pattern: &str,
    files: impl IntoIterator<Item = &'a Location>,
) -> Result<()> {
    let last = pattern.rsplit('/').next().unwrap_or_default();
    let has_numbers = OF.iter().any(|of| last.contains(of));
    let mut sets: BTreeMap<(Location, String), BTreeMap<Part, BTreeSet<u64>>> = BTreeMap::new();
    for file in files {
        let name = file.file_name();
        if let Some((name, number, part)) = OF.iter().find_map(|of| Part::of(&name, of)) {
            let parts = sets.entry((file.folder().or_here(), name)).or_default();
            parts.entry(part).or_default().insert(number);
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
            let from = u64::from(!numbers.contains(&0) && numbers.contains(&count));
            let missing = (from..).find(|number| !numbers.contains(number)).unwrap_or(from);
            let (width, pattern) = (part.count.len(), format!("{}*", part.named("*")));
            let part = part.named(&format!("{missing:0width$}"));
            return Err(DataError::new(folder, DataProblem::MissingPart { part, pattern }));
        }
    }
    Ok(())
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
    /// `train-*-of-00002` of `train-00001-of-00002.parquet`.
    fn of(name: &str, of: &'static str) -> Option<(String, u64, Self)> {
        let (before, after) = name.rsplit_once(of)?;
        let end = after.find(|character: char| !character.is_ascii_digit()).unwrap_or(after.len());
        let count = &after[..end];
        let digits = before.trim_end_matches(|character: char| character.is_ascii_digit()).len();
        let (before, number) = before.split_at(digits);
        let set = if before.is_empty() { before } else { before.strip_suffix(['-', '_', '.'])? };
        (is_number(number) && is_number(count)).then_some(())?;
        let part = Self { before: before.to_owned(), of, count: count.to_owned() };
        Some((set.to_owned(), number.parse().ok()?, part))
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
        assert_eq!(problem(&["d/a-00001-of-00002-x.parquet", "d/a-00002-of-00002-y.parquet"]), None);
        for (paths, missing) in [
            (&["d/a-00000-of-00002.parquet"][..], "`a-00001-of-00002`"),
            (&["d/a-00001-of-00002.parquet", "e/a-00000-of-00002.parquet"], "`a-00000-of-00002`"),
            (&["a-1-of-3.csv", "a-3-of-3.csv"], "`a-2-of-3`"),
            (&["a_1_of_3.csv", "a_3_of_3.csv"], "`.`: the part `a_2_of_3`"),
            (&["a-of-b_0_of_2.csv"], "`a-of-b_1_of_2`"),
            (&["d/00000-of-00002.csv"], "`00001-of-00002`"),
            (&["d/a.00000-of-00002.csv"], "`a.00001-of-00002`"),
        ] {
            let text = problem(paths).unwrap();
            assert!(text.contains(missing), "{text}");
        }
        for (path, pattern) in [
            ("a-00000-of-00009.csv", "a-0000[01]-of-*"),
            ("a_00000_of_00009.csv", "d/a_0000?_of_*"),
            ("a.00000-of-00009.csv", "*-of-00009*"),
        ] {
            assert!(refuse_missing_parts(pattern, &[Location::new(path)]).is_ok(), "{pattern}");
            assert!(refuse_missing_parts("a*", &[Location::new(path)]).is_err(), "{path}");
        }
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
        let apart =
            ["d/a-0-of-1.csv", "d/b-0-of-2.csv", "d/b-1-of-2.csv", "e/a-0-of-2.csv", "e/a-1-of-2.csv"];
        assert_eq!(problem("*", &apart), None);
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn a_key_tells_the_table() {
        for (key, table) in [
            ("t/_delta_log/00.json", Some(("t/", "Delta Lake"))),
            ("t/_delta_log", Some(("t/", "Delta Lake"))),
            (".hoodie/x", Some(("", "Hudi"))),
            ("t/metadata/v1.metadata.json", Some(("t/data/", "Iceberg"))),
            ("t/metadata/a.json", None),
            ("t/my_metadata/v1.metadata.json", None),
            ("t/a.parquet", None),
        ] {
            let found = table_of_key(key);
            assert_eq!(found.as_ref().map(|(table, format)| (table.as_str(), *format)), table, "{key}");
        }
    }
}
