//! SIGINT (Ctrl-C) and the signals of a closed terminal and of launchers end the command between two batches, or
//! after [`GRACE`]. A second signal ends it at once. Either way, the state of the run and its page are written first
//! if the user asked for them.

use std::{
    fs,
    io::{self, Write},
    process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU},
    iterator::Signals,
};

use crate::{
    page,
    progress::Screen,
    state_file,
    stop::{Ending, Stop},
};

/// Maximum time that the current batch may still take after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// Maximum time for removing the bar.
const CLEAR_DEADLINE: Duration = Duration::from_millis(200);

/// Signals that stay ignored if they were ignored when the command started, as SIGHUP is under `nohup`.
const IGNORABLE: [i32; 4] = [SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU];

/// Number of the signal that has arrived, or 0.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// What is printed if a signal ends the process before the command has printed it.
static LAST_OUTPUT: Mutex<String> = Mutex::new(String::new());

/// Tells whether a signal has arrived. Exists only after [`Interrupt::watch`] has succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Handles the signals on a thread of its own, as long as the process lives.
    pub(crate) fn watch(screen: Screen) -> io::Result<Self> {
        let ignored = ignored();
        let ignorable = IGNORABLE.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(ignorable))?;
        thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            let mut arriving = signals.forever();
            if let Some(signal) = arriving.next() {
                // Relaxed: no other memory is published with the number.
                ARRIVED.store(signal, Ordering::Relaxed);
                let screen = screen.clone();
                thread::spawn(move || {
                    thread::sleep(GRACE);
                    end(signal, screen);
                });
            }
            if let Some(signal) = arriving.next() {
                end(signal, screen);
            }
        })?;
        Ok(Self(()))
    }

    /// Sets what is printed on standard output if a signal ends the process in the middle of a batch.
    pub(crate) fn set_last_output(self, text: String) {
        *last_output() = text;
    }

    /// Notes that the command prints the last output itself.
    pub(crate) fn take_last_output(self) {
        last_output().clear();
    }

    /// Fails with [`Stop::Interrupted`] if a signal has arrived.
    pub(crate) fn check(self) -> Result<(), Stop> {
        match ARRIVED.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stop::Interrupted(Ending(signal))),
        }
    }
}

fn last_output() -> MutexGuard<'static, String> {
    LAST_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signals that this process ignores: bit *n* - 1 is signal *n*. None, if the kernel does not tell.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Ends this process at once. The workers then end too: their watchdogs notice that this process is gone.
fn end(signal: i32, screen: Screen) {
    // The run may be blocked while it holds the bar, so another thread removes the bar, and this one does not
    // wait for long.
    let (done, removed) = mpsc::channel();
    thread::spawn(move || {
        screen.clear();
        done.send(()).ok();
    });
    removed.recv_timeout(CLEAR_DEADLINE).ok();
    for saved in [state_file::save(), page::save("A signal ended the run during a batch.")] {
        if let Err(stop) = saved
            && let Some((_, message)) = stop.message()
        {
            // There may be no reader of standard error any more.
            drop(writeln!(io::stderr(), "loader: {message}"));
        }
    }
    // There may be no reader of standard output either.
    drop(io::stdout().write_all(last_output().as_bytes()));
    process::exit(Ending(signal).status().into());
}
