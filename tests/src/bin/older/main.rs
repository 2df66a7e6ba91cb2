//! A worker program that was built from older source than `tests/tests/test_older.rs`: the types of both have the same
//! names, and other fields.

#[path = "datasets.rs"]
mod datasets;

use datasets::{Equal, Readings};
use std::{fs::File, process::ExitCode};

use loader_core::{Sample, SharedVec};
use loader_worker::Registry;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The main program has exchanged the fields since.
#[derive(Serialize, Deserialize)]
struct Spans {
    ends: Vec<u64>,
    starts: Vec<u64>,
}

/// The main program has exchanged the variants since.
#[derive(Serialize, Deserialize)]
enum Step {
    Subtract(u64),
    Add(u64),
}

#[derive(Serialize, Deserialize)]
struct Steps {
    steps: Vec<Option<Step>>,
}

/// The main program has exchanged the fields since.
#[derive(Serialize, Deserialize)]
struct Row {
    end: u64,
    start: u64,
}

#[derive(Serialize, Deserialize)]
struct Rows {
    rows: SharedVec<Row>,
}

/// The main program has exchanged the fields since.
#[derive(Sample)]
struct Reading {
    high: u64,
    low: u64,
}

/// The main program has removed a field since.
#[derive(Serialize, Deserialize)]
struct Longer {
    len: usize,
    removed: u64,
}

/// Its `Deserialize` implementation opens the file.
#[derive(Serialize, Deserialize)]
struct Label {
    #[serde(deserialize_with = "path_of_file")]
    path: String,
}

fn path_of_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let path = String::deserialize(deserializer)?;
    File::open(&path).map(|_| path).map_err(D::Error::custom)
}

fn main() -> ExitCode {
    Registry::new()
        .register::<Equal>("equal")
        .register::<Spans>("spans")
        .register::<Steps>("steps")
        .register::<Rows>("rows")
        .register::<Longer>("longer")
        .register::<Label>("label")
        .register::<Readings>("readings")
        .register_stream::<Readings>("readings-stream")
        .register_stream::<Spans>("stream")
        .serve()
}
