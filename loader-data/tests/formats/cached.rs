//! Datasets that a config keeps in files.

use std::{fs, path::Path};

use loader_core::DataLoader;
use loader_data::{DataError, RecordConfig, RecordDataset, Records};

use crate::everywhere::same_everywhere;

/// Opens the table of images, decoded with `size` pixels, with its cache in `folder`.
fn open(folder: &Path, size: u32, more: &str) -> Result<RecordDataset, DataError> {
    let text = format!(
        r#"{{"kind": "cached", "folder": "{}", "dataset": {{
            "kind": "parquet", "path": "images/train.parquet", "fields": ["image", "label"],
            "images": {{"image": {{"transform": "none", "size": {size}}}}}
        }}{more}}}"#,
        folder.display()
    );
    let mut config: RecordConfig = serde_json::from_str(&text).unwrap();
    config.relative_to(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures"));
    config.open().map(|records| match records {
        Records::Map(records) => records,
        Records::Stream(records) => panic!("{records:?}"),
    })
}

#[test]
fn workers_deaths_and_resumes_do_not_change_what_is_cached() {
    let folder = tempfile::tempdir().unwrap();
    let batches = same_everywhere(|workers| {
        let records = open(&folder.path().join("cache"), 16, "").unwrap();
        DataLoader::builder(records).batch_size(2).shuffle(true).seed(1).num_workers(workers).build().unwrap()
    });
    assert_eq!(batches[0].tensor::<f32>("image").unwrap().shape(), [2, 3, 16, 16]);
    let samples = fs::metadata(folder.path().join("cache/samples")).unwrap().len();
    assert!(samples > 0);
    let records = open(&folder.path().join("cache"), 16, "").unwrap();
    let loader = DataLoader::builder(records).batch_size(2).shuffle(true).seed(1).build().unwrap();
    assert!(loader.iter().unwrap().map(Result::unwrap).eq(batches));
    assert_eq!(
        fs::metadata(folder.path().join("cache/samples")).unwrap().len(),
        samples,
        "all samples were there"
    );
}

#[test]
fn a_cache_of_other_options_or_of_a_stream_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), 16, "").unwrap();
    for error in [open(folder.path(), 32, ""), open(folder.path(), 16, r#", "version": "2""#)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("option `folder`: ") && error.contains("its version is"), "{error}");
    }
    let text = r#"{"kind": "cached", "folder": "x", "dataset": {"kind": "csv-stream", "path": "FIXTURES/csv/pandas.csv"}}"#;
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");
    let stream: RecordConfig = serde_json::from_str(&text.replace("FIXTURES", fixtures)).unwrap();
    let error = stream.open().unwrap_err().to_string();
    assert!(error.contains("the cache: option `dataset`: `csv-stream` is a stream"), "{error}");
}
