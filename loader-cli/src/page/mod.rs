//! The page of `--report`: one HTML file that shows what a run did.
//!
//! `plotters` draws plots with axes. With `maud` and the rest of the page it adds 3 % to the size of the
//! command, so it is not behind a feature. Bars without axes are HTML, which scales with the window.
//! Alternative considered: a library of scripts in the page. Rejected because the page would be megabytes
//! large, or need the network.

mod html;
mod plots;

use std::{
    io::Write,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use loader_core::{EpochReport, Error, Warning};

use crate::{replace_file, settings::Settings, stop::Stop};

/// Maximum number of entries in a list of errors or restarts. More of them are only counted.
const MAX_LISTED: usize = 100;

/// The page that is to be written, and its file. Ctrl-C can end the process on another thread than that of
/// the run.
static UNWRITTEN: Mutex<Option<(PathBuf, RunRecord)>> = Mutex::new(None);

/// What is known of a run.
#[derive(Debug)]
struct RunRecord {
    started: SystemTime,
    /// The settings as JSON.
    settings: serde_json::Value,
    /// The epochs so far. The last one may be unfinished.
    epochs: Vec<EpochReport>,
    errors: Messages,
    restarts: Messages,
}

/// Messages, and the number of those that are left out.
#[derive(Debug, Default)]
struct Messages {
    listed: Vec<String>,
    left_out: u64,
}

impl Messages {
    fn add(&mut self, message: String) {
        if self.listed.len() < MAX_LISTED { self.listed.push(message) } else { self.left_out += 1 }
    }
}

/// Begins the record of a run whose page is written to `path`.
pub(crate) fn begin(path: PathBuf, settings: &Settings) {
    let run = RunRecord {
        started: SystemTime::now(),
        // Serialising cannot fail: the settings are printed as JSON too.
        settings: serde_json::to_value(settings).unwrap_or_default(),
        epochs: Vec::new(),
        errors: Messages::default(),
        restarts: Messages::default(),
    };
    *unwritten() = Some((path, run));
}

/// Notes an epoch so far, or at its end.
pub(crate) fn note_epoch(report: EpochReport) {
    note(|run| {
        run.epochs.pop_if(|last| last.epoch == report.epoch);
        run.epochs.push(report);
    });
}

/// Notes an error in an epoch.
pub(crate) fn note_error(epoch: u64, error: &Error) {
    note(|run| run.errors.add(format!("epoch {epoch}: {error}")));
}

/// Notes that a worker was replaced. Ignores other warnings.
pub(crate) fn note_warning(warning: &Warning) {
    if let Warning::WorkerReplaced { .. } = warning {
        note(|run| run.restarts.add(warning.to_string()));
    }
}

/// Writes the page, unless it was written already. `end` says how the run ended. Another call waits
/// meanwhile, so that the process does not end while the file is written.
pub(crate) fn save(end: &str) -> Result<(), Stop> {
    let mut unwritten = unwritten();
    let Some((path, run)) = unwritten.take() else { return Ok(()) };
    replace_file::replace(&path, |file| file.write_all(html::page(&run, end).as_bytes()))
        .map_err(Stop::not_written(&path))
}

fn note(note: impl FnOnce(&mut RunRecord)) {
    if let Some((_, run)) = &mut *unwritten() {
        note(run);
    }
}

fn unwritten() -> MutexGuard<'static, Option<(PathBuf, RunRecord)>> {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}
