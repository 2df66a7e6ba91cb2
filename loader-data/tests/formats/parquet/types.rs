//! Types of columns, compressions, and rows of the user's own types.

use std::{
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use loader_core::{
    CacheError, CachePart, DType, DataLoader, Dataset, IterableDataset, SampleContext, Shard, Tensor,
};
use loader_data::{Column, DataProblem, FieldOptions, Parquet, ParquetOptions, Record};
use parquet::{
    data_type::{FixedLenByteArray, FixedLenByteArrayType, Int64Type, Int96, Int96Type},
    file::{metadata::KeyValue, properties::WriterProperties, writer::SerializedFileWriter},
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{fixture, json, open, rows};

/// The rows of `types.parquet`, as pyarrow returns them.
fn expected() -> Vec<Json> {
    let text = fs::read_to_string(fixture("types.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The columns of the fixtures that test one compression each.
const COMPRESSED_COLUMNS: [&str; 5] = ["i64", "text", "list", "fixed_list", "dictionary"];

#[test]
fn each_type_reads_as_pyarrow_wrote_it() {
    let dataset = open("types.parquet");
    let expected = expected();
    assert_eq!((dataset.len(), dataset.row_groups()), (expected.len(), 2));
    for (row, (found, expected)) in
        rows(&dataset, &(0..40).collect::<Vec<_>>()).iter().zip(&expected).enumerate()
    {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&found[name], value, "row {row}, column {name}");
        }
    }
    let stream = dataset.stream();
    let mut cx = SampleContext::new(0);
    let read = stream.iter(Shard::new(0, 1), &mut cx).unwrap().map(|row| json(row.unwrap()));
    assert!(read.eq(expected));
}

/// Writes a column `at` of INT96 and a column `list` of lists of INT96: a day of the Julian calendar, and the
/// nanoseconds in this day.
fn int96_file(path: &Path, times: &[(u32, u64)]) {
    let schema = "message m { required int96 at; optional group list (LIST) { repeated group list { optional int96 element; } } \
                  required int64 nanos (TIMESTAMP(NANOS, true)); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let times: Vec<_> = times
        .iter()
        .map(|&(day, nanos)| {
            let mut time = Int96::new();
            time.set_data(nanos as u32, (nanos >> 32) as u32, day);
            time
        })
        .collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int96Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (defined, repeated) = (vec![3; times.len()], vec![0; times.len()]);
    column.typed::<Int96Type>().write_batch(&times, Some(&defined), Some(&repeated)).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&vec![7; times.len()], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn timestamps_of_the_type_int96_are_microseconds_of_any_year() {
    const DAY: i64 = 86_400_000_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spark.parquet");
    // 1970-01-01, the days 0001-01-01 and 9999-12-31 of Spark, and a time of which the last digits are cut off.
    let days = [(2_440_588, 0), (1_721_426, 0), (5_373_484, 86_399_999_999_000), (2_440_589, 1_999)];
    int96_file(&path, &days);
    let dataset = Parquet::open(&path).unwrap();
    let types = dataset.columns();
    assert_eq!(types[0].1, "int64 (Timestamp(µs))");
    assert_eq!(types[1].1, "list of int64 (Timestamp(µs))");
    assert_eq!(types[2].1, "int64 (Timestamp(ns))");
    let found = rows(&dataset, &[0, 1, 2, 3]);
    let expected = [0, -719_162 * DAY, 2_932_897 * DAY - 1, DAY + 1];
    for (row, expected) in found.iter().zip(expected) {
        assert_eq!((&row["at"], &row["list"]), (&Json::from(expected), &serde_json::json!([expected])));
        assert_eq!(row["nanos"], 7);
    }
}

/// Writes the columns `a`, of numbers and a null, and `odd`, of intervals. `arrow` is stored as the Arrow schema.
fn interval_file(path: &Path, arrow: Option<&str>) {
    let schema = "message m { optional int64 a; required fixed_len_byte_array(12) odd (INTERVAL); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let arrow = arrow.map(|text| vec![KeyValue::new("ARROW:schema".to_owned(), text.to_owned())]);
    let properties = WriterProperties::builder().set_key_value_metadata(arrow).build();
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[5], Some(&[1, 0]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let interval = FixedLenByteArray::from(vec![0; 12]);
    column.typed::<FixedLenByteArrayType>().write_batch(&[interval.clone(), interval], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_column_of_an_unsupported_type_is_no_obstacle_if_it_is_not_selected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    // Polars stores a schema that Arrow cannot read for its 128-bit integers.
    for arrow in [None, Some("no schema")] {
        interval_file(&path, arrow);
        let problem = Parquet::open(&path).unwrap_err().problem;
        let DataProblem::UnsupportedColumn { column, others, .. } = problem else { panic!("{problem}") };
        assert_eq!((column.as_str(), &others), ("odd", &["a".to_owned()].into()));
        let dataset = ParquetOptions::new(&path).fields(FieldOptions::new().select(others)).open().unwrap();
        assert_eq!(rows(&dataset, &[0, 1]), [serde_json::json!({"a": 5}), serde_json::json!({"a": null})]);
    }
}

#[test]
fn nulls_of_a_column_are_filled_with_numbers_of_its_dtype() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    interval_file(&path, None);
    let options = FieldOptions::new().select(["a"]);
    let open = |fields| ParquetOptions::new(&path).fields(fields).open().unwrap();
    let batch = |dataset| {
        DataLoader::builder(dataset).batch_size(2).build().unwrap().epoch(0).unwrap().next().unwrap()
    };
    let error = batch(open(options.clone())).unwrap_err().to_string();
    assert!(error.contains("set `fill = { a = 0 }` in the section `[dataset]`"), "{error}");
    let filled = batch(open(options.clone().fill("a", -1.0))).unwrap();
    assert_eq!(filled.tensor::<i64>("a").unwrap().as_slice(), [5, -1]);
    let converted = batch(open(options.fill("a", 0.5).dtype("a", DType::F32))).unwrap();
    assert_eq!(converted.tensor::<f32>("a").unwrap().as_slice(), [5.0, 0.5]);
}

/// Rows with the fingerprint of a program that reads INT96 in another unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct InNanoseconds(Parquet);

impl Dataset for InNanoseconds {
    type Sample = Record;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        self.0.get(index, cx)
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint().replace("microseconds", "nanoseconds")
    }
}

#[test]
fn the_unit_of_int96_is_part_of_the_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spark.parquet");
    int96_file(&path, &[(2_440_588, 0)]);
    let rows = |fields: FieldOptions| ParquetOptions::new(&path).fields(fields).open().unwrap();
    let all = rows(FieldOptions::new());
    assert!(
        all.fingerprint().ends_with(", 1 rows in 1 groups, INT96 in microseconds)"),
        "{}",
        all.fingerprint()
    );
    assert!(all.clone().stream().fingerprint().contains("INT96 in microseconds"));
    for (column, has_int96) in [("at", true), ("list", true), ("nanos", false)] {
        let selected = rows(FieldOptions::new().select([column]));
        let later = all.clone().fields(FieldOptions::new().select([column])).unwrap();
        assert_eq!(selected.fingerprint().contains("INT96"), has_int96, "{column}");
        assert_eq!(later.fingerprint(), selected.fingerprint());
    }
    let cache = folder.path().join("cache");
    InNanoseconds(all.clone()).cached(&cache, "1").unwrap();
    let refused = all.clone().cached(&cache, "1").unwrap_err();
    assert!(matches!(refused, CacheError::Differs { part: CachePart::Fingerprint, .. }), "{refused}");
    drop(InNanoseconds(all).cached(&cache, "1").unwrap());
}

#[test]
fn columns_have_the_types_of_the_file() {
    let types = open("types.parquet").columns();
    let of = |name: &str| types.iter().find(|(column, _)| column == name).unwrap().1.as_str();
    let expected = [
        ("i8", "int8"),
        ("u64", "uint64"),
        ("f16", "float16"),
        ("bool", "bool"),
        ("large_text", "text"),
        ("text_view", "text"),
        ("fixed_bytes", "bytes"),
        ("date", "int32 (Date32)"),
        ("stamp_s", "int64 (Timestamp(ms))"),
        ("time_ms", "int32 (Time32(ms))"),
        ("decimal", "decimal"),
        ("dictionary", "text"),
        ("list", "list of float32"),
        ("fixed_list", "list of 3 float32"),
        ("grid", "list of list of 2 int32"),
        ("record", "{bytes: bytes, path: text}"),
        ("map", "list of {key: text, value: int32}"),
        ("null", "null"),
    ];
    for (name, kind) in expected {
        assert_eq!(of(name), kind, "{name}");
    }
    // A list of lists of a fixed length is a tensor of rank 2.
    let row = open("types.parquet").get(5, &mut SampleContext::new(0)).unwrap();
    let loader_data::Value::Tensor(grid) = row.get("grid").unwrap() else { panic!("{row:?}") };
    assert_eq!((grid.dtype(), grid.shape()), (DType::I32, [2, 2].as_slice()));
}

#[test]
fn each_compression_gives_the_same_rows_with_and_without_an_index_of_pages() {
    let expected = expected();
    let expected_row = |row: usize| -> Json {
        COMPRESSED_COLUMNS.iter().map(|&name| (name.to_owned(), expected[row][name].clone())).collect()
    };
    // Rows of all row groups, not in order, and one of them twice.
    let wanted = [39, 0, 17, 16, 15, 17, 31, 32, 5, 6, 7];
    let names = ["none", "snappy", "gzip", "zstd", "lz4", "brotli", "no-arrow-schema"];
    for name in names.map(|name| format!("{name}.parquet")) {
        // Without a cache, only the wanted rows are read.
        for cache in [0, 1 << 20] {
            let dataset = open(&name).cache_bytes(cache);
            for _ in 0..3 {
                assert_eq!(rows(&dataset, &wanted), wanted.map(expected_row), "{name}");
                assert_eq!(rows(&dataset, &[38]), [expected_row(38)], "{name}");
            }
            let all: Vec<usize> = (0..40).collect();
            assert!(rows(&dataset, &all).into_iter().eq(all.into_iter().map(expected_row)), "{name}");
        }
    }
}

#[test]
fn a_type_of_the_user_gets_its_fields_by_name() {
    #[derive(serde::Deserialize)]
    struct Row {
        label: u32,
        x: Tensor<f32>,
        text: String,
    }

    let dataset = open("train-*.parquet").rows::<Row>();
    assert_eq!(dataset.len(), 60);
    // The second file has its columns in another order.
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

    let wrong = open("train-*.parquet").rows::<Wrong>();
    let error = wrong.get(40, &mut SampleContext::new(0)).unwrap_err().to_string();
    assert!(error.contains("train-00001-of-00002.parquet`, row 3: "), "{error}");
}

#[test]
fn columns_are_selected_converted_and_padded() {
    let fields = FieldOptions::new().select(["list", "i8"]).dtype("i8", DType::F32).pad("list", -1.0);
    let options = ParquetOptions::new(fixture("types.parquet")).fields(fields.clone());
    let loader = DataLoader::builder(options.open().unwrap()).batch_size(3).build().unwrap();
    let batch = loader.iter().unwrap().next().unwrap().unwrap();
    let names: Vec<_> = batch.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["list", "i8"]);
    assert_eq!(batch.tensor::<f32>("i8").unwrap().as_slice(), [-5.0, -4.0, -3.0]);
    let Column::Padded { values, lengths } = &batch["list"] else { panic!("{:?}", batch["list"]) };
    assert_eq!((values.shape(), lengths.as_slice()), ([3, 2].as_slice(), [0, 1, 2].as_slice()));

    let later = open("types.parquet").fields(fields).unwrap();
    assert_eq!(later.columns().len(), 2);
    assert_eq!(later.fingerprint(), options.open().unwrap().fingerprint());
    let missing = open("types.parquet").fields(FieldOptions::new().select(["i8", "label"])).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::MissingField { field, .. } if field == "label"));
}

#[test]
fn options_are_read_from_a_config() {
    let path = fixture("train-*.parquet");
    let text = serde_json::json!({
        "path": [path], "fields": ["label"], "dtypes": {"label": "uint8"}, "shuffle_blocks": 2, "block_bytes": 100_000,
    });
    let options: ParquetOptions = serde_json::from_value(text).unwrap();
    let loader = DataLoader::stream(options.open_stream().unwrap()).shards(1).batch_size(60).build().unwrap();
    let batch = loader.iter().unwrap().next().unwrap().unwrap();
    let mut labels = batch.tensor::<u8>("label").unwrap().as_slice().to_vec();
    assert!(!labels.is_sorted());
    labels.sort_unstable();
    assert!(labels.into_iter().eq(0..60));
    let wrong = serde_json::from_str::<ParquetOptions>(r#"{"path": "a", "shuffle": 2}"#).unwrap_err();
    assert!(wrong.to_string().contains("unknown field"), "{wrong}");
}
