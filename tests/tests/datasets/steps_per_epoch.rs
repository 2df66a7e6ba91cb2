//! Streams whose epochs end after a number of batches.

use std::{sync::mpsc, thread, time::Duration};

use loader_core::{
    Builder, Error, MergeError, Warning,
    kind::{Iterable, Plain},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Fault, Shards, Uneven},
};

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
        assert_eq!(resumed.epoch(), 0);
        assert_eq!(
            resumed.flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect::<Vec<_>>(),
            whole[before.len()..]
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

/// A loader of one of some ranks, which share six shards of five batches.
fn rank_of(rank: usize, ranks: usize, steps: Option<u64>, workers: usize) -> DataLoader<Tensor<u64>> {
    let shards = DataLoader::stream(Shards::of(&[10; 6])).shards(6 / ranks).batch_size(2);
    let builder = shards.distributed(rank, ranks).num_workers(workers);
    match steps {
        Some(steps) => builder.steps_per_epoch(steps),
        None => builder,
    }
    .build()
    .unwrap()
}

/// Returns the states of two ranks, of which the first has reached its ten steps per epoch, and the second has not.
/// Adds the numbers that they returned to `seen`.
fn states_one_step_apart(workers: usize, has_ended: bool, seen: &mut Vec<u64>) -> Vec<State> {
    let of_rank = |(rank, steps)| {
        let mut batches = rank_of(rank, 2, Some(10), workers).iter().unwrap();
        batches.by_ref().take(steps).for_each(|batch| seen.extend_from_slice(batch.unwrap().as_slice()));
        if has_ended && steps == 10 {
            assert!(batches.next().is_none());
        }
        serde_json::from_str(&serde_json::to_string(&batches.state()).unwrap()).unwrap()
    };
    [(0, 10), (1, 9)].map(of_rank).to_vec()
}

#[test]
fn ranks_go_on_after_states_one_step_apart() {
    let _watchdog = Watchdog::start();
    for (workers, has_ended) in [(0, false), (0, true), (2, false), (2, true)] {
        let mut seen = Vec::new();
        let merged = State::merge(states_one_step_apart(workers, has_ended, &mut seen)).unwrap();
        assert_eq!((merged.epoch(), seen.len()), (0, 38));
        for ranks in [1, 2, 3, 6] {
            // One rank has taken all steps of the epoch, so all ranks go on with the next one.
            for rank in 0..ranks {
                let mut batches = rank_of(rank, ranks, Some(10), workers).resume(&merged).unwrap();
                assert!(batches.next().is_none(), "rank {rank} of {ranks}");
                assert_eq!((batches.epoch(), batches.state().epoch()), (0, 1));
            }
            // Without the option, the ranks read what the shards have left: each sample comes once.
            let rest = |rank| {
                rank_of(rank, ranks, None, workers)
                    .resume(&merged)
                    .unwrap()
                    .map(Result::unwrap)
                    .collect::<Vec<_>>()
            };
            let mut all = seen.clone();
            (0..ranks).flat_map(rest).for_each(|batch| all.extend_from_slice(batch.as_slice()));
            all.sort_unstable();
            assert_eq!(all, (0..60).collect::<Vec<_>>(), "{ranks} ranks");
        }
        // One rank takes the 11 batches that are left as its steps from the 11th on.
        let batches = rank_of(0, 1, Some(10 + 11), workers).resume(&merged).unwrap();
        batches.for_each(|batch| seen.extend_from_slice(batch.unwrap().as_slice()));
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>());
    }
}

/// The last step is the last batch of the shards. The ranks of a group are not equally fast, and one of them asks for
/// the end.
#[test]
fn ranks_of_a_group_save_equal_states_at_the_end_of_their_shards() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let state_of = |rank: usize, steps: usize, pause: Duration, asks_for_the_end: bool| {
            let mut batches = rank_of(rank, 2, Some(15), workers).iter().unwrap();
            for _ in 0..steps {
                thread::sleep(pause);
                batches.next().unwrap().unwrap();
            }
            assert!(!asks_for_the_end || batches.next().is_none());
            batches.state()
        };
        let (at_once, slow) = (Duration::ZERO, Duration::from_millis(20));
        let state = state_of(0, 15, at_once, false);
        assert_eq!(state_of(0, 15, slow, false), state, "{workers} workers");
        let after_the_end = state_of(0, 15, at_once, true);
        assert_eq!(state_of(0, 15, slow, true), after_the_end, "{workers} workers");
        let other_group = state_of(1, 14, at_once, false);
        let merged = State::merge([after_the_end, other_group.clone()]).unwrap();
        assert_eq!(State::merge([state, other_group]).unwrap(), merged, "{workers} workers");
        let rest = rank_of(0, 1, None, 0).resume(&merged).unwrap();
        assert_eq!((merged.epoch(), rest.map(Result::unwrap).count()), (0, 1));
    }
}

/// The only step is an error that ends the only shard with samples. A rank that gives this shard to another worker finds
/// no more batches in it, so that it knows the end of its shards at once. A rank that leaves it where it is does not.
#[test]
fn ranks_of_a_group_save_equal_states_after_an_error_that_ends_their_last_shard() {
    let _watchdog = Watchdog::start();
    let loader = |rank, ranks, workers| {
        let shards = Uneven { sizes: vec![0, 0, 2, 4], at: Some(201), fault: Fault::Panic };
        let builder = DataLoader::stream(shards).shards(4 / ranks).batch_size(2).distributed(rank, ranks);
        match workers {
            // With one task for each worker, none is sent behind the one that fails.
            2 => builder.num_workers(2).prefetch_factor(1).steps_per_epoch(1),
            _ => builder,
        }
        .build()
        .unwrap()
    };
    let state_of = |num_workers| {
        let mut batches = loader(0, 2, 2).iter().unwrap();
        batches.set_num_workers(num_workers).unwrap();
        let error = batches.next().unwrap().unwrap_err();
        assert!(!error.ends_iteration(), "{error}");
        batches.state()
    };
    let (stays, moves) = (state_of(2), state_of(1));
    assert_eq!((stays.epoch(), &moves), (0, &stays));
    let other_group = loader(1, 2, 2).iter().unwrap().state();
    let merged = State::merge([stays, moves, other_group]).unwrap();
    let rest = loader(0, 1, 0).resume(&merged).unwrap();
    assert_eq!((merged.epoch(), rest.map(Result::unwrap).count()), (0, 2));
}

#[test]
fn a_state_that_does_not_say_where_the_epoch_ended_is_not_merged() {
    let _watchdog = Watchdog::start();
    let states = states_one_step_apart(0, true, &mut Vec::new());
    let merged = State::merge(states.clone()).unwrap();
    let loader = rank_of(0, 2, Some(10), 0);
    // The iterator that goes on with the state knows what the state says.
    let resumed = loader.resume(&states[0]).unwrap().state();
    assert_eq!(State::merge([resumed, states[1].clone()]).unwrap(), merged);
    for unknown in [loader.state_at(1), loader.epoch(1).unwrap().state()] {
        let error = State::merge([unknown, states[1].clone()]).unwrap_err();
        assert!(matches!(error, MergeError::EndMissing { rank: 0, epoch: 0 }), "{error}");
    }
}

/// One rank resumes from a merged state at the start of an epoch, and saves its state. The other is killed before that,
/// so only its state of the epoch before exists.
#[test]
fn a_state_from_the_start_of_an_epoch_does_not_say_that_the_shards_were_read_to_the_end() {
    let _watchdog = Watchdog::start();
    for (steps, reads_all) in [(Some(10), false), (None, true)] {
        let loader = |rank| rank_of(rank, 2, steps, 0);
        let at_the_end = |rank| {
            let mut batches = loader(rank).iter().unwrap();
            batches.by_ref().for_each(|batch| drop(batch.unwrap()));
            batches.state()
        };
        let merged = State::merge([at_the_end(0), at_the_end(1)]).unwrap();
        assert_eq!((merged.epoch(), merged.batches()), (1, 0));
        let new = loader(0).resume(&merged).unwrap().state();
        let mut batches = loader(1).iter().unwrap();
        batches.by_ref().take(9).for_each(|batch| drop(batch.unwrap()));
        let both = State::merge([new, batches.state()]);
        if reads_all {
            let rest = rank_of(0, 1, None, 0).resume(&both.unwrap()).unwrap();
            assert_eq!(rest.map(Result::unwrap).count(), 15 - 9);
        } else {
            let error = both.unwrap_err();
            assert!(matches!(error, MergeError::EndMissing { rank: 0, epoch: 0 }), "{error}");
        }
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

/// A dataset deals its files to all shards in turn.
#[test]
fn files_go_to_the_ranks_first_and_a_rank_without_files_is_an_error() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let of_rank = |files: u64, rank: usize| {
            let stream = Counting { count: files };
            let builder = DataLoader::stream(stream).shards(4).batch_size(1).num_workers(workers);
            builder.distributed(rank, 4).build().unwrap().iter().unwrap().collect::<Vec<_>>()
        };
        for rank in 0..4 {
            let batches = of_rank(8, rank).into_iter().map(|batch| batch.unwrap().0.as_slice()[0]);
            assert!(batches.eq([rank as u64, rank as u64 + 4]), "rank {rank}");
        }
        let [Err(error @ Error::NoShare { epoch: 0, rank: 3, world_size: 4 })] = &of_rank(3, 3)[..] else {
            panic!("rank 3 has no file")
        };
        assert!(error.ends_iteration());
        assert!(error.to_string().starts_with("rank 3 of 4 has no batches in epoch 0"), "{error}");
        assert!(of_rank(3, 2).iter().all(Result::is_ok));
    }
}

#[test]
fn a_stream_of_several_ranks_without_steps_per_epoch_is_warned_about_once() {
    let warnings = |rank: usize, ranks: usize, steps: Option<u64>| {
        let (send, receive) = mpsc::channel();
        let mut builder = stream().distributed(rank, ranks);
        if let Some(steps) = steps {
            builder = builder.steps_per_epoch(steps);
        }
        let loader = builder.on_warning(move |warning| drop(send.send(warning.clone()))).build().unwrap();
        drop(loader);
        receive.iter().collect::<Vec<_>>()
    };
    assert_eq!(warnings(0, 4, None), [Warning::StepsMayDiffer { shares: 4 }]);
    for (rank, ranks, steps) in [(1, 4, None), (0, 1, None), (0, 4, Some(2))] {
        assert_eq!(warnings(rank, ranks, steps), [], "rank {rank} of {ranks}, {steps:?} steps");
    }
}
