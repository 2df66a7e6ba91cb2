//! Streams whose epochs end after a number of batches.

use loader_core::{
    Builder, Error,
    kind::{Iterable, Plain},
    prelude::*,
};
use loader_tests::{Watchdog, datasets::Shards};

/// Two shards of 10 and 4 batches of two samples.
fn stream() -> Builder<Iterable<Plain<Shards>>> {
    DataLoader::stream(Shards { sizes: vec![20, 8], stated_len: None }).shards(2).batch_size(2)
}

fn numbers(loader: &DataLoader<Tensor<u64>>) -> Vec<u64> {
    loader.iter().unwrap().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect()
}

#[test]
fn each_epoch_has_as_many_batches_as_asked_for() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for persistent in [false, true] {
            let builder = stream().num_workers(workers).persistent_workers(persistent && workers > 0);
            let loader = builder.steps_per_epoch(6).build().unwrap();
            assert_eq!(loader.len(), Some(6));
            let mut pids = Vec::new();
            for epoch in 0..3 {
                let mut batches = loader.iter().unwrap();
                pids.push(batches.worker_pids());
                assert_eq!(batches.size_hint().1, Some(6));
                let count = batches.by_ref().map(Result::unwrap).count();
                assert_eq!((count, batches.next().is_none(), batches.size_hint()), (6, true, (0, Some(0))));
                assert_eq!(batches.state().epoch(), epoch + 1);
            }
            if persistent {
                assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
            }
            let first = numbers(&stream().num_workers(workers).build().unwrap());
            assert_eq!(numbers(&loader), first[..12]);
        }
    }
}

#[test]
fn a_stream_that_ends_before_is_an_error() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = stream().num_workers(workers).steps_per_epoch(15).build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(14).map(Result::unwrap).count(), 14);
        let mut resumed = loader.resume(&batches.state()).unwrap();
        let error = resumed.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::StreamTooShort { steps: 15, given: 14 }), "{error}");
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::StreamTooShort { steps: 15, given: 14 }), "{error}");
        assert!(error.ends_iteration() && batches.next().is_none());
        assert_eq!(batches.state().epoch(), 1);
        assert_eq!(
            stream().num_workers(workers).steps_per_epoch(14).build().unwrap().iter().unwrap().count(),
            14
        );
    }
}

#[test]
fn a_state_counts_the_batches_of_its_epoch() {
    let _watchdog = Watchdog::start();
    let loader = |workers| stream().num_workers(workers).steps_per_epoch(6).build().unwrap();
    let whole = numbers(&loader(0));
    for (workers, taken) in [(0, 1), (2, 4), (2, 6)] {
        let mut batches = loader(workers).iter().unwrap();
        let before = batches.by_ref().take(taken).flat_map(|batch| batch.unwrap().as_slice().to_vec());
        let before: Vec<u64> = before.collect();
        let state = batches.state();
        let json = serde_json::to_string(&state).unwrap();
        let resumed = loader(1).resume(&serde_json::from_str(&json).unwrap()).unwrap();
        let (epoch, expected) = if taken == 6 { (1, whole.as_slice()) } else { (0, &whole[before.len()..]) };
        assert_eq!(resumed.epoch(), epoch);
        assert_eq!(
            resumed.flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect::<Vec<_>>(),
            expected
        );
    }
}

/// Two ranks whose streams have different lengths take equally many steps, also after a resume with three.
#[test]
fn ranks_take_equally_many_steps() {
    let _watchdog = Watchdog::start();
    let loader = |rank, ranks, steps| {
        let stream = Shards { sizes: vec![20, 8, 6, 18, 30, 12], stated_len: None };
        let builder = DataLoader::stream(stream).shards(6 / ranks).batch_size(2).distributed(rank, ranks);
        builder.steps_per_epoch(steps).build().unwrap()
    };
    let mut states = Vec::new();
    for rank in 0..2 {
        let loader = loader(rank, 2, 15);
        assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 15, "rank {rank}");
        let mut batches = loader.epoch(0).unwrap();
        assert_eq!(batches.by_ref().take(5).filter(Result::is_ok).count(), 5);
        states.push(batches.state());
    }
    let merged = State::merge(states).unwrap();
    for rank in 0..3 {
        let rest = loader(rank, 3, 8).resume(&merged).unwrap();
        assert_eq!(rest.filter(Result::is_ok).count(), 3, "rank {rank}");
    }
}

#[test]
fn an_epoch_has_at_least_one_step_and_only_streams_have_the_option() {
    let none = stream().steps_per_epoch(0).build().unwrap_err();
    assert!(none.to_string().starts_with("steps_per_epoch: an epoch has at least 1 batch"), "{none}");
    let options = LoaderOptions::default().steps_per_epoch(2);
    let numbers = TensorDataset::new(Tensor::<u8>::zeros([4]).unwrap()).unwrap();
    let map_style = DataLoader::builder(numbers).options(options).build().unwrap_err();
    assert!(map_style.to_string().starts_with("steps_per_epoch: the sampler"), "{map_style}");
}
