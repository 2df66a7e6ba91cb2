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

/// Runs a whole epoch whose batches arrive in the order `arrivals`. As in PyTorch, main sends one task for
/// each batch that it returns.
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

/// A simulated epoch of an iterable dataset with one shard per worker. Each worker answers its tasks in turn.
/// It answers tasks of an exhausted shard at once, as our workers do; PyTorch's workers do not answer them.
struct Streams {
    schedule: Schedule<u64>,
    workers: Vec<StreamWorker>,
    log: Vec<String>,
    /// The samples that were returned, in order.
    returned: Vec<u64>,
}

struct StreamWorker {
    /// The samples of the worker's shard that it has not loaded.
    left: VecDeque<u64>,
    tasks: VecDeque<u64>,
    /// The simulated time at which the worker has answered its last task.
    time: u64,
    is_exhausted: bool,
}

/// Runs a whole epoch. `cost` returns how long a sample takes. Returns the log, the samples in order, and the
/// number of tasks.
fn stream(
    shards: &[&[u64]],
    per_worker: usize,
    in_order: bool,
    cost: fn(u64) -> u64,
) -> (String, Vec<u64>, u64) {
    let workers = shards.len();
    let worker = |shard: &&[u64]| StreamWorker {
        left: shard.iter().copied().collect(),
        tasks: VecDeque::new(),
        time: 0,
        is_exhausted: false,
    };
    let mut streams = Streams {
        schedule: Schedule::of_shards(workers, &vec![true; workers], per_worker, in_order),
        workers: shards.iter().map(worker).collect(),
        log: Vec::new(),
        returned: Vec::new(),
    };
    streams.send(workers * per_worker);
    loop {
        if streams.return_batch() {
            continue;
        }
        streams.answer_exhausted();
        if streams.schedule.is_ready() {
            continue;
        }
        if streams.schedule.is_empty() {
            return (streams.log.join(" "), streams.returned, streams.schedule.next_number());
        }
        streams.answer_next(cost);
    }
}

impl Streams {
    /// Sends at most `max` tasks.
    fn send(&mut self, max: usize) {
        for _ in 0..max {
            let Some(lane) = self.schedule.next_lane() else { return };
            let number = self.schedule.next_number();
            self.log.push(format!("d{number}>w{lane}"));
            self.workers[lane].tasks.push_back(number);
            // The sample is not known yet.
            self.schedule.sent(lane, u64::MAX);
        }
    }

    /// Returns the user's next batch if it has arrived, and sends one task in its place.
    fn return_batch(&mut self) -> bool {
        let Some((_, lane, sample)) = self.schedule.next_ready() else { return false };
        self.send(1);
        self.log.push(format!("Y{sample}(w{lane})"));
        self.returned.push(sample);
        true
    }

    /// Lets the workers of exhausted shards answer all of their tasks.
    fn answer_exhausted(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.is_exhausted) {
            worker.tasks.drain(..).for_each(|task| assert!(self.schedule.exhausted(task).is_some()));
        }
    }

    /// Lets the worker that is done first answer its next task. Of two that are done at the same time, the
    /// one with the lower task is first.
    fn answer_next(&mut self, cost: fn(u64) -> u64) {
        let busy = self.workers.iter_mut().enumerate().filter(|(_, worker)| !worker.tasks.is_empty());
        let done =
            |worker: &StreamWorker| worker.time + worker.left.front().map_or(1, |&sample| cost(sample));
        let next = busy.min_by_key(|(_, worker)| (done(worker), worker.tasks[0]));
        let (lane, worker) = next.expect("some worker has a task");
        let task = worker.tasks.pop_front().unwrap();
        worker.time = done(worker);
        match worker.left.pop_front() {
            Some(sample) => {
                *self.schedule.get_mut(task).unwrap() = sample;
                assert!(self.schedule.arrived(task));
            }
            None => {
                worker.is_exhausted = true;
                assert!(self.schedule.exhausted(task).is_some());
                self.log.push(format!("end(w{lane})@{task}"));
                self.send(1);
            }
        }
    }
}

// The expected logs are those of PyTorch's scheduler for the same events.

// PyTorch: 3.10d, N09
#[test]
fn an_exhausted_shard_gets_no_more_turns() {
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
fn out_of_order_batches_of_a_slow_shard_come_later() {
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
fn in_order_later_batches_wait_for_a_slow_first_batch() {
    let expected = "d0>w0 d1>w1 d2>w0 d3>w1 d4>w0 Y0 d5>w1 Y1 Y2 Y3 Y4 Y5";
    assert_eq!(trace(2, 2, 6, true, &[1, 3, 0, 5, 2, 4]), expected);
}

// PyTorch: 3.10c
#[test]
fn out_of_order_the_fast_worker_gets_more_tasks() {
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
fn tasks_that_wait_behind_a_slow_batch_can_be_moved() {
    let mut schedule = Schedule::of_workers(&[true; 2], 3, true);
    (0..6).for_each(|number| schedule.sent(number % 2, number));
    [1, 3].into_iter().for_each(|number| assert!(schedule.arrived(number)));
    assert_eq!(schedule.waiting_behind(|_| false), [(2, 0), (4, 0)]);
    assert!(schedule.arrived(5));
    assert!(!schedule.is_busy(1));
    schedule.moved(2, 1);
    assert_eq!((schedule.waiting_at(0), schedule.waiting_at(1)), (vec![0, 4], vec![2]));
    // `moved` ignores tasks that have arrived or do not exist.
    schedule.moved(1, 0);
    schedule.moved(9, 0);
    assert_eq!(loads(&schedule), [2, 4]);
    [2, 0, 4].into_iter().for_each(|number| assert!(schedule.arrived(number)));
    let returned = std::iter::from_fn(|| schedule.next_ready().map(|(number, worker, _)| (number, worker)));
    assert_eq!(returned.collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 0), (5, 1)]);
    assert_eq!(loads(&schedule), [0, 0]);
}

#[test]
fn a_task_that_is_put_back_is_no_longer_done() {
    for in_order in [true, false] {
        let mut schedule = Schedule::of_workers(&[true; 2], 2, in_order);
        fill(&mut schedule, 4, &mut Vec::new());
        assert!([0, 1, 3].into_iter().all(|number| schedule.arrived(number)));
        let taken = schedule.next_ready().unwrap();
        assert_eq!((taken, schedule.next_ready().unwrap()), ((0, 0, 0), (1, 1, 1)));
        assert_eq!((schedule.first(), schedule.len()), (2, 2));
        schedule.put_back(0, 0, 0, 0);
        assert_eq!((schedule.first(), schedule.done().collect::<Vec<_>>()), (0, vec![1]));
        assert_eq!(schedule.waiting_at(0), [0, 2]);
        assert_eq!(loads(&schedule), [2, 1]);
    }
}

#[test]
fn a_batch_arrives_only_once_and_only_for_a_sent_task() {
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
                let position = picks.next().map_or(0, |pick| pick.index(waiting.len()));
                let number = waiting.remove(position);
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
