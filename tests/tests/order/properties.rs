//! Any combination of numbers.

use std::collections::BTreeMap;

use loader_core::{
    Iter, State,
    prelude::*,
    sampler::{Epoch, FixedBatches},
};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Faulty, Noise, Shards, Uneven},
    ways::{all, numbers},
};
use proptest::prelude::*;

/// How often each number comes.
fn tally(batches: &[Vec<u64>]) -> BTreeMap<u64, usize> {
    let mut seen = BTreeMap::new();
    batches.iter().flatten().for_each(|&number| *seen.entry(number).or_default() += 1);
    seen
}

fn saved(state: &State) -> State {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// A map-style loader's numbers.
#[derive(Debug, Clone)]
struct Plan {
    samples: usize,
    batch_size: usize,
    drop_last: bool,
    shuffle: bool,
    seed: u64,
    /// Rank and world size.
    share: Option<(usize, usize)>,
}

prop_compose! {
    fn plan()(
        samples in 1usize..60, batch_size in 1usize..9, drop_last: bool, shuffle: bool, seed: u64,
        share in prop::option::of((0usize..3, 3usize..5)),
    ) -> Plan {
        Plan { samples, batch_size, drop_last, shuffle, seed, share }
    }
}

/// How it is loaded.
#[derive(Debug, Clone, Copy)]
struct Load {
    workers: usize,
    prefetch: usize,
    stays: bool,
    in_order: bool,
}

prop_compose! {
    fn load()(
        workers in prop::sample::select(vec![0, 1, 3]), prefetch in 1usize..4, stays: bool, in_order: bool,
    ) -> Load {
        Load { workers, prefetch, stays, in_order }
    }
}

impl Plan {
    fn build(&self, load: Load) -> DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)> {
        let Self { samples, batch_size, drop_last, shuffle, seed, share } = *self;
        let builder =
            DataLoader::builder(Noise { count: samples }).batch_size(batch_size).drop_last(drop_last);
        let builder = builder.shuffle(shuffle).seed(seed).num_workers(load.workers).in_order(load.in_order);
        let builder =
            share.into_iter().fold(builder, |builder, (rank, world)| builder.distributed(rank, world));
        match load.workers {
            0 => builder.build().unwrap(),
            _ => builder.prefetch_factor(load.prefetch).persistent_workers(load.stays).build().unwrap(),
        }
    }

    fn here(&self) -> DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)> {
        self.build(Load { workers: 0, prefetch: 1, stays: false, in_order: true })
    }
}

/// Batches whose indices `build()` does not know.
#[derive(Debug)]
struct Unchecked(Vec<Vec<usize>>);

impl BatchSampler for Unchecked {
    fn len(&self, _epoch: Epoch) -> usize {
        self.0.len()
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new(self.0.clone().into_iter())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // PyTorch: 81
    #[test]
    fn every_sample_comes_as_often_as_it_must(plan in plan(), epoch in 0u64..4) {
        let plan = Plan { share: None, ..plan };
        let loader = plan.here();
        let batches: Vec<Vec<u64>> =
            all(loader.epoch(epoch).unwrap()).iter().map(|(index, ..)| index.as_slice().to_vec()).collect();
        prop_assert_eq!(loader.len(), Some(batches.len()));
        let kept = if plan.drop_last { plan.samples / plan.batch_size * plan.batch_size } else { plan.samples };
        let tally = tally(&batches);
        prop_assert!(tally.values().all(|&times| times == 1));
        prop_assert_eq!(tally.len(), kept);
        prop_assert!(tally.keys().all(|&number| number < plan.samples as u64));
        prop_assert!(plan.shuffle || batches.concat().into_iter().eq(0..kept as u64));
        prop_assert!(batches.iter().rev().skip(1).all(|batch| batch.len() == plan.batch_size));
    }

    // PyTorch: 205
    #[test]
    fn without_workers_a_resumed_run_is_the_uninterrupted_one(
        plan in plan(), stops in prop::collection::vec(0usize..20, 1..4), epoch in 0u64..3,
    ) {
        let expected = all(plan.here().epoch(epoch).unwrap());
        let mut seen = Vec::new();
        let mut batches = plan.here().epoch(epoch).unwrap();
        for stop in stops {
            seen.extend(batches.by_ref().take(stop).map(Result::unwrap));
            let state = saved(&batches.state());
            if state.epoch() > epoch {
                break;
            }
            prop_assert_eq!(state.batches(), seen.len() as u64);
            batches = plan.here().resume(&state).unwrap();
        }
        if seen.len() < expected.len() {
            seen.extend(batches.map(Result::unwrap));
        }
        prop_assert_eq!(seen, expected);
    }

    // PyTorch: F03, U20
    #[test]
    fn streams_give_each_sample_once_and_resume(
        sizes in prop::collection::vec(0u64..12, 1..5), batch_size in 1usize..5, drop_last: bool, stop in 0usize..12,
    ) {
        let build = || {
            let builder = DataLoader::stream(Shards::of(&sizes)).shards(sizes.len()).batch_size(batch_size);
            builder.drop_last(drop_last).build().unwrap()
        };
        let whole = numbers(&all(build().iter().unwrap()));
        let size = batch_size as u64;
        let kept: u64 = sizes.iter().map(|&len| if drop_last { len / size * size } else { len }).sum();
        prop_assert_eq!(tally(&whole).len() as u64, kept);
        prop_assert_eq!(whole.concat().len() as u64, kept);
        let mut batches = build().iter().unwrap();
        let first: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let state = saved(&batches.state());
        let rest = build().resume(&state).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!([numbers(&first), numbers(&all(rest))].concat(), whole);
        } else {
            prop_assert_eq!(numbers(&first), whole, "nothing was left of the epoch");
        }
    }

    // PyTorch: S06
    #[test]
    fn a_sampler_s_batches_are_its_order(samples in 1usize..80, size in 1usize..12, seed: u64, epoch in 0u64..5) {
        let loader = |sampler: bool| {
            let builder = DataLoader::builder(Count(samples)).seed(seed);
            match sampler {
                true => builder.sampler(RandomSampler::new(samples)).batch_size(size).build(),
                false => builder.batch_sampler(FixedBatches::new(RandomSampler::new(samples), size, false)).build(),
            }
        };
        let shuffled = DataLoader::builder(Count(samples)).seed(seed).shuffle(true).batch_size(size).build().unwrap();
        let expected = all(shuffled.epoch(epoch).unwrap());
        for sampler in [false, true] {
            prop_assert_eq!(&all(loader(sampler).unwrap().epoch(epoch).unwrap()), &expected);
        }
    }
}

/// What comes, errors as their text.
fn record(batches: Iter<Tensor<u64>>) -> Vec<Result<Vec<u64>, String>> {
    batches
        .map(|batch| batch.map(|batch| batch.as_slice().to_vec()).map_err(|error| error.to_string()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // PyTorch: 252
    #[test]
    fn errors_of_a_stream_come_once_resumed_or_not(
        sizes in prop::collection::vec(0u64..9, 1..4), batch_size in 1usize..4, drop_last: bool, ragged: bool,
        shard in 0u64..4, place in 0u64..9, stop in 0usize..12,
    ) {
        let fault = if ragged { Fault::Ragged } else { Fault::Error };
        let build = || {
            let dataset = Uneven { sizes: sizes.clone(), at: Some(100 * shard + place), fault };
            let builder = DataLoader::stream(dataset).shards(sizes.len()).batch_size(batch_size);
            builder.drop_last(drop_last).build().unwrap()
        };
        let whole = record(build().iter().unwrap());
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(stop).for_each(drop);
        let rest = build().resume(&saved(&batches.state())).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&record(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }

    // PyTorch: P-46
    #[test]
    fn errors_of_a_sampler_and_a_dataset_come_once_resumed_or_not(
        batches in prop::collection::vec(prop::collection::vec(0usize..24, 0..4), 1..12), stop in 0usize..14,
    ) {
        // 20 to 23 are none of the dataset's.
        let build = || {
            let dataset = Faulty { count: 20, at: 7, fault: Fault::Error };
            DataLoader::builder(dataset).batch_sampler(Unchecked(batches.clone())).build().unwrap()
        };
        let whole = record(build().iter().unwrap());
        prop_assert_eq!(whole.len(), batches.len());
        for (outcome, indices) in whole.iter().zip(&batches) {
            prop_assert_eq!(outcome.is_ok(), indices.iter().all(|&index| index < 20 && index != 7));
        }
        let mut begun = build().iter().unwrap();
        begun.by_ref().take(stop).for_each(drop);
        let rest = build().resume(&saved(&begun.state())).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&record(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }
}

proptest! {
    // With processes.
    #![proptest_config(ProptestConfig::with_cases(20))]

    // PyTorch: R10, U18
    #[test]
    fn workers_change_nothing_and_resume_loses_nothing(
        plan in plan(), before in load(), after in load(), stop in 0usize..16,
    ) {
        let _watchdog = Watchdog::start();
        let by_first = |batch: &(Tensor<u64>, Tensor<f32>, Vec<String>)| batch.0.as_slice().to_vec();
        let reference = plan.here();
        let mut expected = all(reference.iter().unwrap());
        let next = all(reference.iter().unwrap());
        let loader = plan.build(before);
        let mut batches = loader.iter().unwrap();
        let mut seen: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let state = saved(&batches.state());
        drop(batches);
        let resumed = plan.build(after);
        let rest = resumed.resume(&state).unwrap();
        if rest.epoch() == 0 {
            let left = expected.len() - seen.len();
            prop_assert_eq!(rest.size_hint(), (left, Some(left)));
            seen.extend(all(rest));
        }
        let mut following = all(plan.build(after).epoch(1).unwrap());
        let mut next = next;
        if !(before.in_order && after.in_order) {
            seen.sort_by_key(by_first);
            expected.sort_by_key(by_first);
        }
        if !after.in_order {
            following.sort_by_key(by_first);
            next.sort_by_key(by_first);
        }
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(following, next);
    }

    // PyTorch: T09
    #[test]
    fn shards_change_nothing_with_workers_and_resume(
        sizes in prop::collection::vec(0u64..12, 1..5), batch_size in 1usize..5, drop_last: bool,
        before in load(), after in load(), stop in 0usize..12,
    ) {
        let _watchdog = Watchdog::start();
        let build = |load: Load| {
            let builder = DataLoader::stream(Shards::of(&sizes)).shards(sizes.len()).batch_size(batch_size);
            let builder = builder.drop_last(drop_last).num_workers(load.workers).in_order(load.in_order);
            match load.workers {
                0 => builder.build().unwrap(),
                _ => builder.prefetch_factor(load.prefetch).persistent_workers(load.stays).build().unwrap(),
            }
        };
        let mut expected =
            numbers(&all(build(Load { workers: 0, prefetch: 1, stays: false, in_order: true }).iter().unwrap()));
        let loader = build(before);
        let mut batches = loader.iter().unwrap();
        let mut seen = numbers(&batches.by_ref().take(stop).map(Result::unwrap).collect::<Vec<_>>());
        let state = saved(&batches.state());
        drop(batches);
        let rest = build(after).resume(&state).unwrap();
        if rest.epoch() == 0 {
            seen.extend(numbers(&all(rest)));
        }
        let again = numbers(&all(loader.epoch(3).unwrap()));
        prop_assert_eq!(tally(&again), tally(&expected), "the loader goes on");
        if !(before.in_order && after.in_order) {
            seen.sort();
            expected.sort();
        }
        prop_assert_eq!(seen, expected);
    }

    // PyTorch: 252
    #[test]
    fn errors_of_a_stream_come_once_with_any_workers(
        sizes in prop::collection::vec(0u64..9, 1..5), batch_size in 1usize..4, drop_last: bool,
        fault in prop::sample::select(vec![Fault::Error, Fault::Ragged, Fault::Panic]),
        shard in 0u64..4, place in 0u64..9, before in load(), after in load(), stop in 0usize..12,
    ) {
        let _watchdog = Watchdog::start();
        let build = |load: Load| {
            let dataset = Uneven { sizes: sizes.clone(), at: Some(100 * shard + place), fault };
            let builder = DataLoader::stream(dataset).shards(sizes.len()).batch_size(batch_size);
            let builder = builder.drop_last(drop_last).num_workers(load.workers);
            match load.workers {
                0 => builder.build().unwrap(),
                _ => builder.prefetch_factor(load.prefetch).persistent_workers(load.stays).build().unwrap(),
            }
        };
        // Which worker it was is said in the text.
        let kinds = |batches: Iter<Tensor<u64>>| -> Vec<Result<Vec<u64>, &'static str>> {
            batches.map(|batch| batch.map(|batch| batch.as_slice().to_vec()).map_err(|error| error.kind())).collect()
        };
        let whole = kinds(build(Load { workers: 0, ..before }).iter().unwrap());
        let mut batches = build(before).iter().unwrap();
        batches.by_ref().take(stop).for_each(drop);
        let state = saved(&batches.state());
        prop_assert_eq!(&kinds(batches)[..], &whole[stop.min(whole.len())..]);
        let rest = build(after).resume(&state).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&kinds(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }
}
