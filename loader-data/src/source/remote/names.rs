//! What the keys that a server has listed tell: hidden names, and files that are parts of a table.

use std::collections::{BTreeMap, BTreeSet};

use super::super::whole::{
    DESCRIPTION, ICEBERG, ICEBERG_DATA, ICEBERG_NAME, LOGS, LogFolder, STATE, is_metadata_of_iceberg,
};

/// True if a wildcard of `pattern` matches a name in `path` for which `is_hidden` is true. Programs write such names
/// beside the data.
pub(super) fn matches_hidden(pattern: &str, path: &str, is_hidden: fn(&str) -> bool) -> bool {
    let is_hidden = |name: &&str| is_hidden(name) && !matches!(*name, "." | "..");
    let hidden = |path: &str| path.split('/').filter(is_hidden).count();
    hidden(path) > hidden(pattern)
}

/// Returns the folders that may belong to a log, but only the names of their files tell. `folders` are all sub-folders
/// of one folder.
pub(super) fn possible_log_folders<T>(folders: &[T], name: impl Fn(&T) -> &str) -> Vec<&T> {
    let find = |log: &LogFolder| folders.iter().find(|folder| name(folder) == log.0);
    let with_files = |log: &&LogFolder| log.1.is_some();
    let all = LOGS.iter().filter(|(log, _)| log.iter().all(|folder| find(folder).is_some()));
    all.flat_map(|(log, _)| log.iter().filter(with_files)).filter_map(find).collect()
}

/// The tables of whose metadata a server has listed objects or folders.
#[derive(Default)]
pub(super) struct ListedTables(BTreeMap<(String, &'static str), BTreeSet<&'static str>>);

impl ListedTables {
    /// Adds the table to whose metadata the object or the folder with the key `key` belongs, if it belongs to any.
    pub(super) fn add(&mut self, key: &str) {
        let mut start = 0;
        for part in key.split('/') {
            let file = key.get(start + part.len() + 1..).unwrap_or_default();
            let is_such = |(name, is_of_log): &&LogFolder| {
                *name == part && is_of_log.is_none_or(|is_of_log| is_of_log(file))
            };
            for (folders, format) in LOGS {
                if let Some((name, _)) = folders.iter().find(is_such) {
                    self.0.entry((key[..start].to_owned(), format)).or_default().insert(name);
                }
            }
            start += part.len() + 1;
        }
        let in_folder = key.rsplit_once('/').filter(|(_, name)| is_metadata_of_iceberg(name));
        let table = in_folder.and_then(|(folder, _)| folder.strip_suffix(ICEBERG.0));
        if let Some(table) = table.filter(|table| table.is_empty() || table.ends_with('/')) {
            self.0.entry((format!("{table}{ICEBERG_DATA}/"), ICEBERG_NAME)).or_default();
        }
    }

    /// Returns what the keys of each table's files begin with, and the name of its format.
    pub(super) fn all(self) -> Vec<(String, &'static str)> {
        let has_all = |format: &str, found: &BTreeSet<&str>| {
            LOGS.iter().all(|(folders, other)| *other != format || folders.len() == found.len())
        };
        let tables = self.0.into_iter().filter(|((_, format), found)| has_all(format, found));
        tables.map(|(table, _)| table).collect()
    }
}

/// Returns the key of the folder of a table that [`ListedTables`] has found.
pub(super) fn folder_of_table(files: &str) -> &str {
    files.strip_suffix(&format!("{ICEBERG_DATA}/")).unwrap_or(files)
}

/// True if a file of this name may say that its folder is a whole data set.
pub(super) fn is_description(name: &str) -> bool {
    name == DESCRIPTION || name == STATE
}

#[cfg(test)]
mod tests {
    use super::{super::super::found::is_dotted, *};

    #[test]
    fn a_wildcard_does_not_match_a_hidden_name() {
        for (pattern, path) in [("./data/*.tar", "data/._a.tar"), ("../*/a", "../.git/a"), ("**/*.x", "a/.x")]
        {
            assert!(matches_hidden(pattern, path, is_dotted), "{pattern} {path}");
        }
        for (pattern, path) in [("./data/*.tar", "data/a.tar"), (".*", ".a"), ("/tmp/.a/*", "/tmp/.a/b")] {
            assert!(!matches_hidden(pattern, path, is_dotted), "{pattern} {path}");
        }
    }

    #[test]
    fn keys_tell_the_tables() {
        for (keys, table) in [
            (&["t/_delta_log/00.json"][..], Some(("t/", "Delta Lake"))),
            (&["t/_delta_log"], Some(("t/", "Delta Lake"))),
            (&[".hoodie/x"], Some(("", "Hudi"))),
            (&["t/_spark_metadata/0"], Some(("t/", "Spark Structured Streaming"))),
            (&["t/manifest/m", "t/schema/schema-0", "t/snapshot/LATEST"], Some(("t/", "Paimon"))),
            (&["t/manifest", "t/schema/schema-0", "t/snapshot/snapshot-12"], Some(("t/", "Paimon"))),
            (&["t/manifest", "t/schema", "t/snapshot"], None),
            (&["t/manifest/m", "t/schema/schema-a", "t/snapshot/LATEST"], None),
            (&["t/manifest/m", "t/schema/schema-0", "t/snapshot/LATEST/x"], None),
            (&["t/manifest/m", "t/schema/schema-0", "u/snapshot/LATEST"], None),
            (&["t/metadata/v1.metadata.json"], Some(("t/data/", "Iceberg"))),
            (&["metadata/v1.metadata.json"], Some(("data/", "Iceberg"))),
            (&["t/metadata/a.json"], None),
            (&["t/my_metadata/v1.metadata.json"], None),
            (&["t/a.parquet"], None),
        ] {
            let mut tables = ListedTables::default();
            keys.iter().for_each(|key| tables.add(key));
            let tables = tables.all();
            let tables: Vec<_> = tables.iter().map(|(table, format)| (table.as_str(), *format)).collect();
            assert_eq!(tables, Vec::from_iter(table), "{keys:?}");
        }
    }
}
