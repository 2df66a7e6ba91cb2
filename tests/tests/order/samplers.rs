//! Samplers and batch samplers.

use std::collections::{BTreeMap, BTreeSet};

use loader_core::{
    prelude::*,
    sampler::{Epoch, SamplerError},
};
use loader_tests::{
    Watchdog,
    datasets::Count,
    ways::{all, numbers, one_epoch, two_epochs},
};
use serde::{Deserialize, Serialize};

// PyTorch: 72, A04, S01, S09
#[test]
fn any_order_of_indices() {
    let _watchdog = Watchdog::start();
    for indices in [(2..12).collect::<Vec<_>>(), vec![9, 9, 0, 3], vec![]] {
        let epochs = two_epochs(|way| {
            let builder = DataLoader::builder(Count(100)).sampler(indices.clone()).batch_size(2);
            let loader = way.of(builder).build()?;
            assert_eq!(loader.len(), Some(indices.len().div_ceil(2)));
            Ok(loader)
        });
        for batches in epochs {
            let found = numbers(&batches).concat();
            assert!(found.into_iter().map(|index| index as usize).eq(indices.iter().copied()));
        }
    }
}

// PyTorch: 73, A05, S09
#[test]
fn batches_of_different_sizes() {
    let _watchdog = Watchdog::start();
    let given: Vec<Vec<usize>> =
        (0..20).step_by(5).flat_map(|n| [vec![n, n + 1], vec![n + 2, n + 3, n + 4]]).collect();
    let batches = one_epoch(|way| {
        let loader = way.of(DataLoader::builder(Count(20)).batch_sampler(given.clone())).build()?;
        assert_eq!(loader.len(), Some(8));
        Ok(loader)
    });
    let found: Vec<Vec<usize>> =
        numbers(&batches).iter().map(|batch| batch.iter().map(|&index| index as usize).collect()).collect();
    assert_eq!(found, given);
}

/// Reads a whole batch at once, and says how many samples it was asked for.
#[derive(Serialize, Deserialize)]
struct Bulk;

impl Dataset for Bulk {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        100
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<(u64, u64)>> {
        Ok(indices.iter().map(|&index| (index as u64, indices.len() as u64)).collect())
    }
}

/// In PyTorch a sampler gives lists of indices to a loader without batches; here `get_many` gets those of a batch, from any sampler.
// PyTorch: 36
#[test]
fn bulk_loading() {
    let _watchdog = Watchdog::start();
    for shuffle in [false, true] {
        let batches =
            one_epoch(|way| way.of(DataLoader::builder(Bulk).batch_size(8).shuffle(shuffle)).build());
        let asked: Vec<u64> = batches.iter().map(|(_, asked)| asked.as_slice()[0]).collect();
        assert_eq!(asked, [[8; 12].as_slice(), &[4]].concat());
        let mut all: Vec<u64> = batches.iter().flat_map(|(index, _)| index.as_slice().to_vec()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
}

/// PyTorch asks for the sampler's iterator once, or twice in its first epoch with workers; here once an epoch, everywhere.
// PyTorch: A35
#[test]
fn the_sampler_is_asked_once_an_epoch() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
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
    for way in loader_tests::ways::WAYS {
        let calls = Arc::new(AtomicUsize::new(0));
        let loader =
            way.of(DataLoader::builder(Count(4)).sampler(Counted(Arc::clone(&calls)))).build().unwrap();
        for epoch in 1..=3 {
            assert_eq!(loader.iter().unwrap().count(), 4);
            assert_eq!(calls.load(Ordering::SeqCst), epoch, "{way:?}");
        }
    }
}

fn epoch(seed: u64, number: u64) -> Epoch {
    Epoch::new(seed, number)
}

fn drawn(sampler: &impl Sampler, seed: u64) -> Vec<usize> {
    let drawn: Vec<usize> = sampler.indices(epoch(seed, 0)).collect();
    assert_eq!(drawn.len(), sampler.len());
    drawn
}

/// How often each index comes.
fn tally(indices: &[usize]) -> BTreeMap<usize, usize> {
    let mut seen = BTreeMap::new();
    indices.iter().for_each(|&index| *seen.entry(index).or_default() += 1);
    seen
}

// PyTorch: 66, S03
#[test]
fn random_sampler() {
    let with = RandomSampler::new(100).replacement(true);
    let found = tally(&drawn(&with, 1));
    assert!(found.values().any(|&times| times > 1) && found.keys().all(|&index| index < 100));
    assert!(tally(&drawn(&RandomSampler::new(100), 1)).into_iter().eq((0..100).map(|index| (index, 1))));
    for (count, twice) in [(200, 100), (99, 0), (101, 1)] {
        let found = tally(&drawn(&RandomSampler::new(100).num_samples(count).unwrap(), 1));
        assert_eq!(found.values().filter(|&&times| times == 2).count(), twice, "{count} samples");
        assert_eq!(
            found.values().filter(|&&times| times == 1).count(),
            count.min(200 - count),
            "{count} samples"
        );
    }
    assert_eq!(RandomSampler::new(10).num_samples(0), Err(SamplerError::NoSamples));
}

// PyTorch: 67, 68
#[test]
fn random_sampler_len() {
    for replacement in [true, false] {
        let sampler = RandomSampler::new(100).replacement(replacement).num_samples(105).unwrap();
        assert_eq!(sampler.len(), 105);
        for (batch_size, expected) in [(1, 105), (6, 18)] {
            let builder = DataLoader::builder(Count(100)).sampler(sampler).batch_size(batch_size);
            let loader = builder.build().unwrap();
            assert_eq!((loader.len(), loader.iter().unwrap().count()), (Some(expected), expected));
        }
    }
}

// PyTorch: 69, 272, S07
#[test]
fn distributed_sampler_arguments() {
    for rank in [3, usize::MAX] {
        let error = DistributedSampler::new(10, 3, rank).unwrap_err();
        assert_eq!(error, SamplerError::InvalidRank { rank, world_size: 3 });
        assert!(error.to_string().contains("rank should be in the interval [0, 2]"), "{error}");
    }
    assert_eq!(DistributedSampler::new(10, 0, 0), Err(SamplerError::NoProcesses));
    let sampler = DistributedSampler::new(100, 3, 0).unwrap();
    assert_eq!((sampler.drop_last(true).len(), sampler.drop_last(false).len()), (33, 34));
}

/// Who loads what, without shuffling: every so manieth, filled up from the front or cut.
// PyTorch: S07, 2.2.1
#[test]
fn distributed_sampler_arithmetic() {
    let shares = |len: usize, world: usize, drop_last: bool| -> Vec<Vec<usize>> {
        let share = |rank| {
            let sampler =
                DistributedSampler::new(len, world, rank).unwrap().shuffle(false).drop_last(drop_last);
            drawn(&sampler, 0)
        };
        (0..world).map(share).collect()
    };
    assert_eq!(shares(10, 4, false), [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6, 0], vec![3, 7, 1]]);
    assert_eq!(shares(10, 4, true), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(shares(2, 5, false), [[0], [1], [0], [1], [0]]);
    assert_eq!(shares(2, 4, true), vec![Vec::<usize>::new(); 4]);
}

// PyTorch: 70, U30
#[test]
fn drop_last_of_a_share_gives_no_sample_twice() {
    let _watchdog = Watchdog::start();
    let share = |rank| {
        let batches = one_epoch(|way| {
            let builder = DataLoader::builder(Count(9)).batch_size(2).distributed(rank, 4).drop_last(true);
            way.of(builder.shuffle(true)).build()
        });
        numbers(&batches).concat()
    };
    let all: Vec<u64> = (0..4).flat_map(share).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(all.len(), 8);
}

// PyTorch: 71, S03
#[test]
fn samplers_give_the_same_again() {
    fn check(sampler: &impl Sampler) {
        for order in [Order::Native, Order::Torch] {
            let indices = |seed, number| -> Vec<usize> {
                sampler.indices(Epoch::new(seed, number).order(order)).collect()
            };
            assert_eq!(indices(42, 1), indices(42, 1), "{sampler:?}");
            // Two at once do not disturb each other.
            let (one, two) = (
                sampler.indices(Epoch::new(42, 1).order(order)),
                sampler.indices(Epoch::new(42, 1).order(order)),
            );
            assert!(one.zip(two).all(|(one, two)| one == two), "{sampler:?}");
        }
        assert!(sampler.indices(epoch(1, 0)).ne(sampler.indices(epoch(2, 0))), "{sampler:?}");
        assert!(sampler.indices(epoch(1, 0)).ne(sampler.indices(epoch(1, 1))), "{sampler:?}");
    }
    check(&RandomSampler::new(50));
    check(&RandomSampler::new(50).replacement(true).num_samples(80).unwrap());
    check(&SubsetRandomSampler::new((0..100).step_by(2)));
    check(&WeightedRandomSampler::new((1..30).map(f64::from), 60, true).unwrap());
    check(&WeightedRandomSampler::new((1..60).map(f64::from), 50, false).unwrap());
    check(&DistributedSampler::new(100, 3, 1).unwrap());
}

// PyTorch: S04
#[test]
fn subset_random_sampler() {
    let _watchdog = Watchdog::start();
    let indices = [3, 1, 4, 15, 92, 65];
    let epochs = two_epochs(|way| {
        way.of(DataLoader::builder(Count(100)).sampler(SubsetRandomSampler::new(indices))).build()
    });
    for batches in epochs {
        let seen: BTreeSet<u64> = numbers(&batches).concat().into_iter().collect();
        assert!(seen.into_iter().eq([1, 3, 4, 15, 65, 92]));
    }
}

// PyTorch: S05
#[test]
fn weighted_random_sampler() {
    let _watchdog = Watchdog::start();
    let weights = [0.0, 3.0, 1.0, 0.0, 4.0];
    let sampler = WeightedRandomSampler::new(weights, 8000, true).unwrap();
    let found = tally(&drawn(&sampler, 3));
    assert!(found.keys().eq([1, 2, 4].iter()));
    for (index, weight) in [(1, 3.0), (2, 1.0), (4, 4.0)] {
        let share = found[&index] as f64 / 1000.0;
        assert!((share - weight).abs() < 0.2, "index {index}: {share}");
    }
    let once = WeightedRandomSampler::new(weights, 3, false).unwrap();
    assert!(tally(&drawn(&once, 1)).into_iter().eq([(1, 1), (2, 1), (4, 1)]));
    let refused = |weights: &[f64], count, replacement| {
        WeightedRandomSampler::new(weights.iter().copied(), count, replacement).unwrap_err()
    };
    assert_eq!(refused(&weights, 0, true), SamplerError::NoSamples);
    assert_eq!(refused(&weights, 4, false), SamplerError::TooFewWeights { num_samples: 4, positive: 3 });
    assert!(matches!(refused(&[1.0, f64::NAN], 1, true), SamplerError::InvalidWeight { index: 1, .. }));
    assert!(matches!(refused(&[1.0, -1.0], 1, true), SamplerError::InvalidWeight { index: 1, .. }));
    let epochs =
        two_epochs(|way| way.of(DataLoader::builder(Count(5)).sampler(once.clone()).batch_size(3)).build());
    assert!(epochs.iter().all(|batches| batches.len() == 1));
}

/// A process's share of an epoch, interrupted at any place and resumed. torchdata has a sampler of its own for it.
// PyTorch: 267, 268, 269, 270, 271, T18
#[test]
fn a_share_is_resumed() {
    let _watchdog = Watchdog::start();
    for way in [loader_tests::ways::WAYS[0], loader_tests::ways::WAYS[4]] {
        let build = |rank| {
            let builder = DataLoader::builder(Count(100)).batch_size(10).shuffle(true).distributed(rank, 3);
            way.of(builder).build().unwrap()
        };
        let expected = all(build(1).iter().unwrap());
        assert_eq!(expected.len(), 4);
        for stop in 0..4 {
            let mut batches = build(1).iter().unwrap();
            batches.by_ref().take(stop).for_each(drop);
            let state = batches.state();
            assert_eq!(state.batches(), stop as u64);
            assert_eq!(all(build(1).resume(&state).unwrap()), expected[stop..]);
            let text = build(2).resume(&state).unwrap_err().to_string();
            assert!(stop == 0 || text.contains("does not fit the loader"), "of another rank: {text}");
        }
    }
}

// PyTorch: 273, 274, 275, 276, U19
#[test]
fn shares_together_are_the_epoch() {
    let _watchdog = Watchdog::start();
    for shuffle in [false, true] {
        let share = |rank, seed| {
            let batches = one_epoch(|way| {
                let builder = DataLoader::builder(Count(100)).batch_size(7).shuffle(shuffle).seed(seed);
                way.of(builder.distributed(rank, 5)).build()
            });
            numbers(&batches).concat()
        };
        let shares: Vec<Vec<u64>> = (0..5).map(|rank| share(rank, 1)).collect();
        let sampler = |rank| DistributedSampler::new(100, 5, rank).unwrap().shuffle(shuffle);
        for (rank, share) in shares.iter().enumerate() {
            let expected = sampler(rank).indices(epoch(1, 0)).map(|index| index as u64);
            assert!(share.iter().copied().eq(expected), "the loader's order is the sampler's");
        }
        assert_eq!(shares.concat().into_iter().collect::<BTreeSet<_>>().len(), 100, "all of them, each once");
        assert_eq!(share(2, 1), shares[2]);
        assert_eq!(share(2, 2) != shares[2], shuffle);
    }
}
