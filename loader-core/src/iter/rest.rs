//! Workers between two epochs: PyTorch's `persistent_workers`.
//!
//! An iterator that is over, or dropped, sends its workers home instead of ending them. The next one takes them from there: each is told
//! that another epoch begins ([`Order::Resume`](loader_ipc::frame::Order::Resume)) and says so when all that it was told before is
//! answered. What was left undone is taken back or given up at the next sample, not loaded to its end as in PyTorch.

use std::{
    collections::BTreeSet,
    io, mem,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use loader_ipc::{
    frame::{Event, Lease, Report},
    slots::SlotPool,
};

use crate::{error::Error, pool::Pool, report::WorkerReport};

/// Why a worker gets no larger slot for a batch of an abandoned epoch.
pub(super) const ABANDONED: &str = "the epoch was abandoned";

/// Longest wait without a look at the workers: the net under the reaper.
pub(super) const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long workers get to come to the end of the sample that they are on, where the loader has no `timeout`: as long as to end.
const RESUME_DEADLINE: Duration = Duration::from_secs(5);

/// The loader's side: where its workers rest.
#[derive(Debug, Default)]
pub(crate) struct Bench(Arc<Mutex<Option<Resting>>>);

/// An iterator's side.
#[derive(Debug, Clone)]
pub(crate) struct Home(Weak<Mutex<Option<Resting>>>);

/// Workers at rest. Dropped, they are ended.
#[derive(Debug)]
pub(super) struct Resting {
    /// `None` once the next iterator has them.
    pool: Option<Pool>,
    /// The leases that they hold on tasks that nobody waits for any more, each with its worker.
    unanswered: Vec<(usize, Lease)>,
    slots: SlotPool,
}

impl Bench {
    /// The address that an iterator sends the workers to.
    pub(crate) fn home(&self) -> Home {
        Home(Arc::downgrade(&self.0))
    }

    /// Workers that are ready for `epoch`, if any rest here. Waits for what they are doing, for `timeout` at most.
    ///
    /// # Errors
    /// When they cannot go on. They are ended then.
    pub(crate) fn take(&self, epoch: u64, timeout: Option<Duration>) -> Result<Option<Pool>, Error> {
        let resting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut resting) = resting else { return Ok(None) };
        resting.resume(epoch, timeout.unwrap_or(RESUME_DEADLINE).min(MOST_PATIENCE))?;
        Ok(resting.pool.take())
    }
}

/// A deadline further away is none; an `Instant` cannot hold any.
const MOST_PATIENCE: Duration = Duration::from_secs(1 << 30);

impl Home {
    /// Takes workers in. Where the loader is gone, and where others rest already, they are ended.
    pub(super) fn receive(&self, resting: Resting) {
        let Some(bench) = self.0.upgrade() else { return };
        let mut place = bench.lock().unwrap_or_else(PoisonError::into_inner);
        let unwanted = if place.is_none() { place.replace(resting) } else { Some(resting) };
        // Ending them takes time that nobody else should wait for.
        drop(place);
        drop(unwanted);
    }
}

fn impossible(worker: usize) -> Error {
    Error::misbehaved(worker, "it said what cannot be when it was to resume")
}

impl Resting {
    pub(super) fn new(pool: Pool, unanswered: Vec<(usize, Lease)>, slots: SlotPool) -> Self {
        Self { pool: Some(pool), unanswered, slots }
    }

    /// Tells the workers that `epoch` begins, and waits until each has answered what it was told before.
    fn resume(&mut self, epoch: u64, patience: Duration) -> Result<(), Error> {
        let Self { pool: Some(pool), unanswered, slots } = self else { return Ok(()) };
        if !pool.is_owned() {
            let source = io::Error::other("the workers are its parent's");
            return Err(Error::System { what: "resuming in a forked process", source });
        }
        pool.resume(epoch)?;
        let deadline = Instant::now() + patience;
        let mut resumed = vec![false; pool.len()];
        let mut refused = BTreeSet::new();
        while let Some(late) = resumed.iter().position(|&resumed| !resumed) {
            // Whoever has much to say does not hold it up.
            if Instant::now() >= deadline {
                let waiting_for = pool.doing(late);
                return Err(Error::TimedOut { after: patience, waiting_for, is_final: false });
            }
            let Some(report) = pool.receive(deadline.min(Instant::now() + LIVENESS_INTERVAL))? else {
                pool.look_for_exits();
                continue;
            };
            let (worker, event) = match report {
                Report::Event { worker, event } => (worker, event),
                Report::Exited { worker, status, .. } => {
                    return Err(Error::System {
                        what: "resuming",
                        source: io::Error::other(format!("{} {status}", pool.doing(worker))),
                    });
                }
                Report::Started { .. } => continue,
            };
            let (task, lease, held) = match event {
                Event::Ready => {
                    pool.note_opened(worker, true)?;
                    continue;
                }
                Event::NotReady { .. } => {
                    pool.note_opened(worker, false)?;
                    continue;
                }
                // That it ends is noticed when it has.
                Event::Oversized { .. } => {
                    pool.note_last_word(worker)?;
                    continue;
                }
                Event::Resumed { epoch: told } if told == epoch && !resumed[worker] => {
                    resumed[worker] = true;
                    continue;
                }
                Event::Withdrawn { task } => {
                    if !pool.saw_withdrawn(worker, task)? {
                        return Err(impossible(worker));
                    }
                    continue;
                }
                Event::NeedSlot { task, lease, .. } => {
                    if !unanswered.contains(&(worker, lease)) || !refused.insert((worker, lease.slot)) {
                        return Err(impossible(worker));
                    }
                    pool.grant(worker, task, Err(ABANDONED.to_owned()))?;
                    continue;
                }
                // Its answer comes under the same lease.
                Event::Vacated { lease, held, .. } => {
                    if !unanswered.contains(&(worker, lease)) {
                        return Err(impossible(worker));
                    }
                    slots.release(lease, held);
                    continue;
                }
                Event::Done { task, lease, held, .. }
                | Event::Failed { task, lease, held, .. }
                | Event::Skipped { task, lease, held }
                | Event::Exhausted { task, lease, held }
                | Event::LeftOut { task, lease, held, .. } => (Some(task), lease, held),
                Event::Unused { lease, .. } => (None, lease, false),
                Event::Resumed { .. } | Event::Bye => return Err(impossible(worker)),
            };
            let Some(place) = unanswered.iter().position(|&held| held == (worker, lease)) else {
                return Err(Error::misbehaved(worker, "it answered under a lease that it does not have"));
            };
            unanswered.swap_remove(place);
            slots.release(lease, held);
            if let Some(task) = task {
                pool.answered(worker, task)?;
            }
        }
        if let Some(&(worker, _)) = unanswered.first() {
            return Err(Error::misbehaved(worker, "it resumed with a task unanswered"));
        }
        pool.set_wanted();
        Ok(())
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        pool.shut_down();
        for (worker, lease) in mem::take(&mut self.unanswered) {
            // A worker that could not be killed may still write: then the slot is not used again.
            self.slots.release(lease, !pool.has_ended(worker));
        }
    }
}

/// An iterator's workers while it has them, and what is known of them afterwards.
#[derive(Debug)]
pub(super) struct Held {
    pool: Option<Pool>,
    pids: Vec<u32>,
    /// The counters that the epoch began with; when the workers are gone, those of the epoch.
    counters: Vec<WorkerReport>,
}

impl Held {
    pub(super) fn new(pool: Pool) -> Self {
        let (pids, counters) = (pool.pids(), counters(&pool));
        Self { pool: Some(pool), pids, counters }
    }

    pub(super) fn take(&mut self) -> Option<Pool> {
        self.counters = self.reports();
        self.pool.take()
    }

    /// As [`Pool::adopt`].
    pub(super) fn adopt(&mut self, worker: usize) -> Result<(), Error> {
        let Some(pool) = &mut self.pool else { return Ok(()) };
        pool.adopt(worker)?;
        self.pids[worker] = pool.pid(worker);
        Ok(())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.pids.clone()
    }

    /// What the workers did in this epoch.
    pub(super) fn reports(&self) -> Vec<WorkerReport> {
        let Some(pool) = &self.pool else { return self.counters.clone() };
        let now = counters(pool);
        now.iter().zip(&self.counters).map(|(now, before)| now.since(before)).collect()
    }

    /// True when the workers can load another epoch.
    pub(super) fn can_stay(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.is_owned() && pool.is_whole())
    }

    /// Ends the workers, if they are still here.
    pub(super) fn shut_down(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.shut_down();
        }
    }

    /// True when the worker's process is known to have ended.
    pub(super) fn has_ended(&self, worker: usize) -> bool {
        self.pool.as_ref().is_none_or(|pool| pool.has_ended(worker))
    }
}

fn counters(pool: &Pool) -> Vec<WorkerReport> {
    (0..pool.len()).map(|worker| WorkerReport::new(&pool.snapshot(worker))).collect()
}

impl Deref for Held {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool.as_ref().expect("an iterator gives its workers away when it has ended")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Pool {
        self.pool.as_mut().expect("an iterator gives its workers away when it has ended")
    }
}
