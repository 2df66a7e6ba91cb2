//! Datasets of several formats that a config mixes.

use std::{collections::BTreeMap, fs, path::Path};

use loader_core::DataLoader;
use loader_data::{RecordConfig, RecordStream, Records};

use crate::everywhere::same_everywhere;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");

fn config(text: &str) -> RecordConfig {
    serde_json::from_str(text).unwrap()
}

fn open(config: &RecordConfig) -> RecordStream {
    match config.open().unwrap() {
        Records::Stream(records) => records,
        Records::Map(records) => panic!("{records:?}"),
    }
}

#[test]
fn workers_deaths_and_resumes_do_not_change_a_mix() {
    let mut mix = config(
        r#"{"kind": "mix", "exhausted": "drop", "rule": "random", "parts": [
            {"kind": "json-lines", "path": "json_lines/json-*.jsonl", "fields": ["id"], "weight": 2, "shuffle": true},
            {"kind": "csv-stream", "path": "csv/part-*.csv", "fields": ["id"]},
            {"kind": "mix", "exhausted": "drop", "weight": 0.5, "parts": [
                {"kind": "json-lines-stream", "path": "json_lines/pandas.jsonl", "fields": ["id"]},
                {"kind": "csv", "path": "csv/pandas.csv", "fields": ["id"]}
            ]}
        ]}"#,
    );
    mix.relative_to(FIXTURES);
    assert_eq!(mix.files().unwrap().len(), 8);
    let loader =
        |workers| DataLoader::stream(open(&mix)).shards(3).batch_size(16).seed(2).num_workers(workers);
    for batches in [
        same_everywhere(|workers| loader(workers).build().unwrap()),
        same_everywhere(|workers| loader(workers).snapshots().build().unwrap()),
    ] {
        let mut counts = BTreeMap::<i64, usize>::new();
        let ids = batches.iter().flat_map(|batch| batch.tensor::<i64>("id").unwrap().as_slice().to_vec());
        ids.for_each(|id| *counts.entry(id).or_default() += 1);
        assert!(counts.into_iter().eq((0..48).map(|id| (id, 4))), "each row of each dataset is there once");
    }
}

/// Writes the rows 0 to 39 and 100 to 139.
fn write_rows(folder: &Path) {
    for (name, first) in [("a.jsonl", 0), ("b.jsonl", 100)] {
        let rows: String = (first..first + 40).map(|x| format!("{{\"x\": {x}}}\n")).collect();
        fs::write(folder.join(name), rows).unwrap();
    }
}

#[test]
fn the_weights_and_the_rules_hold() {
    let folder = tempfile::tempdir().unwrap();
    write_rows(folder.path());
    let read = |options: &str| {
        let parts = r#"[{"kind": "json-lines", "path": "a.jsonl", "weight": 3}, {"kind": "json-lines", "path": "b.jsonl"}]"#;
        let mut mix = config(&format!(r#"{{"kind": "mix", "parts": {parts}{options}}}"#));
        mix.relative_to(folder.path());
        let loader = DataLoader::stream(open(&mix)).shards(1).batch_size(1000).build().unwrap();
        let batch = loader.iter().unwrap().next().unwrap().unwrap();
        batch.tensor::<i64>("x").unwrap().as_slice().to_vec()
    };
    assert_eq!(read("")[..8], [0, 100, 1, 2, 3, 101, 4, 5]);
    assert_eq!(read("").iter().filter(|&&x| x < 100).count(), 40, "the epoch ends with the first part");
    let repeated = read(r#", "exhausted": "repeat", "num_samples": 100"#);
    assert_eq!((repeated.len(), repeated.iter().filter(|&&x| x >= 100).count()), (100, 25));
    assert_eq!(read(r#", "exhausted": "drop""#).len(), 80);
}

#[test]
fn invalid_mixes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_rows(folder.path());
    let refused = |parts: &str, options: &str| {
        let mut mix = config(&format!(r#"{{"kind": "mix", "parts": [{parts}]{options}}}"#));
        mix.relative_to(folder.path());
        mix.open().map(drop).unwrap_err().to_string()
    };
    let a = r#"{"kind": "json-lines", "path": "a.jsonl"}"#;
    assert_eq!(refused("", ""), "the mix: option `parts`: a mix needs at least one dataset");
    let weight = refused(r#"{"kind": "json-lines", "path": "a.jsonl", "weight": 0}"#, "");
    assert!(
        weight.starts_with("the mix: option `parts`: weight 0 of dataset 0 is not a positive number"),
        "{weight}"
    );
    let none = refused(a, r#", "num_samples": 0"#);
    assert!(none.contains("num_samples is 0"), "{none}");
    let stream = refused(r#"{"kind": "json-lines-stream", "path": "a.jsonl", "shuffle": true}"#, "");
    assert!(stream.contains("option `shuffle`: `json-lines-stream` is a stream"), "{stream}");
    assert!(refused(r#"{"kind": "json-lines", "path": "c.jsonl"}"#, "").contains("c.jsonl`: no such file"));

    let text = r#"{"kind": "mix", "parts": [{"kind": "json-lines", "path": "a", "filds": ["x"]}]}"#;
    let unknown = serde_json::from_str::<RecordConfig>(text).unwrap_err().to_string();
    assert!(unknown.contains("unknown field `filds`"), "{unknown}");
}
