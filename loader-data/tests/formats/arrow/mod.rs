//! Arrow IPC, written by pyarrow, pandas and Hugging Face's datasets: see `fixtures/arrow/write.py`.

mod damaged;

use std::{
    fs,
    path::{Path, PathBuf},
};

use loader_core::{DType, DataLoader, Dataset, IterableDataset, SampleContext, Shard, Tensor};
use loader_data::{Arrow, ArrowOptions, Column, DataProblem, FieldOptions};
use serde_json::Value as Json;

use crate::{everywhere::same_everywhere, parquet::json};

/// Returns the path of a fixture, which may be a pattern.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrow")).join(name)
}

fn open(name: &str) -> Arrow {
    Arrow::open(fixture(name)).unwrap()
}

fn select(name: &str, columns: &[&str]) -> Arrow {
    ArrowOptions::new(fixture(name))
        .fields(FieldOptions::new().select(columns.iter().copied()))
        .open()
        .unwrap()
}

/// The rows of a file of JSON lines.
fn expected(path: impl AsRef<Path>) -> Vec<Json> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows of the files that have the table of Parquet's fixture.
fn types() -> Vec<Json> {
    expected(crate::parquet::fixture("types.jsonl"))
}

/// Returns the rows `indices`, which are loaded together.
fn rows(dataset: &Arrow, indices: &[usize]) -> Vec<Json> {
    let samples = dataset.get_many(indices, &mut SampleContext::new(0)).unwrap();
    samples.into_iter().map(json).collect()
}

fn streamed(dataset: Arrow) -> Vec<Json> {
    let mut cx = SampleContext::new(0);
    let stream = dataset.stream();
    stream.iter(Shard::new(0, 1), &mut cx).unwrap().map(|row| json(row.unwrap())).collect()
}

/// Compares rows column by column, so that a failure names the column.
fn assert_equal(found: &[Json], expected: &[Json]) {
    assert_eq!(found.len(), expected.len());
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&found[name], value, "row {row}, column {name}");
        }
    }
}

#[test]
fn each_type_reads_as_pyarrow_wrote_it() {
    let all: Vec<usize> = (0..40).collect();
    for name in ["types.arrow", "types.arrows", "types-lz4.arrow", "types-zstd.arrow"] {
        let (dataset, expected) = (open(name), types());
        assert_equal(&rows(&dataset, &all), &expected);
        for row in [0, 24, 25, 39] {
            assert_equal(&rows(&dataset, &[row]), &expected[row..=row]);
        }
        // Rows of both record batches, not in order, some beside each other, and one of them twice.
        let some = [39, 0, 17, 16, 15, 17, 31, 32, 5, 6, 7];
        assert_equal(&rows(&dataset, &some), &some.map(|row| expected[row].clone()));
        assert_equal(&streamed(dataset), &expected);
    }
    // Without the cache, a compressed record batch is read again.
    let dataset = ArrowOptions::new(fixture("types-lz4.arrow")).cache_bytes(0).open().unwrap();
    assert_equal(&rows(&dataset, &[3, 30]), &[types()[3].clone(), types()[30].clone()]);
}

#[test]
fn types_that_parquet_does_not_have_are_read_too() {
    let expected = expected(fixture("odd.jsonl"));
    let dataset = open("odd.arrow");
    assert_equal(&rows(&dataset, &(0..12).collect::<Vec<_>>()), &expected);
    for row in 0..12 {
        assert_equal(&rows(&dataset, &[row]), &expected[row..=row]);
    }
    assert_equal(&streamed(dataset), &expected);
    let old = open("old.arrow");
    let columns: Vec<_> = old.columns().into_iter().map(|(name, _)| name).collect();
    let only = |row: &Json| columns.iter().map(|name| (name.clone(), row[name].clone())).collect();
    assert_equal(&streamed(old), &types().iter().map(only).collect::<Vec<_>>());
}

#[test]
fn columns_have_the_types_of_the_file() {
    let types = open("types.arrow").columns();
    let of = |name: &str| types.iter().find(|(column, _)| column == name).unwrap().1.as_str();
    let expected = [
        ("f16", "float16"),
        ("text_view", "text"),
        ("fixed_bytes", "bytes"),
        ("decimal", "decimal"),
        ("dictionary", "text"),
        ("fixed_list", "list of 3 float32"),
        ("grid", "list of list of 2 int32"),
        ("map", "list of {key: text, value: int32}"),
        ("null", "null"),
    ];
    for (name, kind) in expected {
        assert_eq!(of(name), kind, "{name}");
    }
}

#[test]
fn dictionaries_of_streams_are_those_before_the_record_batch() {
    let letters = |name: &str| {
        let rows = streamed(open(name));
        rows.iter().map(|row| row["letter"].as_str().unwrap().to_owned()).collect::<String>()
    };
    assert_eq!(letters("delta.arrows"), "abbabc");
    assert_eq!(letters("replaced.arrows"), "abbxyz");
    let colours = rows(&select("pandas.feather", &["colour", "label"]), &[0, 17, 58, 59]);
    let expected = |label: usize| {
        let colour = if label.is_multiple_of(2) { "red" } else { "green" };
        serde_json::json!({"colour": colour, "label": label})
    };
    assert_equal(&colours, &[0, 17, 58, 59].map(expected));
}

#[test]
fn files_of_datasets_are_rows_of_any_type() {
    #[derive(serde::Deserialize)]
    struct Row {
        label: u32,
        x: Tensor<f32>,
        text: String,
    }

    // A folder has other files too.
    let dataset = open("saved").rows::<Row>();
    assert_eq!(dataset.len(), 60);
    for label in [0, 36, 37, 59] {
        let row = dataset.get(label, &mut SampleContext::new(0)).unwrap();
        assert_eq!((row.label, row.text), (label as u32, format!("row {label}")));
        assert_eq!(row.x.as_slice(), [0.0, 0.25, 0.5].map(|more| label as f32 + more));
    }

    #[derive(Debug, serde::Deserialize)]
    struct Wrong {
        #[expect(dead_code)]
        text: u8,
    }

    let error = open("saved").rows::<Wrong>().get(40, &mut SampleContext::new(0)).unwrap_err().to_string();
    assert!(error.contains("data-00001-of-00002.arrow`, row 3: "), "{error}");
}

#[test]
fn a_folder_of_save_to_disk_is_read_as_its_state_says() {
    let labels = |folder: &Path| {
        let rows = streamed(Arrow::open(folder).unwrap());
        rows.iter().map(|row| row["label"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert!(labels(&fixture("splits/train")).into_iter().eq(0..40));
    assert!(labels(&fixture("splits/test")).into_iter().eq(40..60));
    let splits = Arrow::open(fixture("splits")).unwrap_err();
    assert!(matches!(splits.problem, DataProblem::InvalidOption { option: "path", .. }), "{splits}");
    assert!(splits.to_string().contains("the folder has the splits train, test; give"), "{splits}");

    let folder = tempfile::tempdir().unwrap();
    let parts = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"];
    for name in parts {
        fs::copy(fixture("splits/train").join(name), folder.path().join(name)).unwrap();
    }
    // A result of `map`.
    fs::write(folder.path().join("cache-0123456789abcdef.arrow"), "damaged").unwrap();
    let state = |files: &[&str]| {
        let files: Vec<_> = files.iter().map(|name| serde_json::json!({ "filename": name })).collect();
        fs::write(folder.path().join("state.json"), serde_json::json!({ "_data_files": files }).to_string())
            .unwrap();
    };
    state(&[parts[1], parts[0]]);
    assert!(labels(folder.path()).into_iter().eq((20..40).chain(0..20)));
    let problem = || Arrow::open(folder.path()).unwrap_err().problem;
    for outside in ["../data.arrow", "/data.arrow", "", ".."] {
        state(&[outside]);
        assert!(matches!(problem(), DataProblem::Malformed { .. }), "{outside}");
    }
    state(&[]);
    assert!(matches!(problem(), DataProblem::Malformed { .. }));
    fs::write(folder.path().join("state.json"), "{}").unwrap();
    assert!(matches!(problem(), DataProblem::Malformed { .. }));
    state(&["data-00002-of-00002.arrow"]);
    assert!(matches!(problem(), DataProblem::NotFound));
}

#[test]
fn columns_are_selected_converted_and_padded() {
    let fields = FieldOptions::new().select(["list", "i8"]).dtype("i8", DType::F32).pad("list", -1.0);
    let options = ArrowOptions::new(fixture("types.arrow")).fields(fields.clone());
    let loader = DataLoader::builder(options.open().unwrap()).batch_size(3).build().unwrap();
    let batch = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["list", "i8"]);
    assert_eq!(batch.tensor::<f32>("i8").unwrap().as_slice(), [-5.0, -4.0, -3.0]);
    let Column::Padded { values, lengths } = &batch["list"] else { panic!("{:?}", batch["list"]) };
    assert_eq!((values.shape(), lengths.as_slice()), ([3, 2].as_slice(), [0, 1, 2].as_slice()));

    let later = open("types.arrow").fields(fields).unwrap();
    assert_eq!(later.columns().len(), 2);
    assert_eq!(later.fingerprint(), options.open().unwrap().fingerprint());
    let missing = open("types.arrow").fields(FieldOptions::new().select(["i8", "label"])).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::MissingField { field, .. } if field == "label"));
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let saved = || open("saved/*.arrow");
    let batches = same_everywhere(|workers| {
        DataLoader::builder(saved()).batch_size(7).shuffle(true).num_workers(workers).build().unwrap()
    });
    let labels = batches.iter().map(|batch| batch.tensor::<i64>("label").unwrap());
    let mut labels: Vec<_> = labels.flat_map(|labels| labels.as_slice().to_vec()).collect();
    assert!(!labels.is_sorted());
    labels.sort_unstable();
    assert!(labels.into_iter().eq(0..60));
    // Compressed, and with dictionaries.
    same_everywhere(|workers| {
        let rows = open("pandas.feather");
        DataLoader::builder(rows).batch_size(7).shuffle(true).num_workers(workers).build().unwrap()
    });
    // Fewer and more shards than workers, and more than some of them have record batches.
    for shards in [2, 5] {
        for name in ["saved/*.arrow", "pandas.feather"] {
            let build = |workers: usize| {
                DataLoader::stream(open(name).stream()).shards(shards).batch_size(4).num_workers(workers)
            };
            let batches = same_everywhere(|workers| build(workers).build().unwrap());
            let rows: usize = batches.iter().map(|batch| batch["text"].texts().unwrap().len()).sum();
            assert_eq!(rows, 60);
            same_everywhere(|workers| build(workers).snapshots().build().unwrap());
        }
    }
}
