//! States that do not fit the loader.

use loader_core::{
    Error, Order, State,
    collate::Batch,
    prelude::*,
    sampler::{Epoch, RandomSampler},
};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Noise, Shards},
    ways::all,
};
use serde::{Deserialize, Serialize};

use crate::resumed::saved;

type Pairs = (Tensor<u64>, Tensor<u32>);

/// Returns the state after some batches of the first epoch.
fn state_after<B: Batch>(loader: &DataLoader<B>, batches: usize) -> State {
    let mut iter = loader.epoch(0).unwrap();
    iter.by_ref().take(batches).for_each(|batch| drop(batch.unwrap()));
    saved(&iter.state())
}

/// Returns what does not fit, its value in the state, and its value in the loader.
fn mismatch<B: Batch>(loader: &DataLoader<B>, state: &State) -> (&'static str, String, String) {
    match loader.resume(state) {
        Err(Error::StateMismatch { part, state, loader }) => (part, state, loader),
        other => panic!("{other:?}"),
    }
}

// PyTorch: 240
#[test]
fn a_refused_state_names_the_part_and_both_values() {
    let _watchdog = Watchdog::start();
    let noise = || DataLoader::builder(Noise { count: 50 }).batch_size(5).shuffle(true).seed(1);
    let state = state_after(&noise().build().unwrap(), 2);
    let longer = DataLoader::builder(Noise { count: 51 }).batch_size(5).shuffle(true).seed(1);
    let mapped = DataLoader::builder(Noise { count: 50 }.map(|sample, _| Ok(sample))).batch_size(5);
    let order = "batches(5, random(50)[50])";
    let cases = [
        (noise().seed(2).build(), "seed", "1", "2"),
        (longer.build(), "number of samples", "50", "51"),
        (noise().batch_size(10).build(), "sampler", order, "batches(10, random(50)[50])"),
        (noise().shuffle(false).build(), "sampler", order, "batches(5, sequential[50])"),
        (noise().drop_last(true).build(), "drop_last", "false", "true"),
        (noise().distributed(0, 2).build(), "world_size", "1", "2"),
        (
            noise().distributed(0, 1).build(),
            "sampler",
            order,
            "batches(5, distributed(0 of 1, 50, shuffle)[50])",
        ),
        (mapped.shuffle(true).seed(1).build(), "dataset", "dataset", "map(dataset)"),
    ];
    for (loader, part, theirs, ours) in cases {
        let loader = loader.unwrap();
        assert_eq!(mismatch(&loader, &state), (part, theirs.into(), ours.into()));
        // The refused state has not changed the loader.
        let batches = loader.iter().unwrap();
        assert_eq!((batches.epoch(), batches.state().batches()), (0, 0));
    }
    let stream = |shards| DataLoader::stream(Counting { count: 50 }).seed(1).shards(shards).build().unwrap();
    let kinds = ("kind of dataset", "map-style".into(), "iterable".into());
    assert_eq!(mismatch(&stream(2), &state), kinds);
    let shards = ("number of shards (see `shards`)", "2".into(), "3".into());
    assert_eq!(mismatch(&stream(3), &state_after(&stream(2), 1)), shards);
}

/// A state is refused if a part differs that decides the stream's order, both in an epoch and between two
/// epochs. Other parts may differ.
#[test]
fn a_stream_with_other_stages_is_refused() {
    let _watchdog = Watchdog::start();
    fn build<D: IterableDataset<Sample = (u64, u32)>>(dataset: D) -> DataLoader<Pairs> {
        DataLoader::stream(dataset).shards(2).batch_size(4).build().unwrap()
    }
    let count = || Counting { count: 40 };
    for batches in [0, 3] {
        let state = state_after(&build(count().shuffle_buffer(5).take(30)), batches);
        let theirs = "take(30, shuffle_buffer(5, stream)[40])";
        let other = build(count().shuffle_buffer(6).take(30));
        let ours = "take(30, shuffle_buffer(6, stream)[40])";
        assert_eq!(mismatch(&other, &state), ("dataset", theirs.into(), ours.into()));
        let part = |loader| mismatch(&loader, &state).0;
        assert_eq!(part(build(count().take(30).shuffle_buffer(5))), "dataset");
        let filtered = count().shuffle_buffer(5).take(30).filter(|_, _| Ok(true));
        assert_eq!(part(build(filtered)), "dataset");
        let (part, theirs, ours) = mismatch(&build(count().shuffle_buffer(5).take(31)), &state);
        let of = |count| format!("take({count}, shuffle_buffer(5, stream)[40]) (number of samples: {count})");
        assert_eq!((part, theirs, ours), ("dataset", of(30), of(31)));
        let chained =
            Counting { count: 20 }.shuffle_buffer(5).chain(Counting { count: 10 }.shuffle_buffer(5));
        let ours = "chain(shuffle_buffer(5, stream)[20], shuffle_buffer(5, stream)[10])";
        assert_eq!(mismatch(&build(chained), &state).2, ours);
        let same = DataLoader::stream(count().shuffle_buffer(5).take(30)).shards(2).batch_size(4);
        same.num_workers(2).prefetch_factor(7).build().unwrap().resume(&state).unwrap();
    }
}

/// The fingerprint of a stage contains the length of the dataset that it reads, even if the stage's own
/// length does not depend on it.
#[test]
fn a_stream_with_another_length_behind_a_stage_is_refused() {
    let _watchdog = Watchdog::start();
    let filter = |count| {
        let kept = Counting { count }.shuffle_buffer(5).filter(|(number, _), _| Ok(number % 2 == 0));
        DataLoader::stream(kept).build().unwrap()
    };
    let (part, theirs, _) = mismatch(&filter(50), &filter(40).state());
    assert_eq!((part, &theirs[..]), ("dataset", "filter(shuffle_buffer(5, stream)[40])"));
    let take = |count| DataLoader::stream(Counting { count }.shuffle_buffer(5).take(30)).build().unwrap();
    let (part, theirs, _) = mismatch(&take(50), &take(40).state());
    assert_eq!((part, &theirs[..]), ("dataset", "take(30, shuffle_buffer(5, stream)[40])"));
}

/// A dataset and a sampler with their own fingerprints.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Versioned(u32);

impl Dataset for Versioned {
    type Sample = u64;

    fn len(&self) -> usize {
        20
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }

    fn fingerprint(&self) -> String {
        format!("files of {}", self.0)
    }
}

impl Sampler for Versioned {
    fn len(&self) -> usize {
        20
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(0..20)
    }

    fn fingerprint(&self) -> String {
        format!("curriculum {}", self.0)
    }
}

/// A sampler without its own fingerprint.
#[derive(Debug)]
struct Anonymous(Vec<usize>);

impl Sampler for Anonymous {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.0.clone().into_iter())
    }
}

#[test]
fn fingerprints_of_the_user_are_compared() {
    let _watchdog = Watchdog::start();
    let build = |files, curriculum| {
        let dataset = Versioned(files).map(|number, _| Ok(number));
        DataLoader::builder(dataset).batch_size(5).sampler(Versioned(curriculum)).build().unwrap()
    };
    let state = state_after(&build(1, 1), 1);
    assert_eq!(build(1, 1).resume(&state).unwrap().count(), 3);
    let files = ("dataset", "map(files of 1)".into(), "map(files of 2)".into());
    assert_eq!(mismatch(&build(2, 1), &state), files);
    let (part, theirs, _) = mismatch(&build(1, 2), &state);
    assert_eq!((part, &theirs[..]), ("sampler", "batches(5, curriculum 1[20])"));
    // Of a sampler without a fingerprint, the first batches are compared.
    let rotated = |by: usize| {
        let order: Vec<usize> = (0..20).map(|position| (position + by) % 20).collect();
        DataLoader::builder(Versioned(1)).batch_size(5).sampler(Anonymous(order)).build().unwrap()
    };
    let (part, ..) = mismatch(&rotated(1), &state_after(&rotated(0), 1));
    assert_eq!(part, "first batch of the epoch (hash of its indices)");
}

#[test]
fn a_state_of_a_stream_fits_one_rank() {
    let _watchdog = Watchdog::start();
    let build = |rank, world_size| {
        let builder = DataLoader::stream(Counting { count: 100 }).shards(2).batch_size(4);
        builder.distributed(rank, world_size).build().unwrap()
    };
    let batches = [0, 1].map(|rank| all(build(rank, 2).iter().unwrap())).concat();
    let mut numbers: Vec<u64> = batches.iter().flat_map(|batch| batch.0.as_slice().to_vec()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..100), "each sample belongs to one rank");
    for state in [state_after(&build(0, 2), 3), build(0, 2).state()] {
        assert!(build(0, 2).resume(&state).is_ok());
        let differs = |rank, world_size| mismatch(&build(rank, world_size), &state);
        assert_eq!(differs(1, 2), ("rank", "0".to_owned(), "1".to_owned()));
        assert_eq!(differs(0, 4), ("world_size", "2".to_owned(), "4".to_owned()));
    }
}

/// Also if the state is of the end of an epoch.
// PyTorch: T07
#[test]
fn a_stream_with_other_shards_or_batches_is_refused_between_two_epochs() {
    let _watchdog = Watchdog::start();
    let builder = || DataLoader::stream(Counting { count: 40 }.shuffle_buffer(5));
    let loader = builder().shards(4).batch_size(4).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    for state in [loader.state(), saved(&batches.state())] {
        assert_eq!((state.epoch(), state.batches()), (1, 0));
        let part = |loader: Result<DataLoader<Pairs>, Error>| mismatch(&loader.unwrap(), &state).0;
        // Without `shards`, the number of shards is the number of workers.
        assert_eq!(part(builder().num_workers(2).batch_size(4).build()), "number of shards (see `shards`)");
        assert_eq!(part(builder().shards(4).batch_size(8).build()), "batch_size");
        assert_eq!(part(builder().shards(4).batch_size(4).drop_last(true).build()), "drop_last");
        assert!(builder().shards(4).batch_size(4).num_workers(2).build().unwrap().resume(&state).is_ok());
    }
}

/// With `Order::Torch`, `shuffle` and a given sampler use different generators.
#[test]
fn shuffle_and_a_random_sampler_are_exchangeable_in_the_native_order_only() {
    let _watchdog = Watchdog::start();
    for (order, is_same) in [(Order::Native, true), (Order::Torch, false)] {
        let builder = || DataLoader::builder(Noise { count: 50 }).batch_size(5).order(order);
        let shuffled = builder().shuffle(true).build().unwrap();
        let sampled = builder().sampler(RandomSampler::new(50)).build().unwrap();
        let batches = |loader: &DataLoader<_>| all(loader.epoch(1).unwrap());
        assert_eq!(batches(&shuffled) == batches(&sampled), is_same, "{order:?}");
        assert_eq!(sampled.resume(&shuffled.state()).is_ok(), is_same, "{order:?}");
        assert_eq!(shuffled.resume(&sampled.state()).is_ok(), is_same, "{order:?}");
    }
}

/// Without snapshots, the shard is read again up to its position.
#[test]
fn a_shard_that_ends_before_its_position_is_an_error() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let build = |sizes: &[u64]| {
            let builder = DataLoader::stream(Shards::of(sizes)).shards(2).batch_size(5);
            builder.num_workers(workers).build().unwrap()
        };
        // Four batches of each shard, whose length nobody compares.
        let state = state_after(&build(&[40, 40]), 8);
        let shorter = build(&[40, 13]);
        let mut batches = shorter.resume(&state).unwrap();
        let (numbers, errors): (Vec<_>, Vec<_>) = batches.by_ref().partition(Result::is_ok);
        assert_eq!(numbers.len(), 4, "the rest of the first shard");
        let [Err(error @ Error::OpenFailed { .. })] = &errors[..] else { panic!("{errors:?}") };
        let expected = "shard 1 cannot continue at item 20: it has only 13 items now";
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(batches.state().epoch(), 0, "the epoch has a rest");
        let rest = build(&[40, 40]).resume(&saved(&batches.state())).unwrap();
        assert_eq!(rest.map(Result::unwrap).count(), 4, "the rest of the second shard");
    }
}

#[test]
fn a_state_of_the_last_epoch_does_no_harm() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::stream(Counting { count: 10 }).shards(1).build().unwrap();
    let state = saved(&loader.state_at(u64::MAX));
    assert_eq!(loader.resume(&state).unwrap().map(Result::unwrap).count(), 10);
}
