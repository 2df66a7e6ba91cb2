//! `loader pack`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{Parquet, Record, TarShards, Value};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    inspect::untimed_inspection,
    support::{Finished, PHOTOS, Running, command, copy_of_photos, run},
};

/// Writes `count` samples of two files each. Returns the folder.
fn write_samples(folder: &Path, count: usize, bytes: usize) -> String {
    let source = folder.join("source");
    for number in 0..count {
        let class = source.join(format!("part.{}", number % 3));
        fs::create_dir_all(&class).unwrap();
        let noise = |offset: usize| (offset * 31 + number * 7) as u8;
        fs::write(class.join(format!("{number:04}.bin")), (0..bytes).map(noise).collect::<Vec<_>>()).unwrap();
        fs::write(class.join(format!("{number:04}.Seg.txt")), format!("sample {number}")).unwrap();
    }
    source.to_str().unwrap().to_owned()
}

fn pack(source: &str, output: &Path, options: &[&str]) -> Finished {
    run(&[&["pack", source, output.to_str().unwrap()], options].concat())
}

/// Returns the contents of all files of a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |entry: fs::DirEntry| (entry.file_name().into(), fs::read(entry.path()).unwrap());
    fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap())).collect()
}

/// Reads all samples of the archives: the keys, and the fields with their values.
fn read(folder: &Path) -> Vec<(String, BTreeMap<String, Value>)> {
    let shards = TarShards::open(folder).unwrap().decode(false);
    let mut cx = SampleContext::new(0);
    let mut found = Vec::new();
    for record in shards.iter(Shard::new(0, 1), &mut cx).unwrap() {
        let record = record.unwrap();
        let key = match record.get("__key__") {
            Some(Value::Text(key)) => key.clone(),
            other => panic!("{other:?}"),
        };
        let fields = record.iter().filter(|(name, _)| !name.starts_with("__"));
        found.push((key, fields.map(|(name, value)| (name.to_owned(), value.clone())).collect()));
    }
    found
}

#[test]
fn files_with_one_name_are_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_samples(folder.path(), 40, 700);
    let output = folder.path().join("output");
    pack(&source, &output, &["--shard-size", "20000"]).assert_status(0);
    assert!(contents(&output).len() > 3, "several archives and the manifest");
    let samples = read(&output);
    let mut keys: Vec<_> = samples.iter().map(|(key, _)| key.clone()).collect();
    assert!(keys.is_sorted() && keys.len() == 40 && keys[0] == "part.0/0000", "{keys:?}");
    for (key, fields) in samples {
        let expected =
            |extension: &str| Value::Bytes(fs::read(format!("{source}/{key}.{extension}")).unwrap());
        assert_eq!(fields["bin"], expected("bin"));
        assert_eq!((&fields["seg.txt"], fields.len()), (&expected("Seg.txt"), 2));
    }

    let (shuffled, again) = (folder.path().join("shuffled"), folder.path().join("again"));
    let options = ["--shard-size", "20000", "--shuffle", "7"];
    pack(&source, &shuffled, &options).assert_status(0);
    pack(&source, &again, &options).assert_status(0);
    let other: Vec<_> = read(&shuffled).into_iter().map(|(key, _)| key).collect();
    assert_ne!(other, keys);
    keys.sort_by_key(|key| other.iter().position(|found| found == key));
    assert_eq!(other, keys, "the same samples in another order");
    assert_eq!(
        contents(&shuffled)
            .into_iter()
            .filter(|(name, _)| name.extension().unwrap() == "tar")
            .collect::<BTreeMap<_, _>>(),
        contents(&again).into_iter().filter(|(name, _)| name.extension().unwrap() == "tar").collect()
    );
}

#[test]
fn images_get_the_numbers_of_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    pack(PHOTOS, &output, &[]).assert_status(0);
    let samples = read(&output);
    let classes: Vec<_> = samples.iter().map(|(_, fields)| fields["cls"].clone()).collect();
    let images = loader_data::ImageFolder::open(PHOTOS).unwrap();
    let expected: Vec<_> =
        images.labels().map(|label| Value::Bytes(label.to_string().into_bytes())).collect();
    assert_eq!(classes, expected);
    for (number, (_, fields)) in samples.iter().enumerate() {
        let file = Value::Bytes(fs::read(images.path(number).unwrap()).unwrap());
        assert_eq!(fields.get("jpg").or(fields.get("png")), Some(&file));
    }
}

#[test]
fn the_output_is_a_target_of_the_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_samples(folder.path(), 4, 10);
    for (format, kind) in [("tar", "tar"), ("parquet", "parquet-stream")] {
        let output = folder.path().join(format);
        pack(&source, &output, &["--format", format]).assert_status(0);
        let output = output.to_str().unwrap();
        let found = untimed_inspection(&[output]);
        assert_eq!((&found["kind"], &found["samples"]), (&json!(kind), &json!(4)));
        let epoch = run(&["run", output, "--json"]);
        assert_eq!(epoch.assert_status(0).named("epoch")[0]["samples"], 4);
    }
}

#[test]
fn a_config_gives_jpeg_and_png_files_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let (output, config) = (folder.path().join("packed"), folder.path().join("packed.toml"));
    let (_copy, photos) = copy_of_photos();
    let png =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/images/csv/part/0.png");
    fs::copy(png, photos.join("space/0.png")).unwrap();
    pack(photos.to_str().unwrap(), &output, &[]).assert_status(0);
    let failed = run(&["run", output.to_str().unwrap(), "--batch-size", "9"]);
    assert!(failed.assert_status(1).stderr.contains("(option `rename` of tar archives)"), "{failed:#?}");
    // The config of docs/tools.md.
    let text = "[dataset]\nkind = \"tar\"\npath = \"packed\"\nrename = { image = [\"jpg\", \"png\"] }\n\
                fields = [\"image\", \"cls\"]\nimages = { image = { transform = \"train\", size = 224 } }\n";
    fs::write(&config, text).unwrap();
    run(&["run", config.to_str().unwrap(), "--batch-size", "9"]).assert_status(0);
}

#[test]
fn folders_of_splits_are_no_classes() {
    let folder = tempfile::tempdir().unwrap();
    let (source, output) = (folder.path().join("source"), folder.path().join("output"));
    for name in ["train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "val/dog/4.jpg"] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), "").unwrap();
    }
    let refused = pack(source.to_str().unwrap(), &output, &[]);
    let message = "has folders of splits, which are no classes; give one of them, such as";
    assert!(refused.assert_status(2).stderr.contains(message), "{refused:#?}");
    assert!(!output.exists());
    pack(source.join("train").to_str().unwrap(), &output, &[]).assert_status(0);
    let classes: Vec<_> = read(&output).into_iter().map(|(_, fields)| fields["cls"].clone()).collect();
    assert_eq!(classes, [Value::Bytes(b"0".to_vec()), Value::Bytes(b"1".to_vec())]);

    // If a folder has files that are not images, `loader pack` makes no classes: it writes the folders into the keys.
    fs::write(source.join("train/cat/1.txt"), "a cat").unwrap();
    pack(source.to_str().unwrap(), &folder.path().join("other"), &[]).assert_status(0);
}

#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_samples(folder.path(), 600, 100_000);
    let (whole, output) = (folder.path().join("whole"), folder.path().join("output"));
    let options = ["--shard-size", "1000000"];
    pack(&source, &whole, &options).assert_status(0);

    let killed =
        Running::start(command(&[&["pack", &source, output.to_str().unwrap()], &options[..]].concat()));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !output.join("shard-000005.tar").exists() {
        assert!(Instant::now() < deadline, "no archive was finished");
        thread::sleep(Duration::from_millis(1));
    }
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.finish().status, None, "it ended before the signal");
    let finished =
        |folder: &Path| contents(folder).keys().filter(|name| name.extension().unwrap() == "tar").count();
    let before = finished(&output);
    assert!(before < finished(&whole), "all archives were finished before the signal");
    run(&["pack", "--check", output.to_str().unwrap()]).assert_status(1);

    let continued = pack(&source, &output, &options);
    assert!(!continued.assert_status(0).stdout.contains("which 0 were"), "{continued:#?}");
    assert_eq!(contents(&output), contents(&whole));
}

#[test]
fn only_what_changed_is_packed_again() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_samples(folder.path(), 40, 700);
    let output = folder.path().join("output");
    let options = ["--shard-size", "20000"];
    pack(&source, &output, &options).assert_status(0);
    let before = contents(&output);
    let shards = before.len() - 1;
    let check = || run(&["pack", "--check", output.to_str().unwrap()]);
    check().assert_status(0);

    let mut damaged = before[Path::new("shard-000001.tar")].clone();
    damaged[600] ^= 1;
    fs::write(output.join("shard-000001.tar"), damaged).unwrap();
    fs::remove_file(output.join("shard-000002.tar")).unwrap();
    let checked = check();
    assert!(checked.assert_status(1).stdout.contains("shard-000001.tar` is damaged"), "{checked:#?}");
    assert!(checked.stdout.contains("shard-000002.tar` is missing"), "{checked:#?}");
    let again = pack(&source, &output, &options);
    let kept = format!("in {shards} archives; {} of the archives were there already", shards - 2);
    assert!(again.assert_status(0).stdout.contains(&kept), "{again:#?}");
    assert_eq!(contents(&output), before);

    fs::write(format!("{source}/part.0/0000.bin"), [1; 700]).unwrap();
    let changed = pack(&source, &output, &options);
    let kept = format!("; {} of the archives were there already", shards - 1);
    assert!(changed.assert_status(0).stdout.contains(&kept), "{changed:#?}");
    check().assert_status(0);
}

#[test]
fn rows_of_parquet_are_the_samples_of_the_archives() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_samples(folder.path(), 40, 700);
    fs::write(format!("{source}/part.1/0001.cls"), " 7\n").unwrap();
    let (tar, output) = (folder.path().join("tar"), folder.path().join("output"));
    pack(&source, &tar, &["--shard-size", "20000"]).assert_status(0);
    let options = ["--format", "parquet", "--shard-size", "20000"];
    pack(&source, &output, &options).assert_status(0);
    let before = contents(&output);
    assert!(
        before.len() > 3 && before.contains_key(Path::new("shard-000002.parquet")),
        "{:?}",
        before.keys()
    );

    let mut cx = SampleContext::new(0);
    let shards = TarShards::open(&tar).unwrap();
    let samples: Vec<Record> = shards.iter(Shard::new(0, 1), &mut cx).unwrap().map(Result::unwrap).collect();
    let rows = Parquet::open(&output).unwrap();
    assert_eq!((rows.len(), samples.len()), (40, 40));
    for (index, mut sample) in samples.into_iter().enumerate() {
        sample.remove("__url__");
        let row = rows.get(index, &mut cx).unwrap();
        assert_eq!(row.len(), 4, "the key, and the fields of all samples");
        for (name, value) in row.iter() {
            assert_eq!(sample.get(name).unwrap_or(&Value::Null), value, "{name} of row {index}");
        }
    }

    // A damaged file is found, and written again with the same bytes.
    let damaged = output.join("shard-000001.parquet");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[20] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let checked = run(&["pack", "--check", output.to_str().unwrap()]);
    assert!(checked.assert_status(1).stdout.contains("shard-000001.parquet` is damaged"), "{checked:#?}");
    pack(&source, &output, &options).assert_status(0);
    assert_eq!(contents(&output), before);
    run(&["pack", "--check", output.to_str().unwrap()]).assert_status(0);

    let other = pack(&source, &output, &["--shard-size", "20000"]);
    assert!(other.assert_status(2).stderr.contains("made with other options"), "{other:#?}");
    // A new field is a new column of every file.
    fs::write(format!("{source}/part.0/0000.txt"), "text").unwrap();
    pack(&source, &output, &options).assert_status(0);
    assert_eq!(Parquet::open(&output).unwrap().len(), 40);
    fs::write(format!("{source}/part.0/0000.cls"), "no number").unwrap();
    let wrong = pack(&source, &output, &options);
    assert!(wrong.assert_status(1).stderr.contains("0000.cls`: is not valid an integer"), "{wrong:#?}");
}

#[test]
fn bad_sources_and_outputs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |source: &str, output: &Path, options: &[&str], message: &str| {
        let finished = pack(source, output, options);
        assert!(finished.assert_status(2).stderr.contains(message), "{finished:#?}");
    };
    let source = write_samples(folder.path(), 3, 10);
    let output = folder.path().join("output");
    refused("/nowhere", &output, &[], "is not a folder with files");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    refused(empty.to_str().unwrap(), &output, &[], "is not a folder with files");
    refused(&source, &Path::new(&source).join("inside"), &[], "lies in the folder that is packed");
    refused(&source, &Path::new(&source).join("a/../inside/b"), &[], "lies in the folder that is packed");
    assert!(!Path::new(&source).join("inside").exists(), "the refused folder was made");

    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/file"), "").unwrap();
    refused(&source, &folder.path().join("other"), &[], "was not made by this command");
    let no_folder = pack(&source, &folder.path().join("other/file"), &[]);
    assert!(no_folder.assert_status(1).stderr.contains("other/file`: "), "{no_folder:#?}");
    pack(&source, &output, &[]).assert_status(0);
    refused(&source, &output, &["--shuffle", "1"], "made with other options");

    fs::write(format!("{source}/part.0/0000.BIN"), "").unwrap();
    refused(&source, &output, &[], "are the same field of a sample");
    fs::rename(format!("{source}/part.0/0000.BIN"), format!("{source}/no-dot")).unwrap();
    refused(&source, &output, &[], "no-dot`: the name");
}
