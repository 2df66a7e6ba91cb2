//! The end: workers are ended or sent home, and leases come back.

use super::{
    super::rest::{ABANDONED, Home, Resting},
    Arrival, Request, Sent, WorkerIter,
    hedges::Hedge,
};

impl<B> WorkerIter<B> {
    /// Ends the workers, or sends them home, and gives back their leases.
    pub(super) fn shut_down(&mut self) {
        if let Some(home) = self.home.take()
            && self.pool.can_stay()
        {
            return self.send_home(&home);
        }
        self.pool.shut_down();
        let offers = std::mem::take(&mut self.offers).into_values();
        let hedges = self.hedges.take().into_iter().map(|Hedge { worker, lease, .. }| (worker, lease));
        let sent = self.tasks.drain(..).filter_map(|Sent { worker, lease, .. }| Some((worker, lease?)));
        for (worker, lease) in sent.chain(offers).chain(hedges) {
            // A worker that could not be killed may still write: then the slot is not used again.
            self.slots.release(lease, !self.pool.has_ended(worker));
        }
    }

    /// Leaves the workers to the next epoch, with what they have not answered. What they have not begun is taken back.
    fn send_home(&mut self, home: &Home) {
        let Some(mut pool) = self.pool.take() else { return };
        pool.set_unwanted();
        for (task, Request { worker, .. }) in std::mem::take(&mut self.requests) {
            // A worker that is gone is noticed when the others resume.
            drop(pool.grant(worker, task, Err(ABANDONED.to_owned())));
        }
        let mut unanswered = Vec::new();
        for Sent { number, worker, lease, .. } in self.tasks.drain(..) {
            let Some(lease) = lease.filter(|_| self.schedule.is_waiting(number)) else { continue };
            match pool.withdraw(worker, number) {
                true => self.slots.release(lease, false),
                false => unanswered.push((worker, lease)),
            }
        }
        for arrival in self.schedule.abandon() {
            if let Arrival::Batch { lease, held, .. } = arrival {
                self.slots.release(lease, held);
            }
        }
        for Hedge { task, worker, lease, .. } in self.hedges.take() {
            match pool.withdraw(worker, task) {
                true => self.slots.release(lease, false),
                false => unanswered.push((worker, lease)),
            }
        }
        unanswered.extend(std::mem::take(&mut self.offers).into_values());
        home.receive(Resting::new(pool, unanswered, self.slots.clone()));
    }
}

impl<B> Drop for WorkerIter<B> {
    fn drop(&mut self) {
        self.shut_down();
    }
}
