//! `coverage.toml` says of every row where it is shown or why it is not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// What is said of a row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// What PyTorch does.
    about: String,
    /// Where it is shown here.
    test: Option<Tests>,
    /// Why it is not, or what is otherwise on purpose.
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Tests {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Coverage {
    rows: BTreeMap<String, Row>,
}

impl Row {
    fn tests(&self) -> &[String] {
        match &self.test {
            None => &[],
            Some(Tests::One(test)) => std::slice::from_ref(test),
            Some(Tests::Several(tests)) => tests,
        }
    }
}

/// Every row: arguments (A), datasets (D), samplers (S), fetching (F), collation (C), worker information (W), randomness (R), protocol (P),
/// scenarios (X), state (T), what PyTorch's tests leave out (N), what its users suffer from (U), sections without letters, and the numbered tests of PyTorch (1 to 117)
/// and torchdata (200 to 280).
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

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("parity")
}

/// A row that is there twice is an error of TOML already.
fn coverage() -> Coverage {
    let text = fs::read_to_string(here().join("coverage.toml")).expect("the table is there");
    toml::from_str(&text).unwrap_or_else(|error| panic!("coverage.toml: {error}"))
}

/// The source that a test's path begins with, and the test's name: `parity::module::name` and `faults::module::name` are of those two
/// test programs, `loader-core::a::b::tests::name` is a unit test, `file::name` an integration test.
fn source(test: &str) -> Option<(PathBuf, &str)> {
    let (path, name) = test.rsplit_once("::")?;
    let mut parts: Vec<&str> = path.split("::").collect();
    let root = here().parent()?.parent()?.to_owned();
    let candidates = match parts[..] {
        ["parity", module] => vec![here().join(module)],
        ["faults", module] => vec![root.join("tests/faults").join(module)],
        [krate, .., "tests"] if krate.starts_with("loader-") => {
            parts.pop();
            let module = parts[1..].iter().collect::<PathBuf>();
            vec![
                root.join(krate).join("src").join(&module),
                root.join(krate).join("src").join(module).join("mod"),
            ]
        }
        [krate, "tests", file, module] => vec![root.join(krate).join("tests").join(file).join(module)],
        [krate, ..] if krate.starts_with("loader-") => {
            vec![root.join(krate).join("src").join(parts[1..].iter().collect::<PathBuf>())]
        }
        [file, ..] => vec![root.join("tests/tests").join(file)],
        [] => return None,
    };
    let file = candidates.into_iter().map(|path| path.with_extension("rs")).find(|path| path.is_file())?;
    Some((file, name))
}

/// Names of the tests in a source: what follows `#[test]` and other attributes.
fn tests_in(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).expect("it is a file");
    let mut tests = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
            tests.extend(rest.split('(').next().map(str::to_owned));
            is_test = false;
        }
    }
    tests
}

#[test]
fn every_row_is_in_the_table() {
    let (rows, said) = (all_rows(), coverage().rows);
    let missing: Vec<_> = rows.iter().filter(|row| !said.contains_key(*row)).collect();
    assert!(missing.is_empty(), "the table lacks {missing:?}");
    let unknown: Vec<_> = said.keys().filter(|row| !rows.contains(*row)).collect();
    assert!(unknown.is_empty(), "there are no such rows: {unknown:?}");
}

#[test]
fn every_row_says_where_or_why() {
    let mut counts = BTreeMap::<&str, usize>::new();
    let rows = coverage().rows;
    for (id, row) in &rows {
        assert!(!row.about.is_empty(), "{id} is about nothing");
        let kind = match (&row.test, &row.reason) {
            // A reason beside a test is what differs.
            (Some(_), _) => "shown by tests",
            (None, Some(reason)) => {
                assert!(reason.len() > 10, "{id}: a reason, please");
                "not applicable, or otherwise on purpose"
            }
            (None, None) => panic!("{id} needs a test or a reason"),
        };
        *counts.entry(kind).or_default() += 1;
    }
    println!("{counts:?}");
}

#[test]
fn every_test_that_is_named_exists() {
    for (id, row) in &coverage().rows {
        for test in row.tests() {
            let (file, name) = source(test).unwrap_or_else(|| panic!("{id}: there is no source of {test}"));
            assert!(tests_in(&file).contains(name), "{id}: there is no test {test} in {}", file.display());
        }
    }
}

#[test]
fn every_test_here_is_of_a_row() {
    let rows = coverage().rows;
    let named: BTreeSet<&str> = rows.values().flat_map(Row::tests).map(String::as_str).collect();
    for entry in fs::read_dir(here()).expect("the folder is there") {
        let file = entry.expect("it can be read").path();
        let module = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        if file.extension().is_none_or(|extension| extension != "rs") || module == "coverage" {
            continue;
        }
        for test in tests_in(&file) {
            let path = format!("parity::{module}::{test}");
            assert!(named.contains(path.as_str()), "{path} is of no row");
        }
    }
}
