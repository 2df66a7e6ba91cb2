//! Batches in shared memory: they outlive their iterator, and slots are reused.

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise},
    digest,
};

// PyTorch: U28
#[test]
fn a_batch_outlives_its_iterator_and_loader() {
    let _watchdog = Watchdog::start();
    let loader =
        DataLoader::builder(Large { count: 8, bytes: 100_000 }).batch_size(2).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let held: Vec<Tensor<u8>> = batches.by_ref().take(3).map(Result::unwrap).collect();
    drop((batches, loader));
    for (number, batch) in held.iter().enumerate() {
        assert!(batch.is_shared_memory());
        assert_eq!(batch.shape(), [2, 100_000]);
        assert!(batch.row(1).iter().all(|&byte| usize::from(byte) == 2 * number + 1));
    }
}

// PyTorch: U28
#[test]
fn slots_are_reused_for_every_batch_and_epoch() {
    let _watchdog = Watchdog::start();
    let loader =
        DataLoader::builder(Large { count: 64, bytes: 50_000 }).batch_size(2).num_workers(2).build().unwrap();
    let bytes = |epoch: u64| {
        let mut batches = loader.epoch(epoch).unwrap();
        batches.by_ref().for_each(|batch| drop(batch.unwrap()));
        batches.report().shared_memory_bytes
    };
    let first = bytes(0);
    assert!(first > 0);
    assert!((1..10).all(|epoch| bytes(epoch) == first), "memory grew from {first} bytes");
}

/// The first slots are too small for these batches, and the commands for their lists of indices.
#[test]
fn large_batches_get_larger_slots_which_carry_long_lists_of_indices() {
    let _watchdog = Watchdog::start();
    let load = |workers| {
        let builder =
            DataLoader::builder(Noise { count: 20_000 }).batch_size(9_000).shuffle(true).num_workers(workers);
        digest(builder.build().unwrap().iter().unwrap()).unwrap()
    };
    assert_eq!(load(0), load(2));
}
