//! Columns of encoded images, and tables that name images, from files that pyarrow and Pillow wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, iter,
    path::Path,
};

use loader_core::{DataLoader, Dataset, SampleContext};
use loader_data::{
    Columns, DataError, DataProblem, DecodedRecords, ImageColumn, ImageProblem, ImageTable, JsonLines,
    Parquet, ParquetOptions, Position, Record, RecordConfig, Records, TarShards, Transform, Value,
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
fn a_stream_without_snapshots_is_the_same_everywhere() {
    let config = r#"{"kind": "parquet-stream", "path": "train.parquet", "shuffle_blocks": 2,
        "images": {"image": {"transform": "train", "size": 9}}}"#;
    same_everywhere(|workers| {
        let Records::Stream(images) = open(config).unwrap() else { panic!("it is a stream") };
        DataLoader::stream(images).batch_size(2).shards(2).seed(5).num_workers(workers).build().unwrap()
    });
}

#[test]
fn a_column_has_the_pixels_of_the_file() {
    let rows = Parquet::open(Path::new(FIXTURES).join("train.parquet")).unwrap();
    let column = ImageColumn::u8(Transform::new()).unwrap();
    let images = DecodedRecords::new(rows, [("image", column)]);
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
    let images = DecodedRecords::new(JsonLines::open(&path).unwrap(), columns);
    let record = images.get(0, &mut SampleContext::new(0)).unwrap();
    assert_eq!(record.get("a"), record.get("b"));
    assert!(matches!(record.get("a"), Some(Value::Tensor(image)) if image.as_bytes() == [130; 3]));
}

/// A mask is cut and mirrored as its image: each class has one colour in `mask.png`.
#[test]
fn a_mask_is_transformed_as_its_image() {
    let file = Path::new(FIXTURES).join("../../../image_folder/fixtures/types/mask.png");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(file, folder.path().join("mask.png")).unwrap();
    let table = "{\"file_name\": \"mask.png\", \"mask_file_name\": \"mask.png\"}\n".repeat(20);
    fs::write(folder.path().join("metadata.jsonl"), table).unwrap();
    let steps = r#"{"center_crop": {"height": 15, "width": 25}}, {"random_horizontal_flip": {"p": 0.5}}"#;
    let config = |masks: &str| {
        format!(
            r#"{{"kind": "image-table", "path": {:?}, "fields": ["image", "mask"], "images":
                {{"image": {{"transform": [{steps}], "dtype": "uint8", "masks": [{masks}]}}}}}}"#,
            folder.path()
        )
    };
    let (mut colours, mut firsts) = (BTreeMap::new(), BTreeSet::new());
    for batch in loader(&config(r#""mask""#), 1).iter().unwrap() {
        let batch = batch.unwrap();
        let (images, masks) = (batch.tensor::<u8>("image").unwrap(), batch.tensor::<u8>("mask").unwrap());
        assert_eq!((images.shape(), masks.shape()), (&[2, 3, 15, 25][..], &[2, 15, 25][..]));
        let pixels = 15 * 25;
        for (image, mask) in iter::zip(images.as_slice().chunks(3 * pixels), masks.as_slice().chunks(pixels))
        {
            firsts.insert(mask[1]);
            for (pixel, class) in mask.iter().enumerate() {
                let colour = [0, 1, 2].map(|channel| image[channel * pixels + pixel]);
                // Black around the image has the class 0, whatever the colour of this class.
                if *class != 0 {
                    assert_eq!(*colours.entry(*class).or_insert(colour), colour, "class {class}");
                }
            }
        }
    }
    assert!(colours.len() > 1 && firsts.len() == 2, "{colours:?}, {firsts:?}");

    let refused = open(&config(r#""mask", "image""#)).map(drop).unwrap_err();
    let reason = "another option decodes this field too; remove one of the two";
    assert!(refused.to_string().contains(&format!("`image`: {reason}")), "{refused}");
    let Records::Map(records) = open(&config(r#""msk""#)).unwrap() else { panic!("it is map-style") };
    let missing = records.get(0, &mut SampleContext::new(0)).unwrap_err().to_string();
    assert!(missing.contains("mask `msk`") && missing.contains("row 0"), "{missing}");
}

/// Returns the error of row 0 of JSON lines with one row.
fn error_of(row: &str) -> DataError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, format!("{row}\n")).unwrap();
    let column = ImageColumn::f32(Transform::new()).unwrap();
    let images = DecodedRecords::new(JsonLines::open(&path).unwrap(), [("image", column)]);
    let error = images.get(0, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(error.position, Position::Row(0), "{error}");
    error
}

/// A stream does not know the number of a row in its file, and the loader adds the place in the stream.
#[test]
fn a_field_of_an_archive_that_is_no_image_is_found_by_key_and_archive() {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar/photos.tar");
    let column = ImageColumn::f32(Transform::new()).unwrap();
    let images = DecodedRecords::new(TarShards::open(archive).unwrap(), [("cls", column)]);
    let loader = DataLoader::stream(images).shards(1).batch_size(4).build().unwrap();
    let error = loader.iter().unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("sample 0 of shard 0: image `cls` (`"), "{error}");
    assert!(error.contains("photos.tar`): field `cls`: expected image"), "{error}");
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
fn a_csv_table_has_typed_columns_and_names_that_look_like_numbers() {
    let folder = Path::new(FIXTURES).join("csv");
    let rows =
        ImageTable::open(&folder).unwrap().get_many(&[0, 1, 2, 3], &mut SampleContext::new(0)).unwrap();
    for (label, name) in ["007", "8", "part/0.png", "part/1.jpg"].into_iter().enumerate() {
        let fields: Vec<_> = rows[label].iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["score", "file_name", "text", "label", "image"]);
        assert_eq!(rows[label].get("file_name"), Some(&name.into()));
        assert_eq!(rows[label].get("label"), Some(&Value::from(label as i64)));
        let Some(Value::Record(image)) = rows[label].get("image") else { panic!("{name}") };
        assert_eq!(image.get("bytes"), Some(&fs::read(folder.join(name)).unwrap().into()));
    }
    assert_eq!(rows[1].get("score"), Some(&Value::from(1.0)));
    assert_eq!(rows[0].get("text"), Some(&"a \"quoted\", text".into()));
    assert_eq!(rows[1].get("text"), Some(&"two\nlines".into()));

    let config = r#"{"kind": "image-table", "path": "csv", "fields": ["image", "label", "score"],
        "images": {"image": {"size": 8}}}"#;
    let batch = loader(config, 1).iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.tensor::<f32>("image").unwrap().shape(), [2, 3, 8, 8]);
    assert_eq!(batch.tensor::<f64>("score").unwrap().shape(), [2]);
}

#[test]
fn a_row_may_name_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    // Names that look like numbers and booleans.
    for name in ["1", "2", "true", "false"] {
        write(name, &format!("content of {name}"));
    }
    let names = |rows: &[&str]| rows.join("\n");
    let csv = names(&["image_file_name,mask_file_name,label", "1,true,5", "2,false,6", "1,,7"]);
    let json = names(&[
        r#"{"image_file_name": "1", "mask_file_name": "true", "label": 5}"#,
        r#"{"image_file_name": "2", "mask_file_name": "false", "label": 6}"#,
        r#"{"image_file_name": "1", "mask_file_name": null, "label": 7}"#,
    ]);
    let content = |record: &Record, field: &str| match record.get(field) {
        Some(Value::Record(file)) => match file.get("bytes") {
            Some(Value::Bytes(bytes)) => Some(String::from_utf8(bytes.clone()).unwrap()),
            other => panic!("{other:?}"),
        },
        Some(Value::Null) => None,
        other => panic!("{field}: {other:?}"),
    };
    for (name, table) in [("metadata.csv", csv), ("metadata.jsonl", json)] {
        write(name, &table);
        let table = ImageTable::open(folder.path().join(name)).unwrap();
        let rows = table.get_many(&[0, 1, 2], &mut SampleContext::new(0)).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (content(row, "image"), content(row, "mask"))).collect();
        let of = |name: &str| Some(format!("content of {name}"));
        assert_eq!(found, [(of("1"), of("true")), (of("2"), of("false")), (of("1"), None)], "{name}");
        assert_eq!(rows[1].get("label"), Some(&6i64.into()));
    }

    // A file whose field is not selected is not read.
    write("metadata.jsonl", r#"{"file_name": "1", "mask_file_name": "gone", "image_file_name": "2"}"#);
    let first = |fields: &str| {
        let path = folder.path().join("metadata.jsonl");
        let config = format!(r#"{{"kind": "image-table", "path": {path:?}, "fields": [{fields}]}}"#);
        let Records::Map(rows) = open(&config).unwrap() else { panic!("it is map-style") };
        rows.get(0, &mut SampleContext::new(0))
            .map_err(|error| error.downcast::<DataError>().unwrap().problem)
    };
    assert!(matches!(first(r#""mask""#).unwrap_err(), DataProblem::NotFound));
    assert_eq!(first(r#""mask_file_name""#).unwrap().len(), 1);
    // Both names stand for the field `image`.
    let twice = first(r#""image""#).unwrap_err();
    assert!(matches!(&twice, DataProblem::DuplicateField { field } if field == "image"), "{twice}");
}

/// Makes a folder `data` with some images, and an image beside it.
fn folder_of_images() -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    let folder = made.path().join("data");
    fs::create_dir_all(folder.join("sub")).unwrap();
    let png = fs::read(Path::new(FIXTURES).join("folder/part/0.img")).unwrap();
    fs::write(made.path().join("outside.png"), &png).unwrap();
    fs::write(folder.join("good.png"), &png).unwrap();
    fs::write(folder.join("text.png"), "text").unwrap();
    made
}

/// Returns the problem of row `index`.
fn problem(table: &ImageTable, index: usize) -> DataProblem {
    let error = table.get(index, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(error.position, Position::Row(index as u64));
    error.problem
}

#[test]
fn a_table_with_bad_names_fails_sample_by_sample() {
    let made = folder_of_images();
    let folder = made.path().join("data");
    let outside = made.path().join("outside.png").to_str().unwrap().to_owned();
    // An image may have several rows.
    let names = ["good.png", "gone.png", "../outside.png", &outside, "sub", "text.png", "", ".", "good.png"];
    let csv: String = names.iter().map(|name| format!("{name},1\n")).collect();
    let json: String = names.iter().map(|name| format!("{{\"file_name\": {name:?}}}\n")).collect();
    for (name, table) in [
        ("metadata.csv", format!("file_name,label\n{csv}")),
        ("metadata.jsonl", format!("{json}{{\"file_name\": 5}}\n{{\"text\": \"no name\"}}\n")),
    ] {
        fs::write(folder.join(name), table).unwrap();
        let table = ImageTable::open(&folder).unwrap();
        let first = table.get(0, &mut SampleContext::new(0)).unwrap();
        assert_eq!(table.get(8, &mut SampleContext::new(0)).unwrap(), first);
        assert!(matches!(problem(&table, 1), DataProblem::NotFound));
        for index in [2, 3, 6, 7] {
            assert!(matches!(problem(&table, index), DataProblem::Record(_)), "{name}, row {index}");
        }
        assert!(matches!(problem(&table, 4), DataProblem::NotAFile { found: "a folder" }));
        // Of a file that is not an image, only the decoding fails.
        assert!(table.get(5, &mut SampleContext::new(0)).is_ok());
        if name == "metadata.jsonl" {
            assert!(matches!(problem(&table, 9), DataProblem::WrongType { .. }));
            assert!(matches!(problem(&table, 10), DataProblem::MissingField { .. }));
        }
        fs::remove_file(folder.join(name)).unwrap();
    }
}

#[test]
fn links_lead_to_files_in_the_folder_of_the_table_or_beside_its_target() {
    use std::os::unix::fs::symlink;
    let made = folder_of_images();
    let (folder, blobs) = (made.path().join("data"), made.path().join("blobs"));
    fs::create_dir(&blobs).unwrap();
    fs::copy(folder.join("good.png"), blobs.join("1")).unwrap();
    for (target, link) in
        [("good.png", "inside.png"), ("../outside.png", "out.png"), ("..", "up"), ("../blobs/1", "blob.png")]
    {
        symlink(target, folder.join(link)).unwrap();
    }
    let names = ["inside.png", "out.png", "up/outside.png", "blob.png"];
    let rows: String = names.iter().map(|name| format!("{{\"file_name\": \"{name}\"}}\n")).collect();
    fs::write(folder.join("metadata.jsonl"), &rows).unwrap();
    let is_read = |table: &ImageTable| {
        [0, 1, 2, 3].map(|index| match table.get(index, &mut SampleContext::new(0)) {
            Ok(_) => true,
            Err(_) => {
                let problem = problem(table, index);
                assert!(
                    matches!(&problem, DataProblem::Record(reason) if reason.contains("symbolic link")),
                    "{problem}"
                );
                false
            }
        })
    };
    assert_eq!(is_read(&ImageTable::open(&folder).unwrap()), [true, false, false, false]);
    // In the Hub's cache, the table is a link to the same folder as the links of its files.
    fs::rename(folder.join("metadata.jsonl"), blobs.join("0")).unwrap();
    symlink("../blobs/0", folder.join("metadata.jsonl")).unwrap();
    assert_eq!(is_read(&ImageTable::open(&folder).unwrap()), [true, false, false, true]);
}

#[test]
fn the_folder_of_a_table_is_not_a_pattern() {
    let made = tempfile::tempdir().unwrap();
    let folder = |name: &str| made.path().join(name);
    for name in ["data[1]", "data1", "a{b"] {
        fs::create_dir(folder(name)).unwrap();
    }
    fs::write(folder("data1").join("metadata.csv"), "file_name\ngood.png\n").unwrap();
    let missing = ImageTable::open(folder("data[1]")).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::InvalidOption { option: "path", .. }), "{missing}");
    for name in ["data[1]", "a{b"] {
        fs::write(folder(name).join("metadata.jsonl"), "{\"file_name\": \"a.png\"}\n".repeat(2)).unwrap();
        assert_eq!(ImageTable::open(folder(name)).unwrap().len(), 2, "{name}");
    }
}

#[test]
fn a_table_that_cannot_be_read_is_a_typed_error() {
    let made = folder_of_images();
    let folder = made.path().join("data");
    let missing = ImageTable::open(&folder).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::InvalidOption { option: "path", .. }), "{missing}");
    assert!(matches!(
        ImageTable::open(folder.join("metadata.csv")).unwrap_err().problem,
        DataProblem::NotFound
    ));
    let write = |name: &str, table: &str| fs::write(folder.join(name), table).unwrap();
    write("metadata.csv", "name,label\ngood.png,1\n");
    let missing = ImageTable::open(&folder).unwrap_err();
    assert!(matches!(&missing.problem, DataProblem::MissingField { field, .. } if field == "file_name"));
    write("metadata.csv", "file_name,label,label\ngood.png,1,1\n");
    let twice = ImageTable::open(&folder).unwrap_err();
    assert!(matches!(twice.problem, DataProblem::Malformed { .. }), "{twice}");
    write("metadata.csv", "file_name,label\ngood.png\n");
    assert!(matches!(problem(&ImageTable::open(&folder).unwrap(), 0), DataProblem::Malformed { .. }));
    write("metadata.jsonl", "{\"file_name\": \"good.png\"}\n");
    let two = ImageTable::open(&folder).unwrap_err();
    assert!(matches!(two.problem, DataProblem::InvalidOption { option: "path", .. }), "{two}");
    assert!(ImageTable::open(folder.join("metadata.jsonl")).is_ok());
}
