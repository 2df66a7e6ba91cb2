//! Which task goes to which worker, and which batch is next: PyTorch's scheduler without its processes.
//!
//! Tasks are numbered from 0. The window holds every task in `[received, sent)`; a task is in it from being sent to being
//! returned to the user, whether its batch has arrived or not. Tasks that are not through are bounded, and so is memory; out of order a few
//! bytes are kept for each that is, as long as an earlier one is not.
//!
//! Lanes take turns. Of a map-style dataset a lane is a worker; of an iterable one it is a shard, and shards are dealt out to the workers.
//! A lane gets its turn whatever it has to do, as in PyTorch; with `in_order = false` only one with room does. What a slow worker has not
//! begun can be moved to an idle one, which PyTorch cannot.

use std::collections::VecDeque;

/// The window of tasks, each with what is known of its batch (`P`) once it has arrived.
#[derive(Debug)]
pub(crate) struct Schedule<P> {
    window: VecDeque<Entry<P>>,
    /// Number of the first task in the window.
    received: u64,
    /// Tasks in the window that are not through: neither returned nor without a batch.
    pending: usize,
    /// Most tasks that may be pending.
    limit: usize,
    in_order: bool,
    workers: usize,
    lanes: Vec<Lane>,
    /// Lanes that get turns.
    open: usize,
    /// Tasks on their way, per worker.
    waiting: Vec<usize>,
    turn: usize,
    /// Out of order: what has arrived, in that order.
    arrivals: VecDeque<u64>,
}

#[derive(Debug, Clone)]
struct Lane {
    /// Tasks in the window, arrived or not.
    load: usize,
    is_open: bool,
}

#[derive(Debug)]
enum Entry<P> {
    Waiting {
        lane: usize,
    },
    Arrived {
        lane: usize,
        batch: P,
    },
    /// Returned to the user, or without a batch.
    Through,
}

impl<P> Schedule<P> {
    /// Room for `per_worker` tasks for each of `workers`, which take turns.
    pub(crate) fn new(workers: usize, per_worker: usize, in_order: bool) -> Self {
        Self::with_lanes(workers, workers, per_worker, in_order)
    }

    /// The same room, where `lanes` shards take turns.
    pub(crate) fn with_lanes(lanes: usize, workers: usize, per_worker: usize, in_order: bool) -> Self {
        Self {
            window: VecDeque::new(),
            received: 0,
            pending: 0,
            limit: workers.saturating_mul(per_worker),
            in_order,
            workers,
            lanes: vec![Lane { load: 0, is_open: true }; lanes],
            open: lanes,
            waiting: vec![0; workers],
            turn: 0,
            arrivals: VecDeque::new(),
        }
    }

    /// Goes on where another schedule was left: with task `number` and with the turn of `lane`. For a schedule without tasks.
    pub(crate) fn start_at(&mut self, number: u64, lane: usize) {
        self.received = number;
        self.turn = lane % self.lanes.len();
    }

    /// The lane that the next task would be of, if there is room for one.
    pub(crate) fn next_lane(&self) -> Option<usize> {
        if self.pending >= self.limit {
            return None;
        }
        let lanes = self.lanes.len();
        let turns = (0..lanes).map(|step| (self.turn + step) % lanes);
        // PyTorch's share, rounded down, where a lane is a worker. More shards than workers share what is left over too.
        let open = self.open.max(1);
        let fair_share =
            if lanes > self.workers { self.limit.div_ceil(open) } else { (self.limit / open).max(1) };
        turns.into_iter().find(|&lane| {
            let Lane { load, is_open } = self.lanes[lane];
            is_open && (self.in_order || load < fair_share)
        })
    }

    /// The worker that does a lane's tasks.
    pub(crate) fn worker_of(&self, lane: usize) -> usize {
        lane % self.workers
    }

    /// Number that the next task gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.received + self.window.len() as u64
    }

    /// Notes that the next task was sent, of `lane`.
    pub(crate) fn sent(&mut self, lane: usize) {
        self.window.push_back(Entry::Waiting { lane });
        let worker = self.worker_of(lane);
        self.waiting[worker] += 1;
        self.lanes[lane].load += 1;
        self.pending += 1;
        self.turn = (lane + 1) % self.lanes.len();
    }

    /// Leaves the next number out: the user has its batch already.
    pub(crate) fn leave_out(&mut self) {
        self.window.push_back(Entry::Through);
        self.close_gap();
    }

    /// Notes the batch of task `number`; gives it back when no such task is waiting.
    pub(crate) fn arrived(&mut self, number: u64, batch: P) -> Result<(), P> {
        match self.place(number).and_then(|place| self.window.get_mut(place)) {
            Some(entry @ Entry::Waiting { .. }) => {
                let Entry::Waiting { lane } = *entry else { return Err(batch) };
                *entry = Entry::Arrived { lane, batch };
                self.waiting[lane % self.workers] -= 1;
                if !self.in_order {
                    self.arrivals.push_back(number);
                }
                Ok(())
            }
            _ => Err(batch),
        }
    }

    /// Takes the last batch for which `is_it` holds of those that have arrived behind task `number`, with its number and worker. Its task is
    /// on its way again. Only for batches that are returned in order.
    pub(crate) fn take_arrived_behind(
        &mut self,
        number: u64,
        is_it: impl Fn(&P) -> bool,
    ) -> Option<(u64, usize, P)> {
        debug_assert!(self.in_order, "out of order a batch that has arrived is the next");
        let first = self.place(number)? + 1;
        let place = (first..self.window.len())
            .rev()
            .find(|&at| matches!(&self.window[at], Entry::Arrived { batch, .. } if is_it(batch)))?;
        let Entry::Arrived { lane, .. } = self.window[place] else { return None };
        let entry = std::mem::replace(&mut self.window[place], Entry::Waiting { lane });
        let Entry::Arrived { batch, .. } = entry else { return None };
        let worker = self.worker_of(lane);
        self.waiting[worker] += 1;
        Some((self.received + place as u64, worker, batch))
    }

    /// Notes that the shard of task `number` has no more samples: it gets no more turns. The tasks that it still has bring nothing; room
    /// for them is kept, as in PyTorch, so that the others never get more than their share. False when no such task is waiting.
    pub(crate) fn exhausted(&mut self, number: u64) -> bool {
        let place = self.place(number);
        let Some(entry @ &mut Entry::Waiting { lane }) = place.and_then(|place| self.window.get_mut(place))
        else {
            return false;
        };
        *entry = Entry::Through;
        self.pending -= 1;
        self.lanes[lane].load -= 1;
        self.waiting[lane % self.workers] -= 1;
        if self.lanes[lane].is_open {
            self.close_lane(lane);
        } else {
            self.limit -= 1;
        }
        self.close_gap();
        true
    }

    /// Takes the batch that is the user's next, if it has arrived; with its number and its lane.
    pub(crate) fn next_ready(&mut self) -> Option<(u64, usize, P)> {
        let number = if self.in_order { self.received } else { self.arrivals.pop_front()? };
        let place = usize::try_from(number - self.received).ok()?;
        let entry = self.window.get_mut(place)?;
        let Entry::Arrived { .. } = entry else { return None };
        let Entry::Arrived { lane, batch } = std::mem::replace(entry, Entry::Through) else { return None };
        self.lanes[lane].load -= 1;
        self.pending -= 1;
        self.close_gap();
        Some((number, lane, batch))
    }

    /// Gives a lane no more turns.
    pub(crate) fn close_lane(&mut self, lane: usize) {
        if std::mem::replace(&mut self.lanes[lane].is_open, false) {
            self.open -= 1;
        }
    }

    /// Gives no more turns: there are no more tasks.
    pub(crate) fn close(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_open = false);
        self.open = 0;
    }

    /// Forgets all tasks; gives the batches that have arrived.
    pub(crate) fn abandon(&mut self) -> Vec<P> {
        self.close();
        self.pending = 0;
        self.waiting.fill(0);
        let arrived = self.window.drain(..).filter_map(|entry| match entry {
            Entry::Arrived { batch, .. } => Some(batch),
            _ => None,
        });
        arrived.collect()
    }

    /// Takes what is through from the front of the window.
    fn close_gap(&mut self) {
        while matches!(self.window.front(), Some(Entry::Through)) {
            self.window.pop_front();
            self.received += 1;
        }
    }

    /// Number of the first task that is not through.
    pub(crate) fn first(&self) -> u64 {
        self.received
    }

    /// The tasks behind the first that are through already: out of order, what the user has got before its turn.
    pub(crate) fn through(&self) -> impl Iterator<Item = u64> {
        let numbered = (self.received..).zip(&self.window);
        numbered.filter_map(|(number, entry)| matches!(entry, Entry::Through).then_some(number))
    }

    /// True when no lane gets turns any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.open == 0
    }

    /// True while the batch of task `number` is on its way.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        let entry = self.place(number).and_then(|place| self.window.get(place));
        entry.is_some_and(|entry| matches!(entry, Entry::Waiting { .. }))
    }

    /// True when the batch that is the user's next has arrived.
    pub(crate) fn is_ready(&self) -> bool {
        match self.in_order {
            true => matches!(self.window.front(), Some(Entry::Arrived { .. })),
            false => !self.arrivals.is_empty(),
        }
    }

    /// Where in the window a task is, if it is not below it.
    fn place(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.received).and_then(|place| usize::try_from(place).ok())
    }

    /// True when every task that was sent is through.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending == 0
    }

    /// The worker whose batch the user is waiting for.
    pub(crate) fn awaited_worker(&self) -> Option<usize> {
        self.waiting().next().map(|(_, worker)| worker)
    }

    /// Notes that a task that is on its way is the worker `to`'s now. Only where lanes are workers.
    pub(crate) fn moved(&mut self, number: u64, to: usize) {
        if let Some(Entry::Waiting { lane }) = self.place(number).and_then(|place| self.window.get_mut(place))
        {
            let from = std::mem::replace(lane, to);
            self.lanes[from].load -= 1;
            self.lanes[to].load += 1;
            self.waiting[from] -= 1;
            self.waiting[to] += 1;
        }
    }

    /// The tasks on their way, oldest first, each with its worker.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        let numbered = (self.received..).zip(&self.window);
        numbered.filter_map(|(number, entry)| match entry {
            Entry::Waiting { lane } => Some((number, self.worker_of(*lane))),
            _ => None,
        })
    }

    /// True while `worker` has tasks to answer.
    pub(crate) fn is_busy(&self, worker: usize) -> bool {
        self.waiting[worker] > 0
    }

    /// True when a lane gets no more turns: workers may have nothing more to do.
    pub(crate) fn has_closed_lanes(&self) -> bool {
        self.open < self.lanes.len()
    }

    /// True when `worker` has no task and will get none.
    pub(crate) fn is_over(&self, worker: usize) -> bool {
        let mut own = self.lanes.iter().skip(worker).step_by(self.workers);
        !self.is_busy(worker) && !own.any(|lane| lane.is_open)
    }

    /// The tasks that wait behind another one at the same worker, or at one that is down, oldest first: what an idle worker could do sooner.
    pub(crate) fn waiting_behind(&self, is_down: impl Fn(usize) -> bool) -> Vec<(u64, usize)> {
        let mut busy: Vec<bool> = (0..self.workers).map(is_down).collect();
        if self.waiting.iter().zip(&busy).all(|(&tasks, &is_down)| tasks < if is_down { 1 } else { 2 }) {
            return Vec::new();
        }
        self.waiting().filter(|&(_, worker)| std::mem::replace(&mut busy[worker], true)).collect()
    }

    /// The tasks that `worker` has not answered.
    pub(crate) fn waiting_at(&self, worker: usize) -> Vec<u64> {
        self.waiting().filter(|&(_, at)| at == worker).map(|(number, _)| number).collect()
    }
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
            log.push(format!("d{}>w{worker}", schedule.next_number()));
            schedule.sent(worker);
        }
    }

    /// Runs a whole epoch whose batches arrive in the order `arrivals`; as in PyTorch one task is sent for each batch returned.
    fn trace(workers: usize, per_worker: usize, total: u64, in_order: bool, arrivals: &[u64]) -> String {
        let mut schedule = Schedule::new(workers, per_worker, in_order);
        let mut log = Vec::new();
        fill(&mut schedule, total, &mut log);
        let mut arrivals = arrivals.iter();
        while !schedule.is_empty() {
            let Some((_, _, batch)) = schedule.next_ready() else {
                let number = *arrivals.next().unwrap();
                schedule.arrived(number, number).unwrap();
                continue;
            };
            fill(&mut schedule, total, &mut log);
            log.push(format!("Y{batch}"));
        }
        log.join(" ")
    }

    fn loads(schedule: &Schedule<u64>) -> Vec<usize> {
        schedule.lanes.iter().map(|lane| lane.load).collect()
    }

    /// Runs a whole epoch of an iterable dataset, one shard a worker, where each worker answers its tasks in turn and `cost` says how
    /// long a sample takes. Tasks of a shard that is over are answered at once, as our workers do; PyTorch's do not answer them.
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
        let mut schedule = Schedule::new(workers, per_worker, in_order);
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
                    schedule.sent(lane);
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
                running[worker].tasks.drain(..).for_each(|task| assert!(schedule.exhausted(task)));
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
                    schedule.arrived(task, sample).unwrap();
                }
                None => {
                    *time += 1;
                    over[lane] = true;
                    assert!(schedule.exhausted(task));
                    log.push(format!("end(w{lane})@{task}"));
                    send(&mut schedule, &mut running, &mut log, 1);
                }
            }
        }
    }

    // The traces are those of PyTorch's scheduler for the same events.

    #[test]
    fn a_shard_that_is_over_leaves_its_turns_to_the_others() {
        let (log, ..) = stream(&[&[], &[10], &[20, 21, 22]], 2, true, |_| 1);
        let expected = "d0>w0 d1>w1 d2>w2 d3>w0 d4>w1 d5>w2 end(w0)@0 d6>w1 d7>w2 Y10(w1) d8>w1 Y20(w2) end(w1)@4 d9>w2 \
                        d10>w2 Y21(w2) d11>w2 Y22(w2) end(w2)@9";
        assert_eq!(log, expected);
    }

    #[test]
    fn two_shards_take_turns() {
        let (log, yields, sent) = stream(&[&[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]], 2, true, |_| 1);
        assert_eq!(yields, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]);
        assert!(log.contains("end(w0)@10 d14>w1"), "{log}");
        assert_eq!(sent, 15);
    }

    #[test]
    fn out_of_order_a_slow_shard_lets_the_other_pass() {
        let shards: [&[u64]; 2] = [&[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]];
        let (log, yields, _) = stream(&shards, 2, false, |sample| if sample == 5 { 100 } else { 1 });
        assert_eq!(yields, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "{log}");
        // Worker 1 had two tasks. Now that worker 0 is done, worker 1 may have four.
        assert!(log.contains("end(w0)@7 d9>w1 d10>w1 Y5(w1)"), "{log}");
    }

    #[test]
    fn two_workers_at_equal_speed() {
        let expected = "d0>w0 d1>w1 d2>w0 d3>w1 d4>w0 Y0 d5>w1 Y1 Y2 Y3 Y4 Y5";
        assert_eq!(trace(2, 2, 6, true, &[0, 1, 2, 3, 4, 5]), expected);
    }

    #[test]
    fn a_slow_first_batch_holds_the_others_back() {
        let expected = "d0>w0 d1>w1 d2>w0 d3>w1 d4>w0 Y0 d5>w1 Y1 Y2 Y3 Y4 Y5";
        assert_eq!(trace(2, 2, 6, true, &[1, 3, 0, 5, 2, 4]), expected);
    }

    #[test]
    fn out_of_order_the_fast_worker_goes_on() {
        let expected =
            "d0>w0 d1>w1 d2>w0 d3>w1 d4>w1 Y1 d5>w1 Y3 d6>w1 Y4 d7>w1 Y5 d8>w1 Y6 d9>w1 Y7 Y8 Y9 Y0 Y2";
        assert_eq!(trace(2, 2, 10, false, &[1, 3, 4, 5, 6, 7, 8, 9, 0, 2]), expected);
    }

    #[test]
    fn more_workers_than_batches() {
        assert_eq!(trace(4, 1, 3, true, &[0, 1, 2]), "d0>w0 d1>w1 d2>w2 Y0 Y1 Y2");
    }

    #[test]
    fn what_waits_behind_a_slow_batch_can_be_moved() {
        let mut schedule = Schedule::new(2, 3, true);
        (0..6).for_each(|number| schedule.sent(number % 2));
        [1, 3].into_iter().for_each(|number| schedule.arrived(number, number).unwrap());
        assert_eq!(schedule.waiting_behind(|_| false), [(2, 0), (4, 0)]);
        schedule.arrived(5, 5).unwrap();
        assert!(!schedule.is_busy(1));
        schedule.moved(2, 1);
        assert_eq!((schedule.waiting_at(0), schedule.waiting_at(1)), (vec![0, 4], vec![2]));
        // Not what has arrived or does not exist.
        schedule.moved(1, 0);
        schedule.moved(9, 0);
        assert_eq!(loads(&schedule), [2, 4]);
        [2, 0, 4].into_iter().for_each(|number| schedule.arrived(number, number).unwrap());
        let returned =
            std::iter::from_fn(|| schedule.next_ready().map(|(number, worker, _)| (number, worker)));
        assert_eq!(returned.collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 0), (5, 1)]);
        assert_eq!(loads(&schedule), [0, 0]);
    }

    #[test]
    fn an_answer_to_nothing_comes_back() {
        let mut schedule = Schedule::new(1, 2, true);
        assert_eq!(schedule.arrived(0, 'a'), Err('a'));
        schedule.sent(0);
        assert_eq!(schedule.arrived(0, 'b'), Ok(()));
        assert_eq!(schedule.arrived(0, 'c'), Err('c'));
        assert_eq!(schedule.next_ready(), Some((0, 0, 'b')));
        assert_eq!(schedule.arrived(0, 'd'), Err('d'));
    }

    proptest! {
        #[test]
        fn every_task_is_returned_once_and_in_order(
            workers in 1usize..6, per_worker in 1usize..4, total in 0u64..40, in_order: bool, picks: Vec<prop::sample::Index>,
        ) {
            let mut schedule = Schedule::new(workers, per_worker, in_order);
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
                    prop_assert!(schedule.arrived(number, number).is_ok());
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
