//! `loader run` without failures.

use std::fs;

use serde_json::{Value, json};

use crate::support::{PHOTOS, Running, assert_gone, command, run, worker_pids};

fn keys(event: &Value) -> Vec<&str> {
    event.as_object().unwrap().keys().map(String::as_str).collect()
}

fn digests(arguments: &[&str]) -> Vec<Value> {
    let finished = run(&[&["run", "--json", "--digest"], arguments].concat());
    finished.assert_status(0);
    let epochs = finished.named("epoch");
    epochs.iter().map(|epoch| json!([epoch["order_digest"], epoch["content_digest"]])).collect()
}

#[test]
fn batches_do_not_depend_on_the_number_of_workers() {
    let with = |workers, seed| {
        let order = ["--samples", "20", "--batch-size", "4", "--epochs", "2", "--seed", seed];
        digests(&[&[PHOTOS, "--size", "48", "--num-workers", workers], &order[..]].concat())
    };
    let without_workers = with("0", "7");
    assert_eq!(without_workers.len(), 2);
    assert_ne!(without_workers[0], without_workers[1]);
    assert_eq!(with("2", "7"), without_workers);
    assert_ne!(with("2", "8"), without_workers);
}

#[test]
fn json_prints_events() {
    let finished = run(&[
        "run",
        PHOTOS,
        "--json",
        "--batches",
        "--digest",
        "--num-workers",
        "2",
        "--batch-size",
        "4",
        "--size",
        "48",
    ]);
    let events = finished.assert_status(0).events();
    assert_eq!(finished.stderr, "");
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "batch", "batch", "batch", "epoch", "end"]);

    let start = &events[0];
    assert_eq!((&start["samples"], &start["batches"]), (&json!(9), &json!(3)));
    let pids = worker_pids(start);
    assert_eq!(pids.len(), 2);
    assert_gone(&pids);
    let config = json!({
        "dataset": { "kind": "image-folder", "path": PHOTOS, "transform": "train", "size": 48, "pixels": "f32",
            "exif_orientation": false, "max_file_bytes": 268_435_456 },
        "loader": {
            "batch_size": 4, "shuffle": false, "seed": 0, "order": "native", "num_workers": 2, "prefetch_factor": 2,
            "group_size": 1, "drop_last": false, "in_order": true, "timeout": 0.0, "warn_after": 30.0, "on_worker_death": "restart", "max_worker_deaths": 10,
            "on_bad_sample": "error", "max_bad_samples": 10, "digest": true, "sample_timeout": 0.0,
            "worker_affinity": "inherit", "move_tasks": true, "hedge": false, "raise_oom_score_adj": true,
            "persistent_workers": false, "pin_memory": false,
        },
    });
    assert_eq!(start["config"], config);

    assert_eq!(events[3], json!({ "event": "batch", "epoch": 0, "batch": 2, "indices": [8] }));
    assert_epoch(&events[4]);
    assert_eq!(events[5], json!({ "event": "end", "epochs": 1, "restarts": 0, "errors": 0 }));
}

/// Checks the event `epoch` about 3 batches with 9 samples that workers have loaded.
#[track_caller]
fn assert_epoch(epoch: &Value) {
    let mut expected = [
        "event",
        "epoch",
        "batches",
        "samples",
        "repeated",
        "bytes",
        "seconds",
        "samples_per_second",
        "first_batch_seconds",
        "wait_seconds",
        "verdict",
        "advice",
        "times",
        "mean_ready_batches",
        "main_decode_seconds",
        "main_cpu_seconds",
        "workers",
        "sample_digest",
        "digest_samples",
        "order_digest",
        "content_digest",
    ];
    expected.sort_unstable();
    let mut found = keys(epoch);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!((&epoch["batches"], &epoch["samples"]), (&json!(3), &json!(9)));
    assert_eq!(epoch["content_digest"].as_str().unwrap().len(), 16);
    assert_eq!((epoch["sample_digest"].as_str().unwrap().len(), &epoch["digest_samples"]), (32, &json!(9)));
    let times = &epoch["times"];
    let phases = times["phases"].as_object().unwrap();
    let shares: f64 = phases.values().map(|phase| phase["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{phases:?}");
    assert!(phases["decode"]["seconds"].as_f64().unwrap() > 0.0, "{phases:?}");
    assert_eq!((&times["batch_seconds"]["count"], &times["sample_seconds"]["count"]), (&json!(3), &json!(9)));
    assert_eq!(times["slowest"].as_array().unwrap().len(), 9);
    assert!(times["slowest"][0]["seconds"].as_f64() >= times["slowest"][8]["seconds"].as_f64(), "{times}");
    let loaded = |field: &str| {
        epoch["workers"].as_array().unwrap().iter().map(|worker| worker[field].as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!((loaded("batches"), loaded("samples")), (3.0, 9.0));
    assert!(loaded("busy_seconds") > 0.0 && loaded("cpu_seconds") > 0.0 && loaded("page_faults") > 0.0);
}

#[test]
fn without_json_prints_text() {
    let finished = run(&["run", PHOTOS, "--size", "16", "--batch-size", "3", "--epochs", "2", "--digest"]);
    // The times of batches are printed only if the loader is the bottleneck.
    let lines: Vec<_> =
        finished.assert_status(0).stdout.lines().filter(|line| !line.contains(": a batch takes")).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[0].starts_with("epoch 0: 3 batches, 9 samples in "), "{}", lines[0]);
    assert!(
        lines[1].starts_with("epoch 0: sample digest ") && lines[1].ends_with(" (9 samples)"),
        "{}",
        lines[1]
    );
    assert!(lines[5].starts_with("epoch 1: order digest "), "{}", lines[5]);
    // Without a terminal, the command prints a line of progress after each interval. The run is shorter than
    // one interval.
    assert_eq!(finished.stderr, "");
}

#[test]
fn progress_without_a_terminal_is_printed_as_lines() {
    let order = ["--size", "16", "--samples", "3", "--epochs", "2"];
    let finished = run(&[&["run", PHOTOS, "--progress-every", "0.000001"], &order[..]].concat());
    let lines: Vec<_> = finished.assert_status(0).stderr.lines().collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[0].starts_with("epoch 0 of 2: 1/3 batches, 00:"), "{}", lines[0]);
    assert!(lines[5].starts_with("epoch 1 of 2: 3/3 batches, 00:00:00 left, "), "{}", lines[5]);
    assert!(lines[5].ends_with(" % waiting"), "{}", lines[5]);
    let silent = run(&[&["run", PHOTOS, "--progress-every", "0"], &order[..]].concat());
    assert_eq!(silent.assert_status(0).stderr, "");
    let events = run(&[&["run", PHOTOS, "--progress-every", "0.000001", "--json"], &order[..]].concat());
    assert_eq!(events.assert_status(0).stderr, "");
}

#[test]
fn transform_and_pixels_change_the_content_only() {
    let eval = ["--transform", "eval", "--size", "16"];
    let f32s = digests(&[&[PHOTOS], &eval[..]].concat());
    let u8s = digests(&[&[PHOTOS, "--pixels", "u8"], &eval[..]].concat());
    let train = digests(&[PHOTOS, "--transform", "train", "--size", "16"]);
    assert_eq!(f32s[0][0], u8s[0][0]);
    assert_ne!(f32s[0][1], u8s[0][1]);
    assert_ne!(f32s[0][1], train[0][1]);
    // Without a transform the photographs differ in size, which works because the default batch size is 1.
    assert_eq!(digests(&[PHOTOS, "--transform", "none", "--pixels", "u8"]).len(), 1);
}

#[test]
fn images_are_turned_upright_if_the_settings_say_so() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/tests/image_folder/fixtures/types");
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("images/class")).unwrap();
    fs::copy(format!("{fixtures}/orientation-6.png"), folder.path().join("images/class/6.png")).unwrap();
    let (target, config) = (folder.path().join("images"), folder.path().join("run.toml"));
    let text = "[dataset]\nkind = \"image-folder\"\npath = \"images\"\ntransform = \"none\"\nexif_orientation = true\n";
    fs::write(&config, text).unwrap();
    let (target, config) = (target.to_str().unwrap(), config.to_str().unwrap());

    let as_it_is = digests(&[target, "--transform", "none"]);
    let upright = digests(&[target, "--transform", "none", "--exif-orientation"]);
    assert_ne!(upright, as_it_is);
    assert_eq!(digests(&[config]), upright);
    assert_eq!(digests(&[config, "--exif-orientation=false"]), as_it_is);
}

#[test]
fn settings_override_each_other_in_order() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(PHOTOS, folder.path().join("photos")).unwrap();
    let config = folder.path().join("run.toml");
    let text = "[dataset]\nkind = \"image-folder\"\npath = \"photos\"\ntransform = \"eval\"\nsize = 32\n\n\
                [loader]\nbatch_size = 5\nseed = 5\nnum_workers = 2\nprefetch_factor = 3\n";
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();

    // A path in a config is relative to the config, so the command can be started in any directory.
    let mut layered = command(&["run", config, "--json", "--batch-size", "3", "--size", "16"]);
    layered.env("LOADER_BATCH_SIZE", "4").env("LOADER_SEED", "4").current_dir("/");
    let finished = Running::start(layered).finish();
    let start = &finished.assert_status(0).named("start")[0];
    let (dataset, loader) = (&start["config"]["dataset"], &start["config"]["loader"]);
    assert_eq!((&dataset["transform"], &dataset["size"]), (&json!("eval"), &json!(16)));
    assert_eq!(loader["batch_size"], 3);
    assert_eq!(loader["seed"], 4);
    assert_eq!(loader["num_workers"], 2);
    assert_eq!(loader["prefetch_factor"], 3);

    // `--num-workers 0` also works with a config that sets options that need workers.
    let finished = run(&["run", config, "--json", "--num-workers", "0"]);
    let start = &finished.assert_status(0).named("start")[0];
    assert_eq!(start["workers"], json!([]));
    assert_eq!(start["config"]["loader"]["prefetch_factor"], Value::Null);

    // A config that extends another one reads its images, from another folder too.
    let more = folder.path().join("more/run.toml");
    fs::create_dir(more.parent().unwrap()).unwrap();
    fs::write(&more, "extends = \"../run.toml\"\nloader = { seed = 6, num_workers = 0 }\n").unwrap();
    let finished = run(&["run", more.to_str().unwrap(), "--json"]);
    let start = &finished.assert_status(0).named("start")[0];
    assert_eq!((&start["samples"], &start["config"]["loader"]["seed"]), (&json!(9), &json!(6)));
    assert_eq!(start["config"]["loader"]["batch_size"], 5);
}

// PyTorch: U25
#[test]
fn auto_starts_at_least_one_worker() {
    let finished = run(&["run", PHOTOS, "--json", "--num-workers", "auto", "--size", "16"]);
    let start = &finished.assert_status(0).named("start")[0];
    let workers = start["workers"].as_array().unwrap().len();
    assert!(workers >= 1);
    assert_eq!(start["config"]["loader"]["num_workers"]["auto"]["min"], 1);
}
