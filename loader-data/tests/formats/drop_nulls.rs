//! Streams without the records in which a field is null.

use std::fs;

use loader_core::{DataLoader, IterableDataset, SampleContext, Shard};
use loader_data::{Columns, DataError, DataProblem, RecordConfig, Records};
use serde_json::{Value as Json, json};

use crate::{
    everywhere::same_everywhere,
    parquet::{fixture, json as of_record},
};

fn open(config: &Json) -> Result<Records, DataError> {
    serde_json::from_value::<RecordConfig>(config.clone()).unwrap().open()
}

fn read(config: &Json) -> Vec<anyhow::Result<Json>> {
    let Records::Stream(records) = open(config).unwrap() else { panic!("{config}") };
    let mut cx = SampleContext::new(0);
    let rows = records.iter(Shard::new(0, 1), &mut cx).unwrap();
    rows.map(|row| row.map(of_record)).collect()
}

fn column(config: &Json, name: &str) -> Vec<Json> {
    read(config).into_iter().map(|row| row.unwrap()[name].clone()).collect()
}

/// Writes 200 rows. `a` is null in every third one, and `b` in every fifth.
fn lines(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("rows.jsonl");
    let row = |id: u32| {
        let [a, b] = [3, 5].map(|n| if id.is_multiple_of(n) { Json::Null } else { json!(id) });
        json!({"id": id, "a": a, "b": b}).to_string() + "\n"
    };
    fs::write(&path, (0..200).map(row).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn records_with_nulls_in_the_named_fields_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = lines(&folder);
    let config = |more: Json| {
        let mut config = json!({"kind": "json-lines-stream", "path": path});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let kept =
        |is_kept: fn(u32) -> bool| (0..200).filter(|&id| is_kept(id)).map(Json::from).collect::<Vec<_>>();
    assert_eq!(column(&config(json!({"drop_nulls": ["a"]})), "id"), kept(|id| id % 3 > 0));
    assert_eq!(column(&config(json!({"drop_nulls": ["b", "a"]})), "id"), kept(|id| id % 3 > 0 && id % 5 > 0));
    let filled = json!({"drop_nulls": ["b", "a"], "fill": {"a": -1}, "dtypes": {"a": "int64"}});
    assert_eq!(column(&config(filled), "id"), kept(|id| id % 5 > 0));
    let error = read(&config(json!({"drop_nulls": ["c"]}))).remove(0).unwrap_err();
    assert_eq!(
        error.root_cause().to_string(),
        "option `drop_nulls`: there is no field `c`; there are: a, b, id"
    );

    let refused = open(&config(json!({"fields": ["a", "id"], "drop_nulls": ["a", "b"]}))).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("option `drop_nulls`: there is no field `b`; there are: a, id; use one of"),
        "{text}"
    );

    // Columns that are decoded together, and CSV.
    let table = json!({"kind": "parquet-stream", "path": fixture("types.parquet"), "drop_nulls": ["i16"]});
    let left: Vec<i64> = (0..40).filter(|row| row % 7 != 3).map(|row| row - 5).collect();
    assert_eq!(column(&table, "i8"), left);
    let csv = folder.path().join("rows.csv");
    fs::write(&csv, "a,b\n1,x\n,y\n3,z\n").unwrap();
    assert_eq!(column(&json!({"kind": "csv-stream", "path": csv, "drop_nulls": ["a"]}), "b"), ["x", "z"]);
}

#[test]
fn a_name_that_no_column_has_is_refused_when_the_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar/photos.tar");
    for (config, names) in [
        (json!({"kind": "csv-stream", "path": write("a.csv", "b,c\n1,x\n")}), "b, c"),
        (json!({"kind": "text-lines-stream", "path": write("a.txt", "x\n")}), "text"),
        (json!({"kind": "parquet-stream", "path": fixture("types.parquet"), "fields": ["i8"]}), "i8"),
        (
            json!({"kind": "arrow-stream", "path": crate::arrow::fixture("types.arrow"), "fields": ["u64"]}),
            "u64",
        ),
        (json!({"kind": "tar", "path": photos, "fields": ["jpg", "cls"]}), "jpg, cls"),
    ] {
        let mut config = config;
        config["drop_nulls"] = json!(["a"]);
        let refused = open(&config).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("there is no field `a`; there are: {names}; use one of")),
            "{refused}"
        );
    }
}

#[test]
fn random_access_refuses_to_leave_out_records() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, path) in
        [("json-lines", lines(&folder)), ("parquet", fixture("types.parquet").display().to_string())]
    {
        let error = open(&json!({"kind": kind, "path": path, "drop_nulls": ["a"]})).unwrap_err();
        assert!(matches!(error.problem, DataProblem::InvalidOption { option: "drop_nulls", .. }), "{error}");
        assert!(error.to_string().contains("only a stream can leave out records"), "{error}");
    }
    // A program that opens a format itself.
    let options: loader_data::JsonLinesOptions =
        serde_json::from_value(json!({"path": lines(&folder), "drop_nulls": ["a"]})).unwrap();
    let error = options.open_stream().unwrap_err().to_string();
    assert!(error.contains("in a program, use `DecodedRecords`"), "{error}");
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "kind": "json-lines-stream", "path": lines(&folder), "block_bytes": 500, "fields": ["id", "a"], "drop_nulls": ["a"],
    });
    let records = |config: &Json| match open(config).unwrap() {
        Records::Stream(records) => records,
        Records::Map(_) => unreachable!(),
    };
    assert_eq!(IterableDataset::len(&records(&config)), None);
    let mut all = config.clone();
    all["drop_nulls"] = json!([]);
    assert_ne!(records(&all).fingerprint(), records(&config).fingerprint());
    let build = |workers| DataLoader::stream(records(&config)).shards(2).batch_size(7).num_workers(workers);
    let ids = |batches: Vec<Columns>| {
        let ids = batches.iter().map(|batch| batch.tensor::<i64>("id").unwrap());
        let mut ids: Vec<_> = ids.flat_map(|ids| ids.as_slice().to_vec()).collect();
        ids.sort_unstable();
        ids
    };
    let expected: Vec<i64> = (0..200).filter(|id| id % 3 > 0).collect();
    assert_eq!(ids(same_everywhere(|workers| build(workers).build().unwrap())), expected);
    assert_eq!(ids(same_everywhere(|workers| build(workers).snapshots().build().unwrap())), expected);
}
