//! Prints events (with `--json`) or text on standard output, and errors and progress on standard error.

use std::{
    io::{self, Write},
    time::Duration,
};

use loader_core::{BatchDigest, BatchInfo, EpochReport, Error, Iter, LaunchedRank, Verdict, collate::Batch};

use crate::{
    events::{Event, hex},
    progress::{self, Progress, Screen, Task},
    stop::Stop,
    worker_view::WorkerView,
};

#[derive(Debug)]
pub(crate) struct Reporter {
    json: bool,
    screen: Screen,
    progress: Progress,
    view: WorkerView,
}

impl Reporter {
    pub(crate) fn new(json: bool) -> Self {
        let screen = Screen::default();
        Self { json, progress: Progress::none(screen.clone()), screen, view: WorkerView::default() }
    }

    /// Returns the screen, on which warnings are printed.
    pub(crate) fn screen(&self) -> Screen {
        self.screen.clone()
    }

    /// True if `--json` is set.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints lines unless `--json` is set.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { self.line(text) }
    }

    /// Prints a warning on standard error.
    pub(crate) fn warning(&self, message: &str) {
        self.error_line(&format!("warning: {message}"));
    }

    /// Returns what is shown of the workers.
    pub(crate) fn view(&self) -> WorkerView {
        self.view.clone()
    }

    /// Prints the rank that the launcher gave this process, unless `--json` is set: then the event `start`
    /// has it.
    pub(crate) fn launched(&self, launched: Option<&LaunchedRank>) {
        if let Some(launched) = launched.filter(|_| !self.json) {
            self.error_line(&launched.to_string());
        }
    }

    /// Prints an event if `--json` is set.
    pub(crate) fn event(&self, event: &Event<'_>) -> io::Result<()> {
        if self.json { self.line(&event.to_line()) } else { Ok(()) }
    }

    /// Begins to show the progress of epoch `epoch`, counted from 0, which has `batches` batches, and its
    /// workers. The run has `epochs` epochs. If standard error is not a terminal, prints a line after each
    /// `interval`, unless the interval is zero or `--json` is set.
    pub(crate) fn epoch_begins(
        &mut self,
        epoch: u64,
        epochs: u64,
        batches: Option<usize>,
        interval: Duration,
    ) {
        let total = batches.map(|batches| batches as u64);
        let task = Task { name: format!("epoch {epoch} of {epochs}"), total, unit: "batches" };
        self.view.begin();
        self.progress.begin(task, self.line_interval(interval), Some(self.view.clone()));
    }

    /// Begins to show the progress of `task`, as [`epoch_begins`](Self::epoch_begins) does, but no workers.
    pub(crate) fn begin(&mut self, task: Task, interval: Duration) {
        self.progress.begin(task, self.line_interval(interval), None);
    }

    fn line_interval(&self, interval: Duration) -> Option<Duration> {
        Some(interval).filter(|interval| !interval.is_zero() && !self.json)
    }

    /// Updates the progress. Calls `state` only if it is shown, see [`Progress::update`].
    pub(crate) fn update(&mut self, state: impl FnOnce(&Task) -> (u64, String)) {
        self.progress.update(state);
    }

    /// Ends the progress.
    pub(crate) fn finish(&mut self) {
        self.progress.finish();
    }

    /// Updates the progress after a batch of `batches`.
    pub(crate) fn batch_finished<B: Batch>(&mut self, batches: &Iter<B>) {
        let view = self.progress.is_bar().then_some(&self.view);
        self.progress.update(|task| {
            let report = batches.report();
            let Some(view) = view else { return progress::of_epoch(&report, task) };
            let advice = report.advice().map(|advice| advice.to_string()).unwrap_or_default();
            view.update(progress::figures(&report), advice);
            progress::done(&report, task)
        });
    }

    /// Prints the error that took the place of `batch`, or that ended the epoch if `batch` is `None`.
    pub(crate) fn error(&self, epoch: u64, batch: Option<&BatchInfo>, error: &Error) -> io::Result<()> {
        let message = error.to_string();
        let prefix = if batch.is_some() { format!("epoch {epoch}: ") } else { String::new() };
        self.error_line(&format!("{prefix}{message}"));
        if let Some(exited) = Event::worker_exited(error) {
            self.event(&exited)?;
        }
        self.event(&Event::error(Some(epoch), error, &message))
    }

    /// Ends the progress of the epoch and prints its figures.
    pub(crate) fn epoch_ended(
        &mut self,
        report: &EpochReport,
        digest: Option<&BatchDigest>,
    ) -> io::Result<()> {
        self.progress.finish();
        if self.json {
            return self.event(&Event::epoch(report, digest));
        }
        self.line(&report.to_string())?;
        let epoch = report.epoch;
        if report.verdict() == Verdict::LoaderBound {
            self.line(&format!("epoch {epoch}: {}", report.times))?;
        }
        for decision in &report.tuning {
            self.line(&format!("epoch {epoch}: {decision}"))?;
        }
        if let Some(digest) = report.digest {
            let samples = digest.samples();
            let repeated = match report.repeated {
                0 => String::new(),
                repeated => format!("; {repeated} more in the digest of another rank"),
            };
            self.line(&format!("epoch {epoch}: sample digest {digest} ({samples} samples{repeated})"))?;
        }
        if let Some(digest) = digest {
            let (order, content) = (hex(digest.order()), hex(digest.content()));
            self.line(&format!("epoch {epoch}: order digest {order}, content digest {content}"))?;
        }
        Ok(())
    }

    /// Ends the progress of an epoch that `--stop-after` ends.
    pub(crate) fn stopped_after(&mut self, epoch: u64, batches: usize) -> io::Result<()> {
        self.progress.finish();
        if self.json { Ok(()) } else { self.line(&format!("epoch {epoch}: stopped after {batches} batches")) }
    }

    /// Prints why the command ends early, if that was not printed yet.
    pub(crate) fn stopped(&mut self, stop: &Stop) {
        self.progress.finish();
        let Some((kind, message)) = stop.message() else { return };
        self.error_line(&message);
        let event = match stop {
            Stop::Output(_) | Stop::Interrupted(_) => return,
            Stop::Loader(error) => Event::error(None, error, &message),
            _ => Event::stopped(kind, &message),
        };
        // If this event cannot be printed, standard error and the exit status still report the error.
        drop(self.event(&event));
    }

    /// Prints a line on standard output.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        self.screen.without_bar(|| writeln!(io::stdout(), "{text}"))
    }

    fn error_line(&self, message: &str) {
        self.screen.error_line(&format!("loader: {message}"));
    }
}
