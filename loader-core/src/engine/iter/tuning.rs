//! Measures an iterator for the [`Tuner`], and carries out what the tuner decides.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::team::Team;
use crate::{
    engine::tuner::{MemoryBounds, Setting, Tuner},
    report::{
        figures::{ResourceUse, main_cpu},
        tuning_decision::TuningDecision,
    },
};

/// Maximum number of decisions in a report. A load that changes again and again would make more.
const MAX_DECISIONS: usize = 1000;

/// The tuner of a loader. An iterator copies it at its start, and replaces it whenever its own copy has
/// changed, unless another iterator has replaced it meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct SharedTuner(Arc<Mutex<Versioned>>);

#[derive(Debug, Clone)]
struct Versioned {
    tuner: Tuner,
    /// Number of times that the tuner was replaced.
    version: u64,
}

impl SharedTuner {
    pub(crate) fn new(tuner: Tuner) -> Self {
        Self(Arc::new(Mutex::new(Versioned { tuner, version: 0 })))
    }

    /// Returns the setting with which an iterator begins.
    pub(crate) fn setting(&self) -> Setting {
        self.lock().tuner.setting()
    }

    /// True if the team of the last epoch has too few workers, and none may be added within an epoch.
    pub(crate) fn needs_larger_team(&self, team: &Team) -> bool {
        let Versioned { tuner, .. } = &*self.lock();
        !tuner.changes_within_epochs() && team.workers() < tuner.setting().workers
    }

    fn lock(&self) -> MutexGuard<'_, Versioned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tuner of an iterator, and the counters from which it measures.
#[derive(Debug)]
pub(super) struct Tuning {
    tuner: Tuner,
    shared: SharedTuner,
    /// Version of the shared tuner that this one continues.
    version: u64,
    /// When `next` returned the last batch; `None` before the first one, whose wait is not measured.
    returned: Option<Instant>,
    /// Time that the program has waited since then in calls that returned no batch.
    waited: Duration,
    /// What the processes had used when the measurement began.
    baseline: ResourceUse,
    /// Maximum private memory of a worker so far, in bytes.
    worker_memory: u64,
    /// Number of batches returned, without errors.
    batches: u64,
    decisions: Vec<TuningDecision>,
}

impl Tuning {
    /// Begins an epoch.
    pub(super) fn start(shared: SharedTuner, team: &mut Team) -> Self {
        let Versioned { mut tuner, version } = shared.lock().clone();
        tuner.begin_epoch();
        team.apply_setting(tuner.setting());
        Self {
            tuner,
            shared,
            version,
            returned: None,
            waited: Duration::ZERO,
            baseline: ResourceUse::default(),
            worker_memory: 0,
            batches: 0,
            decisions: Vec::new(),
        }
    }

    pub(super) fn decisions(&self) -> &[TuningDecision] {
        &self.decisions
    }

    pub(super) fn has_tried_more_workers(&self) -> bool {
        self.tuner.has_tried_more_workers()
    }

    /// Keeps the number of workers that the program has set.
    pub(super) fn fix_workers(&mut self, workers: usize) {
        self.tuner.fix_workers(workers);
        let mut shared = self.shared.lock();
        shared.tuner.fix_workers(workers);
        shared.version += 1;
        self.version = shared.version;
    }

    /// Notes that `next`, called at `asked`, returns no batch.
    pub(super) fn note_wait(&mut self, asked: Instant) {
        self.waited += asked.elapsed();
    }

    /// Notes that `next`, called at `asked`, returns a batch now. Changes the team if that is due.
    pub(super) fn note_batch(&mut self, asked: Instant, team: &mut Team) {
        self.batches += 1;
        let now = Instant::now();
        let waiting = now - asked + std::mem::take(&mut self.waited);
        let previous_return = self.returned.replace(now);
        if !team.coordinator.has_all_workers() {
            return self.take_baseline(team);
        }
        let workers = team.workers();
        if workers < self.tuner.setting().workers {
            self.tuner.limit_workers(workers);
        }
        let Some(previous_return) = previous_return else { return self.take_baseline(team) };
        if !self.tuner.note_batch(now - previous_return, waiting) {
            return self.take_baseline(team);
        }
        if self.tuner.is_due() && self.tuner.changes_within_epochs() {
            self.measure(team);
            self.decide(team);
        }
    }

    /// Ends the epoch: gives the loader what the tuner has found.
    pub(super) fn end(&mut self, team: &mut Team) {
        if self.returned.is_some() {
            self.measure(team);
            if self.tuner.is_due() && !self.tuner.changes_within_epochs() {
                self.decide(team);
            }
            self.share();
        }
    }

    fn decide(&mut self, team: &mut Team) {
        let memory = self.memory_bounds(team);
        let Some(mut decision) = self.tuner.decide(memory) else { return };
        decision.batch = self.batches;
        if let Some(trace) = &team.trace {
            trace.add_instant("tuning decision", decision.to_string());
        }
        if self.decisions.len() < MAX_DECISIONS {
            self.decisions.push(decision);
        }
        if self.tuner.changes_within_epochs() {
            team.apply_setting(self.tuner.setting());
        }
        self.share();
    }

    fn share(&mut self) {
        let mut shared = self.shared.lock();
        if shared.version == self.version {
            self.version += 1;
            *shared = Versioned { tuner: self.tuner.clone(), version: self.version };
        }
    }

    /// Records what the processes have used, from which the next measurement counts.
    fn take_baseline(&mut self, team: &Team) {
        self.baseline = resource_use(team);
    }

    /// Gives the tuner what the processes have used since the baseline, and takes the next baseline.
    fn measure(&mut self, team: &Team) {
        let now = resource_use(team);
        self.tuner.add_use(now - std::mem::replace(&mut self.baseline, now));
        self.worker_memory = self.worker_memory.max(team.largest_worker().unwrap_or(0));
    }

    fn memory_bounds(&self, team: &Team) -> MemoryBounds {
        let Setting { workers, prefetch_factor } = self.tuner.setting();
        let slots = team.coordinator.slots();
        // Estimate of a batch's bytes. It is too high while the program holds slots, which is safe.
        let batch = (slots.bytes() / (workers * prefetch_factor) as u64).max(1);
        let max_batches = usize::try_from(slots.limit() / batch).unwrap_or(usize::MAX);
        MemoryBounds { max_workers: team.affordable_workers(self.worker_memory), max_batches }
    }
}

fn resource_use(team: &Team) -> ResourceUse {
    ResourceUse { main_cpu: main_cpu(), ..team.resource_use() }
}
