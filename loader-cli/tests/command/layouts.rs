//! Folders in the layouts of Hugging Face's `datasets`, without a config.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::run;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures");

/// Makes a folder with copies of fixtures.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (fixture, name) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(Path::new(FIXTURES).join(fixture), path).unwrap();
    }
    folder
}

/// Makes a folder with files that have the content `x`.
fn folder_of(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    folder
}

/// Returns what `loader inspect` prints, after `loader run` has loaded as many samples.
fn inspected(target: &str) -> Value {
    let report = run(&["inspect", target, "--json"]);
    let report: Value = serde_json::from_str(&report.assert_status(0).stdout).unwrap();
    let epoch = run(&["run", target, "--json"]);
    assert_eq!(epoch.assert_status(0).named("epoch")[0]["samples"], report["samples"], "{target}");
    report
}

/// Returns the error of `loader inspect`, which is that of `loader run`.
fn refused(target: &str) -> String {
    let [inspect, run] = ["inspect", "run"].map(|command| run(&[command, target]));
    inspect.assert_status(2);
    assert_eq!(run.assert_status(2).stderr, inspect.stderr);
    inspect.stderr
}

#[test]
fn a_folder_of_the_hub_has_its_files_in_data() {
    let part = "parquet/train-00000-of-00002.parquet";
    let files = [
        ("README.md", "README.md"),
        (part, "data/train-00000-of-00002.parquet"),
        ("parquet/train-00001-of-00002.parquet", "data/train-00001-of-00002.parquet"),
    ];
    let hub = folder(&files);
    let target = hub.path().to_str().unwrap();
    let found = inspected(target);
    assert_eq!((&found["files"], &found["samples"]), (&json!(2), &json!(60)));

    // Splits are not mixed.
    fs::copy(Path::new(FIXTURES).join(part), hub.path().join("data/test-00000-of-00001.parquet")).unwrap();
    let error = refused(target);
    let pattern = format!("{target}/data/train*.parquet");
    assert!(error.contains("has files of the splits test, train; give a pattern such as"), "{error}");
    assert!(error.contains(&format!("`{pattern}`")), "{error}");
    assert_eq!(inspected(&pattern)["samples"], 60);
}

#[test]
fn the_header_of_a_readme_names_the_files() {
    let part = |number: usize| format!("parquet/train-{number:05}-of-00002.parquet");
    // By their names, the files would be those of two splits.
    let hub = folder(&[(&part(0), "data/train-0.parquet"), (&part(1), "data/test-0.parquet")]);
    let target = hub.path().to_str().unwrap();
    let write = |data: &str| {
        let readme = format!("---\nconfigs:\n- config_name: default\n  {data}\n---\n");
        fs::write(hub.path().join("README.md"), readme).unwrap();
    };
    write("data_files: data/t*");
    assert_eq!(inspected(target)["files"], 2);
    write("data_files: [{split: train, path: data/test-*}]");
    let train = inspected(target);
    assert_eq!((&train["kind"], &train["files"]), (&json!("parquet-stream"), &json!(1)));

    write("data_files: [{split: train, path: data/train-*}, {split: test, path: data/test-*}]");
    let error = refused(target);
    assert!(
        error.contains("option `split`: set `split` to one of the splits of `default`: train, test"),
        "{error}"
    );
    assert!(error.contains("of a config, a .toml file"), "{error}");
    let config = tempfile::tempdir().unwrap();
    let config = config.path().join("loader.toml");
    let text = format!("[dataset]\nkind = \"parquet-stream\"\npath = \"{target}\"\nsplit = \"test\"\n");
    fs::write(&config, text).unwrap();
    assert_eq!(inspected(config.to_str().unwrap())["samples"], train["samples"]);

    write("data_files: data/**");
    assert_eq!(inspected(target)["files"], 2, "the header makes both files one split");
    // Files of several formats.
    fs::write(hub.path().join("data/notes.csv"), "a\n1\n").unwrap();
    assert!(refused(target).contains("data files of several formats"));
    fs::remove_file(hub.path().join("data/notes.csv")).unwrap();
    // Options that the command does not read.
    write("data_files: data/train-*\n  sep: ;");
    assert!(refused(target).contains("sets `sep`"));
    // Without `data_files`, the names in the folder `data` give the splits.
    write("data_dir: data");
    assert!(refused(target).contains("has files of the splits test, train"));
    write("data_files: data/missing-*");
    assert!(refused(target).contains("data/missing-*`: no such file"));
}

#[test]
fn the_header_tells_the_format_of_json_files_and_the_options_of_csv() {
    let hub = tempfile::tempdir().unwrap();
    let target = hub.path().to_str().unwrap();
    let write = |name: &str, text: &str| fs::write(hub.path().join(name), text).unwrap();
    let card = |data: &str| {
        write("README.md", &format!("---\nconfigs:\n- config_name: default\n  data_files: {data}\n---\n"))
    };
    write("a.json", "{\"n\": 1}\n{\"n\": 2}\n");
    write("b.jsonl", "{\"n\": 3}\n");
    card("[a.json, b.jsonl]");
    let found = inspected(target);
    assert_eq!((&found["samples"], &found["fields"][0]["name"]), (&json!(3), &json!("n")));
    assert!(found["kind"].as_str().unwrap().starts_with("json-lines"), "{found}");
    // A file with one array is not read as lines.
    write("a.json", "[\n {\"n\": 1},\n {\"n\": 2}\n]\n");
    let error = run(&["run", target]).stderr;
    assert!(error.contains("a.json") && error.contains("the line begins an array"), "{error}");

    write("c.csv", "1;one\n2;two\n");
    card("c.csv\n  sep: \";\"\n  column_names: [number, name]");
    let found = inspected(target);
    let names: Vec<_> = found["fields"].as_array().unwrap().iter().map(|field| &field["name"]).collect();
    assert_eq!((&found["samples"], names), (&json!(2), vec![&json!("number"), &json!("name")]));
    card("c.csv\n  skiprows: 1");
    assert!(refused(target).contains("sets `skiprows`, which the loader does not read"));
}

#[test]
fn the_header_may_name_a_table_of_images_or_a_folder_of_them() {
    let names = ["metadata.csv", "part/1.jpg", "part/0.png", "007", "8"];
    let files = names.map(|name| (format!("images/csv/{name}"), name));
    let hub = folder(&files.each_ref().map(|(fixture, name)| (fixture.as_str(), *name)));
    let target = hub.path().to_str().unwrap();
    let write = |data: &str| {
        let readme = format!("---\nconfigs:\n- config_name: default\n  data_files: \"{data}\"\n---\n");
        fs::write(hub.path().join("README.md"), readme).unwrap();
    };
    for data in ["*", "**", "metadata.csv"] {
        write(data);
        let report = run(&["inspect", target, "--json"]);
        let report: Value = serde_json::from_str(&report.assert_status(0).stdout).unwrap();
        assert_eq!(report["kind"], "image-table", "{data}");
    }
    fs::create_dir_all(hub.path().join("images/class")).unwrap();
    fs::copy(hub.path().join("part/0.png"), hub.path().join("images/class/0.png")).unwrap();
    write("images/**");
    let report = run(&["inspect", target, "--json"]);
    let report: Value = serde_json::from_str(&report.assert_status(0).stdout).unwrap();
    assert_eq!((&report["kind"], &report["samples"]), (&json!("image-folder"), &json!(1)));
}

#[test]
fn each_split_may_have_a_folder() {
    let hub = folder(&[("parquet/train-00000-of-00002.parquet", "train/0.parquet")]);
    let target = hub.path().to_str().unwrap();
    let train = inspected(target);
    assert_eq!(train["files"], 1);
    fs::create_dir(hub.path().join("test")).unwrap();
    fs::copy(hub.path().join("train/0.parquet"), hub.path().join("test/0.parquet")).unwrap();
    let error = refused(target);
    assert!(error.contains(&format!("such as `{target}/train` or `{target}/test`")), "{error}");
    assert_eq!(inspected(&format!("{target}/test"))["samples"], train["samples"]);
    // The files of a folder are those of its sub-folders too.
    fs::rename(hub.path().join("train/0.parquet"), hub.path().join("train-0.parquet")).unwrap();
    assert!(refused(target).contains("has data files, and folders of splits"));
}

#[test]
fn splits_of_images_are_no_classes() {
    let hub =
        folder(&[("images/csv/part/0.png", "train/cat/0.png"), ("images/csv/part/0.png", "test/cat/0.png")]);
    let target = hub.path().to_str().unwrap();
    assert!(refused(target).contains(&format!("such as `{target}/train`")));
    let report = run(&["inspect", &format!("{target}/train"), "--json"]).assert_status(0).stdout.clone();
    assert!(report.contains("\"cat\""), "{report}");
}

#[test]
fn a_table_of_images_is_read_with_its_images() {
    let found = inspected(&format!("{FIXTURES}/images/csv"));
    assert_eq!(
        (&found["kind"], &found["samples"], &found["bad_samples"]),
        (&json!("image-table"), &json!(4), &json!([]))
    );
    let names: Vec<_> =
        found["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"image.bytes") && names.contains(&"label"), "{names:?}");
}

#[test]
fn a_table_of_audio_is_read_with_its_files() {
    let made = folder(&[("audio/s16.wav", "clips/1.wav"), ("audio/tone.mp3", "clips/2.mp3")]);
    let table = "file_name,transcription\nclips/1.wav,one\nclips/2.mp3,two\nclips/1.wav,three\n";
    fs::write(made.path().join("metadata.csv"), table).unwrap();
    let found = inspected(made.path().to_str().unwrap());
    assert_eq!(
        (&found["kind"], &found["samples"], &found["bad_samples"]),
        (&json!("audio-table"), &json!(3), &json!([]))
    );
    let names: Vec<_> =
        found["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"audio.bytes") && names.contains(&"transcription"), "{names:?}");
}

#[test]
fn notes_in_a_folder_are_not_its_data() {
    let hub = folder(&[("parquet/train-00000-of-00002.parquet", "train-00000-of-00001.parquet")]);
    let write = |name: &str| fs::write(hub.path().join(name), "one\ntwo\n").unwrap();
    write("LICENSE.txt");
    let target = hub.path().to_str().unwrap();
    assert_eq!(inspected(target)["kind"], "parquet-stream");
    // A folder of classes stays a folder of images.
    fs::remove_file(hub.path().join("train-00000-of-00001.parquet")).unwrap();
    fs::create_dir(hub.path().join("class")).unwrap();
    let error = run(&["inspect", target]).assert_status(2).stderr.clone();
    assert!(error.contains("no images in class folder"), "{error}");
    // Lines are the data if there is nothing else.
    fs::remove_dir(hub.path().join("class")).unwrap();
    write("poem.txt");
    let found = inspected(target);
    assert_eq!((&found["kind"], &found["samples"]), (&json!("text-lines-stream"), &json!(4)));

    // Indexes and arrays beside archives are not data, and arrays beside classes do not hide the classes.
    let mixed = folder(&[
        ("tar/shard-0.tar", "train-0.tar"),
        ("tokens/corpus.idx", "train-0.idx"),
        ("arrays/truth.npy", "mean.npy"),
    ]);
    let report = run(&["inspect", mixed.path().to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_str(&report.assert_status(0).stdout).unwrap();
    assert_eq!((&report["kind"], &report["files"]), (&json!("tar"), &json!(1)));
    let classes = folder(&[("arrays/truth.npy", "mean.npy"), ("audio/s16.wav", "class/1.wav")]);
    let error = run(&["inspect", classes.path().to_str().unwrap()]).assert_status(2).stderr.clone();
    assert!(error.contains("class folder(s) `class` have audio files"), "{error}");

    let clips =
        folder(&[("audio/s16.wav", "1.wav"), ("audio/s24.flac", "2.flac"), ("README.md", "notes.txt")]);
    let found = inspected(clips.path().to_str().unwrap());
    assert_eq!((&found["kind"], &found["samples"]), (&json!("audio-files"), &json!(2)));
}

#[test]
fn what_save_to_disk_has_written_is_read_split_by_split() {
    let splits = format!("{FIXTURES}/arrow/splits");
    let error = refused(&splits);
    assert!(
        error.contains("the folder has the splits train, test; give the folder of one of them"),
        "{error}"
    );
    let train = inspected(&format!("{splits}/train"));
    assert_eq!(
        (&train["kind"], &train["files"], &train["samples"]),
        (&json!("arrow-stream"), &json!(2), &json!(40))
    );

    // A file in which `map` keeps its result.
    let file = |name: &str| (format!("arrow/splits/test/{name}"), name.to_owned());
    let names = ["data-00000-of-00001.arrow", "dataset_info.json", "state.json"].map(file);
    let test = folder(&names.each_ref().map(|(fixture, name)| (fixture.as_str(), name.as_str())));
    fs::write(test.path().join("cache-0123456789abcdef.arrow"), "not part of it").unwrap();
    assert_eq!(inspected(test.path().to_str().unwrap())["samples"], 20);
}

#[test]
fn a_folder_of_partitions_is_no_folder_of_images() {
    let part = "parquet/train-00000-of-00002.parquet";
    let table = folder(&[(part, "year=2023/month=1/a.parquet"), (part, "year=2024/month=1/a.parquet")]);
    let target = table.path().to_str().unwrap();
    let names = |report: &Value| {
        let fields = report["fields"].as_array().unwrap().iter();
        fields.map(|field| field["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // A partition without files, and a file that cannot be read.
    fs::create_dir(table.path().join("year=2022")).unwrap();
    // What a writer of Spark that was killed leaves behind.
    let rest = table.path().join("_temporary/0");
    fs::create_dir_all(&rest).unwrap();
    fs::copy(table.path().join("year=2023/month=1/a.parquet"), rest.join("a.parquet")).unwrap();
    fs::write(table.path().join("_partitions.csv"), "year\n2023\n").unwrap();
    let report = inspected(target);
    assert_eq!((&report["kind"], &report["samples"]), (&json!("parquet-stream"), &json!(74)));
    assert_eq!(names(&report), ["label", "x", "text", "year", "month"]);
    let one = inspected(&format!("{target}/year=2024/month=1"));
    assert_eq!((&one["samples"], names(&one).len()), (&json!(37), 3));
    fs::write(table.path().join("year=2024/month=1/b.parquet"), "x").unwrap();
    let report = run(&["inspect", target, "--json"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!((&report["samples"], names(&report).len()), (&json!(74), 5), "{report}");

    // The header of a README.md may name the partitions.
    fs::remove_file(table.path().join("year=2024/month=1/b.parquet")).unwrap();
    let header = "data_files: [year=2023/**, year=2024/month=1/a.parquet]";
    let readme = format!("---\nconfigs:\n- config_name: default\n  {header}\n---\n");
    fs::write(table.path().join("README.md"), readme).unwrap();
    let report = inspected(target);
    assert_eq!(
        (&report["samples"], names(&report)),
        (&json!(74), ["label", "x", "text", "year", "month"].map(str::to_owned).to_vec())
    );
    let rows = run(&["run", target, "--json", "--fields=month,year"]);
    assert_eq!(rows.assert_status(0).named("epoch")[0]["samples"], 74);

    let lines = folder(&[("json_lines/json-0.jsonl", "year=2023/a.jsonl")]);
    let error = refused(lines.path().to_str().unwrap());
    assert!(error.contains("(`year=2023`)") && error.contains("only Parquet and Arrow"), "{error}");
}

#[test]
fn folders_of_other_tools_are_named() {
    for (files, what, way) in [
        (&["MNIST/raw/train-images-idx3-ubyte", "x"][..], "MNIST's files", "`kind = \"arrays\"`"),
        (&["data_batch_1.bin", "batches.meta.txt"], "CIFAR's binary files", "`kind = \"arrays\"`"),
        (&["cifar-10-batches-py/batches.meta"], "pickles", "binary version"),
        (&["index.json", "shard.00000.mds.zstd"], "MDS", "Parquet"),
        (&["index.json", "chunk-0-0.bin"], "litData", "Parquet"),
        (&["data.mdb", "lock.mdb"], "LMDB", "Parquet"),
        (&["data/1.lance", "_versions/1.manifest"], "Lance", "Parquet"),
        (&["array/zarr.json"], "zarr", "`numpy.savez`"),
        (&["annotations/instances_train2017.json", "train2017/1.jpg"], "COCO", "`metadata.jsonl`"),
        (&["images/train/1.jpg", "labels/train/1.txt"], "YOLO", "`metadata.jsonl`"),
        (&["a.tfrecord-00000-of-00001"], "TFRecord", "Parquet"),
        (&["alpaca_data.json"], "one array", "`jq -c"),
    ] {
        let message = refused(folder_of(files).path().to_str().unwrap());
        assert!(message.contains(what) && message.contains(way), "{message}");
    }
    let commit = "snapshots/0123456789abcdef0123456789abcdef0123456";
    for (files, what) in [
        (&["v1/a.parquet", "v2/b.parquet"][..], "/**/*.parquet`"),
        (&["a/cache-0123456789abcdef.arrow", "a/json-train.arrow"], "such as `"),
        (&["a/b/c/d.jsonl.gz", "a/notes.txt"], "/**/*.jsonl.gz`"),
        (&["pos/1.txt", "neg/2.txt"], "/**/*.txt`"),
        (&["lang=de/1.txt", "lang=en/2.txt"], "`lang=de`"),
        (&[".hoodie/hoodie.properties", "p1/a.parquet"], "table of Hudi"),
        (&["t/_delta_log/0.json", "t/a.parquet"], "table of Delta Lake"),
        (&["manifest/m", "schema/schema-0", "snapshot/LATEST", "bucket-0/a.parquet"], "table of Paimon"),
        (&[&format!("h/{commit}7/a.csv"), &format!("h/{commit}8/a.csv")], "of several versions of one"),
    ] {
        let message = refused(folder_of(files).path().to_str().unwrap());
        assert!(message.contains(what), "{message}");
        assert!(!message.contains("image") && !message.contains("cache-"), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.json");
    fs::write(&rows, "[{\"a\": 1}]").unwrap();
    let message = refused(rows.to_str().unwrap());
    assert!(message.contains("jq -c"), "{message}");
}
