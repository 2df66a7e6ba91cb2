//! Which worker loads what, and in which order batches are returned: traces of PyTorch's scheduler with real
//! processes. A slow sample waits at a gate that the test opens, so a trace does not depend on the machine.

use std::{collections::BTreeSet, thread, time::Duration};

use loader_core::{Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting, SlowFirst},
    gate::{Gate, Gated, GatedStream},
    ways::{WAYS, all},
};

/// Returns the next sample and its worker.
fn next(batches: &mut Iter<(Tensor<u64>, Tensor<u64>)>) -> (u64, u64) {
    let (number, worker) = batches.next().unwrap().unwrap();
    assert_eq!(batches.last_batch().unwrap().worker, Some(worker.as_slice()[0] as usize));
    (number.as_slice()[0], worker.as_slice()[0])
}

/// With one task per worker, no task can move to another worker.
// PyTorch: 111, 3.10a, N19
#[test]
fn workers_get_tasks_in_turn() {
    let _watchdog = Watchdog::start();
    for batch_size in [8, 32, 64] {
        for workers in 1..=6 {
            let dataset = Count(batch_size * workers * 2)
                .map(|number, cx| Ok((number, cx.worker().map_or(99, |worker| worker.id() as u64))));
            let builder = DataLoader::builder(dataset).batch_size(batch_size).num_workers(workers);
            let batches = all(builder.prefetch_factor(1).build().unwrap().iter().unwrap());
            assert_eq!(batches.len(), 2 * workers);
            for (number, (numbers, ids)) in batches.iter().enumerate() {
                let first = (number * batch_size) as u64;
                assert!(numbers.as_slice().iter().copied().eq(first..first + batch_size as u64));
                assert_eq!(ids.as_slice(), vec![(number % workers) as u64; batch_size]);
            }
        }
    }
}

/// Traces a and b of PyTorch's scheduler: worker 1 loads its tasks, and no batch is returned before the slow
/// sample. With two tasks per worker, sample 2 waits behind the slow one and moves to worker 1, which PyTorch
/// never does.
// PyTorch: 114, 3.10b
#[test]
fn in_order_batches_wait_for_a_slow_one() {
    let _watchdog = Watchdog::start();
    for (prefetch, sent_ahead) in [(1, [0, 1].as_slice()), (2, &[0, 1, 1, 1])] {
        let gate = Gate::closed();
        let dataset = Gated { count: 10, slow: 0, gate: gate.path() };
        let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(prefetch);
        let mut batches = builder.timeout(Duration::from_millis(500)).build().unwrap().iter().unwrap();
        let error = batches.next().unwrap().unwrap_err();
        let Error::TimedOut { waiting_for, .. } = &error else { panic!("{error:?}") };
        assert_eq!((waiting_for.worker, waiting_for.index), (0, 0), "{error}");
        gate.open();
        // On a busy machine another wait may exceed the timeout; no batch is lost.
        let (numbers, workers): (Vec<u64>, Vec<u64>) = batches
            .filter(|batch| !matches!(batch, Err(Error::TimedOut { .. })))
            .map(|batch| batch.unwrap())
            .map(|(number, worker)| (number.as_slice()[0], worker.as_slice()[0]))
            .unzip();
        assert!(numbers.into_iter().eq(0..10));
        assert_eq!(workers[..sent_ahead.len()], *sent_ahead);
        if prefetch == 1 {
            assert!(workers.into_iter().eq((0..10).map(|number| number % 2)));
        }
    }
}

// PyTorch: 3.10b, U16, U17
#[test]
fn tasks_behind_a_slow_one_move_to_an_idle_worker() {
    let _watchdog = Watchdog::start();
    let check = |prefetch: usize, total: usize, numbers: usize| {
        let dataset = SlowFirst { count: total, delay: Duration::from_secs(1), numbers };
        let loader = DataLoader::builder(dataset).num_workers(2).prefetch_factor(prefetch).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut workers = Vec::new();
        for number in 0..total as u64 {
            assert_eq!(batches.next().unwrap().unwrap().as_slice()[numbers - 1], number, "the order is kept");
            workers.push(batches.last_batch().unwrap().worker.unwrap());
        }
        assert!(batches.next().is_none());
        assert_eq!(workers[0], 0);
        // All tasks that were sent ahead, including the one that worker 0 would have begun next.
        let ahead = &workers[1..(2 * prefetch).min(total)];
        assert!(ahead.iter().all(|&worker| worker == 1), "prefetch {prefetch}: {workers:?}");
    };
    thread::scope(|scope| {
        for (prefetch, total) in [(4, 40), (40, 40), (4, 8)] {
            scope.spawn(move || check(prefetch, total, 1));
        }
        // These batches are large enough that main offers warm slots.
        for prefetch in [2, 4] {
            scope.spawn(move || check(prefetch, 40, 200_000));
        }
    });
}

/// PyTorch's trace ends with samples 0 and 2, both of worker 0. Here sample 2 moves to the idle worker and is
/// returned before sample 0.
// PyTorch: 115, A17, 3.10c, U16
#[test]
fn out_of_order_a_slow_worker_does_not_hold_back_the_other() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let gate = Gate::closed();
        let dataset = Gated { count: 10, slow: 0, gate: gate.path() };
        let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(2).in_order(false);
        let loader = builder.persistent_workers(persistent).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let trace: Vec<_> = (0..9).map(|_| next(&mut batches)).collect();
        assert_eq!(trace, [1, 3, 4, 5, 6, 7, 8, 9, 2].map(|number| (number, 1)));
        gate.open();
        assert_eq!(next(&mut batches), (0, 0));
        assert!(batches.next().is_none());
        // In the next epoch no sample waits, because the gate is open.
        let again: BTreeSet<u64> =
            loader.iter().unwrap().map(|batch| batch.unwrap().0.as_slice()[0]).collect();
        assert_eq!(again.len(), 10);
    }
}

// PyTorch: 116, 3.10e
#[test]
fn in_order_shards_take_turns() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = GatedStream(Gated { count: 10, slow: 5, gate: gate.path() });
    let builder = DataLoader::stream(dataset).num_workers(2).prefetch_factor(2);
    let mut batches = builder.build().unwrap().iter().unwrap();
    assert_eq!(next(&mut batches), (0, 0));
    gate.open();
    let trace: Vec<_> = (0..9).map(|_| next(&mut batches)).collect();
    assert_eq!(trace, [(5, 1), (1, 0), (6, 1), (2, 0), (7, 1), (3, 0), (8, 1), (4, 0), (9, 1)]);
    assert!(batches.next().is_none());
}

// PyTorch: 117, 3.10f
#[test]
fn out_of_order_a_slow_shard_does_not_hold_back_the_other() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let gate = Gate::closed();
        let dataset = GatedStream(Gated { count: 10, slow: 5, gate: gate.path() });
        let builder = DataLoader::stream(dataset).num_workers(2).prefetch_factor(2).in_order(false);
        let loader = builder.persistent_workers(persistent).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let first: Vec<_> = (0..5).map(|_| next(&mut batches)).collect();
        assert!(first.into_iter().eq((0..5).map(|number| (number, 0))));
        gate.open();
        let rest: Vec<_> = (0..5).map(|_| next(&mut batches)).collect();
        assert!(rest.into_iter().eq((5..10).map(|number| (number, 1))));
        assert!(batches.next().is_none());
    }
}

/// Out of order, the samples of each shard still keep their order.
// PyTorch: A17
#[test]
fn out_of_order_every_sample_comes_once() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let builder = DataLoader::builder(Count(50)).batch_size(3).shuffle(true).in_order(false);
        let loader = way.apply(builder).build().unwrap();
        for _ in 0..2 {
            let batches = all(loader.iter().unwrap());
            let mut seen: Vec<u64> = batches.iter().flat_map(|batch| batch.as_slice().to_vec()).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..50), "{way:?}");
        }
        for shards in [2, 4, 5] {
            let stream = DataLoader::stream(Counting { count: 200 }).shards(shards).batch_size(3);
            let loader = way.apply(stream.in_order(false)).build().unwrap();
            for _ in 0..2 {
                let batches = all(loader.iter().unwrap());
                let seen: Vec<u64> =
                    batches.iter().flat_map(|(numbers, _)| numbers.as_slice().to_vec()).collect();
                assert_eq!(seen.len(), 200);
                for shard in 0..shards {
                    let own = seen.iter().copied().filter(|number| *number as usize % shards == shard);
                    assert!(own.eq((shard as u64..200).step_by(shards)), "{way:?}, {shards} shards");
                }
            }
        }
    }
}
