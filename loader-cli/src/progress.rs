//! Shows the progress of an epoch: a bar on a terminal, with the workers below it, otherwise a line at
//! regular intervals.

use std::{
    env,
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use loader_core::{EpochReport, internal::printable};

use crate::{terminal::Terminal, worker_view::WorkerView};

/// Time between two updates of the bar. Figures that change faster cannot be read.
const INTERVAL: Duration = Duration::from_millis(100);
const DRAWS_PER_SECOND: u8 = 10;

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

    /// Prints one line to standard error. (`eprintln` would panic if standard error has no reader.)
    pub(crate) fn error_line(&self, line: &str) {
        let line = printable(line.replace('\n', " "));
        self.without_bar(|| drop(writeln!(io::stderr(), "{line}")));
    }

    /// Removes the bar, so that it is not left on the terminal when the process ends.
    pub(crate) fn clear(&self) {
        self.replace_bar(None);
    }

    /// Removes the current bar, and shows `bar` instead, if there is one.
    fn replace_bar(&self, bar: Option<ProgressBar>) {
        let before = std::mem::replace(&mut *self.bar.lock().unwrap_or_else(PoisonError::into_inner), bar);
        if let Some(bar) = before {
            bar.finish_and_clear();
        }
    }
}

/// The progress of a task, such as one epoch.
#[derive(Debug)]
pub(crate) struct Progress {
    screen: Screen,
    shown: Shown,
    task: Task,
    /// Time of the last update.
    updated: Instant,
}

/// What a progress is about.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// Text such as "epoch 0 of 2".
    pub(crate) name: String,
    /// Number of units in total, such as the batches of an epoch, if known.
    pub(crate) total: Option<u64>,
    /// Name of the units.
    pub(crate) unit: &'static str,
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
        Self { screen, shown: Shown::Nothing, task: Task::default(), updated: Instant::now() }
    }

    /// Begins `task`. If standard error is a terminal that can draw one, shows a bar, and `below` below it. Otherwise, a line
    /// is printed after each `interval`, or none if there is no interval.
    pub(crate) fn begin(&mut self, task: Task, interval: Option<Duration>, below: Option<WorkerView>) {
        self.task = task;
        self.updated = Instant::now();
        self.shown = match interval {
            _ if has_bar() => Shown::Bar(self.bar(below)),
            Some(interval) => Shown::Lines(interval),
            None => Shown::Nothing,
        };
    }

    fn bar(&self, below: Option<WorkerView>) -> ProgressBar {
        let lines = if below.is_some() { "\n{below}" } else { "" };
        let template = format!("{{prefix}} [{{bar:20}}] {{pos}}/{{len}}{{wide_msg}}{lines}");
        let is_live = below.is_some();
        let style = ProgressStyle::with_template(&template).expect("the template is valid").with_key(
            "below",
            move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                below.iter().for_each(|view| view.draw(out));
            },
        );
        let bar = ProgressBar::with_draw_target(
            self.task.total,
            ProgressDrawTarget::term_like_with_hz(Box::new(Terminal::stderr()), DRAWS_PER_SECOND),
        )
        .with_style(style)
        .with_prefix(self.task.name.clone());
        self.screen.replace_bar(Some(bar.clone()));
        bar.tick();
        if is_live {
            // A thread of the bar draws what the workers are doing, also while the run waits for a batch.
            bar.enable_steady_tick(INTERVAL);
        }
        bar
    }

    /// Updates the bar or prints a line, if it is time to. Calls `state` only then, which returns the number
    /// of units that are done and the text that follows it.
    pub(crate) fn update(&mut self, state: impl FnOnce(&Task) -> (u64, String)) {
        let interval = match &self.shown {
            Shown::Bar(_) => INTERVAL,
            Shown::Lines(interval) => *interval,
            Shown::Nothing => return,
        };
        if self.updated.elapsed() < interval {
            return;
        }
        self.updated = Instant::now();
        let (done, text) = state(&self.task);
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_message(text);
                bar.set_position(done);
            }
            _ => {
                let Task { name, total, unit } = &self.task;
                let all = total.map(|total| format!("/{total}")).unwrap_or_default();
                self.screen.error_line(&format!("{name}: {done}{all} {unit}{text}"));
            }
        }
    }

    /// True if there is a bar.
    pub(crate) fn is_bar(&self) -> bool {
        matches!(self.shown, Shown::Bar(_))
    }

    pub(crate) fn finish(&mut self) {
        self.shown = Shown::Nothing;
        self.screen.replace_bar(None);
    }
}

/// True if standard error is a terminal that interprets escape sequences.
fn has_bar() -> bool {
    io::stderr().is_terminal() && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Returns the number of batches that an epoch has returned, and the estimated time left with [`figures`].
pub(crate) fn of_epoch(report: &EpochReport, task: &Task) -> (u64, String) {
    let (done, left) = done(report, task);
    (done, format!("{left}, {}", figures(report)))
}

/// Returns the number of batches that an epoch has returned, and the estimated time left.
pub(crate) fn done(report: &EpochReport, task: &Task) -> (u64, String) {
    let done = report.batches + report.errors;
    (done, time_left(done, task, report.elapsed))
}

/// Formats the figures of an epoch: the speed, the share of time after the first batch spent waiting, and,
/// with workers, the number of batches that are ready.
pub(crate) fn figures(report: &EpochReport) -> String {
    let steady = report.elapsed.saturating_sub(report.first_batch.unwrap_or_default()).as_secs_f64();
    let waiting = if steady > 0.0 { report.waiting.as_secs_f64() / steady } else { 0.0 };
    let speed = report.samples_per_second();
    let ready = report.ready.counts.last().map(|(_, batches)| format!(", {batches} ready"));
    format!("{speed:.0} samples/s, {:.0} % waiting{}", 100.0 * waiting, ready.unwrap_or_default())
}

/// Formats the estimated time left, such as `, 00:02:05 left`, after `elapsed`; nothing if it cannot be
/// estimated.
pub(crate) fn time_left(done: u64, task: &Task, elapsed: Duration) -> String {
    let Some(total) = task.total.filter(|_| done > 0) else { return String::new() };
    let share = total.saturating_sub(done) as f64 / done as f64;
    let left = Duration::try_from_secs_f64(elapsed.as_secs_f64() * share).unwrap_or(Duration::MAX);
    format!(", {} left", FormattedDuration(left))
}
