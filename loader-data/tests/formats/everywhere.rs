//! Checks that hold for every dataset: the output does not depend on the workers, on their deaths, or on a
//! resume.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    process,
    sync::mpsc,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use loader_core::{BatchDigest, DataLoader, Iter, collate::Batch};
use loader_data::{DataError, DataProblem};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};

/// Checks that the loader that `build` makes gives the same epochs with 0, 1 and 3 workers, with workers that
/// are killed, and when it is resumed in the middle of an epoch with another number of workers. Returns the
/// batches of epoch 0.
///
/// `build` gets the number of workers. The loader of an iterable dataset must have a fixed number of shards.
///
/// # Panics
/// Panics if one of them differs or a batch fails.
pub(crate) fn same_everywhere<B: Batch>(build: impl Fn(usize) -> DataLoader<B>) -> Vec<B> {
    let watched = watched();
    let epoch =
        |workers: usize, epoch: u64| rest(&mut build(workers).epoch(epoch).unwrap(), &mut BatchDigest::new());
    let expected = [0, 1].map(|number| epoch(0, number));
    assert!(expected[0].1 >= 4, "an epoch of {} batches shows little: make it longer", expected[0].1);
    for workers in [1, 3] {
        assert_eq!([0, 1].map(|number| epoch(workers, number)), expected, "with {workers} workers");
    }
    assert_eq!(killed(&build(3)), expected[0], "with workers that are killed");
    for (before, after) in [(0, 3), (3, 1), (2, 0)] {
        assert_eq!(
            resumed(&build(before), &build(after)),
            expected[0],
            "resumed with {after} instead of {before}"
        );
    }
    let batches = build(3).epoch(0).unwrap().map(Result::unwrap).collect();
    drop(watched);
    batches
}

/// Ends the test program with an error if the result is not dropped within a minute.
pub(crate) fn watched() -> mpsc::Sender<()> {
    let (done, is_done) = mpsc::channel::<()>();
    thread::spawn(move || {
        if is_done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the check hangs");
            process::abort();
        }
    });
    done
}

/// Writes a file that looks old. Opening a file that was written just now waits for the next step of the
/// clock, which thousands of files make long.
pub(crate) fn write_old(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
}

/// Checks the errors about patterns without a regular file. `refused` opens a pattern and returns the error.
///
/// # Panics
/// Panics if an error is not the expected one.
pub(crate) fn refuses_what_is_no_file(extension: &str, refused: impl Fn(&Path) -> DataError) {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str| refused(&folder.path().join(name)).problem;
    assert!(matches!(refused(&format!("none.{extension}")), DataProblem::NotFound));
    assert!(matches!(refused(&format!("*.{extension}")), DataProblem::NotFound));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(matches!(refused("empty"), DataProblem::NoFiles { .. }));
    let pipe = format!("pipe.{extension}");
    mkfifo(&folder.path().join(&pipe), Mode::S_IRWXU).unwrap();
    assert!(matches!(refused(&pipe), DataProblem::NotAFile { found: "a named pipe" }));
}

/// Digests of order and content, and the number of batches.
type Output = ((u64, u64), usize);

fn rest<B: Batch>(batches: &mut Iter<B>, digest: &mut BatchDigest) -> Output {
    let mut count = 0;
    while let Some(batch) = batches.next() {
        let batch = batch.unwrap();
        digest.add(&batches.last_batch().expect("a batch was returned").indices, &batch);
        count += 1;
    }
    ((digest.order(), digest.content()), count)
}

/// Kills one worker before each of the first batches.
fn killed<B: Batch>(loader: &DataLoader<B>) -> Output {
    let mut digest = BatchDigest::new();
    let mut batches = loader.epoch(0).unwrap();
    for number in 0..3 {
        kill_one(&batches.worker_pids(), number);
        let batch = batches.next().unwrap().unwrap();
        digest.add(&batches.last_batch().expect("a batch was returned").indices, &batch);
    }
    let (digests, count) = rest(&mut batches, &mut digest);
    // A worker that was killed may end after the epoch.
    assert!(batches.report().restarts > 0, "no worker was replaced");
    (digests, count + 3)
}

/// Kills worker `number`, or the next one whose process still exists: in a short epoch, a worker that has no
/// more tasks ends by itself. The caller checks that a worker was replaced.
fn kill_one(pids: &[u32], number: usize) {
    for pid in pids.iter().cycle().skip(number).take(pids.len()) {
        match kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL) {
            Err(Errno::ESRCH) => {}
            result => return result.unwrap(),
        }
    }
    panic!("all workers have ended: make the epoch longer");
}

/// Leaves an epoch after two batches and continues it with another loader.
fn resumed<B: Batch>(before: &DataLoader<B>, after: &DataLoader<B>) -> Output {
    let mut digest = BatchDigest::new();
    let mut batches = before.epoch(0).unwrap();
    for _ in 0..2 {
        let batch = batches.next().unwrap().unwrap();
        digest.add(&batches.last_batch().expect("a batch was returned").indices, &batch);
    }
    let state = serde_json::to_string(&batches.state()).unwrap();
    drop(batches);
    let state = serde_json::from_str(&state).unwrap();
    let (digests, count) = rest(&mut after.resume(&state).unwrap(), &mut digest);
    (digests, count + 2)
}
