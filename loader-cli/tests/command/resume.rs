//! Runs that are cut in parts: stopped and resumed, or split over ranks.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Finished, PHOTOS, Running, assert_gone, command, copy_of_photos, run, worker_pids};

/// Options of each run: 40 batches, of which the order and the content depend on the seed.
const DRAWN: [&str; 10] =
    ["--samples", "80", "--batch-size", "2", "--seed", "7", "--size", "16", "--json", "--digest"];

fn drawn(options: &[&str]) -> Vec<String> {
    [&["run", PHOTOS], &DRAWN[..], options].concat().into_iter().map(str::to_owned).collect()
}

#[track_caller]
fn finish(options: &[&str], status: i32) -> Finished {
    let arguments = drawn(options);
    let finished = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    finished.assert_status(status);
    finished
}

fn sample_digests(finished: &Finished) -> Vec<Value> {
    let epochs = finished.named("epoch");
    epochs.iter().map(|epoch| json!([epoch["sample_digest"], epoch["digest_samples"]])).collect()
}

fn state(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_run_that_was_stopped_three_times_has_the_digests_of_an_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.json");
    let path = file.to_str().unwrap();
    let undisturbed = sample_digests(&finish(&["--epochs", "2"], 0));
    assert_eq!((undisturbed.len(), &undisturbed[0][1]), (2, &json!(80)));
    assert_ne!(undisturbed[0], undisturbed[1]);

    let first = drawn(&["--epochs", "2", "--num-workers", "2", "--batches", "--save-state", path]);
    let mut first = Running::start(command(&first.iter().map(String::as_str).collect::<Vec<_>>()));
    let pids = worker_pids(&first.next_event());
    assert_eq!(first.next_event()["event"], "batch");
    first.signal(Signal::SIGINT);
    let first = first.finish();
    first.assert_status(130);
    assert_gone(&pids);
    assert!(first.named("epoch").is_empty(), "the run has ended before the signal");

    let second = ["--epochs", "2", "--num-workers", "3", "--resume", path, "--save-state", path];
    let second = finish(&[&second[..], &["--stop-after", "5"]].concat(), 0);
    assert_eq!(second.named("end"), [json!({ "event": "end", "epochs": 0, "restarts": 0, "errors": 0 })]);
    // Behind the last batch of the first epoch, which the next run reports.
    let left = 40 - state(&file)["place"]["batches"]["next"].as_u64().unwrap();
    let third = ["--epochs", "2", "--resume", path, "--save-state", path, "--stop-after", &left.to_string()];
    let third = finish(&third, 0);
    assert!(third.named("epoch").is_empty(), "{}", third.stdout);
    let fourth = finish(&["--epochs", "2", "--num-workers", "1", "--resume", path, "--save-state", path], 0);
    assert_eq!(fourth.named("epoch")[0]["samples"], 0);
    assert_eq!(sample_digests(&fourth), undisturbed);

    // Nothing is left of two epochs.
    let fifth = finish(&["--epochs", "2", "--resume", path], 0);
    assert_eq!(fifth.events().len(), 1, "{}", fifth.stdout);
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["state.json"]);
}

#[test]
fn ranks_together_have_the_digest_of_one_process() {
    let share = |rank: usize, world_size: usize, batch_size: &str| {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        let shared = ["run", PHOTOS, "--size", "16", "--json", "--digest", "--shuffle", "--seed", "7"];
        let options = ["--rank", &rank, "--world-size", &world_size, "--batch-size", batch_size];
        let finished = run(&[&shared[..], &options, &["--num-workers", "2"]].concat());
        let epoch = finished.assert_status(0).named("epoch").remove(0);
        let digest = u128::from_str_radix(epoch["sample_digest"].as_str().unwrap(), 16).unwrap();
        let [samples, repeated, counted] =
            ["samples", "repeated", "digest_samples"].map(|name| epoch[name].as_u64().unwrap());
        // Of two ranks, the second loads a sample that the first has too.
        assert_eq!(repeated, u64::from((rank.as_str(), world_size.as_str()) == ("1", "2")), "{epoch}");
        assert_eq!(samples - repeated, counted, "{epoch}");
        (digest, counted)
    };
    let union = |world_size, batch_size| {
        let shares = (0..world_size).map(|rank| share(rank, world_size, batch_size));
        shares.fold((0u128, 0), |(sum, all), (digest, samples)| (sum.wrapping_add(digest), all + samples))
    };
    let whole = union(1, "4");
    assert_eq!(whole.1, 9);
    assert_eq!(union(2, "2"), whole);
    assert_eq!(union(3, "1"), whole);
}

/// Two ranks end in mid-epoch, one of them by a signal. Three ranks go on, and one process loads the rest.
#[test]
fn other_ranks_go_on_with_the_files_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    fs::create_dir(&photos).unwrap();
    for copy in 0..10 {
        for class in fs::read_dir(PHOTOS).unwrap().map(|entry| entry.unwrap()) {
            let name = format!("{}-{copy}", class.file_name().display());
            if class.path().is_dir() {
                symlink(class.path(), photos.join(name)).unwrap();
            }
        }
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let photos = path("photos");
    let common = ["run", &photos, "--size=16", "--shuffle", "--seed=7", "--json", "--digest", "--batches"];
    let start = |rank: usize, world_size: usize, options: &[&str]| {
        let (rank, world_size) = (format!("--rank={rank}"), format!("--world-size={world_size}"));
        Running::start(command(&[&common[..], &[&rank, &world_size, "--num-workers=2"], options].concat()))
    };
    let [first, second] = ["first", "second"].map(|name| path(&format!("{name}-{{rank}}.json")));
    let files =
        |name: &str, ranks: usize| (0..ranks).map(|rank| path(&format!("{name}-{rank}.json"))).collect();

    let stopped = start(1, 2, &["--batch-size=4", "--stop-after=7", "--save-state", &first]);
    stopped.finish().assert_status(0);
    let mut killed = start(0, 2, &["--batch-size=4", "--save-state", &first]);
    while killed.next_event()["event"] != "batch" {}
    killed.signal(Signal::SIGTERM);
    let killed = killed.finish();
    killed.assert_status(143);
    assert!(killed.named("epoch").is_empty(), "the run has ended before the signal");

    let of_two: Vec<String> = files("first", 2);
    let resume: Vec<&str> = ["--resume"].into_iter().chain(of_two.iter().map(String::as_str)).collect();
    for rank in 0..3 {
        let options = [&["--batch-size=3", "--stop-after=2", "--save-state", &second], &resume[..]].concat();
        start(rank, 3, &options).finish().assert_status(0);
    }
    let of_three: Vec<String> = files("second", 3);
    let resume: Vec<&str> = ["--resume"].into_iter().chain(of_three.iter().map(String::as_str)).collect();
    let rest = run(&[&common[..], &["--batch-size=5"], &resume].concat());
    let undisturbed = run(&[&common[..], &["--num-workers=1"]].concat());
    assert_eq!(sample_digests(&rest), sample_digests(&undisturbed));
    assert_eq!(sample_digests(&rest)[0][1], 90);
    let batches = rest.assert_status(0).named("batch");
    let samples: usize = batches.iter().map(|batch| batch["indices"].as_array().unwrap().len()).sum();
    assert!(samples < 90 - 28 - 3 * 6, "{samples} samples were left");

    // With one rank's file missing, and with the file of one rank alone.
    let refused = |files: &[&String], kind: &str, expected: &str| {
        let files: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        let refused = run(&[&common[..], &["--resume"], &files].concat());
        let event = refused.assert_status(2).events().remove(0);
        let message = event["message"].as_str().unwrap();
        assert!(event["kind"] == kind && message.contains(expected), "{event}");
    };
    refused(&[&of_three[0], &of_three[2]], "StatesNotMerged", "the state of rank 1 of 3 is missing");
    refused(&[&of_three[0]], "StateMismatch", "its world_size is 3, the loader's is 1");
    refused(
        &[&of_three[0]],
        "StateMismatch",
        "`--resume` merges the states if it has the files of all ranks",
    );
}

/// A rank that ends early must not replace a file that a later one reads.
#[test]
fn a_state_that_other_ranks_read_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let common = ["run", PHOTOS, "--size=16", "--json", "--stop-after=1"];
    let [all, zero, one, single] = ["state-{rank}", "state-0", "state-1", "single"].map(path);
    for rank in ["0", "1"] {
        let share = ["--rank", rank, "--world-size=2", "--save-state", &all];
        run(&[&common[..], &share].concat()).assert_status(0);
    }
    run(&[&common[..], &["--save-state", &single]].concat()).assert_status(0);
    let same = path("./state-{rank}");
    let both = &["--resume", &zero, &one][..];
    let of_single = &["--resume", &single][..];
    for (resume, save, world_size, replaced) in [
        (both, &all, "3", Some(&zero)),
        (both, &same, "2", Some(&zero)),
        (both, &one, "1", Some(&one)),
        (of_single, &single, "2", Some(&single)),
        (of_single, &path("third-{rank}"), "2", None),
        (of_single, &single, "1", None),
        (both, &path("next-{rank}"), "2", None),
    ] {
        let before = [&zero, &one].map(|path| state(Path::new(path)));
        let rank = ["--rank=0", "--world-size", world_size, "--save-state", save];
        let rank = if world_size == "1" { &rank[3..] } else { &rank };
        let finished = run(&[&common[..], resume, rank].concat());
        let Some(replaced) = replaced else {
            finished.assert_status(0);
            continue;
        };
        let events = finished.assert_status(2).events();
        assert_eq!((events.len(), &events[0]["kind"]), (1, &json!("InvalidArguments")), "{events:?}");
        let message = events[0]["message"].as_str().unwrap();
        let expected =
            format!("--save-state {save} would replace {replaced}, which --resume gives to all ranks");
        assert!(message.starts_with(&expected), "{message}");
        assert_eq!([&zero, &one].map(|path| state(Path::new(path))), before);
    }
}

#[test]
fn ranks_do_not_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--save-state", "--report"] {
        let file = folder.path().join("one").to_str().unwrap().to_owned();
        let share = ["run", PHOTOS, "--json", "--rank=0", "--world-size=2", option, &file];
        let events = run(&share).assert_status(2).events();
        let message = events[0]["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("{option} {file}: each rank needs a file of its own;")),
            "{message}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_signal_in_a_long_batch_saves_the_state_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let signals = [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
        (Signal::SIGUSR1, 138),
        (Signal::SIGUSR2, 140),
        (Signal::SIGXCPU, 152),
    ];
    for (signal, status) in signals {
        if is_ignored(signal) {
            println!(
                "SKIPPED: {signal} at a run with --save-state: this process ignores it, and so does the command"
            );
            continue;
        }
        let many =
            ["--samples", "100000", "--batch-size", "100000", "--size", "16", "--pixels", "u8", "--json"];
        let saved = ["--save-state", path.to_str().unwrap(), "--num-workers", "1"];
        let mut running = Running::start(command(&[&["run", PHOTOS], &many[..], &saved].concat()));
        running.next_event();
        running.signal(signal);
        running.finish().assert_status(status);
        assert_eq!((&state(&path)["epoch"], &state(&path)["place"]), (&json!(0), &json!("start")));
        fs::remove_file(&path).unwrap();
    }
}

/// True if this process ignores the signal, as SIGHUP under `nohup`.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() >> (signal as i32 - 1) & 1 == 1
}

#[test]
fn under_nohup_a_closed_terminal_does_not_end_the_run() {
    let photos = ["run", PHOTOS, "--samples", "100000", "--batch-size", "4", "--size", "16", "--json"];
    let loader = command(&[&photos[..], &["--num-workers", "1", "--batches"]].concat());
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(loader.get_program()).args(loader.get_args());
    nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(nohup);
    running.next_event();
    running.signal(Signal::SIGHUP);
    // A signal that ends the command does so within two seconds.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(running.next_event()["event"], "batch");
    running.signal(Signal::SIGTERM);
    running.finish().assert_status(143);
}

#[test]
fn a_file_that_is_no_state_of_this_run_is_refused() {
    let (folder, photos) = copy_of_photos();
    let file = folder.path().join("state.json");
    let path = file.to_str().unwrap();
    finish(&["--stop-after", "1", "--save-state", path], 0);
    let good = state(&file);

    let refused = |options: &[&str], status, kind: &str, expected: &str| {
        let events = finish(options, status).events();
        assert_eq!((events.len(), &events[0]["kind"]), (1, &json!(kind)), "{events:?}");
        let message = events[0]["message"].as_str().unwrap();
        assert!(message.contains(expected) && message.contains(path), "{message}");
    };
    let order = "its order is native, the loader's is torch";
    refused(&["--resume", path, "--order", "torch"], 2, "StateMismatch", order);
    let larger = run(&["run", photos.to_str().unwrap(), "--save-state", "/nowhere/state.json", "--json"]);
    assert_eq!(larger.assert_status(1).events()[0]["kind"], "OutputFailed");
    fs::rename(photos.join("animal/chelsea.jpg"), photos.join("animal/cat.jpg")).unwrap();
    let renamed = [&["run", photos.to_str().unwrap()], &DRAWN[..], &["--resume", path]].concat();
    let renamed = run(&renamed).assert_status(2).events();
    let message = renamed[0]["message"].as_str().unwrap();
    assert!(message.contains("cannot be resumed") && message.contains("its dataset is"), "{message}");

    let mut other = good;
    other["version"] = json!(2);
    fs::write(&file, other.to_string()).unwrap();
    refused(&["--resume", path], 2, "StateVersion", "this state is of version 2");
    fs::write(&file, "{}").unwrap();
    refused(&["--resume", path], 2, "StateNotRead", "is not the state of a run: missing field");
    fs::remove_file(&file).unwrap();
    refused(&["--resume", path], 2, "StateNotRead", "cannot be read: No such file");
    symlink("/dev/zero", &file).unwrap();
    let too_large = "cannot be read: it has more than 268435456 bytes";
    refused(&["--resume", path], 2, "StateNotRead", too_large);
}
