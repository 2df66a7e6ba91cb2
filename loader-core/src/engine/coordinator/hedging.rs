//! Hedging: a batch that the user waits for, and that takes far longer than others, is also given to an idle
//! worker. The first result wins. The order of the batches does not change, and neither does their content,
//! since no sample depends on its worker.
//!
//! The attempt that loses is not stopped. Its worker keeps the lease until it answers; what it has not begun
//! is withdrawn.

use std::time::Duration;

use loader_ipc::violation::ProtocolViolation;

use super::{
    Coordinator, Phase, attempts::Attempt, crew::Crew, deaths::Cause, dispatch::bytes_in_slot,
    leasing::Vacate, reports::Answer,
};
use crate::error::Error;

/// A batch is late if the user has waited for it for this many times the mean time of a batch.
const LATE: u32 = 4;
/// A shorter wait is not worth a slot.
const MIN_WAIT: Duration = Duration::from_millis(20);

/// Why a worker gets no larger slot for a batch that another worker loads too.
const LOST: &str = "another worker loads it too";
/// Why a worker gets no larger slot for a batch of an epoch that was abandoned.
pub(super) const ABANDONED: &str = "the epoch was abandoned";

impl Coordinator {
    /// Returns how long the user waits before a batch is late; `None` where nothing is hedged.
    pub(super) fn late_after(&self, crew: &impl Crew) -> Option<Duration> {
        if !self.options.hedge || self.supply.has_shards() {
            return None;
        }
        let sums = (0u64, Duration::ZERO);
        let (batches, busy) = self.worker_reports(crew).fold(sums, |(batches, busy), report| {
            (batches.saturating_add(report.batches), busy.saturating_add(report.busy))
        });
        let batches = u32::try_from(batches).unwrap_or(u32::MAX);
        // Before the first batch there is no mean.
        (batches > 0).then(|| (busy / batches).saturating_mul(LATE).max(MIN_WAIT))
    }

    /// Gives the task that the user waits for to an idle worker too, if there is one and a slot.
    pub(super) fn hedge(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        let Some((task, busy)) = self.schedule.waiting().next() else { return Ok(()) };
        if crew.is_down(busy) || self.attempts.was_hedged(task) {
            return Ok(());
        }
        let is_idle = |worker: &usize| self.is_idle(*worker, crew);
        let Some(worker) = (0..self.roster.len()).find(is_idle) else { return Ok(()) };
        let Some(pending) = self.schedule.get(task).filter(|pending| pending.lease().is_some()) else {
            return Ok(());
        };
        let in_slot = bytes_in_slot(pending.wanted());
        // Memory is for the batches that no worker has tried yet.
        let knows = |slot| crew.knows(worker, slot);
        let Ok(lease) = self.leasing.slots().lease(in_slot, self.roster.len(), knows) else {
            return Ok(());
        };
        self.attempts.hedge(Attempt::new(task, worker, lease));
        self.give(task, worker, lease, crew)
    }

    /// True if a worker has nothing to do and can be given tasks of others.
    pub(super) fn is_idle(&self, worker: usize, crew: &impl Crew) -> bool {
        self.roster.is_working(worker)
            && !self.schedule.is_busy(worker)
            && !self.attempts.is_busy(worker)
            && self.roster.takes_moved_tasks(worker, crew)
    }

    /// Decides whether a worker's answer counts. If so, the schedule knows the worker and the lease as those
    /// of the task. If not, the caller discards it.
    pub(super) fn wins(
        &mut self,
        answer: Answer,
        has_failed: bool,
        crew: &mut impl Crew,
    ) -> Result<bool, Error> {
        let Answer { worker, task, lease, .. } = answer;
        if self.attempts.is_empty() {
            return Ok(true);
        }
        let second = self.attempts.take_second(worker, task, lease);
        let lost = self.attempts.take_lost(worker, task, lease);
        // A second attempt that fails proves nothing: the first one continues.
        if lost.is_some() || (second.is_some() && has_failed) {
            return Ok(false);
        }
        if second.is_none() {
            if self.check_lease(worker, task, lease).is_ok()
                && let Some(loser) = self.attempts.take_second_at(task)
            {
                self.lose(loser, crew)?;
            }
            return Ok(true);
        }
        let is_deferred = self.leasing.undefer(task);
        let first = self.schedule.worker_of(task);
        let Some((first, pending)) = first.zip(self.schedule.get_mut(task)) else { return Ok(true) };
        let has_asked = pending.has_asked();
        let old = pending.set_lease(lease);
        self.schedule.moved(task, worker);
        // The first attempt has no slot if the task was deferred; then nothing of it is left.
        if let Some(old) = old.filter(|_| !is_deferred) {
            self.lose(Attempt::new(task, first, old).that_has_asked(has_asked), crew)?;
        }
        Ok(true)
    }

    /// Handles a request for a larger slot by a worker that is on a second attempt, or on one that has lost.
    /// True if it was such a request; the worker was told that there is no slot.
    pub(super) fn refuses_attempt(
        &mut self,
        worker: usize,
        task: u64,
        crew: &mut impl Crew,
    ) -> Result<bool, Error> {
        match self.attempts.ask(worker, task) {
            None => Ok(false),
            Some(false) => Err(Error::misbehaved(worker, ProtocolViolation::AskedAfterRefusal { task })),
            Some(true) => {
                let reason = if self.phase == Phase::Loading { LOST } else { ABANDONED };
                crew.grant(worker, task, Err(reason.to_owned()))?;
                Ok(true)
            }
        }
    }

    /// Notes that an attempt's result is not wanted: withdraws the task, or waits for the worker's answer.
    pub(super) fn lose(&mut self, attempt: Attempt, crew: &mut impl Crew) -> Result<(), Error> {
        let Attempt { task, worker, lease, .. } = attempt;
        // A task of a worker that is being started again is in the backlog, or its process has ended.
        if self.roster.withdraw(worker, task, crew) || crew.is_down(worker) {
            self.leasing.slots().release(lease, false);
            return Ok(());
        }
        let request = self.leasing.take_request(task, worker);
        let was_asked = request.is_some_and(|request| request.vacate == Vacate::Asked);
        self.attempts.lose(attempt, was_asked, self.now);
        // A worker that waits for a larger slot would otherwise wait without end.
        match request {
            Some(_) => crew.grant(worker, task, Err(LOST.to_owned())),
            None => Ok(()),
        }
    }

    /// True while attempts that have lost hold slots that will come back. If such a worker has not answered
    /// for some time, it is killed, since it may stay in the user's code without end; the batch is there
    /// already.
    pub(super) fn waits_for_lost(&mut self, crew: &mut impl Crew) -> bool {
        for worker in self.attempts.overdue(self.now) {
            if !self.deaths.are_replaced() {
                return false;
            }
            if !self.roster[worker].death_record.is_expected() {
                self.roster[worker].death_record.expect(Cause::LateAttempt);
                crew.kill(worker, true);
            }
        }
        self.attempts.any_lost()
    }
}
