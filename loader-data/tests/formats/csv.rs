//! CSV and TSV, written by Python and pandas: see `fixtures/csv/write.py`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loader_core::{
    DType, DataLoader, Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator,
};
use loader_data::{
    ColumnType, Csv, CsvOptions, CsvStream, DataError, DataProblem, FieldOptions, IndexPlace, Position,
    Record,
};
use proptest::prelude::*;
use serde::Deserialize;

use crate::everywhere::same_everywhere;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/csv")).join(name)
}

/// A row that `write.py` writes.
#[derive(Debug, PartialEq, Deserialize)]
struct Row {
    id: u32,
    text: String,
    score: f32,
    zip: String,
    missing: Option<u16>,
}

fn written(id: u32) -> Row {
    let line_break = if id.is_multiple_of(3) { "\n" } else { "" };
    Row {
        id,
        text: format!("row {id}: \"é\", 漢\n{line_break};end"),
        score: id as f32 / 8.0,
        zip: format!("{:05}", id * 37 % 20000),
        missing: (id % 4 != 1).then_some(id as u16 * 10),
    }
}

fn all<D: Dataset>(dataset: &D) -> Vec<D::Sample> {
    let cx = &mut SampleContext::new(0);
    (0..dataset.len()).map(|index| dataset.get(index, cx).unwrap()).collect()
}

/// The samples of all shards, one shard after the other.
fn stream_all<D: IterableDataset>(dataset: &D, shards: usize) -> Vec<anyhow::Result<D::Sample>> {
    let samples = |shard| {
        dataset.iter(Shard::new(shard, shards), &mut SampleContext::new(0)).unwrap().collect::<Vec<_>>()
    };
    (0..shards).flat_map(samples).collect()
}

/// Writes a file in a new folder, and returns its options.
fn options_of(name: &str, content: &[u8]) -> (tempfile::TempDir, CsvOptions) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    (folder, CsvOptions::new(path).index(IndexPlace::None))
}

#[test]
fn files_that_python_and_pandas_wrote_read_back_equal() {
    let expected: Vec<_> = (0..48).map(written).collect();
    let excel = CsvOptions::new(fixture("excel.csv")).delimiter(';');
    let pandas = CsvOptions::new(fixture("pandas.csv"));
    let others = ["part-{0..2}.csv", "table.tsv"].map(|name| CsvOptions::new(fixture(name)));
    for options in [excel, pandas].into_iter().chain(others) {
        let records = options.open().unwrap();
        let types: Vec<_> = records.columns().into_iter().map(|(_, column)| column).collect();
        assert_eq!(types, ["int64", "str", "float64", "bool", "str", "int64"], "{options:?}");
        let record = records.get(1, &mut SampleContext::new(0)).unwrap();
        assert_eq!(
            (record.get("even"), record.get("missing")),
            (Some(&false.into()), Some(&loader_data::Value::Null))
        );
        let rows = records.rows::<Row>();
        assert_eq!(all(&rows), expected, "{options:?}");
        let some = [47, 3, 3, 16, 0, 15, 1, 2];
        let many = rows.get_many(&some, &mut SampleContext::new(0)).unwrap();
        assert_eq!(many, some.map(|id| written(id as u32)), "{options:?}");
        let stream = rows.stream().unwrap();
        assert!(stream_all(&stream, 1).into_iter().map(Result::unwrap).eq((0..48).map(written)));
        assert_eq!(IterableDataset::len(&stream), Some(48));
    }
    for name in ["pandas.csv.gz", "pandas.csv.zst"] {
        let stream = CsvStream::open(fixture(name)).unwrap().rows::<Row>();
        assert!(stream_all(&stream, 1).into_iter().map(Result::unwrap).eq((0..48).map(written)), "{name}");
    }

    let names = ["number", "size"].map(str::to_owned).to_vec();
    let plain = CsvOptions::new(fixture("plain.csv")).names(names).quotes(false).open().unwrap();
    let sizes = all(&plain).into_iter().map(|row| row.get("size").cloned().unwrap());
    assert!(sizes.eq((0..5).map(|id| format!("{id}\" wide").into())));
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let fields = FieldOptions::new().select(["id", "zip", "score"]).dtype("id", DType::U32);
    let options = || CsvOptions::new(fixture("part-*.csv")).fields(fields.clone());
    let batches = same_everywhere(|workers| {
        let rows = options().open().unwrap();
        DataLoader::builder(rows).batch_size(6).shuffle(true).seed(3).num_workers(workers).build().unwrap()
    });
    let ids = batches[0].tensor::<u32>("id").unwrap();
    let expected: Vec<_> = ids.as_slice().iter().map(|&id| written(id).zip).collect();
    assert_eq!(batches[0]["zip"].texts(), Some(expected.as_slice()));

    let indexed = || options().open().unwrap().stream().unwrap();
    for stream in [
        || CsvStream::open(fixture("pandas.csv*")).unwrap(),
        || CsvStream::open(fixture("part-*.csv")).unwrap(),
    ] {
        let texts = || stream().rows::<Row>().map(|row, _cx| Ok((row.id, row.text)));
        same_everywhere(|workers| {
            DataLoader::stream(texts()).batch_size(4).shards(3).num_workers(workers).build().unwrap()
        });
        same_everywhere(|workers| {
            let loader = DataLoader::stream(texts()).snapshots().batch_size(4).shards(3);
            loader.num_workers(workers).build().unwrap()
        });
    }
    let batches = same_everywhere(|workers| {
        let loader = DataLoader::stream(indexed()).snapshots().batch_size(4).shards(2);
        loader.num_workers(workers).build().unwrap()
    });
    let ids = batches.iter().flat_map(|batch| batch.tensor::<u32>("id").unwrap().as_slice().to_vec());
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..48));
}

#[test]
fn odd_files_are_read() {
    let rows = |content: &[u8]| {
        let (_folder, options) = options_of("a.csv", content);
        let dataset = options.open().unwrap();
        let streamed = stream_all(&options.open_stream().unwrap(), 1);
        let rows: Vec<String> = all(&dataset).iter().map(|row| format!("{row:?}")).collect();
        assert!(streamed.iter().map(|row| format!("{:?}", row.as_ref().unwrap())).eq(rows.iter().cloned()));
        rows
    };
    assert!(rows(b"a,b").is_empty());
    assert!(rows(b"\xef\xbb\xbf\r\n\r\na,b\r\n\n").is_empty());
    assert_eq!(
        rows(b"\xef\xbb\xbf\"a\"\n1\n\n2"),
        [r#"{"a": Number(1_int64)}"#, r#"{"a": Number(2_int64)}"#]
    );
    assert_eq!(rows(b"a\tb\n\t\n"), [r#"{"a\tb": Text("\t")}"#]);
    let text = rows(b"a,b\n\"x\r\ny\",\"\"\"z\"\"\n\"\nq\"w\"e,\n");
    assert_eq!(text[0], r#"{"a": Text("x\r\ny"), "b": Text("\"z\"\n")}"#);
    assert_eq!(text[1], r#"{"a": Text("q\"w\"e"), "b": Text("")}"#);
    // Each of several files that were joined began with a byte order mark.
    let joined = rows(b"a\n\"x\"\n\xef\xbb\xbf\"y\nz\"\n\"w\"\n");
    assert_eq!(joined, [r#"{"a": Text("x")}"#, r#"{"a": Text("y\nz")}"#, r#"{"a": Text("w")}"#]);
}

#[test]
fn options_set_types_missing_values_and_fields() {
    let content = b"age,zip,label,note\n1,01067,3,NA\n,NA,4,x\n";
    let (_folder, options) = options_of("a.csv", content);
    let found = options.open().unwrap().columns();
    let types: Vec<_> = found.iter().map(|(_, column)| column.as_str()).collect();
    assert_eq!(types, ["int64", "str", "int64", "str"]);
    let text = serde_json::json!({
        "path": [fixture("part-*.csv")], "types": {"id": "float32", "zip": "uint32"}, "fields": ["zip", "id"],
    });
    let from_config: CsvOptions = serde_json::from_value(text).unwrap();
    let batch = DataLoader::builder(from_config.open().unwrap()).batch_size(3).build().unwrap();
    let batch = batch.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.tensor::<u32>("zip").unwrap().as_slice(), [0, 37, 74]);
    assert_eq!(batch.tensor::<f32>("id").unwrap().as_slice(), [0.0, 1.0, 2.0]);

    let options = options.column_type("label", ColumnType::Number(DType::U8)).missing(vec!["NA".to_owned()]);
    let rows = all(&options.open().unwrap());
    assert_eq!(
        format!("{:?}", rows[0]),
        r#"{"age": Number(1_int64), "zip": Text("01067"), "label": Number(3_uint8), "note": Null}"#
    );
    assert_eq!(
        format!("{:?}", rows[1]),
        r#"{"age": Null, "zip": Null, "label": Number(4_uint8), "note": Text("x")}"#
    );

    let error = |options: CsvOptions| options.open().unwrap_err().problem;
    assert!(matches!(
        error(options.clone().delimiter('é')),
        DataProblem::InvalidOption { option: "delimiter", .. }
    ));
    let unknown = error(options.clone().column_type("ages", ColumnType::Text));
    assert!(matches!(unknown, DataProblem::MissingField { field, .. } if field == "ages"));
    let select = options.fields(FieldOptions::new().select(["label", "name"]));
    assert!(matches!(error(select), DataProblem::MissingField { field, .. } if field == "name"));
    let wrong = serde_json::from_str::<CsvOptions>(r#"{"path": "a", "types": {"a": "text"}}"#).unwrap_err();
    assert!(wrong.to_string().contains("`text` is neither `str` nor `bool` nor a dtype"), "{wrong}");
}

#[test]
fn a_bad_record_is_a_typed_error_that_names_the_row_and_the_field() {
    let mut content = b"n,t\n".to_vec();
    (0..1000).for_each(|n| content.extend_from_slice(format!("{n},\"a\nb\"\n").as_bytes()));
    content.extend_from_slice(b"007,x\n1.5,x\n1\n1,2,3\n5,\"\xff\"\n6,y\n7,\"open\n8,z\n");
    let (_folder, options) = options_of("a.csv", &content);
    let dataset = options.open().unwrap();
    assert_eq!(dataset.len(), 1007, "the field that is not closed has the rest of the file");
    let cx = &mut SampleContext::new(0);
    let mut error = |row: usize| dataset.get(row, cx).unwrap_err().downcast::<DataError>().unwrap();
    let errors = [1000, 1001, 1002, 1003, 1004, 1006].map(&mut error);
    assert!(errors.iter().all(|error| error.file.contains("a.csv")), "{errors:?}");
    assert_eq!(errors[0].position, Position::Row(1000));
    let expected = "field `n`: expected int64 (as in the first 1000 rows; the option `types` sets another type), found `007`";
    assert_eq!(errors[0].problem.to_string(), expected);
    assert!(
        matches!(&errors[1].problem, DataProblem::WrongType { found, .. } if found == "`1.5`"),
        "{}",
        errors[1]
    );
    let texts: Vec<_> = errors[2..].iter().map(|error| error.problem.to_string()).collect();
    assert!(texts[0].contains("it has 1 fields where there are 2 columns"), "{texts:?}");
    assert!(texts[1].contains("it has 3 fields") || texts[1].contains("it has more fields"), "{texts:?}");
    assert!(texts[2].contains("field 2 is not UTF-8"), "{texts:?}");
    assert!(texts[3].contains("has none at its end"), "{texts:?}");
    let streamed = stream_all(&options.open_stream().unwrap(), 1);
    let bad = streamed.iter().filter(|row| row.is_err()).count();
    assert_eq!((streamed.len(), bad), (1007, 6));
    let first = streamed[1000].as_ref().unwrap_err().downcast_ref::<DataError>().unwrap();
    let start = 4 + (0..1000).map(|n: u32| n.to_string().len() as u64 + 7).sum::<u64>();
    assert_eq!(first.position, Position::Offset(start));

    // The same row, read as a type.
    let rows = dataset.rows::<(u8, String)>();
    let wrong = rows.get(300, cx).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(wrong.problem, DataProblem::Record(_)), "{wrong}");
    let long = options.max_line_bytes(9).open().unwrap();
    let error = long.get(1006, cx).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::TooLarge { option: "max_line_bytes", .. }), "{error}");
}

#[test]
fn a_row_type_reads_booleans_and_numbers_as_records_have_them() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        n: Option<i32>,
        ok: bool,
        x: f32,
        text: String,
    }

    let content = b"n,ok,x,text\n 5,True, 1.5 , True \n,FALSE ,2,b\n1,Yes,2,c\n1,,2,d\n";
    let (_folder, options) = options_of("rows.csv", content);
    let rows = options.open().unwrap().rows::<Row>();
    let cx = &mut SampleContext::new(0);
    let row = |n, ok, x, text: &str| Row { n, ok, x, text: text.to_owned() };
    assert_eq!(rows.get(0, cx).unwrap(), row(Some(5), true, 1.5, " True "));
    assert_eq!(rows.get(1, cx).unwrap(), row(None, false, 2.0, "b"));
    let wrong = rows.get(2, cx).unwrap_err().to_string();
    assert!(wrong.ends_with("column `ok` has `Yes`: provided string was not `true` or `false`"), "{wrong}");
    let empty = rows.get(3, cx).unwrap_err().to_string();
    assert!(empty.ends_with("column `ok` has no value; make the field of the type an `Option`"), "{empty}");
}

#[test]
fn files_without_or_with_another_header_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = |content: &[u8]| {
        fs::write(at("a.csv"), content).unwrap();
        CsvOptions::new(at("a.csv")).open().unwrap_err()
    };
    assert!(refused(b"").to_string().contains("it has no header"));
    assert!(refused(b"\xef\xbb\xbf\n\n").to_string().contains("it has no header"));
    assert!(refused(b"a,b,a\n").to_string().contains("two columns have the name `a`"));
    assert!(refused(b"a,b\r1,2\r").to_string().contains("end with `\\r` alone"));
    assert!(refused(b"a,\xff\n").to_string().contains("not UTF-8"));
    assert!(refused(b"a,\"b\n").to_string().contains("none at its end"));
    fs::write(at("a.csv"), "a,b\n1,2\n").unwrap();
    fs::write(at("b.csv"), "b,a\n1,2\n").unwrap();
    let other = Csv::open(folder.path()).unwrap_err();
    let [first, second] = ["a.csv", "b.csv"].map(|name| at(name).display().to_string());
    let expected =
        format!("`{second}`: has the columns b, a, but the first file, `{first}`, has a, b; give only");
    assert!(other.to_string().starts_with(&expected), "{other}");

    let open = |name: &str| Csv::open(at(name)).unwrap_err().problem;
    assert!(matches!(open("missing.csv"), DataProblem::NotFound));
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(open("pipe"), DataProblem::NotAFile { .. }));
    fs::create_dir(at("folder")).unwrap();
    assert!(matches!(open("folder"), DataProblem::NoFiles { .. }));
    for name in ["a.csv.gz", "a.csv.zst"] {
        fs::write(at(name), "").unwrap();
        assert!(matches!(open(name), DataProblem::Unsupported(_)), "{name}");
    }
    let whole = fs::read(fixture("pandas.csv.gz")).unwrap();
    fs::write(at("cut.csv.gz"), &whole[..whole.len() - 9]).unwrap();
    let rows = stream_all(&CsvStream::open(at("cut.csv.gz")).unwrap(), 1);
    let last = rows.last().unwrap().as_ref().unwrap_err().downcast_ref::<DataError>().unwrap();
    assert!(matches!(last.problem, DataProblem::Truncated), "{last}");
}

#[test]
fn a_stored_index_belongs_to_the_rules_that_made_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "a\n\"1\n2\"\n3\n").unwrap();
    let options = CsvOptions::new(&path).index(IndexPlace::Beside);
    let index = folder.path().join("a.csv.index");
    assert_eq!(options.open().unwrap().len(), 2);
    let first = fs::read(&index).unwrap();
    assert_eq!((options.open().unwrap().len(), fs::read(&index).unwrap()), (2, first.clone()));
    assert_eq!(options.clone().quotes(false).open().unwrap().len(), 3, "without quotes");
    assert_ne!(fs::read(&index).unwrap(), first);
    fs::write(&path, "a\n1\n2\n3\n4\n").unwrap();
    assert_eq!(options.open().unwrap().len(), 4, "stale");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The index and the streams find the records that the crate `csv` finds in the whole file.
    #[test]
    fn any_file_has_the_records_of_the_crate(
        bytes in proptest::collection::vec(
            prop_oneof![2 => Just(b'\n'), 3 => Just(b'"'), 3 => Just(b','), 3 => Just(b'a'), 1 => Just(b'b')], 0..80
        ),
        shards in 1usize..4,
    ) {
        // A last field that is not closed is an error here, and none for the crate.
        let content = [b"a,b\n".as_slice(), &bytes].concat();
        let mut reader = csv::ReaderBuilder::new();
        let mut reader = reader.flexible(true).terminator(csv::Terminator::Any(b'\n')).from_reader(&content[..]);
        let expected: Vec<Vec<String>> =
            reader.records().map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect();
        let (_folder, options) = options_of("a.csv", &content);
        let options = options.column_type("a", ColumnType::Text).column_type("b", ColumnType::Text);
        let dataset = options.open().unwrap();
        prop_assert_eq!(dataset.len(), expected.len());
        let fields = |row: &Record| row.iter().map(|(_, value)| format!("{value:?}")).collect::<Vec<_>>();
        let cx = &mut SampleContext::new(0);
        let mut rows: Vec<Option<Vec<String>>> = Vec::new();
        for (index, expected) in expected.iter().enumerate() {
            let found = dataset.get(index, cx).ok().as_ref().map(fields);
            let texts = expected.iter().map(|text| format!("Text({text:?})")).collect::<Vec<_>>();
            let is_last = index + 1 == dataset.len();
            prop_assert!(found == (expected.len() == 2).then_some(texts) || is_last && found.is_none(), "{found:?}");
            rows.push(found);
        }
        for stream in [options.open_stream().unwrap(), dataset.stream().unwrap()] {
            let streamed = stream_all(&stream, shards).into_iter().map(|row| row.ok().as_ref().map(fields));
            prop_assert_eq!(streamed.collect::<Vec<_>>(), rows.clone());
            // Resumed at each snapshot.
            let mut items = stream.iter_from(Shard::new(0, 1), cx, None).unwrap();
            for taken in 0..=rows.len() {
                let mut cx = SampleContext::new(0);
                let rest = stream.iter_from(Shard::new(0, 1), &mut cx, Some(items.snapshot().unwrap())).unwrap();
                prop_assert_eq!(rest.count(), rows.len() - taken);
                items.next();
            }
        }
    }
}

/// An access error must not leave a column with the type that fits fewer rows.
#[cfg(feature = "cloud")]
#[test]
fn the_types_are_the_same_or_opening_fails_if_a_server_fails() {
    let server = crate::server::Server::start();
    server.put("a.csv", "x,y\n1,2.5\n");
    server.put("b.csv", "x,y\nlow,3\n");
    let store = loader_data::StoreOptions {
        allow_http: true,
        timeout: std::time::Duration::from_millis(200),
        ..Default::default()
    };
    let url = format!("{}/{{a,b}}.csv", server.url("").trim_end_matches('/'));
    let options = CsvOptions::new(url).store(store).index(IndexPlace::None);
    let expected = options.open().unwrap().columns();
    assert_eq!(
        expected,
        [("x", "str"), ("y", "float64")].map(|(name, kind)| (name.to_owned(), kind.to_owned()))
    );
    let mut failed = 0;
    for good in 0..10 {
        let faults = std::iter::repeat_n(crate::server::Fault::Slow(1), good);
        server.fail(faults.chain([crate::server::Fault::Status(403)]));
        match options.open() {
            Ok(table) => assert_eq!(table.columns(), expected, "after {good} good answers"),
            Err(_) => failed += 1,
        }
        server.recover();
    }
    assert!(failed > 0);
}

#[test]
fn missing_numbers_are_filled_with_numbers_of_the_column() {
    let (_folder, options) = options_of("a.csv", b"a,b\n1,x\n,y\n");
    let dataset = options.fields(FieldOptions::new().fill("a", 7.0)).open().unwrap();
    assert_eq!(dataset.get(1, &mut SampleContext::new(0)).unwrap().get("a"), Some(&7_i64.into()));
}
