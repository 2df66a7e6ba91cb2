//! Attempts at tasks beside the one that the schedule knows: second attempts at late tasks, and attempts
//! whose result is not wanted any more.

use std::time::{Duration, Instant};

use loader_ipc::frame::Lease;

/// How long an attempt that has lost may keep its slot while another batch waits for memory.
const LOST_FOR: Duration = Duration::from_secs(1);

/// A worker that is on a task that is not its own in the schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) task: u64,
    pub(super) worker: usize,
    pub(super) lease: Lease,
    /// True if the worker has asked for a larger slot.
    has_asked: bool,
    /// True if main has asked the worker to give its slot up before the attempt lost, and the worker has not
    /// answered.
    may_vacate: bool,
    /// When it lost.
    lost_at: Option<Instant>,
}

impl Attempt {
    pub(super) fn new(task: u64, worker: usize, lease: Lease) -> Self {
        Self { task, worker, lease, has_asked: false, may_vacate: false, lost_at: None }
    }

    /// An attempt whose worker has asked for a larger slot, if `has_asked`.
    pub(super) fn that_has_asked(self, has_asked: bool) -> Self {
        Self { has_asked, ..self }
    }

    fn is(&self, worker: usize, task: u64, lease: Lease) -> bool {
        (self.worker, self.task, self.lease) == (worker, task, lease)
    }
}

#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Second attempts, which may still win.
    second: Vec<Attempt>,
    /// Attempts at tasks whose batch is there already, or is not wanted any more.
    lost: Vec<Attempt>,
    /// The task that was hedged last. A task is hedged again only if the worker of its second attempt dies.
    hedged: Option<u64>,
}

impl Attempts {
    pub(super) fn is_empty(&self) -> bool {
        self.second.is_empty() && self.lost.is_empty()
    }

    /// Returns the number of attempts that workers have not answered.
    pub(super) fn len(&self) -> usize {
        self.second.len() + self.lost.len()
    }

    /// True if some attempt has lost and its worker has not answered.
    pub(super) fn any_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// True while the worker is on an attempt that has lost.
    pub(super) fn has_lost(&self, worker: usize) -> bool {
        self.lost.iter().any(|attempt| attempt.worker == worker)
    }

    /// True while the worker is on an attempt at a task that is not its own.
    pub(super) fn is_busy(&self, worker: usize) -> bool {
        self.all().any(|attempt| attempt.worker == worker)
    }

    /// True while the worker is on a second attempt.
    pub(super) fn is_on_second(&self, worker: usize) -> bool {
        self.second.iter().any(|attempt| attempt.worker == worker)
    }

    /// True while a second worker is on `task`.
    pub(super) fn is_hedged(&self, task: u64) -> bool {
        self.second.iter().any(|attempt| attempt.task == task)
    }

    /// True if `task` was hedged last.
    pub(super) fn was_hedged(&self, task: u64) -> bool {
        self.hedged == Some(task)
    }

    /// Returns the task that is not the worker's own and that the worker is on.
    pub(super) fn task_of(&self, worker: usize) -> Option<u64> {
        self.all().find(|attempt| attempt.worker == worker).map(|attempt| attempt.task)
    }

    /// Returns the first attempt that lost and whose worker has kept its slot for too long.
    pub(super) fn overdue(&self, now: Instant) -> impl Iterator<Item = usize> + use<'_> {
        let is_overdue = move |attempt: &&Attempt| {
            attempt.lost_at.is_some_and(|lost_at| now.saturating_duration_since(lost_at) >= LOST_FOR)
        };
        self.lost.iter().filter(is_overdue).map(|attempt| attempt.worker)
    }

    /// Notes a second attempt.
    pub(super) fn hedge(&mut self, attempt: Attempt) {
        self.hedged = Some(attempt.task);
        self.second.push(attempt);
    }

    /// Notes that an attempt has lost. `was_asked`: main has asked its worker for the slot, and waits for it.
    pub(super) fn lose(&mut self, attempt: Attempt, was_asked: bool, now: Instant) {
        let may_vacate = attempt.may_vacate || was_asked;
        self.lost.push(Attempt { may_vacate, lost_at: Some(now), ..attempt });
    }

    /// Takes the second attempt of a worker at a task, under this lease.
    pub(super) fn take_second(&mut self, worker: usize, task: u64, lease: Lease) -> Option<Attempt> {
        take_if(&mut self.second, |attempt| attempt.is(worker, task, lease))
    }

    /// Takes the second attempt at a task.
    pub(super) fn take_second_at(&mut self, task: u64) -> Option<Attempt> {
        take_if(&mut self.second, |attempt| attempt.task == task)
    }

    /// Takes an attempt that has lost: its worker has answered.
    pub(super) fn take_lost(&mut self, worker: usize, task: u64, lease: Lease) -> Option<Attempt> {
        take_if(&mut self.lost, |attempt| attempt.is(worker, task, lease))
    }

    /// Takes an attempt of a worker whose process has ended. The task of a second attempt may be hedged
    /// again: the first attempt may never end.
    pub(super) fn take_any_of(&mut self, worker: usize) -> Option<Attempt> {
        let is_its_own = |attempt: &Attempt| attempt.worker == worker;
        if let Some(second) = take_if(&mut self.second, is_its_own) {
            self.hedged = self.hedged.filter(|&task| task != second.task);
            return Some(second);
        }
        take_if(&mut self.lost, is_its_own)
    }

    /// Takes all attempts.
    pub(super) fn take_all(&mut self) -> Vec<Attempt> {
        self.hedged = None;
        let mut all = std::mem::take(&mut self.second);
        all.append(&mut self.lost);
        all
    }

    /// Notes that an attempt continues with the lease `new` instead of `old`. False if no attempt has the
    /// lease `old`.
    pub(super) fn exchange(&mut self, worker: usize, task: u64, old: Lease, new: Lease) -> bool {
        let attempt = self.all_mut().find(|attempt| attempt.is(worker, task, old));
        attempt.map(|attempt| attempt.lease = new).is_some()
    }

    /// Notes that the worker of an attempt asks for a larger slot: `None` if there is no such attempt, else
    /// whether the worker asks for the first time.
    pub(super) fn ask(&mut self, worker: usize, task: u64) -> Option<bool> {
        let attempt = self.all_mut().find(|attempt| (attempt.worker, attempt.task) == (worker, task))?;
        Some(!std::mem::replace(&mut attempt.has_asked, true))
    }

    /// Notes that the worker of an attempt that has lost gives up its slot. False unless main has asked for
    /// the slot; a worker may do so once.
    pub(super) fn vacate(&mut self, worker: usize, task: u64, lease: Lease) -> bool {
        let attempt = self.lost.iter_mut().find(|attempt| attempt.is(worker, task, lease));
        attempt.is_some_and(|attempt| std::mem::take(&mut attempt.may_vacate))
    }

    /// Returns the lease of each attempt.
    #[cfg(test)]
    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.all().map(|attempt| attempt.lease)
    }

    fn all(&self) -> impl Iterator<Item = &Attempt> {
        self.second.iter().chain(&self.lost)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Attempt> {
        self.second.iter_mut().chain(&mut self.lost)
    }
}

/// Takes the first attempt that `is_it` out of `attempts`.
fn take_if(attempts: &mut Vec<Attempt>, is_it: impl Fn(&Attempt) -> bool) -> Option<Attempt> {
    attempts.iter().position(is_it).map(|position| attempts.swap_remove(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_hedged_again_if_the_worker_of_its_second_attempt_dies() {
        let lease = Lease { slot: 0, generation: 1, len: 1 };
        let mut attempts = Attempts::default();
        attempts.hedge(Attempt::new(7, 1, lease));
        assert!(attempts.was_hedged(7) && attempts.is_hedged(7) && attempts.is_on_second(1));
        assert!(attempts.take_any_of(0).is_none() && attempts.was_hedged(7));
        assert!(attempts.take_any_of(1).is_some() && !attempts.was_hedged(7) && attempts.is_empty());
    }
}
