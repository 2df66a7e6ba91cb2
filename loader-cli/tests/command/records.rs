//! `loader run` with data files and with configs of other kinds than image folders.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Finished, run};

/// Writes 40 lines of JSON and a config with the keys `keys` beside them. Returns the folder.
fn folder(kind: &str, keys: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let lines: String =
        (0..40).map(|number| format!("{{\"x\": {number}, \"text\": \"line {number}\"}}\n")).collect();
    fs::write(folder.path().join("train.jsonl"), lines).unwrap();
    let config =
        format!("[dataset]\nkind = \"{kind}\"\npath = \"train.jsonl\"\n{keys}[loader]\nbatch_size = 4\n");
    fs::write(folder.path().join("run.toml"), config).unwrap();
    folder
}

fn run_json(target: &Path, arguments: &[&str]) -> Finished {
    run(&[&["run", target.to_str().unwrap(), "--json", "--digest"], arguments].concat())
}

fn digest(target: &Path, arguments: &[&str]) -> String {
    let finished = run_json(target, arguments);
    finished.assert_status(0);
    let epoch = &finished.named("epoch")[0];
    assert_eq!((&epoch["batches"], &epoch["samples"]), (&json!(10), &json!(40)));
    epoch["content_digest"].as_str().unwrap().to_owned()
}

#[test]
fn records_do_not_depend_on_the_number_of_workers() {
    let map = folder("json-lines", "index = \"none\"\n");
    let stream = folder("json-lines-stream", "fields = [\"x\"]\n");
    let file = map.path().join("train.jsonl");
    let (map, stream) = (map.path().join("run.toml"), stream.path().join("run.toml"));

    let shuffled = digest(&map, &["--shuffle", "--num-workers", "0"]);
    assert_eq!(digest(&map, &["--shuffle", "--num-workers", "3"]), shuffled);
    let in_order = digest(&map, &["--num-workers", "2"]);
    assert_ne!(in_order, shuffled);
    assert_eq!(digest(&file, &["--batch-size", "4"]), in_order, "the same file without a config");

    let streamed = digest(&stream, &["--shards", "2"]);
    assert_eq!(digest(&stream, &["--shards", "2", "--num-workers", "3"]), streamed);
    assert_ne!(streamed, in_order, "one field instead of two");
}

#[test]
fn a_path_starts_at_the_folder_of_the_file_that_it_is_in() {
    let folder = folder("json-lines", "");
    let (base, child) = (folder.path().join("run.toml"), folder.path().join("more/run.toml"));
    fs::create_dir(child.parent().unwrap()).unwrap();
    for dataset in ["", "[dataset]\npath = \"../train.jsonl\"\n"] {
        fs::write(&child, format!("extends = \"../run.toml\"\n{dataset}")).unwrap();
        assert_eq!(digest(&child, &[]), digest(&base, &[]));
    }
}

#[test]
fn the_sample_digest_of_records_depends_on_neither_order_nor_batches() {
    let digest = |target: &Path, arguments: &[&str]| {
        let finished = run_json(target, arguments);
        let epoch = finished.assert_status(0).named("epoch").remove(0);
        (epoch["sample_digest"].clone(), epoch["digest_samples"].clone())
    };
    let map = folder("json-lines", "index = \"none\"\n");
    let stream = folder("json-lines-stream", "");
    let arrow = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/arrow/saved");
    let arrow = format!("[dataset]\nkind = \"arrow\"\npath = \"{arrow}/data-*.arrow\"\nfields = [\"x\"]\n");
    fs::write(map.path().join("arrow.toml"), arrow).unwrap();
    for config in [map.path().join("run.toml"), map.path().join("arrow.toml")] {
        let whole = digest(&config, &["--batch-size", "4"]);
        assert_eq!(digest(&config, &["--shuffle", "--batch-size", "7", "--num-workers", "2"]), whole);
    }
    let (config, state) = (stream.path().join("run.toml"), stream.path().join("state"));
    let whole = digest(&config, &["--shards", "2"]);
    assert_eq!(whole.1, 40);
    assert_eq!(digest(&config, &["--shards", "2", "--batch-size", "3", "--num-workers", "2"]), whole);
    let state = state.to_str().unwrap();
    run_json(&config, &["--shards", "2", "--stop-after", "3", "--save-state", state]).assert_status(0);
    assert_eq!(digest(&config, &["--shards", "2", "--num-workers", "2", "--resume", state]), whole);
}

#[test]
fn an_epoch_with_a_file_that_is_cut_off_is_not_read() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures");
    let whole = fs::read(Path::new(fixtures).join("json_lines/pandas.jsonl.gz")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (config, state) = (folder.path().join("run.toml"), folder.path().join("state.json"));
    fs::write(folder.path().join("train.jsonl.gz"), &whole[..whole.len() / 2]).unwrap();
    let dataset = "kind = \"json-lines-stream\"\npath = \"train.jsonl.gz\"\nfields = [\"id\"]\n";
    fs::write(&config, format!("[dataset]\n{dataset}")).unwrap();
    let state = state.to_str().unwrap();
    let options = ["--epochs", "2", "--shards", "1", "--save-state", state];
    for policy in ["error", "skip"] {
        let finished = run_json(&config, &[&options[..], &["--on-bad-sample", policy]].concat());
        let errors = finished.assert_status(1).named("error");
        let kinds: Vec<&str> = errors.iter().map(|error| error["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["DatasetFailed", "EpochNotRead"], "{finished:#?}");
        assert!(errors[0]["message"].as_str().unwrap().contains("the file ends before its content does"));
        assert_eq!((finished.named("epoch").len(), &finished.named("end")[0]["epochs"]), (1, &json!(0)));
    }
    // The state has stayed in epoch 0, so that a resumed run meets the same file.
    let resume = ["--shards", "1", "--on-bad-sample", "skip", "--resume", state, "--save-state", state];
    let resumed = run_json(&config, &resume);
    assert_eq!(resumed.assert_status(1).named("error")[1]["kind"], "EpochNotRead", "{resumed:#?}");
}

#[test]
fn tables_are_read_at_random_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|number| format!("{number},\"line\n{number}\"\n")).collect();
    fs::write(folder.path().join("train.csv"), format!("x,text\n{rows}")).unwrap();
    let file = folder.path().join("train.csv");
    let in_order = digest(&file, &["--batch-size", "4", "--num-workers", "2"]);
    let config = folder.path().join("run.toml");
    let stream = "[dataset]\nkind = \"csv-stream\"\npath = \"train.csv\"\n[loader]\nbatch_size = 4\n";
    fs::write(&config, stream).unwrap();
    assert_eq!(digest(&config, &["--shards", "1", "--num-workers", "1"]), in_order);

    let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures/arrow/saved");
    for (kind, arguments) in [("arrow", ["--num-workers", "2"]), ("arrow-stream", ["--shards", "2"])] {
        let text =
            format!("[dataset]\nkind = \"{kind}\"\npath = \"{saved}/data-*.arrow\"\nfields = [\"x\"]\n");
        fs::write(&config, text).unwrap();
        let finished = run_json(&config, &arguments);
        finished.assert_status(0);
        assert_eq!(finished.named("epoch")[0]["samples"], json!(60), "{kind}");
    }
}

#[test]
fn datasets_are_mixed_by_weight() {
    let folder = folder("json-lines", "");
    let config = folder.path().join("mix.toml");
    let parts = "[[dataset.parts]]\nkind = \"json-lines\"\npath = \"train.jsonl\"\nshuffle = true\n\
                 [[dataset.parts]]\nkind = \"json-lines-stream\"\npath = \"train.jsonl\"\nweight = 0.5\n";
    let options = "kind = \"mix\"\nexhausted = \"repeat\"\nnum_samples = 40\n";
    let write = |more: &str| {
        let text = format!("[dataset]\n{options}{parts}{more}[loader]\nbatch_size = 4\nshards = 1\n");
        fs::write(&config, text).unwrap();
    };
    write("");
    assert_eq!(digest(&config, &[]), digest(&config, &["--num-workers", "2"]));
    write("weigth = 2.0\n");
    let finished = run_json(&config, &[]);
    finished.assert_status(2);
    let error = finished.named("error")[0]["message"].as_str().unwrap().to_owned();
    assert!(
        error.contains("mix.toml, line 13: unknown key `weigth` in [dataset.parts]; did you mean `weight`?"),
        "{error}"
    );
}

#[test]
fn a_dataset_is_kept_in_files() {
    let folder = folder("json-lines", "");
    let config = folder.path().join("cached.toml");
    let inner = "[dataset.dataset]\nkind = \"json-lines\"\npath = \"train.jsonl\"\n";
    let text = format!("[dataset]\nkind = \"cached\"\nfolder = \"cache\"\n{inner}[loader]\nbatch_size = 4\n");
    fs::write(&config, text).unwrap();
    let computed = digest(&folder.path().join("run.toml"), &[]);
    for workers in ["2", "0"] {
        assert_eq!(digest(&config, &["--num-workers", workers]), computed);
    }
    assert!(fs::metadata(folder.path().join("cache/samples")).unwrap().len() > 0);
}

#[test]
fn documents_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    let document = |n: usize| format!("{{\"tokens\": {:?}}}\n", vec![n; n * 7 % 31]);
    fs::write(folder.path().join("train.jsonl"), (0..200).map(document).collect::<String>()).unwrap();
    let config = folder.path().join("packed.toml");
    let write = |keys: &str, more: &str| {
        let documents =
            "[dataset.dataset]\nkind = \"json-lines\"\npath = \"train.jsonl\"\nindex = \"none\"\n";
        let loader = "[loader]\nbatch_size = 4\nshards = 2\n";
        fs::write(&config, format!("[dataset]\nkind = \"packed\"\n{keys}{documents}{more}{loader}")).unwrap();
    };
    let packed = "window = 40\nmethod = \"best-fit\"\nlook_ahead = 50\nshuffle_documents = true\n";
    write(packed, "");
    let digest = |arguments: &[&str]| {
        let finished = run_json(&config, arguments);
        let epoch = finished.assert_status(0).named("epoch").remove(0);
        let fill = epoch["fill_ratio"].as_f64().unwrap();
        assert!(fill > 0.9 && fill <= 1.0, "{fill}");
        epoch["sample_digest"].clone()
    };
    let whole = digest(&[]);
    assert_eq!(digest(&["--num-workers", "2"]), whole);
    let shown = run(&["run", config.to_str().unwrap()]);
    assert!(shown.assert_status(0).stdout.contains(" % full, in "), "{}", shown.stdout);
    let page = folder.path().join("page.html");
    let shown = run_json(&config, &["--report", page.to_str().unwrap()]);
    let fill = 100.0 * shown.assert_status(0).named("epoch")[0]["fill_ratio"].as_f64().unwrap();
    let page = fs::read_to_string(page).unwrap();
    let cells = ["<th scope=\"col\">fill</th>".to_owned(), format!("<td>{fill:.1} %</td>")];
    assert!(cells.iter().all(|cell| page.contains(cell)), "{cells:?} in {page}");
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    run_json(&config, &["--stop-after", "4", "--save-state", state]).assert_status(0);
    assert_eq!(digest(&["--num-workers", "2", "--resume", state]), whole);

    let refusal = |keys: &str, more: &str| {
        write(keys, more);
        let finished = run_json(&config, &[]);
        finished.assert_status(2);
        finished.named("error")[0]["message"].as_str().unwrap().to_owned()
    };
    let key = refusal("window = 40\nmetod = \"best-fit\"\n", "");
    assert!(key.contains("line 4: unknown key `metod` in [dataset]; did you mean `method`?"), "{key}");
    let method = refusal("window = 40\nmethod = \"best-fitt\"\n", "");
    assert!(method.contains("line 4: `method` in [dataset]"), "{method}");
    let missing = refusal("", "");
    assert!(missing.contains("`window` is missing in [dataset]"), "{missing}");
    let window = refusal("window = 0\n", "");
    assert!(window.contains("option `window`: a window of 0 tokens"), "{window}");
    let name =
        refusal("window = 9\n", "[dataset.dataset.tokenizers.text]\npath = \"x.json\"\npads = \"</s>\"\n");
    assert!(name.contains("unknown key `pads` in [dataset.dataset.tokenizers.text]"), "{name}");
    // A relative path starts at the folder of the config.
    let file = refusal("window = 9\n", "[dataset.dataset.tokenizers.text]\npath = \"x.json\"\n");
    let expected = if cfg!(feature = "tokenizer") {
        format!("{}`: no such file", folder.path().join("x.json").display())
    } else {
        "build it with `--features tokenizer`".to_owned()
    };
    assert!(file.contains(&expected) && file.contains("option `tokenizers`: `text`: "), "{file}");
}

#[cfg(feature = "tokenizer")]
#[test]
fn text_is_tokenised_and_packed() {
    let folder = folder("json-lines", "");
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../loader-data/tests/formats/fixtures/tokenizer/tokenizer.json"
    );
    fs::copy(fixture, folder.path().join("tokenizer.json")).unwrap();
    let config = folder.path().join("packed.toml");
    let dataset = "[dataset]\nkind = \"packed\"\nwindow = 8\nfield = \"text\"\n\
                   [dataset.dataset]\nkind = \"json-lines\"\npath = \"train.jsonl\"\n\
                   [dataset.dataset.tokenizers.text]\npath = \"tokenizer.json\"\nend_of_document = \"</s>\"\n";
    fs::write(&config, format!("{dataset}[loader]\nshards = 2\n")).unwrap();
    let epoch = |workers: &str| {
        let finished = run_json(&config, &["--num-workers", workers]);
        let epoch = finished.assert_status(0).named("epoch").remove(0);
        (epoch["samples"].clone(), epoch["content_digest"].clone())
    };
    let (windows, content) = epoch("0");
    assert!(windows.as_u64() > Some(10), "{windows}");
    assert_eq!(epoch("2"), (windows, content));
}

#[test]
fn arrays_can_have_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    // IDX files: 40 rows of two bytes, and 40 numbers.
    let x = [&[0, 0, 8, 2, 0, 0, 0, 40, 0, 0, 0, 2][..], &[7; 80]].concat();
    fs::write(folder.path().join("x"), x).unwrap();
    let label: Vec<u8> = [0, 0, 8, 1, 0, 0, 0, 40].into_iter().chain(0..40).collect();
    fs::write(folder.path().join("label"), label).unwrap();
    let config = folder.path().join("run.toml");
    let text =
        "[dataset]\nkind = \"arrays\"\nfiles = { x = \"x\", label = \"label\" }\n[loader]\nbatch_size = 4\n";
    fs::write(&config, text).unwrap();
    assert_eq!(digest(&config, &["--num-workers", "0"]), digest(&config, &["--num-workers", "2"]));
}

#[test]
fn the_extension_of_a_target_tells_its_format() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../loader-data/tests/formats/fixtures/arrays/digits.safetensors"
    );
    let finished = run_json(Path::new(file), &[]);
    finished.assert_status(0);
    assert_eq!(finished.named("epoch")[0]["samples"], json!(10));
}

#[test]
fn every_format_is_recognised_by_its_extension() {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/formats/fixtures"));
    let made = tempfile::tempdir().unwrap();
    let text = made.path().join("poem.txt");
    fs::write(&text, "one\n\nthree").unwrap();
    for (target, kind, fields) in [
        (fixtures.join("arrays/truth.npy"), "arrays", &["truth"][..]),
        (fixtures.join("arrays/compressed.npz"), "arrays", &["image", "label", "weights"]),
        (fixtures.join("arrays/images-idx3-ubyte"), "arrays", &["images-idx3-ubyte"]),
        (fixtures.join("arrays/labels-idx1-ubyte.gz"), "arrays", &["labels-idx1-ubyte"]),
        (fixtures.join("audio/s16.wav"), "audio-files", &["audio.bytes", "audio.path"]),
        (fixtures.join("audio/s*.flac"), "audio-files", &["audio.bytes", "audio.path"]),
        (fixtures.join("audio/tone.mp3"), "audio-files", &["audio.bytes", "audio.path"]),
        (fixtures.join("audio/tone.ogg"), "audio-files", &["audio.bytes", "audio.path"]),
        (fixtures.join("tokens/corpus.idx"), "tokens", &["tokens"]),
        (text, "text-lines-stream", &["text"]),
    ] {
        let target = target.to_str().unwrap();
        let report = run(&["inspect", target, "--json"]);
        let report: Value = serde_json::from_str(&report.assert_status(0).stdout).unwrap();
        assert_eq!((&report["kind"], &report["bad_samples"]), (&json!(kind), &json!([])), "{target}");
        let found: Vec<_> = report["fields"].as_array().unwrap().iter().map(|field| &field["name"]).collect();
        assert_eq!(found, fields, "{target}");
        let finished = run_json(Path::new(target), &[]);
        assert_eq!(finished.assert_status(0).named("epoch")[0]["samples"], report["samples"], "{target}");
    }
}

#[test]
fn a_url_is_shown_without_its_signature() {
    for name in ["a", "a.jsonl"] {
        let failed = run(&["inspect", &format!("http://localhost/{name}?X-Signature=secret")]);
        let stderr = &failed.assert_status(2).stderr;
        assert!(stderr.contains(&format!("`http://localhost/{name}?...`")), "{stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
}

#[test]
fn wrong_configs_of_records_are_refused() {
    let refusal = |kind: &str, keys: &str, arguments: &[&str]| {
        let folder = folder(kind, keys);
        let finished = run_json(&folder.path().join("run.toml"), arguments);
        finished.assert_status(2);
        finished.named("error")[0]["message"].as_str().unwrap().to_owned()
    };
    let kind = refusal("json-line", "", &[]);
    assert!(
        kind.contains("line 2: `kind` in [dataset]: unknown value `json-line`; did you mean `json-lines`?"),
        "{kind}"
    );
    let key = refusal("json-lines", "field = [\"x\"]\n", &[]);
    let hint = "run.toml, line 4: unknown key `field` in [dataset]; did you mean `fields`?";
    assert!(key.contains(hint), "{key}");
    let inside = refusal("json-lines", "[dataset.store]\nmax_retry = 3\n", &[]);
    let hint = "line 5: unknown key `max_retry` in [dataset.store]; did you mean `max_retries`?";
    assert!(inside.contains(hint), "{inside}");
    let wrong = refusal("parquet", "images = { image = { size = 32 } }\ncache_bytes = \"1 Gb\"\n", &[]);
    let expected = "line 5: `cache_bytes` in [dataset]: expected a number of bytes, optionally with a unit (B, kB, MB, GB, TB, ";
    assert!(wrong.contains(expected), "{wrong}");
    let size = refusal("json-lines", "", &["--size", "48"]);
    assert!(size.contains("--size") && size.contains("`json-lines`"), "{size}");
    let samples = refusal("json-lines-stream", "", &["--samples", "5"]);
    assert!(samples.contains("--samples"), "{samples}");
    let shuffle = refusal("json-lines-stream", "", &["--shuffle"]);
    assert!(shuffle.contains("shuffle"), "{shuffle}");
}

/// Of the runs that are resumed, one reports the end of the epoch, for every kind of dataset.
#[test]
fn a_run_that_stops_behind_the_last_batch_leaves_the_end_of_the_epoch_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..40).map(|number| format!("{{\"a\": {number}}}\n")).collect();
    fs::write(folder.path().join("a.jsonl"), lines).unwrap();
    let [config, state] = ["run.toml", "state.json"].map(|name| folder.path().join(name));
    let [config, state] = [&config, &state].map(|path| path.to_str().unwrap());
    for (kind, options) in [("json-lines", ""), ("json-lines-stream", "shards = 2\n")] {
        let dataset = format!("[dataset]\nkind = \"{kind}\"\npath = \"a.jsonl\"\n");
        fs::write(config, format!("{dataset}[loader]\nbatch_size = 4\ndigest = true\n{options}")).unwrap();
        let start = |options: &[&str]| {
            let finished = run(&[&["run", config, "--json"], options].concat());
            finished.assert_status(0);
            finished
        };
        let digest = |finished: &Finished| finished.named("epoch")[0]["sample_digest"].clone();
        let undisturbed = digest(&start(&[]));
        let stopped = start(&["--stop-after", "10", "--save-state", state]);
        assert!(stopped.named("epoch").is_empty(), "{}", stopped.stdout);
        let resumed = start(&["--resume", state, "--save-state", state]);
        assert_eq!((&resumed.named("epoch")[0]["samples"], digest(&resumed)), (&json!(0), undisturbed));
        let again = start(&["--resume", state]);
        assert_eq!(again.events().len(), 1, "{}", again.stdout);
    }
}
