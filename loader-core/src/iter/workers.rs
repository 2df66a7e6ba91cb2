//! An epoch on worker processes: tasks go out ahead of the user, batches come back in any order and are handed on in theirs.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use loader_ipc::{
    arena::Encoded,
    frame::{Event, Failure, Indices, LEAST_OFFERED, Lease, MOST_INLINE_INDICES, Report, Task},
    lent,
    slots::{SlotError, SlotPool},
};

use super::{
    Step,
    rest::{ABANDONED, Held, Home, LIVENESS_INTERVAL, Resting},
    supply::{ShardEnd, Supply, Wanted},
};
use crate::{
    collate::Batch,
    error::{Doing, Error},
    fetch::{ShardBatch, ShardPlace},
    pool::Pool,
    report::WorkerReport,
    schedule::Schedule,
    state::Place,
};

/// How long the user waits for a batch before tasks are moved from busy workers to idle ones. A shorter wait is not worth it.
const MOVE_AFTER: Duration = Duration::from_millis(1);

/// How an epoch is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    pub(crate) workers: usize,
    pub(crate) prefetch_factor: usize,
    pub(crate) in_order: bool,
    pub(crate) timeout: Option<Duration>,
}

/// The batches of one epoch.
pub(crate) struct WorkerIter<B> {
    pool: Held,
    /// Where the workers go when they are no longer needed here, if they are to stay.
    home: Option<Home>,
    slots: SlotPool,
    options: Epochs,
    supply: Supply,
    schedule: Schedule<Arrival>,
    /// The tasks in the schedule's window, oldest first.
    tasks: VecDeque<Sent>,
    /// Tasks whose batch needs a larger slot than there is room for yet, by number.
    requests: BTreeMap<u64, Request>,
    /// The worker that wrote a slot last, by number of the slot; of those that are large enough to be offered.
    writers: BTreeMap<u32, usize>,
    /// Slots that were offered for a task and neither taken nor given back yet, by number of the task.
    offers: BTreeMap<u64, (usize, Lease)>,
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
}

/// A worker's wish for a larger slot. It does nothing else until it is answered.
#[derive(Debug, Clone, Copy)]
struct Request {
    worker: usize,
    lease: Lease,
    needed: usize,
}

/// What came back for a task.
#[derive(Debug)]
enum Arrival {
    Batch {
        lease: Lease,
        encoded: Encoded,
        held: bool,
        position: u64,
    },
    Failed {
        failure: Box<Failure>,
        position: u64,
        ended: bool,
    },
    /// No worker was asked.
    NotSent(Box<Error>),
}

impl<B: Batch> WorkerIter<B> {
    /// Takes over running workers and gives them their first tasks.
    pub(crate) fn new(
        pool: Pool,
        home: Option<Home>,
        slots: SlotPool,
        options: Epochs,
        supply: Supply,
    ) -> Result<Self, Error> {
        let schedule = supply.schedule(options.workers, options.prefetch_factor, options.in_order);
        let mut iter = Self {
            pool: Held::new(pool),
            home,
            slots,
            options,
            supply,
            schedule,
            tasks: VecDeque::new(),
            requests: BTreeMap::new(),
            offers: BTreeMap::new(),
            writers: BTreeMap::new(),
            last_error: None,
            ended: false,
            batch: PhantomData,
        };
        iter.dispatch()?;
        Ok(iter)
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
        let (end, batch) = self.open(self.supply.number_of(number), worker, arrival);
        let info = self.supply.returned(number, wanted, worker, end);
        // The next task before this batch is returned, so that its worker never waits for the user.
        if let Err(error) = self.dispatch() {
            // For want of memory it is tried again at the next call, and told then.
            self.last_error = Some(error).filter(Error::ends_iteration);
        }
        Ok(Some((Some(info), batch)))
    }

    /// Waits until the user's next batch has arrived; false when the epoch is over.
    fn wait(&mut self) -> Result<bool, Error> {
        // A timeout beyond the end of time is none.
        let deadline = self.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut move_at = None;
        loop {
            if self.schedule.is_ready() {
                return Ok(true);
            }
            self.answer_requests()?;
            if self.schedule.is_ready() {
                continue;
            }
            if self.schedule.is_empty() {
                // Nothing is on its way: either the epoch is over, or there was no room for a single slot.
                self.dispatch()?;
                if self.schedule.is_empty() {
                    return Ok(false);
                }
                continue;
            }
            self.offer_warm_slots()?;
            let now = Instant::now();
            let move_at = *move_at.get_or_insert(now + MOVE_AFTER);
            let is_early = now < move_at;
            if !is_early {
                self.move_tasks()?;
            }
            let wake_at = if is_early { move_at } else { now + LIVENESS_INTERVAL };
            match self.pool.receive(deadline.map_or(wake_at, |deadline| deadline.min(wake_at)))? {
                Some(report) => self.handle(report)?,
                None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(self.timed_out());
                }
                None if is_early => {}
                None => self.pool.look_for_exits(),
            }
        }
    }

    /// False when the epoch is over already. Waits for the next batch.
    pub(super) fn has_more(&mut self) -> Result<bool, Error> {
        self.wait()
    }

    /// Where the user stands; `None` when the end is known.
    pub(super) fn place(&self) -> Option<Place> {
        let is_over = self.schedule.is_closed() && self.schedule.is_empty() && self.tasks.is_empty();
        (!is_over).then(|| self.supply.place(&self.schedule))
    }

    /// Sends tasks while there is room in the window and in shared memory.
    fn dispatch(&mut self) -> Result<(), Error> {
        self.pool.look_for_destroyed_slots();
        while let Some(lane) = self.schedule.next_lane() {
            let Some((wanted, error)) = self.supply.next(lane, &mut self.schedule) else {
                self.schedule.close();
                self.finish_idle_workers();
                break;
            };
            let number = self.schedule.next_number();
            if let Some(error) = error {
                self.fail_unsent(number, lane, wanted, error);
                continue;
            }
            let worker = self.schedule.worker_of(lane);
            let in_slot = wanted.bytes_in_slot();
            match self.slots.lease(in_slot, self.small_leases(), |slot| self.pool.knows(worker, slot)) {
                Ok(lease) => self.send(number, lane, wanted, lease)?,
                Err(SlotError::LimitReached { wanted: bytes, limit, .. })
                    if bytes > limit && !self.supply.has_shards() =>
                {
                    let text = format!("its indices need {bytes} bytes, shared_memory_limit is {limit}");
                    let error = Error::from_failure(Failure::to_send(text), number, None);
                    self.fail_unsent(number, lane, wanted, error);
                }
                Err(error) => {
                    self.supply.hold_back(number, wanted);
                    // While batches are on their way, their slots will come free: wait. Otherwise the user must act.
                    return if self.schedule.is_empty() { Err(no_slot(error)) } else { Ok(()) };
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, number: u64, lane: usize, wanted: Wanted, lease: Lease) -> Result<(), Error> {
        let task = self.task(number, &wanted, lease)?;
        let worker = self.schedule.worker_of(lane);
        self.schedule.sent(lane);
        self.supply.sent(&wanted);
        self.tasks.push_back(Sent { number, worker, wanted, lease: Some(lease) });
        self.pool.give_task(worker, task)
    }

    fn task(&self, number: u64, wanted: &Wanted, lease: Lease) -> Result<Task, Error> {
        let indices = self.pack(wanted, lease)?;
        // The pool knows what is to be forgotten, and which claim is free.
        Ok(Task { epoch: self.supply.epoch(), number, lease, indices, forget: Vec::new(), claim: 0 })
    }

    /// Moves tasks that wait behind a slow one to workers that have nothing to do, the earliest task first. The order of the batches
    /// does not change, and neither do their contents: no sample's generator depends on its worker.
    ///
    /// Not of an iterable dataset: what a shard gives next is known to the worker that reads it.
    fn move_tasks(&mut self) -> Result<(), Error> {
        if self.supply.has_shards() {
            return Ok(());
        }
        for idle in 0..self.options.workers {
            if self.schedule.is_busy(idle) || !self.pool.takes_moved_tasks(idle) {
                continue;
            }
            for (number, busy) in self.schedule.waiting_behind() {
                let place = self.place_of(number).expect("every task in the schedule is noted");
                let Some(lease) = self.tasks[place].lease else { continue };
                // Another slot that it was offered is given back by the worker it was offered to.
                if !self.pool.withdraw(busy, number) {
                    continue;
                }
                self.schedule.moved(number, idle);
                self.tasks[place].worker = idle;
                let task = self.task(number, &self.tasks[place].wanted, lease)?;
                self.pool.give_task(idle, task)?;
                break;
            }
        }
        Ok(())
    }

    /// Ends the workers that have nothing to do and will be given nothing, unless they are to stay.
    fn finish_idle_workers(&mut self) {
        // For every batch: what costs more comes last.
        if self.home.is_some() || !self.schedule.has_closed_lanes() {
            return;
        }
        if !self.supply.has_shards() && !self.schedule.waiting_behind().is_empty() {
            return;
        }
        for worker in 0..self.options.workers {
            if self.schedule.is_over(worker) {
                self.pool.finish(worker);
            }
        }
    }

    /// A batch that fails before any worker sees it.
    fn fail_unsent(&mut self, number: u64, lane: usize, wanted: Wanted, error: Error) {
        let worker = self.schedule.worker_of(lane);
        self.schedule.sent(lane);
        self.tasks.push_back(Sent { number, worker, wanted, lease: None });
        let arrived = self.schedule.arrived(number, Arrival::NotSent(Box::new(error)));
        debug_assert!(arrived.is_ok(), "it was just noted as sent");
    }

    /// Tasks on their way whose slot may yet have to grow.
    fn small_leases(&self) -> usize {
        let expected = self.slots.expected() as u64;
        let small = |sent: &&Sent| sent.lease.is_some_and(|lease| lease.len < expected);
        self.tasks.iter().filter(small).count()
    }

    /// What is wanted, as it travels: indices as a range where they are one, as a list where it fits a frame, else in the slot.
    fn pack(&self, wanted: &Wanted, lease: Lease) -> Result<Indices, Error> {
        let indices = match wanted {
            Wanted::Samples(indices) => indices,
            Wanted::NextOf { shard, open_at } => return self.pack_shard(*shard, open_at.as_ref(), lease),
        };
        let start = indices.first().copied().unwrap_or(0);
        if indices.iter().enumerate().all(|(place, &index)| index == start + place) {
            return Ok(Indices::Range { start: start as u64, len: indices.len() as u64 });
        }
        let list: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
        if list.len() <= MOST_INLINE_INDICES {
            return Ok(Indices::List(list));
        }
        let bytes: Vec<u8> = list.iter().flat_map(|index| index.to_le_bytes()).collect();
        self.slots.write(lease, &bytes).map_err(no_slot)?;
        Ok(Indices::InSlot { len: list.len() as u64 })
    }

    fn pack_shard(&self, shard: usize, open_at: Option<&ShardPlace>, lease: Lease) -> Result<Indices, Error> {
        let shard = u32::try_from(shard).expect("checked by the builder");
        let Some(place) = open_at else {
            return Ok(Indices::NextOf { shard, position: 0, skip: 0, snapshot: None });
        };
        let (position, skip) = (place.position, place.skip());
        let snapshot = match &place.snapshot {
            Some(snapshot) => {
                self.slots.write(lease, &snapshot.bytes).map_err(no_slot)?;
                Some(snapshot.bytes.len() as u64)
            }
            None => None,
        };
        Ok(Indices::NextOf { shard, position, skip, snapshot })
    }

    fn handle(&mut self, report: Report) -> Result<(), Error> {
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

    /// Answers the workers that wait for a larger slot, in the order of their tasks, as far as there is room.
    ///
    /// Room is first kept for the earlier tasks, which may still ask: otherwise later batches could take all memory and wait for
    /// an earlier one that gets none.
    fn answer_requests(&mut self) -> Result<(), Error> {
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
    fn offer_warm_slots(&mut self) -> Result<(), Error> {
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
            if self.pool.offer(worker, task, warmer)? {
                self.offers.insert(task, (worker, warmer));
            } else {
                self.slots.release(warmer, false);
            }
        }
        Ok(())
    }

    /// A task has two leases, and its worker says which one it does not use.
    fn take_unused(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let Some((_, offered)) = self.offers.remove(&task).filter(|&(to, _)| to == worker) else {
            return Err(Error::misbehaved(
                worker,
                format!("it gave back a slot for task {task}, for which it had only one"),
            ));
        };
        if lease != offered {
            self.check_lease(worker, task, lease)?;
            self.sent_mut(task).expect("checked with its lease").lease = Some(offered);
        }
        self.slots.release(lease, false);
        Ok(())
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
    fn check_lease(&self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let sent = self.place_of(task).map(|place| &self.tasks[place]);
        if sent.is_some_and(|sent| sent.worker == worker && sent.lease == Some(lease)) {
            return Ok(());
        }
        Err(Error::misbehaved(worker, format!("it answered task {task} under a lease that it does not have")))
    }

    /// The batch in an arrival's slot, and where it leaves its shard.
    fn open(&self, batch: u64, worker: usize, arrival: Arrival) -> (ShardEnd, Result<B, Error>) {
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

    fn timed_out(&self) -> Error {
        let worker = self.schedule.awaited_worker().unwrap_or(0);
        let after = self.options.timeout.unwrap_or_default();
        Error::TimedOut { after, waiting_for: Doing::new(worker, &self.pool.snapshot(worker)) }
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.pool.pids()
    }

    pub(super) fn worker_reports(&self) -> Vec<WorkerReport> {
        self.pool.reports()
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

impl<B> WorkerIter<B> {
    /// Ends the workers, or sends them home, and gives back their leases.
    fn shut_down(&mut self) {
        if let Some(home) = self.home.take()
            && self.pool.can_stay()
        {
            return self.send_home(&home);
        }
        self.pool.shut_down();
        let offers = std::mem::take(&mut self.offers).into_values();
        let sent = self.tasks.drain(..).filter_map(|Sent { worker, lease, .. }| Some((worker, lease?)));
        for (worker, lease) in sent.chain(offers) {
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
        unanswered.extend(std::mem::take(&mut self.offers).into_values());
        home.receive(Resting::new(pool, unanswered, self.slots.clone()));
    }
}

impl<B> Drop for WorkerIter<B> {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Wanted {
    /// Bytes of it that travel in the slot.
    fn bytes_in_slot(&self) -> usize {
        match self {
            Self::Samples(indices) if indices.len() > MOST_INLINE_INDICES => size_of::<u64>() * indices.len(),
            Self::Samples(_) => 0,
            Self::NextOf { open_at, .. } => {
                let snapshot = open_at.as_ref().and_then(|place| place.snapshot.as_ref());
                snapshot.map_or(0, |snapshot| snapshot.bytes.len())
            }
        }
    }
}

fn no_slot(error: SlotError) -> Error {
    Error::SharedMemoryExhausted { problem: error.to_string() }
}
