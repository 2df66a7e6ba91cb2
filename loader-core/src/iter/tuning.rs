//! Measures the workers of an iterator for the [`Tuner`], and carries out what it decides.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use loader_ipc::process;

use super::team::Team;
use crate::{
    figures::Work,
    memory,
    tuner::{Room, Setting, Tuner, TuningDecision},
};

/// The tuner of a loader, between iterators. Each iterator continues with what the one before has found.
#[derive(Debug, Clone)]
pub(crate) struct SharedTuner(Arc<Mutex<Tuner>>);

impl SharedTuner {
    pub(crate) fn new(tuner: Tuner) -> Self {
        Self(Arc::new(Mutex::new(tuner)))
    }

    /// Returns the setting with which an iterator begins.
    pub(crate) fn setting(&self) -> Setting {
        self.get().setting()
    }

    fn get(&self) -> Tuner {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, tuner: Tuner) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tuner;
    }
}

/// The tuner of an iterator, and what it needs to know.
#[derive(Debug)]
pub(super) struct Tuning {
    tuner: Tuner,
    shared: SharedTuner,
    /// When `next` returned the last batch; `None` before the first one, whose wait is not measured.
    returned: Option<Instant>,
    /// What the workers had done when the interval began.
    before: Vec<WorkerWork>,
    main_cpu_before: Duration,
    /// Number of batches returned.
    batches: u64,
    decisions: Vec<TuningDecision>,
}

/// What a worker has done since its start.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerWork {
    pid: u32,
    busy: Duration,
    cpu: Duration,
}

impl Tuning {
    /// Begins an epoch.
    pub(super) fn start(shared: SharedTuner, team: &mut Team) -> Self {
        let tuner = shared.get();
        team.apply(tuner.setting());
        Self {
            tuner,
            shared,
            returned: None,
            before: Vec::new(),
            main_cpu_before: Duration::ZERO,
            batches: 0,
            decisions: Vec::new(),
        }
    }

    pub(super) fn decisions(&self) -> &[TuningDecision] {
        &self.decisions
    }

    /// Keeps the number of workers that the program has set.
    pub(super) fn fix_workers(&mut self, workers: usize) {
        self.tuner.fix_workers(workers);
    }

    /// Notes that `next`, called at `asked`, returns a batch now. Changes the team if that is due.
    pub(super) fn note_batch(&mut self, asked: Instant, team: &mut Team) {
        self.batches += 1;
        let now = Instant::now();
        let before = self.returned.replace(now);
        if !team.coordinator.has_all_workers() {
            return self.begin_interval(team);
        }
        let workers = team.coordinator.workers();
        if workers < self.tuner.setting().workers {
            self.tuner.limit_workers(workers);
        }
        let Some(before) = before else { return self.begin_interval(team) };
        if !self.tuner.note_batch(now - before, now - asked) {
            return self.begin_interval(team);
        }
        if self.tuner.is_due() {
            self.measure_work(team);
            if self.tuner.changes_within_epochs() {
                self.decide(team);
            }
        }
    }

    /// Ends the epoch: gives the loader what the tuner has found.
    pub(super) fn end(&mut self, team: &mut Team) {
        if self.returned.is_some() {
            self.measure_work(team);
            if self.tuner.is_due() && !self.tuner.changes_within_epochs() {
                self.decide(team);
            }
        }
        self.shared.set(self.tuner.clone());
    }

    fn decide(&mut self, team: &mut Team) {
        let room = self.room(team);
        let Some(mut decision) = self.tuner.decide(room) else { return };
        decision.batch = self.batches;
        self.decisions.push(decision);
        if self.tuner.changes_within_epochs() {
            team.apply(self.tuner.setting());
        }
    }

    /// Forgets what the workers have done so far.
    fn begin_interval(&mut self, team: &Team) {
        self.before = works(team);
        self.main_cpu_before = process::cpu_time(std::process::id()).unwrap_or_default();
    }

    /// Gives the tuner what the workers have done since this was called last.
    fn measure_work(&mut self, team: &Team) {
        let (before, main_cpu_before) = (std::mem::take(&mut self.before), self.main_cpu_before);
        self.begin_interval(team);
        let mut work = Work { main_cpu: self.main_cpu_before - main_cpu_before, ..Work::default() };
        for (worker, now) in self.before.iter().enumerate() {
            let before = before.get(worker).copied().unwrap_or_default();
            work.busy += now.busy.saturating_sub(before.busy);
            // A process that has taken the place of another one began at zero.
            let cpu_before = if now.pid == before.pid { before.cpu } else { Duration::ZERO };
            work.worker_cpu += now.cpu.saturating_sub(cpu_before);
        }
        self.tuner.add_work(work);
    }

    /// Returns what memory leaves room for.
    fn room(&self, team: &Team) -> Room {
        let Setting { workers, prefetch_factor } = self.tuner.setting();
        let slots = team.coordinator.slots();
        // Bytes of a batch, or more: some slots are with the program.
        let batch = (slots.bytes() / (workers * prefetch_factor) as u64).max(1);
        let batches = usize::try_from(slots.limit() / batch).unwrap_or(usize::MAX);
        let largest = team.pool.pids().into_iter().filter_map(process::private_memory).max();
        let workers = match largest.zip(memory::available()) {
            Some((bytes, available)) => workers + (available / 2 / bytes.max(1)) as usize,
            None => usize::MAX,
        };
        Room { workers, batches }
    }
}

fn works(team: &Team) -> Vec<WorkerWork> {
    let of_worker = |(worker, pid)| {
        let busy = team.pool.snapshot(worker).busy;
        WorkerWork { pid, busy, cpu: process::cpu_time(pid).unwrap_or_default() }
    };
    team.pool.pids().into_iter().enumerate().map(of_worker).collect()
}
