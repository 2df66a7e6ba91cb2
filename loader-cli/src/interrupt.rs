//! Ctrl-C ends the command: between batches if it can, after a grace period if a batch takes longer, at once when pressed again.

use std::{
    io, process,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use signal_hook::{consts::SIGINT, iterator::Signals};

use crate::stop::{INTERRUPTED, Stop};

/// How long the batch that is being waited for may still take.
const GRACE: Duration = Duration::from_secs(2);

static PRESSED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Takes over SIGINT for the rest of the process's life.
    pub(crate) fn watch() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT])?;
        thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            let mut pressed = signals.forever();
            if pressed.next().is_some() {
                // Relaxed: a flag alone.
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

    /// Ends the command if Ctrl-C was pressed.
    pub(crate) fn check(self) -> Result<(), Stop> {
        if PRESSED.load(Ordering::Relaxed) { Err(Stop::Interrupted) } else { Ok(()) }
    }
}

/// Workers notice by themselves that this process is gone.
fn end() {
    process::exit(INTERRUPTED.into());
}
