//! SIGINT (Ctrl-C) and SIGTERM end the command between two batches, or after [`GRACE`]. A second signal ends
//! it at once. Either way, the state of the run and its page are written first if the user
//! asked for them.

use std::{
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
    consts::{SIGINT, SIGTERM},
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

/// Number of the signal that has arrived, or 0.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// What is printed if a signal ends the process before the command has printed it.
static LAST_OUTPUT: Mutex<String> = Mutex::new(String::new());

/// Tells whether a signal has arrived. Exists only after [`Interrupt::watch`] has succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Handles SIGINT and SIGTERM on a thread of its own, as long as the process lives.
    pub(crate) fn watch(screen: Screen) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
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
    process::exit(ending(signal).status().into());
}
