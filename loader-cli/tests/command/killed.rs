//! `loader run` while a worker is killed every second: the digests equal those of an undisturbed run.

use std::{
    fs,
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::support::{Finished, PHOTOS, command, pid};

/// Time after which a run is killed and the test fails; far more than a run takes.
const MAX_TIME: Duration = Duration::from_secs(600);

/// Runs two epochs of `samples` photographs with two workers. If `killing` is set, kills one of the workers
/// every second. Returns the output of the command and the number of kills.
fn run_two_epochs(samples: usize, killing: bool) -> (Finished, usize) {
    let folder = tempfile::tempdir().unwrap();
    // Uses the smallest photographs, because a batch must take far less than a second, even in a debug build.
    let photos = folder.path().join("photos/small");
    fs::create_dir_all(&photos).unwrap();
    for photo in ["animal/chelsea.jpg", "texture/brick.jpg"] {
        let source = Path::new(PHOTOS).join(photo);
        fs::copy(&source, photos.join(source.file_name().unwrap())).unwrap();
    }
    let (photos, samples) = (photos.parent().unwrap().to_str().unwrap(), samples.to_string());
    let options = ["--samples", &samples, "--size", "32", "--batch-size", "2", "--num-workers", "2"];
    let shown = ["--epochs", "2", "--seed", "7", "--digest", "--json"];
    let mut command = command(&[&["run", photos], &options[..], &shown].concat());
    // Uses files, because a pipe that is read only at the end would block a command with many warnings.
    let open = |name| fs::File::create(folder.path().join(name)).unwrap();
    command.stdout(open("stdout")).stderr(open("stderr"));
    let mut child = command.spawn().unwrap();
    let (started, mut kills) = (Instant::now(), 0);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > MAX_TIME {
            child.kill().unwrap();
            panic!("the command did not end within {MAX_TIME:?}");
        }
        if killing && started.elapsed() >= Duration::from_secs(kills + 1) {
            kills += u64::from(kill_a_worker(&child, kills as usize));
        }
        thread::sleep(Duration::from_millis(10));
    };
    let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
    (Finished { status: status.code(), stdout: read("stdout"), stderr: read("stderr") }, kills as usize)
}

/// Kills worker number `turn` modulo the number of workers. Returns false if the command has no worker.
fn kill_a_worker(command: &Child, turn: usize) -> bool {
    let workers = workers(command.id());
    let victim = workers.get(turn % workers.len().max(1));
    victim.is_some_and(|&worker| kill(pid(worker), Signal::SIGKILL).is_ok())
}

/// Returns the running processes whose parent is the command.
fn workers(command: u32) -> Vec<u32> {
    let is_worker = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The name in parentheses may contain anything; state and parent come after it.
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let mut fields = rest.split(' ');
        fields.next().is_some_and(|state| state != "Z") && fields.next() == Some(&command.to_string())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_worker).collect()
}

fn digests(finished: &Finished) -> Vec<Value> {
    let epochs = finished.named("epoch");
    epochs
        .iter()
        .map(|epoch| json!([epoch["sample_digest"], epoch["order_digest"], epoch["content_digest"]]))
        .collect()
}

/// Runs two epochs that together take at least `min_seconds`, with and without a kill every second. Compares
/// the digests.
fn assert_same_when_killed_every_second(min_seconds: f64) {
    let mut samples = 200;
    let undisturbed = loop {
        let (finished, _) = run_two_epochs(samples, false);
        finished.assert_status(0);
        let seconds: f64 =
            finished.named("epoch").iter().map(|epoch| epoch["seconds"].as_f64().unwrap()).sum();
        if seconds >= min_seconds {
            break finished;
        }
        samples = (samples as f64 * (1.2 * min_seconds / seconds).max(1.5)).ceil() as usize;
    };
    let (finished, kills) = run_two_epochs(samples, true);
    finished.assert_status(0);
    println!("kills: {kills} workers killed, two epochs of {samples} photographs");
    // The first kill comes after a second, and this run may be shorter than the undisturbed one.
    assert!(kills as f64 >= min_seconds / 2.0 - 1.0, "only {kills} kills");
    assert_eq!(digests(&finished), digests(&undisturbed));
    assert_eq!(finished.named("end")[0]["errors"], 0);
}

#[test]
fn killed_every_second() {
    assert_same_when_killed_every_second(3.5);
}

/// Lasts `KILLS_SECONDS`, or a minute by default.
#[test]
#[ignore = "takes some minutes"]
fn killed_every_second_for_as_long_as_asked() {
    let seconds = std::env::var("KILLS_SECONDS").map_or(60.0, |seconds| seconds.parse().unwrap());
    assert_same_when_killed_every_second(seconds);
}
