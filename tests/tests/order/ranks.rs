//! Shares of the ranks of distributed training, and parts of a dataset, in loaders.

use std::collections::BTreeSet;

use loader_core::{Error, Order, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise},
    digest,
    ways::{WAYS, all, numbers},
};

// PyTorch: 273, 274, 275, 276, U19
#[test]
fn the_shares_of_all_ranks_are_the_epoch() {
    let _watchdog = Watchdog::start();
    for (order, shuffle) in
        [(Order::Native, false), (Order::Native, true), (Order::Torch, false), (Order::Torch, true)]
    {
        let share = |rank, seed, workers| {
            let builder =
                DataLoader::builder(Count(103)).batch_size(8).shuffle(shuffle).order(order).seed(seed);
            let loader = builder.distributed(rank, 3).num_workers(workers).build().unwrap();
            let batches = numbers(&all(loader.iter().unwrap()));
            assert_eq!(batches.len(), 5, "each rank has as many batches as the others");
            batches.concat()
        };
        let shares: Vec<Vec<u64>> = (0..3).map(|rank| share(rank, 1, 2)).collect();
        for (rank, loaded) in shares.iter().enumerate() {
            let sampler = DistributedSampler::new(103, 3, rank).unwrap().shuffle(shuffle);
            let expected = sampler.indices(Epoch::new(1, 0).order(order)).map(|index| index as u64);
            assert!(loaded.iter().copied().eq(expected), "the loader's order is the sampler's");
            assert_eq!(&share(rank, 1, 0), loaded);
        }
        let all = shares.concat();
        assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (105, 103));
        assert_eq!(share(2, 2, 0) != shares[2], shuffle, "another seed");
    }
}

/// torchdata has a sampler of its own for this.
// PyTorch: 267, 268, 269, 270, 271, T18
#[test]
fn a_share_is_resumed_by_its_own_rank() {
    let _watchdog = Watchdog::start();
    for way in [WAYS[0], WAYS[4]] {
        let build = |rank| {
            let builder = DataLoader::builder(Count(100)).batch_size(10).shuffle(true).distributed(rank, 3);
            way.apply(builder).build().unwrap()
        };
        let expected = all(build(1).iter().unwrap());
        assert_eq!(expected.len(), 4);
        for stop in 0..4 {
            let mut batches = build(1).iter().unwrap();
            batches.by_ref().take(stop).for_each(drop);
            let state = batches.state();
            assert_eq!(state.batches(), stop as u64);
            assert_eq!(all(build(1).resume(&state).unwrap()), expected[stop..]);
            let error = build(2).resume(&state).unwrap_err();
            assert!(matches!(error, Error::StateMismatch { .. }), "{error:?}");
        }
    }
}

// PyTorch: D09
#[test]
fn parts_of_a_dataset_are_loaded_the_same_by_workers() {
    let _watchdog = Watchdog::start();
    let parts = Noise { count: 50 }.random_split_by_fractions(&[0.8, 0.2], 3, Order::Native).unwrap();
    assert_eq!(parts.iter().map(Dataset::len).collect::<Vec<_>>(), [40, 10]);
    let nested = Subset::new(parts[0].clone(), (0..40).rev()).unwrap();
    let load = |workers| {
        let builder = DataLoader::builder(nested.clone()).batch_size(7).shuffle(true);
        digest(builder.num_workers(workers).build().unwrap().iter().unwrap()).unwrap()
    };
    assert_eq!(load(0), load(2));
}
