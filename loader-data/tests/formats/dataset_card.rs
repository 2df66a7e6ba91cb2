//! Folders of the Hugging Face Hub whose README.md names the files in its header.

use std::{fs, path::Path};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{
    CsvOptions, DataError, DataProblem, IndexPlace, JsonLinesOptions, ParquetOptions, RecordConfig, Records,
    Value,
};

const PARQUET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet");

/// Configurations. The names of the files tell nothing about their splits, except one that is wrong.
const README: &str = "---
license: mit
configs:
  - config_name: en
    default: true
    data_files:
      - split: train
        path: [en/one.csv, \"./en/two*\"]
      - split: test
        path: en/train.csv
    sep: \",\"
  - config_name: de
    data_dir: de
    data_files: \"*.csv\"
  - config_name: all
    data_files: [en/one.csv, de/**, de/1.csv]
  - config_name: every
    data_files: \"**\"
  - config_name: names
    data_dir: en
  - config_name: outside
    data_files:
      - {split: train, path: ../secret.csv}
---
# A dataset
";

/// Makes a folder with this README.md and with files of one column, each with its own name as the only value.
fn hub(readme: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("README.md"), readme).unwrap();
    fs::write(folder.path().join("LICENSE"), "free\n").unwrap();
    for name in ["en/one.csv", "en/two-b.csv", "en/two-a.csv", "en/train.csv", "de/1.csv", "de/sub/2.csv"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("name\n{name}\n")).unwrap();
    }
    folder
}

fn names(options: &CsvOptions) -> Result<Vec<String>, DataError> {
    let rows = options.open()?;
    let name = |index| match rows.get(index, &mut SampleContext::new(0)).unwrap().get("name") {
        Some(Value::Text(name)) => name.clone(),
        other => panic!("{other:?}"),
    };
    Ok((0..rows.len()).map(name).collect())
}

#[test]
fn a_configuration_and_a_split_are_the_files_of_the_header() {
    let hub = hub(README);
    let options = || CsvOptions::new(hub.path());
    for (options, expected) in [
        (options().split("train"), &["en/one.csv", "en/two-a.csv", "en/two-b.csv"][..]),
        (options().split("test"), &["en/train.csv"]),
        (options().config("en").split("test"), &["en/train.csv"]),
        (options().config("de"), &["de/1.csv"]),
        (options().config("de").split("train"), &["de/1.csv"]),
        (options().config("all"), &["en/one.csv", "de/1.csv", "de/sub/2.csv"]),
        (
            options().config("every"),
            &["de/1.csv", "de/sub/2.csv", "en/one.csv", "en/train.csv", "en/two-a.csv", "en/two-b.csv"],
        ),
    ] {
        assert_eq!(names(&options).unwrap(), expected, "{options:?}");
    }
    // Without the options, a folder stands for its files.
    assert_eq!(names(&options()).unwrap().len(), 6);
}

#[test]
fn every_kind_of_a_config_file_has_the_options() {
    let hub = tempfile::tempdir().unwrap();
    let readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n  \
                  - split: test\n    path: data/test-*\n---\n";
    fs::write(hub.path().join("README.md"), readme).unwrap();
    fs::create_dir(hub.path().join("data")).unwrap();
    let part = |number: usize| format!("train-{number:05}-of-00002.parquet");
    for (from, to) in [(part(0), part(0)), (part(1), part(1)), (part(0), "test-0.parquet".to_owned())] {
        fs::copy(Path::new(PARQUET).join(from), hub.path().join("data").join(to)).unwrap();
    }
    let len = |split: &str| {
        let config = serde_json::json!({"kind": "parquet", "path": hub.path(), "split": split});
        let config: RecordConfig = serde_json::from_value(config).unwrap();
        let stored = serde_json::to_value(&config).unwrap();
        assert_eq!(stored["split"], split, "a config that is printed can be read again");
        let Records::Map(rows) = config.open().unwrap() else { panic!("`parquet` has random access") };
        (config.files().unwrap().len(), rows.len())
    };
    let (train, test) = (len("train"), len("test"));
    assert_eq!((train.0, test.0), (2, 1));
    assert!(test.1 > 0 && train.1 > test.1, "{train:?} {test:?}");
    assert_eq!(ParquetOptions::new(hub.path()).split("train").open_stream().unwrap().len(), Some(train.1));
}

#[test]
fn an_error_lists_what_the_header_has() {
    let hub = hub(README);
    let options = || CsvOptions::new(hub.path());
    for (options, option, expected) in [
        (
            options().config("fr"),
            "config",
            "there is no configuration `fr`; there are: en, de, all, every, names, outside",
        ),
        (options().split("dev"), "split", "there is no split `dev` of `en`; there are: train, test"),
        (options().config("en"), "split", "set `split` to one of the splits of `en`: train, test"),
        (
            options().config("all").split("test"),
            "split",
            "there is no split `test` of `all`; there are: train",
        ),
    ] {
        let error = names(&options).unwrap_err();
        assert_eq!(error.file, format!("`{}`", hub.path().join("README.md").display()));
        let DataProblem::InvalidOption { option: found, reason } = &error.problem else { panic!("{error}") };
        assert_eq!((*found, &reason[..]), (option, expected));
    }
    let outside = names(&options().config("outside")).unwrap_err();
    assert!(
        matches!(&outside.problem, DataProblem::Pattern(text) if text.contains("`../secret.csv`")),
        "{outside}"
    );
    let missing = names(&CsvOptions::new(hub.path().join("en")).split("train")).unwrap_err();
    assert!(missing.to_string().contains("the folder has no README.md with `configs`"), "{missing}");
    let file = names(&CsvOptions::new(hub.path().join("en/one.csv")).split("train")).unwrap_err();
    assert!(file.to_string().contains("needs a folder with a README.md"), "{file}");
    let url = names(&CsvOptions::new("s3://bucket/hub").split("train")).unwrap_err();
    assert!(url.to_string().contains("the URL of a folder ends with `/`"), "{url}");
}

#[test]
fn a_header_without_a_default_or_with_damage_is_refused() {
    let one = "- config_name: a\n  data_files: en/one.csv\n";
    let other = "- config_name: b\n  data_files: de/1.csv\n";
    for (configs, expected) in [
        (format!("{one}{other}"), "set `config` to one of the configurations: a, b"),
        (
            format!("{one}  default: true\n{other}  default: true\n"),
            "set `config` to one of the configurations: a, b",
        ),
        (
            "- config_name: a\n  data_files: {train: en/one.csv}\n".to_owned(),
            "`data_files` is neither a pattern",
        ),
        ("- data_files: en/one.csv\n".to_owned(), "missing field `config_name`"),
        ("- config_name: a\n  data_files: []\n".to_owned(), "has an empty list"),
        ("- config_name: a\n  data_files: [{split: train, path: []}]\n".to_owned(), "has an empty list"),
        (format!("{one}{one}"), "two configurations have the name `a`"),
        (format!("{one}  : : [\n"), "is not valid YAML in its header"),
    ] {
        let hub = hub(&format!("---\nconfigs:\n{configs}---\n"));
        let error = names(&CsvOptions::new(hub.path()).split("train")).unwrap_err().to_string();
        assert!(error.contains(expected), "{configs} {error}");
    }
    let no_files = hub("---\nconfigs:\n- config_name: a\n  data_dir: en\n---\n");
    let error = names(&CsvOptions::new(no_files.path()).config("a")).unwrap_err().to_string();
    assert!(error.contains("the configuration `a` has no `data_files`"), "{error}");
    // A part of the split would be missing.
    let other = hub("---\nconfigs:\n- config_name: a\n  data_files: en/*\n---\n");
    fs::write(other.path().join("en/three.CSV"), "name\nthree\n").unwrap();
    let error = names(&CsvOptions::new(other.path()).config("a")).unwrap_err().to_string();
    assert!(error.contains("it matches `three.CSV`, which does not end with .csv"), "{error}");
    // A header of something else has no configurations, and is not parsed.
    let hub = hub("---\ntitle: : [\n---\n");
    let error = names(&CsvOptions::new(hub.path()).split("train")).unwrap_err().to_string();
    assert!(error.contains("no README.md with `configs`"), "{error}");
}

#[test]
fn options_of_csv_in_the_header_are_used_and_others_refused() {
    let write = |options: &str| {
        let readme =
            format!("---\nconfigs:\n- config_name: a\n  data_files: semicolons.csv\n  {options}\n---\n");
        let hub = hub(&readme);
        fs::write(hub.path().join("semicolons.csv"), "x;name\n1;b,c\n").unwrap();
        hub
    };
    let hub = write("sep: \";\"");
    let options = CsvOptions::new(hub.path()).split("train");
    assert_eq!(names(&options).unwrap(), ["b,c"]);
    let (mut rows, mut cx) = (options.open_stream().unwrap(), SampleContext::new(0));
    rows.setup(&mut cx).unwrap();
    let first = rows.iter(Shard::new(0, 1), &mut cx).unwrap().next().unwrap().unwrap();
    assert!(matches!(first.get("name"), Some(Value::Text(text)) if text == "b,c"), "{first:?}");
    let config = serde_json::json!({"kind": "csv-stream", "path": hub.path(), "config": "a"});
    assert_eq!(serde_json::from_value::<RecordConfig>(config).unwrap().files().unwrap().len(), 1);
    // Options that the program sets are preferred.
    let comma = options.delimiter(',').open().unwrap();
    assert_eq!(comma.columns()[0].0, "x;name");

    let hub = write("sep: \";\"\n  names: [y, name]");
    assert_eq!(names(&CsvOptions::new(hub.path()).split("train")).unwrap(), ["name", "b,c"]);

    let hub = write("encoding: latin-1");
    let options = CsvOptions::new(hub.path()).split("train");
    let errors = [options.open().map(drop), options.open_stream().map(drop), options.indexes().map(drop)];
    for error in errors.map(Result::unwrap_err) {
        assert!(error.to_string().contains("sets `encoding`, which the loader does not read"), "{error}");
    }
    // Another format has none of the options.
    fs::write(hub.path().join("semicolons.csv"), "{\"name\": \"a\"}\n").unwrap();
    let readme = "---\nconfigs:\n- config_name: a\n  data_files: semicolons.csv\n  field: data\n---\n";
    fs::write(hub.path().join("README.md"), readme).unwrap();
    let error = JsonLinesOptions::new(hub.path()).split("train").open().unwrap_err();
    assert!(error.to_string().contains("sets `field`, which the loader does not read"), "{error}");
}

#[test]
fn folders_with_other_options_of_csv_are_not_read_as_one_dataset() {
    let readme =
        |options: &str| format!("---\nconfigs:\n- config_name: a\n  data_files: en/one.csv\n{options}---\n");
    let hubs = ["", "  sep: \",\"\n", "  sep: \"|\"\n"].map(|options| hub(&readme(options)));
    let open = |hubs: &[&tempfile::TempDir]| {
        names(&CsvOptions::new_all(hubs.iter().map(|hub| hub.path())).split("train").index(IndexPlace::None))
    };
    assert_eq!(open(&[&hubs[0], &hubs[0]]).unwrap(), ["en/one.csv"; 2]);
    let error = open(&[&hubs[1], &hubs[2]]).unwrap_err().to_string();
    assert!(error.contains("different options of CSV"), "{error}");
}

/// Each list is a request or more, so the patterns of a split share one, below the folder that they have in common.
#[cfg(feature = "cloud")]
#[test]
fn a_server_lists_the_files_of_all_patterns_once() {
    let server = crate::server::Server::start();
    let readme = "---\nconfigs:\n- config_name: default\n  data_dir: data\n  data_files:\n  - split: train\n    path: \
                  [de/b-*, en/1.csv, en/*, \"de/**/*.csv\"]\n  - split: test\n    path: test/*\n---\n";
    server.put("bucket/hub/README.md", readme);
    let names = ["data/de/a.csv", "data/de/b-0.csv", "data/de/sub/c.csv", "data/en/1.csv", "data/en/2.csv"];
    for name in names.into_iter().chain(["data/test/3.csv", "other/4.csv", "data/en/.part/5.csv"]) {
        server.put(&format!("bucket/hub/{name}"), format!("name\n{name}\n"));
    }
    let store = loader_data::StoreOptions {
        endpoint: Some(server.url("")),
        skip_signature: true,
        allow_http: true,
        timeout: std::time::Duration::from_secs(20),
        ..loader_data::StoreOptions::default()
    };
    let options = CsvOptions::new("s3://bucket/hub/").store(store).index(IndexPlace::None);
    let found = self::names(&options.split("train")).unwrap();
    let order = ["data/de/b-0.csv", "data/en/1.csv", "data/en/2.csv", "data/de/a.csv", "data/de/sub/c.csv"];
    assert_eq!(found, order);
    let requests = server.requests().into_iter().map(|request| request.target);
    let lists: Vec<_> = requests.filter(|target| target.contains("list-type=2")).collect();
    assert_eq!(lists.len(), 1, "{lists:?}");
    assert!(
        lists[0].ends_with("prefix=hub%2Fdata%2F") || lists[0].ends_with("prefix=hub/data/"),
        "{lists:?}"
    );
}

#[test]
fn partitions_below_the_folder_give_columns_also_if_the_header_names_them() {
    let hub = tempfile::tempdir().unwrap();
    for (number, partition) in ["year=2023", "year=2024"].into_iter().enumerate() {
        fs::create_dir_all(hub.path().join(partition)).unwrap();
        let file = Path::new(PARQUET).join(format!("train-{number:05}-of-00002.parquet"));
        fs::copy(file, hub.path().join(partition).join("a.parquet")).unwrap();
    }
    let files =
        ["year=2023/a.parquet, year=2024/*.parquet", "\"**\"", "\"*/*.parquet\"", "year=2024/a.parquet"];
    for (number, files) in files.into_iter().enumerate() {
        let readme = format!("---\nconfigs:\n- config_name: default\n  data_files: [{files}]\n---\n");
        fs::write(hub.path().join("README.md"), readme).unwrap();
        let rows = ParquetOptions::new(hub.path()).split("train").open().unwrap();
        assert_eq!(rows.len(), if number == 3 { 23 } else { 60 }, "{files}");
        let row = rows.get(rows.len() - 1, &mut SampleContext::new(0)).unwrap();
        assert_eq!(row.get("year"), Some(&Value::from(2024_i32)), "{files}");
    }
}
