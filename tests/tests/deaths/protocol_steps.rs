//! A process that dies at any step of the protocol: a worker's death changes nothing, and main's leaves no worker.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use loader_ipc::fault::Point;
use loader_tests::{Watchdog, processes};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;

const KINDS: [&str; 4] = ["small", "large", "stream", "snapshots"];

/// The promise is one second; a busy machine gets more before the test fails.
const DEADLINE: Duration = Duration::from_secs(5);

struct Ended {
    status: ExitStatus,
    workers: Vec<u32>,
    /// Order, content, restarts, longest wait for a batch in milliseconds; of a program that came to its end.
    epoch: Option<(u64, u64, u64, u64)>,
    errors: String,
    /// The process that was to die has.
    came_to_it: bool,
}

/// Runs an epoch, in which a process that comes to `point` for the `count`th time dies.
fn run(kind: &str, workers: usize, at: Option<(Point, u64)>) -> Ended {
    run_with(kind, workers, at, None)
}

/// As [`run`]; with a `pause` the process sleeps for that long instead of dying.
fn run_with(kind: &str, workers: usize, at: Option<(Point, u64)>, pause: Option<Duration>) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let life = folder.path().join("life");
    fs::write(&life, "").unwrap();
    let sockets = folder.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-steps"));
    command.args([kind, &workers.to_string()]).env("TMPDIR", &sockets).env("FAULT_LIFE", &life);
    if let Some((point, count)) = at {
        command.env("FAULT_POINT", format!("{}:{count}", point.name()));
    }
    if let Some(pause) = pause {
        command.env("FAULT_PAUSE", pause.as_millis().to_string());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let workers = lines.next().map_or_else(Vec::new, |line| serde_json::from_str(&line.unwrap()).unwrap());
    let epoch = lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    processes::wait_until_gone(&workers, DEADLINE).unwrap_or_else(|left| panic!("workers {left:?} are left"));
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0, "a socket is left");
    Ended { status, workers, epoch, errors, came_to_it: !life.exists() }
}

#[test]
fn a_worker_that_dies_at_any_step_changes_nothing() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        let (order, content, ..) = run(kind, 2, None).epoch.unwrap();
        for point in Point::OF_WORKER {
            for count in [1, 2, 6] {
                let Ended { status, epoch, errors, came_to_it, .. } = run(kind, 2, Some((point, count)));
                let what = format!("{kind}, {} for the {count}th time: {errors}", point.name());
                assert!(came_to_it && status.success(), "{what}");
                // The last thing that a worker does may be to say that it is ready.
                let (same_order, same_content, restarts, _) = epoch.unwrap();
                assert_eq!((same_order, same_content, restarts), (order, content, 1), "{what}");
            }
        }
    }
}

#[test]
fn main_that_dies_at_any_step_leaves_no_worker() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        for point in Point::OF_MAIN {
            // Some tasks are given before the workers' pids are said.
            let counts: &[u64] = match point {
                Point::MainDrop => &[1],
                Point::MainDispatch => &[6, 20],
                _ => &[1, 2, 6],
            };
            for &count in counts {
                let Ended { status, workers, epoch, came_to_it, errors } = run(kind, 2, Some((point, count)));
                let what = format!("{kind}, {} for the {count}th time: {errors}", point.name());
                assert!(came_to_it && epoch.is_none(), "{what}");
                assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{what}");
                assert_eq!(workers.len(), 2, "{what}");
            }
        }
    }
}

#[test]
fn a_worker_that_dies_before_it_wakes_main_costs_no_wait() {
    let _watchdog = Watchdog::start();
    let (order, content, ..) = run("slow", 1, None).epoch.unwrap();
    // Main looks at its workers once a second: without a wake-up it waits for that. A busy machine gets three tries.
    let waits = [2, 7, 12].map(|count| {
        let Ended { epoch, errors, came_to_it, .. } = run("slow", 1, Some((Point::WorkerWake, count)));
        assert!(came_to_it, "{errors}");
        let (same_order, same_content, restarts, longest) = epoch.unwrap();
        assert_eq!((same_order, same_content, restarts), (order, content, 1), "{errors}");
        longest
    });
    println!("longest waits: {waits:?} ms");
    assert!(waits.iter().any(|&longest| longest < 500), "{waits:?}");
}

#[test]
fn a_worker_that_is_late_to_give_back_a_slot_is_not_ended_for_it() {
    let _watchdog = Watchdog::start();
    let (order, content, ..) = run("offered", 2, None).epoch.unwrap();
    // Time for the other worker to load the batch, and less than the epoch takes.
    let pause = Duration::from_millis(400);
    let waits = [1, 4].map(|count| {
        let Ended { epoch, errors, came_to_it, .. } =
            run_with("offered", 2, Some((Point::WorkerGiveBack, count)), Some(pause));
        assert!(came_to_it, "no slot was offered for the {count}th time: {errors}");
        let (same_order, same_content, restarts, longest) = epoch.unwrap();
        assert_eq!((same_order, same_content, restarts), (order, content, 0), "{errors}");
        longest
    });
    println!("longest waits: {waits:?} ms");
    assert!(
        waits.iter().any(|&longest| u128::from(longest) < pause.as_millis()),
        "not loaded twice: {waits:?}"
    );
}
