//! Compares the orders with those of PyTorch in `tests/golden/torch-order.json`, which `torch_order.py` in
//! the same folder has written.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Generator;
use crate::{
    data::sampler::{base_seed, *},
    options::{LoaderOptions, Order},
};

#[derive(Deserialize)]
struct Golden {
    torch: String,
    weights: BTreeMap<String, Vec<f64>>,
    seeds: Vec<Seed>,
}

/// The results of PyTorch for one seed.
#[derive(Deserialize)]
struct Seed {
    seed: u64,
    words: Words,
    permutations: Permutations,
    /// Integers by bound.
    randint: BTreeMap<u64, Vec<u64>>,
    random: Vec<Random>,
    subset: Vec<Subset>,
    weighted: Vec<Weighted>,
    shuffled: Vec<Shuffled>,
    distributed: Vec<Distributed>,
    splits: Splits,
}

#[derive(Deserialize)]
struct Words {
    random64: Vec<u64>,
    uniform: Vec<f64>,
    after: Vec<u64>,
}

/// Permutations by length.
#[derive(Deserialize)]
struct Permutations {
    short: BTreeMap<usize, Vec<usize>>,
    checksums: BTreeMap<usize, String>,
}

/// The indices of an epoch, or their checksum.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(untagged)]
enum Indices {
    All(Vec<usize>),
    Checksum(String),
}

#[derive(Deserialize)]
struct Random {
    len: usize,
    replacement: bool,
    num_samples: usize,
    epochs: Vec<Indices>,
}

#[derive(Deserialize)]
struct Subset {
    indices: Vec<usize>,
    epochs: Vec<Indices>,
}

#[derive(Deserialize)]
struct Weighted {
    weights: String,
    num_samples: usize,
    replacement: bool,
    epochs: Vec<Indices>,
}

#[derive(Deserialize)]
struct Shuffled {
    len: usize,
    batch_size: usize,
    drop_last: bool,
    persistent_workers: bool,
    base_seeds: Vec<u64>,
    epochs: Vec<Vec<Vec<usize>>>,
}

#[derive(Deserialize)]
struct Distributed {
    len: usize,
    world_size: usize,
    drop_last: bool,
    shuffle: bool,
    epoch: u64,
    ranks: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct Splits {
    by_counts: Vec<ByCounts>,
    by_fractions: Vec<ByFractions>,
}

#[derive(Deserialize)]
struct ByCounts {
    counts: Vec<usize>,
    parts: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct ByFractions {
    len: usize,
    fractions: Vec<f64>,
    parts: Vec<Vec<usize>>,
}

fn golden() -> Golden {
    let golden: Golden =
        serde_json::from_str(include_str!("../../../tests/golden/torch-order.json")).unwrap();
    assert_eq!(golden.torch, "2.15.0");
    golden
}

fn epoch(seed: u64, number: usize) -> Epoch {
    Epoch::new(seed, number as u64).order(Order::Torch)
}

fn checksum(indices: &[usize]) -> String {
    let step = |sum: u64, &index: &usize| sum.wrapping_mul(1_000_003).wrapping_add(index as u64 + 1);
    indices.iter().fold(0, step).to_string()
}

fn permutation(seed: u64, len: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..len).collect();
    Generator::new(seed).shuffle(&mut indices);
    indices
}

/// Asserts that the sampler returns the expected epochs, even when they are requested in decreasing order.
fn assert_epochs(sampler: &dyn Sampler, seed: u64, epochs: &[Indices]) {
    for (number, expected) in epochs.iter().enumerate().rev() {
        let found: Vec<usize> = sampler.indices(epoch(seed, number)).collect();
        let found = match expected {
            Indices::All(_) => Indices::All(found),
            Indices::Checksum(_) => Indices::Checksum(checksum(&found)),
        };
        assert_eq!(found, *expected, "{sampler:?}, seed {seed}, epoch {number}");
    }
}

// PyTorch: R07, R08
#[test]
fn numbers() {
    for Seed { seed, words, permutations, randint, .. } in golden().seeds {
        let mut generator = Generator::new(seed);
        words.random64.iter().for_each(|&expected| assert_eq!(generator.base_seed(), expected));
        words.uniform.iter().for_each(|&expected| assert_eq!(generator.uniform(), expected));
        words.after.iter().for_each(|&expected| assert_eq!(generator.below(1000), expected));
        for (len, expected) in permutations.short {
            assert_eq!(permutation(seed, len), expected);
        }
        for (len, expected) in permutations.checksums {
            assert_eq!(checksum(&permutation(seed, len)), expected);
        }
        for (bound, expected) in randint {
            let mut generator = Generator::new(seed);
            assert!(expected.iter().all(|&expected| generator.below(bound) == expected), "below {bound}");
        }
    }
}

// PyTorch: S03, S04
#[test]
fn samplers_of_permutations_and_draws() {
    for Seed { seed, random, subset, .. } in golden().seeds {
        for case in random {
            let sampler = RandomSampler::new(case.len).replacement(case.replacement);
            assert_epochs(&sampler.num_samples(case.num_samples).unwrap(), seed, &case.epochs);
        }
        for case in subset {
            assert_epochs(&SubsetRandomSampler::new(case.indices), seed, &case.epochs);
        }
    }
}

// PyTorch: S05, R09
#[test]
fn samplers_of_weights() {
    let Golden { weights, seeds, .. } = golden();
    for Seed { seed, weighted, .. } in seeds {
        for case in weighted {
            let weights = weights[&case.weights].iter().copied();
            let sampler = WeightedRandomSampler::new(weights, case.num_samples, case.replacement).unwrap();
            assert_epochs(&sampler, seed, &case.epochs);
        }
    }
}

// PyTorch: R06
#[test]
fn loaders_that_shuffle() {
    for Seed { seed, shuffled, .. } in golden().seeds {
        for case in shuffled {
            let options = LoaderOptions {
                shuffle: Some(true),
                batch_size: Some(case.batch_size),
                drop_last: Some(case.drop_last),
                ..LoaderOptions::default()
            };
            let sampler = options.batch_sampler(case.len).unwrap();
            let order = if case.persistent_workers { Order::TorchPersistent } else { Order::Torch };
            for (number, expected) in case.epochs.iter().enumerate().rev() {
                let epoch = epoch(seed, number).order(order);
                assert!(sampler.batches(epoch).eq(expected.iter().cloned()));
                assert_eq!(base_seed(epoch, sampler.torch_draws()), case.base_seeds[number]);
            }
        }
    }
}

// PyTorch: S07, 2.2.1
#[test]
fn distributed_samplers() {
    for Seed { seed, distributed, .. } in golden().seeds {
        for case in distributed {
            for (rank, expected) in case.ranks.iter().enumerate() {
                let sampler = DistributedSampler::new(case.len, case.world_size, rank).unwrap();
                let sampler = sampler.shuffle(case.shuffle).drop_last(case.drop_last);
                let found = sampler.indices(Epoch::new(seed, case.epoch).order(Order::Torch));
                assert!(found.eq(expected.iter().copied()), "{sampler:?}");
            }
        }
    }
}

// PyTorch: D09
#[test]
fn splits() {
    for Seed { seed, splits, .. } in golden().seeds {
        for ByCounts { counts, parts } in splits.by_counts {
            let len = counts.iter().sum();
            assert_eq!(random_split_by_counts(len, &counts, seed, Order::Torch), Ok(parts));
        }
        for ByFractions { len, fractions, parts } in splits.by_fractions {
            assert_eq!(random_split_by_fractions(len, &fractions, seed, Order::Torch), Ok(parts));
        }
    }
}

/// Numbers of PyTorch from other sources, such as its own tests.
// PyTorch: R06, R07
#[test]
fn published_numbers() {
    assert_eq!(permutation(1, 10), [5, 6, 1, 2, 0, 8, 9, 3, 7, 4]);
    assert_eq!(permutation(0, 10), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
    assert_eq!(Generator::new(42).base_seed(), 6_909_045_637_428_952_499);
    assert_eq!(Generator::new(0).base_seed(), 900_450_186_894_289_455);
    let loader = RandomSampler::of_loader(10);
    let epochs =
        [[6, 5, 4, 0, 8, 9, 2, 1, 3, 7], [3, 6, 5, 8, 9, 4, 2, 0, 7, 1], [7, 4, 5, 0, 9, 1, 3, 2, 8, 6]];
    let base_seeds = [6_909_045_637_428_952_499, 379_716_980_844_854_580, 2_063_321_781_277_379_070];
    for (number, (expected, seed)) in epochs.into_iter().zip(base_seeds).enumerate() {
        assert!(loader.indices(epoch(42, number)).eq(expected));
        assert_eq!(base_seed(epoch(42, number), loader.torch_draws()), seed);
    }
    // A loader without a generator draws the base seed from the global one, and then the seed of the
    // sampler's generator.
    let mut global = Generator::new(0);
    for expected in
        [[6, 7, 1, 4, 2, 0, 9, 8, 3, 5], [2, 4, 7, 0, 8, 9, 5, 3, 6, 1], [7, 4, 5, 1, 9, 3, 8, 2, 0, 6]]
    {
        global.base_seed();
        assert_eq!(permutation(global.base_seed(), 10), expected);
    }
}
