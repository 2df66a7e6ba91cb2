//! JSON lines, and lines of text.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
};

use loader_core::{
    DType, DataLoader, Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator,
};
use loader_data::{
    Column, DataError, DataProblem, FieldOptions, IndexPlace, IndexStatus, JsonLines, JsonLinesOptions,
    JsonLinesStream, Position, Record, TextLines, TextLinesOptions, TextLinesStream,
};
use proptest::prelude::*;
use serde::Deserialize;

use crate::everywhere::{same_everywhere, write_old};

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
        nested: Nested { even: id.is_multiple_of(2), none: None },
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
    for name in ["rows.jsonl.gz", "rows.jsonl.zst"] {
        fs::write(folder.path().join(name), "").unwrap();
        assert!(matches!(open(name), DataProblem::Unsupported(_)), "{name}");
    }
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
    // This one has been open since the index was made.
    assert!(matches!(error(&rows), DataProblem::Changed { .. }));
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

    // The same size and time and a line break before each line, so the index is taken for a good one.
    fs::write(&path, "{\"a\": 1}\n\n{\"a\":2}\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let rows = options.open().unwrap();
    assert!(rows.get(1, &mut SampleContext::new(0)).is_ok(), "a blank line before an object is not read");
    assert_eq!(fs::read(&index).unwrap(), first);
    // The same size and time, but no line break before the second line: the index is made again.
    fs::write(&path, "{\"a\": 10}\n{\"a\":2}\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    assert_eq!(options.indexes().unwrap()[0].status, IndexStatus::Stale);
    assert_eq!(ids(), [10, 2]);
    assert_ne!(fs::read(&index).unwrap(), first);

    // Another time: stale.
    fs::write(&path, "{\"a\": 1}\n\n{\"a\":2}\n").unwrap();
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

/// The samples of all shards, one shard after the other.
fn stream_all<D: IterableDataset>(dataset: &D, shards: usize) -> Vec<anyhow::Result<D::Sample>> {
    let samples = |shard| {
        dataset.iter(Shard::new(shard, shards), &mut SampleContext::new(0)).unwrap().collect::<Vec<_>>()
    };
    (0..shards).flat_map(samples).collect()
}

#[test]
fn a_stream_has_each_row_once() {
    for (pattern, block_bytes) in [
        ("json-*.jsonl", 1),
        ("json-*.jsonl", 100),
        ("json-*.jsonl", 1 << 20),
        ("pandas.jsonl.gz", 1),
        ("two-members.jsonl.gz", 1),
        ("two-frames.jsonl.zst", 1),
    ] {
        let options = JsonLinesOptions::new(fixture(pattern)).block_bytes(block_bytes);
        let stream = options.open_stream().unwrap().rows::<Row>();
        for shards in [1, 2, 7] {
            let mut ids: Vec<_> =
                stream_all(&stream, shards).into_iter().map(|row| row.unwrap().id).collect();
            if shards == 1 {
                assert!(ids.is_sorted(), "{pattern}, {block_bytes}: {ids:?}");
            }
            ids.sort_unstable();
            assert!(ids.iter().copied().eq(0..48), "{pattern}, {block_bytes}, {shards} shards: {ids:?}");
        }
    }
    let known = JsonLines::open(fixture("json-*.jsonl")).unwrap().stream().unwrap();
    assert_eq!(
        (known.len(), JsonLinesStream::open(fixture("json-*.jsonl")).unwrap().len()),
        (Some(48), None)
    );
    let folder = JsonLinesStream::open_all([fixture("")]).unwrap();
    assert_eq!(stream_all(&folder, 1).len(), 5 * 48, "a folder's compressed files are read too");
}

#[test]
fn workers_deaths_and_resumes_do_not_change_a_stream() {
    for pattern in ["json-*.jsonl", "[pt]*.jsonl*"] {
        let stream = || {
            let options = JsonLinesOptions::new(fixture(pattern)).block_bytes(300).fields(fields());
            options.open_stream().unwrap()
        };
        let loader = |workers| DataLoader::stream(stream()).batch_size(5).shards(3).num_workers(workers);
        same_everywhere(|workers| loader(workers).build().unwrap());
        let batches = same_everywhere(|workers| loader(workers).snapshots().build().unwrap());
        assert!(batches.iter().map(|batch| batch.tensor::<u32>("id").unwrap().len()).sum::<usize>() >= 48);
    }
    same_everywhere(|workers| {
        let options = JsonLinesOptions::new(fixture("pandas.jsonl")).block_bytes(300);
        let ids = options.open_stream().unwrap().rows::<Row>().map(|row, _cx| Ok(row.id)).shuffle_buffer(10);
        DataLoader::stream(ids).snapshots().batch_size(4).shards(3).num_workers(workers).build().unwrap()
    });
}

#[test]
fn a_stream_continues_after_a_bad_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, "\u{feff}{\"a\": 1}\r\n\n[2]\n{\"a\": 123456789}\n {\"a\": 4}\n{\"a\"").unwrap();
    let stream = JsonLinesStream::open(&path).unwrap().max_line_bytes(14);
    let rows = stream_all(&stream, 1);
    let text = |row: &anyhow::Result<Record>| match row {
        Ok(row) => format!("{row:?}"),
        Err(error) => error.downcast_ref::<DataError>().unwrap().position.to_string(),
    };
    let texts: Vec<_> = rows.iter().map(text).collect();
    assert_eq!(
        texts,
        [r#"{"a": Number(1_int64)}"#, ", byte 14", ", byte 18", r#"{"a": Number(4_int64)}"#, ", byte 45"]
    );
    assert!(rows[2].as_ref().unwrap_err().to_string().contains("has 17 bytes (maximum: 14)"));
    for position in 0..6 {
        let mut cx = SampleContext::new(0);
        let rest = stream.iter_at(Shard::new(0, 1), position, &mut cx).unwrap().unwrap();
        assert!(rest.map(|row| text(&row)).eq(texts[(position as usize).min(5)..].iter().cloned()));
    }
}

#[test]
fn a_damaged_compressed_file_is_an_error_after_the_rows_before() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [("two-members.jsonl.gz", "gzip"), ("two-frames.jsonl.zst", "Zstandard")] {
        let whole = fs::read(fixture(name)).unwrap();
        let path = folder.path().join(name);
        // Returns the number of rows before the error, and the problem.
        let read = |bytes: &[u8]| {
            write_old(&path, bytes);
            let mut rows = stream_all(&JsonLinesStream::open(&path).unwrap(), 1);
            let error = rows.pop().unwrap().unwrap_err().downcast::<DataError>().unwrap();
            assert!(error.file.contains(name) && rows.iter().all(Result::is_ok), "{error}");
            (rows.len(), error.problem)
        };
        // A file that is cut off before its second part is valid: its only part ends in the middle of a row.
        let second = whole.windows(4).rposition(|bytes| *bytes == whole[..4]).unwrap();
        assert!(second > 0);
        for len in 0..whole.len() {
            let (_, problem) = read(&whole[..len]);
            assert_eq!(matches!(problem, DataProblem::Truncated), len != second, "{name}, {len}: {problem}");
        }
        let is_malformed =
            |problem| matches!(problem, DataProblem::Malformed { format: found, .. } if found == format);
        let mut damaged = whole.clone();
        damaged[whole.len() - 3] ^= 1;
        assert!(is_malformed(read(&damaged).1), "{name}: the checksum");
        let (rows, problem) = read(&[&whole[..], b"more than the header of a member"].concat());
        assert!(rows == 48 && is_malformed(problem), "{name}: bytes after the end");
        assert!(is_malformed(read(b"{\"a\": 12345}\n").1), "{name}: not compressed");
    }
}

#[test]
fn a_compressed_line_that_is_too_long_is_measured_and_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.jsonl.gz");
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    encoder.write_all(&vec![b'x'; 8 << 20]).unwrap();
    encoder.write_all(b"\n{\"a\": 1}\n").unwrap();
    encoder.finish().unwrap();
    let rows = stream_all(&JsonLinesStream::open(&path).unwrap().max_line_bytes(1000), 1);
    let error = rows[0].as_ref().unwrap_err().downcast_ref::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::TooLarge { len: 8_388_609, max: 1000, .. }), "{error}");
    assert!(rows.len() == 2 && rows[1].is_ok());
}

#[test]
fn a_vanished_file_of_a_stream_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("rows.jsonl");
    fs::write(&plain, "{\"a\": 1}\n".repeat(4000)).unwrap();
    let stream = JsonLinesStream::open(&plain).unwrap();
    let stream: JsonLinesStream = serde_json::from_str(&serde_json::to_string(&stream).unwrap()).unwrap();
    fs::remove_file(&plain).unwrap();
    let rows = stream_all(&stream, 2);
    assert_eq!(rows.len(), 3, "each block is one error");
    assert!(rows.iter().all(Result::is_err));
}

#[test]
fn a_snapshot_of_another_file_is_refused() {
    let stream = JsonLinesStream::open(fixture("json-0.jsonl")).unwrap();
    let from = |snapshot: &str, shard| {
        let snapshot = serde_json::from_str(snapshot).unwrap();
        let mut cx = SampleContext::new(0);
        let items = stream.iter_from(shard, &mut cx, Some(snapshot));
        items.map(Iterator::count).map_err(|error| error.to_string())
    };
    let one = Shard::new(0, 1);
    assert_eq!(from(r#"{"block": 0, "offset": 0}"#, one), Ok(16));
    assert_eq!(from(r#"{"block": 9, "offset": null}"#, one), Ok(0));
    for invalid in [r#"{"block": 0, "offset": 18446744073709551615}"#, r#"{"block": 9, "offset": 3}"#] {
        assert!(from(invalid, one).is_err(), "{invalid}");
    }
    let other = from(r#"{"block": 0, "offset": 0}"#, Shard::new(1, 2)).unwrap_err();
    assert!(other.contains("which is not in shard 1 of 2"), "{other}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The index and the stream find the lines that a plain split finds.
    #[test]
    fn any_file_of_text_has_its_lines(
        bytes in proptest::collection::vec(
            prop_oneof![3 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(b' '), 3 => Just(b'a'), 1 => any::<u8>()], 0..80
        ),
        is_marked in any::<bool>(),
        block_bytes in 1u64..30,
        shards in 1usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let mark: &[u8] = if is_marked { b"\xef\xbb\xbf" } else { b"" };
        fs::write(&path, [mark, &bytes].concat()).unwrap();
        // Bytes that begin with a mark themselves are rare, but possible.
        let content = if is_marked { &bytes[..] } else { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes) };
        let mut expected: Vec<Option<String>> = content
            .split_inclusive(|&byte| byte == b'\n')
            .map(|line| {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                String::from_utf8(line.strip_suffix(b"\r").unwrap_or(line).to_vec()).ok()
            })
            .collect();
        let options = TextLinesOptions::new(&path).block_bytes(block_bytes).index(IndexPlace::None);
        let lines = options.open().unwrap();
        let cx = &mut SampleContext::new(0);
        let read: Vec<_> = (0..lines.len()).map(|index| lines.get(index, cx).ok()).collect();
        prop_assert_eq!(&read, &expected);
        if let Ok(many) = lines.get_many(&(0..lines.len()).rev().collect::<Vec<_>>(), cx) {
            prop_assert!(many.into_iter().rev().map(Some).eq(expected.iter().cloned()));
        }
        let stream = options.open_stream().unwrap();
        let mut streamed: Vec<_> = stream_all(&stream, shards).into_iter().map(Result::ok).collect();
        if shards > 1 {
            streamed.sort();
            expected.sort();
        }
        prop_assert_eq!(&streamed, &expected);
        // Resumed at each snapshot.
        let shard = Shard::new(shards - 1, shards);
        let mut items = stream.iter_from(shard, cx, None).unwrap();
        let mut all: Vec<_> = stream.iter(shard, &mut SampleContext::new(0)).unwrap().map(Result::ok).collect();
        loop {
            let mut cx = SampleContext::new(0);
            let rest = stream.iter_from(shard, &mut cx, Some(items.snapshot().unwrap())).unwrap();
            prop_assert_eq!(rest.map(Result::ok).collect::<Vec<_>>(), all.clone());
            if items.next().is_none() {
                break;
            }
            all.remove(0);
        }
    }
}

#[test]
fn lines_of_text_name_the_line_that_is_not_unicode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, b"one\n\nth\xe9\n").unwrap();
    let lines = TextLines::open(folder.path()).unwrap();
    assert_eq!(lines.len(), 3);
    let error = lines.get(2, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(error.position, Position::Line(3));
    assert!(matches!(error.problem, DataProblem::Malformed { format: "text", .. }));
    let streamed = stream_all(&lines.stream().unwrap(), 1);
    let error = streamed[2].as_ref().unwrap_err().downcast_ref::<DataError>().unwrap();
    assert_eq!(error.position, Position::Offset(5));
    let compressed = TextLinesStream::open(fixture("two-frames.jsonl.zst")).unwrap();
    let whole = fs::read_to_string(fixture("pandas.jsonl")).unwrap();
    assert!(stream_all(&compressed, 1).into_iter().map(Result::unwrap).eq(whole.lines()));

    let batches = same_everywhere(|workers| {
        let lines = TextLines::open(fixture("json-*.jsonl")).unwrap();
        DataLoader::builder(lines).batch_size(4).num_workers(workers).build().unwrap()
    });
    assert!(batches.iter().flatten().all(|line| line.starts_with('{') && line.ends_with('}')));
    same_everywhere(|workers| {
        let options = TextLinesOptions::new(fixture("json-*.jsonl")).block_bytes(300);
        let lines: TextLinesStream = options.open_stream().unwrap();
        DataLoader::stream(lines).snapshots().batch_size(4).shards(3).num_workers(workers).build().unwrap()
    });
}
