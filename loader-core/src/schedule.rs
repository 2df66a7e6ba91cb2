//! Which task goes to which worker, and which batch is next: PyTorch's scheduler without its processes.
//!
//! Tasks are numbered from 0. The window holds every task in `[received, sent)`; a task is in it from being sent to being
//! returned to the user, whether its batch has arrived or not, so the window bounds memory. Workers take turns, whatever they
//! have to do, as in PyTorch; with `in_order = false` only those with room do. What a slow worker has not begun can be moved to
//! an idle one, which PyTorch cannot.

use std::collections::VecDeque;

/// The window of tasks, each with what is known of its batch (`P`) once it has arrived.
#[derive(Debug)]
pub(crate) struct Schedule<P> {
    window: VecDeque<Entry<P>>,
    /// Number of the first task in the window.
    received: u64,
    /// Tasks in the window that the user has not got yet.
    pending: usize,
    /// Most tasks that may be pending.
    limit: usize,
    in_order: bool,
    /// Tasks in the window per worker, arrived or not.
    loads: Vec<usize>,
    turn: usize,
    /// Out of order: what has arrived, in that order.
    arrivals: VecDeque<u64>,
}

#[derive(Debug)]
enum Entry<P> {
    Waiting { worker: usize },
    Arrived { worker: usize, batch: P },
    Returned,
}

impl<P> Schedule<P> {
    /// Room for `per_worker` tasks for each of `workers`.
    pub(crate) fn new(workers: usize, per_worker: usize, in_order: bool) -> Self {
        Self {
            window: VecDeque::new(),
            received: 0,
            pending: 0,
            limit: workers * per_worker,
            in_order,
            loads: vec![0; workers],
            turn: 0,
            arrivals: VecDeque::new(),
        }
    }

    /// The worker that the next task would go to, if there is room for one.
    pub(crate) fn next_worker(&self) -> Option<usize> {
        if self.pending >= self.limit {
            return None;
        }
        let workers = self.loads.len();
        let turns = (0..workers).map(|step| (self.turn + step) % workers);
        let fair_share = self.limit / workers;
        turns.into_iter().find(|&worker| self.in_order || self.loads[worker] < fair_share)
    }

    /// Number that the next task gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.received + self.window.len() as u64
    }

    /// Notes that the next task was sent to `worker`.
    pub(crate) fn sent(&mut self, worker: usize) {
        self.window.push_back(Entry::Waiting { worker });
        self.loads[worker] += 1;
        self.pending += 1;
        self.turn = (worker + 1) % self.loads.len();
    }

    /// Notes the batch of task `number`; gives it back when no such task is waiting.
    pub(crate) fn arrived(&mut self, number: u64, batch: P) -> Result<(), P> {
        match self.place(number).and_then(|place| self.window.get_mut(place)) {
            Some(entry @ Entry::Waiting { .. }) => {
                let Entry::Waiting { worker } = *entry else { return Err(batch) };
                *entry = Entry::Arrived { worker, batch };
                if !self.in_order {
                    self.arrivals.push_back(number);
                }
                Ok(())
            }
            _ => Err(batch),
        }
    }

    /// Takes the batch that is the user's next, if it has arrived.
    pub(crate) fn next_ready(&mut self) -> Option<(u64, usize, P)> {
        let number = if self.in_order { self.received } else { self.arrivals.pop_front()? };
        let place = usize::try_from(number - self.received).ok()?;
        let entry = self.window.get_mut(place)?;
        let Entry::Arrived { .. } = entry else { return None };
        let Entry::Arrived { worker, batch } = std::mem::replace(entry, Entry::Returned) else { return None };
        self.loads[worker] -= 1;
        self.pending -= 1;
        while matches!(self.window.front(), Some(Entry::Returned)) {
            self.window.pop_front();
            self.received += 1;
        }
        Some((number, worker, batch))
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

    /// True when every task that was sent has been returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending == 0
    }

    /// The worker whose batch the user is waiting for.
    pub(crate) fn awaited_worker(&self) -> Option<usize> {
        self.waiting().next().map(|(_, worker)| worker)
    }

    /// Notes that a task that is on its way is `to`'s now.
    pub(crate) fn moved(&mut self, number: u64, to: usize) {
        if let Some(Entry::Waiting { worker }) =
            self.place(number).and_then(|place| self.window.get_mut(place))
        {
            self.loads[std::mem::replace(worker, to)] -= 1;
            self.loads[to] += 1;
        }
    }

    /// The tasks on their way, oldest first, each with its worker.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        let numbered = (self.received..).zip(&self.window);
        numbered.filter_map(|(number, entry)| match entry {
            Entry::Waiting { worker } => Some((number, *worker)),
            _ => None,
        })
    }

    /// True while `worker` has tasks to answer.
    pub(crate) fn is_busy(&self, worker: usize) -> bool {
        self.waiting().any(|(_, at)| at == worker)
    }

    /// The tasks that wait behind another one at the same worker, oldest first: what an idle worker could do sooner. A moved task is the
    /// first one of a worker that had none, and later ones have higher numbers: so it is never moved again, and never comes back.
    pub(crate) fn waiting_behind(&self) -> Vec<(u64, usize)> {
        let mut busy = vec![false; self.loads.len()];
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
            let Some(worker) = schedule.next_worker() else { return };
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

    // The traces are those of PyTorch's scheduler for the same events.

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
        assert_eq!(schedule.waiting_behind(), [(2, 0), (4, 0)]);
        schedule.arrived(5, 5).unwrap();
        assert!(!schedule.is_busy(1));
        schedule.moved(2, 1);
        assert_eq!((schedule.waiting_at(0), schedule.waiting_at(1)), (vec![0, 4], vec![2]));
        // Not what has arrived or does not exist.
        schedule.moved(1, 0);
        schedule.moved(9, 0);
        assert_eq!(schedule.loads, [2, 4]);
        [2, 0, 4].into_iter().for_each(|number| schedule.arrived(number, number).unwrap());
        let returned =
            std::iter::from_fn(|| schedule.next_ready().map(|(number, worker, _)| (number, worker)));
        assert_eq!(returned.collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 0), (5, 1)]);
        assert_eq!(schedule.loads, [0, 0]);
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
                        if let Some(&(number, from)) = schedule.waiting_behind().first() {
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
