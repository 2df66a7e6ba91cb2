//! JSON lines.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
};

use loader_core::{DType, DataLoader, Dataset, SampleContext};
use loader_data::{
    Column, DataError, DataProblem, FieldOptions, IndexPlace, JsonLines, JsonLinesOptions, Position, Record,
};
use serde::Deserialize;

use crate::everywhere::same_everywhere;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/json_lines")).join(name)
}

/// A row that `write.py` writes.
#[derive(Debug, PartialEq, Deserialize)]
struct Row {
    id: u32,
    text: String,
    score: f32,
    vector: [f32; 2],
    tokens: Vec<u16>,
    nested: Nested,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Nested {
    even: bool,
    none: Option<u8>,
}

fn written(id: u32) -> Row {
    Row {
        id,
        text: format!("row {id}: \"é漢😀\"\n"),
        score: id as f32 / 8.0,
        vector: [id as f32, id as f32 + 0.5],
        tokens: (0..(id % 4) as u16).collect(),
        nested: Nested { even: id % 2 == 0, none: None },
    }
}

fn all<D: Dataset>(dataset: &D) -> Vec<D::Sample> {
    let cx = &mut SampleContext::new(0);
    (0..dataset.len()).map(|index| dataset.get(index, cx).unwrap()).collect()
}

/// Fields that can be collated.
fn fields() -> FieldOptions {
    FieldOptions::new()
        .select(["id", "vector", "text", "tokens"])
        .dtype("id", DType::U32)
        .dtype("vector", DType::F32)
        .dtype("tokens", DType::U16)
        .pad("tokens", 99.0)
}

#[test]
fn files_that_python_and_pandas_wrote_read_back_equal() {
    let expected: Vec<_> = (0..48).map(written).collect();
    for pattern in ["json-{0..2}.jsonl", "json-*.jsonl", "pandas.jsonl"] {
        let rows = JsonLines::open(fixture(pattern)).unwrap();
        let vector = rows.get(3, &mut SampleContext::new(0)).unwrap().remove("vector").unwrap();
        assert_eq!(vector, loader_core::Tensor::from_slice(&[3.0, 3.5], [2]).unwrap().into());
        let rows = rows.rows::<Row>();
        assert_eq!(all(&rows), expected, "{pattern}");
        let some = [47, 3, 3, 16, 0, 15, 1, 2];
        let many = rows.get_many(&some, &mut SampleContext::new(0)).unwrap();
        assert_eq!(many, some.map(|id| written(id as u32)), "{pattern}");
    }
    let both = JsonLines::open_all([fixture("pandas.jsonl"), fixture("json-1.jsonl")]).unwrap();
    assert_eq!(both.len(), 64);
    assert_eq!(both.rows::<Row>().get(48, &mut SampleContext::new(0)).unwrap(), written(16));
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let batches = same_everywhere(|workers| {
        let rows = JsonLines::open(fixture("json-*.jsonl")).unwrap().fields(fields());
        DataLoader::builder(rows).batch_size(6).shuffle(true).seed(3).num_workers(workers).build().unwrap()
    });
    let batch = &batches[0];
    let ids = batch.tensor::<u32>("id").unwrap();
    assert_eq!(
        (ids.shape(), batch.tensor::<f32>("vector").unwrap().shape()),
        ([6].as_slice(), [6, 2].as_slice())
    );
    let expected: Vec<_> = ids.as_slice().iter().map(|&id| written(id).text).collect();
    assert_eq!(batch["text"].texts(), Some(expected.as_slice()));
    let Column::Padded { lengths, .. } = &batch["tokens"] else { panic!("{:?}", batch["tokens"]) };
    assert!(ids.as_slice().iter().map(|&id| u64::from(id % 4)).eq(lengths.as_slice().iter().copied()));

    same_everywhere(|workers| {
        let rows = JsonLines::open(fixture("pandas.jsonl")).unwrap().rows::<Row>();
        let ids = rows.map(|row, _cx| Ok((row.id, row.text)));
        DataLoader::builder(ids).batch_size(6).num_workers(workers).build().unwrap()
    });
}

#[test]
fn odd_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |content: &[u8]| {
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, content).unwrap();
        #[derive(Deserialize)]
        struct N {
            n: u32,
        }
        let rows = JsonLines::open(&path).unwrap().rows::<N>();
        all(&rows).iter().map(|row| row.n).collect::<Vec<_>>()
    };
    assert!(rows(b"").is_empty());
    assert!(rows(b"\n \r\n\t\n").is_empty());
    assert!(rows(b"\xef\xbb\xbf").is_empty());
    assert_eq!(rows(b"\xef\xbb\xbf{\"n\": 1}\r\n\r\n  \n{\"n\": 2}\n\n \n {\"n\": 3} "), [1, 2, 3]);
    assert_eq!(rows(b"{\"n\": 1}\n{\"n\": 2}"), [1, 2]);
}

#[test]
fn a_bad_line_is_a_typed_error_that_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let content = b"{\"a\": 1}\n\n \n[1]\n\n{\"b\": 1}\n{\"a\": \"\xff\"}\n{\"a\": 123456789}\n{\"a\"";
    fs::write(&path, content).unwrap();
    let rows = JsonLines::open(&path).unwrap().max_line_bytes(14).fields(FieldOptions::new().select(["a"]));
    let cx = &mut SampleContext::new(0);
    let mut error = |index: usize| rows.get(index, cx).unwrap_err().downcast::<DataError>().unwrap();
    let errors: Vec<_> = (1..rows.len()).map(&mut error).collect();
    let lines: Vec<_> = errors.iter().map(|error| error.position.clone()).collect();
    assert_eq!(lines, [4, 6, 7, 8, 9].map(Position::Line));
    assert!(errors.iter().all(|error| error.file.contains("rows.jsonl")), "{errors:?}");
    assert!(matches!(errors[0].problem, DataProblem::Malformed { .. }), "{}", errors[0]);
    assert!(matches!(errors[1].problem, DataProblem::MissingField { .. }), "{}", errors[1]);
    assert!(matches!(errors[2].problem, DataProblem::Malformed { .. }), "{}", errors[2]);
    assert!(matches!(errors[3].problem, DataProblem::TooLarge { len: 17, max: 14, .. }), "{}", errors[3]);
    assert!(matches!(errors[4].problem, DataProblem::Malformed { .. }), "{}", errors[4]);
    let many = rows.get_many(&[0, 5], cx).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(many.position, Position::Line(9));
    assert!(rows.get(6, cx).unwrap_err().to_string().contains("there are 6 lines"));

    // The same line, read as a type.
    #[derive(Debug, Deserialize)]
    struct Wrong {
        #[expect(dead_code, reason = "only parsed")]
        a: u8,
    }
    let wrong = rows.fields(FieldOptions::new()).rows::<Wrong>().get(2, cx).unwrap_err();
    let wrong = wrong.downcast::<DataError>().unwrap();
    assert!(
        matches!(&wrong.problem, DataProblem::Record(text) if text.contains("missing field `a`")),
        "{wrong}"
    );
}

#[test]
fn what_is_no_file_of_lines_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| JsonLines::open(folder.path().join(name)).unwrap_err().problem;
    assert!(matches!(open("missing.jsonl"), DataProblem::NotFound));
    assert!(matches!(open("{1..2}.jsonl"), DataProblem::NotFound));
    assert!(matches!(open(""), DataProblem::NoFiles { .. }));
    nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(open("pipe"), DataProblem::NotAFile { .. }));
    fs::write(folder.path().join("rows.jsonl.gz"), "").unwrap();
    assert!(matches!(open("rows.jsonl.gz"), DataProblem::Unsupported(_)));
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, "{\"a\": 1}\n{\"a\": 2}\n").unwrap();
    let rows = JsonLines::open(&path).unwrap();
    // As a worker, which opens the files itself.
    let opened_later: JsonLines = serde_json::from_str(&serde_json::to_string(&rows).unwrap()).unwrap();
    fs::write(&path, "{\"a\": 1}\n").unwrap();
    let error = |rows: &JsonLines| {
        let error = rows.get(1, &mut SampleContext::new(0)).unwrap_err();
        error.downcast::<DataError>().unwrap().problem
    };
    assert!(matches!(error(&opened_later), DataProblem::Changed { .. }));
    // A file that is open is cut off before the line.
    assert!(matches!(error(&rows), DataProblem::Truncated));
}

#[test]
fn a_stored_index_is_used_and_a_stale_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let index = folder.path().join("rows.jsonl.index");
    let options = JsonLinesOptions::new(folder.path().join("rows.*")).index(IndexPlace::Beside);
    let ids = || {
        let rows = all(&options.open().unwrap());
        rows.into_iter().map(|row| row.into_row::<Id>().unwrap().a).collect::<Vec<_>>()
    };
    #[derive(Deserialize)]
    struct Id {
        a: u32,
    }
    fs::write(&path, "{\"a\": 1}\n{\"a\": 2}\n").unwrap();
    assert_eq!(ids(), [1, 2]);
    let first = fs::read(&index).unwrap();
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(ids(), [1, 2]);

    // The same size and time, so the index is taken for a good one: it was not made again.
    fs::write(&path, "{\"a\": 1}\n\n{\"a\":2}\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let rows = options.open().unwrap();
    assert!(rows.get(1, &mut SampleContext::new(0)).is_ok(), "a blank line before an object is not read");
    assert_eq!(fs::read(&index).unwrap(), first);

    // Another time: stale.
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(time + std::time::Duration::from_secs(1))
        .unwrap();
    assert_eq!(ids(), [1, 2]);
    assert_ne!(fs::read(&index).unwrap(), first);
    // Another size: stale.
    fs::write(&path, "{\"a\": 1}\n{\"a\": 2}\n{\"a\": 3}").unwrap();
    assert_eq!(ids(), [1, 2, 3]);
    // Damaged: made again.
    let good = fs::read(&index).unwrap();
    fs::write(&index, &good[..good.len() - 8]).unwrap();
    assert_eq!(ids(), [1, 2, 3]);
    assert_eq!(fs::read(&index).unwrap(), good);
}

#[test]
fn many_programs_open_a_dataset_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let content: String = (0..20_000).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    fs::write(folder.path().join("rows.jsonl"), &content).unwrap();
    let options = JsonLinesOptions::new(folder.path()).index(IndexPlace::Folder(folder.path().join("index")));
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..20 {
                    assert_eq!(options.open().unwrap().len(), 20_000);
                }
            });
        }
    });
    let left = fs::read_dir(folder.path().join("index")).unwrap().count();
    assert_eq!(left, 1, "temporary files are left");
}

#[test]
fn options_come_from_text() {
    let text = format!(
        r#"{{"path": [{:?}], "fields": ["id"], "dtypes": {{"id": "uint8"}}, "index": {{"folder": "/proc/no-index"}}}}"#,
        fixture("pandas.jsonl")
    );
    let options: JsonLinesOptions = serde_json::from_str(&text).unwrap();
    let rows = options.open().unwrap();
    let expected: Record = [("id", 7u8)].into_iter().collect();
    assert_eq!(rows.get(7, &mut SampleContext::new(0)).unwrap(), expected);
    let unknown = serde_json::from_str::<JsonLinesOptions>(r#"{"path": "a", "filds": ["id"]}"#).unwrap_err();
    assert!(unknown.to_string().contains("unknown field `filds`"), "{unknown}");
    assert_ne!(rows.fingerprint(), JsonLines::open(fixture("pandas.jsonl")).unwrap().fingerprint());
    assert_ne!(rows.fingerprint(), JsonLines::open(fixture("json-0.jsonl")).unwrap().fingerprint());
}
