//! Which worker loads what, and in which order it comes: the traces of PyTorch's scheduler with real processes. Slow samples wait at a
//! gate that the test opens, so that each trace is what it is on any machine.

use std::{collections::BTreeSet, time::Duration};

use loader_core::{Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::Count,
    gate::{Gate, Gated, GatedStream},
    ways::{WAYS, all},
};

type Batches = Iter<(Tensor<u64>, Tensor<u64>)>;

/// The next sample and its worker.
fn next(batches: &mut Batches) -> (u64, u64) {
    let (number, worker) = batches.next().unwrap().unwrap();
    assert_eq!(batches.last_batch().unwrap().worker, Some(worker.as_slice()[0] as usize));
    (number.as_slice()[0], worker.as_slice()[0])
}

/// With one batch a worker on its way there is nothing to move, and batch `n` is of worker `n` modulo their number.
// PyTorch: 111, 3.10a, N19
#[test]
fn batches_are_dealt_out_to_the_workers() {
    let _watchdog = Watchdog::start();
    for batch_size in [8, 32, 64] {
        for workers in 1..=6 {
            let dataset = Count(batch_size * workers * 2)
                .map(|number, cx| Ok((number, cx.worker().map_or(99, |worker| worker.id() as u64))));
            let builder = DataLoader::builder(dataset).batch_size(batch_size).num_workers(workers);
            let batches = all(builder.prefetch_factor(1).build().unwrap().iter().unwrap());
            for (place, (numbers, ids)) in batches.iter().enumerate() {
                let first = (place * batch_size) as u64;
                assert!(numbers.as_slice().iter().copied().eq(first..first + batch_size as u64));
                assert_eq!(ids.as_slice(), vec![(place % workers) as u64; batch_size]);
            }
        }
    }
}

/// Traces a and b of PyTorch's scheduler: worker 1 loads what it has, nothing comes before the slow sample, and the order is kept. With two
/// batches on their way to each worker, sample 2 waits behind the slow one and is moved to worker 1, as PyTorch's never is.
// PyTorch: 114, 3.10b
#[test]
fn in_order_a_slow_sample_holds_the_others_back() {
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
        // On a busy machine another wait may be too long; it loses nothing.
        let came = batches.filter(|batch| !matches!(batch, Err(Error::TimedOut { .. })));
        let (numbers, workers): (Vec<u64>, Vec<u64>) = came
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

/// PyTorch's trace ends with `0 2`, both of worker 0. Here what waits behind the slow sample goes to the worker that has nothing else to
/// do, and so comes first.
// PyTorch: 115, A17, 3.10c, U16
#[test]
fn out_of_order_the_fast_worker_goes_on() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let gate = Gate::closed();
        let dataset = Gated { count: 10, slow: 0, gate: gate.path() };
        let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(2).in_order(false);
        let loader = builder.persistent_workers(stays).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let trace: Vec<_> = (0..9).map(|_| next(&mut batches)).collect();
        assert_eq!(trace, [1, 3, 4, 5, 6, 7, 8, 9, 2].map(|number| (number, 1)));
        gate.open();
        assert_eq!(next(&mut batches), (0, 0));
        assert!(batches.next().is_none());
        // The gate is open: another epoch.
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
fn out_of_order_the_other_shard_passes() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let gate = Gate::closed();
        let dataset = GatedStream(Gated { count: 10, slow: 5, gate: gate.path() });
        let builder = DataLoader::stream(dataset).num_workers(2).prefetch_factor(2).in_order(false);
        let loader = builder.persistent_workers(stays).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let first: Vec<_> = (0..5).map(|_| next(&mut batches)).collect();
        assert!(first.into_iter().eq((0..5).map(|number| (number, 0))));
        gate.open();
        let rest: Vec<_> = (0..5).map(|_| next(&mut batches)).collect();
        assert!(rest.into_iter().eq((5..10).map(|number| (number, 1))));
        assert!(batches.next().is_none());
    }
}

/// Whatever the order, every sample comes once; of each shard they come in theirs.
// PyTorch: A17
#[test]
fn out_of_order_nothing_is_lost() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way
            .of(DataLoader::builder(Count(50)).batch_size(3).shuffle(true).in_order(false))
            .build()
            .unwrap();
        for _ in 0..2 {
            let seen: BTreeSet<u64> =
                all(loader.iter().unwrap()).iter().flat_map(|batch| batch.as_slice().to_vec()).collect();
            assert!(seen.into_iter().eq(0..50));
        }
        let gate = Gate::closed();
        gate.open();
        let dataset = GatedStream(Gated { count: 40, slow: 0, gate: gate.path() });
        let loader = way.of(DataLoader::stream(dataset).shards(5).in_order(false)).build().unwrap();
        for _ in 0..2 {
            let seen: Vec<u64> =
                all(loader.iter().unwrap()).iter().map(|batch| batch.0.as_slice()[0]).collect();
            for shard in 0..5 {
                let own = seen.iter().copied().filter(|number| number / 8 == shard);
                assert!(own.eq(8 * shard..8 * shard + 8), "{way:?}");
            }
        }
    }
}
