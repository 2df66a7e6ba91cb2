//! `loader inspect` and `loader index` with data files.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use serde_json::{Value, json};

use crate::{
    inspect::{inspect, inspection, untimed_inspection},
    support::{Finished, Running, command, run},
};

/// Writes 50 lines of JSON and returns the path of the file.
fn write_lines(folder: &Path, name: &str) -> String {
    let line = |number: usize| {
        let tokens = vec![number; number % 4];
        json!({"text": "x".repeat(number), "label": number % 3, "tokens": tokens}).to_string() + "\n"
    };
    let path = folder.join(name);
    fs::write(&path, (0..50).map(line).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn field<'a>(inspection: &'a Value, name: &str) -> &'a Value {
    inspection["fields"].as_array().unwrap().iter().find(|field| field["name"] == name).unwrap()
}

#[test]
fn records_are_described_with_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_lines(folder.path(), "train.jsonl");
    let found = untimed_inspection(&[&path]);
    assert_eq!((&found["samples"], &found["is_complete"]), (&json!(50), &json!(true)));
    assert_eq!(field(&found, "label")["values"], json!({"0": 17, "1": 17, "2": 16}));
    let text = field(&found, "text");
    assert_eq!((&text["types"][0]["type"], &text["values"]), (&json!("text"), &Value::Null));
    assert_eq!((&text["lengths"]["min"], &text["lengths"]["mean"]), (&json!(0.0), &json!(24.5)));
    assert_eq!(text["lengths"]["buckets"][3], json!({"min": 4, "max": 7, "samples": 4}));
    let tokens = field(&found, "tokens")["types"].as_array().unwrap();
    assert!(tokens.contains(&json!({"type": "int64", "samples": 37, "shape": [[1, 3]]})), "{tokens:?}");
    assert_eq!(untimed_inspection(&[&path, "--num-workers", "2", "--shards", "1"]), found);
    assert_eq!(untimed_inspection(&[folder.path().to_str().unwrap()]), found, "the folder of the file");
}

#[test]
fn bad_lines_and_bad_files_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_lines(folder.path(), "train.jsonl");
    fs::write(&path, "{\"x\": 1}\nnot JSON\n{\"x\": 2}\n").unwrap();
    let found = inspection(inspect(&[&path]).assert_status(0));
    assert_eq!(found["samples"], json!(2));
    assert!(found["bad_samples"][0]["error"].as_str().unwrap().contains("train.jsonl"), "{found}");

    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/parquet");
    let tables = tempfile::tempdir().unwrap();
    let good_file = Path::new(fixtures).join("train-00000-of-00002.parquet");
    fs::copy(good_file, tables.path().join("good.parquet")).unwrap();
    fs::write(tables.path().join("broken.parquet"), "PAR1 and no more").unwrap();
    let tables = tables.path().to_str().unwrap();
    let found = inspection(inspect(&[tables]).assert_status(0));
    assert_eq!((&found["files"], &found["is_complete"]), (&json!(1), &json!(true)));
    assert!(found["bad_files"][0]["file"].as_str().unwrap().ends_with("broken.parquet"), "{found}");
    inspect(&[tables, "--strict"]).assert_status(1);

    let archives = tempfile::tempdir().unwrap();
    let archive = fs::read(Path::new(fixtures).join("../tar/gnu.tar.gz")).unwrap();
    for (name, len) in [("a", archive.len() / 2), ("b", 0), ("c", archive.len())] {
        fs::write(archives.path().join(format!("{name}.tar.gz")), &archive[..len]).unwrap();
    }
    let archives = archives.path().to_str().unwrap();
    let found = inspection(inspect(&[archives, "--num-workers", "1"]).assert_status(0));
    assert_eq!(found["is_complete"], json!(true), "{found}");
    let bad: Vec<&str> =
        found["bad_samples"].as_array().unwrap().iter().map(|bad| bad["error"].as_str().unwrap()).collect();
    assert!(bad.len() == 2 && bad[0].contains("a.tar.gz") && bad[1].contains("b.tar.gz"), "{bad:?}");
    assert!(!bad[0].contains("the shard"), "{bad:?}");
}

#[test]
fn arrays_in_files_of_their_own_are_described() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/arrays");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    let write = |labels: &str| {
        let files =
            format!("{{ image = \"{fixtures}/images-idx3-ubyte\", label = \"{fixtures}/{labels}\" }}");
        fs::write(&config, format!("[dataset]\nkind = \"arrays\"\nfiles = {files}\n")).unwrap();
    };
    write("labels-idx1-ubyte.gz");
    let found = untimed_inspection(&[config.to_str().unwrap()]);
    assert_eq!(
        (&found["kind"], &found["files"], &found["bad_files"]),
        (&json!("arrays"), &json!(2), &json!([]))
    );
    assert_eq!(field(&found, "label")["samples"], found["samples"]);
    // The dataset needs every file, so one bad file makes the command fail.
    write("write.py");
    let failed = inspect(&[config.to_str().unwrap()]);
    assert!(failed.assert_status(2).stderr.contains("write.py"), "{failed:#?}");
}

#[test]
fn images_of_archives_are_on_the_contact_sheet() {
    let fixture =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/tar/photos.tar");
    let folder = tempfile::tempdir().unwrap();
    let sheet = folder.path().join("sheet.png");
    inspect(&[fixture, "--contact-sheet", sheet.to_str().unwrap()]).assert_status(0);
    assert!(fs::read(&sheet).unwrap().starts_with(b"\x89PNG"));
    let lines = write_lines(folder.path(), "train.jsonl");
    let failed = inspect(&[&lines, "--contact-sheet", sheet.to_str().unwrap()]);
    assert!(
        failed.assert_status(1).stderr.contains("no field of the record has an image")
            || failed.stderr.contains("no sample has an image"),
        "{failed:#?}"
    );
}

/// Returns an archive whose members have these names and no content.
fn tar(names: &[&str]) -> Vec<u8> {
    let mut tar = Vec::new();
    for name in names {
        let mut header = [0; 512];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, "0000644\0");
        put(124, "00000000000\0");
        put(148, "        ");
        put(156, "0ustar\0");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&header);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

#[test]
fn keys_of_an_archive_that_come_apart_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, apart) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
    fs::write(&whole, tar(&["a.jpg", "a.txt", "b.jpg"])).unwrap();
    fs::write(&apart, tar(&["a.jpg", "b.jpg", "a.txt", "b.txt", "c.jpg"])).unwrap();
    let whole = inspection(inspect(&[whole.to_str().unwrap()]).assert_status(0));
    assert_eq!((&whole["samples"], &whole["repeated_keys"]), (&json!(2), &Value::Null));
    for workers in ["0", "2"] {
        let both = folder.path().to_str().unwrap();
        let found = inspection(inspect(&[both, "--num-workers", workers]).assert_status(0));
        assert_eq!((&found["samples"], &found["repeated_keys"]["samples"]), (&json!(7), &json!(2)));
        let example = found["repeated_keys"]["examples"][0].as_str().unwrap();
        assert!(example.starts_with("`a` in `") && example.ends_with("/2.tar`"), "{example}");
    }
    let text = run(&["inspect", apart.to_str().unwrap()]);
    let expected = "2 samples have the key of an earlier sample of their archive (`a` in";
    assert!(text.assert_status(0).stdout.contains(expected), "{text:#?}");
}

fn index(arguments: &[&str]) -> Finished {
    run(&[&["index"], arguments].concat())
}

#[test]
fn indexes_are_made_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_lines(folder.path(), "train.jsonl");
    let check = ["--check", "--index", "beside"];
    let refused = |reason: &str| {
        let checked = index(&[&[path.as_str()], &check[..]].concat());
        assert!(checked.assert_status(1).stdout.contains(reason), "{checked:#?}");
    };
    refused("train.jsonl.index is missing");
    assert!(index(&[&path, "--index", "beside"]).assert_status(0).stdout.contains("made "));
    assert!(index(&[&path, "--index", "beside"]).assert_status(0).stdout.contains("current"));
    let checked = index(&[&[path.as_str(), "--json"], &check[..]].concat());
    let entry: Value = serde_json::from_str(&checked.assert_status(0).stdout).unwrap();
    assert_eq!((&entry["status"], &entry["is_new"]), (&json!("current"), &json!(false)));

    let stored = format!("{path}.index");
    let mut bytes = fs::read(&stored).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&stored, bytes).unwrap();
    refused("is damaged");
    index(&[&path, "--index", "beside"]).assert_status(0);
    fs::write(&path, "{\"x\": 1}\n").unwrap();
    refused("is stale");

    // A file stands where the folder for the indexes would be. Unlike missing permissions, this stops root
    // too.
    let failed = index(&[&path, "--index", &path]);
    assert!(failed.assert_status(1).stdout.contains("cannot be written"), "{failed:#?}");
}

#[test]
fn formats_without_an_index_say_so() {
    let photos = index(&[crate::support::PHOTOS]);
    assert!(photos.assert_status(2).stderr.contains("`image-folder` has no index"), "{photos:#?}");
    let missing = run(&["index", "/nowhere"]);
    assert!(missing.assert_status(2).stderr.contains("`/nowhere`: no such file or folder"), "{missing:#?}");
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures");
    let table = index(&[&format!("{fixtures}/parquet/train-00000-of-00002.parquet")]);
    assert!(table.assert_status(2).stderr.contains("`parquet` has no index"), "{table:#?}");
    let small = index(&[&format!("{fixtures}/tar/photos.tar"), "--check"]);
    assert!(small.assert_status(0).stdout.contains("needs no stored index"), "{small:#?}");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    let tar = format!("kind = \"tar\"\npath = \"{fixtures}/tar/photos.tar\"\nshuffle_files = true");
    fs::write(&config, format!("[dataset]\n{tar}\n")).unwrap();
    let shuffled = index(&[config.to_str().unwrap()]);
    shuffled.assert_status(0);
    let missing = index(&["/nowhere/train.jsonl"]);
    assert!(missing.assert_status(2).stderr.contains("no such file"), "{missing:#?}");
}

#[test]
fn a_path_that_is_not_unicode_is_shown_with_replacement_characters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"x\xfe.jsonl"));
    fs::write(&path, "{\"a\":1}\n").unwrap();
    let mut run = command(&["run"]);
    run.arg(&path).arg("--json");
    let finished = Running::start(run).finish();
    let start = &finished.assert_status(0).named("start")[0];
    assert!(start["config"]["dataset"]["path"].to_string().contains("x\u{fffd}.jsonl"), "{start}");
    let mut print = command(&["config", "--print"]);
    print.arg(&path);
    let printed = Running::start(print).finish();
    assert!(printed.assert_status(0).stdout.contains("x\u{fffd}.jsonl"), "{printed:#?}");
}

#[test]
fn names_that_a_terminal_would_obey_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let name = "x\u{1b}]0;title\u{7}\nloader: error: forged \u{9b}2J\u{202e}";
    let path = |end: &str| folder.path().join(format!("{name}{end}")).to_str().unwrap().to_owned();
    fs::write(path(".jsonl"), "{\"a\u{9b}2J\": 1}\n{\"a\": }\n").unwrap();
    fs::create_dir_all(path("/class\u{1b}[2J")).unwrap();
    fs::write(path("/class\u{1b}[2J/a.png"), "no image").unwrap();
    for target in [path(".jsonl"), path(""), path(".missing")] {
        for arguments in [
            &["run", &target] as &[&str],
            &["run", &target, "--json"],
            &["inspect", &target],
            &["inspect", &target, "--json"],
            &["index", &target],
            &["index", &target, "--json"],
            &["pack", &target],
            &["config", "--print", &target],
        ] {
            let Finished { stdout, stderr, .. } = run(arguments);
            let printed = format!("{stdout}{stderr}");
            let is_bad =
                |character: char| character.is_control() && character != '\n' || character == '\u{202e}';
            assert!(!printed.contains(is_bad), "{arguments:?}: {printed:?}");
            let is_forged = |line: &str| line.starts_with("loader: error: forged");
            assert!(!printed.lines().any(is_forged), "{arguments:?}: {printed:?}");
        }
    }
}

#[test]
fn a_broken_link_is_a_bad_file_and_a_config_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("1.jsonl"), "{\"a\": 1}\n").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("2.jsonl")).unwrap();
    let target = folder.path().to_str().unwrap();
    for target in [target.to_owned(), format!("{target}/*.jsonl")] {
        let found = inspection(inspect(&[&target]).assert_status(0));
        assert_eq!((&found["samples"], &found["files"]), (&json!(1), &json!(1)));
        assert_eq!(found["bad_files"].as_array().unwrap().len(), 1, "{found}");
        assert!(found["bad_files"][0]["file"].as_str().unwrap().ends_with("/2.jsonl"), "{found}");
        run(&["run", &target]).assert_status(2);
    }
    // A folder whose dataset takes no list of files.
    let recordings = tempfile::tempdir().unwrap();
    let class = recordings.path().join("word");
    fs::create_dir(&class).unwrap();
    let wav = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/audio/s16.wav");
    fs::copy(wav, class.join("1.wav")).unwrap();
    std::os::unix::fs::symlink("nowhere", class.join("2.wav")).unwrap();
    let config = recordings.path().join("run.toml");
    let section = format!(
        "[dataset]\nkind = \"audio-folder\"\npath = {:?}\nsample_rate = 16000\nmono = true\n",
        recordings.path()
    );
    fs::write(&config, section).unwrap();
    let found = inspection(inspect(&[config.to_str().unwrap()]).assert_status(0));
    assert_eq!((&found["samples"], &found["files"]), (&json!(1), &json!(1)), "{found}");
    assert!(found["bad_files"][0]["file"].as_str().unwrap().ends_with("/2.wav"), "{found}");

    let text = run(&["inspect", target]);
    let config = format!("  [dataset]\n  kind = \"json-lines\"\n  path = [\"{target}\"]\n");
    assert!(text.assert_status(0).stdout.ends_with(&config), "{text:#?}");
}

#[test]
fn options_of_fields_are_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{\"a\": 1, \"b\": [1], \"c\": \"x\"}\n{\"a\": null, \"b\": [1, 2], \"c\": \"y\"}\n")
        .unwrap();
    let path = path.to_str().unwrap();
    let failed = run(&["run", path, "--batch-size=2", "--fields", "a"]);
    assert!(
        failed.assert_status(1).stderr.contains("set `fill = { a = 0 }` in the section `[dataset]`"),
        "{failed:#?}"
    );
    let options =
        ["--batch-size=2", "--fields", "a,b", "--dtypes", "a=float32", "--fill", "a=-1", "--pad=b=0"];
    run(&[&["run", path], &options[..]].concat()).assert_status(0);
    let printed = run(&[&["config", "--print", path], &options[..]].concat());
    assert!(printed.assert_status(0).stdout.contains("fill.a = -1.0"), "{printed:#?}");
    let line = printed.stdout.lines().find(|line| line.starts_with("fill.a")).unwrap();
    assert!(line.ends_with("# command line"), "{line}");
    let rows = run(&["run", path, "--json", "--fields=a", "--drop-nulls=a"]);
    assert_eq!(rows.assert_status(0).named("epoch")[0]["samples"], 1);
    let printed = run(&["config", "--print", path, "--drop-nulls", "a"]);
    assert!(printed.assert_status(0).stdout.contains("kind = \"json-lines-stream\""), "{printed:#?}");
    let config = folder.path().join("random.toml");
    fs::write(&config, format!("[dataset]\nkind = \"json-lines\"\npath = \"{path}\"\n")).unwrap();
    let refused = run(&["run", config.to_str().unwrap(), "--drop-nulls", "a"]);
    assert!(refused.assert_status(2).stderr.contains("only a stream can leave out records"), "{refused:#?}");
    let parquet =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/parquet/types.parquet");
    let config = folder.path().join("run.toml");
    fs::write(&config, format!("[dataset]\nkind = \"parquet-stream\"\npath = \"{parquet}\"\n")).unwrap();
    let options = ["--json", "--fields=i16,i8", "--drop-nulls=i8,i16"];
    let epoch = run(&[&["run", config.to_str().unwrap()], &options[..]].concat());
    assert_eq!(epoch.assert_status(0).named("epoch")[0]["samples"], 34);
    let wrong = run(&["run", path, "--dtypes", "a=float33"]);
    assert!(wrong.assert_status(2).stderr.contains("float33"), "{wrong:#?}");
    let images = run(&["run", crate::support::PHOTOS, "--fill", "a=0"]);
    assert!(images.assert_status(2).stderr.contains("are for records"), "{images:#?}");
}

#[test]
fn a_config_without_a_path_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    for kind in ["csv", "parquet-stream", "arrays", "tokens"] {
        fs::write(&config, format!("[dataset]\nkind = \"{kind}\"\nstore = {{ max_retries = 1 }}\n")).unwrap();
        let missing = run(&["run", config.to_str().unwrap()]);
        let expected = "run.toml, line 1: `path` is missing in [dataset]";
        assert!(missing.assert_status(2).stderr.contains(expected), "{missing:#?}");
    }
}
