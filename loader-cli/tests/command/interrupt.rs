//! Ctrl-C (SIGINT) ends the command and its workers.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{PHOTOS, Running, assert_gone, command, worker_pids};

/// Number of samples. To load so many takes longer than a test.
const MANY: &str = "100000";

fn start(arguments: &[&str]) -> (Running, Vec<u32>) {
    let mut running =
        Running::start(command(&[&["run", PHOTOS, "--json", "--samples", MANY], arguments].concat()));
    let pids = worker_pids(&running.next_event());
    (running, pids)
}

#[track_caller]
fn assert_interrupted(running: Running, pids: &[u32], within: Duration) {
    let signalled = Instant::now();
    let finished = running.finish();
    let took = signalled.elapsed();
    finished.assert_status(130);
    assert!(finished.named("end").is_empty() && finished.named("error").is_empty(), "{}", finished.stdout);
    assert!(took < within, "it took {took:?}");
    assert_gone(pids);
}

// PyTorch: X19
#[test]
fn sigint_between_batches_ends_the_run() {
    for workers in ["0", "2"] {
        let (mut running, pids) = start(&["--num-workers", workers, "--size", "16", "--batches"]);
        running.next_event();
        running.signal(Signal::SIGINT);
        assert_interrupted(running, &pids, Duration::from_secs(20));
    }
}

#[test]
fn sigint_in_a_long_batch_ends_the_run() {
    for workers in ["0", "2"] {
        let (running, pids) =
            start(&["--num-workers", workers, "--batch-size", MANY, "--size", "16", "--pixels", "u8"]);
        running.signal(Signal::SIGINT);
        assert_interrupted(running, &pids, Duration::from_secs(20));
    }
}

#[test]
fn a_second_sigint_ends_the_run_at_once() {
    let (running, pids) =
        start(&["--num-workers", "2", "--batch-size", MANY, "--size", "16", "--pixels", "u8"]);
    running.signal(Signal::SIGINT);
    // A second signal is lost if the first one is still pending.
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::SIGINT);
    assert_interrupted(running, &pids, Duration::from_millis(1500));
}
