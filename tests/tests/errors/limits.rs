//! `shared_memory_limit`: what fails, what waits, and that no batch is lost.

use loader_core::{Error, SlotError, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise},
};

// PyTorch: X17
#[test]
fn if_the_program_holds_all_slots_next_fails_until_it_drops_a_batch() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 100, bytes: 1000 }).num_workers(1).prefetch_factor(1);
    let loader = builder.shared_memory_limit(4 * 64 * 1024).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut held = Vec::new();
    let error = loop {
        match batches.next().unwrap() {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    let Error::SharedMemoryExhausted { source: SlotError::LimitReached { held: 4, .. }, elsewhere: 0 } =
        error
    else {
        panic!("{error:?}");
    };
    assert_eq!(held.len(), 4);
    held.clear();
    assert_eq!(batches.filter(Result::is_ok).count(), 100 - 4, "a batch was lost");
}

// PyTorch: X17, U02
#[test]
fn a_batch_larger_than_the_limit_fails() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 4, bytes: 1 << 20 }).num_workers(1);
    let loader = builder.shared_memory_limit(1 << 19).build().unwrap();
    let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), 4);
    for error in errors {
        assert!(matches!(error, Error::SendFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("shared memory limit of 524288 bytes"), "{error}");
    }
}

// PyTorch: N15
#[test]
fn a_limit_with_room_for_few_batches_loses_none() {
    let _watchdog = Watchdog::start();
    for room in [1, 2, 3] {
        let builder =
            DataLoader::builder(Large { count: 40, bytes: 1 << 20 }).num_workers(2).prefetch_factor(3);
        let loader = builder.shared_memory_limit(room * (1 << 20) + (1 << 19)).build().unwrap();
        let first_bytes = loader.iter().unwrap().map(|batch| batch.unwrap().as_slice()[0]);
        assert!(first_bytes.eq(0..40), "room for {room}");
    }
}

/// The list of the first batch has 18,000 indices.
#[test]
fn a_list_of_indices_larger_than_the_limit_loses_its_batch_only() {
    let _watchdog = Watchdog::start();
    let builder =
        DataLoader::builder(Noise { count: 20_000 }).batch_size(18_000).shuffle(true).num_workers(1);
    let loader = builder.shared_memory_limit(128 * 1024).build().unwrap();
    let outcomes: Vec<_> = loader.iter().unwrap().collect();
    assert_eq!(outcomes.len(), 2);
    let error = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("shared_memory_limit is 131072"), "{error}");
    assert_eq!(outcomes[1].as_ref().unwrap().0.len(), 2_000);
}
