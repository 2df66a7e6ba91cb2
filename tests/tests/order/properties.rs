//! Properties of loaders with any lengths, sizes of batches, workers, orders, ranks, faults and positions to
//! resume at.

use std::collections::BTreeMap;

use loader_core::{
    Builder, Iter, State,
    kind::DatasetKind,
    prelude::*,
    sampler::{Epoch, FixedBatches},
};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Faulty, Noise, Shards, Uneven},
    ways::{all, numbers},
};
use proptest::prelude::*;

/// Returns how often each number occurs.
fn tally(batches: &[Vec<u64>]) -> BTreeMap<u64, usize> {
    let mut seen = BTreeMap::new();
    batches.iter().flatten().for_each(|&number| *seen.entry(number).or_default() += 1);
    seen
}

/// Returns the state after a round trip through JSON.
fn saved<B: loader_core::collate::Batch>(batches: &Iter<B>) -> State {
    serde_json::from_str(&serde_json::to_string(&batches.state()).unwrap()).unwrap()
}

/// What a map-style loader loads.
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
    persistent: bool,
    in_order: bool,
}

/// Without workers.
const IN_MAIN: Load = Load { workers: 0, prefetch: 1, persistent: false, in_order: true };

prop_compose! {
    fn load()(
        workers in prop::sample::select(vec![0, 1, 3]), prefetch in 1usize..4, persistent: bool, in_order: bool,
    ) -> Load {
        Load { workers, prefetch, persistent, in_order }
    }
}

impl Load {
    fn set<K: DatasetKind, C, W>(self, builder: Builder<K, C, W>) -> Builder<K, C, W> {
        let builder = builder.num_workers(self.workers).in_order(self.in_order);
        match self.workers {
            0 => builder,
            _ => builder.prefetch_factor(self.prefetch).persistent_workers(self.persistent),
        }
    }
}

impl Plan {
    fn build(&self, load: Load) -> DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)> {
        let Self { samples, batch_size, drop_last, shuffle, seed, share } = *self;
        let builder = DataLoader::builder(Noise { count: samples }).batch_size(batch_size);
        let builder = builder.drop_last(drop_last).shuffle(shuffle).seed(seed);
        let builder = match share {
            Some((rank, world_size)) => builder.distributed(rank, world_size),
            None => builder,
        };
        load.set(builder).build().unwrap()
    }
}

/// Shards, and how they form batches.
#[derive(Debug, Clone)]
struct StreamPlan {
    sizes: Vec<u64>,
    batch_size: usize,
    drop_last: bool,
}

prop_compose! {
    fn stream_plan(max_size: u64, max_shards: usize)(
        sizes in prop::collection::vec(0..max_size, 1..max_shards), batch_size in 1usize..5, drop_last: bool,
    ) -> StreamPlan {
        StreamPlan { sizes, batch_size, drop_last }
    }
}

impl StreamPlan {
    fn build(&self, load: Load) -> DataLoader<Tensor<u64>> {
        let builder = DataLoader::stream(Shards::of(&self.sizes)).shards(self.sizes.len());
        load.set(builder.batch_size(self.batch_size).drop_last(self.drop_last)).build().unwrap()
    }

    /// Builds a loader of which the sample at `position` of a shard fails, if the shard has that many
    /// samples.
    fn build_faulty(
        &self,
        (shard, position): (u64, u64),
        fault: Fault,
        load: Load,
    ) -> DataLoader<Tensor<u64>> {
        let dataset = Uneven { sizes: self.sizes.clone(), at: Some(100 * shard + position), fault };
        let builder = DataLoader::stream(dataset).shards(self.sizes.len());
        load.set(builder.batch_size(self.batch_size).drop_last(self.drop_last)).build().unwrap()
    }
}

/// A batch sampler of which `build()` does not know the indices.
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

/// Returns the batches, with errors as their text.
fn record(batches: Iter<Tensor<u64>>) -> Vec<Result<Vec<u64>, String>> {
    let batches = batches.map(|batch| batch.map(|batch| batch.as_slice().to_vec()));
    batches.map(|batch| batch.map_err(|error| error.to_string())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // PyTorch: 81
    #[test]
    fn every_sample_comes_once(plan in plan(), epoch in 0u64..4) {
        let plan = Plan { share: None, ..plan };
        let loader = plan.build(IN_MAIN);
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
    fn an_epoch_resumed_several_times_equals_an_uninterrupted_one(
        plan in plan(), stops in prop::collection::vec(0usize..20, 1..4), epoch in 0u64..3,
    ) {
        let loader = plan.build(IN_MAIN);
        let expected = all(loader.epoch(epoch).unwrap());
        let mut seen = Vec::new();
        let mut batches = loader.epoch(epoch).unwrap();
        for stop in stops {
            seen.extend(batches.by_ref().take(stop).map(Result::unwrap));
            let state = saved(&batches);
            if state.epoch() > epoch {
                break;
            }
            prop_assert_eq!(state.batches(), seen.len() as u64);
            batches = plan.build(IN_MAIN).resume(&state).unwrap();
        }
        if seen.len() < expected.len() {
            seen.extend(batches.map(Result::unwrap));
        }
        prop_assert_eq!(seen, expected);
    }

    // PyTorch: F03, U20
    #[test]
    fn streams_give_each_sample_once_and_resume(plan in stream_plan(12, 5), stop in 0usize..12) {
        let whole = numbers(&all(plan.build(IN_MAIN).iter().unwrap()));
        let size = plan.batch_size as u64;
        let kept: u64 = plan.sizes.iter().map(|&len| if plan.drop_last { len / size * size } else { len }).sum();
        prop_assert_eq!(tally(&whole).len() as u64, kept);
        prop_assert_eq!(whole.concat().len() as u64, kept);
        let mut batches = plan.build(IN_MAIN).iter().unwrap();
        let first: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let rest = plan.build(IN_MAIN).resume(&saved(&batches)).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!([numbers(&first), numbers(&all(rest))].concat(), whole);
        } else {
            prop_assert_eq!(numbers(&first), whole, "the state is in the next epoch only after the last batch");
        }
    }

    // PyTorch: S06
    #[test]
    fn shuffle_sampler_and_batch_sampler_give_the_same_order(
        samples in 1usize..80, size in 1usize..12, seed: u64, epoch in 0u64..5,
    ) {
        let builder = || DataLoader::builder(Count(samples)).seed(seed);
        let random = RandomSampler::new(samples);
        let [shuffled, sampled, batched] = [
            builder().shuffle(true).batch_size(size),
            builder().sampler(random).batch_size(size),
            builder().batch_sampler(FixedBatches::new(random, size, false)),
        ].map(|builder| all(builder.build().unwrap().epoch(epoch).unwrap()));
        prop_assert_eq!(&sampled, &shuffled);
        prop_assert_eq!(&batched, &shuffled);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // PyTorch: 252
    #[test]
    fn errors_of_a_stream_come_once_resumed_or_not(
        plan in stream_plan(9, 4), ragged: bool, at in (0u64..4, 0u64..9), stop in 0usize..12,
    ) {
        let fault = if ragged { Fault::Ragged } else { Fault::Error };
        let build = || plan.build_faulty(at, fault, IN_MAIN);
        let whole = record(build().iter().unwrap());
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(stop).for_each(drop);
        let rest = build().resume(&saved(&batches)).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&record(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }

    /// Indices 20 to 23 are out of range, and sample 7 fails.
    // PyTorch: P-46
    #[test]
    fn errors_of_a_sampler_and_a_dataset_come_once_resumed_or_not(
        batches in prop::collection::vec(prop::collection::vec(0usize..24, 0..4), 1..12), stop in 0usize..14,
    ) {
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
        let rest = build().resume(&saved(&begun)).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&record(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }
}

// These start worker processes.
proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    // PyTorch: R10, U18
    #[test]
    fn workers_change_no_batch_and_a_resumed_epoch_loses_none(
        plan in plan(), before in load(), after in load(), stop in 0usize..16,
    ) {
        let _watchdog = Watchdog::start();
        let first_index = |batch: &(Tensor<u64>, Tensor<f32>, Vec<String>)| batch.0.as_slice().to_vec();
        let reference = plan.build(IN_MAIN);
        let mut expected = all(reference.iter().unwrap());
        let mut next = all(reference.iter().unwrap());
        let loader = plan.build(before);
        let mut batches = loader.iter().unwrap();
        let mut seen: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let state = saved(&batches);
        drop(batches);
        let resumed = plan.build(after);
        let rest = resumed.resume(&state).unwrap();
        if rest.epoch() == 0 {
            let left = expected.len() - seen.len();
            prop_assert_eq!(rest.size_hint(), (left, Some(left)));
            seen.extend(all(rest));
        }
        let mut following = all(plan.build(after).epoch(1).unwrap());
        if !(before.in_order && after.in_order) {
            seen.sort_by_key(first_index);
            expected.sort_by_key(first_index);
        }
        if !after.in_order {
            following.sort_by_key(first_index);
            next.sort_by_key(first_index);
        }
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(following, next);
    }

    // PyTorch: T09
    #[test]
    fn workers_change_no_batch_of_a_stream_and_a_resumed_epoch_loses_none(
        plan in stream_plan(12, 5), before in load(), after in load(), stop in 0usize..12,
    ) {
        let _watchdog = Watchdog::start();
        let mut expected = numbers(&all(plan.build(IN_MAIN).iter().unwrap()));
        let loader = plan.build(before);
        let mut batches = loader.iter().unwrap();
        let mut seen = numbers(&batches.by_ref().take(stop).map(Result::unwrap).collect::<Vec<_>>());
        let state = saved(&batches);
        drop(batches);
        let rest = plan.build(after).resume(&state).unwrap();
        if rest.epoch() == 0 {
            seen.extend(numbers(&all(rest)));
        }
        let again = numbers(&all(loader.epoch(3).unwrap()));
        prop_assert_eq!(tally(&again), tally(&expected), "another epoch of the interrupted loader");
        if !(before.in_order && after.in_order) {
            seen.sort();
            expected.sort();
        }
        prop_assert_eq!(seen, expected);
    }

    // PyTorch: 252
    #[test]
    fn errors_of_a_stream_come_once_with_any_workers(
        plan in stream_plan(9, 5), fault in prop::sample::select(vec![Fault::Error, Fault::Ragged, Fault::Panic]),
        at in (0u64..4, 0u64..9), before in load(), after in load(), stop in 0usize..12,
    ) {
        let _watchdog = Watchdog::start();
        let build = |load: Load| plan.build_faulty(at, fault, Load { in_order: true, ..load });
        // The text of an error is not compared, because it contains the worker.
        let kinds = |batches: Iter<Tensor<u64>>| -> Vec<Result<Vec<u64>, &'static str>> {
            batches.map(|batch| batch.map(|batch| batch.as_slice().to_vec()).map_err(|error| error.kind())).collect()
        };
        let whole = kinds(build(IN_MAIN).iter().unwrap());
        let mut batches = build(before).iter().unwrap();
        batches.by_ref().take(stop).for_each(drop);
        let state = saved(&batches);
        prop_assert_eq!(&kinds(batches)[..], &whole[stop.min(whole.len())..]);
        let rest = build(after).resume(&state).unwrap();
        if rest.epoch() == 0 {
            prop_assert_eq!(&kinds(rest)[..], &whole[stop..]);
        } else {
            prop_assert!(stop >= whole.len());
        }
    }
}
