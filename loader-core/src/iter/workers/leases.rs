//! Slots beside those that tasks are sent with: larger ones that workers ask for, and warm ones that they are offered.

use loader_ipc::{
    frame::{LEAST_OFFERED, Lease},
    slots::SlotError,
};

use super::{Request, Sent, WorkerIter, no_slot};
use crate::{collate::Batch, error::Error};

impl<B: Batch> WorkerIter<B> {
    /// Answers the workers that wait for a larger slot, in the order of their tasks, as far as there is room.
    ///
    /// Room is first kept for the earlier tasks, which may still ask: otherwise later batches could take all memory and wait for
    /// an earlier one that gets none.
    pub(super) fn answer_requests(&mut self) -> Result<(), Error> {
        while let Some((&task, &request)) = self.requests.first_key_value() {
            let Request { worker, lease, needed } = request;
            let ahead = |sent: &&Sent| {
                sent.number < task && sent.lease.is_some_and(|lease| lease.len < needed as u64)
            };
            let ahead = self.tasks.iter().filter(ahead).count();
            let too_large = needed as u64 > self.slots.limit();
            let answer = match self.slots.regrow(lease, needed, ahead) {
                Ok(lease) => Ok(lease),
                Err(SlotError::NotLeased(_)) => {
                    self.requests.remove(&task);
                    return Err(Error::misbehaved(worker, "it asked to grow a slot that is not its own"));
                }
                Err(SlotError::LimitReached { .. }) if !too_large && !self.is_stuck() => return Ok(()),
                // The program holds the memory: it can drop batches and ask again.
                Err(error @ SlotError::LimitReached { held: 1.., .. }) if !too_large => {
                    return Err(no_slot(error));
                }
                Err(error) => Err(no_slot(error).to_string()),
            };
            self.requests.remove(&task);
            if let (Ok(lease), Some(sent)) = (&answer, self.sent_mut(task)) {
                sent.lease = Some(*lease);
            }
            self.pool.grant(worker, task, answer)?;
        }
        Ok(())
    }

    /// True when every worker that has work waits for a larger slot, and no batch has arrived for the user to take: memory will
    /// not come free by itself.
    fn is_stuck(&self) -> bool {
        let blocked = |worker: usize| self.requests.values().any(|request| request.worker == worker);
        let works = |worker: &usize| !blocked(*worker) && self.schedule.is_busy(*worker);
        !self.schedule.is_ready() && !(0..self.options.workers).any(|worker| works(&worker))
    }

    /// Offers slots that the user has just given back to tasks that wait with slots used longer ago: a batch of some megabytes is
    /// written much faster into memory that is still in the cache. With one worker and a fast user two slots then go round.
    pub(super) fn offer_warm_slots(&mut self) -> Result<(), Error> {
        if self.writers.is_empty() {
            // No slot is large enough: small batches do not pay for the search.
            return Ok(());
        }
        // By worker, its newest task if it has several: that one is surely not begun.
        let mut newest = vec![(None, 0); self.options.workers];
        for sent in self.tasks.iter().rev() {
            let Some(lease) = sent.lease else { continue };
            let (task, count) = &mut newest[sent.worker];
            task.get_or_insert((sent.number, lease));
            *count += 1;
        }
        for (worker, task) in newest.into_iter().enumerate() {
            let (Some((task, lease)), 2..) = task else { continue };
            if lease.len < LEAST_OFFERED || self.offers.contains_key(&task) || !self.schedule.is_waiting(task)
            {
                continue;
            }
            let own = |slot| self.writers.get(&slot) == Some(&worker);
            let Some(warmer) = self.slots.lease_warmer(lease, own) else { continue };
            match self.pool.offer(worker, task, warmer) {
                Ok(true) => drop(self.offers.insert(task, (worker, warmer))),
                Ok(false) => self.slots.release(warmer, false),
                Err(error) => {
                    self.slots.release(warmer, false);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A task has two leases, and its worker says which one it does not use.
    pub(super) fn take_unused(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let offered = self.offers.get(&task).copied();
        let Some((_, offered)) = offered.filter(|&(to, _)| to == worker) else {
            return Err(Error::misbehaved(
                worker,
                format!("it gave back a slot for task {task}, for which it had only one"),
            ));
        };
        // The worker goes on with the offered slot. If another worker's try has won meanwhile, this one has lost with its old slot.
        if lease != offered && !self.hedges.exchange(worker, task, lease, offered) {
            self.check_lease(worker, task, lease)?;
            self.sent_mut(task).expect("checked with its lease").lease = Some(offered);
        }
        self.offers.remove(&task);
        self.slots.release(lease, false);
        Ok(())
    }
}
