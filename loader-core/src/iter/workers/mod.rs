//! An epoch on worker processes: tasks go out ahead of the user, batches come back in any order and are handed on in theirs.

mod deaths;
mod dispatch;
mod hedges;
mod leases;
mod leave;
mod reports;
mod stalls;
mod stuck;
mod suspects;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use loader_ipc::{
    arena::Encoded,
    fault::{self, Point},
    frame::{BadSample, Failure, Lease},
    slots::SlotPool,
};

use deaths::Deaths;
use hedges::Hedges;
use reports::Opened;
use stalls::Stalls;
use stuck::Looks;

use super::{
    Step,
    rest::{Held, Home, LIVENESS_INTERVAL},
    supply::{Supply, Wanted},
};
use crate::{
    collate::Batch,
    error::{Doing, Error},
    options::OnBadSample,
    pool::Pool,
    report::WorkerReport,
    schedule::Schedule,
    state::Place,
    warning::{Warn, Warning},
};

/// How long the user waits for a batch before tasks are moved from busy workers to idle ones. A shorter wait is not worth it.
const MOVE_AFTER: Duration = Duration::from_millis(1);

/// How often to look for slots of other iterators, which come back without a report to this one.
const STARVED_INTERVAL: Duration = Duration::from_millis(2);

/// How an epoch is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    pub(crate) workers: usize,
    pub(crate) prefetch_factor: usize,
    pub(crate) in_order: bool,
    pub(crate) timeout: Option<Duration>,
    /// How long the user waits before it is said for whom.
    pub(crate) warn_after: Option<Duration>,
    /// Max number of deaths of a worker in a row outside of tasks after which it is started again.
    pub(crate) most_deaths: u32,
    pub(crate) on_bad_sample: OnBadSample,
    /// Longest time for a sample.
    pub(crate) sample_timeout: Option<Duration>,
    /// Most bytes of its own that a worker may have in memory.
    pub(crate) memory_limit: Option<u64>,
    /// Late batches are given to a second worker.
    pub(crate) hedge: bool,
}

/// The batches of one epoch.
pub(crate) struct WorkerIter<B> {
    pool: Held,
    /// Where the workers go when they are no longer needed here, if they are to stay.
    home: Option<Home>,
    slots: SlotPool,
    options: Epochs,
    warn: Warn,
    supply: Supply,
    schedule: Schedule<Arrival>,
    /// The tasks in the schedule's window, oldest first.
    tasks: VecDeque<Sent>,
    /// Tasks whose batch needs a larger slot than there is room for yet, by number.
    requests: BTreeMap<u64, Request>,
    /// Tasks in the window whose slot was taken back, by number. They are given to their workers again when there is room.
    parked: BTreeSet<u64>,
    /// Since when this iterator waits for slots of other iterators.
    starved: Option<Starved>,
    /// The worker that wrote a slot last, by number of the slot; of those that are large enough to be offered.
    writers: BTreeMap<u32, usize>,
    /// Slots that were offered for a task and neither taken nor given back yet, by number of the task.
    offers: BTreeMap<u64, (usize, Lease)>,
    hedges: Hedges,
    deaths: Deaths,
    looks: Looks,
    stalls: Stalls,
    /// Samples that are not tried any more, and why.
    known_bad: BTreeMap<usize, String>,
    /// Tasks whose samples are not to be loaded many at once: one of them has ended a worker.
    one_by_one: BTreeSet<u64>,
    /// An error that ends the iteration, to be returned after the batch that was whole when it came.
    last_error: Option<Error>,
    /// Set after the end and after an error that ends the iteration.
    ended: bool,
    batch: PhantomData<fn() -> B>,
}

/// A task on its way.
#[derive(Debug)]
struct Sent {
    number: u64,
    worker: usize,
    wanted: Wanted,
    /// The slot it is loaded into; `None` when it holds none (any more).
    lease: Option<Lease>,
    /// Its worker has asked for a larger one.
    has_asked: bool,
    /// Its worker has given the slot back, and waits for a larger one. The lease is over; the worker still answers under it.
    has_vacated: bool,
}

/// A worker's request for a larger slot. The worker waits until main answers.
#[derive(Debug, Clone, Copy)]
struct Request {
    worker: usize,
    lease: Lease,
    needed: usize,
    vacate: Vacate,
}

/// Whether a worker that waits for a larger slot has been asked for the one that it has.
#[derive(Debug, Clone, Copy)]
enum Vacate {
    No,
    Asked,
    Done,
}

/// Since when no slot of another iterator has come back.
#[derive(Debug, Clone, Copy)]
struct Starved {
    since: Instant,
    /// Slots that had come back by then.
    returned: u64,
}

/// What came back for a task.
#[derive(Debug)]
enum Arrival {
    Batch {
        lease: Lease,
        encoded: Encoded,
        held: bool,
        position: u64,
        bad: Vec<BadSample>,
    },
    /// All of it was left out.
    LeftOut {
        position: u64,
        bad: Vec<BadSample>,
    },
    Failed {
        failure: Box<Failure>,
        position: u64,
        ended: bool,
    },
    /// No worker was asked, or none can be asked any more.
    Lost(Box<Error>),
}

impl<B: Batch> WorkerIter<B> {
    /// Takes over running workers and gives them their first tasks.
    pub(crate) fn new(
        pool: Pool,
        home: Option<Home>,
        slots: SlotPool,
        options: Epochs,
        warn: Warn,
        supply: Supply,
    ) -> Result<Self, Error> {
        let schedule = supply.schedule(options.workers, options.prefetch_factor, options.in_order);
        let deaths = Deaths::new(options.workers, options.most_deaths);
        let looks = Looks::new(options.workers);
        let mut iter = Self {
            pool: Held::new(pool),
            home,
            slots: slots.of_iterator(),
            options,
            warn,
            supply,
            schedule,
            tasks: VecDeque::new(),
            requests: BTreeMap::new(),
            parked: BTreeSet::new(),
            starved: None,
            offers: BTreeMap::new(),
            writers: BTreeMap::new(),
            hedges: Hedges::default(),
            deaths,
            looks,
            stalls: Stalls::default(),
            known_bad: BTreeMap::new(),
            one_by_one: BTreeSet::new(),
            last_error: None,
            ended: false,
            batch: PhantomData,
        };
        match iter.dispatch().or_else(|error| iter.survive(error)) {
            Err(error) if error.ends_iteration() => Err(error),
            // A lack of memory is no error here: the first call of `next` tries again, and returns the error.
            _ => Ok(iter),
        }
    }

    /// Ends before the epoch does.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.home = None;
        self.pool.ask_to_end();
    }

    pub(super) fn step(&mut self) -> Option<Step<B>> {
        if self.ended {
            self.shut_down();
            return None;
        }
        if !self.pool.is_owned() {
            let source = io::Error::other(
                "a forked process cannot share its parent's workers; make an iterator of its own",
            );
            return Some((None, Err(Error::System { what: "loading in a forked process", source })));
        }
        let step = match self.last_error.take() {
            Some(error) => Err(error),
            None => self.next_batch(),
        };
        match step {
            Ok(Some(step)) => Some(step),
            Ok(None) => {
                self.ended = true;
                self.shut_down();
                None
            }
            Err(error) => {
                if error.ends_iteration() {
                    // The user learns it now; a worker that is stuck is waited for when the iterator is used again or dropped.
                    self.ended = true;
                    self.home = None;
                    self.pool.ask_to_end();
                }
                Some((None, Err(error)))
            }
        }
    }

    /// The next batch in order; `None` at the end of the epoch; an error that is of no batch.
    fn next_batch(&mut self) -> Result<Option<Step<B>>, Error> {
        if !self.wait()? {
            return Ok(None);
        }
        let (number, lane, arrival) = self.schedule.next_ready().expect("waited for");
        let Sent { worker, wanted, .. } = self.take_sent(number);
        debug_assert_eq!(worker, self.schedule.worker_of(lane));
        let Opened { end, batch, mut bad } = self.open(self.supply.number_of(number), worker, arrival);
        self.give_reasons(&mut bad);
        self.stalls.end();
        let info = self.supply.returned(number, wanted, worker, end, bad);
        // The next task before this batch is returned, so that its worker never waits for the user.
        if let Err(error) = self.dispatch().or_else(|error| self.survive(error)) {
            // For want of memory it is tried again at the next call, and told then.
            self.last_error = Some(error).filter(Error::ends_iteration);
        }
        fault::point(Point::MainReturn);
        Ok(Some((Some(info), batch)))
    }

    /// Waits until the user's next batch has arrived; false when the epoch is over.
    pub(super) fn wait(&mut self) -> Result<bool, Error> {
        // A timeout beyond the end of time is none.
        let deadline = self.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let waited = self.wait_until(deadline);
            self.looks.end_wait();
            match waited {
                Err(error) => self.survive(error)?,
                waited => return waited,
            }
        }
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<bool, Error> {
        let mut warn_at = self.options.warn_after.and_then(|patience| Instant::now().checked_add(patience));
        let (mut move_at, mut look_at) = (None, None::<Instant>);
        let waits_since = Instant::now();
        loop {
            if self.schedule.is_ready() {
                return Ok(true);
            }
            self.give_slots(true)?;
            if self.schedule.is_ready() {
                continue;
            }
            if self.schedule.is_empty() {
                // Nothing is on its way: either the epoch is over, or there was no room for a single slot.
                self.dispatch()?;
                if !self.schedule.is_empty() {
                    continue;
                }
                // Without open lanes no task is left to wait for memory.
                if self.starved.is_none() || self.schedule.is_closed() {
                    return Ok(false);
                }
            }
            self.offer_warm_slots()?;
            let now = Instant::now();
            let move_at = *move_at.get_or_insert(now + MOVE_AFTER);
            let is_early = now < move_at;
            if now >= look_at.unwrap_or(move_at) {
                look_at = Some(now + self.look_for_stuck(now));
            }
            let mut late_at = None;
            if !is_early {
                self.move_tasks()?;
                late_at = self.late_after().and_then(|patience| waits_since.checked_add(patience));
                if late_at.is_some_and(|late_at| now >= late_at) {
                    late_at = None;
                    self.hedge()?;
                }
            }
            if warn_at.is_some_and(|warn_at| now >= warn_at) {
                warn_at = None;
                self.warn_of_wait();
            }
            let wake_at = if is_early { move_at } else { now + LIVENESS_INTERVAL };
            let wake_at = if self.starved.is_some() { wake_at.min(now + STARVED_INTERVAL) } else { wake_at };
            let wake_at = late_at.map_or(wake_at, |late_at| wake_at.min(late_at));
            let wake_at = look_at.map_or(wake_at, |look_at| wake_at.min(look_at));
            let wake_at = warn_at.map_or(wake_at, |warn_at| warn_at.min(wake_at));
            match self.pool.receive(deadline.map_or(wake_at, |deadline| deadline.min(wake_at)))? {
                Some(report) => self.handle(report)?,
                None if is_early => {}
                None => self.pool.look_for_exits(),
            }
            // Also where there is always something to hear.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) && !self.schedule.is_ready() {
                return Err(self.timed_out());
            }
        }
    }

    /// Where the user stands; `None` when the end is known.
    pub(super) fn place(&self) -> Option<Place> {
        let is_over = self.schedule.is_closed() && self.schedule.is_empty() && self.tasks.is_empty();
        (!is_over).then(|| self.supply.place(&self.schedule))
    }

    fn warn_of_wait(&self) {
        let after = self.options.warn_after.unwrap_or_default();
        self.warn.warn(&Warning::LongWait { after, waiting_for: self.awaited() });
    }

    fn timed_out(&mut self) -> Error {
        let after = self.options.timeout.unwrap_or_default();
        let waiting_for = self.awaited();
        let snapshot = self.pool.snapshot(waiting_for.worker);
        let is_final = self.stalls.note(after, waiting_for.pid, &snapshot);
        Error::TimedOut { after, waiting_for, is_final }
    }

    /// What the worker does whose batch is the user's next.
    fn awaited(&self) -> Doing {
        self.doing(self.schedule.awaited_worker().unwrap_or(0))
    }

    /// What a worker does, with the batch number that the user sees.
    fn doing(&self, worker: usize) -> Doing {
        let doing = self.pool.doing(worker);
        Doing { batch: self.number_of(doing.batch), ..doing }
    }

    /// The batches that a worker has not answered, by the number that the user sees.
    fn numbers_at(&self, worker: usize) -> Vec<u64> {
        self.schedule.waiting_at(worker).into_iter().map(|task| self.number_of(task)).collect()
    }

    /// The batch number of a task, as the user sees it. For tasks of shards it counts the tasks before this
    /// one, as if each of them had given a batch.
    fn number_of(&self, task: u64) -> u64 {
        match self.supply.has_shards() {
            true => self.supply.number_of(task) + self.place_of(task).unwrap_or(0) as u64,
            false => task,
        }
    }

    fn sent(&self, number: u64) -> Option<&Sent> {
        self.place_of(number).map(|place| &self.tasks[place])
    }

    fn sent_mut(&mut self, number: u64) -> Option<&mut Sent> {
        self.place_of(number).map(|place| &mut self.tasks[place])
    }

    fn take_sent(&mut self, number: u64) -> Sent {
        let sent = self.place_of(number).and_then(|place| self.tasks.remove(place));
        sent.expect("every task in the schedule is noted")
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        // They are noted in the order of their numbers.
        self.tasks.binary_search_by_key(&number, |sent| sent.number).ok()
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.pool.pids()
    }

    pub(super) fn worker_reports(&self) -> Vec<WorkerReport> {
        self.pool.reports()
    }

    pub(super) fn miscount(&self) -> Option<(usize, u64)> {
        self.supply.miscount()
    }

    pub(super) fn restarts(&self) -> u64 {
        self.deaths.replaced
    }

    pub(super) fn shared_memory_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        if self.ended {
            return (0, Some(0));
        }
        // A task of a shard may bring nothing.
        let sent = if self.supply.has_shards() { 0 } else { self.tasks.len() };
        let (low, high) = self.supply.size_hint();
        (low + sent, high.map(|high| high + sent))
    }
}
