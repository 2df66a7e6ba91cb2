//! Columns of encoded images, and tables that name images, from files that pyarrow and Pillow wrote.

use std::{fs, path::Path};

use loader_core::{DataLoader, Dataset, SampleContext};
use loader_data::{
    Columns, DataError, DataProblem, ImageColumn, ImageProblem, ImageRecords, ImageTable, JsonLines, Parquet,
    ParquetOptions, Position, Record, RecordConfig, Records, Transform, Value,
};

use crate::everywhere::same_everywhere;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/images");

fn open(config: &str) -> Result<Records, DataError> {
    let mut config: RecordConfig = serde_json::from_str(config).unwrap();
    config.relative_to(FIXTURES);
    config.open()
}

/// Returns the loader of a dataset of images that a config describes.
fn loader(config: &str, workers: usize) -> DataLoader<Columns> {
    match open(config).unwrap() {
        Records::Map(records) => {
            let loader = DataLoader::builder(records).batch_size(2).shuffle(true).seed(5);
            loader.num_workers(workers).build().unwrap()
        }
        Records::Stream(records) => {
            let loader = DataLoader::stream(records).batch_size(2).shards(2).seed(5).snapshots();
            loader.num_workers(workers).build().unwrap()
        }
    }
}

#[test]
fn images_of_any_format_are_the_same_everywhere() {
    let column = r#""images": {"image": {"transform": "train", "size": 9}}"#;
    for config in [
        format!(r#"{{"kind": "parquet", "path": "train.parquet", {column}}}"#),
        format!(r#"{{"kind": "parquet-stream", "path": "train.parquet", "shuffle_blocks": 2, {column}}}"#),
        format!(r#"{{"kind": "image-table", "path": "folder", "fields": ["image", "text"], {column}}}"#),
    ] {
        let batches = same_everywhere(|workers| loader(&config, workers));
        assert_eq!(batches[0].tensor::<f32>("image").unwrap().shape(), [2, 3, 9, 9], "{config}");
        // Random crops differ from epoch to epoch.
        let digest = |epoch| {
            let batches: Vec<_> = loader(&config, 0).epoch(epoch).unwrap().map(Result::unwrap).collect();
            batches
                .iter()
                .map(|batch| batch.tensor::<f32>("image").unwrap().as_slice().to_vec())
                .collect::<Vec<_>>()
        };
        assert_ne!(digest(0), digest(1), "{config}");
    }
}

#[test]
fn a_column_has_the_pixels_of_the_file() {
    let rows = Parquet::open(Path::new(FIXTURES).join("train.parquet")).unwrap();
    let column = ImageColumn::u8(Transform::new()).unwrap();
    let images = ImageRecords::new(rows, [("image", column)]);
    let record = images.get(3, &mut SampleContext::new(0)).unwrap(); // a PNG
    let Some(Value::Tensor(image)) = record.get("image") else { panic!("{record:?}") };
    assert_eq!(image.shape(), [3, 10, 12]);
    let pixel = |y: u32, x: u32| [(x * 20) as u8, 30, (x * y) as u8];
    let expected: Vec<u8> =
        (0..3).flat_map(|channel| (0..120).map(move |at| pixel(at / 12, at % 12)[channel])).collect();
    assert_eq!(image.as_bytes(), expected);

    // The same file as a text in base64, with and without its record.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let text = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAgAAhACD0IbOIwAAAABJRU5ErkJggg==";
    fs::write(&path, format!("{{\"a\": \"{text}\", \"b\": {{\"bytes\": \"{text}\", \"path\": null}}}}\n"))
        .unwrap();
    let columns = ["a", "b"].map(|name| (name, ImageColumn::u8(Transform::new()).unwrap()));
    let images = ImageRecords::new(JsonLines::open(&path).unwrap(), columns);
    let record = images.get(0, &mut SampleContext::new(0)).unwrap();
    assert_eq!(record.get("a"), record.get("b"));
    assert!(matches!(record.get("a"), Some(Value::Tensor(image)) if image.as_bytes() == [130; 3]));
}

/// Returns the error of row 0 of JSON lines with one row.
fn error_of(row: &str) -> DataError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, format!("{row}\n")).unwrap();
    let column = ImageColumn::f32(Transform::new()).unwrap();
    let images = ImageRecords::new(JsonLines::open(&path).unwrap(), [("image", column)]);
    let error = images.get(0, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(error.position, Position::Row(0), "{error}");
    error
}

#[test]
fn what_is_no_image_is_a_typed_error() {
    let broken = r#"{"image": {"bytes": "iVBORw0KGgoAAAANSUhEUg==", "path": "cat.png"}}"#;
    let error = error_of(broken);
    assert!(
        matches!(error.problem, DataProblem::Image(ImageProblem::Truncated { format: "PNG" })),
        "{error}"
    );
    assert!(error.to_string().starts_with("image `image` (`cat.png`), row 0: is truncated"), "{error}");
    let text = error_of(r#"{"image": "bm90IGFuIGltYWdl"}"#);
    assert!(matches!(text.problem, DataProblem::Image(ImageProblem::UnknownFormat { .. })), "{text}");
    assert!(matches!(error_of(r#"{"image": "%"}"#).problem, DataProblem::Malformed { .. }));
    assert!(matches!(error_of(r#"{"image": null}"#).problem, DataProblem::Null { .. }));
    assert!(matches!(error_of(r#"{"other": 1}"#).problem, DataProblem::MissingField { .. }));
    for row in [r#"{"image": 5}"#, r#"{"image": {"path": "a.png"}}"#, r#"{"image": {"bytes": 5}}"#] {
        assert!(matches!(error_of(row).problem, DataProblem::WrongType { .. }), "{row}");
    }

    let refused = |images: &str| {
        let config =
            format!(r#"{{"kind": "parquet", "path": "train.parquet", "images": {{"image": {images}}}}}"#);
        open(&config).unwrap_err()
    };
    for images in [
        r#"{"transform": [{"resize": {"size": 0}}]}"#,
        r#"{"transform": "eval", "size": 0}"#,
        r#"{"transform": [{"normalise": {"mean": [0, 0, 0], "std": [1, 1, 1]}}], "dtype": "uint8"}"#,
    ] {
        let error = refused(images);
        assert!(matches!(error.problem, DataProblem::InvalidOption { option: "images", .. }), "{error}");
    }
    // The options of a format alone do not decode images.
    let options = r#"{"path": "train.parquet", "images": {"image": {}}}"#;
    let error = serde_json::from_str::<ParquetOptions>(options).unwrap().open().unwrap_err();
    assert!(matches!(error.problem, DataProblem::InvalidOption { option: "images", .. }), "{error}");
}

#[test]
fn a_table_adds_the_files_that_it_names() {
    let folder = Path::new(FIXTURES).join("folder");
    for table in [folder.clone(), folder.join("table.parquet")] {
        let table = ImageTable::open(&table).unwrap();
        assert_eq!(table.len(), 12);
        let record = table.get(5, &mut SampleContext::new(0)).unwrap();
        assert_eq!(record.get("text"), Some(&"picture 5".into()));
        let file = fs::read(folder.join("part/5.img")).unwrap();
        let image: Record =
            [("bytes", Value::from(file)), ("path", "part/5.img".into())].into_iter().collect();
        assert_eq!(record.get("image"), Some(&Value::Record(image)));
    }
    let config = r#"{"kind": "image-table", "path": "folder", "images": {"image": {"size": 4}}}"#;
    let config: RecordConfig = serde_json::from_str(config).unwrap();
    let again: RecordConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_table_with_bad_names_fails_sample_by_sample() {
    let made = tempfile::tempdir().unwrap();
    let folder = made.path().join("data");
    fs::create_dir_all(folder.join("sub")).unwrap();
    let png = fs::read(Path::new(FIXTURES).join("folder/part/0.img")).unwrap();
    fs::write(made.path().join("outside.png"), &png).unwrap();
    fs::write(folder.join("good.png"), &png).unwrap();
    fs::write(folder.join("text.png"), "text").unwrap();
    let outside = made.path().join("outside.png");
    let names = [
        "\"good.png\"".to_owned(),
        "\"gone.png\"".to_owned(),
        "\"../outside.png\"".to_owned(),
        format!("{outside:?}"),
        "\"sub\"".to_owned(),
        "\"text.png\"".to_owned(),
        "5".to_owned(),
    ];
    let mut rows: String = names.iter().map(|name| format!("{{\"file_name\": {name}}}\n")).collect();
    rows.push_str("{\"text\": \"no name\"}\n");
    fs::write(folder.join("metadata.jsonl"), rows).unwrap();
    let table = ImageTable::open(&folder).unwrap();
    let problem = |index: usize| {
        let error =
            table.get(index, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
        assert_eq!(error.position, Position::Row(index as u64));
        error.problem
    };
    assert!(table.get(0, &mut SampleContext::new(0)).is_ok());
    assert!(matches!(problem(1), DataProblem::Image(ImageProblem::Unreadable(_))));
    assert!(matches!(problem(2), DataProblem::Record(_)));
    assert!(matches!(problem(3), DataProblem::Record(_)));
    assert!(matches!(problem(4), DataProblem::Image(ImageProblem::NotAFile { found: "a folder" })));
    assert!(matches!(problem(5), DataProblem::Image(ImageProblem::UnknownFormat { .. })));
    assert!(matches!(problem(6), DataProblem::WrongType { .. }));
    assert!(matches!(problem(7), DataProblem::MissingField { .. }));

    let missing = ImageTable::open(made.path()).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::InvalidOption { option: "path", .. }), "{missing}");
    assert!(ImageTable::open(folder.join("metadata.parquet")).is_err());
}
