//! Parquet and Arrow files in folders of partitions, such as `year=2024`.

use std::{fs, path::Path};

use loader_core::{DType, DataLoader, Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{
    Arrow, DataError, DataProblem, FieldOptions, Parquet, ParquetOptions, RecordConfig, Records,
};
use serde_json::{Value as Json, json};

use crate::{everywhere::same_everywhere, parquet::json as of_record};

/// The fixtures of each format: the labels 0 to 36, and 37 to 59.
const FORMATS: [(&str, [&str; 2]); 2] = [
    ("parquet", ["parquet/train-00000-of-00002.parquet", "parquet/train-00001-of-00002.parquet"]),
    ("arrow", ["arrow/saved/data-00000-of-00002.arrow", "arrow/saved/data-00001-of-00002.arrow"]),
];

/// Makes a folder with copies of fixtures.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (fixture, name) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures"));
        fs::copy(fixtures.join(fixture), path).unwrap();
    }
    folder
}

/// Makes a table with a partition of each of the two fixtures.
fn table(format: &str, [first, second]: [&str; 2], partitions: [&str; 2]) -> tempfile::TempDir {
    let [one, other] = partitions.map(|partition| format!("{partition}/part.{format}"));
    folder(&[(first, &one), (second, &other)])
}

fn open(config: &Json) -> Result<Records, DataError> {
    serde_json::from_value::<RecordConfig>(config.clone()).unwrap().open()
}

/// Returns all rows.
fn rows(config: &Json) -> Result<Vec<Json>, DataError> {
    let mut cx = SampleContext::new(0);
    Ok(match open(config)? {
        Records::Map(records) => {
            let all: Vec<usize> = (0..records.len()).collect();
            // Some rows, so that a page is read and not the whole row group.
            let some = records.get_many(&[records.len() - 1], &mut cx).unwrap().into_iter().map(of_record);
            let all: Vec<Json> =
                records.get_many(&all, &mut cx).unwrap().into_iter().map(of_record).collect();
            assert_eq!(some.last(), all.last().cloned());
            all
        }
        Records::Stream(records) => {
            records.iter(Shard::new(0, 1), &mut cx).unwrap().map(|row| of_record(row.unwrap())).collect()
        }
    })
}

#[test]
fn the_columns_of_folders_follow_those_of_the_files() {
    for (format, fixtures) in FORMATS {
        let table =
            table(format, fixtures, ["city=S%C3%A3o/year=02023", "city=__HIVE_DEFAULT_PARTITION__/year=-7"]);
        for kind in [format.to_owned(), format!("{format}-stream")] {
            for path in ["", "*/*/part*", "**/*", "city={S%C3%A3o,__HIVE_DEFAULT_PARTITION__}/year*"] {
                let config = json!({"kind": kind, "path": table.path().join(path)});
                let rows = rows(&config).unwrap();
                assert_eq!(rows.len(), 60);
                for (label, row) in rows.iter().enumerate() {
                    let (city, year) = if label < 37 { (json!("S\u{e3}o"), 2023) } else { (Json::Null, -7) };
                    let x = [0.0, 0.25, 0.5].map(|more| label as f64 + more);
                    let text = format!("row {label}");
                    let expected = json!({"label": label, "x": x, "text": text, "city": city, "year": year});
                    assert_eq!(*row, expected, "{config}");
                }
            }
            let fields = |more: Json| {
                let mut config = json!({"kind": kind, "path": table.path()});
                config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                config
            };
            let selected = rows(&fields(json!({"fields": ["year", "label"]}))).unwrap();
            assert_eq!(
                (&selected[36], &selected[37]),
                (&json!({"year": 2023, "label": 36}), &json!({"year": -7, "label": 37}))
            );
            let alone = rows(&fields(json!({"fields": ["year"]}))).unwrap();
            assert_eq!((alone.len(), &alone[59]), (60, &json!({"year": -7})));
            let missing = open(&fields(json!({"fields": ["years"]}))).unwrap_err().to_string();
            assert!(
                missing.contains("there is no field `years`") && missing.ends_with("city, year"),
                "{missing}"
            );
            // The folder of one partition is no column.
            let one = rows(&json!({"kind": kind, "path": table.path().join("city=S%C3%A3o")})).unwrap();
            assert_eq!((one.len(), &one[0]["year"], one[0].get("city")), (37, &json!(2023), None));
        }
    }
}

#[test]
fn a_column_of_a_folder_has_the_type_of_all_its_values() {
    let types = |partitions: [&str; 2]| {
        let table = table(
            "parquet",
            FORMATS[0].1,
            partitions.map(|value| format!("k={value}")).each_ref().map(|name| &**name),
        );
        Parquet::open(table.path()).unwrap().columns().pop().unwrap()
    };
    let null = "__HIVE_DEFAULT_PARTITION__";
    for (values, expected) in [
        (["1", "-2147483648"], "int32"),
        (["1", null], "int32"),
        (["1", "2147483648"], "text"),
        (["+1", "2"], "text"),
        (["", "2"], "text"),
        (["2147483648", "a"], "text"),
    ] {
        assert_eq!(types(values), ("k".to_owned(), expected.to_owned()), "{values:?}");
    }
    let table = folder(&[("parquet/none.parquet", &format!("k={null}/part.parquet"))]);
    assert_eq!(Parquet::open(table.path()).unwrap().columns().pop().unwrap().1, "null");
}

#[test]
fn columns_of_folders_are_converted_and_filled() {
    for (format, fixtures) in FORMATS {
        let table = table(format, fixtures, ["k=1", "k=__HIVE_DEFAULT_PARTITION__"]);
        let batch = |more: Json| {
            let mut config = json!({"kind": format, "path": table.path(), "fields": ["k"]});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let Records::Map(records) = open(&config).unwrap() else { unreachable!() };
            DataLoader::builder(records).batch_size(60).build().unwrap().epoch(0).unwrap().next().unwrap()
        };
        assert!(batch(json!({})).unwrap_err().to_string().contains("set `fill = { k = 0 }`"));
        let filled = batch(json!({"fill": {"k": 2}})).unwrap();
        assert_eq!(filled.tensor::<i32>("k").unwrap().as_slice(), [[1; 37].as_slice(), &[2; 23]].concat());
        let refused = batch(json!({"fill": {"k": 0.5}})).unwrap_err().to_string();
        assert!(refused.contains("int32, the dtype of the field `k`, cannot hold 0.5; set"), "{refused}");
        let halves = batch(json!({"fill": {"k": 0.5}, "dtypes": {"k": "float32"}})).unwrap();
        assert_eq!(halves.tensor::<f32>("k").unwrap().as_slice()[36..38], [1.0, 0.5]);
    }
}

#[test]
fn the_fingerprint_has_the_columns_of_folders_and_their_values() {
    for (format, fixtures) in FORMATS {
        let table = table(format, fixtures, ["k=1", "k=2"]);
        let fingerprint =
            |path: &str| match open(&json!({"kind": format, "path": table.path().join(path)})).unwrap() {
                Records::Map(records) => records.fingerprint(),
                Records::Stream(_) => unreachable!(),
            };
        let before = fingerprint("");
        assert_eq!(fingerprint("*/*"), before);
        let named = fingerprint("k=1");
        assert_ne!(named, fingerprint("k=1*"), "a folder that is named is no column");
        fs::rename(table.path().join("k=2"), table.path().join("k=3")).unwrap();
        assert_ne!(fingerprint(""), before);
        fs::rename(table.path().join("k=1"), table.path().join("k=4")).unwrap();
        assert_ne!(fingerprint("k=4"), named, "the files are the same");
    }
}

#[test]
fn columns_that_are_missing_or_there_twice_are_refused() {
    for (format, fixtures) in FORMATS {
        let problem = |partitions: [&str; 2], paths: &[&str], fields: Option<&[&str]>| {
            let table = table(format, fixtures, partitions);
            let paths: Vec<_> = paths.iter().map(|path| table.path().join(path)).collect();
            let mut config = json!({"kind": format, "path": paths});
            if let Some(fields) = fields {
                config["fields"] = json!(fields);
            }
            open(&config).map_err(|error| error.problem)
        };
        let other = problem(["a=1", "a=1/b=2"], &[""], None).unwrap_err();
        let DataProblem::OtherPartition { found, expected, .. } = &other else { panic!("{other}") };
        let mut both = [found.as_str(), expected];
        both.sort_unstable();
        assert_eq!(both, ["a", "a, b"]);
        let none = problem(["a=1", "b"], &[""], None).unwrap_err().to_string();
        assert!(none.contains("give the columns (none)"), "{none}");
        let twice = problem(["label=1", "label=2"], &[""], None).unwrap_err();
        assert!(matches!(&twice, DataProblem::PartitionColumn { column } if column == "label"), "{twice}");
        let folders = problem(["a=1/a=1", "a=1/a=2"], &[""], None).unwrap_err();
        assert!(matches!(&folders, DataProblem::PartitionColumn { column } if column == "a"), "{folders}");
        assert!(problem(["label=1", "label=2"], &[""], Some(&["text"])).is_ok(), "it is not selected");
        let named = problem(["a=1", "a=2"], &["a=1", "a=2"], None).unwrap_err();
        assert!(matches!(&named, DataProblem::NamedPartitions { folders } if folders == "a=2"), "{named}");
    }
}

/// The record batch of a Feather file is compressed, and is read as a whole.
#[test]
fn rows_of_compressed_files_have_the_columns_of_folders() {
    let table = folder(&[("arrow/pandas.feather", "k=1/part.feather")]);
    let all = Arrow::open(table.path()).unwrap();
    assert_eq!(of_record(all.get(59, &mut SampleContext::new(0)).unwrap())["k"], 1);
    let alone = all.fields(FieldOptions::new().select(["k"])).unwrap();
    assert_eq!(of_record(alone.get(59, &mut SampleContext::new(0)).unwrap()), json!({"k": 1}));
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let table = table("parquet", FORMATS[0].1, ["k=a", "k=b"]);
    let options = || {
        ParquetOptions::new(table.path())
            .fields(FieldOptions::new().select(["k", "label"]).dtype("label", DType::I32))
    };
    let batches = same_everywhere(|workers| {
        let rows = options().open().unwrap();
        DataLoader::builder(rows).batch_size(7).shuffle(true).num_workers(workers).build().unwrap()
    });
    for batch in batches {
        assert_eq!(batch.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["k", "label"]);
        let labels = batch.tensor::<i32>("label").unwrap();
        let expected: Vec<_> =
            labels.as_slice().iter().map(|&label| if label < 37 { "a" } else { "b" }).collect();
        assert_eq!(batch["k"].texts().unwrap(), expected);
    }
    same_everywhere(|workers| {
        let rows = options().open_stream().unwrap();
        DataLoader::stream(rows).shards(2).batch_size(4).num_workers(workers).build().unwrap()
    });
}

#[cfg(feature = "cloud")]
#[test]
fn the_folders_of_a_bucket_give_columns() {
    let server = crate::server::Server::start();
    for (format, fixtures) in FORMATS {
        let table = table(format, fixtures, ["k=a%20b/year=1", "k=c/year=2"]);
        for partition in ["k=a%20b/year=1", "k=c/year=2"] {
            let name = format!("{partition}/part.{format}");
            server.put(&format!("bucket/{format}/{name}"), fs::read(table.path().join(&name)).unwrap());
        }
        let store = json!({"endpoint": server.url(""), "skip_signature": true, "allow_http": true});
        let local = rows(&json!({"kind": format, "path": table.path()})).unwrap();
        assert_eq!(local[0]["k"], "a b");
        for kind in [format.to_owned(), format!("{format}-stream")] {
            for path in ["", "**/*", "*/*/*"] {
                let path = format!("s3://bucket/{format}/{path}");
                assert_eq!(
                    rows(&json!({"kind": kind, "path": path, "store": store})).unwrap(),
                    local,
                    "{path}"
                );
            }
            // No bytes of the files are wanted.
            let path = format!("s3://bucket/{format}/");
            let alone =
                rows(&json!({"kind": kind, "path": path, "store": store, "fields": ["year"]})).unwrap();
            assert_eq!((alone.len(), &alone[0], &alone[59]), (60, &json!({"year": 1}), &json!({"year": 2})));
        }
    }
}
