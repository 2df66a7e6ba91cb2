//! What workers say, believed as far as it can be true.

use loader_ipc::{
    frame::{Event, LEAST_OFFERED, Lease, Report},
    lent,
};

use super::{super::supply::ShardEnd, Arrival, Request, WorkerIter};
use crate::{collate::Batch, error::Error, fetch::ShardBatch};

impl<B: Batch> WorkerIter<B> {
    pub(super) fn handle(&mut self, report: Report) -> Result<(), Error> {
        let worker = report.worker;
        match report.event {
            Event::Ready | Event::Bye => Ok(()),
            Event::NotReady { .. } => {
                self.pool.set_unfit(worker);
                Ok(())
            }
            Event::Done { task, lease, encoded, held, position } => {
                self.check_lease(worker, task, lease)?;
                if lease.len >= LEAST_OFFERED {
                    self.writers.insert(lease.slot, worker);
                }
                self.arrive(worker, task, Arrival::Batch { lease, encoded, held, position })
            }
            Event::Failed { task, lease, failure, held, position, ended } => {
                self.check_lease(worker, task, lease)?;
                self.slots.release(lease, held);
                self.arrive(worker, task, Arrival::Failed { failure: Box::new(failure), position, ended })
            }
            Event::Exhausted { task, lease } => self.exhausted(worker, task, lease),
            Event::NeedSlot { task, lease, needed } => {
                self.check_lease(worker, task, lease)?;
                let needed = usize::try_from(needed).unwrap_or(usize::MAX);
                self.requests.insert(task, Request { worker, lease, needed });
                Ok(())
            }
            Event::Unused { task, lease } => self.take_unused(worker, task, lease),
            Event::Withdrawn { task } => {
                // A moved task never comes back to the same worker.
                if self.sent_mut(task).is_some_and(|sent| sent.worker == worker) {
                    return Err(Error::misbehaved(
                        worker,
                        format!("it takes task {task}, which is its own, for withdrawn"),
                    ));
                }
                self.pool.answered(worker, task)
            }
            Event::Skipped { task, lease } => {
                self.check_lease(worker, task, lease)?;
                Err(Error::misbehaved(worker, format!("it skipped task {task} of an epoch that is not over")))
            }
            Event::Resumed { epoch } => Err(Error::misbehaved(
                worker,
                format!("it resumed with epoch {epoch}, which it was not told"),
            )),
            Event::Exited { pid, status } => {
                let lost = self.schedule.waiting_at(worker);
                // A worker that will get no more tasks is not missed; before that, or with work, it is.
                if self.schedule.is_over(worker) {
                    // Its place is empty in the next epoch.
                    self.home = None;
                    return Ok(());
                }
                Err(self.pool.exited(worker, pid, status, lost))
            }
        }
    }

    /// A shard has no more samples: the others get its turns.
    fn exhausted(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        self.check_lease(worker, task, lease)?;
        if !self.supply.has_shards() {
            return Err(Error::misbehaved(
                worker,
                format!("it has no more samples for task {task}, which has indices"),
            ));
        }
        self.slots.release(lease, false);
        self.take_sent(task);
        self.pool.answered(worker, task)?;
        if !self.schedule.exhausted(task) {
            return Err(Error::misbehaved(worker, format!("it answered task {task} twice")));
        }
        self.finish_idle_workers();
        self.dispatch()
    }

    fn arrive(&mut self, worker: usize, task: u64, arrival: Arrival) -> Result<(), Error> {
        self.pool.answered(worker, task)?;
        let arrived = self.schedule.arrived(task, arrival);
        arrived.map_err(|_| {
            Error::misbehaved(worker, format!("it answered task {task}, which is not its to answer"))
        })?;
        self.finish_idle_workers();
        Ok(())
    }

    /// A report must be under the lease that its task was given, by the worker that it was given to.
    pub(super) fn check_lease(&self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let sent = self.place_of(task).map(|place| &self.tasks[place]);
        if sent.is_some_and(|sent| sent.worker == worker && sent.lease == Some(lease)) {
            return Ok(());
        }
        Err(Error::misbehaved(worker, format!("it answered task {task} under a lease that it does not have")))
    }

    /// The batch in an arrival's slot, and where it leaves its shard.
    pub(super) fn open(&self, batch: u64, worker: usize, arrival: Arrival) -> (ShardEnd, Result<B, Error>) {
        let (lease, encoded, held, position) = match arrival {
            Arrival::NotSent(error) => return (ShardEnd::default(), Err(*error)),
            Arrival::Failed { failure, position, ended } => {
                let end = ShardEnd { position, snapshot: None, is_last: ended };
                return (end, Err(Error::from_failure(*failure, batch, Some(worker))));
            }
            Arrival::Batch { lease, encoded, held, position } => (lease, encoded, held, position),
        };
        let unreadable = |problem: String| Error::BatchNotReadable { batch, worker, problem };
        let loan = self.slots.lend(lease, held).map_err(|error| unreadable(error.to_string()));
        let decoded = loan.and_then(|loan| {
            let decoded = match self.supply.has_shards() {
                true => lent::decode::<ShardBatch<B>>(loan, encoded),
                false => lent::decode(loan, encoded).map(|batch| (None, batch)),
            };
            decoded.map_err(|error| unreadable(error.to_string()))
        });
        match decoded {
            Ok((snapshot, batch)) => (ShardEnd { position, snapshot, is_last: false }, Ok(batch)),
            Err(error) => (ShardEnd { position, ..ShardEnd::default() }, Err(error)),
        }
    }
}
