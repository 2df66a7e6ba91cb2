//! Iterators that end or are dropped, at any time: the drop returns soon, and no worker and no memory is
//! left.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
    time::Duration,
};

use loader_core::{Error, Iter, collate::Batch, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{Count, Fault, Faulty, Large, Noise, Slow},
    processes,
    timing::{assert_soon, timed},
    traces::Before,
    ways::WAYS,
};
use nix::sys::signal::Signal;

/// Maximum time of a drop in which main has to end workers, first with SIGTERM after 5 s and then with
/// SIGKILL.
const KILLED: Duration = Duration::from_secs(20);

/// Drops the iterator, and checks that no worker is left. Returns how long the drop took.
fn drop_and_check<B: Batch>(batches: Iter<B>) -> Duration {
    let pids = batches.worker_pids();
    let ((), took) = timed(|| drop(batches));
    assert!(!processes::any_exists(&pids), "a worker is left");
    took
}

// PyTorch: 79, X02
#[test]
fn a_dropped_iterator_leaves_no_worker_and_held_batches_stay_valid() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        for taken in [0, 11] {
            let loader = way.apply(DataLoader::builder(Large { count: 1000, bytes: 1000 })).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let pids = batches.worker_pids();
            assert_eq!(pids.len(), way.workers);
            let held: Vec<_> = batches.by_ref().take(taken).map(Result::unwrap).collect();
            let ((), took) = timed(|| drop((batches, loader)));
            assert_soon(took);
            assert!(!processes::any_exists(&pids));
            assert!(held.iter().zip(0..).all(|(batch, index)| batch.as_slice() == [index; 1000]));
        }
    }
}

// PyTorch: X01
#[test]
fn at_the_end_of_an_epoch_every_worker_exits_without_an_error() {
    let _watchdog = Watchdog::start();
    for _ in 0..5 {
        // If a worker failed, `next` would return an error.
        let builder = DataLoader::builder(Noise { count: 40 }).num_workers(2);
        let loader = builder.on_worker_death(OnWorkerDeath::Fail).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        (0..40).for_each(|_| drop(batches.next().unwrap().unwrap()));
        let ((), took) = timed(|| {
            assert!(batches.next().is_none());
            assert_eq!(batches.report().restarts, 0);
            drop(batches);
        });
        assert_soon(took);
        assert!(!processes::any_exists(&pids));
    }
}

#[test]
fn a_drop_does_not_wait_for_a_long_batch() {
    let _watchdog = Watchdog::start();
    // A batch takes 20 s. Workers look at the done flag between two samples.
    let dataset = Slow { count: 1000, delay: Duration::from_millis(20) };
    let loader = DataLoader::builder(dataset).batch_size(1000).num_workers(2).build().unwrap();
    let batches = loader.iter().unwrap();
    thread::sleep(Duration::from_millis(100));
    assert_soon(drop_and_check(batches));
}

#[test]
fn a_drop_ends_workers_that_wait_for_larger_slots() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 10, bytes: 1 << 20 }).num_workers(2).build().unwrap();
    let batches = loader.iter().unwrap();
    // Both workers have asked by now. Main would answer in `next`.
    thread::sleep(Duration::from_millis(200));
    assert_soon(drop_and_check(batches));
}

// PyTorch: 42, P-31, X12, X13, U04, U05
#[test]
fn a_drop_ends_workers_that_hang_are_stopped_or_block_every_signal() {
    let _watchdog = Watchdog::start();
    // At the same time, because each drop takes seconds.
    thread::scope(|scope| {
        for fault in [Fault::Hang, Fault::HangHard, Fault::Stop] {
            scope.spawn(move || {
                let builder = DataLoader::builder(Faulty { count: 10, at: 1, fault }).num_workers(2);
                let mut batches = builder.build().unwrap().iter().unwrap();
                batches.next().unwrap().unwrap();
                thread::sleep(Duration::from_millis(100));
                let took = drop_and_check(batches);
                assert!(took < KILLED, "{fault:?}: {took:?}");
            });
        }
    });
}

/// SIGINT, which Ctrl-C sends to workers too, and a stop of 300 ms.
// PyTorch: X19, U32
#[test]
fn signals_of_a_terminal_lose_no_batch() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 100, delay: Duration::from_millis(1) };
    let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    batches.next().unwrap().unwrap();
    pids.iter().for_each(|&pid| processes::signal(pid, Signal::SIGINT));
    processes::signal(pids[0], Signal::SIGSTOP);
    let continued = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        processes::signal(pids[0], Signal::SIGCONT);
    });
    assert!(batches.by_ref().map(|batch| batch.unwrap().as_slice()[0]).eq(1..100));
    assert_eq!(batches.report().restarts, 0);
    continued.join().unwrap();
}

/// Every index is 7919 from the previous one, so that no batch is a range and main must send every index.
#[derive(Debug)]
struct Scattered;

const LARGE: usize = 10_000_000;

impl Sampler for Scattered {
    fn len(&self) -> usize {
        LARGE
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new((0..LARGE).map(|position| position * 7919 % LARGE))
    }
}

// PyTorch: 43, X03, X15
#[test]
fn a_panic_of_the_user_with_large_tasks_on_their_way_leaves_no_worker() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Count(LARGE)).sampler(Scattered).batch_size(40_960).num_workers(2);
    let loader = loader.build().unwrap();
    let pids = Mutex::new(Vec::new());
    let (panicked, took) = timed(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let mut batches = loader.iter().unwrap();
            pids.lock().unwrap().extend(batches.worker_pids());
            let batch = batches.next().unwrap().unwrap();
            assert_eq!((batch.len(), batch.as_slice()[1]), (40_960, 7919));
            panic!("the training step panics");
        }))
    });
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"the training step panics"));
    assert!(!processes::any_exists(&pids.into_inner().unwrap()));
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// The sample that hangs, then every second one, so that no batch is a range.
#[derive(Debug)]
struct HangFirst;

impl Sampler for HangFirst {
    fn len(&self) -> usize {
        500_000
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(std::iter::once(3).chain((0..499_999).map(|number| 2 * number)))
    }
}

// PyTorch: X15
#[test]
fn large_tasks_for_a_worker_that_hangs_do_not_block_main() {
    let _watchdog = Watchdog::start();
    // 64 tasks are far more than the index queue holds. Both sizes at the same time, because each drop takes
    // seconds.
    thread::scope(|scope| {
        for batch_size in [200, 4000] {
            scope.spawn(move || {
                let dataset = Faulty { count: 1_000_000, at: 3, fault: Fault::Hang };
                let builder = DataLoader::builder(dataset).batch_size(batch_size).num_workers(1);
                let builder = builder.prefetch_factor(64).sampler(HangFirst);
                let builder = builder.timeout(Duration::from_millis(300));
                let mut batches = builder.build().unwrap().iter().unwrap();
                let error = batches.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
                let took = drop_and_check(batches);
                assert!(took < KILLED, "{took:?}");
            });
        }
    });
}

// PyTorch: N21
#[test]
fn a_large_prefetch_of_small_batches_blocks_neither_main_nor_the_worker() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 5000, bytes: 1 }).num_workers(1).prefetch_factor(2000);
    let mut batches = loader.build().unwrap().iter().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 5000);
}

// PyTorch: N21
#[test]
fn descriptors_and_mappings_do_not_grow_over_epochs() {
    alone(|| {
        let before = Before::take();
        let counts = || (processes::open_descriptors(), processes::mapped_memory());
        let builder = DataLoader::builder(Large { count: 40, bytes: 50_000 }).batch_size(4).num_workers(3);
        let loader = builder.build().unwrap();
        let run = |epochs: usize| {
            for _ in 0..epochs {
                assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 10);
                drop(loader.iter().unwrap().next());
            }
        };
        run(2);
        let settled = counts();
        run(20);
        assert_eq!(counts(), settled);
        drop(loader);
        for fault in [Fault::Kill, Fault::Panic] {
            let dataset = Faulty { count: 20, at: 5, fault };
            let faulty = DataLoader::builder(dataset).num_workers(2).build().unwrap();
            faulty.iter().unwrap().for_each(drop);
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_wait_for_a_batch_can_be_interrupted() {
    let _watchdog = Watchdog::start();
    let delay = Duration::from_secs(60);
    let builder = DataLoader::builder(Slow { count: 10, delay }).num_workers(1);
    let mut batches = builder.build().unwrap().iter().unwrap();
    let state = batches.state();
    let mut asked = 0;
    batches.interrupt_when(Duration::from_millis(10), move || {
        asked += 1;
        asked % 3 == 0
    });
    for _ in 0..2 {
        let (next, took) = timed(|| batches.next().unwrap());
        assert!(matches!(next, Err(Error::Interrupted)), "{next:?}");
        assert!(took >= Duration::from_millis(30), "the function was not asked three times in {took:?}");
        assert_soon(took);
        assert_eq!(batches.state(), state);
    }
    drop_and_check(batches);
}

#[test]
fn interruptions_do_not_extend_the_time_of_a_sample() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Slow { count: 10, delay: Duration::from_secs(60) });
    let builder = builder.num_workers(1).sample_timeout(Duration::from_millis(500));
    let mut batches = builder.build().unwrap().iter().unwrap();
    batches.interrupt_when(Duration::from_millis(10), || true);
    let is_interruption = |next: &Result<_, Error>| matches!(next, Err(Error::Interrupted));
    let (next, took) = timed(|| batches.by_ref().find(|next| !is_interruption(next)).unwrap());
    assert!(next.is_err(), "{next:?}");
    assert_soon(took);
    drop_and_check(batches);
}

#[test]
fn interruptions_do_not_extend_the_timeout() {
    let _watchdog = Watchdog::start();
    let (delay, timeout) = (Duration::from_secs(60), Duration::from_millis(300));
    let builder = DataLoader::builder(Slow { count: 10, delay }).num_workers(1).timeout(timeout);
    let mut batches = builder.build().unwrap().iter().unwrap();
    batches.interrupt_when(Duration::from_millis(10), || true);
    let mut interruptions = 0;
    let (error, took) = timed(|| {
        loop {
            match batches.next().unwrap().unwrap_err() {
                Error::Interrupted => interruptions += 1,
                error => return error,
            }
        }
    });
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(took >= timeout && interruptions > 2, "{interruptions} interruptions in {took:?}");
    assert_soon(took);
    drop_and_check(batches);
}
