//! Datasets composed of others. They load the same samples with any number of workers.

use std::collections::BTreeMap;

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Noise, many},
    digest, everywhere,
};
use rand::RngExt;

fn noise(count: usize) -> Noise {
    Noise { count }
}

fn numbers(len: usize) -> TensorDataset<Tensor<i64>> {
    TensorDataset::new(Tensor::from_vec((0..len as i64).collect(), [len]).unwrap()).unwrap()
}

// PyTorch: 20, D05
#[test]
fn a_stack_combines_tuples_and_maps_of_datasets() {
    let _watchdog = Watchdog::start();
    let batches = everywhere(|workers| {
        let inner = StackDataset::new((noise(20), many(20))).unwrap();
        let stack = StackDataset::new((numbers(20), inner)).unwrap();
        DataLoader::builder(stack).batch_size(6).shuffle(true).num_workers(workers).build()
    });
    assert_eq!(batches.len(), 4);
    for (numbers, (one, two)) in batches {
        assert!(numbers.as_slice().iter().map(|&number| number as u64).eq(one.0.as_slice().iter().copied()));
        assert_eq!(one, two, "each part draws the same numbers as it would alone");
    }
    let maps = everywhere(|workers| {
        let parts = ["a", "b"].map(|key| (key.to_owned(), noise(10)));
        let stack = StackDataset::new(BTreeMap::from(parts)).unwrap();
        DataLoader::builder(stack).batch_size(10).num_workers(workers).build()
    });
    assert!(maps[0].keys().eq(["a", "b"]));
    assert_eq!(maps[0]["b"].0.as_slice()[9], 9);
}

/// Batches contain samples of several members, some of which have `get_many`. The function around them draws
/// from a generator of its own.
// PyTorch: 28, D01
#[test]
fn a_concatenation_draws_the_same_numbers_as_one_dataset() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize| {
        let list = ConcatDataset::new([noise(5), noise(0), noise(20)]).unwrap();
        let whole =
            list.concat(many(3)).concat(ConcatDataset::new([many(10), many(6)]).unwrap().concat(noise(16)));
        assert_eq!(whole.len(), 60);
        let dataset =
            whole.map(|(number, noise, _), cx| Ok((number, noise, cx.index(), cx.rng().random::<u64>())));
        DataLoader::builder(dataset).batch_size(8).shuffle(true).seed(9).num_workers(workers).build().unwrap()
    };
    let expected = digest(build(0).iter().unwrap()).unwrap();
    for workers in [1, 2, 3, 5] {
        assert_eq!(digest(build(workers).iter().unwrap()).unwrap(), expected, "{workers} workers");
    }
    let alone = DataLoader::builder(noise(60)).batch_size(8).shuffle(true).seed(9).build().unwrap();
    let mut batches = 0;
    for (whole, alone) in build(0).iter().unwrap().zip(alone.iter().unwrap()) {
        let ((numbers, noise, indices, _), (expected, expected_noise, _)) = (whole.unwrap(), alone.unwrap());
        assert_eq!((&indices, &noise), (&expected, &expected_noise));
        let members = [(0, 5), (5, 20), (25, 3), (28, 10), (38, 6), (44, 16)];
        for (&number, &index) in numbers.as_slice().iter().zip(indices.as_slice()) {
            let is_of = |&(first, len): &(u64, u64)| index == first + number && number < len;
            assert!(members.iter().any(is_of), "sample {index} has number {number} in its member");
        }
        batches += 1;
    }
    assert_eq!(batches, 8);
}

#[test]
fn compositions_can_be_split() {
    fn check<D: Dataset + Clone>(dataset: D) {
        let len = dataset.len();
        let parts = dataset.random_split_by_counts(&[7, len - 7], 0, Order::Torch).unwrap();
        let indices =
            |part: &Subset<D>| (0..part.len()).map(|index| part.index_of(index)).collect::<Vec<_>>();
        let mut all: Vec<usize> = parts.iter().flat_map(indices).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..len));
    }
    check(numbers(10));
    check(StackDataset::new((numbers(10), numbers(10))).unwrap());
    check(ConcatDataset::new([numbers(10), numbers(10)]).unwrap());
    check(numbers(10).concat(numbers(10)).map(|number, _| Ok(number[0])));
}
