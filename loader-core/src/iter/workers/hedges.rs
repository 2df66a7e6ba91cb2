//! Hedging: a batch that the user waits for, and that takes far longer than others do, is also given to a worker that has nothing to do.
//! The first result wins; the order does not change, and neither does the content, since no sample depends on its worker.
//!
//! The one that loses is not stopped. It keeps its lease until it answers, and what it has not begun is withdrawn.

use std::time::{Duration, Instant};

use loader_ipc::frame::Lease;

use super::{Request, Sent, Vacate, WorkerIter, deaths::Cause};
use crate::{collate::Batch, error::Error};

/// A batch is late when the user has waited for it for so many times as long as a batch takes,
const LATE: u32 = 4;
/// and for so long: a shorter wait is not worth a slot.
const SHORTEST: Duration = Duration::from_millis(20);

/// How long a lost try may keep its slot while another batch waits for memory.
const LOST_FOR: Duration = Duration::from_secs(1);

/// Why a worker gets no larger slot for a batch that somebody else loads too.
const LOST: &str = "another worker loads it too";

/// The second try of a task, or one that has lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hedge {
    pub(super) task: u64,
    pub(super) worker: usize,
    pub(super) lease: Lease,
    /// It has asked for a larger slot.
    pub(super) has_asked: bool,
    /// It was asked to give its slot up before it lost, and has not answered yet.
    may_vacate: bool,
    /// When it lost.
    lost_at: Option<Instant>,
}

/// The tries beside those that are in the schedule.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    /// They may still win.
    running: Vec<Hedge>,
    /// The batch is there already, or is not wanted any more.
    lost: Vec<Hedge>,
    /// The task that was tried twice last: once is enough.
    tried: Option<u64>,
}

impl Hedges {
    /// True while a worker is on a task whose batch is there already.
    pub(super) fn has_lost(&self, worker: usize) -> bool {
        self.lost.iter().any(|hedge| hedge.worker == worker)
    }

    /// True while a worker is on a task that is not its in the schedule.
    pub(super) fn is_busy(&self, worker: usize) -> bool {
        self.running.iter().chain(&self.lost).any(|hedge| hedge.worker == worker)
    }

    /// True while a worker is on a second try that may still win.
    pub(super) fn is_trying(&self, worker: usize) -> bool {
        self.running.iter().any(|hedge| hedge.worker == worker)
    }

    /// Notes that the worker of a lost try gives up its slot. False unless main had asked for it; a worker may do so once.
    pub(super) fn take_vacated(&mut self, worker: usize, task: u64, lease: Lease) -> bool {
        let is_it = |hedge: &&mut Hedge| (hedge.worker, hedge.task, hedge.lease) == (worker, task, lease);
        let lost = self.lost.iter_mut().find(is_it);
        lost.is_some_and(|hedge| std::mem::take(&mut hedge.may_vacate))
    }

    /// True while a second worker is on `task`.
    pub(super) fn is_hedged(&self, task: u64) -> bool {
        self.running.iter().any(|hedge| hedge.task == task)
    }

    /// The task that is not the worker's in the schedule, and that it is on.
    pub(super) fn task_of(&self, worker: usize) -> Option<u64> {
        let mut all = self.running.iter().chain(&self.lost);
        all.find(|hedge| hedge.worker == worker).map(|hedge| hedge.task)
    }

    /// Notes that a try of a hedged task, running or lost, goes on with the lease `new` instead of `old`.
    /// False when no such try has the lease `old`.
    pub(super) fn exchange(&mut self, worker: usize, task: u64, old: Lease, new: Lease) -> bool {
        let mut all = self.running.iter_mut().chain(&mut self.lost);
        let hedge = all.find(|hedge| (hedge.worker, hedge.task, hedge.lease) == (worker, task, old));
        hedge.map(|hedge| hedge.lease = new).is_some()
    }

    /// All of them, to be given back.
    pub(super) fn take(&mut self) -> Vec<Hedge> {
        let mut all = std::mem::take(&mut self.running);
        all.append(&mut self.lost);
        all
    }
}

/// Takes the one that `is_it` out of `hedges`.
fn take_if(hedges: &mut Vec<Hedge>, is_it: impl Fn(&Hedge) -> bool) -> Option<Hedge> {
    hedges.iter().position(is_it).map(|place| hedges.swap_remove(place))
}

impl<B: Batch> WorkerIter<B> {
    /// How long the user waits before the batch counts as late; `None` where nothing is hedged.
    pub(super) fn late_after(&self) -> Option<Duration> {
        if !self.options.hedge || self.supply.has_shards() {
            return None;
        }
        let reports = self.pool.reports();
        let batches = reports.iter().fold(0u64, |sum, report| sum.saturating_add(report.batches));
        let busy = reports.iter().fold(Duration::ZERO, |sum, report| sum.saturating_add(report.busy));
        let batches = u32::try_from(batches).unwrap_or(u32::MAX);
        // Before the first one nobody knows what is long.
        (batches > 0).then(|| (busy / batches).saturating_mul(LATE).max(SHORTEST))
    }

    /// Gives the task that the user waits for to a worker that has nothing to do, if there is one and a slot.
    pub(super) fn hedge(&mut self) -> Result<(), Error> {
        let Some((task, busy)) = self.schedule.waiting().next() else { return Ok(()) };
        if self.pool.is_down(busy) || self.hedges.tried == Some(task) {
            return Ok(());
        }
        let is_free = |worker: &usize| {
            !self.schedule.is_busy(*worker)
                && self.pool.takes_moved_tasks(*worker)
                && !self.hedges.is_busy(*worker)
        };
        let Some(worker) = (0..self.options.workers).find(is_free) else { return Ok(()) };
        let place = self.place_of(task).expect("every task in the schedule is noted");
        if self.tasks[place].lease.is_none() {
            return Ok(());
        }
        let in_slot = self.tasks[place].wanted.bytes_in_slot();
        // Memory is for the batches that have not been tried at all.
        let Ok(lease) = self.slots.lease(in_slot, self.options.workers, |slot| self.pool.knows(worker, slot))
        else {
            return Ok(());
        };
        let order = self.task(task, &self.tasks[place].wanted, lease)?;
        self.hedges.tried = Some(task);
        self.hedges.running.push(Hedge {
            task,
            worker,
            lease,
            has_asked: false,
            may_vacate: false,
            lost_at: None,
        });
        self.pool.give_task(worker, order)
    }

    /// A worker has a result. True when it is the one that counts: it is then in the schedule; otherwise its lease has come back.
    pub(super) fn wins(
        &mut self,
        worker: usize,
        task: u64,
        lease: Lease,
        held: bool,
        failed: bool,
    ) -> Result<bool, Error> {
        if self.hedges.running.is_empty() && self.hedges.lost.is_empty() {
            return Ok(true);
        }
        let is_it = |hedge: &Hedge| (hedge.task, hedge.worker, hedge.lease) == (task, worker, lease);
        let second = take_if(&mut self.hedges.running, is_it);
        let lost = take_if(&mut self.hedges.lost, is_it);
        // A second try that fails proves nothing: the first one goes on.
        if lost.is_some() || (second.is_some() && failed) {
            self.slots.release(lease, held);
            self.pool.answered(worker, task)?;
            return Ok(false);
        }
        if second.is_some() && self.parked.remove(&task) {
            // The first try has no slot at the moment, and is no longer needed.
            let sent = self.sent_mut(task).expect("every task in the schedule is noted");
            (sent.worker, sent.lease) = (worker, Some(lease));
            self.schedule.moved(task, worker);
            return Ok(true);
        }
        if second.is_some()
            && let Some(Sent { worker: first, lease: Some(old), has_asked, has_vacated, .. }) =
                self.sent_mut(task)
        {
            *has_vacated = false;
            let loser = Hedge {
                task,
                worker: std::mem::replace(first, worker),
                lease: std::mem::replace(old, lease),
                has_asked: *has_asked,
                may_vacate: false,
                lost_at: None,
            };
            self.schedule.moved(task, worker);
            self.lose(loser)?;
        } else if self.check_lease(worker, task, lease).is_ok()
            && let Some(loser) = take_if(&mut self.hedges.running, |hedge| hedge.task == task)
        {
            self.lose(loser)?;
        }
        Ok(true)
    }

    /// A worker of a second try, or of one that has lost, asks for a larger slot: true when it was told that there is none.
    pub(super) fn refuses_hedge(&mut self, worker: usize, task: u64) -> Result<bool, Error> {
        let mut all = self.hedges.running.iter_mut().chain(&mut self.hedges.lost);
        let Some(hedge) = all.find(|hedge| (hedge.task, hedge.worker) == (task, worker)) else {
            return Ok(false);
        };
        if std::mem::replace(&mut hedge.has_asked, true) {
            return Err(Error::misbehaved(worker, "it asked again for a slot that it was refused"));
        }
        self.pool.grant(worker, task, Err(LOST.to_owned()))?;
        Ok(true)
    }

    /// A task is given up: so is its second try.
    pub(super) fn give_up_hedge(&mut self, task: u64) -> Result<(), Error> {
        match take_if(&mut self.hedges.running, |hedge| hedge.task == task) {
            Some(hedge) => self.lose(hedge),
            None => Ok(()),
        }
    }

    /// A worker's process has ended, and with it its second tries.
    pub(super) fn forget_hedges(&mut self, worker: usize) {
        for hedges in [&mut self.hedges.running, &mut self.hedges.lost] {
            while let Some(hedge) = take_if(hedges, |hedge| hedge.worker == worker) {
                self.slots.release(hedge.lease, false);
            }
        }
    }

    fn lose(&mut self, hedge: Hedge) -> Result<(), Error> {
        // Also from one that is being started again, for which the task waits.
        if self.pool.withdraw(hedge.worker, hedge.task) || self.pool.is_down(hedge.worker) {
            self.slots.release(hedge.lease, false);
            return Ok(());
        }
        // A worker that waits for a larger slot would wait for ever.
        let is_waiting = |request: &&Request| request.worker == hedge.worker;
        let request = self.requests.get(&hedge.task).filter(is_waiting).copied();
        let may_vacate = request.is_some_and(|request| matches!(request.vacate, Vacate::Asked));
        self.hedges.lost.push(Hedge { may_vacate, lost_at: Some(Instant::now()), ..hedge });
        if request.is_some() {
            self.requests.remove(&hedge.task);
            self.pool.grant(hedge.worker, hedge.task, Err(LOST.to_owned()))?;
        }
        Ok(())
    }

    /// True while lost tries hold slots that will come back. A try that has not answered [`LOST_FOR`] after it lost is ended, since its
    /// worker may stay in the user's code for ever; its batch is there already.
    pub(super) fn waits_for_lost(&mut self) -> bool {
        for &Hedge { worker, lost_at, .. } in &self.hedges.lost {
            let is_late = lost_at.is_some_and(|lost_at| lost_at.elapsed() >= LOST_FOR);
            if is_late && self.deaths.may_be_replaced() && !self.deaths.is_expected(worker) {
                self.deaths.expect(worker, Cause::Late);
                self.pool.kill(worker, true);
            } else if is_late && !self.deaths.may_be_replaced() {
                return false;
            }
        }
        !self.hedges.lost.is_empty()
    }
}
