//! Checks that each behaviour of PyTorch's `DataLoader` has a test that shows it or a reason why none does.
//!
//! A row of `coverage.toml` is one argument, one rule or one upstream test. A comment above the attributes of
//! a test, the tag, names the rows that the test shows:
//!
//! ```text
//! // PyTorch: 35, 60, A17
//! #[test]
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// How a tag begins.
const TAG: &str = "// PyTorch:";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// What PyTorch does.
    about: String,
    /// Why no test shows it, or what differs here on purpose.
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Coverage {
    rows: BTreeMap<String, Row>,
}

/// Returns the names of all rows: arguments (A), datasets (D), samplers (S), fetching (F), collation (C),
/// worker information (W), randomness (R), protocol (P), scenarios (X), state (T), behaviour without a test
/// in PyTorch (N), complaints of PyTorch's users (U), sections without letters, and the numbered tests of
/// PyTorch (1 to 117) and torchdata (200 to 280).
fn all_rows() -> BTreeSet<String> {
    let ranges = [
        ("A", 1..=18),
        ("A", 30..=37),
        ("D", 1..=10),
        ("S", 1..=9),
        ("F", 1..=6),
        ("C", 1..=14),
        ("W", 1..=5),
        ("R", 1..=11),
        ("P-", 1..=7),
        ("P-", 20..=32),
        ("P-", 40..=46),
        ("X", 1..=25),
        ("T", 1..=20),
        ("N", 1..=21),
        ("U", 1..=38),
    ];
    let lettered =
        ranges.into_iter().flat_map(|(letter, range)| range.map(move |row| format!("{letter}{row:02}")));
    let sections = [
        "1.2", "1.3", "1.4", "1.5", "1.6", "2.1.1", "2.2.1", "2.4.2", "2.4.3", "3.10a", "3.10b", "3.10c",
        "3.10d", "3.10e", "3.10f", "3.10g",
    ];
    let numbered = (1..=117).chain(200..=280).map(|row: u32| row.to_string());
    lettered.chain(sections.map(str::to_owned)).chain(numbered).collect()
}

/// Reads the table. TOML refuses two rows with the same name.
fn coverage() -> BTreeMap<String, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch_rows/coverage.toml");
    let text = fs::read_to_string(path).unwrap();
    toml::from_str::<Coverage>(&text).unwrap_or_else(|error| panic!("coverage.toml: {error}")).rows
}

/// Returns the Rust sources below `tests` and the folders of the loader's crates.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap());
    let has_tests = |name: &str| name == "tests" || name.starts_with("loader");
    let mut folders: Vec<PathBuf> = folders
        .filter(|entry| entry.file_name().to_str().is_some_and(has_tests))
        .map(|entry| entry.path())
        .collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                // Folders of this name hold what cargo built.
                folders.extend((entry.file_name() != "target").then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(path);
            }
        }
    }
    sources
}

/// Returns the line number and the name of each row that the tags in a source name.
///
/// # Errors
/// The line number of a tag that does not stand above the attributes of a test.
fn tags_in(text: &str) -> Result<Vec<(usize, String)>, usize> {
    let (mut tags, mut open, mut is_test) = (Vec::new(), None, false);
    for (number, line) in (1..).zip(text.lines().map(str::trim_start)) {
        if let Some(rows) = line.strip_prefix(TAG) {
            open.get_or_insert(number);
            tags.extend(rows.split(',').map(|row| (number, row.trim().to_owned())));
        } else if let Some(tag) = open {
            if line == "#[test]" {
                is_test = true;
            } else if is_test && line.starts_with("fn ") {
                (open, is_test) = (None, false);
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                return Err(tag);
            }
        }
    }
    open.map_or(Ok(tags), Err)
}

/// Returns the locations, as `file:line`, that name each row.
fn tagged() -> BTreeMap<String, Vec<String>> {
    let mut locations = BTreeMap::<String, Vec<String>>::new();
    for source in sources() {
        let tags = tags_in(&fs::read_to_string(&source).unwrap());
        let tags = tags.unwrap_or_else(|line| panic!("{}:{line}: no test follows the tag", source.display()));
        for (line, row) in tags {
            locations.entry(row).or_default().push(format!("{}:{line}", source.display()));
        }
    }
    locations
}

#[test]
fn every_row_is_in_the_table() {
    let (rows, said) = (all_rows(), coverage());
    let missing: Vec<_> = rows.iter().filter(|row| !said.contains_key(*row)).collect();
    assert!(missing.is_empty(), "the table lacks {missing:?}");
    let unknown: Vec<_> = said.keys().filter(|row| !rows.contains(*row)).collect();
    assert!(unknown.is_empty(), "there are no such rows: {unknown:?}");
}

#[test]
fn every_row_has_a_test_or_a_reason() {
    let tagged = tagged();
    let mut counts = BTreeMap::<&str, usize>::new();
    for (id, row) in coverage() {
        assert!(!row.about.is_empty(), "{id} does not say what PyTorch does");
        let kind = match (tagged.contains_key(&id), &row.reason) {
            // A reason beside a test says what differs.
            (true, _) => "shown by tests",
            (false, Some(reason)) => {
                assert!(reason.len() > 10, "{id}: the reason is too short");
                "not applicable, or different on purpose"
            }
            (false, None) => panic!("{id} needs a test with its tag, or a reason"),
        };
        *counts.entry(kind).or_default() += 1;
    }
    println!("{counts:?}");
}

#[test]
fn every_tag_names_a_row() {
    let rows = coverage();
    let unknown: Vec<_> = tagged().into_iter().filter(|(row, _)| !rows.contains_key(row)).collect();
    assert!(unknown.is_empty(), "there are no such rows: {unknown:?}");
}

#[test]
fn a_tag_stands_above_the_attributes_of_a_test() {
    let tag = |line, row: &str| (line, row.to_owned());
    let two_lines = "mod tests {\n    // PyTorch: 35, A17\n    // PyTorch: U01\n    #[test]\n    #[ignore]\n    fn a() {}\n}";
    assert_eq!(tags_in(two_lines), Ok(vec![tag(2, "35"), tag(2, "A17"), tag(3, "U01")]));
    assert_eq!(tags_in("// PyTorch: 35\nfn helper() {}\n#[test]\nfn a() {}"), Err(1));
    assert_eq!(tags_in("#[test]\n// PyTorch: 35\nfn a() {}"), Err(2));
    assert_eq!(tags_in("// PyTorch: 35\n\n#[test]\nfn a() {}"), Err(1));
    assert_eq!(tags_in("// PyTorch: 35\n#[test]"), Err(1));
}
