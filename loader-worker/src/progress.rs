//! Publishes the progress of a batch on the control page.

use std::cell::{Cell, RefCell};

use loader_core::internal::ProgressSink;
use loader_ipc::{
    control::{ControlPage, WorkerLine, WorkerState},
    end_if_forked,
    fault::{self, Point},
    frame::{BadSampleRecord, MAX_BAD_SAMPLES, ONE_BY_ONE},
    profile::BatchTimer,
};

/// Maximum number of samples in a row that are published without the time.
///
/// If each sample takes at least a tick of the coarse clock (some milliseconds), the worker reads the clock
/// for every sample. While the clock does not advance, the worker publishes runs of 1, 2, 4 and more samples
/// without reading the clock, which saves time on small samples. The age of a slow sample that follows fast
/// samples is then too large, by at most the time that the fast samples took.
const MAX_UNTIMED: u32 = 16;

/// Publishes the progress of a batch on the control page, tells the fetcher when the batch is not wanted any
/// more, and collects the bad samples.
pub(crate) struct PageSink<'a> {
    control: &'a ControlPage,
    line: WorkerLine<'a>,
    /// Number of samples to publish before the worker reads the clock again.
    untimed: Cell<u32>,
    /// Length of the current run of samples without the time. `None` before the first sample, because the
    /// time before the first sample does not show how long a sample takes.
    run: Cell<Option<u32>>,
    known_bad: &'a [u64],
    timer: &'a BatchTimer<'a>,
    bad: RefCell<Vec<BadSampleRecord>>,
}

impl<'a> PageSink<'a> {
    pub(crate) fn new(
        control: &'a ControlPage,
        worker: usize,
        known_bad: &'a [u64],
        timer: &'a BatchTimer<'a>,
    ) -> Self {
        let (untimed, run, bad) = (Cell::new(0), Cell::new(None), RefCell::default());
        Self { control, line: control.line_of(worker), untimed, run, known_bad, timer, bad }
    }

    /// Returns the bad samples of the batch, cut to what fits a frame.
    pub(crate) fn into_bad(self) -> Vec<BadSampleRecord> {
        let mut bad = self.bad.into_inner();
        bad.truncate(MAX_BAD_SAMPLES);
        BadSampleRecord::cut_to_frame(&mut bad);
        bad
    }
}

impl ProgressSink for PageSink<'_> {
    fn progress(&self, state: WorkerState, index: usize) -> bool {
        end_if_forked();
        if state == WorkerState::Collating {
            fault::point(Point::WorkerCollate);
            if let Some(timer) = self.timer.if_profiled() {
                timer.start_collating();
            }
        }
        match self.untimed.get() {
            0 => {
                let is_same_tick = self.line.progress(state, index as u64);
                let run = match self.run.get() {
                    Some(run) if is_same_tick => (2 * run).clamp(1, MAX_UNTIMED),
                    _ => 0,
                };
                self.run.set(Some(run));
                self.untimed.set(run);
            }
            left => {
                self.line.progress_untimed(state, index as u64);
                self.untimed.set(left - 1);
            }
        }
        !self.control.is_cancelled()
    }

    fn bad(&self, sample: BadSampleRecord) {
        self.bad.borrow_mut().push(sample);
    }

    fn bad_samples(&self) -> usize {
        self.bad.borrow().len()
    }

    fn timer(&self) -> Option<&BatchTimer<'_>> {
        self.timer.if_profiled()
    }

    fn is_one_by_one(&self) -> bool {
        self.known_bad.contains(&ONE_BY_ONE)
    }

    fn is_known_bad(&self, index: usize) -> bool {
        self.known_bad.contains(&(index as u64))
    }
}
