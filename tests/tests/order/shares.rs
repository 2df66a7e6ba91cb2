//! Which samples are loaded, as loaders see it: PyTorch's order, shares of processes, parts of datasets.

use std::time::{Duration, Instant};

use loader_core::{Builder, Error, Order, kind::MapStyle, prelude::*};
use loader_tests::{Watchdog, datasets::Noise, digest};

/// The indices of `count` epochs, each in batches.
fn epochs(builder: Builder<MapStyle<Noise>>, count: usize) -> Vec<Vec<Vec<usize>>> {
    let loader = builder.build().unwrap();
    let epoch = |_| {
        let mut batches = loader.iter().unwrap();
        let mut found = Vec::new();
        while let Some(batch) = batches.next() {
            batch.unwrap();
            found.push(batches.last_batch().unwrap().indices.clone());
        }
        found
    };
    (0..count).map(epoch).collect()
}

fn noise(count: usize, workers: usize) -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count }).num_workers(workers)
}

/// A thousand million samples in random order: a list of indices would take 8 GB and tens of seconds. The
/// epoch's start takes less than 10 ms and 1 MB; both bounds leave room for a busy machine.
// PyTorch: U26
#[test]
fn the_length_of_an_epoch_costs_neither_time_nor_memory() {
    let _watchdog = Watchdog::start();
    const SAMPLES: usize = 1_000_000_000;
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let (began, before) = (Instant::now(), memory());
    for (ranks, workers) in [(None, 0), (None, 2), (Some((1, 4)), 0)] {
        let builder = noise(SAMPLES, workers).batch_size(64).shuffle(true).seed(3);
        let builder =
            ranks.into_iter().fold(builder, |builder, (rank, world)| builder.distributed(rank, world));
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let first = batches.next().unwrap().unwrap().0;
        assert!(first.as_slice().iter().any(|&index| index > 500_000_000) && !first.as_slice().is_sorted());
        let state = batches.state();
        let far = serde_json::to_string(&state).unwrap().replace("\"next\":1", "\"next\":3000000");
        let mut rest = loader.resume(&serde_json::from_str(&far).unwrap()).unwrap();
        rest.next().unwrap().unwrap();
        assert_eq!(rest.last_batch().unwrap().number, 3_000_000);
    }
    let indices: Vec<usize> = (0..100_000).rev().collect();
    let subset = noise(SAMPLES, 0).batch_size(4).sampler(SubsetRandomSampler::new(indices)).build().unwrap();
    subset.iter().unwrap().next().unwrap().unwrap();
    let (took, grown) = (began.elapsed(), memory() - before);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(grown < 50 << 10, "{grown} kB");
}

/// `DataLoader(range(20), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(0))` of PyTorch 2.15.
// PyTorch: R06
#[test]
fn pytorch_s_order_with_workers_and_without() {
    let _watchdog = Watchdog::start();
    let expected = [
        [vec![13, 1, 9, 3, 7, 18], vec![17, 11, 0, 8, 16, 14], vec![5, 6, 4, 12, 15, 2], vec![10, 19]],
        [vec![16, 14, 3, 9, 7, 15], vec![10, 1, 12, 0, 13, 5], vec![19, 18, 8, 2, 11, 4], vec![17, 6]],
    ];
    for workers in [0, 1, 3] {
        let builder = noise(20, workers).batch_size(6).shuffle(true).seed(0).order(Order::Torch);
        assert_eq!(epochs(builder, 2), expected, "{workers} workers");
    }
}

/// `list(WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 12, generator=...))` with seed 42, and 5 without replacement.
#[test]
fn a_sampler_s_order_is_the_loader_s() {
    let weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6];
    let with = WeightedRandomSampler::new(weights, 12, true).unwrap();
    let without = WeightedRandomSampler::new(weights, 5, false).unwrap();
    for workers in [0, 1, 3] {
        let torch = |sampler| noise(6, workers).batch_size(12).seed(42).order(Order::Torch).sampler(sampler);
        assert_eq!(epochs(torch(with.clone()), 1), [[[1, 1, 1, 1, 4, 4, 5, 5, 1, 1, 1, 4]]]);
        assert_eq!(epochs(torch(without.clone()), 1), [[[1, 3, 4, 2, 0]]]);
    }
}

/// `DistributedSampler(range(23), 4, rank, seed=42)` after `set_epoch(1)`, and `RandomSampler(range(20), num_samples=45)` with and without
/// `replacement` and a generator of seed 0.
// PyTorch: U30
#[test]
fn pytorch_s_shares_and_draws_with_workers_and_without() {
    let _watchdog = Watchdog::start();
    let shares =
        [[13, 18, 15, 14, 22, 3], [17, 7, 12, 6, 2, 9], [16, 1, 11, 4, 19, 5], [20, 10, 21, 8, 0, 13]];
    let permuted = [
        4, 5, 13, 19, 7, 14, 3, 6, 9, 17, 11, 2, 16, 18, 10, 12, 15, 8, 1, 0, 13, 11, 0, 18, 3, 19, 17, 9, 2,
        4, 10, 12, 16, 6, 14, 15, 8, 7, 5, 1, 11, 4, 1, 7, 12,
    ];
    let drawn = [
        4, 19, 13, 0, 3, 19, 7, 3, 17, 3, 1, 6, 16, 19, 18, 16, 16, 8, 14, 13, 6, 19, 11, 14, 4, 1, 9, 9, 9,
        0, 1, 12, 3, 0, 15, 5, 2, 19, 11, 8, 18, 3, 16, 9, 11,
    ];
    for workers in [0, 1, 3] {
        let torch = |count| noise(count, workers).batch_size(100).order(Order::Torch);
        for (rank, share) in shares.iter().enumerate() {
            let builder = torch(23).shuffle(true).seed(42).distributed(rank, 4);
            assert_eq!(epochs(builder, 2)[1].concat(), share, "rank {rank}, {workers} workers");
        }
        let sampler = RandomSampler::new(20).num_samples(45).unwrap();
        assert_eq!(epochs(torch(20).seed(0).sampler(sampler), 1)[0].concat(), permuted);
        assert_eq!(epochs(torch(20).seed(0).sampler(sampler.replacement(true)), 1)[0].concat(), drawn);
    }
}

// PyTorch: U19
#[test]
fn processes_load_everything_together() {
    let _watchdog = Watchdog::start();
    for order in [Order::Native, Order::Torch] {
        let share = |rank| {
            epochs(noise(103, 2).batch_size(8).shuffle(true).order(order).distributed(rank, 3), 1).concat()
        };
        let shares: Vec<Vec<Vec<usize>>> = (0..3).map(share).collect();
        assert!(shares.iter().all(|batches| batches.len() == 5));
        let mut all = shares.concat().concat();
        all.sort_unstable();
        assert_eq!(all.len(), 105);
        all.dedup();
        assert!(all.into_iter().eq(0..103));
    }
}

#[test]
fn lists_are_samplers() {
    let sampler: Vec<usize> = (2..12).collect();
    assert_eq!(
        epochs(noise(20, 0).batch_size(5).sampler(sampler.clone()), 1),
        [sampler.chunks(5).collect::<Vec<_>>()]
    );
    let batches = vec![vec![0, 1], vec![2, 3, 4], vec![5]];
    assert_eq!(epochs(noise(20, 0).batch_sampler(batches.clone()), 2), [batches.clone(), batches]);
}

// PyTorch: D09
#[test]
fn parts_of_a_dataset_are_the_same_with_any_number_of_workers() -> Result<(), Error> {
    let _watchdog = Watchdog::start();
    let parts = Noise { count: 50 }.random_split_by_fractions(&[0.8, 0.2], 3, Order::Native).unwrap();
    let [train, test] = parts.try_into().unwrap_or_else(|_| unreachable!("two fractions"));
    assert_eq!((train.len(), test.len()), (40, 10));
    let nested = Subset::new(train, (0..40).rev()).unwrap();
    let reference = DataLoader::builder(nested.clone()).batch_size(7).shuffle(true).build()?;
    let expected = digest(reference.iter()?)?;
    let loader = DataLoader::builder(nested).batch_size(7).shuffle(true).num_workers(2).build()?;
    assert_eq!(digest(loader.iter()?)?, expected);
    Ok(())
}

#[test]
fn what_is_composed_can_be_split() {
    let numbers = || TensorDataset::new(Tensor::from_vec((0..10u32).collect(), [10]).unwrap()).unwrap();
    fn check<D: Dataset + Clone>(dataset: D) {
        let len = dataset.len();
        let parts = dataset.random_split_by_counts(&[7, len - 7], 0, Order::Torch).unwrap();
        let mut all: Vec<usize> =
            parts.iter().flat_map(|part| (0..part.len()).map(|index| part.index_of(index))).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..len));
    }
    check(numbers());
    check(StackDataset::new((numbers(), numbers())).unwrap());
    check(ConcatDataset::new([numbers(), numbers()]).unwrap());
    check(numbers().concat(numbers()).map(|number, _| Ok(number[0])));
}

#[test]
fn a_sampler_can_be_chosen_at_run_time() {
    let mut options = loader_core::LoaderOptions::default();
    options.batch_size = Some(4);
    let batches = options.batch_sampler(10).unwrap();
    assert_eq!(epochs(noise(10, 0).batch_sampler(batches), 1)[0].len(), 3);
}
