//! What is printed: events or lines for people on standard output, errors and progress on standard error.

use std::{
    io::{self, Write},
    time::Duration,
};

use loader_core::{BatchInfo, Digest, EpochReport, Error};

use crate::{
    events::{Event, hex},
    progress::{Progress, Screen},
    stop::Stop,
};

#[derive(Debug)]
pub(crate) struct Reporter {
    json: bool,
    screen: Screen,
    progress: Progress,
}

impl Reporter {
    pub(crate) fn new(json: bool) -> Self {
        let screen = Screen::default();
        Self { json, progress: Progress::none(screen.clone()), screen }
    }

    /// The screen to print on beside the bar.
    pub(crate) fn screen(&self) -> Screen {
        self.screen.clone()
    }

    /// Prints an event, for programs only.
    pub(crate) fn event(&self, event: &Event<'_>) -> io::Result<()> {
        if self.json { self.line(&event.to_line()) } else { Ok(()) }
    }

    /// Begins an epoch of `batches` batches; `epoch` is its number, from 0, of `epochs`. If standard error is
    /// not a terminal, prints a line after each `interval`, unless that is zero or events are written.
    pub(crate) fn epoch_begins(
        &mut self,
        epoch: u64,
        epochs: u64,
        batches: Option<usize>,
        interval: Duration,
    ) {
        let interval = Some(interval).filter(|interval| !interval.is_zero() && !self.json);
        self.progress.begin(epoch, epochs, batches, interval);
    }

    /// A batch came; `report` is asked for the figures so far only when somebody sees them.
    pub(crate) fn batch_came(&mut self, report: impl FnOnce() -> EpochReport) {
        self.progress.update(report);
    }

    /// An error of a batch, or of the epoch.
    pub(crate) fn error(&self, epoch: u64, batch: Option<&BatchInfo>, error: &Error) -> io::Result<()> {
        let message = error.to_string();
        let place = if batch.is_some() { format!("epoch {epoch}: ") } else { String::new() };
        self.complain(&format!("{place}{message}"));
        if let Some(exited) = Event::worker_exited(error) {
            self.event(&exited)?;
        }
        self.event(&Event::error(epoch, error, &message))
    }

    pub(crate) fn epoch_ended(&mut self, report: &EpochReport, digest: Option<&Digest>) -> io::Result<()> {
        self.progress.finish();
        if self.json {
            return self.event(&Event::epoch(report, digest));
        }
        self.line(&report.to_string())?;
        match digest {
            Some(digest) => {
                let (epoch, order, content) = (report.epoch, hex(digest.order()), hex(digest.content()));
                self.line(&format!("epoch {epoch}: order digest {order}, content digest {content}"))
            }
            None => Ok(()),
        }
    }

    /// The command ends early.
    pub(crate) fn stopped(&mut self, stop: &Stop) {
        self.progress.finish();
        let Some((kind, message)) = stop.message() else { return };
        self.complain(&message);
        if !matches!(stop, Stop::Output(_) | Stop::Interrupted) {
            let event = match stop {
                Stop::Loader(error) => Event::refused(error, &message),
                _ => Event::stopped(kind, &message),
            };
            // There is an exit status already, and nobody left to tell that this was not printed.
            drop(self.event(&event));
        }
    }

    fn line(&self, text: &str) -> io::Result<()> {
        self.screen.aside(|| writeln!(io::stdout(), "{text}"))
    }

    fn complain(&self, message: &str) {
        let message = message.replace('\n', " ");
        self.screen.error_line(&format!("loader: {message}"));
    }
}
