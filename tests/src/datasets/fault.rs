//! The ways in which a sample can fail.

use std::{
    hint::black_box,
    os::unix::process::CommandExt,
    process::{self, Command},
    thread,
    time::Duration,
};

use anyhow::Context;
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigEvent, SigSet, SigevNotify, Signal, kill, raise},
        time::TimeSpec,
        timer::{Expiration, Timer, TimerSetTimeFlags},
    },
    time::ClockId,
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// How a sample fails.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Fault {
    /// An error with a cause.
    Error,
    /// A panic.
    Panic,
    /// A sample of another shape.
    Ragged,
    /// The process aborts.
    Abort,
    /// The process exits with this code.
    Exit(i32),
    /// The process sends SIGKILL to itself.
    Kill,
    /// The thread sends this signal to itself, which ends the process.
    Signal(i32),
    /// The thread sends this signal to its process, which ends.
    SignalToProcess(i32),
    /// The stack overflows.
    StackOverflow,
    /// A destructor panics while a panic unwinds.
    PanicTwice,
    /// An `extern "C"` function panics.
    PanicInC,
    /// The process closes descriptors 3 to 255, some of which are the loader's.
    CloseDescriptors,
    /// The process uses 1 GiB of memory.
    UseMemory,
    /// The process limits its address space, and an allocation fails.
    FailToAllocate,
    /// Loading never ends.
    Hang,
    /// Loading never ends, and every signal is blocked.
    HangHard,
    /// The process stops (SIGSTOP).
    Stop,
    /// A timer of the process ends it by SIGALRM.
    ReachTimer,
    /// The process reaches its limit of CPU time, and the kernel ends it by SIGXCPU.
    ReachCpuLimit,
    /// The process executes another program, which never ends.
    Execute,
    /// The process prints lines to standard error and never ends.
    PrintForever,
}

impl Fault {
    /// Makes it happen to sample `index`.
    ///
    /// # Errors
    /// Returns an error with a cause for `Error`.
    ///
    /// # Panics
    /// Panics for `Panic`.
    pub fn happen(self, index: usize) -> anyhow::Result<()> {
        match self {
            Self::Ragged => {}
            Self::Error => bail_with_cause(index)?,
            Self::Panic => panic!("sample {index} panics"),
            Self::Abort => process::abort(),
            Self::Exit(code) => process::exit(code),
            Self::Kill => drop(raise(Signal::SIGKILL)),
            // Rust's handler ignores the first SIGSEGV.
            Self::Signal(signal) => (0..2).for_each(|_| _ = raise(Signal::try_from(signal).unwrap())),
            Self::SignalToProcess(signal) => {
                kill(Pid::this(), Signal::try_from(signal)?)?;
                // Another thread may receive it, and later.
                thread::sleep(Duration::MAX);
            }
            Self::StackOverflow => drop(black_box(overflow(0))),
            Self::PanicTwice => {
                let _second = PanicsWhenDropped;
                panic!("the first panic");
            }
            Self::PanicInC => panic_in_c(),
            Self::CloseDescriptors => (3..256).for_each(|number: i32| _ = nix::unistd::close(number)),
            Self::UseMemory => drop(black_box(vec![1u8; 1 << 30])),
            Self::FailToAllocate => {
                setrlimit(Resource::RLIMIT_AS, 1 << 28, 1 << 28)?;
                drop(black_box(vec![1u8; 1 << 30]));
            }
            Self::Hang => loop {
                thread::sleep(Duration::from_secs(1));
            },
            Self::HangHard => {
                SigSet::all().thread_block()?;
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            }
            Self::Stop => drop(raise(Signal::SIGSTOP)),
            Self::ReachTimer => {
                let signal = SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 };
                let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(signal))?;
                timer.set(
                    Expiration::OneShot(TimeSpec::from(Duration::from_millis(1))),
                    TimerSetTimeFlags::empty(),
                )?;
                thread::sleep(Duration::MAX);
            }
            Self::ReachCpuLimit => {
                // 1 s is the lowest limit.
                let (_, maximum) = getrlimit(Resource::RLIMIT_CPU)?;
                setrlimit(Resource::RLIMIT_CPU, 1, maximum)?;
                (0..u64::MAX).for_each(|number| _ = black_box(number));
            }
            Self::Execute => Err(Command::new("sleep").arg("1000").exec())?,
            Self::PrintForever => loop {
                eprintln!("{}", "on and on ".repeat(20));
            },
        }
        Ok(())
    }
}

/// Returns an error with a cause.
pub(super) fn bail_with_cause(index: usize) -> anyhow::Result<()> {
    Err(anyhow::anyhow!("the disk is on fire")).with_context(|| format!("reading record {index}"))
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the panic in a destructor");
    }
}

extern "C" fn panic_in_c() {
    panic!("the panic in a C function");
}

#[expect(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let space = black_box([depth; 64]);
    overflow(depth + 1) + space[0]
}
