//! A process that dies at any step of the protocol: the death of a worker changes nothing, and the death of
//! main leaves no worker.

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

/// Workers end within one second of main; a busy machine gets more time.
const DEADLINE: Duration = Duration::from_secs(5);

struct Ended {
    status: ExitStatus,
    workers: Vec<u32>,
    /// Order, content, restarts, and longest wait for a batch in milliseconds; `None` if the program did not
    /// finish.
    epoch: Option<(u64, u64, u64, u64)>,
    errors: String,
    /// True if a process reached the fault point often enough.
    was_reached: bool,
}

/// Loads an epoch. `at` is a point and a count: the first process that reaches the point for the `count`th
/// time dies, or does what the variables of `fault` say.
fn run(kind: &str, workers: usize, at: Option<(Point, u64)>, fault: Option<(&str, &str)>) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "").unwrap();
    let sockets = folder.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-steps"));
    command.args([kind, &workers.to_string()]).env("TMPDIR", &sockets).env("FAULT_TOKEN", &token);
    if let Some((point, count)) = at {
        command.env("FAULT_POINT", format!("{}:{count}", point.name()));
    }
    command.envs(fault);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let workers = lines.next().map_or_else(Vec::new, |line| serde_json::from_str(&line.unwrap()).unwrap());
    let epoch = lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    processes::wait_until_gone(&workers, DEADLINE)
        .unwrap_or_else(|left| panic!("workers {left:?} still run"));
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0, "a socket is left");
    Ended { status, workers, epoch, errors, was_reached: !token.exists() }
}

/// The guards of user code do not catch these panics.
#[test]
fn a_panic_of_the_loader_in_a_worker_reaches_standard_error_and_main() {
    let _watchdog = Watchdog::start();
    let (order, content, ..) = run("small", 2, None, None).epoch.unwrap();
    for point in [Point::WorkerReceive, Point::WorkerSend] {
        let ended = run("small", 2, Some((point, 2)), Some(("FAULT_PANIC", "")));
        let Ended { status, epoch, errors, was_reached, .. } = ended;
        assert!(was_reached && status.success(), "{errors}");
        let (same_order, same_content, restarts, _) = epoch.unwrap();
        assert_eq!((same_order, same_content, restarts), (order, content, 1), "{errors}");
        let message = format!(": the fault point {} is reached", point.name());
        let lines = |begin: &str| {
            let is_it = |line: &&str| line.starts_with(begin) && line.contains(&message);
            errors.lines().filter(is_it).count()
        };
        assert_eq!(lines("[worker "), 1, "the worker prints it: {errors}");
        assert_eq!(lines("loader: warning: worker "), 1, "main knows it: {errors}");
        assert!(errors.contains("fault.rs:"), "{errors}");
    }
}

// PyTorch: N02
#[test]
fn the_death_of_a_worker_at_any_step_changes_nothing() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        let (order, content, ..) = run(kind, 2, None, None).epoch.unwrap();
        for point in Point::OF_WORKER {
            for count in [1, 2, 6] {
                let Ended { status, epoch, errors, was_reached, .. } =
                    run(kind, 2, Some((point, count)), None);
                let what = format!("{kind}, {} for the {count}th time: {errors}", point.name());
                assert!(was_reached && status.success(), "{what}");
                let (same_order, same_content, restarts, _) = epoch.unwrap();
                assert_eq!((same_order, same_content, restarts), (order, content, 1), "{what}");
            }
        }
    }
}

#[test]
fn the_death_of_main_at_any_step_leaves_no_worker() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        for point in Point::OF_MAIN {
            // The first tasks are sent before the program prints the pids of its workers.
            let counts: &[u64] = match point {
                Point::MainDrop => &[1],
                Point::MainDispatch => &[6, 20],
                _ => &[1, 2, 6],
            };
            for &count in counts {
                let Ended { status, workers, epoch, was_reached, errors } =
                    run(kind, 2, Some((point, count)), None);
                let what = format!("{kind}, {} for the {count}th time: {errors}", point.name());
                assert!(was_reached && epoch.is_none(), "{what}");
                assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{what}");
                assert_eq!(workers.len(), 2, "{what}");
            }
        }
    }
}

#[test]
fn a_death_before_the_wake_up_of_main_does_not_delay_the_batch() {
    let _watchdog = Watchdog::start();
    let (order, content, ..) = run("slow", 1, None, None).epoch.unwrap();
    // If main missed the end of the worker, it would wait until it checks its workers, once a second. One of
    // three tries must be fast, because the machine may be busy.
    let waits = [2, 7, 12].map(|count| {
        let Ended { epoch, errors, was_reached, .. } = run("slow", 1, Some((Point::WorkerWake, count)), None);
        assert!(was_reached, "{errors}");
        let (same_order, same_content, restarts, longest) = epoch.unwrap();
        assert_eq!((same_order, same_content, restarts), (order, content, 1), "{errors}");
        longest
    });
    println!("longest waits: {waits:?} ms");
    assert!(waits.iter().any(|&longest| longest < 500), "{waits:?}");
}

#[test]
fn a_worker_that_gives_back_a_slot_late_is_not_killed() {
    let _watchdog = Watchdog::start();
    let (order, content, ..) = run("offered", 2, None, None).epoch.unwrap();
    // Long enough for the other worker to load the batch, and shorter than the epoch.
    let pause = 400;
    let variable = pause.to_string();
    let waits = [1, 4].map(|count| {
        let Ended { epoch, errors, was_reached, .. } =
            run("offered", 2, Some((Point::WorkerGiveBack, count)), Some(("FAULT_PAUSE", &variable)));
        assert!(was_reached, "no {count}th slot was offered: {errors}");
        let (same_order, same_content, restarts, longest) = epoch.unwrap();
        assert_eq!((same_order, same_content, restarts), (order, content, 0), "{errors}");
        longest
    });
    println!("longest waits: {waits:?} ms");
    assert!(
        waits.iter().any(|&longest| longest < pause),
        "the other worker did not load the batch: {waits:?}"
    );
}
