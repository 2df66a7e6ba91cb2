//! Workers with their coordinator: while an iterator has them, and between two epochs.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use loader_ipc::slots::SlotPool;

use crate::{
    coordinator::{Coordinator, Epochs, LIVENESS_INTERVAL, Next, Supply},
    error::{Doing, Error},
    pool::Pool,
    report::WorkerReport,
    state::Place,
};

/// How long workers may take to finish the sample that they are on before the next epoch, if the loader has no `timeout`. They
/// get as long to end.
const RESUME_DEADLINE: Duration = Duration::from_secs(5);
/// A deadline further away is none; an `Instant` cannot hold any.
const MAX_RESUME_DEADLINE: Duration = Duration::from_secs(1 << 30);

/// Running workers, and what decides what they do. Dropped, it ends the workers.
#[derive(Debug)]
pub(crate) struct Team {
    pub(super) pool: Pool,
    pub(super) coordinator: Coordinator,
}

/// What is known of an epoch when its workers are gone.
#[derive(Debug, Clone, Default)]
pub(super) struct Summary {
    /// The user's place; `None` at the end.
    pub(super) place: Option<Place>,
    /// The number of batches that the sampler announced and the number that it has given, if they differ.
    pub(super) miscount: Option<(usize, u64)>,
    pub(super) pids: Vec<u32>,
    /// What each worker did in the epoch.
    pub(super) workers: Vec<WorkerReport>,
    /// Number of workers that were replaced.
    pub(super) restarts: u64,
}

impl Team {
    /// Takes over workers that have just been started.
    pub(crate) fn new(pool: Pool, options: Epochs, supply: Supply, slots: &SlotPool, stays: bool) -> Self {
        let coordinator = Coordinator::new(options, supply, slots, stays, Instant::now(), &pool);
        Self { pool, coordinator }
    }

    /// Begins another epoch with workers that have resumed.
    pub(crate) fn begin_epoch(&mut self, supply: Supply, slots: &SlotPool) {
        self.coordinator.begin_epoch(supply, slots, Instant::now(), &mut self.pool);
    }

    /// Sends tasks while there is room for them.
    pub(super) fn send_tasks(&mut self) -> Result<(), Error> {
        self.coordinator.send_tasks(Instant::now(), &mut self.pool)
    }

    /// Waits until the user's next batch has arrived. False if the epoch is over.
    pub(super) fn wait(&mut self) -> Result<bool, Error> {
        self.coordinator.start_wait(Instant::now());
        loop {
            match self.coordinator.poll(Instant::now(), &mut self.pool)? {
                Next::Return => return Ok(true),
                Next::End => return Ok(false),
                Next::Receive { until, then_look } => self.receive(until, then_look)?,
            }
        }
    }

    /// Receives and handles a report, until a time. If there is none by then, looks for workers that have ended, if
    /// `then_look`.
    fn receive(&mut self, until: Instant, then_look: bool) -> Result<(), Error> {
        let Self { pool, coordinator } = self;
        match pool.receive(until) {
            Ok(Some(report)) => coordinator.handle(report, Instant::now(), pool),
            Ok(None) => {
                if then_look {
                    pool.look_for_exits();
                }
                Ok(())
            }
            Err(error) => coordinator.receive_failed(error, pool),
        }
    }

    /// Tells the workers that `epoch` begins, and waits until each has answered what it was told before, for `patience` at most.
    fn resume(&mut self, epoch: u64, patience: Duration) -> Result<(), Error> {
        if !self.pool.is_owned() {
            let source = io::Error::other("the workers are its parent's");
            return Err(Error::System { what: "resuming in a forked process", source });
        }
        self.coordinator.start_resuming(epoch, &mut self.pool)?;
        let deadline = Instant::now() + patience;
        while let Some(late) = self.coordinator.not_resumed() {
            let now = Instant::now();
            // Also while reports come: a worker that sends many of them must not extend the deadline.
            if now >= deadline {
                let waiting_for = self.doing(late);
                return Err(Error::TimedOut { after: patience, waiting_for, is_final: false });
            }
            self.receive(deadline.min(now + LIVENESS_INTERVAL), true)?;
        }
        Ok(())
    }

    fn doing(&self, worker: usize) -> Doing {
        Doing::new(worker, self.pool.pid(worker), &self.pool.snapshot(worker))
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            place: self.coordinator.place(),
            miscount: self.coordinator.miscount(),
            pids: self.pool.pids(),
            workers: self.coordinator.worker_reports(&self.pool),
            restarts: self.coordinator.restarts(),
        }
    }

    /// True if the workers can load another epoch.
    fn can_rest(&self) -> bool {
        self.pool.is_owned() && self.coordinator.can_rest(&self.pool)
    }

    /// Ends the workers, and gives back their leases.
    pub(super) fn shut_down(&mut self) {
        self.pool.shut_down();
        for (worker, lease) in self.coordinator.take_leases() {
            // A worker that could not be killed may still write: its slot is not used again.
            self.coordinator.slots().release(lease, !self.pool.has_ended(worker));
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The loader's side of `persistent_workers`: a team that no iterator has.
#[derive(Debug, Default)]
pub(crate) struct IdleTeam(Arc<Mutex<Option<Team>>>);

/// An iterator's side: where its team goes when it is not needed any more.
#[derive(Debug, Clone)]
pub(crate) struct WeakIdleTeam(Weak<Mutex<Option<Team>>>);

impl IdleTeam {
    pub(crate) fn downgrade(&self) -> WeakIdleTeam {
        WeakIdleTeam(Arc::downgrade(&self.0))
    }

    /// Takes the team, if there is one, and makes it ready for `epoch`. Waits for what its workers are doing, for `timeout` at
    /// most.
    ///
    /// # Errors
    /// If the workers cannot go on. They are ended then.
    pub(crate) fn take(&self, epoch: u64, timeout: Option<Duration>) -> Result<Option<Team>, Error> {
        let team = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut team) = team else { return Ok(None) };
        team.resume(epoch, timeout.unwrap_or(RESUME_DEADLINE).min(MAX_RESUME_DEADLINE))?;
        Ok(Some(team))
    }
}

impl WeakIdleTeam {
    /// Takes a team in, if its workers can load another epoch and the loader has no idle team. Otherwise returns the team.
    pub(super) fn put(&self, mut team: Team) -> Option<Team> {
        let Some(idle) = self.0.upgrade().filter(|_| team.can_rest()) else { return Some(team) };
        // Before the lock, since it may wait for a worker's lifeline.
        team.coordinator.rest(&mut team.pool);
        let mut place = idle.lock().unwrap_or_else(PoisonError::into_inner);
        match &*place {
            Some(_) => Some(team),
            None => {
                *place = Some(team);
                None
            }
        }
    }
}
