//! Samplers and batch samplers in loaders: lists, PyTorch's order, the user's own samplers, and epochs of a
//! thousand million samples.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use loader_core::{Builder, LoaderOptions, Order, Warning, kind::MapStyle, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::Count,
    ways::{WAYS, all, numbers},
};

/// Returns the batches of indices of two epochs, which must be the same with 0, 1 and 3 workers.
fn indices(build: impl Fn() -> Builder<MapStyle<Count>>) -> [Vec<Vec<usize>>; 2] {
    let load = |workers| {
        let loader = build().num_workers(workers).build().unwrap();
        [0, 1].map(|_| {
            let batches = numbers(&all(loader.iter().unwrap())).into_iter();
            batches.map(|batch| batch.into_iter().map(|index| index as usize).collect()).collect()
        })
    };
    let epochs = load(0);
    assert_eq!((load(1), load(3)), (epochs.clone(), epochs.clone()));
    epochs
}

fn count(samples: usize) -> Builder<MapStyle<Count>> {
    DataLoader::builder(Count(samples))
}

// PyTorch: 72, A04, S01, S09
#[test]
fn a_list_of_indices_is_a_sampler() {
    let _watchdog = Watchdog::start();
    for list in [(2..12).collect::<Vec<_>>(), vec![9, 9, 0, 3, 1], vec![]] {
        let expected: Vec<_> = list.chunks(2).map(<[_]>::to_vec).collect();
        let builder = || count(100).sampler(list.clone()).batch_size(2);
        assert_eq!(builder().build().unwrap().len(), Some(expected.len()));
        assert_eq!(indices(builder), [expected.clone(), expected]);
    }
}

/// The batches have different sizes, and one is empty. One index is repeated, and most are left out.
// PyTorch: 73, A05, S09
#[test]
fn a_list_of_batches_is_a_batch_sampler() {
    let _watchdog = Watchdog::start();
    let list = vec![vec![5, 1], vec![7, 8, 9], vec![], vec![2, 2, 2], vec![19]];
    let builder = || count(20).batch_sampler(list.clone());
    assert_eq!(builder().build().unwrap().len(), Some(5));
    assert_eq!(indices(builder), [list.clone(), list.clone()]);
}

#[test]
fn options_make_a_batch_sampler() {
    let _watchdog = Watchdog::start();
    let options = LoaderOptions::default().batch_size(4);
    let [epoch, _] = indices(|| count(10).batch_sampler(options.batch_sampler(10).unwrap()));
    assert_eq!(epoch, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
}

/// The expected numbers are those of PyTorch 2.15. Many more are compared in `loader-core/tests/golden`,
/// without workers.
// PyTorch: R06, U30
#[test]
fn pytorch_s_order_does_not_depend_on_workers() {
    let _watchdog = Watchdog::start();
    // DataLoader(range(20), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(0)), two
    // epochs
    let shuffled = indices(|| count(20).batch_size(6).shuffle(true).seed(0).order(Order::Torch));
    let expected = [
        [vec![13, 1, 9, 3, 7, 18], vec![17, 11, 0, 8, 16, 14], vec![5, 6, 4, 12, 15, 2], vec![10, 19]],
        [vec![16, 14, 3, 9, 7, 15], vec![10, 1, 12, 0, 13, 5], vec![19, 18, 8, 2, 11, 4], vec![17, 6]],
    ];
    assert_eq!(shuffled, expected);

    let drawn = |samples, seed, sampler: &dyn Fn(Builder<MapStyle<Count>>) -> Builder<MapStyle<Count>>| {
        let builder = || sampler(count(samples).batch_size(100).seed(seed).order(Order::Torch));
        indices(builder).map(|batches| batches.concat())
    };
    // list(WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 12, generator=...)) with seed 42; then 5
    // without replacement
    let weighted = |count, replacement| {
        let weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6];
        let sampler = WeightedRandomSampler::new(weights, count, replacement).unwrap();
        let [first, _] = drawn(6, 42, &|builder| builder.sampler(sampler.clone()));
        first
    };
    assert_eq!(weighted(12, true), [1, 1, 1, 1, 4, 4, 5, 5, 1, 1, 1, 4]);
    assert_eq!(weighted(5, false), [1, 3, 4, 2, 0]);

    // DistributedSampler(range(23), 4, rank, seed=42) after set_epoch(1)
    let shares =
        [[13, 18, 15, 14, 22, 3], [17, 7, 12, 6, 2, 9], [16, 1, 11, 4, 19, 5], [20, 10, 21, 8, 0, 13]];
    for (rank, share) in shares.iter().enumerate() {
        let [_, second] = drawn(23, 42, &|builder| builder.shuffle(true).distributed(rank, 4));
        assert_eq!(second, share, "rank {rank}");
    }

    // RandomSampler(range(20), num_samples=45, replacement=..., generator=...) with seed 0
    let random = |replacement| {
        let sampler = RandomSampler::new(20).num_samples(45).unwrap().replacement(replacement);
        let [first, _] = drawn(20, 0, &|builder| builder.sampler(sampler));
        first
    };
    let permuted = [
        4, 5, 13, 19, 7, 14, 3, 6, 9, 17, 11, 2, 16, 18, 10, 12, 15, 8, 1, 0, 13, 11, 0, 18, 3, 19, 17, 9, 2,
        4, 10, 12, 16, 6, 14, 15, 8, 7, 5, 1, 11, 4, 1, 7, 12,
    ];
    let replaced = [
        4, 19, 13, 0, 3, 19, 7, 3, 17, 3, 1, 6, 16, 19, 18, 16, 16, 8, 14, 13, 6, 19, 11, 14, 4, 1, 9, 9, 9,
        0, 1, 12, 3, 0, 15, 5, 2, 19, 11, 8, 18, 3, 16, 9, 11,
    ];
    assert_eq!(random(false), permuted);
    assert_eq!(random(true), replaced);
}

/// PyTorch asks for the sampler's iterator once per epoch, but twice in the first epoch with workers.
// PyTorch: A35
#[test]
fn a_sampler_is_asked_once_per_epoch() {
    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);
    impl Sampler for Counted {
        fn len(&self) -> usize {
            4
        }

        fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
            self.0.fetch_add(1, Ordering::SeqCst);
            SequentialSampler::new(4).indices(epoch)
        }
    }
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let calls = Arc::new(AtomicUsize::new(0));
        let loader = way.apply(count(4).sampler(Counted(Arc::clone(&calls)))).build().unwrap();
        for epoch in 1..=3 {
            assert_eq!(loader.iter().unwrap().count(), 4);
            assert_eq!(calls.load(Ordering::SeqCst), epoch, "{way:?}");
        }
    }
}

/// Epoch `n` has `n + 2` batches of one sample; `len` returns that number plus `excess`.
#[derive(Debug)]
struct Growing {
    excess: isize,
}

impl BatchSampler for Growing {
    fn len(&self, epoch: Epoch) -> usize {
        (epoch.number as usize + 2).saturating_add_signed(self.excess)
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new((0..epoch.number as usize + 2).map(|index| vec![index]))
    }
}

/// Builds a loader whose warnings about wrong numbers of batches are collected.
fn growing(excess: isize, workers: usize) -> (DataLoader<Tensor<u64>>, Arc<Mutex<Vec<Warning>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let builder = count(10).batch_sampler(Growing { excess }).num_workers(workers);
    let builder = builder.on_warning(move |warning| {
        if matches!(warning, Warning::WrongBatchCount { .. }) {
            collected.lock().unwrap().push(warning.clone());
        }
    });
    (builder.build().unwrap(), warnings)
}

#[test]
fn epochs_may_have_different_numbers_of_batches() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let (loader, warnings) = growing(0, workers);
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
fn a_wrong_number_of_batches_is_warned_of_once() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for excess in [-1, 1, 40] {
            let (loader, warnings) = growing(excess, workers);
            // `count` is not used here: it relies on `size_hint`, and so on the sampler's `len`.
            let mut batches = loader.iter().unwrap();
            assert!(batches.next().unwrap().is_ok() && batches.next().unwrap().is_ok());
            assert!(batches.next().is_none());
            let announced = 2usize.saturating_add_signed(excess);
            let expected = Warning::WrongBatchCount { epoch: 0, announced, given: 2 };
            assert_eq!(*warnings.lock().unwrap(), [expected]);
        }
    }
}

/// Peak memory of this process in kB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A list of the indices would take 8 GB and tens of seconds. Beginning such an epoch takes less than 10 ms
/// and 1 MB; both bounds leave room for a busy machine.
// PyTorch: U26
#[test]
fn an_epoch_of_a_thousand_million_samples_costs_neither_time_nor_memory() {
    const SAMPLES: usize = 1_000_000_000;
    alone(|| {
        let (began, before) = (Instant::now(), peak_memory());
        for (rank_of_world, workers) in [(None, 0), (None, 2), (Some((1, 4)), 0)] {
            let builder = count(SAMPLES).num_workers(workers).batch_size(64).shuffle(true).seed(3);
            let builder = match rank_of_world {
                Some((rank, world_size)) => builder.distributed(rank, world_size),
                None => builder,
            };
            let loader = builder.build().unwrap();
            let mut batches = loader.iter().unwrap();
            let first = batches.next().unwrap().unwrap();
            assert!(
                first.as_slice().iter().any(|&index| index > 500_000_000) && !first.as_slice().is_sorted()
            );
            let mut rest = loader.resume(&batches.state()).unwrap();
            rest.next().unwrap().unwrap();
            assert_eq!(rest.last_batch().unwrap().number, 1);
        }
        let list: Vec<usize> = (0..100_000).rev().collect();
        let subset = count(SAMPLES).batch_size(4).sampler(SubsetRandomSampler::new(list)).build().unwrap();
        subset.iter().unwrap().next().unwrap().unwrap();
        let (took, grown) = (began.elapsed(), peak_memory() - before);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(grown < 50 << 10, "{grown} kB");
    });
}
