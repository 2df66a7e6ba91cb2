use loader_core::DataLoader;

use super::*;
use crate::record::REFERENCES;

/// Loads two batches of 10 records. Returns how many of the records refer to rows of decoded columns.
fn references(kind: &str, file: &str, keys: &str) -> usize {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");
    let config = format!(r#"{{"kind": "{kind}", "path": "{folder}/{file}"{keys}}}"#);
    let config: RecordConfig = serde_json::from_str(&config).unwrap();
    REFERENCES.set(0);
    // Without workers, the samples are loaded in this thread.
    let loader = match config.open().unwrap() {
        Records::Map(records) => DataLoader::builder(records).batch_size(10).shuffle(true).build(),
        Records::Stream(records) => DataLoader::stream(records).batch_size(10).shards(1).build(),
    };
    for batch in loader.unwrap().iter().unwrap().take(2) {
        assert_eq!(batch.unwrap().len(), 2);
    }
    REFERENCES.get()
}

#[test]
fn records_of_columns_are_references_unless_something_changes_them() {
    let parquet = "parquet/train-*.parquet";
    for (file, kinds) in
        [(parquet, ["parquet", "parquet-stream"]), ("arrow/saved/*.arrow", ["arrow", "arrow-stream"])]
    {
        for kind in kinds {
            let select = r#", "fields": ["x", "label"]"#;
            assert_eq!(references(kind, file, select), 20, "{kind}");
            let converted = r#", "fields": ["x", "label"], "dtypes": {"label": "int8"}"#;
            assert_eq!(references(kind, file, converted), 0, "{kind}");
        }
    }
    let decoded = r#", "images": {"image": {"size": 4}}"#;
    for kind in ["parquet", "parquet-stream"] {
        assert_eq!(references(kind, "images/train.parquet", decoded), 0, "{kind}");
    }
}

/// Returns the error of opening fixtures with more keys.
fn refusal(kind: &str, files: &str, keys: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");
    let config = format!(r#"{{"kind": "{kind}", "path": "{folder}/{files}", {keys}}}"#);
    let config: RecordConfig = serde_json::from_str(&config).unwrap();
    config.open().unwrap_err().to_string()
}

#[test]
fn options_for_a_field_that_no_record_has_are_refused() {
    for (kind, files) in [
        ("arrays", "arrays/digits.npz"),
        ("arrow", "arrow/saved/*.arrow"),
        ("csv-stream", "csv/part-*.csv"),
        ("parquet", "parquet/train-*.parquet"),
    ] {
        for (option, value) in [("dtypes", "\"int8\""), ("pad", "0.0")] {
            let error = refusal(kind, files, &format!(r#""{option}": {{"lable": {value}}}"#));
            let expected = format!(": option `{option}`: the records have no field `lable`; they have: ");
            assert!(error.contains(&expected), "{kind}: {error}");
        }
    }
    let options = crate::FieldOptions::new().dtype("lable", loader_core::DType::I8);
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/parquet/train-*.parquet");
    let error = crate::Parquet::open(files).unwrap().fields(options).unwrap_err().to_string();
    assert!(error.contains("option `dtypes`"), "{error}");
}

#[test]
fn options_that_only_streams_have_are_refused_for_random_access() {
    let error = refusal("parquet", "parquet/train-*.parquet", r#""shuffle_blocks": 2"#);
    assert!(
        error.contains("option `shuffle_blocks`: only a stream has this option (kind `parquet-stream`)"),
        "{error}"
    );
    let error = refusal("indexed-tar", "tar/shard-0.tar", r#""shuffle_files": true"#);
    assert!(error.contains("option `shuffle_files`: only a stream has this option (kind `tar`)"), "{error}");
}

#[test]
fn an_unknown_key_lists_the_known_ones() {
    for &kind in RecordConfig::KINDS {
        let required = match kind {
            "audio-folder" => r#", "path": "x", "sample_rate": 16000"#,
            "cached" => r#", "folder": "x", "dataset": {"kind": "csv"}"#,
            "mix" => r#", "parts": []"#,
            "packed" => r#", "window": 8, "dataset": {"kind": "csv"}"#,
            _ => "",
        };
        let read = |more: &str| {
            serde_json::from_str::<RecordConfig>(&format!(r#"{{"kind": "{kind}"{required}{more}}}"#))
        };
        let refusal = |key: &str| read(&format!(r#", "{key}": [[]]"#)).unwrap_err().to_string();
        let message = refusal("xyz");
        let (_, known) = message.split_once("unknown field `xyz`, expected one of `").expect(&message);
        let known: Vec<&str> = known.split('`').step_by(2).collect();
        for key in &known[..known.len() - 1] {
            assert!(!refusal(key).starts_with("unknown field"), "{kind}: {key}");
        }
        for key in known.iter().filter(|key| key.ends_with("bytes")) {
            let size = |text: &str| read(&format!(r#", "{key}": {text}"#)).unwrap();
            assert_eq!(size(r#""1 KiB""#), size("1024"), "{kind}: {key}");
        }
        let written = serde_json::to_value(read("").unwrap()).unwrap();
        for key in written.as_object().unwrap().keys().filter(|key| *key != "kind") {
            assert!(known.contains(&key.as_str()), "{kind}: {key} is not in {known:?}");
        }
    }
    for (part, last_keys) in [
        (r#""kind": "csv", "weigth": 2.0"#, "`pad`, `weight`, `shuffle`"),
        (r#""kind": "mix", "parts": [], "weigth": 2.0"#, "`num_samples`, `weight`, `shuffle`"),
        (r#""kind": "cached", "weigth": 2.0"#, "`dataset`, `weight`, `shuffle`"),
        (r#""kind": "packed", "weigth": 2.0"#, "`dataset`, `weight`, `shuffle`"),
        (r#""kind": "csv", "store": {"max_retry": 3}"#, "`max_retries`, `cache`"),
        // The keys of a dataset in the part.
        (
            r#""kind": "cached", "folder": "x", "dataset": {"kind": "csv", "weigth": 2.0}"#,
            "`dtypes`, `fill`, `pad`",
        ),
        (
            r#""kind": "packed", "window": 8, "dataset": {"kind": "csv", "weigth": 2.0}"#,
            "`dtypes`, `fill`, `pad`",
        ),
        (r#""kind": "mix", "parts": [{"kind": "csv", "weigth": 2.0}]"#, "`pad`, `weight`, `shuffle`"),
    ] {
        let mix = format!(r#"{{"kind": "mix", "parts": [{{{part}}}]}}"#);
        let message = serde_json::from_str::<RecordConfig>(&mix).unwrap_err().to_string();
        assert!(message.ends_with(last_keys), "{message}");
        assert!(message.matches("`weight`").count() <= 1, "{message}");
    }
}

#[test]
fn options_in_sections_have_units_too() {
    let read = |keys: &str| serde_json::from_str::<RecordConfig>(&format!(r#"{{"kind": "csv", {keys}}}"#));
    for (text, number) in [
        (r#""store": {"timeout": "0.5 min"}"#, r#""store": {"timeout": 30}"#),
        (
            r#""store": {"cache": {"folder": "x", "max_bytes": "2 GB"}}"#,
            r#""store": {"cache": {"folder": "x", "max_bytes": 2000000000}}"#,
        ),
        (
            r#""audio": {"a": {"sample_rate": 1, "max_sample_bytes": "1 kB"}}"#,
            r#""audio": {"a": {"sample_rate": 1, "max_sample_bytes": 1000}}"#,
        ),
    ] {
        assert_eq!(read(text).unwrap(), read(number).unwrap(), "{text}");
    }
    let zero = read(r#""store": {"timeout": "0 s"}"#).unwrap_err().to_string();
    assert!(zero.contains("not a positive number of seconds"), "{zero}");
}

#[test]
fn the_extension_of_a_name_tells_the_format() {
    for (name, kind) in [
        ("a.feather", Some("arrow")),
        ("A.TSV", Some("csv")),
        ("a.csv.gz", Some("csv-stream")),
        ("a.tsv.zst", Some("csv-stream")),
        ("a.parquet.gz", None),
        ("a.jsonl", Some("json-lines")),
        ("data.d/A.NDJSON.GZ", Some("json-lines-stream")),
        ("a.b.safetensors", Some("arrays")),
        ("a.npy", Some("arrays")),
        ("a.npy.gz", Some("arrays")),
        ("a.npy.zst", None),
        ("train-images-idx3-ubyte", Some("arrays")),
        ("train-labels-idx1-ubyte.gz", Some("arrays")),
        ("a.txt", Some("text-lines")),
        ("a.TXT.zst", Some("text-lines-stream")),
        ("a.WAV", Some("audio-files")),
        ("*.flac", Some("audio-files")),
        ("a.mp3", Some("audio-files")),
        ("a.ogg", Some("audio-files")),
        ("corpus_text_document.idx", Some("tokens")),
        ("train.bin", None),
        ("a.jpg", None),
        ("*.parquet", Some("parquet")),
        ("s3://bucket/{000..099}.tar.zst", Some("tar")),
        ("https://host/a.parquet?signature=s.jsonl", Some("parquet")),
        ("a.tar.parquet/x", None),
        ("jsonl", None),
    ] {
        let found = RecordConfig::of_extension(Path::new(name), Path::new(name));
        assert_eq!(found.map(|config| config.kind()), kind, "{name}");
    }
}

#[test]
fn files_are_listed_without_their_tokenizers() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/json_lines");
    let text = format!(
        r#"{{"kind": "json-lines", "path": "{folder}/pandas.jsonl", "tokenizers": {{"a": {{"path": "none.json"}}}}}}"#
    );
    let config: RecordConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(config.files().unwrap().len(), 1);
    let error = config.open().unwrap_err().to_string();
    assert!(error.contains("option `tokenizers`"), "{error}");
}

#[test]
fn the_folders_of_caches_are_listed() {
    let text = r#"{"kind": "mix", "parts": [
        {"kind": "csv", "path": "a", "store": {"cache": {"folder": "/b", "max_bytes": 9}}},
        {"kind": "cached", "folder": "/c", "dataset": {"kind": "cached", "folder": "/d", "dataset": {
            "kind": "arrays", "files": {"folder": "x.npy"}
        }}}
    ]}"#;
    let config: RecordConfig = serde_json::from_str(text).unwrap();
    assert_eq!(config.cache_folders(), ["/b", "/c", "/d"].map(PathBuf::from));
    let packed = format!(r#"{{"kind": "packed", "window": 8, "dataset": {text}}}"#);
    let packed: RecordConfig = serde_json::from_str(&packed).unwrap();
    assert_eq!(packed.cache_folders(), config.cache_folders());
}

#[test]
fn a_config_is_printed_without_credentials() {
    let text = r#"{"kind": "arrays", "files": {"x": "https://me:secret@host/x.npy", "y": "y?.npy"}}"#;
    let config: RecordConfig = serde_json::from_str(text).unwrap();
    let shown = serde_json::to_string(&config.without_credentials()).unwrap();
    assert!(shown.contains(r#""https://host/x.npy""#) && shown.contains(r#""y?.npy""#), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}
