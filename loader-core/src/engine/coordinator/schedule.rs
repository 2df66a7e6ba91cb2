//! Decides which task goes to which worker, and which batch is next: PyTorch's scheduler without its
//! processes.
//!
//! Tasks are numbered from 0. The window holds every task from the first pending task to the last task sent.
//! A task is done when its batch was returned to the user, or when the worker has reported that it has no
//! batch. A task that is not done is pending. The number of pending tasks is bounded, and so is memory. Out
//! of order, the window also keeps some hundred bytes for each task that is done while an earlier task is
//! pending.
//!
//! Lanes take turns. For a map-style dataset each worker is a lane. For an iterable dataset each shard is a
//! lane, and shards are dealt out to the workers. A lane gets its turn however many tasks it has, as in
//! PyTorch; with `in_order = false` only a lane with room gets its turn. Main can move a task that a slow
//! worker has not begun to an idle worker, which PyTorch cannot do.
//!
//! The number of workers may change (`dealing.rs`). A worker that does not work gets no turns; if lanes are
//! shards, its shards are dealt out to the others. A shard changes its worker once the old worker has
//! answered all of the shard's tasks, because only that worker knows the next samples. Until then the shard's
//! turn waits, so that the order of the batches never depends on the number of workers.

mod dealing;

use std::{collections::VecDeque, mem};

/// The window of tasks, each with what its owner knows of it (`T`).
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    window: VecDeque<Entry<T>>,
    /// Number of the first task in the window.
    first: u64,
    /// Numbers of the pending tasks, in ascending order.
    pending: VecDeque<u64>,
    /// Maximum number of tasks that may be pending for each worker that works.
    per_worker: usize,
    /// Number of tasks of exhausted shards for which the window keeps room that other shards must not take.
    reserved: usize,
    in_order: bool,
    lanes: Vec<Lane>,
    lane_kind: LaneKind,
    /// Number of lanes that are open.
    open: usize,
    workers: Vec<Member>,
    /// Number of workers that work.
    working: usize,
    /// True if some shard waits to change its worker.
    is_dealing: bool,
    /// The lane whose turn is next.
    turn: usize,
    /// Out of order: the tasks whose batches have arrived, in the order of arrival.
    arrivals: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneKind {
    Workers,
    Shards,
}

#[derive(Debug, Clone)]
struct Lane {
    /// Number of the lane's pending tasks.
    load: usize,
    /// False if the lane gets no more turns.
    is_open: bool,
    /// The worker of the lane's tasks.
    worker: usize,
    /// The worker that takes the lane over once `worker` has answered all of the lane's tasks.
    next_worker: Option<usize>,
}

#[derive(Debug, Clone)]
struct Member {
    /// Number of the worker's tasks whose batches have not arrived.
    waiting: usize,
    /// True if the worker gets tasks.
    is_working: bool,
    /// Number of open lanes that the worker has or will take over.
    lanes: usize,
    /// True if main has told the worker that it gets no more tasks, because it had no open lane.
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
    /// The batch was returned to the user, or the task has no batch.
    Done,
}

impl<T> Schedule<T> {
    /// Creates a schedule in which the workers take turns. It has room for `per_worker` tasks for each worker
    /// that works. `is_working` has an item for each worker; at least one must be true.
    pub(crate) fn of_workers(is_working: &[bool], per_worker: usize, in_order: bool) -> Self {
        Self::new(LaneKind::Workers, is_working.len(), is_working, per_worker, in_order)
    }

    /// Creates a schedule in which `shards` shards take turns. The other arguments are those of
    /// [`of_workers`](Self::of_workers).
    pub(crate) fn of_shards(shards: usize, is_working: &[bool], per_worker: usize, in_order: bool) -> Self {
        let mut schedule = Self::new(LaneKind::Shards, shards, is_working, per_worker, in_order);
        let working = || is_working.iter().enumerate().filter(|(_, is_working)| **is_working);
        let workers = working().map(|(worker, _)| worker).cycle();
        schedule.lanes.iter_mut().zip(workers).for_each(|(lane, worker)| lane.worker = worker);
        schedule.count_lanes();
        schedule
    }

    fn new(
        lane_kind: LaneKind,
        lanes: usize,
        is_working: &[bool],
        per_worker: usize,
        in_order: bool,
    ) -> Self {
        let lane = |worker| Lane { load: 0, is_open: true, worker, next_worker: None };
        let member = |&is_working: &bool| Member { waiting: 0, is_working, lanes: 1, is_finished: false };
        Self {
            window: VecDeque::new(),
            first: 0,
            pending: VecDeque::new(),
            per_worker,
            reserved: 0,
            in_order,
            lanes: (0..lanes).map(lane).collect(),
            lane_kind,
            open: lanes,
            workers: is_working.iter().map(member).collect(),
            working: is_working.iter().filter(|is_working| **is_working).count(),
            is_dealing: false,
            turn: 0,
            arrivals: VecDeque::new(),
        }
    }

    /// Sets the maximum number of tasks that may be pending for each worker that works.
    pub(crate) fn set_per_worker(&mut self, per_worker: usize) {
        let before = self.window_size();
        self.per_worker = per_worker;
        self.resize_reserved(before);
    }

    /// Returns the maximum number of tasks that may be pending while no shard is exhausted.
    fn window_size(&self) -> usize {
        self.working.saturating_mul(self.per_worker)
    }

    /// Keeps the share of the window that is reserved for exhausted shards, after its size was `before`.
    fn resize_reserved(&mut self, before: usize) {
        self.reserved = self.reserved.saturating_mul(self.window_size()) / before.max(1);
    }

    /// Returns the maximum number of tasks that may be pending.
    fn limit(&self) -> usize {
        self.window_size().saturating_sub(self.reserved).max(1)
    }

    /// Begins with task `number` and with the turn of `lane`. The schedule must have no tasks.
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
        // PyTorch rounds the share down. With more shards than workers this share is rounded up, so that the
        // remainder is used too.
        let open = if self.lane_kind == LaneKind::Workers { self.working } else { self.open }.max(1);
        let is_remainder_shared = self.lane_kind == LaneKind::Shards && lanes > self.working;
        let fair_share = if is_remainder_shared { limit.div_ceil(open) } else { (limit / open).max(1) };
        turns.find(|lane| self.lanes[*lane].load < fair_share && is_ready(lane))
    }

    fn gets_turns(&self, lane: usize) -> bool {
        let Lane { is_open, worker, .. } = self.lanes[lane];
        is_open && (self.lane_kind == LaneKind::Shards || self.workers[worker].is_working)
    }

    /// Returns the worker of a lane's next task.
    pub(crate) fn worker_of_lane(&self, lane: usize) -> usize {
        self.lanes[lane].worker
    }

    /// Returns the number that the next task gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.window.len() as u64
    }

    /// Notes that main has sent the next task, which belongs to `lane`.
    pub(crate) fn sent(&mut self, lane: usize, task: T) {
        self.pending.push_back(self.next_number());
        let worker = self.worker_of_lane(lane);
        self.window.push_back(Entry::Pending { lane, worker, has_arrived: false, task });
        self.workers[worker].waiting += 1;
        self.lanes[lane].load += 1;
        self.turn = (lane + 1) % self.lanes.len();
    }

    /// Skips the next number, because the user has received its batch already.
    pub(crate) fn skip_number(&mut self) {
        self.window.push_back(Entry::Done);
        self.remove_done();
    }

    /// Returns a pending task.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.window.get(self.position(number)?)? {
            Entry::Pending { task, .. } => Some(task),
            Entry::Done => None,
        }
    }

    /// Returns a pending task for changes.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let position = self.position(number)?;
        match self.window.get_mut(position)? {
            Entry::Pending { task, .. } => Some(task),
            Entry::Done => None,
        }
    }

    /// Returns the pending tasks, in ascending order of their numbers.
    pub(crate) fn tasks(&self) -> impl DoubleEndedIterator<Item = Scheduled<'_, T>> {
        // This does not iterate over the window, which may hold very many done tasks with `in_order = false`.
        self.pending.iter().filter_map(|&number| match self.window.get(self.position(number)?)? {
            &Entry::Pending { worker, has_arrived, ref task, .. } => {
                Some(Scheduled { number, worker, has_arrived, task })
            }
            Entry::Done => None,
        })
    }

    /// Returns the number of pending tasks before `number`.
    pub(crate) fn pending_before(&self, number: u64) -> usize {
        self.pending.partition_point(|&pending| pending < number)
    }

    /// Returns the number of pending tasks.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the worker of a pending task.
    pub(crate) fn worker_of(&self, number: u64) -> Option<usize> {
        match self.window.get(self.position(number)?)? {
            Entry::Pending { worker, .. } => Some(*worker),
            Entry::Done => None,
        }
    }

    /// Notes that the batch of task `number` has arrived. Returns false if no task with this number waits for
    /// its batch.
    pub(crate) fn arrived(&mut self, number: u64) -> bool {
        let position = self.position(number);
        let Some(Entry::Pending { worker, has_arrived: has_arrived @ false, .. }) =
            position.and_then(|position| self.window.get_mut(position))
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

    /// Finds the last task after task `number` whose batch has arrived and that `is_wanted` accepts. Notes
    /// that the task waits for its batch again, and returns its number. Only for a schedule that is in order.
    pub(crate) fn send_again_behind(&mut self, number: u64, is_wanted: impl Fn(&T) -> bool) -> Option<u64> {
        debug_assert!(self.in_order, "out of order, a batch that has arrived is the next");
        let first = self.position(number)? + 1;
        let can_be_sent_again = |entry: &Entry<T>| matches!(entry, Entry::Pending { has_arrived: true, task, .. } if is_wanted(task));
        let last = (first..self.window.len()).rev().find(|&at| can_be_sent_again(&self.window[at]))?;
        let Entry::Pending { worker, has_arrived, .. } = &mut self.window[last] else { return None };
        *has_arrived = false;
        self.workers[*worker].waiting += 1;
        Some(self.first + last as u64)
    }

    /// Notes that the shard of task `number` has no more samples, and returns the task. The shard gets no
    /// more turns. Its other tasks have no batch either; the window keeps room for them, as in PyTorch, so
    /// that the other shards never get more than their share. Returns `None` if no task with this number
    /// waits for its batch.
    pub(crate) fn exhausted(&mut self, number: u64) -> Option<T> {
        let position = self.position(number)?;
        let entry = self.window.get_mut(position)?;
        let Entry::Pending { has_arrived: false, .. } = entry else { return None };
        let Entry::Pending { lane, worker, task, .. } = mem::replace(entry, Entry::Done) else {
            return None;
        };
        self.lanes[lane].load -= 1;
        self.remove_pending(number);
        self.workers[worker].waiting -= 1;
        if self.lanes[lane].is_open {
            self.close_lane(lane);
        } else {
            self.reserved += 1;
        }
        self.remove_done();
        Some(task)
    }

    /// Takes the task whose batch is the user's next, with its number and worker, if it has arrived.
    pub(crate) fn next_ready(&mut self) -> Option<(u64, usize, T)> {
        let number = if self.in_order { self.first } else { self.arrivals.pop_front()? };
        let position = self.position(number)?;
        let entry = self.window.get_mut(position)?;
        let Entry::Pending { has_arrived: true, .. } = entry else { return None };
        let Entry::Pending { lane, worker, task, .. } = mem::replace(entry, Entry::Done) else {
            return None;
        };
        self.lanes[lane].load -= 1;
        self.remove_pending(number);
        self.remove_done();
        Some((number, worker, task))
    }

    /// Puts a task back that [`next_ready`](Self::next_ready) has returned. The task waits for its batch again.
    pub(crate) fn put_back(&mut self, number: u64, lane: usize, worker: usize, task: T) {
        // The tasks between this one and the window are done.
        while self.first > number {
            self.window.push_front(Entry::Done);
            self.first -= 1;
        }
        let entry = self.position(number).and_then(|position| self.window.get_mut(position));
        *entry.expect("the task was in the window") =
            Entry::Pending { lane, worker, has_arrived: false, task };
        self.pending.insert(self.pending_before(number), number);
        self.lanes[lane].load += 1;
        self.workers[worker].waiting += 1;
    }

    /// Closes a lane: it gets no more turns.
    pub(crate) fn close_lane(&mut self, lane: usize) {
        if mem::replace(&mut self.lanes[lane].is_open, false) {
            self.open -= 1;
            self.count_lanes();
        }
    }

    /// Closes all lanes, because there are no more tasks.
    pub(crate) fn close(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_open = false);
        self.open = 0;
        self.count_lanes();
    }

    /// Notes that main has told a worker that it gets no more tasks.
    pub(crate) fn finish(&mut self, worker: usize) {
        self.workers[worker].is_finished = true;
    }

    /// True if main has told the worker that it gets no more tasks.
    pub(crate) fn is_finished(&self, worker: usize) -> bool {
        self.workers[worker].is_finished
    }

    /// True if a worker has no task to answer and no open shard.
    pub(crate) fn is_free(&self, worker: usize) -> bool {
        let has_shards = self.lane_kind == LaneKind::Shards && self.workers[worker].lanes > 0;
        !self.is_busy(worker) && !has_shards
    }

    /// Closes all lanes and removes all tasks. Returns the pending tasks, each with its number, its worker,
    /// and whether its batch has arrived.
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

    fn remove_pending(&mut self, number: u64) {
        if let Ok(position) = self.pending.binary_search(&number) {
            self.pending.remove(position);
        }
    }

    /// Removes the done tasks at the front of the window.
    fn remove_done(&mut self) {
        while matches!(self.window.front(), Some(Entry::Done)) {
            self.window.pop_front();
            self.first += 1;
        }
    }

    /// Returns the number of the first pending task.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the numbers of the done tasks after the first pending task, whose batches the user has
    /// received out of order.
    pub(crate) fn done(&self) -> impl Iterator<Item = u64> {
        let numbered = (self.first..).zip(&self.window);
        numbered.filter_map(|(number, entry)| matches!(entry, Entry::Done).then_some(number))
    }

    /// True if all lanes are closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.open == 0
    }

    /// True if main has sent task `number` and its batch has not arrived.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        let entry = self.position(number).and_then(|position| self.window.get(position));
        matches!(entry, Some(Entry::Pending { has_arrived: false, .. }))
    }

    /// True if the user's next batch has arrived.
    pub(crate) fn is_ready(&self) -> bool {
        if self.in_order {
            matches!(self.window.front(), Some(Entry::Pending { has_arrived: true, .. }))
        } else {
            !self.arrivals.is_empty()
        }
    }

    /// Returns the position of a task in the window; `None` if the task is before the window.
    fn position(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).and_then(|position| usize::try_from(position).ok())
    }

    /// True if no task is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the worker of the first task whose batch has not arrived.
    pub(crate) fn awaited_worker(&self) -> Option<usize> {
        self.waiting().next().map(|(_, worker)| worker)
    }

    /// Notes that main has moved a task whose batch has not arrived to worker `to`. Lanes must be workers.
    pub(crate) fn moved(&mut self, number: u64, to: usize) {
        debug_assert_eq!(self.lane_kind, LaneKind::Workers);
        let position = self.position(number);
        if let Some(Entry::Pending { lane, worker, has_arrived: false, .. }) =
            position.and_then(|position| self.window.get_mut(position))
        {
            let from = mem::replace(worker, to);
            *lane = to;
            self.lanes[from].load -= 1;
            self.lanes[to].load += 1;
            self.workers[from].waiting -= 1;
            self.workers[to].waiting += 1;
        }
    }

    /// Returns the tasks whose batches have not arrived, in ascending order, each with its worker.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        self.tasks().filter(|task| !task.has_arrived).map(|task| (task.number, task.worker))
    }

    /// True if `worker` has tasks whose batches have not arrived.
    pub(crate) fn is_busy(&self, worker: usize) -> bool {
        self.workers[worker].waiting > 0
    }

    /// True if some lane is closed, so that a worker may have no more work.
    pub(crate) fn has_closed_lanes(&self) -> bool {
        self.open < self.lanes.len()
    }

    /// True if `worker` has no task and gets no more tasks.
    pub(crate) fn is_over(&self, worker: usize) -> bool {
        let Member { waiting, lanes, .. } = self.workers[worker];
        waiting == 0 && lanes == 0
    }

    /// Returns the tasks that an idle worker could begin sooner, in ascending order, each with its worker:
    /// tasks that wait behind another task of the same worker, and tasks of a worker whose process has ended.
    pub(crate) fn waiting_behind(&self, is_down: impl Fn(usize) -> bool) -> Vec<(u64, usize)> {
        let mut is_busy: Vec<bool> = (0..self.workers.len()).map(is_down).collect();
        let has_none = |(worker, &is_down): (&Member, &bool)| worker.waiting < if is_down { 1 } else { 2 };
        if self.workers.iter().zip(&is_busy).all(has_none) {
            return Vec::new();
        }
        self.waiting().filter(|&(_, worker)| mem::replace(&mut is_busy[worker], true)).collect()
    }

    /// Returns the tasks of `worker` whose batches have not arrived.
    pub(crate) fn waiting_at(&self, worker: usize) -> Vec<u64> {
        self.waiting().filter(|&(_, at)| at == worker).map(|(number, _)| number).collect()
    }
}

/// A pending task.
#[derive(Debug)]
pub(crate) struct Scheduled<'a, T> {
    pub(crate) number: u64,
    pub(crate) worker: usize,
    pub(crate) has_arrived: bool,
    pub(crate) task: &'a T,
}

#[cfg(test)]
mod tests;
