//! Datasets that change their process, or print, fork and run programs. The epoch must still be correct, and
//! leave nothing behind.

use std::{
    io::{Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, Stdio},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::ensure;
use loader_core::prelude::*;
use loader_ipc::process::signals_for_main;
use loader_tests::{
    alone::{alone, alone_under, descendants},
    datasets::{Noise, NoiseSample},
    digest, processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGCHLD, SIGTERM},
    low_level::raise,
};

/// What a dataset does whenever it loads a sample.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum SideEffect {
    /// Nothing.
    None,
    /// Prints 20 kB to standard output, and as much to standard error without line ends.
    Prints,
    /// Reads standard input, which must be empty.
    ReadsStandardInput,
    /// Runs a program and waits for it.
    RunsPrograms,
    /// Starts a program that outlives it and inherits its standard output.
    LeavesProgramsRunning,
    /// Writes to a program that has ended without reading.
    WritesToClosedPipes,
    /// Blocks every signal and never unblocks them.
    BlocksSignals,
    /// Changes the working directory.
    ChangesWorkingDirectory,
    /// Starts a thread that sleeps for long, and one that panics.
    StartsThreads,
    /// Closes standard input, output and error.
    ClosesStandardStreams,
    /// Leaves its session and process group.
    LeavesSession,
    /// Handles the signals that ask a process to end.
    HandlesSignals,
    /// Sends itself the signals that are meant for main, and checks that each ends a program that it starts.
    GetsSignalsForMain,
    /// Runs a program with a function between `fork` and `exec`.
    ForksAndExecs,
}

impl SideEffect {
    #[expect(clippy::too_many_lines, reason = "one arm for each side effect")]
    fn act(self, index: usize) -> anyhow::Result<()> {
        match self {
            Self::None => {}
            Self::Prints => {
                let line = format!("sample {index} ").repeat(100);
                for _ in 0..20 {
                    println!("{line}");
                    eprint!("{line}");
                }
            }
            Self::ReadsStandardInput => {
                let mut text = Vec::new();
                ensure!(std::io::stdin().read_to_end(&mut text)? == 0, "standard input has {text:?}");
            }
            Self::RunsPrograms => {
                let output = Command::new("sh").args(["-c", "echo $0; exit 3", "x"]).output()?;
                ensure!(output.status.code() == Some(3) && output.stdout == b"x\n", "{output:?}");
            }
            Self::LeavesProgramsRunning if index.is_multiple_of(10) => {
                drop(Command::new("sleep").arg("30").spawn()?)
            }
            Self::LeavesProgramsRunning => {}
            Self::WritesToClosedPipes => {
                let mut program = Command::new("true").stdin(Stdio::piped()).spawn()?;
                let mut input = program.stdin.take().expect("it is a pipe");
                program.wait()?;
                let written = input.write(b"unread");
                ensure!(written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe));
            }
            Self::BlocksSignals => SigSet::all().thread_set_mask()?,
            Self::ChangesWorkingDirectory => std::env::set_current_dir(["/", "/proc", "/tmp"][index % 3])?,
            Self::StartsThreads => {
                thread::spawn(|| thread::sleep(Duration::from_secs(1000)));
                let panicking = thread::spawn(|| panic!("only this thread"));
                ensure!(panicking.join().is_err());
            }
            Self::ClosesStandardStreams => {
                // Only once, because later files get the same numbers.
                static CLOSED: Once = Once::new();
                CLOSED.call_once(|| {
                    (0..3).for_each(|number: i32| nix::unistd::close(number).expect("it was open"))
                });
                println!("standard output is closed");
                eprintln!("standard error is closed");
            }
            // The error from the second sample on is ignored.
            Self::LeavesSession => drop(nix::unistd::setsid()),
            Self::HandlesSignals => {
                for signal in [SIGTERM, SIGCHLD].into_iter().chain(signals_for_main()) {
                    let arrived = Arc::<AtomicBool>::default();
                    signal_hook::flag::register(signal, Arc::clone(&arrived))?;
                    raise(signal)?;
                    ensure!(arrived.load(Ordering::Relaxed), "the handler of {signal} has not run");
                }
            }
            Self::GetsSignalsForMain => {
                // Only those that another process sends do nothing.
                let kill: String = signals_for_main().map(|which| format!("kill -{which} $PPID;")).collect();
                ensure!(Command::new("sh").args(["-ec", &kill]).status()?.success());
                if let Some(signal) = signals_for_main().nth(index) {
                    let kill = format!("kill -{signal} $$");
                    let ended = Command::new("sh").args(["-c", &kill]).status()?.signal();
                    ensure!(ended == Some(signal), "{signal} has not ended a program: {ended:?}");
                }
            }
            Self::ForksAndExecs => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $0; exit 3", "x"]);
                // SAFETY: between fork and exec it calls only `setsid`, which is async-signal-safe.
                #[expect(unsafe_code)]
                unsafe {
                    command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(Into::into));
                }
                let output = command.output()?;
                ensure!(output.status.code() == Some(3) && output.stdout == b"x\n", "{output:?}");
            }
        }
        Ok(())
    }
}

/// [`Noise`] with a side effect.
#[derive(Debug, Serialize, Deserialize)]
struct WithEffect {
    count: usize,
    effect: SideEffect,
}

impl Dataset for WithEffect {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        self.effect.act(index)?;
        Noise { count: self.count }.get(index, cx)
    }
}

/// Checks two epochs with the same workers against a dataset without side effects, that an epoch can be
/// abandoned at once, and that nothing is left.
fn check(effect: SideEffect) {
    let before = Before::take();
    let builder =
        || DataLoader::builder(WithEffect { count: 60, effect }).batch_size(4).shuffle(true).num_workers(2);
    let plain = DataLoader::builder(Noise { count: 60 }).batch_size(4).shuffle(true).build().unwrap();
    let loader = builder().persistent_workers(true).build().unwrap();
    for epoch in 0..2 {
        let expected = digest(plain.epoch(epoch).unwrap()).unwrap();
        assert_eq!(digest(loader.epoch(epoch).unwrap()).unwrap(), expected, "{effect:?}, epoch {epoch}");
    }
    let ((), took) = timed(|| drop(loader));
    assert_soon(took);
    let mut batches = builder().build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    let ((), took) = timed(|| drop(batches));
    assert_soon(took);
    before.assert_nothing_left();
}

#[test]
fn a_dataset_may_print_a_lot() {
    alone(|| check(SideEffect::Prints));
}

#[test]
fn a_dataset_may_read_standard_input() {
    alone(|| check(SideEffect::ReadsStandardInput));
}

// PyTorch: U34
#[test]
fn a_dataset_may_run_programs() {
    alone(|| check(SideEffect::RunsPrograms));
}

#[test]
fn a_dataset_may_fork_and_exec() {
    alone(|| check(SideEffect::ForksAndExecs));
}

// PyTorch: U34
#[test]
fn a_dataset_may_leave_programs_running_that_hold_its_output() {
    alone(|| {
        check(SideEffect::LeavesProgramsRunning);
        // The loader does not end programs of the dataset. Every tenth of 60 samples starts one, in two
        // epochs.
        let left = descendants();
        assert!(left.len() >= 12, "{left:?}");
        assert!(left.iter().all(|&pid| processes::command_line(pid) == "sleep 30 "), "{left:?}");
        left.iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
    });
}

#[test]
fn a_dataset_may_write_to_closed_pipes() {
    alone(|| check(SideEffect::WritesToClosedPipes));
}

#[test]
fn a_dataset_may_block_every_signal() {
    alone(|| check(SideEffect::BlocksSignals));
}

#[test]
fn a_dataset_may_change_the_working_directory() {
    alone(|| check(SideEffect::ChangesWorkingDirectory));
}

#[test]
fn a_dataset_may_start_threads() {
    alone(|| check(SideEffect::StartsThreads));
}

#[test]
fn a_dataset_may_close_the_standard_streams() {
    alone(|| check(SideEffect::ClosesStandardStreams));
}

#[test]
fn a_dataset_may_leave_the_session() {
    alone(|| check(SideEffect::LeavesSession));
}

#[test]
fn a_dataset_may_handle_signals() {
    alone(|| check(SideEffect::HandlesSignals));
}

#[test]
fn signals_for_main_do_not_end_a_worker() {
    // A shell starts programs in the background with SIGINT ignored, and the dataset's program would inherit that.
    alone_under(&["env", "--default-signal"], || check(SideEffect::GetsSignalsForMain));
}

#[test]
fn a_dataset_without_side_effects_leaves_nothing() {
    alone(|| check(SideEffect::None));
}
