//! Decides which task goes to which worker, and which batch is next: PyTorch's scheduler without its
//! processes.
//!
//! Tasks are numbered from 0. The window holds every task from the first one that is not done to the last one
//! sent. A task is done when its batch was returned to the user, or when it turned out to have none. The
//! number of tasks that are not done is bounded, and so is memory. Out of order, the window also keeps a
//! place of some hundred bytes for each task that is done while an earlier one is not.
//!
//! Lanes take turns. For a map-style dataset each worker is a lane; for an iterable one each shard is a lane,
//! and shards are dealt out to the workers. A lane gets its turn however many tasks it has, as in PyTorch;
//! with `in_order = false` only a lane with room does. A task that a slow worker has not begun can be moved
//! to an idle worker, which PyTorch cannot do.
//!
//! The number of workers may change. A worker that does not work gets no turns; if lanes are shards, its
//! shards are dealt out to the others. A shard changes its worker once the old one has answered all of its
//! tasks, since only that worker knows the next samples. Until then the shard's turn waits, so that the order
//! of the batches never depends on the number of workers.

use std::collections::VecDeque;

/// The window of tasks, each with what its owner knows of it (`T`).
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    window: VecDeque<Entry<T>>,
    /// Number of the first task in the window.
    first: u64,
    /// Numbers of the tasks in the window that are not done, in their order.
    pending: VecDeque<u64>,
    /// Maximum number of tasks that may be pending for each worker that works.
    per_worker: usize,
    /// Room that tasks of exhausted shards have taken and that is not given to other shards.
    kept: usize,
    in_order: bool,
    lanes: Vec<Lane>,
    lanes_are: Lanes,
    /// Number of lanes that are open.
    open: usize,
    workers: Vec<Member>,
    /// Number of workers that work.
    working: usize,
    /// True if some shard is to change its worker.
    is_dealing: bool,
    turn: usize,
    /// Out of order: the tasks that have arrived, in that order.
    arrivals: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lanes {
    Workers,
    Shards,
}

#[derive(Debug, Clone)]
struct Lane {
    /// Number of its tasks in the window that are not done.
    load: usize,
    /// False if it gets no more turns.
    is_open: bool,
    /// The worker of its tasks.
    worker: usize,
    /// The worker of its next tasks, once the other one has answered.
    next_worker: Option<usize>,
}

#[derive(Debug, Clone)]
struct Member {
    /// Number of its tasks that have not arrived.
    waiting: usize,
    /// True if it gets tasks.
    is_working: bool,
    /// Number of open lanes that are its, or will be.
    lanes: usize,
    /// True if it was told that it gets no more tasks, since it had no lane left.
    is_finished: bool,
}

#[derive(Debug)]
enum Entry<T> {
    Pending {
        lane: usize,
        worker: usize,
        has_arrived: bool,
        task: T,
    },
    /// Returned to the user, or without a batch.
    Done,
}

impl<T> Schedule<T> {
    /// Returns a schedule with room for `per_worker` tasks for each worker that works. These workers take
    /// turns. `is_working` says of each worker whether it works; at least one does.
    pub(crate) fn of_workers(is_working: &[bool], per_worker: usize, in_order: bool) -> Self {
        Self::new(Lanes::Workers, is_working.len(), is_working, per_worker, in_order)
    }

    /// Returns a schedule with the same room, in which `shards` take turns.
    pub(crate) fn of_shards(shards: usize, is_working: &[bool], per_worker: usize, in_order: bool) -> Self {
        let mut schedule = Self::new(Lanes::Shards, shards, is_working, per_worker, in_order);
        let working = || is_working.iter().enumerate().filter(|(_, is_working)| **is_working);
        let workers = working().map(|(worker, _)| worker).cycle();
        schedule.lanes.iter_mut().zip(workers).for_each(|(lane, worker)| lane.worker = worker);
        schedule.count_lanes();
        schedule
    }

    fn new(lanes_are: Lanes, lanes: usize, is_working: &[bool], per_worker: usize, in_order: bool) -> Self {
        let lane = |worker| Lane { load: 0, is_open: true, worker, next_worker: None };
        let member = |&is_working: &bool| Member { waiting: 0, is_working, lanes: 1, is_finished: false };
        Self {
            window: VecDeque::new(),
            first: 0,
            pending: VecDeque::new(),
            per_worker,
            kept: 0,
            in_order,
            lanes: (0..lanes).map(lane).collect(),
            lanes_are,
            open: lanes,
            workers: is_working.iter().map(member).collect(),
            working: is_working.iter().filter(|is_working| **is_working).count(),
            is_dealing: false,
            turn: 0,
            arrivals: VecDeque::new(),
        }
    }

    /// Returns the maximum number of tasks that may be pending.
    fn limit(&self) -> usize {
        self.working.saturating_mul(self.per_worker).saturating_sub(self.kept).max(1)
    }

    /// Begins with task `number` and with the turn of `lane`. Only for a schedule without tasks.
    pub(crate) fn start_at(&mut self, number: u64, lane: usize) {
        self.first = number;
        self.turn = lane % self.lanes.len();
    }

    /// Returns the lane of the next task, if there is room for one.
    pub(crate) fn next_lane(&self) -> Option<usize> {
        let limit = self.limit();
        if self.pending.len() >= limit {
            return None;
        }
        let lanes = self.lanes.len();
        let mut turns =
            (0..lanes).map(|step| (self.turn + step) % lanes).filter(|&lane| self.gets_turns(lane));
        let is_ready = |lane: &usize| self.lanes[*lane].next_worker.is_none();
        if self.in_order {
            return turns.next().filter(is_ready);
        }
        // PyTorch rounds the share down. Where there are more shards than workers, the remainder is shared
        // too.
        let open = if self.lanes_are == Lanes::Workers { self.working } else { self.open }.max(1);
        let is_remainder_shared = self.lanes_are == Lanes::Shards && lanes > self.working;
        let fair_share = if is_remainder_shared { limit.div_ceil(open) } else { (limit / open).max(1) };
        turns.find(|lane| self.lanes[*lane].load < fair_share && is_ready(lane))
    }

    fn gets_turns(&self, lane: usize) -> bool {
        let Lane { is_open, worker, .. } = self.lanes[lane];
        is_open && (self.lanes_are == Lanes::Shards || self.workers[worker].is_working)
    }

    /// Returns the worker of a lane's next task.
    pub(crate) fn worker_of_lane(&self, lane: usize) -> usize {
        self.lanes[lane].worker
    }

    /// Returns the number that the next task gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.window.len() as u64
    }

    /// Notes that the next task, one of `lane`, was sent.
    pub(crate) fn sent(&mut self, lane: usize, task: T) {
        self.pending.push_back(self.next_number());
        let worker = self.worker_of_lane(lane);
        self.window.push_back(Entry::Pending { lane, worker, has_arrived: false, task });
        self.workers[worker].waiting += 1;
        self.lanes[lane].load += 1;
        self.turn = (lane + 1) % self.lanes.len();
    }

    /// Skips the next number: the user has its batch already.
    pub(crate) fn skip_number(&mut self) {
        self.window.push_back(Entry::Done);
        self.close_gap();
    }

    /// Returns a task that is not done.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.window.get(self.place(number)?)? {
            Entry::Pending { task, .. } => Some(task),
            Entry::Done => None,
        }
    }

    /// Returns a task that is not done, to be changed.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        match self.window.get_mut(place)? {
            Entry::Pending { task, .. } => Some(task),
            Entry::Done => None,
        }
    }

    /// Returns the tasks that are not done, in their order.
    pub(crate) fn tasks(&self) -> impl DoubleEndedIterator<Item = Scheduled<'_, T>> {
        // Not over the window: out of order it may hold very many tasks that are done.
        self.pending.iter().filter_map(|&number| match self.window.get(self.place(number)?)? {
            &Entry::Pending { worker, has_arrived, ref task, .. } => {
                Some(Scheduled { number, worker, has_arrived, task })
            }
            Entry::Done => None,
        })
    }

    /// Returns the number of tasks before `number` that are not done.
    pub(crate) fn pending_before(&self, number: u64) -> usize {
        self.pending.partition_point(|&pending| pending < number)
    }

    /// Returns the number of tasks that are not done.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the worker of a task that is not done.
    pub(crate) fn worker_of(&self, number: u64) -> Option<usize> {
        match self.window.get(self.place(number)?)? {
            Entry::Pending { worker, .. } => Some(*worker),
            Entry::Done => None,
        }
    }

    /// Notes that the batch of task `number` has arrived. False if no such task waits for one.
    pub(crate) fn arrived(&mut self, number: u64) -> bool {
        let place = self.place(number);
        let Some(Entry::Pending { worker, has_arrived: has_arrived @ false, .. }) =
            place.and_then(|place| self.window.get_mut(place))
        else {
            return false;
        };
        *has_arrived = true;
        self.workers[*worker].waiting -= 1;
        if !self.in_order {
            self.arrivals.push_back(number);
        }
        true
    }

    /// Finds the last task behind task `number` that has arrived and for which `is_wanted` holds, and notes
    /// that it waits again. Only for batches that are returned in order.
    pub(crate) fn send_again_behind(&mut self, number: u64, is_wanted: impl Fn(&T) -> bool) -> Option<u64> {
        debug_assert!(self.in_order, "out of order a batch that has arrived is the next");
        let first = self.place(number)? + 1;
        let is_it = |entry: &Entry<T>| matches!(entry, Entry::Pending { has_arrived: true, task, .. } if is_wanted(task));
        let place = (first..self.window.len()).rev().find(|&place| is_it(&self.window[place]))?;
        let Entry::Pending { worker, has_arrived, .. } = &mut self.window[place] else { return None };
        *has_arrived = false;
        self.workers[*worker].waiting += 1;
        Some(self.first + place as u64)
    }

    /// Notes that the shard of task `number` has no more samples, and returns the task. The shard gets no
    /// more turns. Its other tasks have no batch either; the room that they take is kept, as in PyTorch, so
    /// that the other shards never get more than their share. `None` if no such task waits.
    pub(crate) fn exhausted(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let entry = self.window.get_mut(place)?;
        let Entry::Pending { has_arrived: false, .. } = entry else { return None };
        let Entry::Pending { lane, worker, task, .. } = std::mem::replace(entry, Entry::Done) else {
            return None;
        };
        self.lanes[lane].load -= 1;
        self.no_longer_pending(number);
        self.workers[worker].waiting -= 1;
        if self.lanes[lane].is_open {
            self.close_lane(lane);
        } else {
            self.kept += 1;
        }
        self.close_gap();
        Some(task)
    }

    /// Takes the task whose batch is the user's next, with its number and worker, if it has arrived.
    pub(crate) fn next_ready(&mut self) -> Option<(u64, usize, T)> {
        let number = if self.in_order { self.first } else { self.arrivals.pop_front()? };
        let place = self.place(number)?;
        let entry = self.window.get_mut(place)?;
        let Entry::Pending { has_arrived: true, .. } = entry else { return None };
        let Entry::Pending { lane, worker, task, .. } = std::mem::replace(entry, Entry::Done) else {
            return None;
        };
        self.lanes[lane].load -= 1;
        self.no_longer_pending(number);
        self.close_gap();
        Some((number, worker, task))
    }

    /// Gives a lane no more turns.
    pub(crate) fn close_lane(&mut self, lane: usize) {
        if std::mem::replace(&mut self.lanes[lane].is_open, false) {
            self.open -= 1;
            self.count_lanes();
        }
    }

    /// Gives no lane any more turns: there are no more tasks.
    pub(crate) fn close(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_open = false);
        self.open = 0;
        self.count_lanes();
    }

    /// Lets a worker get tasks, or no more tasks. At least one worker works.
    pub(crate) fn set_working(&mut self, worker: usize, is_working: bool) {
        let member = &mut self.workers[worker];
        if std::mem::replace(&mut member.is_working, is_working) != is_working {
            member.is_finished &= !is_working;
            if is_working {
                self.working += 1
            } else {
                self.working -= 1
            }
            self.deal();
        }
    }

    /// Notes that a worker was told that it gets no more tasks.
    pub(crate) fn finish(&mut self, worker: usize) {
        self.workers[worker].is_finished = true;
    }

    /// True if the worker was told that it gets no more tasks.
    pub(crate) fn is_finished(&self, worker: usize) -> bool {
        self.workers[worker].is_finished
    }

    /// Adds a worker, which does not work yet.
    pub(crate) fn add_worker(&mut self) {
        let worker = self.workers.len();
        self.workers.push(Member { waiting: 0, is_working: false, lanes: 0, is_finished: false });
        if self.lanes_are == Lanes::Workers {
            let is_open = self.open > 0;
            self.lanes.push(Lane { load: 0, is_open, worker, next_worker: None });
            self.open += usize::from(is_open);
        }
        self.deal();
    }

    /// Deals out the open shards evenly to the workers that work. As few shards as possible change their
    /// worker.
    fn deal(&mut self) {
        if self.lanes_are == Lanes::Shards {
            let takes_shards = |worker: &Member| worker.is_working && !worker.is_finished;
            let mut counts: Vec<Option<usize>> =
                self.workers.iter().map(|worker| takes_shards(worker).then_some(0)).collect();
            let takers = counts.iter().flatten().count().max(1);
            let mut homeless = Vec::new();
            let (open, share) = (self.open, self.open.div_ceil(takers));
            // Only so many workers may have one shard more than the others.
            let mut full = if open % takers == 0 { usize::MAX } else { open % takers };
            for lane in self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_open).map(|(lane, _)| lane) {
                let owner = self.lanes[lane].next_worker.unwrap_or(self.lanes[lane].worker);
                match &mut counts[owner] {
                    Some(count) if *count + 1 < share => *count += 1,
                    Some(count) if *count + 1 == share && full > 0 => (*count, full) = (*count + 1, full - 1),
                    _ => homeless.push(lane),
                }
            }
            for lane in homeless {
                let fewest = (0..counts.len())
                    .filter(|&worker| counts[worker].is_some())
                    .min_by_key(|&worker| counts[worker]);
                let Some(owner) = fewest else { break };
                counts[owner] = counts[owner].map(|count| count + 1);
                let Lane { worker, next_worker, .. } = &mut self.lanes[lane];
                *next_worker = (*worker != owner).then_some(owner);
            }
            self.is_dealing = self.lanes.iter().any(|lane| lane.is_open && lane.next_worker.is_some());
        }
        self.count_lanes();
    }

    /// Gives the shards that are to change their worker to the new one, if the old one has answered all of
    /// their tasks. Returns these shards.
    pub(crate) fn hand_over(&mut self) -> Vec<usize> {
        if !self.is_dealing {
            return Vec::new();
        }
        let is_waiting = |lane: usize| {
            let is_its = |entry: &Entry<T>| matches!(entry, &Entry::Pending { lane: of, has_arrived: false, .. } if of == lane);
            self.pending.iter().filter_map(|&number| self.window.get(self.place(number)?)).any(is_its)
        };
        let is_free = |&lane: &usize| self.lanes[lane].next_worker.is_some() && !is_waiting(lane);
        let free: Vec<usize> = (0..self.lanes.len()).filter(is_free).collect();
        for &lane in &free {
            let Lane { worker, next_worker, .. } = &mut self.lanes[lane];
            *worker = next_worker.take().unwrap_or(*worker);
        }
        self.is_dealing = self.lanes.iter().any(|lane| lane.is_open && lane.next_worker.is_some());
        self.count_lanes();
        free
    }

    fn count_lanes(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.lanes = 0);
        for Lane { worker, next_worker, .. } in self.lanes.iter().filter(|lane| lane.is_open) {
            self.workers[*worker].lanes += 1;
            next_worker.iter().for_each(|&next| self.workers[next].lanes += 1);
        }
    }

    /// Returns the lanes whose tasks a worker loads.
    pub(crate) fn lanes_of(&self, worker: usize) -> Vec<usize> {
        (0..self.lanes.len()).filter(|&lane| self.lanes[lane].worker == worker).collect()
    }

    /// True if a worker that does not work has nothing to answer and no shard.
    pub(crate) fn is_free(&self, worker: usize) -> bool {
        let has_shards = self.lanes_are == Lanes::Shards && self.workers[worker].lanes > 0;
        !self.is_busy(worker) && !has_shards
    }

    /// Removes all tasks and returns them, each with its number, its worker, and whether it has arrived.
    /// Gives no more turns.
    pub(crate) fn abandon(&mut self) -> Vec<(u64, usize, bool, T)> {
        self.close();
        self.pending.clear();
        self.workers.iter_mut().for_each(|worker| worker.waiting = 0);
        let numbered = (self.first..).zip(self.window.drain(..));
        numbered
            .filter_map(|(number, entry)| match entry {
                Entry::Pending { worker, has_arrived, task, .. } => Some((number, worker, has_arrived, task)),
                Entry::Done => None,
            })
            .collect()
    }

    fn no_longer_pending(&mut self, number: u64) {
        if let Ok(place) = self.pending.binary_search(&number) {
            self.pending.remove(place);
        }
    }

    /// Removes the done tasks at the front of the window.
    fn close_gap(&mut self) {
        while matches!(self.window.front(), Some(Entry::Done)) {
            self.window.pop_front();
            self.first += 1;
        }
    }

    /// Returns the number of the first task that is not done.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the tasks behind the first one that are done: batches that the user has got out of order.
    pub(crate) fn done(&self) -> impl Iterator<Item = u64> {
        let numbered = (self.first..).zip(&self.window);
        numbered.filter_map(|(number, entry)| matches!(entry, Entry::Done).then_some(number))
    }

    /// True if no lane gets any more turns.
    pub(crate) fn is_closed(&self) -> bool {
        self.open == 0
    }

    /// True if task `number` was sent and its batch has not arrived.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        let entry = self.place(number).and_then(|place| self.window.get(place));
        matches!(entry, Some(Entry::Pending { has_arrived: false, .. }))
    }

    /// True if the batch that is the user's next has arrived.
    pub(crate) fn is_ready(&self) -> bool {
        match self.in_order {
            true => matches!(self.window.front(), Some(Entry::Pending { has_arrived: true, .. })),
            false => !self.arrivals.is_empty(),
        }
    }

    /// Returns the place of a task in the window, if it is not before it.
    fn place(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok())
    }

    /// True if every task that was sent is done.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the worker for whose batch the user waits.
    pub(crate) fn awaited_worker(&self) -> Option<usize> {
        self.waiting().next().map(|(_, worker)| worker)
    }

    /// Notes that worker `to` loads a task that has not arrived. Only where lanes are workers.
    pub(crate) fn moved(&mut self, number: u64, to: usize) {
        debug_assert_eq!(self.lanes_are, Lanes::Workers);
        let place = self.place(number);
        if let Some(Entry::Pending { lane, worker, has_arrived: false, .. }) =
            place.and_then(|place| self.window.get_mut(place))
        {
            let from = std::mem::replace(worker, to);
            *lane = to;
            self.lanes[from].load -= 1;
            self.lanes[to].load += 1;
            self.workers[from].waiting -= 1;
            self.workers[to].waiting += 1;
        }
    }

    /// Returns the tasks that have not arrived, oldest first, each with its worker.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        self.tasks().filter(|task| !task.has_arrived).map(|task| (task.number, task.worker))
    }

    /// True if `worker` has tasks that have not arrived.
    pub(crate) fn is_busy(&self, worker: usize) -> bool {
        self.workers[worker].waiting > 0
    }

    /// True if some lane gets no more turns, so that a worker may have nothing more to do.
    pub(crate) fn has_closed_lanes(&self) -> bool {
        self.open < self.lanes.len()
    }

    /// True if `worker` has no task and will get none.
    pub(crate) fn is_over(&self, worker: usize) -> bool {
        let Member { waiting, lanes, .. } = self.workers[worker];
        waiting == 0 && lanes == 0
    }

    /// Returns the tasks that wait behind another task of the same worker, or for a worker that is down,
    /// oldest first. An idle worker could begin them sooner.
    pub(crate) fn waiting_behind(&self, is_down: impl Fn(usize) -> bool) -> Vec<(u64, usize)> {
        let mut is_busy: Vec<bool> = (0..self.workers.len()).map(is_down).collect();
        let has_none = |(worker, &is_down): (&Member, &bool)| worker.waiting < if is_down { 1 } else { 2 };
        if self.workers.iter().zip(&is_busy).all(has_none) {
            return Vec::new();
        }
        self.waiting().filter(|&(_, worker)| std::mem::replace(&mut is_busy[worker], true)).collect()
    }

    /// Returns the tasks of `worker` that have not arrived.
    pub(crate) fn waiting_at(&self, worker: usize) -> Vec<u64> {
        self.waiting().filter(|&(_, at)| at == worker).map(|(number, _)| number).collect()
    }
}

/// A task that is not done.
#[derive(Debug)]
pub(crate) struct Scheduled<'a, T> {
    pub(crate) number: u64,
    pub(crate) worker: usize,
    pub(crate) has_arrived: bool,
    pub(crate) task: &'a T,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Sends as many of `total` tasks as there is room for, and logs them.
    fn fill(schedule: &mut Schedule<u64>, total: u64, log: &mut Vec<String>) {
        while schedule.next_number() < total {
            let Some(worker) = schedule.next_lane() else { return };
            let number = schedule.next_number();
            log.push(format!("d{number}>w{worker}"));
            schedule.sent(worker, number);
        }
    }

    /// Runs a whole epoch whose batches arrive in the order `arrivals`; as in PyTorch one task is sent for
    /// each batch returned.
    fn trace(workers: usize, per_worker: usize, total: u64, in_order: bool, arrivals: &[u64]) -> String {
        let mut schedule = Schedule::of_workers(&vec![true; workers], per_worker, in_order);
        let mut log = Vec::new();
        fill(&mut schedule, total, &mut log);
        let mut arrivals = arrivals.iter();
        while !schedule.is_empty() {
            let Some((_, _, batch)) = schedule.next_ready() else {
                let number = *arrivals.next().unwrap();
                assert!(schedule.arrived(number));
                continue;
            };
            fill(&mut schedule, total, &mut log);
            log.push(format!("Y{batch}"));
        }
        log.join(" ")
    }

    fn loads<T>(schedule: &Schedule<T>) -> Vec<usize> {
        schedule.lanes.iter().map(|lane| lane.load).collect()
    }

    /// Runs a whole epoch of an iterable dataset, one shard a worker, where each worker answers its tasks in
    /// turn and `cost` says how long a sample takes. Tasks of a shard that is over are answered at once, as
    /// our workers do; PyTorch's do not answer them.
    #[expect(clippy::too_many_lines, reason = "one event of the epoch per branch")]
    fn stream(
        shards: &[&[u64]],
        per_worker: usize,
        in_order: bool,
        cost: fn(u64) -> u64,
    ) -> (String, Vec<u64>, u64) {
        struct Worker {
            left: VecDeque<u64>,
            tasks: VecDeque<u64>,
            time: u64,
        }
        let workers = shards.len();
        let mut schedule = Schedule::of_shards(workers, &vec![true; workers], per_worker, in_order);
        let worker = |shard: &&[u64]| Worker {
            left: shard.iter().copied().collect(),
            tasks: VecDeque::new(),
            time: 0,
        };
        let mut running: Vec<Worker> = shards.iter().map(worker).collect();
        let (mut log, mut yields) = (Vec::new(), Vec::new());
        let mut over = vec![false; workers];
        let send =
            |schedule: &mut Schedule<u64>, running: &mut Vec<Worker>, log: &mut Vec<String>, most: usize| {
                for _ in 0..most {
                    let Some(lane) = schedule.next_lane() else { return };
                    log.push(format!("d{}>w{lane}", schedule.next_number()));
                    running[lane].tasks.push_back(schedule.next_number());
                    // The sample is not known yet.
                    schedule.sent(lane, u64::MAX);
                }
            };
        send(&mut schedule, &mut running, &mut log, workers * per_worker);
        loop {
            if let Some((_, lane, sample)) = schedule.next_ready() {
                send(&mut schedule, &mut running, &mut log, 1);
                log.push(format!("Y{sample}(w{lane})"));
                yields.push(sample);
                continue;
            }
            // What brings nothing is through before anybody waits for it.
            for worker in (0..workers).filter(|&worker| over[worker]) {
                running[worker].tasks.drain(..).for_each(|task| assert!(schedule.exhausted(task).is_some()));
            }
            if schedule.is_ready() {
                continue;
            }
            if schedule.is_empty() {
                return (log.join(" "), yields, schedule.next_number());
            }
            // The next answer in time, the lower number first.
            let next =
                (0..workers).filter(|&worker| !running[worker].tasks.is_empty()).min_by_key(|&worker| {
                    let Worker { left, tasks, time } = &running[worker];
                    (time + left.front().map_or(1, |&sample| cost(sample)), tasks[0])
                });
            let lane = next.expect("something is on its way");
            let Worker { left, tasks, time } = &mut running[lane];
            let task = tasks.pop_front().unwrap();
            match left.pop_front() {
                Some(sample) => {
                    *time += cost(sample);
                    *schedule.get_mut(task).unwrap() = sample;
                    assert!(schedule.arrived(task));
                }
                None => {
                    *time += 1;
                    over[lane] = true;
                    assert!(schedule.exhausted(task).is_some());
                    log.push(format!("end(w{lane})@{task}"));
                    send(&mut schedule, &mut running, &mut log, 1);
                }
            }
        }
    }

    // The traces are those of PyTorch's scheduler for the same events.

    // PyTorch: 3.10d, N09
    #[test]
    fn a_shard_that_is_over_leaves_its_turns_to_the_others() {
        let (log, ..) = stream(&[&[], &[10], &[20, 21, 22]], 2, true, |_| 1);
        let expected = "d0>w0 d1>w1 d2>w2 d3>w0 d4>w1 d5>w2 end(w0)@0 d6>w1 d7>w2 Y10(w1) d8>w1 Y20(w2) end(w1)@4 d9>w2 \
                        d10>w2 Y21(w2) d11>w2 Y22(w2) end(w2)@9";
        assert_eq!(log, expected);
    }

    // PyTorch: 3.10e
    #[test]
    fn two_shards_take_turns() {
        let (log, yields, sent) = stream(&[&[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]], 2, true, |_| 1);
        assert_eq!(yields, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]);
        assert!(log.contains("end(w0)@10 d14>w1"), "{log}");
        assert_eq!(sent, 15);
    }

    // PyTorch: 3.10f
    #[test]
    fn out_of_order_a_slow_shard_lets_the_other_pass() {
        let shards: [&[u64]; 2] = [&[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]];
        let (log, yields, _) = stream(&shards, 2, false, |sample| if sample == 5 { 100 } else { 1 });
        assert_eq!(yields, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "{log}");
        // Worker 1 had two tasks. Now that worker 0 is done, worker 1 may have four.
        assert!(log.contains("end(w0)@7 d9>w1 d10>w1 Y5(w1)"), "{log}");
    }

    // PyTorch: 3.10a
    #[test]
    fn two_workers_at_equal_speed() {
        let expected = "d0>w0 d1>w1 d2>w0 d3>w1 d4>w0 Y0 d5>w1 Y1 Y2 Y3 Y4 Y5";
        assert_eq!(trace(2, 2, 6, true, &[0, 1, 2, 3, 4, 5]), expected);
    }

    // PyTorch: 3.10b
    #[test]
    fn a_slow_first_batch_holds_the_others_back() {
        let expected = "d0>w0 d1>w1 d2>w0 d3>w1 d4>w0 Y0 d5>w1 Y1 Y2 Y3 Y4 Y5";
        assert_eq!(trace(2, 2, 6, true, &[1, 3, 0, 5, 2, 4]), expected);
    }

    // PyTorch: 3.10c
    #[test]
    fn out_of_order_the_fast_worker_goes_on() {
        let expected =
            "d0>w0 d1>w1 d2>w0 d3>w1 d4>w1 Y1 d5>w1 Y3 d6>w1 Y4 d7>w1 Y5 d8>w1 Y6 d9>w1 Y7 Y8 Y9 Y0 Y2";
        assert_eq!(trace(2, 2, 10, false, &[1, 3, 4, 5, 6, 7, 8, 9, 0, 2]), expected);
    }

    // PyTorch: 3.10g
    #[test]
    fn more_workers_than_batches() {
        assert_eq!(trace(4, 1, 3, true, &[0, 1, 2]), "d0>w0 d1>w1 d2>w2 Y0 Y1 Y2");
    }

    #[test]
    fn what_waits_behind_a_slow_batch_can_be_moved() {
        let mut schedule = Schedule::of_workers(&[true; 2], 3, true);
        (0..6).for_each(|number| schedule.sent(number % 2, number));
        [1, 3].into_iter().for_each(|number| assert!(schedule.arrived(number)));
        assert_eq!(schedule.waiting_behind(|_| false), [(2, 0), (4, 0)]);
        assert!(schedule.arrived(5));
        assert!(!schedule.is_busy(1));
        schedule.moved(2, 1);
        assert_eq!((schedule.waiting_at(0), schedule.waiting_at(1)), (vec![0, 4], vec![2]));
        // Not what has arrived or does not exist.
        schedule.moved(1, 0);
        schedule.moved(9, 0);
        assert_eq!(loads(&schedule), [2, 4]);
        [2, 0, 4].into_iter().for_each(|number| assert!(schedule.arrived(number)));
        let returned =
            std::iter::from_fn(|| schedule.next_ready().map(|(number, worker, _)| (number, worker)));
        assert_eq!(returned.collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 0), (5, 1)]);
        assert_eq!(loads(&schedule), [0, 0]);
    }

    #[test]
    fn only_a_task_that_waits_can_arrive() {
        let mut schedule = Schedule::of_workers(&[true], 2, true);
        assert!(!schedule.arrived(0));
        schedule.sent(0, 'a');
        assert!(schedule.arrived(0));
        assert!(!schedule.arrived(0));
        assert_eq!(schedule.next_ready(), Some((0, 0, 'a')));
        assert!(!schedule.arrived(0));
    }

    proptest! {
        #[test]
        fn every_task_is_returned_once_and_in_order(
            workers in 1usize..6, per_worker in 1usize..4, total in 0u64..40, in_order: bool, picks: Vec<prop::sample::Index>,
        ) {
            let mut schedule = Schedule::of_workers(&vec![true; workers], per_worker, in_order);
            let mut log = Vec::new();
            let (mut waiting, mut sent, mut returned) = (Vec::new(), 0, Vec::new());
            let mut picks = picks.into_iter();
            let mut moved = BTreeSet::new();
            loop {
                fill(&mut schedule, total, &mut log);
                waiting.extend(sent..schedule.next_number());
                sent = schedule.next_number();
                prop_assert!(waiting.len() <= workers * per_worker);
                if let Some((number, _, batch)) = schedule.next_ready() {
                    prop_assert_eq!(number, batch);
                    returned.push(number);
                } else if waiting.is_empty() {
                    break;
                } else {
                    for idle in (0..workers).filter(|&worker| !schedule.is_busy(worker)).collect::<Vec<_>>() {
                        if let Some(&(number, from)) = schedule.waiting_behind(|_| false).first() {
                            prop_assert!(from != idle);
                            prop_assert!(moved.insert(number), "moved twice");
                            schedule.moved(number, idle);
                            prop_assert!(schedule.waiting_at(idle) == [number]);
                        }
                    }
                    let place = picks.next().map_or(0, |pick| pick.index(waiting.len()));
                    let number = waiting.remove(place);
                    prop_assert!(schedule.arrived(number));
                }
            }
            prop_assert!(schedule.is_empty());
            if !in_order {
                returned.sort_unstable();
            }
            prop_assert!(returned.into_iter().eq(0..total));
        }
    }
}
