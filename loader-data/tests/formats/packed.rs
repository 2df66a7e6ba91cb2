//! Documents that a config packs into windows, and text that it tokenises.

use std::{fs, path::Path};

use loader_core::{
    DataLoader, Dataset, IterableDataset,
    pack::{Fill, PackMethod, Packing},
};
use loader_data::{Column, Columns, RecordConfig, RecordStream, Records, TokenDocuments};

use crate::everywhere::same_everywhere;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");

fn config(folder: &Path, text: &str) -> RecordConfig {
    let mut config: RecordConfig = serde_json::from_str(text).unwrap();
    config.relative_to(folder);
    config
}

fn open(config: &RecordConfig) -> RecordStream {
    match config.open().unwrap() {
        Records::Stream(records) => records,
        Records::Map(records) => panic!("{records:?}"),
    }
}

fn batches(config: &RecordConfig) -> Vec<Columns> {
    let loader = DataLoader::stream(open(config)).shards(2).batch_size(3).seed(5).build().unwrap();
    loader.iter().unwrap().map(Result::unwrap).collect()
}

/// Writes 300 documents of 1 to 30 tokens, and of none.
fn write_documents(folder: &Path) {
    let document =
        |n: i64| serde_json::json!({"tokens": (0..n * 7 % 31).map(|at| n + at).collect::<Vec<_>>()});
    let lines: String = (0..300).map(|n| format!("{}\n", document(n))).collect();
    fs::write(folder.join("documents.jsonl"), lines).unwrap();
}

const DOCUMENTS: &str = r#""dataset": {"kind": "json-lines", "path": "documents.jsonl"}"#;

#[test]
fn windows_are_the_same_with_workers_deaths_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    write_documents(folder.path());
    let mixed = r#""dataset": {"kind": "mix", "exhausted": "drop", "parts": [
        {"kind": "json-lines", "path": "documents.jsonl", "shuffle": true},
        {"kind": "json-lines-stream", "path": "documents.jsonl"}
    ]}"#;
    let shuffled =
        r#""shuffle_documents": true, "shuffle_windows": true, "method": "best-fit", "look_ahead": 70"#;
    for keys in [format!("{shuffled}, {DOCUMENTS}"), mixed.to_owned()] {
        let packed = config(folder.path(), &format!(r#"{{"kind": "packed", "window": 40, {keys}}}"#));
        assert_eq!(packed.files().unwrap()[0].0, folder.path().join("documents.jsonl"));
        same_everywhere(|workers| {
            let stream = DataLoader::stream(open(&packed)).snapshots().shards(3).batch_size(4).seed(2);
            stream.num_workers(workers).build().unwrap()
        });
    }
}

#[test]
fn the_windows_are_those_of_a_program() {
    let tokens = r#""dataset": {"kind": "tokens", "path": "tokens/corpus", "format": "megatron", "documents": true,
        "sample_dtype": "int32"}"#;
    let first_fit = Packing::new(50).method(PackMethod::FirstFit).look_ahead(9).pad(7);
    for (keys, packing) in
        [("", Packing::new(50)), (r#""method": "first-fit", "look_ahead": 9, "pad": 7, "#, first_fit)]
    {
        let documents = TokenDocuments::<i64>::open(format!("{FIXTURES}/tokens/corpus")).unwrap();
        let stream = documents.into_stream().pack(packing).unwrap();
        let program = DataLoader::stream(stream).shards(2).batch_size(3).build().unwrap();
        let program: Vec<_> = program.iter().unwrap().map(Result::unwrap).collect();
        let text = format!(r#"{{"kind": "packed", "window": 50, {keys}{tokens}}}"#);
        let packed = batches(&config(Path::new(FIXTURES), &text));
        assert!(packed.len() == program.len() && program.len() > 2);
        for (packed, program) in packed.iter().zip(&program) {
            for (name, expected) in [
                ("tokens", &program.tokens),
                ("positions", &program.positions),
                ("segments", &program.segments),
            ] {
                assert_eq!(packed.tensor::<i64>(name).unwrap(), *expected, "{name}");
            }
            let Column::Padded { values, lengths } = &packed["cu_seqlens"] else { panic!("{packed:?}") };
            assert_eq!(values.as_slice::<i32>().unwrap(), program.cu_seqlens.values.as_slice());
            assert_eq!(lengths, &program.cu_seqlens.lengths);
        }
    }
}

#[test]
fn the_report_has_the_fill_of_records() {
    let folder = tempfile::tempdir().unwrap();
    write_documents(folder.path());
    let all = (0..300).map(|n| n * 7 % 31).sum::<u64>();
    let packed = config(folder.path(), &format!(r#"{{"kind": "packed", "window": 40, {DOCUMENTS}}}"#));
    let loader = DataLoader::stream(open(&packed)).batch_size(8).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let windows = batches
        .by_ref()
        .map(|batch| batch.unwrap().tensor::<i64>("tokens").unwrap().len() as u64)
        .sum::<u64>();
    assert_eq!(batches.report().fill, Some(Fill { tokens: all, capacity: 40 * windows }));

    let padded = r#"{"kind": "json-lines", "path": "documents.jsonl", "pad": {"tokens": 0}}"#;
    let Records::Map(records) = config(folder.path(), padded).open().unwrap() else { panic!("a stream") };
    let mut batches = DataLoader::builder(records).batch_size(30).build().unwrap().iter().unwrap();
    assert_eq!(batches.by_ref().count(), 10);
    let fill = batches.report().fill.unwrap();
    assert!(fill.tokens == all && fill.capacity > all && fill.capacity <= 300 * 30, "{fill:?}");
}

#[test]
fn invalid_options_of_packed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_documents(folder.path());
    fs::write(folder.path().join("text.txt"), "a line\n").unwrap();
    let refused = |keys: &str| {
        let text = format!(r#"{{"kind": "packed", {keys}}}"#);
        let loader = config(folder.path(), &text).open().map(|records| match records {
            Records::Stream(records) => DataLoader::stream(records).build().unwrap(),
            Records::Map(records) => panic!("{records:?}"),
        });
        match loader {
            Ok(loader) => loader.iter().unwrap().find_map(Result::err).expect("it fails").to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (keys, expected) in [
        (r#""window": 0"#, "the packed dataset: option `window`: a window of 0 tokens is invalid"),
        (r#""window": 40, "look_ahead": 0"#, "option `look_ahead`: look_ahead is 0"),
        (r#""window": 9, "method": "first-fit""#, "is longer than the window of 9"),
        (r#""window": 9, "field": "text""#, "a document: there is no field `text`; there are: tokens"),
    ] {
        let error = refused(&format!("{keys}, {DOCUMENTS}"));
        assert!(error.contains(expected), "{error}");
    }
    let lines = |kind: &str| format!(r#""dataset": {{"kind": "{kind}", "path": "text.txt"}}"#);
    let text = refused(&format!(r#""window": 9, "field": "text", {}"#, lines("text-lines")));
    assert!(text.contains("field `text`: expected whole numbers") && text.contains("`tokenizers`"), "{text}");
    let stream =
        refused(&format!(r#""window": 9, "shuffle_documents": true, {}"#, lines("text-lines-stream")));
    assert!(stream.contains("option `shuffle_documents`: `text-lines-stream` is a stream"), "{stream}");
}

#[test]
fn lines_of_text_are_records() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("poem.txt"), "one\n\nthree").unwrap();
    for kind in ["text-lines", "text-lines-stream"] {
        let config = config(folder.path(), &format!(r#"{{"kind": "{kind}", "path": "poem.txt"}}"#));
        let loader = match config.open().unwrap() {
            Records::Map(records) => DataLoader::builder(records).batch_size(3).build(),
            Records::Stream(records) => DataLoader::stream(records).shards(1).batch_size(3).build(),
        };
        let batch = loader.unwrap().iter().unwrap().next().unwrap().unwrap();
        assert_eq!(batch["text"].texts().unwrap(), ["one", "", "three"]);
        assert_eq!(config.files().unwrap(), [(folder.path().join("poem.txt"), 10)]);
    }
}

#[cfg(not(feature = "tokenizer"))]
#[test]
fn a_tokenizer_without_the_feature_is_an_error_that_names_it() {
    let text = r#"{"kind": "csv", "path": "csv/pandas.csv", "tokenizers": {"x": {"path": "tokenizer"}}}"#;
    let error = config(Path::new(FIXTURES), text).open().unwrap_err().to_string();
    assert!(
        error.contains("option `tokenizers`: `x`: ") && error.ends_with("`--features tokenizer`"),
        "{error}"
    );
}

#[cfg(feature = "tokenizer")]
mod with_tokenizer {
    use loader_data::{TextLines, Tokenizer};

    use super::*;

    /// Writes lines of text, as they are and as JSON, beside a copy of the tokenizer.
    fn write_text(folder: &Path) {
        let line = |n: usize| format!("Worker {n} sends {} batches.", "and more ".repeat(n % 9));
        let lines: String = (0..120).map(|n| line(n) + "\n").collect();
        let json: String =
            (0..120).map(|n| format!("{}\n", serde_json::json!({"text": line(n), "n": n}))).collect();
        fs::write(folder.join("text.txt"), lines).unwrap();
        fs::write(folder.join("text.jsonl"), json).unwrap();
        fs::create_dir(folder.join("tokenizer")).unwrap();
        let file = "tokenizer/tokenizer.json";
        fs::copy(format!("{FIXTURES}/{file}"), folder.join(file)).unwrap();
    }

    /// Returns the config of windows of the text of `dataset`, which has the keys of the tokenizer at `TOKENIZER`.
    fn packed(folder: &Path, dataset: &str) -> RecordConfig {
        let tokenizers = r#""tokenizers": {"text": {
            "path": "tokenizer", "special_tokens": false, "end_of_document": "</s>"
        }}"#;
        let dataset = dataset.replace("TOKENIZER", tokenizers);
        config(
            folder,
            &format!(r#"{{"kind": "packed", "window": 32, "field": "text", "dataset": {dataset}}}"#),
        )
    }

    const LINES: &str = r#"{"kind": "text-lines", "path": "text.txt", TOKENIZER}"#;

    #[test]
    fn text_is_tokenised_and_packed_as_in_a_program() {
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        let tokenizer = Tokenizer::open(folder.path().join("tokenizer")).unwrap().special_tokens(false);
        let end = tokenizer.id("</s>").unwrap().unwrap();
        let lines = TextLines::open(folder.path().join("text.txt")).unwrap();
        let documents = lines.map_with((tokenizer, end), |(tokenizer, end), line, _cx| {
            Ok(tokenizer.encode(&line)?.into_iter().chain([*end]).collect::<Vec<u32>>())
        });
        let stream = documents.into_stream().pack(Packing::new(32)).unwrap();
        let program = DataLoader::stream(stream).shards(2).batch_size(3).build().unwrap();
        let expected: Vec<i64> = program
            .iter()
            .unwrap()
            .flat_map(|batch| batch.unwrap().tokens.as_slice().to_vec())
            .map(i64::from)
            .collect();
        for dataset in [
            LINES,
            r#"{"kind": "json-lines", "path": "text.jsonl", TOKENIZER}"#,
            &format!(r#"{{"kind": "cached", "folder": "cache", "dataset": {LINES}}}"#),
        ] {
            let config = packed(folder.path(), dataset);
            let tokens: Vec<i64> = batches(&config)
                .iter()
                .flat_map(|batch| batch.tensor::<i64>("tokens").unwrap().as_slice().to_vec())
                .collect();
            assert_eq!(tokens, expected, "{dataset}");
        }
        assert!(fs::metadata(folder.path().join("cache/samples")).unwrap().len() > 0);
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn a_tokenizer_on_a_server_is_read_with_the_options_of_the_dataset() {
        let server = crate::server::Server::start();
        let tokenizer = fs::read(format!("{FIXTURES}/tokenizer/tokenizer.json")).unwrap();
        server.put("bucket/model/tokenizer.json", tokenizer);
        server.put("bucket/model/config.json", "{}");
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        for path in ["s3://bucket/model/", "s3://bucket/model/tokenizer.json"] {
            let text = format!(
                r#"{{"kind": "json-lines", "path": "text.jsonl", "tokenizers": {{"text": {{"path": "{path}"}}}},
                    "store": {{"endpoint": "{}", "skip_signature": true, "allow_http": true}}}}"#,
                server.url("")
            );
            let Records::Map(records) = config(folder.path(), &text).open().unwrap() else {
                panic!("a stream")
            };
            let record = records.get(0, &mut loader_core::SampleContext::new(0)).unwrap();
            assert!(matches!(record.get("text"), Some(loader_data::Value::Ragged(..))), "{record:?}");
        }
    }

    #[test]
    fn windows_are_the_same_with_workers_deaths_and_resumes_of_text() {
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        let packed =
            packed(folder.path(), r#"{"kind": "json-lines-stream", "path": "text.jsonl", TOKENIZER}"#);
        same_everywhere(|workers| {
            let stream = DataLoader::stream(open(&packed)).snapshots().shards(3).batch_size(4);
            stream.num_workers(workers).build().unwrap()
        });
    }

    #[test]
    fn a_batch_of_texts_is_padded_with_the_named_token() {
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        let text = r#"{"kind": "json-lines", "path": "text.jsonl", "tokenizers": {
            "text": {"path": "tokenizer/tokenizer.json", "pad": "</s>"}
        }}"#;
        let Records::Map(records) = config(folder.path(), text).open().unwrap() else { panic!("a stream") };
        let loader = DataLoader::builder(records).batch_size(9).build().unwrap();
        let batch = loader.iter().unwrap().next().unwrap().unwrap();
        let Column::Padded { values, lengths } = &batch["text"] else { panic!("{batch:?}") };
        let (longest, shortest) = (values.shape()[1], lengths.as_slice()[0] as usize);
        assert!(shortest < longest);
        assert!(values.as_slice::<i64>().unwrap()[shortest..longest].iter().all(|&token| token == 1));
        assert_eq!(batch.tensor::<i64>("n").unwrap().len(), 9);
    }

    #[test]
    fn a_state_and_a_cache_fit_only_the_tokenizer_that_made_them() {
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        let open_packed = || open(&packed(folder.path(), LINES));
        let loader = || DataLoader::stream(open_packed()).snapshots().shards(1).build().unwrap();
        let mut batches = loader().iter().unwrap();
        batches.next().unwrap().unwrap();
        let state = batches.state();
        drop(batches);
        let cached = r#"{"kind": "cached", "folder": "cache", "dataset": {"kind": "text-lines", "path": "text.txt",
            "tokenizers": {"text": {"path": "tokenizer"}}}}"#;
        let cached = config(folder.path(), cached);
        cached.open().unwrap();
        loader().resume(&state).unwrap();

        let file = folder.path().join("tokenizer/tokenizer.json");
        let other = fs::read_to_string(&file).unwrap() + "\n";
        fs::write(file, other).unwrap();
        let refused = loader().resume(&state).map(drop).unwrap_err();
        assert!(matches!(refused, loader_core::Error::StateMismatch { .. }), "{refused}");
        let refused = cached.open().map(drop).unwrap_err().to_string();
        assert!(refused.contains("option `folder`"), "{refused}");
    }

    #[test]
    fn invalid_tokenizers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path());
        let refused = |keys: &str| {
            let text = format!(r#"{{"kind": "json-lines", "path": "text.jsonl", "tokenizers": {keys}}}"#);
            match config(folder.path(), &text).open() {
                Ok(Records::Map(records)) => {
                    let loader = DataLoader::builder(records).build().unwrap();
                    loader.iter().unwrap().find_map(Result::err).expect("it fails").to_string()
                }
                Ok(Records::Stream(records)) => panic!("{records:?}"),
                Err(error) => error.to_string(),
            }
        };
        for (keys, expected) in [
            (r#"{"text": {"path": "other.json"}}"#, "other.json`: no such file; check the path"),
            (
                r#"{"text": {"path": "tokenizer", "end_of_document": "<eos>"}}"#,
                "option `end_of_document`: the vocabulary has no token `<eos>`",
            ),
            (
                r#"{"text": {"path": "tokenizer", "pad": "<none>"}}"#,
                "option `pad`: the vocabulary has no token `<none>`",
            ),
            (r#"{"txt": {"path": "tokenizer"}}"#, "there is no field `txt`; there are: n, text"),
            (r#"{"n": {"path": "tokenizer"}}"#, "field `n`: expected a text, found a number of type int64"),
        ] {
            let error = refused(keys);
            assert!(error.contains(expected), "{error}");
            assert!(expected.contains("field") || error.contains("option `tokenizers`: `text`: "), "{error}");
        }
    }
}
