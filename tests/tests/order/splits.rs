//! Parts of a dataset.

use std::collections::BTreeSet;

use loader_core::{
    SubsetError,
    prelude::*,
    sampler::{SplitError, random_split_by_counts, random_split_by_fractions},
};
use loader_tests::{
    Watchdog,
    datasets::Count,
    ways::{numbers, one_epoch},
};

/// The samples of each part.
fn samples(parts: &[Subset<Count>]) -> Vec<Vec<u64>> {
    let cx = &mut SampleContext::new(0);
    parts.iter().map(|part| (0..part.len()).map(|index| part.get(index, cx).unwrap()).collect()).collect()
}

fn by_counts(len: usize, counts: &[usize], seed: u64) -> Vec<Vec<u64>> {
    samples(&Count(len).random_split_by_counts(counts, seed, Order::Native).unwrap())
}

fn by_fractions(len: usize, fractions: &[f64], seed: u64) -> Result<Vec<Vec<u64>>, SplitError> {
    Ok(samples(&Count(len).random_split_by_fractions(fractions, seed, Order::Native)?))
}

fn lens(parts: &[Vec<u64>]) -> Vec<usize> {
    parts.iter().map(Vec::len).collect()
}

// PyTorch: 1, 6, 2.1.1
#[test]
fn what_is_not_a_split() {
    let error = Count(4).random_split_by_counts(&[1, 2], 0, Order::Native).unwrap_err();
    assert_eq!(error, SplitError::WrongSum { sum: 3, len: 4 });
    for fractions in [[0.1].as_slice(), &[1.1], &[0.5, 0.4]] {
        assert!(by_fractions(5, fractions, 0).is_err(), "{fractions:?}");
    }
    assert!(matches!(by_fractions(5, &[-0.5, 1.5], 0), Err(SplitError::InvalidFraction { index: 0, .. })));
}

// PyTorch: 2, 2.1.1
#[test]
fn sizes_of_the_parts() {
    assert_eq!(lens(&by_counts(6, &[2, 4], 0)), [2, 4]);
    assert_eq!(lens(&by_fractions(6, &[0.5, 0.5], 0).unwrap()), [3, 3]);
    assert_eq!(
        lens(&by_fractions(7, &[0.5, 0.5], 0).unwrap()),
        [4, 3],
        "what is left over goes to the first"
    );
    assert_eq!(lens(&by_fractions(106, &[0.1, 0.2, 0.3, 0.4], 0).unwrap()), [11, 22, 31, 42]);
    // In PyTorch `[1, 0]` are fractions, whatever was meant; and a sum a bit above 1 is refused.
    assert_eq!(by_counts(1, &[1, 0], 0), [vec![0], vec![]]);
    assert_eq!(lens(&by_fractions(5, &[1.0, 0.0], 0).unwrap()), [5, 0]);
    assert!(by_fractions(10, &[0.7, 0.2, 0.1], 0).is_ok());
}

// PyTorch: 3, 4
#[test]
fn each_sample_is_in_one_part() {
    for parts in [
        by_counts(6, &[2, 4], 1),
        by_fractions(6, &[0.33, 0.67], 1).unwrap(),
        by_fractions(6, &[0.25, 0.75], 1).unwrap(),
    ] {
        let all = parts.concat();
        assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>().len()), (6, 6));
    }
}

// PyTorch: 5, 7, D09
#[test]
fn the_seed_alone_decides() {
    let torch = random_split_by_counts(10, &[3, 7], 1, Order::Torch).unwrap();
    assert_eq!(torch, [vec![5, 6, 1], vec![2, 0, 8, 9, 3, 7, 4]], "as in PyTorch's own test");
    assert_eq!(random_split_by_fractions(10, &[0.3, 0.7], 1, Order::Torch).unwrap(), torch);
    for order in [Order::Native, Order::Torch] {
        let split = |seed| random_split_by_counts(100, &[40, 60], seed, order).unwrap();
        assert_eq!(split(1), split(1));
        assert_ne!(split(1), split(2));
    }
}

// PyTorch: 8, 9, D08
#[test]
fn subsets_of_subsets() {
    let _watchdog = Watchdog::start();
    let subset = |indices: &[usize]| Subset::new(Count(100), indices.iter().copied()).unwrap();
    let nested = || Subset::new(subset(&[10, 20, 30, 40, 50]), [4, 0, 0, 2]).unwrap();
    assert_eq!(
        numbers(&one_epoch(|way| way.of(DataLoader::builder(nested())).build())).concat(),
        [50, 10, 10, 30]
    );
    let many = nested().get_many(&[3, 1], &mut SampleContext::new(0)).unwrap();
    assert_eq!(many, [30, 10]);
    let error = Subset::new(Count(5), [0, 5]).unwrap_err();
    assert_eq!(error, SubsetError::IndexOutOfRange { index: 5, place: 1, len: 5 });
    let split = Count(10).random_split_by_counts(&[4, 6], 0, Order::Native).unwrap();
    let part = Subset::new(split[1].clone(), 1..3).unwrap();
    assert_eq!(
        samples(&split)[1][1..3],
        (0..2).map(|n| part.get(n, &mut SampleContext::new(0)).unwrap()).collect::<Vec<_>>()
    );
}
