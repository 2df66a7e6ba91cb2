//! Datasets that do to their process what they like: the epoch is right all the same.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, Once, atomic::AtomicBool},
    thread,
    time::Duration,
};

use anyhow::ensure;
use loader_core::prelude::*;
use loader_tests::{
    alone::{alone, descendants},
    datasets::{Noise, NoiseSample},
    digest, processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::{SigSet, Signal, raise};
use serde::{Deserialize, Serialize};

/// What happens with every sample.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Habit {
    /// Nothing.
    None,
    /// 20 kB of standard output and as much of standard error, partly without line ends.
    Prints,
    /// Reads standard input to its end, which is at its beginning.
    ReadsInput,
    /// Runs a program and waits for it.
    RunsPrograms,
    /// Starts a program that lives on, with this process's standard output.
    LeavesPrograms,
    /// Feeds a program that reads nothing.
    WritesToClosedPipes,
    /// Blocks every signal, for good.
    BlocksSignals,
    /// Goes to another folder.
    ChangesFolder,
    /// Starts a thread that never ends, and one that panics.
    StartsThreads,
    /// Closes standard input, output and error.
    ClosesStandardStreams,
    /// Leaves its session and process group.
    LeavesSession,
    /// Has handlers of its own for what asks a process to end.
    HandlesSignals,
    /// Interrupts itself.
    RaisesInterrupts,
    /// Runs a program that it starts by `fork` and `exec`, since there is something to do in between.
    RunsProgramsByFork,
}

impl Habit {
    fn indulge(self, index: usize) -> anyhow::Result<()> {
        match self {
            Self::None => {}
            Self::Prints => {
                let line = format!("sample {index} ").repeat(100);
                for _ in 0..20 {
                    println!("{line}");
                    eprint!("{line}");
                }
            }
            Self::ReadsInput => {
                let mut text = Vec::new();
                ensure!(std::io::stdin().read_to_end(&mut text)? == 0, "standard input has {text:?}");
            }
            Self::RunsPrograms => {
                let output = Command::new("sh").args(["-c", "echo $0; exit 3", "x"]).output()?;
                ensure!(output.status.code() == Some(3) && output.stdout == b"x\n", "{output:?}");
            }
            Self::LeavesPrograms if index.is_multiple_of(10) => {
                drop(Command::new("sleep").arg("30").spawn()?)
            }
            Self::LeavesPrograms => {}
            Self::WritesToClosedPipes => {
                let mut program = Command::new("true").stdin(Stdio::piped()).spawn()?;
                let mut input = program.stdin.take().expect("it is a pipe");
                program.wait()?;
                let written = input.write(b"for nobody");
                ensure!(written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe));
            }
            Self::BlocksSignals => SigSet::all().thread_set_mask()?,
            Self::ChangesFolder => std::env::set_current_dir(["/", "/proc", "/tmp"][index % 3])?,
            Self::StartsThreads => {
                thread::spawn(|| thread::sleep(Duration::from_secs(1000)));
                let panicking = thread::spawn(|| panic!("only this thread"));
                ensure!(panicking.join().is_err());
            }
            Self::ClosesStandardStreams => {
                // Once: afterwards the numbers may be those of other files.
                static CLOSED: Once = Once::new();
                CLOSED.call_once(|| {
                    (0..3).for_each(|number: i32| nix::unistd::close(number).expect("it was open"))
                });
                println!("to nowhere");
                eprintln!("to nowhere");
            }
            // Fails from the second sample on.
            Self::LeavesSession => drop(nix::unistd::setsid()),
            Self::HandlesSignals => {
                for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
                    signal_hook::flag::register(signal as i32, Arc::<AtomicBool>::default())?;
                }
            }
            Self::RaisesInterrupts => raise(Signal::SIGINT)?,
            Self::RunsProgramsByFork => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $0; exit 3", "x"]);
                // SAFETY: it calls nothing but `setsid`, which may be called there.
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

/// [`Noise`] with a habit.
#[derive(Debug, Serialize, Deserialize)]
struct Odd {
    count: usize,
    habit: Habit,
}

impl Dataset for Odd {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        self.habit.indulge(index)?;
        Noise { count: self.count }.get(index, cx)
    }
}

/// The epoch must be that of a dataset without habits, also when the same workers load it again; leaving it early must be quick.
fn assert_right(habit: Habit) {
    let before = Before::take();
    let builder = || DataLoader::builder(Odd { count: 60, habit }).batch_size(4).shuffle(true).num_workers(2);
    let plain = DataLoader::builder(Noise { count: 60 }).batch_size(4).shuffle(true).build().unwrap();
    let loader = builder().persistent_workers(true).build().unwrap();
    for epoch in 0..2 {
        let expected = digest(plain.epoch(epoch).unwrap()).unwrap();
        assert_eq!(digest(loader.epoch(epoch).unwrap()).unwrap(), expected, "{habit:?}, epoch {epoch}");
    }
    let ((), took) = timed(|| drop(loader));
    assert_soon(took);
    let mut batches = builder().build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    let ((), took) = timed(|| drop(batches));
    println!("left early in {took:?}");
    assert_soon(took);
    before.assert_nothing_left();
}

#[test]
fn prints_a_lot() {
    alone(|| assert_right(Habit::Prints));
}

#[test]
fn reads_standard_input() {
    alone(|| assert_right(Habit::ReadsInput));
}

// PyTorch: U34
#[test]
fn runs_programs() {
    alone(|| assert_right(Habit::RunsPrograms));
}

#[test]
fn runs_programs_by_fork() {
    alone(|| assert_right(Habit::RunsProgramsByFork));
}

// PyTorch: U34
#[test]
fn leaves_programs_behind_that_hold_its_output() {
    alone(|| {
        assert_right(Habit::LeavesPrograms);
        // The loader leaves the dataset's programs alone. Two epochs of samples 0, 10, ... 50 were loaded, and the first batch of a third.
        let left = descendants();
        assert!(left.len() >= 12, "{left:?}");
        assert!(left.iter().all(|&pid| processes::command_line(pid) == "sleep 30 "), "{left:?}");
        left.iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
    });
}

#[test]
fn writes_to_pipes_that_nobody_reads() {
    alone(|| assert_right(Habit::WritesToClosedPipes));
}

#[test]
fn blocks_every_signal() {
    alone(|| assert_right(Habit::BlocksSignals));
}

#[test]
fn changes_the_folder() {
    alone(|| assert_right(Habit::ChangesFolder));
}

#[test]
fn starts_threads() {
    alone(|| assert_right(Habit::StartsThreads));
}

#[test]
fn closes_the_standard_streams() {
    alone(|| assert_right(Habit::ClosesStandardStreams));
}

#[test]
fn leaves_the_session() {
    alone(|| assert_right(Habit::LeavesSession));
}

#[test]
fn handles_signals_itself() {
    alone(|| assert_right(Habit::HandlesSignals));
}

#[test]
fn interrupts_itself() {
    alone(|| assert_right(Habit::RaisesInterrupts));
}

#[test]
fn does_nothing() {
    alone(|| assert_right(Habit::None));
}
