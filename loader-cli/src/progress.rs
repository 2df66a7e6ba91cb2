//! A bar on the terminal.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use loader_core::EpochReport;

/// How often figures change: as fast as they can be read.
const INTERVAL: Duration = Duration::from_millis(100);

/// The bar of one epoch, or nothing where there is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    updated: Instant,
}

impl Progress {
    pub(crate) fn none() -> Self {
        Self { bar: None, updated: Instant::now() }
    }

    /// A bar for `epoch` (from 0) of `epochs`.
    pub(crate) fn of_epoch(epoch: u64, epochs: u64, batches: Option<usize>) -> Self {
        if !io::stderr().is_terminal() {
            return Self::none();
        }
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} batches{msg}");
        let bar = ProgressBar::with_draw_target(
            batches.map(|batches| batches as u64),
            ProgressDrawTarget::stderr(),
        )
        .with_style(style.expect("the template is a constant"))
        .with_prefix(format!("epoch {}/{epochs}", epoch + 1));
        bar.tick();
        Self { bar: Some(bar), updated: Instant::now() }
    }

    pub(crate) fn update(&mut self, report: impl FnOnce() -> EpochReport) {
        let Some(bar) = &self.bar else { return };
        if self.updated.elapsed() < INTERVAL {
            return;
        }
        self.updated = Instant::now();
        let report = report();
        let steady = report.elapsed.saturating_sub(report.first_batch.unwrap_or_default()).as_secs_f64();
        let waiting = if steady > 0.0 { report.waiting.as_secs_f64() / steady } else { 0.0 };
        bar.set_message(format!(
            ", {:.0} samples/s, {:.0} % waiting",
            report.samples_per_second(),
            100.0 * waiting
        ));
        bar.set_position(report.batches + report.errors);
    }

    /// Does something that prints, with the bar out of the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
