//! Shows the progress of an epoch: a bar on a terminal, otherwise a line at regular intervals.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use loader_core::EpochReport;

/// Time between two updates of the bar. Figures that change faster cannot be read.
const INTERVAL: Duration = Duration::from_millis(100);

/// Standard error, with the bar on it, if there is one. Clones refer to the same screen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen {
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Screen {
    /// Calls `print` while the bar is hidden.
    pub(crate) fn without_bar<T>(&self, print: impl FnOnce() -> T) -> T {
        // Clones the bar, so that the lock is not held while `print` runs, which may take long.
        let bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Prints a line to standard error. (`eprintln` would panic if standard error has no reader.)
    pub(crate) fn error_line(&self, line: &str) {
        self.without_bar(|| drop(writeln!(io::stderr(), "{line}")));
    }

    /// Removes the current bar, and shows `bar` instead, if there is one.
    fn replace_bar(&self, bar: Option<ProgressBar>) {
        let before = std::mem::replace(&mut *self.bar.lock().unwrap_or_else(PoisonError::into_inner), bar);
        if let Some(bar) = before {
            bar.finish_and_clear();
        }
    }
}

/// The progress of one epoch.
#[derive(Debug)]
pub(crate) struct Progress {
    screen: Screen,
    shown: Shown,
    /// Text such as "epoch 0 of 2".
    epoch: String,
    /// Number of batches of the epoch, if known.
    batches: Option<u64>,
    /// Time of the last update.
    updated: Instant,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    /// A line after each interval.
    Lines(Duration),
    Nothing,
}

impl Progress {
    /// Creates a progress that shows nothing until [`begin`](Self::begin) is called.
    pub(crate) fn none(screen: Screen) -> Self {
        Self { screen, shown: Shown::Nothing, epoch: String::new(), batches: None, updated: Instant::now() }
    }

    /// Begins epoch `epoch`, counted from 0, of `epochs`. If standard error is not a terminal, a line is
    /// printed after each `interval`, or none if there is no interval.
    pub(crate) fn begin(
        &mut self,
        epoch: u64,
        epochs: u64,
        batches: Option<usize>,
        interval: Option<Duration>,
    ) {
        self.epoch = format!("epoch {epoch} of {epochs}");
        self.batches = batches.map(|batches| batches as u64);
        self.updated = Instant::now();
        self.shown = match interval {
            _ if io::stderr().is_terminal() => Shown::Bar(self.bar()),
            Some(interval) => Shown::Lines(interval),
            None => Shown::Nothing,
        };
    }

    fn bar(&self) -> ProgressBar {
        let style = ProgressStyle::with_template("{prefix} [{bar:20}] {pos}/{len}{wide_msg}");
        let bar = ProgressBar::with_draw_target(self.batches, ProgressDrawTarget::stderr())
            .with_style(style.expect("the template is a constant"))
            .with_prefix(self.epoch.clone());
        self.screen.replace_bar(Some(bar.clone()));
        bar.tick();
        bar
    }

    /// Updates the bar or prints a line, if it is time to. Calls `report` only then.
    pub(crate) fn update(&mut self, report: impl FnOnce() -> EpochReport) {
        let interval = match &self.shown {
            Shown::Bar(_) => INTERVAL,
            Shown::Lines(interval) => *interval,
            Shown::Nothing => return,
        };
        if self.updated.elapsed() < interval {
            return;
        }
        self.updated = Instant::now();
        let report = report();
        let done = report.batches + report.errors;
        let figures = figures(&report, self.batches);
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_message(figures);
                bar.set_position(done);
            }
            _ => {
                let all = self.batches.map(|batches| format!("/{batches}")).unwrap_or_default();
                self.screen.error_line(&format!("{}: {done}{all} batches{figures}", self.epoch));
            }
        }
    }

    pub(crate) fn finish(&mut self) {
        self.shown = Shown::Nothing;
        self.screen.replace_bar(None);
    }
}

/// Formats the estimated time left, the speed, and the share of time after the first batch spent waiting.
fn figures(report: &EpochReport, batches: Option<u64>) -> String {
    let done = report.batches + report.errors;
    let steady = report.elapsed.saturating_sub(report.first_batch.unwrap_or_default()).as_secs_f64();
    let waiting = if steady > 0.0 { report.waiting.as_secs_f64() / steady } else { 0.0 };
    let left = batches.filter(|_| done > 0).map(|batches| {
        let share = batches.saturating_sub(done) as f64 / done as f64;
        let left = Duration::try_from_secs_f64(report.elapsed.as_secs_f64() * share).unwrap_or(Duration::MAX);
        format!(", {} left", FormattedDuration(left))
    });
    let (left, speed) = (left.unwrap_or_default(), report.samples_per_second());
    format!("{left}, {speed:.0} samples/s, {:.0} % waiting", 100.0 * waiting)
}
