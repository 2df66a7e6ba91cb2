//! Workers between two epochs: PyTorch's `persistent_workers`.
//!
//! An iterator that is over, or dropped, sends its workers home instead of ending them. The next one takes them from there: each is told
//! that another epoch begins ([`Order::Resume`](loader_ipc::frame::Order::Resume)) and says so when all that it was told before is
//! answered. What was left undone is taken back or given up at the next sample, not loaded to its end as in PyTorch.

use std::{
    collections::BTreeSet,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use loader_ipc::{
    frame::{Event, Lease},
    slots::SlotPool,
};

use crate::{error::Error, pool::Pool, report::WorkerReport};

/// Why a worker gets no larger slot for a batch of an abandoned epoch.
pub(super) const ABANDONED: &str = "the epoch was abandoned";

/// Longest wait without a look at the workers.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// The loader's side: where its workers rest.
#[derive(Debug, Default)]
pub(crate) struct Bench(Arc<Mutex<Option<Resting>>>);

/// An iterator's side.
#[derive(Debug, Clone)]
pub(crate) struct Home(Weak<Mutex<Option<Resting>>>);

/// Leases that workers hold on tasks that nobody waits for any more.
#[derive(Debug, Default)]
pub(super) struct Unanswered(BTreeSet<(usize, u32, u32)>);

/// Workers at rest.
#[derive(Debug)]
struct Resting {
    pool: Pool,
    unanswered: Unanswered,
}

impl Bench {
    /// The address that an iterator sends the workers to.
    pub(crate) fn home(&self) -> Home {
        Home(Arc::downgrade(&self.0))
    }

    /// Workers that are ready for `epoch`, if any rest here that can go on. Waits for what they are doing: at most `timeout`, if there is
    /// one, after which they are ended.
    pub(crate) fn take(&self, epoch: u64, slots: &SlotPool, timeout: Option<Duration>) -> Option<Pool> {
        let resting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // Otherwise they are ended here, and the next epoch starts others.
        resting.resume(epoch, slots, deadline).ok()
    }
}

impl Home {
    pub(super) fn receive(&self, pool: Pool, unanswered: Unanswered) {
        // Where the loader is gone, and where others rest already, the workers end.
        let Some(bench) = self.0.upgrade() else { return };
        let mut place = bench.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Some(Resting { pool, unanswered });
        }
    }
}

impl Unanswered {
    pub(super) fn push(&mut self, worker: usize, lease: Lease) {
        self.0.insert((worker, lease.slot, lease.generation));
    }

    fn remove(&mut self, worker: usize, lease: Lease) -> bool {
        self.0.remove(&(worker, lease.slot, lease.generation))
    }
}

impl Resting {
    fn resume(mut self, epoch: u64, slots: &SlotPool, deadline: Option<Instant>) -> Result<Pool, Error> {
        if !self.pool.is_owned() {
            // A forked child: the workers are its parent's.
            return Err(Error::System {
                what: "resuming in a forked process",
                source: std::io::ErrorKind::Other.into(),
            });
        }
        self.pool.resume(epoch)?;
        let mut left = self.pool.len();
        while left > 0 {
            let wake_at = Instant::now() + LIVENESS_INTERVAL;
            let Some(report) =
                self.pool.receive(deadline.map_or(wake_at, |deadline| deadline.min(wake_at)))?
            else {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(misbehaved(0, "it did not resume in time"));
                }
                self.pool.look_for_exits();
                continue;
            };
            let worker = report.worker;
            let (task, lease, held) = match report.event {
                Event::Ready | Event::Bye => continue,
                Event::NotReady { .. } => {
                    self.pool.set_unfit(worker);
                    continue;
                }
                Event::Resumed { epoch: resumed } if resumed == epoch => {
                    left -= 1;
                    continue;
                }
                Event::Withdrawn { task } => {
                    self.pool.answered(worker, task)?;
                    continue;
                }
                Event::NeedSlot { task, .. } => {
                    self.pool.grant(worker, task, Err(ABANDONED.to_owned()))?;
                    continue;
                }
                Event::Done { task, lease, held, .. } | Event::Failed { task, lease, held, .. } => {
                    (Some(task), lease, held)
                }
                Event::Skipped { task, lease } | Event::Exhausted { task, lease } => {
                    (Some(task), lease, false)
                }
                Event::Unused { lease, .. } => (None, lease, false),
                Event::Resumed { .. } | Event::Exited { .. } => {
                    return Err(misbehaved(worker, "it cannot go on"));
                }
            };
            if !self.unanswered.remove(worker, lease) {
                return Err(misbehaved(worker, "it answered under a lease that it does not have"));
            }
            slots.release(lease, held);
            if let Some(task) = task {
                self.pool.answered(worker, task)?;
            }
        }
        if !self.unanswered.0.is_empty() {
            return Err(misbehaved(0, "it resumed with tasks unanswered"));
        }
        self.pool.set_wanted();
        Ok(self.pool)
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

fn misbehaved(worker: usize, problem: &str) -> Error {
    Error::WorkerMisbehaved { worker, problem: problem.to_owned() }
}
