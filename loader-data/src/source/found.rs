//! What is known of files that were found in a folder or by wildcards: their order, which of them are copies, and the columns
//! that the names of their folders give.

use std::{cmp::Ordering, collections::BTreeSet, path::Path};

use super::{DataFile, Location};
use crate::error::{DataError, DataProblem, Result};

/// Files with which `datasets` and `transformers` describe data and models.
const DESCRIPTIONS: [&str; 4] =
    ["config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"];
/// Extensions of formats of rows that are read without the columns in the names of their folders.
const ROWS: [&str; 5] = [".csv", ".tsv", ".jsonl", ".ndjson", ".json"];
/// Extensions of the formats that are read with the columns in the names of their folders.
const WITH_PARTITIONS: [&str; 2] = [".parquet", ".arrow"];
/// The extension of lines of text, which have no columns.
const TEXT: &str = ".txt";
/// What stands for null in the name of the folder of a partition.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Compares two names so that numbers in them are ordered by their value: `part-2` comes before `part-10`. Everything
/// else is ordered bytewise.
pub(super) fn natural_order(one: &[u8], other: &[u8]) -> Ordering {
    let (mut left, mut right) = (one, other);
    while let (Some(a), Some(b)) = (left.first(), right.first()) {
        let order = if a.is_ascii_digit() && b.is_ascii_digit() {
            let (first, second) = (take_number(&mut left), take_number(&mut right));
            first.len().cmp(&second.len()).then_with(|| first.cmp(second))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            a.cmp(b)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| one.cmp(other))
}

/// Takes the digits at the beginning of `text`, and returns them without leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    &digits[digits.iter().position(|&digit| digit != b'0').unwrap_or(digits.len())..]
}

/// Returns a function that is true for hidden names: those that neither a folder nor a wildcard stands for, in a format
/// with these `extensions`. Names that begin with a dot are hidden. In the formats of rows, names that begin with `_` are
/// hidden too, except those of partitions: Spark, Hive and pyarrow write files and folders such as `_temporary` and
/// `_SUCCESS` beside the rows, and leave such names out when they read.
pub(super) fn hidden_names(extensions: &[&str]) -> fn(&str) -> bool {
    let is_of_rows = |extension: &&str| {
        ROWS.contains(extension) || WITH_PARTITIONS.contains(extension) || *extension == TEXT
    };
    if extensions.iter().any(is_of_rows) { is_hidden_in_rows } else { is_dotted }
}

/// True if the name is hidden in the formats of rows: neither a folder nor a wildcard stands for it.
pub fn is_hidden_in_rows(name: &str) -> bool {
    is_dotted(name) || (name.starts_with('_') && !is_partition(name))
}

pub(crate) fn is_dotted(name: &str) -> bool {
    name.starts_with('.')
}

/// True if a folder or a wildcard does not stand for a file of this name: a description of the data, or a copy of rows.
pub(super) fn is_beside_data(name: &str) -> bool {
    DESCRIPTIONS.contains(&name) || is_cache_of_datasets(name)
}

/// True if a file that `pattern` matches, and that is beside data, is left out. A pattern such as `cache-*.arrow` is meant.
pub(super) fn is_left_out(pattern: &str, name: &str) -> bool {
    let is_named = pattern.rsplit('/').next().is_some_and(|last| last.starts_with("cache-"));
    is_beside_data(name) && !is_named
}

/// True if Hugging Face's `datasets` has given a file this name: `map`, `filter` and `shuffle` write such files beside the rows
/// that they have read.
fn is_cache_of_datasets(name: &str) -> bool {
    let Some(hash) = name.strip_prefix("cache-").and_then(|name| name.strip_suffix(".arrow")) else {
        return false;
    };
    let (hash, number) = hash.split_once('_').map_or((hash, None), |(hash, number)| (hash, Some(number)));
    hash.len() == 16
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        && number.is_none_or(|text| {
            text.split_once("_of_").is_some_and(|(number, count)| is_number(number) && is_number(count))
        })
}

/// Finds the partition of each file. A folder that is named `column=value` is a value of a column if the pattern in
/// `given` that stands for the file does not name it: it lies below a folder, or a wildcard or braces have matched it.
///
/// # Errors
/// Fails if a column would be missing: because the format with these `extensions` is read without such columns, or
/// because `given` names the folders of several partitions. A format that is no table, such as tar, has no columns: it
/// reads the files of one partition, and of several if `given` names their folders. Also fails if the name of a folder
/// cannot be decoded.
pub(super) fn find_partitions<P: AsRef<Path>>(
    files: &mut [DataFile],
    given: &[P],
    extensions: &[&str],
) -> Result<()> {
    let has_columns = extensions.iter().any(|extension| WITH_PARTITIONS.contains(extension));
    let is_table = has_columns || extensions.iter().any(|extension| ROWS.contains(extension));
    let given: Vec<_> = given.iter().map(|path| path.as_ref().to_string_lossy().into_owned()).collect();
    let given: Vec<Vec<&str>> = given.iter().map(|path| parts_of(path)).collect();
    let mut first: Option<[Vec<String>; 2]> = None;
    for file in files {
        let path = file.location.as_path().to_string_lossy().into_owned();
        let parts = parts_of(&path);
        let named = given.iter().filter_map(|pattern| named_in(pattern, &parts)).max_by_key(BTreeSet::len);
        // A server may list a file under another URL than that of the pattern. Then the name of a folder decides.
        let has_name = |at: &usize| given.iter().any(|pattern| pattern.contains(&parts[*at]));
        let named = named.unwrap_or_else(|| (0..parts.len()).filter(has_name).collect());
        let folders = (0..parts.len().saturating_sub(1)).filter(|&at| is_partition(parts[at]));
        let (named, found): (Vec<_>, Vec<_>) = folders.partition(|at| named.contains(at));
        let [named, found] = [named, found].map(|at| at.into_iter().map(|at| parts[at]).collect::<Vec<_>>());
        let refused = |problem: fn(String) -> DataProblem, folders: &[&str]| {
            Err(DataError::new(&file.location, problem(folders.join("/"))))
        };
        let owned = |folders: &Vec<&str>| folders.iter().map(|&folder| folder.to_owned()).collect();
        let [first_named, first_found] = &*first.get_or_insert_with(|| [owned(&named), owned(&found)]);
        if !has_columns && (*first_found != found || (is_table && !found.is_empty())) {
            let found =
                if first_found.is_empty() { found } else { first_found.iter().map(String::as_str).collect() };
            return refused(|folders| DataProblem::Partition { folders }, &found);
        }
        if is_table && *first_named != named {
            let named =
                if named.is_empty() { first_named.iter().map(String::as_str).collect() } else { named };
            return refused(|folders| DataProblem::NamedPartitions { folders }, &named);
        }
        for folder in found.into_iter().filter(|_| has_columns) {
            file.partition
                .push(column_of(folder).map_err(|problem| DataError::new(&file.location, problem))?);
        }
    }
    Ok(())
}

/// Returns the folders of partitions directly above a file, such as `year=2024/month=1`, also those that the pattern of
/// the file names. A folder further up, such as `job=7`, is not part of the table.
pub(super) fn partition_of(file: &Location) -> String {
    let path = file.as_path().to_string_lossy();
    let mut parts = parts_of(&path);
    parts.pop();
    // In a URL, the first part may have a password.
    let parts = &parts[usize::from(matches!(file, Location::Url(_))).min(parts.len())..];
    let above = parts.iter().rposition(|folder| !is_partition(folder)).map_or(0, |last| last + 1);
    parts[above..].join("/")
}

/// Returns the names in `path`, a path or a URL.
fn parts_of(path: &str) -> Vec<&str> {
    let path = match path.split_once("://") {
        // The keys of an object store may have a `?`.
        Some(("http" | "https", rest)) => rest.split_once('?').map_or(rest, |(path, _)| path),
        Some((_, rest)) => rest,
        None => path,
    };
    path.split('/').filter(|part| !matches!(*part, "" | ".")).collect()
}

/// Returns the positions of the names in `path` that `pattern` has too; `None` if the pattern does not stand for the
/// path.
fn named_in(pattern: &[&str], path: &[&str]) -> Option<BTreeSet<usize>> {
    let is_any = |part: &&str| *part == "**";
    let before = pattern.iter().position(is_any).unwrap_or(pattern.len());
    let after = pattern.iter().rposition(is_any).map_or(0, |last| pattern.len() - 1 - last);
    // After `**`, the names are counted from the end.
    let from_end = (pattern.len() - after..pattern.len()).zip(path.len().saturating_sub(after)..);
    let mut named = BTreeSet::new();
    for (of_pattern, at) in (0..before).map(|at| (at, at)).chain(from_end) {
        match path.get(at) {
            Some(part) if *part == pattern[of_pattern] => drop(named.insert(at)),
            Some(_) if pattern[of_pattern].contains(['*', '?', '[', '{']) => {}
            _ => return None,
        }
    }
    Some(named)
}

fn is_partition(folder: &str) -> bool {
    folder.split_once('=').is_some_and(|(column, _)| !column.is_empty())
}

/// Returns the column that a folder gives, and its value; `None` for null.
fn column_of(folder: &str) -> Result<(String, Option<String>), DataProblem> {
    let (column, value) = folder.split_once('=').unwrap_or((folder, ""));
    let decoded = |text| decode(text).ok_or_else(|| DataProblem::PartitionName { folder: folder.to_owned() });
    Ok((decoded(column)?, Some(decoded(value)?).filter(|value| value != NULL)))
}

/// Decodes bytes that are written as `%` and two hexadecimal digits. Returns `None` if the text is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|digits| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_ordered_by_their_value() {
        let mut names =
            ["part-10", "part-2", "part-1", "part-01", "part-2b", "part-", "b", "part-2-1", "part-002"];
        names.sort_by(|one, other| natural_order(one.as_bytes(), other.as_bytes()));
        let expected =
            ["b", "part-", "part-01", "part-1", "part-002", "part-2", "part-2-1", "part-2b", "part-10"];
        assert_eq!(names, expected);
    }

    #[test]
    fn files_that_map_of_datasets_has_written_are_known_by_their_names() {
        for name in ["cache-0123456789abcdef.arrow", "cache-0123456789abcdef_00001_of_00004.arrow"] {
            assert!(is_cache_of_datasets(name), "{name}");
        }
        for name in
            ["cache-1.arrow", "json-train.arrow", "cache-0123456789abcdef_x.arrow", "cache-of-mine.arrow"]
        {
            assert!(!is_cache_of_datasets(name), "{name}");
        }
    }

    fn partitions(given: &[&str], paths: &[&str], extension: &str) -> Result<Vec<Vec<String>>, DataProblem> {
        let file = |path: &&str| {
            let version = String::new();
            DataFile { location: Location::new(path), len: 1, version, partition: Vec::new() }
        };
        let mut files: Vec<_> = paths.iter().map(file).collect();
        find_partitions(&mut files, given, &[extension]).map_err(|error| error.problem)?;
        let column = |(column, value): &(String, Option<String>)| format!("{column}={value:?}");
        Ok(files.iter().map(|file| file.partition.iter().map(column).collect()).collect())
    }

    #[test]
    fn folders_that_were_found_are_columns() {
        let table = ["t/a=1/b=x%2Fy/0", "t/a=2/b=__HIVE_DEFAULT_PARTITION__/0"];
        let both = [vec![r#"a=Some("1")"#, r#"b=Some("x/y")"#], vec![r#"a=Some("2")"#, "b=None"]];
        for given in [&["t"][..], &["./t/"], &["t/**/*"], &["t/a={1,2}/*/*"], &["file:///t"]] {
            assert_eq!(partitions(given, &table, ".parquet").unwrap(), both, "{given:?}");
        }
        let named = partitions(&["s3://k:s@b/a=1/"], &["s3://k:s@b/a=1/b=%zz%2/x.arrow"], ".arrow").unwrap();
        assert_eq!(named, [[r#"b=Some("%zz%2")"#]]);
        let none: Vec<String> = Vec::new();
        assert_eq!(partitions(&["t"], &["t/=1/x", "t/x=1"], ".parquet").unwrap(), [none.clone(), none]);
        let problem = partitions(&["t"], &["t/a=%ff/x"], ".parquet").unwrap_err();
        assert!(matches!(problem, DataProblem::PartitionName { folder } if folder == "a=%ff"));
    }

    #[test]
    fn a_folder_is_named_only_where_the_pattern_has_it() {
        let columns = |given: &[&str], path: &str| {
            let found = partitions(given, &[path], ".parquet").unwrap().concat();
            found.iter().map(|column| column.replace("Some(\"", "").replace("\")", "")).collect::<Vec<_>>()
        };
        for (given, path, expected) in [
            (&["e/dt=1/t"][..], "e/dt=1/t/dt=1/x.parquet", &["dt=1"][..]),
            (&["t/a=1", "u"], "u/a=1/x.parquet", &["a=1"]),
            (&["t/a=1", "u"], "t/a=1/x.parquet", &[]),
            (&["./t/a=1/"], "./t/a=1/b=2/x.parquet", &["b=2"]),
            (&["t/*/b=2/*.parquet"], "t/a=1/b=2/x.parquet", &["a=1"]),
            (&["t/**/b=2/*.parquet"], "t/b=2/a=1/b=2/x.parquet", &["b=2", "a=1"]),
            (&["t/a={1,2}"], "t/a=1/x.parquet", &["a=1"]),
            (&["s3://b/a=1"], "s3://b/a=1/c=3/x.parquet", &["c=3"]),
        ] {
            assert_eq!(columns(given, path), expected, "{given:?}, {path}");
        }
    }

    #[test]
    fn partitions_whose_columns_would_be_missing_are_refused() {
        let none: Vec<String> = Vec::new();
        let one = partitions(&["t/a=1"], &["t/a=1/x.csv", "t/a=1/y.csv"], ".csv").unwrap();
        assert_eq!(one, [none.clone(), none.clone()]);
        for (given, paths) in [
            (&["t"][..], &["t/a=1/x.tar", "t/a=1/y.tar"]),
            (&["t/a=1", "t/a=2"], &["t/a=1/x.tar", "t/a=2/x.tar"]),
        ] {
            assert_eq!(partitions(given, paths, ".tar").unwrap(), [none.clone(), none.clone()], "{given:?}");
        }
        for extension in [".csv.gz", ".jsonl", ".txt", ".npz", ".tar", ".bin", ".wav"] {
            for paths in [["t/a=1/x", "t/a=2/x"], ["t/x", "t/a=1/x"]] {
                let paths = paths.map(|path| format!("{path}{extension}"));
                let problem =
                    partitions(&["t"], &paths.each_ref().map(String::as_str), extension).unwrap_err();
                assert!(
                    matches!(problem, DataProblem::Partition { folders } if folders == "a=1"),
                    "{paths:?}"
                );
            }
        }
        for (given, extension) in [(["t/a=1", "t/a=2"], ".parquet"), (["t/a=1", "t"], ".csv")] {
            let paths = ["t/a=1/x.csv", if given[1] == "t" { "t/x.csv" } else { "t/a=2/x.csv" }];
            let problem = partitions(&given, &paths, extension).unwrap_err();
            assert!(matches!(problem, DataProblem::NamedPartitions { .. }), "{given:?}: {problem}");
        }
    }

    #[test]
    fn the_folders_of_partitions_are_those_above_the_file() {
        for (path, expected) in [
            ("/a=1/t/b=x%20y/c=3.csv", "b=x%20y"),
            ("/a=1/t/b=2/c=3/x.csv", "b=2/c=3"),
            ("t/x.csv", ""),
            ("s3://key:a=1@bucket/b=2/x.csv", "b=2"),
            ("https://host/b=2/x.csv?signature=a/c=3/x", "b=2"),
        ] {
            assert_eq!(partition_of(&Location::new(path)), expected);
        }
    }
}
