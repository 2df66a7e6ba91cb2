//! Invalid arguments and configs, and runs that fail.

use std::{
    fs,
    net::TcpListener,
    process::{Command, Stdio},
};

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::support::{
    Finished, PHOTOS, Running, assert_gone, command, copy_of_photos, pid, run, worker_pids,
};

/// Runs the command, which must refuse the arguments. Returns the error message. With `--json` the command
/// must print the same message as an event.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    let finished = run(arguments);
    finished.assert_status(2);
    assert_eq!(finished.stdout, "");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);

    let as_event = run(&[arguments, &["--json"]].concat());
    let message = finished.stderr.trim_end().strip_prefix("loader: ").unwrap().to_owned();
    if arguments[0] == "run" {
        let events = as_event.assert_status(2).events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["event"], "error");
        assert_eq!(events[0]["message"], message);
    }
    message
}

#[test]
fn a_command_whose_output_is_closed_says_so_before_it_works() {
    let loads: [&[_]; 2] = [&["plan", "--length", "4"], &["run", PHOTOS, "--samples", "4"]];
    let prints: [&[_]; 2] = [&["--version"], &["run", "--help"]];
    for arguments in loads.into_iter().chain(prints) {
        let loader = command(arguments);
        // Only a shell can start a program with a closed stream.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(loader.get_program()).args(loader.get_args());
        shell.stdin(Stdio::null()).stderr(Stdio::piped());
        let finished = Running::start(shell).finish();
        finished.assert_status(1);
        assert!(finished.stderr.contains("standard output: it is closed"), "{}", finished.stderr);
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let message = refusal(&["run", PHOTOS, "--batchsize", "3"]);
    assert!(message.contains("'--batchsize'") && message.contains("'--batch-size'"), "{message}");
    assert!(message.ends_with("; see `loader run --help`"), "{message}");
    let message = refusal(&["run", PHOTOS, "--num-workers", "many"]);
    assert!(message.contains("`many` is not a number of workers, \"auto\" or"), "{message}");
    assert!(refusal(&["run"]).contains("<TARGET>"));
    assert!(refusal(&["run", PHOTOS, "--samples", "0"]).contains("at least 1"));
    assert!(refusal(&["plan", "--length", "many"]).contains("invalid value 'many'"));
    run(&[]).assert_status(2);
    run(&["--help"]).assert_status(0);
}

/// What cannot be written or served ends the run before it starts a worker, and so before the event `start`.
#[test]
fn a_port_in_use_and_a_trace_that_cannot_be_written_end_the_run_before_a_worker_starts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let message = refusal(&["run", PHOTOS, "--num-workers=1", "--metrics", &address]);
    let expected = format!("metrics: the loader cannot listen at {address}: ");
    assert!(message.starts_with(&expected) && message.contains("choose a free port"), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/trace.json").to_str().unwrap().to_owned();
    let existing = folder.path().to_str().unwrap().to_owned();
    for option in ["trace", "trace-on-failure"] {
        for path in [&missing, &existing] {
            let refused = run(&["run", PHOTOS, "--num-workers=1", "--json", &format!("--{option}={path}")]);
            let events = refused.assert_status(2).events();
            assert_eq!((events.len(), &events[0]["kind"]), (1, &json!("InvalidOption")), "{events:?}");
            let message = events[0]["message"].as_str().unwrap();
            let expected = format!("{}: `{path}` cannot be written: ", option.replace('-', "_"));
            assert!(message.starts_with(&expected), "{message}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Another package of the build may have turned on the formats of `loader-data`.
#[cfg(not(feature = "formats"))]
#[test]
fn a_command_without_the_feature_formats_refuses_their_kinds_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    fs::write(&config, "[dataset]\nkind = \"csv\"\npath = \"rows.csv\"\n").unwrap();
    let config = config.to_str().unwrap();
    for arguments in [&["run"][..], &["inspect"], &["tune"], &["config", "--print"]] {
        let message = refusal(&[arguments, &[config]].concat());
        assert!(message.contains("built with the kind `image-folder` only; for `csv`, build"), "{message}");
    }
}

#[test]
fn invalid_options_are_refused() {
    assert!(refusal(&["run", PHOTOS, "--batch-size", "0"]).starts_with("batch_size: "));
    assert!(refusal(&["plan", "--length", "3", "--batch-size", "0"]).starts_with("batch_size: "));
    assert!(
        refusal(&["run", PHOTOS, "--timeout", "NaN", "--num-workers", "1"])
            .contains("`NaN` is not a number of seconds from 0")
    );
    assert!(refusal(&["run", PHOTOS, "--prefetch-factor", "2"]).starts_with("prefetch_factor: "));
    assert!(refusal(&["run", PHOTOS, "--size", "0"]).contains("a size of 0 pixels"));
    assert!(
        refusal(&["run", PHOTOS, "--size", "8", "--transform", "none"]).starts_with("size has no effect")
    );
}

#[test]
fn a_target_without_images_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    assert!(refusal(&["run", path]).contains("has no class folders"));
    let missing = format!("{path}/photos");
    for name in [&missing, &format!("{missing}.jsonl.bak")] {
        assert_eq!(refusal(&["run", name]), format!("`{name}`: no such file or folder; check the path"));
    }
    let missing = format!("{path}/run.toml");
    assert!(refusal(&["run", &missing]).starts_with(&format!("{missing}: cannot be read: ")));
    let file = folder.path().join("photo.jpg");
    fs::write(&file, "").unwrap();
    assert!(refusal(&["run", file.to_str().unwrap()]).contains("neither a folder nor a config"));
    let tokens = folder.path().join("train.bin");
    fs::write(&tokens, "").unwrap();
    let hint = "token files need a config with `kind = \"tokens\"`";
    let message = refusal(&["run", tokens.to_str().unwrap()]);
    assert_eq!(message.contains(hint), cfg!(feature = "formats"), "{message}");
}

#[test]
fn an_invalid_config_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    let path = config.to_str().unwrap();
    let refused = |loader: &str| {
        fs::write(&config, format!("[dataset]\nkind = \"image-folder\"\npath = \"photos\"\n{loader}"))
            .unwrap();
        refusal(&["run", path])
    };
    let unknown = "unknown key `batchsize` in [loader]; did you mean `batch_size`?";
    assert_eq!(refused("\n[loader]\nbatchsize = 3\n"), format!("{path}, line 6: {unknown}"));
    let message = "`pixels` in [dataset]: unknown value `f16`; expected one of `f32`, `u8`";
    assert_eq!(refused("pixels = \"f16\"\n"), format!("{path}, line 4: {message}"));
    let missing = format!("`{}` does not exist", folder.path().join("photos").display());
    assert!(refused("").contains(&missing));
}

#[test]
fn an_invalid_environment_is_refused() {
    let refused = |name, value| {
        let mut command = command(&["run", PHOTOS]);
        command.env(name, value);
        let finished = Running::start(command).finish();
        finished.assert_status(2).stderr.clone()
    };
    let message = "loader: the environment variable LOADER_SEED is `x`; expected a whole number from 0\n";
    assert_eq!(refused("LOADER_SEED", "x"), message);
    let unknown = "loader: unknown environment variable LOADER_WORKERS; did you mean LOADER_NUM_WORKERS?\n";
    assert_eq!(refused("LOADER_WORKERS", "2"), unknown);
}

#[test]
fn a_damaged_photograph_fails_only_its_batch() {
    let (_folder, photos) = copy_of_photos();
    let damaged = photos.join("space/rocket.jpg");
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let photos = photos.to_str().unwrap();

    for workers in ["0", "2"] {
        let finished = run(&[
            "run",
            photos,
            "--json",
            "--batches",
            "--batch-size",
            "2",
            "--size",
            "16",
            "--num-workers",
            workers,
        ]);
        finished.assert_status(1);
        let errors = finished.named("error");
        assert_eq!(errors.len(), 1, "{errors:?}");
        let error = &errors[0];
        assert_eq!(error["kind"], "DatasetFailed");
        assert_eq!((&error["epoch"], &error["batch"], &error["index"]), (&json!(0), &json!(2), &json!(4)));
        assert_eq!(error["worker"].is_u64(), workers != "0");
        assert!(error["message"].as_str().unwrap().contains("space/rocket.jpg"), "{error}");
        assert!(finished.stderr.starts_with("loader: epoch 0: "), "{}", finished.stderr);
        let batches: Vec<_> =
            finished.named("batch").iter().map(|batch| batch["batch"].as_u64().unwrap()).collect();
        assert_eq!(batches, [0, 1, 3, 4]);
        assert_eq!(finished.named("epoch")[0]["samples"], 7);
        assert_eq!(finished.named("end")[0]["errors"], 1);
    }
}

/// Runs the command, and kills worker 1 while it loads a batch. Returns the pid of that worker too.
fn run_and_kill(options: &[&str]) -> (Finished, u32) {
    let workers = ["--num-workers", "2", "--samples", "60", "--batch-size", "4", "--size", "32", "--digest"];
    let mut running =
        Running::start(command(&[&["run", PHOTOS, "--json", "--batches"], &workers[..], options].concat()));
    let pids = worker_pids(&running.next_event());
    // After the second batch, which comes from worker 1, that worker is loading another one.
    running.next_event();
    running.next_event();
    kill(pid(pids[1]), Signal::SIGKILL).unwrap();
    let finished = running.finish();
    assert_gone(&pids);
    (finished, pids[1])
}

#[test]
fn a_dead_worker_is_replaced() {
    let (disturbed, victim) = run_and_kill(&[]);
    disturbed.assert_status(0);
    let exited = &disturbed.named("worker_exited")[0];
    assert_eq!((&exited["worker"], &exited["pid"]), (&json!(1), &json!(victim)));
    assert_eq!((&exited["status"], &exited["action"]), (&json!("killed by SIGKILL (9)"), &json!("restart")));
    let started = &disturbed.named("worker_started")[0];
    assert_eq!(started["worker"], 1);
    assert_ne!(started["pid"], victim);
    assert_eq!(disturbed.named("end")[0], json!({ "event": "end", "epochs": 1, "restarts": 1, "errors": 0 }));

    let undisturbed =
        run(&["run", PHOTOS, "--json", "--samples", "60", "--batch-size", "4", "--size", "32", "--digest"]);
    let digest = |finished: &Finished| finished.named("epoch")[0]["content_digest"].clone();
    assert_eq!(digest(&disturbed), digest(&undisturbed));
}

#[test]
fn a_dead_worker_that_is_not_replaced_is_reported() {
    for options in [["--on-worker-death", "fail"], ["--max-worker-deaths", "0"]] {
        let (finished, victim) = run_and_kill(&options);
        finished.assert_status(1);
        let exited = &finished.named("worker_exited")[0];
        assert_eq!((&exited["worker"], &exited["pid"]), (&json!(1), &json!(victim)));
        assert_eq!((&exited["status"], &exited["action"]), (&json!("killed by SIGKILL (9)"), &json!("fail")));
        assert_eq!(finished.named("error")[0]["kind"], "WorkerExited");
        let end = json!({ "event": "end", "epochs": 0, "restarts": 0, "errors": 1 });
        assert_eq!(finished.named("end")[0], end);
    }
}

#[test]
fn a_timeout_is_reported_and_the_run_goes_on() {
    let finished = run(&[
        "run",
        PHOTOS,
        "--json",
        "--num-workers",
        "1",
        "--timeout",
        "0.05",
        "--samples",
        "100",
        "--batch-size",
        "50",
    ]);
    finished.assert_status(0);
    let errors = finished.named("error");
    assert!(!errors.is_empty());
    for error in errors {
        assert_eq!((&error["kind"], &error["worker"]), (&json!("TimedOut"), &json!(0)));
    }
    let epoch = &finished.named("epoch")[0];
    assert_eq!((&epoch["batches"], &epoch["samples"]), (&json!(2), &json!(100)));
    let end = json!({ "event": "end", "epochs": 1, "restarts": 0, "errors": 0 });
    assert_eq!(finished.named("end")[0], end);
}

#[test]
fn a_closed_standard_output_ends_the_run_without_an_error() {
    let mut running = Running::start(command(&[
        "run",
        PHOTOS,
        "--json",
        "--batches",
        "--num-workers",
        "2",
        "--samples",
        "100000",
        "--size",
        "16",
    ]));
    let pids = worker_pids(&running.next_event());
    running.close_stdout();
    let finished = running.finish();
    assert_eq!(finished.assert_status(0).stderr, "");
    assert_gone(&pids);
}
