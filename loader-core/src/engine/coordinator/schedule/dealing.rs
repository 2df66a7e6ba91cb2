//! Deals out the shards of an iterable dataset to the workers, when the number of workers changes.

use std::mem;

use super::{Entry, Lane, LaneKind, Member, Schedule};

impl<T> Schedule<T> {
    /// Sets whether a worker gets tasks. At least one worker must get tasks.
    pub(crate) fn set_working(&mut self, worker: usize, is_working: bool) {
        let member = &mut self.workers[worker];
        if mem::replace(&mut member.is_working, is_working) != is_working {
            member.is_finished &= !is_working;
            let before = self.window_size();
            if is_working {
                self.working += 1
            } else {
                self.working -= 1
            }
            self.resize_reserved(before);
            self.deal();
        }
    }

    /// Adds a worker, which gets no tasks yet.
    pub(crate) fn add_worker(&mut self) {
        let worker = self.workers.len();
        self.workers.push(Member { waiting: 0, is_working: false, lanes: 0, is_finished: false });
        if self.lane_kind == LaneKind::Workers {
            let is_open = self.open > 0;
            self.lanes.push(Lane { load: 0, is_open, worker, next_worker: None });
            self.open += usize::from(is_open);
        }
        self.deal();
    }

    /// Moves each shard that has a next worker to that worker, if the old worker has answered all tasks of
    /// the shard. Returns the moved shards.
    pub(crate) fn hand_over(&mut self) -> Vec<usize> {
        if !self.is_dealing {
            return Vec::new();
        }
        let has_waiting_task = |shard: usize| {
            let is_waiting = |entry: &Entry<T>| matches!(entry, &Entry::Pending { lane, has_arrived: false, .. } if lane == shard);
            self.pending.iter().filter_map(|&number| self.window.get(self.position(number)?)).any(is_waiting)
        };
        let can_change = |&shard: &usize| self.lanes[shard].next_worker.is_some() && !has_waiting_task(shard);
        let shards: Vec<usize> = (0..self.lanes.len()).filter(can_change).collect();
        for &shard in &shards {
            let Lane { worker, next_worker, .. } = &mut self.lanes[shard];
            *worker = next_worker.take().unwrap_or(*worker);
        }
        self.is_dealing = self.lanes.iter().any(Lane::is_changing_worker);
        self.count_lanes();
        shards
    }

    /// Returns the lanes whose tasks a worker loads.
    pub(crate) fn lanes_of(&self, worker: usize) -> Vec<usize> {
        (0..self.lanes.len()).filter(|&lane| self.lanes[lane].worker == worker).collect()
    }

    /// Assigns the open shards to the workers that get tasks, as evenly as possible, and so that as few
    /// shards as possible change their worker.
    fn deal(&mut self) {
        if self.lane_kind == LaneKind::Shards {
            let takes_shards = |worker: &Member| worker.is_working && !worker.is_finished;
            // The number of shards of each worker; `None` for a worker that takes no shards.
            let mut counts: Vec<Option<usize>> =
                self.workers.iter().map(|worker| takes_shards(worker).then_some(0)).collect();
            let takers = counts.iter().flatten().count().max(1);
            let share = self.open.div_ceil(takers);
            // Number of workers that get `share` shards. The others get one less.
            let remainder = self.open % takers;
            let mut full_shares = if remainder == 0 { takers } else { remainder };
            let mut unassigned = Vec::new();
            for shard in (0..self.lanes.len()).filter(|&lane| self.lanes[lane].is_open) {
                let owner = self.lanes[shard].next_worker.unwrap_or(self.lanes[shard].worker);
                match &mut counts[owner] {
                    Some(count) if *count + 1 < share => *count += 1,
                    Some(count) if *count + 1 == share && full_shares > 0 => {
                        *count += 1;
                        full_shares -= 1;
                    }
                    _ => unassigned.push(shard),
                }
            }
            for shard in unassigned {
                let candidates = (0..counts.len()).filter(|&worker| counts[worker].is_some());
                let Some(owner) = candidates.min_by_key(|&worker| counts[worker]) else { break };
                counts[owner] = counts[owner].map(|count| count + 1);
                let Lane { worker, next_worker, .. } = &mut self.lanes[shard];
                *next_worker = (*worker != owner).then_some(owner);
            }
            self.is_dealing = self.lanes.iter().any(Lane::is_changing_worker);
        }
        self.count_lanes();
    }

    /// Counts the open lanes of each worker.
    pub(super) fn count_lanes(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.lanes = 0);
        for Lane { worker, next_worker, .. } in self.lanes.iter().filter(|lane| lane.is_open) {
            self.workers[*worker].lanes += 1;
            next_worker.iter().for_each(|&next| self.workers[next].lanes += 1);
        }
    }
}

impl Lane {
    /// True if the lane is open and waits to change its worker.
    fn is_changing_worker(&self) -> bool {
        self.is_open && self.next_worker.is_some()
    }
}
