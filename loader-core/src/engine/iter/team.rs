//! Keeps workers together with their coordinator, both in an iterator and between two epochs.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    patience::{Patience, RunClock},
    process::WorkerProcess,
    profile::Profile,
    slots::SlotPool,
};

use crate::{
    engine::{
        coordinator::{Coordinator, Next, Supply, WorkerOptions},
        interrupt::Interrupt,
        pool::Pool,
        start_wait::StartWait,
        tuner::Setting,
    },
    error::{Error, exit::WorkerActivity},
    launch::memory,
    report::{
        epoch_report::WorkerReport,
        figures::ResourceUse,
        load_times::{LoadTimes, PhaseTimes},
        trace::PassTracer,
    },
    state::Position,
};

/// Maximum time for a worker to finish its current sample before the next epoch, if the loader has no `timeout`. It
/// equals the time that workers get to end.
const RESUME_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time until that deadline, and with `move_tasks = false`: then workers load what they were sent to the end,
/// as in PyTorch, which waits for them. A longer `timeout` is reduced to this value, because adding it to an `Instant`
/// could overflow.
const MAX_RESUME_DEADLINE: Duration = Duration::from_secs(1 << 30);

/// Main measures the decoding of one of this many batches.
const DECODE_INTERVAL: u32 = 16;

/// Running workers, and the coordinator that decides what they do. Dropping a team ends its workers.
#[derive(Debug)]
pub(crate) struct Team {
    pub(super) pool: Pool,
    pub(super) coordinator: Coordinator,
    /// The coordinator's clock.
    clock: RunClock,
    /// Number of the launcher's processes on this machine, which share its memory.
    processes: u64,
    /// When the number of workers changed last, or the epoch began.
    changed: Instant,
    /// Time for which there were workers in this epoch before that, all of them together.
    worker_time: Duration,
    /// What each worker had measured at the beginning of the epoch. Later workers had measured nothing.
    profiles_before: Vec<Profile>,
    pub(super) decoding: Decoding,
    pub(super) trace: Option<PassTracer>,
    /// Number of the task whose batch the program got last.
    pub(super) last_task: Option<u64>,
    /// Number of spans of each worker that were collected for the trace.
    spans_seen: Vec<u64>,
    /// The epoch that the workers were told to begin, while main has not seen that all of them have.
    resuming: Option<u64>,
}

/// The time in which main decodes batches, measured for one of [`DECODE_INTERVAL`] batches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decoding {
    batches: u32,
    time: Duration,
}

impl Decoding {
    /// Calls `decode`, and measures it if it is due.
    pub(super) fn measure<R>(&mut self, decode: impl FnOnce() -> R) -> R {
        self.batches = self.batches.wrapping_add(1);
        if self.batches % DECODE_INTERVAL != 1 {
            return decode();
        }
        let started = Instant::now();
        let result = decode();
        self.time += started.elapsed();
        result
    }

    /// Returns the mean time; `None` before the first batch.
    pub(super) fn mean(self) -> Option<Duration> {
        let measured = self.batches.div_ceil(DECODE_INTERVAL);
        self.time.checked_div(measured)
    }
}

/// What an iterator still knows of its epoch once its team is gone.
#[derive(Debug, Clone, Default)]
pub(super) struct Summary {
    /// The user's position in the epoch.
    pub(super) position: Position,
    /// True if the epoch had no more batches, and no part of it is left for a resumed run.
    pub(super) is_over: bool,
    /// True if an error has left a part of the epoch for a resumed run.
    pub(super) has_rest: bool,
    /// The number of batches that the sampler announced and the number that it has yielded, if they differ.
    pub(super) miscount: Option<(usize, u64)>,
    pub(super) pids: Vec<u32>,
    /// What each worker did in the epoch.
    pub(super) workers: Vec<WorkerReport>,
    /// What the workers used in the epoch.
    pub(super) used: ResourceUse,
    /// Number of workers that should have got tasks at the end.
    pub(super) target_workers: usize,
    /// Number of workers that were replaced.
    pub(super) restarts: u64,
    pub(super) times: LoadTimes,
    pub(super) main_decode: Option<Duration>,
}

impl Team {
    /// Takes over workers that have just been started.
    pub(crate) fn new(
        pool: Pool,
        options: WorkerOptions,
        supply: Supply,
        slots: &SlotPool,
        persistent: bool,
        trace: Option<PassTracer>,
    ) -> Self {
        let processes = options.processes.max(1) as u64;
        let mut clock = RunClock::default();
        let coordinator = Coordinator::new(options, supply, slots, persistent, clock.now(), &pool);
        Self {
            pool,
            coordinator,
            clock,
            processes,
            changed: Instant::now(),
            worker_time: Duration::ZERO,
            profiles_before: Vec::new(),
            decoding: Decoding::default(),
            trace,
            last_task: None,
            spans_seen: Vec::new(),
            resuming: None,
        }
    }

    /// Returns the number of workers that get tasks, or will once they run.
    pub(crate) fn workers(&self) -> usize {
        self.coordinator.workers()
    }

    /// Begins another epoch with workers that have resumed.
    pub(crate) fn begin_epoch(&mut self, supply: Supply, slots: &SlotPool, trace: Option<PassTracer>) {
        // Spans of batches that the last epoch has abandoned.
        self.collect_spans();
        self.trace = trace;
        self.last_task = None;
        self.coordinator.begin_epoch(supply, slots, self.clock.now(), &mut self.pool);
        self.changed = Instant::now();
        self.worker_time = Duration::ZERO;
        self.profiles_before = (0..self.pool.len()).map(|worker| self.pool.profile(worker).read()).collect();
        self.decoding = Decoding::default();
    }

    /// Sends tasks while the window has room for them.
    pub(super) fn send_tasks(&mut self) -> Result<(), Error> {
        self.coordinator.send_tasks(self.clock.now(), &mut self.pool)
    }

    /// Sets the number of workers that get tasks.
    pub(super) fn set_workers(&mut self, workers: usize) {
        (self.worker_time, self.changed) = (self.worker_time(), Instant::now());
        self.coordinator.set_workers(workers, self.clock.now(), &mut self.pool);
    }

    fn worker_time(&self) -> Duration {
        let workers = u32::try_from(self.coordinator.workers()).unwrap_or(u32::MAX);
        self.worker_time + self.changed.elapsed() * workers
    }

    /// Returns what the workers have used in this epoch.
    pub(super) fn resource_use(&self) -> ResourceUse {
        let mut used = ResourceUse { worker_time: self.worker_time(), ..ResourceUse::default() };
        for worker in self.coordinator.worker_reports(&self.pool) {
            used.worker_busy += worker.busy;
            used.worker_cpu += worker.cpu;
            used.worker_cpu_wait += worker.cpu_wait;
        }
        used
    }

    /// Returns what each worker has measured in this epoch.
    fn profiles(&self) -> Vec<Profile> {
        let nothing = Profile::default();
        let profile = |worker| {
            let before = self.profiles_before.get(worker).unwrap_or(&nothing);
            self.pool.profile(worker).read().since(before)
        };
        (0..self.pool.len()).map(profile).collect()
    }

    /// Returns the times of this epoch, and what each worker has done in it.
    pub(super) fn measured(&self) -> (LoadTimes, Vec<WorkerReport>) {
        let (epoch, profiles) = (self.coordinator.epoch(), self.profiles());
        let slowest = (0..self.pool.len()).flat_map(|worker| self.pool.profile(worker).slowest(epoch));
        let mut reports: Vec<_> = self.coordinator.worker_reports(&self.pool).collect();
        for (report, profile) in reports.iter_mut().zip(&profiles) {
            report.phases = PhaseTimes::new(profile);
        }
        (LoadTimes::new(&profiles, slowest), reports)
    }

    /// Adds the spans that workers have written since the last call to the trace.
    pub(super) fn collect_spans(&mut self) {
        let Some(trace) = &self.trace else { return };
        self.spans_seen.resize(self.pool.len(), 0);
        for (worker, seen) in self.spans_seen.iter_mut().enumerate() {
            trace.collect(Some(worker), self.pool.profile(worker), seen);
        }
    }

    /// Returns the maximum number of batches that can be ready.
    pub(super) fn window(&self) -> u64 {
        self.coordinator.unreturned() as u64
    }

    /// Returns the number of batches that the workers have loaded in this epoch.
    pub(super) fn loaded(&self) -> u64 {
        self.coordinator.loaded(&self.pool)
    }

    /// Returns the private memory of the largest worker, in bytes.
    pub(super) fn largest_worker(&self) -> Option<u64> {
        self.pool.running().filter_map(WorkerProcess::private_memory).max()
    }

    /// Returns how many workers of `worker_memory` bytes fit: the present ones, and others in this process's part of
    /// half of the memory that is available.
    pub(super) fn affordable_workers(&self, worker_memory: u64) -> usize {
        let part = memory::available().unwrap_or(u64::MAX) / 2 / self.processes;
        let added = part / worker_memory.max(1);
        self.workers().saturating_add(usize::try_from(added).unwrap_or(usize::MAX))
    }

    /// Sets the number of workers and the prefetch factor.
    pub(super) fn apply_setting(&mut self, Setting { workers, prefetch_factor }: Setting) {
        self.coordinator.set_prefetch_factor(prefetch_factor);
        if workers != self.coordinator.workers() {
            self.set_workers(workers);
        }
    }

    /// Waits until the user's next batch has arrived. False if the epoch is over.
    pub(super) fn wait(&mut self, mut interrupt: Option<&mut Interrupt>) -> Result<bool, Error> {
        self.coordinator.slots().set_user(thread::current().id());
        let started = self.clock.now();
        self.coordinator.start_wait(started);
        if let Some(interrupt) = &mut interrupt {
            interrupt.start_wait(started);
        }
        loop {
            let now = self.clock.now();
            match self.coordinator.poll(now, &mut self.pool)? {
                Next::Return => return Ok(true),
                Next::End => return Ok(false),
                Next::Receive { until, then_check_exits } => {
                    if interrupt.as_mut().is_some_and(|interrupt| interrupt.is_wanted(now)) {
                        self.coordinator.pause_wait(now);
                        return Err(Error::Interrupted);
                    }
                    let until = interrupt.as_ref().map_or(until, |interrupt| until.min(interrupt.due()));
                    self.receive(until, then_check_exits)?;
                }
            }
        }
    }

    /// Waits for a report until the time `until` of the coordinator's clock, and handles it. If none arrives and
    /// `then_check_exits` is true, looks for workers that have ended.
    fn receive(&mut self, until: Instant, then_check_exits: bool) -> Result<(), Error> {
        let Self { pool, coordinator, clock, .. } = self;
        match pool.receive(clock.pause_until(until)) {
            Ok(Some(report)) => coordinator.handle(report, clock.now(), pool),
            Ok(None) => {
                if then_check_exits {
                    pool.look_for_exits();
                }
                Ok(())
            }
            Err(error) => coordinator.receive_failed(error, pool),
        }
    }

    /// Tells the workers that `epoch` begins, and waits until each has answered everything that it was sent
    /// before, for at most `limit` after the last answer.
    fn resume(&mut self, epoch: u64, limit: Duration, wait: &mut StartWait<'_>) -> Result<(), Error> {
        if !self.pool.is_owned() {
            let source = io::Error::other("the workers are its parent's");
            return Err(Error::System { what: "resuming in a forked process", source });
        }
        if self.resuming != Some(epoch) {
            self.coordinator.start_resuming(epoch, &mut self.pool)?;
            self.resuming = Some(epoch);
        }
        let mut patience = Patience::new(limit);
        let mut unanswered = self.coordinator.unanswered();
        while let Some(late) = self.coordinator.not_resumed() {
            if wait.look(patience.waited(), || self.doing(late))
                && let Some(error) = wait.error()
            {
                return Err(error);
            }
            if self.coordinator.unanswered() < unanswered {
                unanswered = self.coordinator.unanswered();
                patience.begin_again(limit);
            }
            // Checked after each report too: other reports than answers must not extend the deadline.
            if patience.is_over() {
                return Err(Error::TimedOut { after: limit, waiting_for: self.doing(late) });
            }
            patience.step(|step| {
                let until = self.clock.now() + step;
                self.receive(until, true)
            })?;
        }
        self.resuming = None;
        Ok(())
    }

    fn doing(&self, worker: usize) -> WorkerActivity {
        WorkerActivity::new(worker, self.pool.pid(worker), &self.pool.snapshot(worker))
    }

    pub(super) fn summary(&self) -> Summary {
        let (times, workers) = self.measured();
        Summary {
            position: self.coordinator.position(),
            is_over: self.coordinator.is_over(),
            has_rest: self.coordinator.has_rest(),
            miscount: self.coordinator.miscount(),
            pids: self.pool.pids(),
            workers,
            used: self.resource_use(),
            target_workers: self.coordinator.workers(),
            restarts: self.coordinator.restarts(),
            times,
            main_decode: self.decoding.mean(),
        }
    }

    /// True if the workers can load another epoch.
    fn can_rest(&self) -> bool {
        self.pool.is_owned() && self.coordinator.can_rest(&self.pool)
    }

    /// Ends the workers, and releases their leases.
    pub(super) fn shut_down(&mut self) {
        self.pool.shut_down();
        for (worker, lease) in self.coordinator.take_leases() {
            // A worker that could not be killed may still write to its slot, so the slot is not used again.
            self.coordinator.slots().release(lease, !self.pool.has_ended(worker));
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The loader's reference to the team that persistent workers form while no iterator uses them.
#[derive(Debug, Default)]
pub(crate) struct IdleTeam(Arc<Mutex<Option<Team>>>);

/// An iterator's reference to the loader's [`IdleTeam`], to which its team returns.
#[derive(Debug, Clone)]
pub(crate) struct WeakIdleTeam(Weak<Mutex<Option<Team>>>);

impl IdleTeam {
    pub(crate) fn downgrade(&self) -> WeakIdleTeam {
        WeakIdleTeam(Arc::downgrade(&self.0))
    }

    /// Takes the team, if there is one, and prepares it for `epoch`. Waits until its workers have answered
    /// what they were sent: after each answer for at most the loader's `timeout`.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: the wait was interrupted. The next call goes on with it, if `epoch` is the same.
    /// - Any other error: the workers cannot continue, and were ended.
    pub(crate) fn take(
        &self,
        epoch: u64,
        options: &WorkerOptions,
        wait: &mut StartWait<'_>,
    ) -> Result<Option<Team>, Error> {
        let team = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Workers that were told to begin another epoch are ended.
        let team = team.filter(|team| team.resuming.is_none_or(|begun| begun == epoch));
        let Some(mut team) = team else { return Ok(None) };
        let limit = if options.move_tasks { RESUME_DEADLINE } else { MAX_RESUME_DEADLINE };
        match team.resume(epoch, options.timeout.unwrap_or(limit).min(MAX_RESUME_DEADLINE), wait) {
            Ok(()) => Ok(Some(team)),
            Err(Error::Interrupted) => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(team);
                Err(Error::Interrupted)
            }
            Err(error) => Err(error),
        }
    }
}

impl WeakIdleTeam {
    /// Gives the team to the loader if the workers can load another epoch and the loader exists and has no
    /// idle team. Otherwise returns the team.
    pub(super) fn put(&self, mut team: Team) -> Option<Team> {
        let Some(idle) = self.0.upgrade().filter(|_| team.can_rest()) else { return Some(team) };
        // This precedes the lock because it may wait for a worker's lifeline.
        team.coordinator.rest(&mut team.pool);
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        match &*idle {
            Some(_) => Some(team),
            None => {
                *idle = Some(team);
                None
            }
        }
    }
}
