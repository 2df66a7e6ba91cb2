//! Ctrl-C ends the command between two batches, or after [`GRACE`]. A second Ctrl-C ends it at once.

use std::{
    io, process,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use signal_hook::{consts::SIGINT, iterator::Signals};

use crate::stop::{INTERRUPTED, Stop};

/// Maximum time that the current batch may still take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(2);

static PRESSED: AtomicBool = AtomicBool::new(false);

/// Tells whether Ctrl-C was pressed. Exists only after [`Interrupt::watch`] has succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Handles SIGINT on a thread of its own, as long as the process lives.
    pub(crate) fn watch() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT])?;
        thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            let mut pressed = signals.forever();
            if pressed.next().is_some() {
                // Relaxed: no other memory is published with the flag.
                PRESSED.store(true, Ordering::Relaxed);
                thread::spawn(|| {
                    thread::sleep(GRACE);
                    end();
                });
            }
            if pressed.next().is_some() {
                end();
            }
        })?;
        Ok(Self(()))
    }

    /// Fails with [`Stop::Interrupted`] if Ctrl-C was pressed.
    pub(crate) fn check(self) -> Result<(), Stop> {
        if PRESSED.load(Ordering::Relaxed) { Err(Stop::Interrupted) } else { Ok(()) }
    }
}

/// Ends this process at once. The workers then end too: their watchdogs notice that this process is gone.
fn end() {
    process::exit(INTERRUPTED.into());
}
