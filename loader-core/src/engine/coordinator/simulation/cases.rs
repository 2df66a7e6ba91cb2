//! A test for each defect that the simulation has found.

use std::{
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{frame::Event, slots::SlotPool};

use super::{
    crew::{Faults, Workers},
    dataset::{Fault, SampleFaults},
    iterator::{Iteration, Returned},
    received::Received,
    scenario::{Scenario, Setup},
    shared::Shared,
};
use crate::{
    data::fetch::FetchOptions, engine::coordinator::WorkerOptions, error::Error, options::OnBadSample,
    state::Position,
};

/// Maximum number of steps of a case.
const MAX_STEPS: u32 = 100_000;

/// One iterator and its user.
struct Case {
    iteration: Iteration,
    shared: Rc<Shared>,
    faults: Faults,
}

impl Case {
    fn start(setup: &Setup, options: WorkerOptions, persistent: bool) -> Self {
        let shared = Rc::new(Shared::new(Instant::now(), false));
        let slots = SlotPool::of_this_process(1 << 30);
        let workers = Workers::new(options.workers, 0, setup.dataset, &slots, &shared, 0, false);
        let supply = setup.supply(0, &Position::Start);
        let user = thread::current().id();
        let iteration = Iteration::start(options, supply, &slots, persistent, workers, &shared, user);
        Self { iteration, shared, faults: setup.faults }
    }

    fn next(&mut self) -> Returned {
        self.iteration.start_next(thread::current().id());
        (0..MAX_STEPS).find_map(|_| self.step()).expect("next returns")
    }

    /// Does a step of a worker and a step of main.
    fn step(&mut self) -> Option<Returned> {
        self.shared.advance(Duration::from_millis(1));
        self.iteration.step_workers(self.faults);
        self.iteration.act()
    }
}

/// Main replaces a worker that always breaks the protocol as often as the user allows. Then the iterator
/// ends: `next` neither waits nor replaces the worker again.
#[test]
fn a_worker_that_always_lies_ends_the_iterator() {
    let (setup, options) = Scenario::plain(0, 3, 500);
    let mut case = Case::start(&setup, WorkerOptions { workers: 1, ..options }, false);
    for _ in 0..MAX_STEPS {
        match case.next() {
            Returned::Batch(..) => {}
            Returned::Fatal(error) => {
                assert!(matches!(error, Error::WorkerMisbehaved { worker: 0, .. }), "{error}");
                return;
            }
            other => panic!("next returns {other:?}"),
        }
    }
    panic!("the iterator does not end");
}

/// Main does not try again to start a worker if no process can fork it any more, whatever `max_worker_deaths` is.
#[test]
fn a_start_that_cannot_succeed_ends_the_iterator_at_once() {
    let (setup, options) = Scenario::plain(0, u32::MAX, 0);
    let mut case = Case::start(&setup, WorkerOptions { workers: 1, ..options }, false);
    case.iteration.workers.can_fork = false;
    case.iteration.workers.end(0);
    match case.next() {
        Returned::Fatal(Error::WorkerNotStarted { worker: 0, source }) => {
            assert!(source.is_final(), "{source}")
        }
        other => panic!("next returns {other:?}"),
    }
}

/// Starts an iterator with two workers: the first has no more samples, and the second is stopped. Returns the
/// iterator and what the user has received.
fn with_idle_worker() -> (Case, Received) {
    let (mut setup, options) = Scenario::plain(2, 3, 0);
    setup.dataset.batches = 40;
    let is_wanted = |setup: &Setup| setup.dataset.shard_len(0) == 0 && setup.dataset.shard_len(1) > 10;
    while !is_wanted(&setup) {
        setup.dataset.seed += 1;
    }
    let options = WorkerOptions { workers: 2, prefetch_factor: 1, ..options };
    let mut case = Case::start(&setup, options, true);
    let mut received = Received::new(setup.dataset, true);
    received.note(&case.next());
    case.iteration.workers.all[1].is_stopped = true;
    (case, received)
}

impl Case {
    /// Lets main wait until it knows that a worker has ended.
    fn wait_for_exit(&mut self, worker: usize) {
        self.iteration.start_next(thread::current().id());
        let is_down = |case: &mut Self| case.step().is_none() && case.iteration.workers.all[worker].is_down;
        assert!((0..MAX_STEPS).any(|_| is_down(self)), "main does not notice the exit");
    }
}

/// A worker whose shards are over is not replaced when it dies. It must not get the shards of a worker that
/// is parked later.
#[test]
fn a_worker_that_died_without_work_gets_no_shards() {
    let (mut case, mut received) = with_idle_worker();
    case.iteration.workers.end(0);
    case.wait_for_exit(0);
    case.iteration.set_workers(1);
    case.iteration.workers.all[1].is_stopped = false;
    loop {
        let returned = case.next();
        received.note(&returned);
        match returned {
            Returned::Batch(..) => {}
            Returned::End => {
                let coordinator = &case.iteration.coordinator;
                return received.check_end(coordinator.is_over(), &coordinator.position());
            }
            other => panic!("next returns {other:?}"),
        }
    }
}

/// Main does not check the progress of a worker that it has killed. Main must forget that it has killed the
/// worker, because it later starts another process with the worker's number.
#[test]
fn the_cause_of_a_death_without_work_is_forgotten() {
    let (mut case, _) = with_idle_worker();
    case.iteration.workers.all[0].is_liar = true;
    case.iteration.workers.all[0].events.push_back(Event::Resumed { epoch: 7 });
    case.wait_for_exit(0);
    assert!(!case.iteration.coordinator.roster[0].death_record.is_expected());
}

/// Main also checks workers in waits that end before the first check would be due.
#[test]
fn sample_timeout_holds_with_a_short_timeout() {
    let (mut setup, options) = Scenario::plain(0, 3, 0);
    setup.dataset.faults = SampleFaults { kinds: &[Fault::Hangs], every: 1 };
    setup.dataset.on_bad_sample = OnBadSample::Error;
    let options = WorkerOptions {
        timeout: Some(Duration::from_millis(1)),
        sample_timeout: Some(Duration::from_millis(500)),
        fetch: FetchOptions::default(),
        ..options
    };
    let mut case = Case::start(&setup, options, false);
    loop {
        match case.next() {
            Returned::TimedOut => {}
            Returned::Failed(0, None) => return,
            other => panic!("next returns {other:?}"),
        }
    }
}

/// The time in which the awaited worker opens the dataset does not count towards `timeout`, up to 30 seconds.
#[test]
fn a_timeout_begins_once_the_worker_has_opened_the_dataset() {
    for (opens_after, expected) in [(Some(2_000), 2_095..2_110), (None, 30_095..30_110)] {
        let (mut setup, options) = Scenario::plain(0, 0, 0);
        setup.dataset.faults = SampleFaults { kinds: &[Fault::Hangs], every: 1 };
        let timeout = Some(Duration::from_millis(100));
        let mut case = Case::start(&setup, WorkerOptions { workers: 1, timeout, ..options }, false);
        case.iteration.workers.all[0].is_stopped = true;
        case.iteration.start_next(thread::current().id());
        let steps = (0..MAX_STEPS).find_map(|step| {
            case.iteration.workers.all[0].is_stopped &= opens_after != Some(step);
            let returned = case.step()?;
            assert!(matches!(returned, Returned::TimedOut), "{returned:?}");
            Some(step)
        });
        assert!(steps.is_some_and(|steps| expected.contains(&steps)), "{steps:?} steps of a millisecond");
    }
}

/// Workers that keep their tasks get more of them than their queue holds. The next epoch begins behind these tasks.
#[test]
fn an_epoch_that_is_left_with_a_backlog_keeps_its_workers() {
    let (mut setup, options) = Scenario::plain(0, 3, 0);
    setup.dataset.batches = 40;
    let options = WorkerOptions { workers: 1, prefetch_factor: 30, move_tasks: false, ..options };
    let mut case = Case::start(&setup, options, true);
    assert!(matches!(case.next(), Returned::Batch(..)));
    // While the program does something else, the worker does all that it was sent.
    for _ in 0..1000 {
        case.shared.advance(Duration::from_millis(1));
        case.iteration.step_workers(case.faults);
    }
    assert!(case.iteration.start_resuming(1));
    let resumed = (0..MAX_STEPS).find_map(|_| {
        case.shared.advance(Duration::from_millis(1));
        case.iteration.step_workers(case.faults);
        case.iteration.act_resuming()
    });
    assert_eq!(resumed, Some(true));
}
