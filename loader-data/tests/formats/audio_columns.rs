//! Columns of encoded audio, in files that Hugging Face's datasets and Python's module `tarfile` wrote.

use std::{fs, path::Path};

use loader_core::{DataLoader, Dataset, IterableDataset, SampleContext, Shard, Tensor};
use loader_data::{
    AudioFiles, AudioTransform, DataError, DataProblem, DecodedRecords, FieldDecoder, ImageColumn, JsonLines,
    ParquetOptions, Position, RecordConfig, Records, Transform, Value,
};

use crate::everywhere::same_everywhere;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/audio");

fn open(kind: &str, path: &str, keys: &str) -> Result<Records, DataError> {
    let path = Path::new(FIXTURES).join(path);
    let config = format!(r#"{{"kind": "{kind}", "path": {path:?}, {keys}}}"#);
    serde_json::from_str::<RecordConfig>(&config).unwrap().open()
}

/// A WAV file of 2 frames at 16,000 Hz, as base64.
const TWO_FRAMES: &str = "UklGRigAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQQAAAAAQADA";

/// Decodes a fixture.
fn decode(transform: &AudioTransform, name: &str) -> Tensor<f32> {
    let file = fs::read(Path::new(FIXTURES).join(name)).unwrap();
    transform.decode(&file, SampleContext::new(7).rng()).unwrap()
}

#[test]
fn a_column_of_any_format_is_decoded_as_its_files() {
    let center = AudioTransform::new(8_000).mono().center_crop(100);
    let keys = r#""audio": {"audio": {"sample_rate": 8000, "mono": true, "crop": {"center": 100}}}"#;
    let Records::Map(clips) = open("parquet", "clips.parquet", keys).unwrap() else {
        panic!("it is map-style")
    };
    for (row, name) in [(0, "s16.wav"), (5, "s16.flac"), (10, "tone.mp3"), (3, "tone.ogg")] {
        let record = clips.get(row, &mut SampleContext::new(7)).unwrap();
        let audio = decode(&center, name);
        assert_eq!(
            (record.get("audio"), record.get("label")),
            (Some(&audio.into()), Some(&(row as i64).into()))
        );
    }
    let keys = keys.replace(r#""audio": {"audio""#, r#""audio": {"wav""#);
    let Records::Stream(clips) = open("tar", "clips.tar", &keys).unwrap() else { panic!("it is a stream") };
    let record = clips.iter(Shard::new(0, 1), &mut SampleContext::new(7)).unwrap().next().unwrap().unwrap();
    assert_eq!(record.get("wav"), Some(&decode(&center, "u8.wav").into()));
}

#[test]
fn a_table_names_audio_files() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["s16.wav", "s16.flac", "tone.mp3", "tone.ogg"];
    let mut table = "transcription,file_name\n".to_owned();
    fs::create_dir(folder.path().join("clips")).unwrap();
    for name in names {
        fs::copy(Path::new(FIXTURES).join(name), folder.path().join("clips").join(name)).unwrap();
        table += &format!("\"what {name} says, and more\",clips/{name}\n").repeat(4);
    }
    fs::write(folder.path().join("metadata.csv"), table).unwrap();
    let path = folder.path().to_str().unwrap();
    let keys = r#""audio": {"audio": {"sample_rate": 8000, "mono": true, "crop": {"center": 100}}}"#;
    let Records::Map(speech) = open("audio-table", path, keys).unwrap() else { panic!("it is map-style") };
    let center = AudioTransform::new(8_000).mono().center_crop(100);
    for (number, name) in names.into_iter().enumerate() {
        let record = speech.get(number * 4, &mut SampleContext::new(7)).unwrap();
        assert_eq!(record.get("audio"), Some(&decode(&center, name).into()));
        assert_eq!(record.get("transcription"), Some(&format!("what {name} says, and more").as_str().into()));
    }

    // Random crops, with workers.
    let keys = r#""fields": ["audio", "transcription"],
        "audio": {"audio": {"sample_rate": 8000, "mono": true, "crop": {"random": 50}}}"#;
    let batches = same_everywhere(|workers| {
        let Records::Map(speech) = open("audio-table", path, keys).unwrap() else {
            panic!("it is map-style")
        };
        let loader = DataLoader::builder(speech).batch_size(2).shuffle(true).seed(3);
        loader.num_workers(workers).build().unwrap()
    });
    assert!(batches.iter().all(|batch| batch.tensor::<f32>("audio").unwrap().shape() == [2, 1, 50]));

    fs::remove_file(folder.path().join("clips/s16.wav")).unwrap();
    let error = speech.get(0, &mut SampleContext::new(7)).unwrap_err().downcast::<DataError>().unwrap();
    assert!(
        matches!((&error.problem, &error.position), (DataProblem::NotFound, Position::Row(0))),
        "{error}"
    );
}

#[test]
fn files_without_classes_have_their_audio_and_their_path() {
    let keys = r#""audio": {"audio": {"sample_rate": 8000, "mono": true, "crop": {"center": 100}}}"#;
    let Records::Map(clips) = open("audio-files", "s16.*v", keys).unwrap() else { panic!("it is map-style") };
    let center = AudioTransform::new(8_000).mono().center_crop(100);
    let record = clips.get(0, &mut SampleContext::new(7)).unwrap();
    assert_eq!((clips.len(), record.get("audio")), (1, Some(&decode(&center, "s16.wav").into())));

    let path = Path::new(FIXTURES).join("s16.wav");
    let record = AudioFiles::open(&path).unwrap().get(0, &mut SampleContext::new(7)).unwrap();
    let Some(Value::Record(file)) = record.get("audio") else { panic!("{record:?}") };
    assert_eq!(file.get("bytes"), Some(&fs::read(&path).unwrap().into()));
    assert_eq!(file.get("path"), Some(&path.to_str().unwrap().into()));
    let Records::Map(small) = open("audio-files", "s16.wav", r#""max_file_bytes": 9"#).unwrap() else {
        panic!("it is map-style")
    };
    let error = small.get(0, &mut SampleContext::new(7)).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::TooLarge { option: "max_file_bytes", .. }), "{error}");
}

#[test]
fn a_column_gives_the_same_batches_everywhere() {
    let keys = r#""audio": {"audio": {"sample_rate": 16000, "mono": true, "crop": {"random": 300}}}"#;
    for kind in ["parquet", "parquet-stream"] {
        let batches = same_everywhere(|workers| match open(kind, "clips.parquet", keys).unwrap() {
            Records::Map(clips) => {
                let loader = DataLoader::builder(clips).batch_size(2).shuffle(true).seed(3);
                loader.num_workers(workers).build().unwrap()
            }
            Records::Stream(clips) => {
                let loader = DataLoader::stream(clips).batch_size(2).shards(2).snapshots();
                loader.num_workers(workers).build().unwrap()
            }
        });
        assert_eq!(batches.len(), 6);
        assert!(batches.iter().all(|batch| batch.tensor::<f32>("audio").unwrap().shape() == [2, 1, 300]));
    }
}

#[test]
fn a_record_may_have_images_and_audio() {
    let folder = tempfile::tempdir().unwrap();
    let (wav, png) = (
        TWO_FRAMES,
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAgAAhACD0IbOIwAAAABJRU5ErkJggg==",
    );
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, format!("{{\"a\": \"{wav}\", \"i\": \"{png}\"}}\n")).unwrap();
    let keys = r#""images": {"i": {}}, "audio": {"a": {"sample_rate": 16000}}"#;
    let Records::Map(rows) = open("json-lines", path.to_str().unwrap(), keys).unwrap() else {
        panic!("map-style")
    };
    let record = rows.get(0, &mut SampleContext::new(7)).unwrap();
    let audio = Tensor::from_vec(vec![0.5f32, -0.5], [1, 2]).unwrap();
    assert_eq!(record.get("a"), Some(&audio.clone().into()));
    assert!(matches!(record.get("i"), Some(Value::Tensor(image)) if image.shape() == [3, 1, 1]));

    let both = r#""images": {"a": {}}, "audio": {"a": {"sample_rate": 16000}}"#;
    let error = open("json-lines", path.to_str().unwrap(), both).unwrap_err();
    assert!(matches!(error.problem, DataProblem::InvalidOption { option: "audio", .. }), "{error}");
    // A program decodes the same fields with `DecodedRecords`.
    let decoders = [
        ("a", FieldDecoder::from(AudioTransform::new(16_000))),
        ("i", ImageColumn::f32(Transform::new()).unwrap().into()),
    ];
    let rows = DecodedRecords::new(JsonLines::open(&path).unwrap(), decoders);
    assert_eq!(rows.get(0, &mut SampleContext::new(7)).unwrap().get("a"), Some(&audio.into()));
}

#[test]
fn random_crops_are_the_same_for_one_row_and_for_several() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let row = format!("{{\"a\": \"{TWO_FRAMES}\", \"b\": \"{TWO_FRAMES}\"}}\n");
    fs::write(&path, row.repeat(32)).unwrap();
    let crop = || AudioTransform::new(16_000).random_crop(1);
    let one = DecodedRecords::new(JsonLines::open(&path).unwrap(), [("a", crop())]);
    let both = DecodedRecords::new(one, [("b", crop())]);
    let mut cx = SampleContext::new(7);
    let several = both.get_many(&(0..32).collect::<Vec<_>>(), &mut cx).unwrap();
    for (index, row) in several.into_iter().enumerate() {
        cx.set_index(index);
        assert_eq!(both.get(index, &mut cx).unwrap(), row, "row {index}");
    }
}

#[test]
fn a_field_that_is_not_audio_is_a_typed_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let rows = [
        r#"{"audio": "bm90IGF1ZGlvIGF0IGFsbCwgcmVhbGx5Lg=="}"#,
        r#"{"audio": {"bytes": null, "path": "clip.wav"}}"#,
        r#"{"audio": null}"#,
        r#"{"other": 1}"#,
        r#"{"audio": "%"}"#,
        r#"{"audio": {"bytes": "UklGRigAAABXQVZF", "path": "clip.wav"}}"#,
    ];
    fs::write(&path, rows.join("\n")).unwrap();
    let rows = DecodedRecords::new(JsonLines::open(&path).unwrap(), [("audio", AudioTransform::new(8_000))]);
    let error = |row: usize| {
        let error = rows.get(row, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
        assert_eq!(error.position, Position::Row(row as u64));
        error
    };
    assert!(matches!(error(0).problem, DataProblem::Unsupported(_)));
    let without_bytes = error(1).to_string();
    let expected =
        "audio `audio` (`clip.wav`), row 1: field `audio`: expected audio with its bytes, not only its path";
    assert!(without_bytes.starts_with(expected), "{without_bytes}");
    assert!(matches!(error(2).problem, DataProblem::Null { .. }));
    assert!(matches!(error(3).problem, DataProblem::MissingField { .. }));
    assert!(matches!(error(4).problem, DataProblem::Malformed { format: "base64", .. }));
    assert!(matches!(error(5).problem, DataProblem::Truncated | DataProblem::Malformed { .. }));

    for audio in [r#"{"sample_rate": 0}"#, r#"{"sample_rate": 8000, "crop": {"random": 0}}"#] {
        let error =
            open("parquet", "clips.parquet", &format!(r#""audio": {{"audio": {audio}}}"#)).unwrap_err();
        assert!(matches!(error.problem, DataProblem::InvalidOption { option: "audio", .. }), "{error}");
    }
    // The options of a format alone do not decode audio.
    let options = r#"{"path": "clips.parquet", "audio": {"audio": {"sample_rate": 8000}}}"#;
    let error = serde_json::from_str::<ParquetOptions>(options).unwrap().open().unwrap_err();
    assert!(matches!(error.problem, DataProblem::InvalidOption { option: "audio", .. }), "{error}");
}
