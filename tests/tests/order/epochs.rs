//! Whole epochs: the same batches, whatever loads them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use loader_core::{Builder, Error, Warning, kind::MapStyle, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise, Slow, SlowFirst},
    digest, processes,
};

type NoiseBatch = (Tensor<u64>, Tensor<f32>, Vec<String>);

fn noise(workers: usize) -> Result<DataLoader<NoiseBatch>, Error> {
    DataLoader::builder(Noise { count: 103 }).batch_size(8).shuffle(true).seed(5).num_workers(workers).build()
}

// PyTorch: 48, U12
#[test]
fn the_digests_do_not_depend_on_the_number_of_workers() {
    let _watchdog = Watchdog::start();
    let reference = noise(0).unwrap();
    let expected: Vec<_> = (0..3).map(|epoch| digest(reference.epoch(epoch).unwrap()).unwrap()).collect();
    assert_ne!(expected[0], expected[1], "each epoch has its own order and noise");
    for workers in [1, 2, 4, 7] {
        let loader = noise(workers).unwrap();
        for (epoch, expected) in expected.iter().enumerate() {
            let batches = loader.iter().unwrap();
            assert_eq!(batches.epoch(), epoch as u64);
            assert_eq!(digest(batches).unwrap(), *expected, "{workers} workers, epoch {epoch}");
        }
    }
}

// PyTorch: A14
#[test]
fn the_digests_do_not_depend_on_the_prefetch_factor() {
    let _watchdog = Watchdog::start();
    let build = |prefetch| {
        let builder = DataLoader::builder(Noise { count: 50 }).batch_size(3).num_workers(2);
        builder.prefetch_factor(prefetch).build().unwrap()
    };
    let digests: Vec<_> = [1, 2, 9].map(|prefetch| digest(build(prefetch).iter().unwrap()).unwrap()).into();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

// PyTorch: U28
#[test]
fn a_batch_lies_in_shared_memory_and_outlives_its_iterator() {
    let _watchdog = Watchdog::start();
    let loader =
        DataLoader::builder(Large { count: 8, bytes: 100_000 }).batch_size(2).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let held: Vec<Tensor<u8>> = batches.by_ref().take(3).map(Result::unwrap).collect();
    drop(batches);
    drop(loader);
    for (number, batch) in held.iter().enumerate() {
        assert!(batch.is_shared_memory());
        assert_eq!(batch.shape(), [2, 100_000]);
        assert!(batch.row(1).iter().all(|&byte| usize::from(byte) == 2 * number + 1));
    }
}

#[test]
fn large_batches_ask_for_larger_slots_and_lists_of_indices_travel_in_them() {
    let _watchdog = Watchdog::start();
    let build = |workers| {
        let builder =
            DataLoader::builder(Noise { count: 20_000 }).batch_size(9_000).shuffle(true).num_workers(workers);
        builder.build().unwrap()
    };
    assert_eq!(digest(build(0).iter().unwrap()).unwrap(), digest(build(2).iter().unwrap()).unwrap());
}

// PyTorch: U28
#[test]
fn shared_memory_is_used_again_from_batch_to_batch_and_epoch_to_epoch() {
    let _watchdog = Watchdog::start();
    let loader =
        DataLoader::builder(Large { count: 64, bytes: 50_000 }).batch_size(2).num_workers(2).build().unwrap();
    let bytes = |epoch: u64| {
        let mut batches = loader.epoch(epoch).unwrap();
        batches.by_ref().for_each(|batch| drop(batch.unwrap()));
        batches.report().shared_memory_bytes
    };
    let first = bytes(0);
    assert!((1..10).all(|epoch| bytes(epoch) == first), "memory grew from {first} bytes");
}

#[test]
fn several_iterators_live_at_once() {
    let _watchdog = Watchdog::start();
    let loader = noise(2).unwrap();
    let (one, two) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap());
    for (one, two) in one.zip(two) {
        assert_eq!(one.unwrap(), two.unwrap());
    }
}

#[test]
fn an_iterator_can_move_to_another_thread() {
    let _watchdog = Watchdog::start();
    let loader = noise(2).unwrap();
    let batches = loader.epoch(0).unwrap();
    let there = std::thread::spawn(move || digest(batches).unwrap()).join().unwrap();
    assert_eq!(there, digest(loader.epoch(0).unwrap()).unwrap());
}

// PyTorch: P-28
#[test]
fn a_loader_made_on_a_thread_that_ends_goes_on() {
    let _watchdog = Watchdog::start();
    let mut batches = std::thread::spawn(|| noise(2).unwrap().epoch(0).unwrap()).join().unwrap();
    // A worker that was tied to the thread would be gone by now.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 13);
}

#[test]
fn arrival_order_loses_nothing() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 103 }).batch_size(8).num_workers(3).in_order(false);
    let batches = builder.build().unwrap().iter().unwrap();
    let mut seen: Vec<u64> = batches.flat_map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..103));
}

#[test]
fn lengths_and_the_last_batch() {
    let _watchdog = Watchdog::start();
    for (drop_last, batches, samples) in [(false, 13, 103), (true, 12, 96)] {
        let builder =
            DataLoader::builder(Noise { count: 103 }).batch_size(8).drop_last(drop_last).num_workers(2);
        let loader = builder.build().unwrap();
        assert_eq!(loader.len(), Some(batches));
        let mut iter = loader.iter().unwrap();
        assert_eq!(iter.size_hint(), (batches, Some(batches)));
        let loaded: usize = iter.by_ref().map(|batch| batch.unwrap().0.len()).sum();
        assert_eq!(loaded, samples);
        assert_eq!(iter.size_hint(), (0, Some(0)));
        assert!(iter.next().is_none(), "the end stays the end");
        let report = iter.report();
        assert_eq!((report.batches, report.samples), (batches as u64, samples as u64));
    }
}

#[test]
fn samplers_of_the_users() {
    let _watchdog = Watchdog::start();
    #[derive(Debug)]
    struct Pairs;
    impl BatchSampler for Pairs {
        fn len(&self, _epoch: Epoch) -> usize {
            3
        }

        fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
            Box::new([vec![5, 1], vec![], vec![2, 2, 2]].into_iter())
        }
    }
    for workers in [0, 2] {
        let loader = DataLoader::builder(Noise { count: 10 })
            .batch_sampler(Pairs)
            .num_workers(workers)
            .build()
            .unwrap();
        let indices: Vec<Vec<u64>> =
            loader.iter().unwrap().map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
        assert_eq!(indices, [vec![5, 1], vec![], vec![2, 2, 2]]);
    }
}

/// Epoch `n` has `n + 2` batches of one sample; `len` returns that number plus `says`.
#[derive(Debug)]
struct Longer {
    says: isize,
}

impl BatchSampler for Longer {
    fn len(&self, epoch: Epoch) -> usize {
        (epoch.number as usize + 2).saturating_add_signed(self.says)
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new((0..epoch.number as usize + 2).map(|index| vec![index]))
    }
}

/// Collects a loader's warnings about wrong numbers of batches.
fn noting(builder: Builder<MapStyle<Noise>>) -> (Arc<Mutex<Vec<Warning>>>, Builder<MapStyle<Noise>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&warnings);
    let builder = builder.on_warning(move |warning| {
        if matches!(warning, Warning::WrongBatchCount { .. }) {
            noted.lock().unwrap().push(warning.clone());
        }
    });
    (warnings, builder)
}

#[test]
fn epochs_may_have_different_numbers_of_batches() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let (warnings, builder) = noting(DataLoader::builder(Noise { count: 10 }));
        let loader = builder.batch_sampler(Longer { says: 0 }).num_workers(workers).build().unwrap();
        for batches in 2..5 {
            assert_eq!(loader.len(), Some(batches));
            let mut iter = loader.iter().unwrap();
            assert_eq!(iter.size_hint(), (batches, Some(batches)));
            iter.next().unwrap().unwrap();
            let state = iter.state();
            assert_eq!(iter.count(), batches - 1);
            assert_eq!(loader.resume(&state).unwrap().count(), batches - 1);
        }
        assert_eq!(*warnings.lock().unwrap(), []);
    }
}

#[test]
fn a_batch_sampler_that_says_a_wrong_number_of_batches_is_warned_of_once() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for says in [-1, 1, 40] {
            let (warnings, builder) = noting(DataLoader::builder(Noise { count: 10 }));
            let loader = builder.batch_sampler(Longer { says }).num_workers(workers).build().unwrap();
            // Not `count`, which relies on `size_hint` and so on the sampler's `len`.
            let mut batches = loader.iter().unwrap();
            assert!(batches.next().unwrap().is_ok() && batches.next().unwrap().is_ok());
            assert!(batches.next().is_none());
            let announced = 2usize.saturating_add_signed(says);
            assert_eq!(
                *warnings.lock().unwrap(),
                [Warning::WrongBatchCount { epoch: 0, announced, given: 2 }]
            );
        }
    }
}

// PyTorch: X01
#[test]
fn nothing_is_left_after_an_epoch() {
    let _watchdog = Watchdog::start();
    let loader = noise(3).unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(pids.len(), 3);
    batches.by_ref().for_each(drop);
    assert!(pids.iter().all(|&pid| !processes::exists(pid)), "reaped when the iterator says it is over");
}

// PyTorch: U25
#[test]
fn a_step_that_takes_longer_than_loading_is_named_the_bottleneck() {
    let _watchdog = Watchdog::start();
    let run = |load: u64, step: u64| {
        let dataset = Slow { count: 20, delay: Duration::from_millis(load) };
        let loader = DataLoader::builder(dataset).num_workers(1).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().for_each(|_| std::thread::sleep(Duration::from_millis(step)));
        batches.report().verdict()
    };
    assert_eq!(run(10, 0), loader_core::Verdict::LoaderBound);
    assert_eq!(run(0, 60), loader_core::Verdict::StepBound);
}

// PyTorch: 3.10b, U16, U17
#[test]
fn what_waits_behind_a_slow_batch_goes_to_an_idle_worker() {
    let _watchdog = Watchdog::start();
    // The last ones are large enough for warm slots to be offered.
    for (prefetch, total, numbers) in [(4, 40, 1), (40, 40, 1), (4, 8, 1), (2, 40, 200_000), (4, 40, 200_000)]
    {
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
        // All that was sent ahead, the one after it included that worker 0 might have begun.
        let ahead = &workers[1..(2 * prefetch).min(total)];
        assert!(ahead.iter().all(|&worker| worker == 1), "prefetch {prefetch}: {workers:?}");
    }
}
