//! SIGINT (Ctrl-C) and SIGTERM end the command between two batches, or after [`GRACE`]. A second signal ends
//! it at once. Either way, the state of the run is written first if the user asked for it.

use std::{
    io::{self, Write},
    process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    state_file,
    stop::{Ending, Stop},
};

/// Maximum time that the current batch may still take after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// Number of the signal that has arrived, or 0.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// What is printed if a signal ends the process before the command has printed it.
static LAST_OUTPUT: Mutex<String> = Mutex::new(String::new());

/// Tells whether a signal has arrived. Exists only after [`Interrupt::watch`] has succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Handles SIGINT and SIGTERM on a thread of its own, as long as the process lives.
    pub(crate) fn watch() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            let mut arriving = signals.forever();
            if let Some(signal) = arriving.next() {
                // Relaxed: no other memory is published with the number.
                ARRIVED.store(signal, Ordering::Relaxed);
                thread::spawn(move || {
                    thread::sleep(GRACE);
                    end(signal);
                });
            }
            if let Some(signal) = arriving.next() {
                end(signal);
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
            signal => Err(Stop::Interrupted(ending(signal))),
        }
    }
}

fn last_output() -> MutexGuard<'static, String> {
    LAST_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ending(signal: i32) -> Ending {
    if signal == SIGTERM { Ending::Terminate } else { Ending::Interrupt }
}

/// Ends this process at once. The workers then end too: their watchdogs notice that this process is gone.
fn end(signal: i32) {
    if let Err(stop) = state_file::save()
        && let Some((_, message)) = stop.message()
    {
        // There may be no reader of standard error any more.
        drop(writeln!(io::stderr(), "loader: {message}"));
    }
    // There may be no reader of standard output either.
    drop(io::stdout().write_all(last_output().as_bytes()));
    process::exit(ending(signal).status().into());
}
