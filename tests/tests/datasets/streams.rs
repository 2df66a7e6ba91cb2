//! Iterable datasets: shards, their ends, their errors.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use loader_core::{BatchInfo, Error, InterleaveDataset, Iter, Warning, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Fault, Uneven},
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Batches and what is known of them.
fn collect<B: Batch>(mut batches: Iter<B>) -> Vec<(BatchInfo, Result<B, Error>)> {
    let mut all = Vec::new();
    while let Some(batch) = batches.next() {
        all.push((batches.last_batch().expect("an error of no batch").clone(), batch));
    }
    assert!(batches.next().is_none(), "the end stays the end");
    all
}

fn uneven(sizes: &[u64]) -> Uneven {
    Uneven { sizes: sizes.to_vec(), at: None, fault: Fault::Error }
}

/// The samples, batch by batch.
fn samples(dataset: Uneven, workers: usize, batch_size: usize, drop_last: bool) -> Vec<Vec<u64>> {
    let shards = dataset.sizes.len();
    let builder = DataLoader::stream(dataset).shards(shards).batch_size(batch_size).drop_last(drop_last);
    let loader = builder.num_workers(workers).build().unwrap();
    let batches = collect(loader.iter().unwrap());
    for (number, (info, _)) in batches.iter().enumerate() {
        assert_eq!(info.number, number as u64, "numbers have no gaps");
        assert_eq!(info.worker, (workers > 0).then(|| info.shard.unwrap() % workers));
    }
    batches
        .into_iter()
        .map(|(info, batch)| {
            let batch = batch.unwrap();
            assert_eq!(info.samples, batch.len());
            batch.as_slice().to_vec()
        })
        .collect()
}

// PyTorch: F03, 3.10d
#[test]
fn a_batch_of_each_shard_in_turn_until_it_ends() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 3] {
        let batches = samples(uneven(&[0, 4, 20]), workers, 7, false);
        let third = |range: std::ops::Range<u64>| range.map(|number| 200 + number).collect::<Vec<_>>();
        assert_eq!(batches, [vec![100, 101, 102, 103], third(0..7), third(7..14), third(14..20)]);
        assert_eq!(samples(uneven(&[0, 4, 20]), workers, 7, true), [third(0..7), third(7..14)]);
    }
}

#[test]
fn many_shards_on_few_workers_keep_their_order() {
    let _watchdog = Watchdog::start();
    let sizes = [5, 0, 1, 9, 30, 2, 2, 11];
    let expected = samples(uneven(&sizes), 0, 2, false);
    assert_eq!(expected.concat().len(), 60);
    for workers in [1, 2, 3, 7, 8, 11] {
        assert_eq!(samples(uneven(&sizes), workers, 2, false), expected, "{workers} workers");
    }
}

// PyTorch: D03
#[test]
fn by_default_there_are_as_many_shards_as_workers() {
    let _watchdog = Watchdog::start();
    for (workers, first) in [(0, [0, 1, 2]), (2, [0, 2, 4]), (3, [0, 3, 6])] {
        let loader = DataLoader::stream(Counting { count: 20 }).batch_size(3).num_workers(workers).build();
        let (numbers, _) = loader.unwrap().iter().unwrap().next().unwrap().unwrap();
        assert_eq!(numbers.as_slice(), first);
    }
}

// PyTorch: U12
#[test]
fn an_epoch_has_its_own_noise_whatever_the_workers() {
    let _watchdog = Watchdog::start();
    let epochs = |workers: usize| {
        let builder = DataLoader::stream(Counting { count: 100 }.shuffle_buffer(8)).shards(4).batch_size(8);
        let loader = builder.seed(3).num_workers(workers).build().unwrap();
        let epoch = |_| {
            let batches = loader.iter().unwrap().map(|batch| batch.unwrap());
            batches
                .flat_map(|(numbers, noise)| {
                    numbers.as_slice().iter().copied().zip(noise.as_slice().to_vec()).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        [0, 1].map(epoch)
    };
    let expected = epochs(0);
    assert_ne!(expected[0], expected[1]);
    for epoch in &expected {
        let mut numbers: Vec<u64> = epoch.iter().map(|&(number, _)| number).collect();
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..100));
    }
    for workers in [1, 3] {
        assert_eq!(epochs(workers), expected, "{workers} workers");
    }
}

#[test]
fn adaptors_compose() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let dataset = Counting { count: 6 }.chain(Counting { count: 4 }).map(|(number, _), cx| {
            anyhow::ensure!(cx.shard().is_some());
            Ok((number * 10, cx.index() as u64))
        });
        let loader =
            DataLoader::stream(dataset).shards(2).batch_size(10).num_workers(workers).build().unwrap();
        assert_eq!((loader.samples(), loader.len()), (Some(10), Some(1)));
        let batches: Vec<_> = loader.iter().unwrap().map(|batch| batch.unwrap()).collect();
        let numbers: Vec<_> = batches.iter().map(|(numbers, _)| numbers.as_slice()).collect();
        assert_eq!(numbers, [[0, 20, 40, 0, 20], [10, 30, 50, 10, 30]]);
        assert_eq!(batches[1].1.as_slice(), [0, 1, 2, 3, 4], "the place in the shard");
    }
}

#[test]
fn streams_are_filtered_cut_and_interleaved_with_any_number_of_workers() {
    let _watchdog = Watchdog::start();
    fn numbers<D: IterableDataset<Sample = (u64, u32)>>(
        dataset: D,
        shards: usize,
        workers: usize,
    ) -> Vec<Vec<u64>> {
        let builder = DataLoader::stream(dataset).shards(shards).batch_size(4).num_workers(workers);
        let batches =
            builder.build().unwrap().iter().unwrap().map(|batch| batch.unwrap().0.as_slice().to_vec());
        batches.collect()
    }
    for workers in [0, 2] {
        let count = |count| Counting { count };
        let odd = count(20).filter(|(number, _), cx| {
            anyhow::ensure!(
                *number == 2 * cx.index() as u64 + cx.shard().map_or(0, |shard| shard.index() as u64)
            );
            Ok(number % 4 > 1)
        });
        assert_eq!(numbers(odd, 2, workers), [vec![2, 6, 10, 14], vec![3, 7, 11, 15], vec![18], vec![19]]);
        // Ten samples of all shards together, four of the first shard and three of each other.
        assert_eq!(numbers(count(100).take(10), 3, workers).concat(), [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]);
        assert_eq!(numbers(count(7).take(10), 2, workers).concat().len(), 7);
        assert_eq!(count(7).take(10).len(), Some(7));
        let streams = || InterleaveDataset::new([count(3), count(1), count(4), count(2)], 2);
        assert_eq!(numbers(streams(), 1, workers).concat(), [0, 0, 1, 0, 2, 1, 0, 2, 1, 3]);
        assert_eq!(streams().len(), Some(10));
        let halves = numbers(streams(), 2, workers).concat();
        assert_eq!(halves.len(), 10, "each shard has its part of each stream");
    }
}

#[test]
fn an_error_loses_its_batch_and_the_stream_goes_on_behind_it() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for (fault, lost) in [(Fault::Error, &[4, 5][..]), (Fault::Ragged, &[4, 5, 6, 7])] {
            let dataset = Uneven { sizes: vec![10, 10], at: Some(5), fault };
            let loader =
                DataLoader::stream(dataset).shards(2).batch_size(4).num_workers(workers).build().unwrap();
            let mut left = Vec::new();
            for (info, batch) in collect(loader.iter().unwrap()) {
                match batch {
                    Ok(batch) => left.extend_from_slice(batch.as_slice()),
                    Err(error) => {
                        assert_eq!((info.number, info.shard), (2, Some(0)));
                        let text = error.to_string();
                        assert!(text.contains("on batch 2, sample 5"), "{text}");
                    }
                }
            }
            let all = (0..10).filter(|number| !lost.contains(number)).chain(100..110);
            left.sort_unstable();
            assert!(left.into_iter().eq(all), "{workers} workers, {fault:?}");
        }
    }
}

#[test]
fn a_panic_ends_its_shard_only() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let dataset = Uneven { sizes: vec![10, 10], at: Some(5), fault: Fault::Panic };
        let loader =
            DataLoader::stream(dataset).shards(2).batch_size(4).num_workers(workers).build().unwrap();
        let batches = collect(loader.iter().unwrap());
        let errors: Vec<_> = batches.iter().filter_map(|(_, batch)| batch.as_ref().err()).collect();
        let [Error::DatasetFailed { index: Some(5), failure, .. }] = errors[..] else { panic!("{errors:?}") };
        assert!(failure.panicked);
        let left: usize = batches.iter().filter_map(|(_, batch)| batch.as_ref().ok()).map(Tensor::len).sum();
        assert_eq!(left, 14);
    }
}

#[test]
fn a_shard_that_cannot_be_opened_says_so_once() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 3] {
        let dataset = Uneven { sizes: vec![3, 3, 3], at: Some(u64::MAX), fault: Fault::Error };
        let loader =
            DataLoader::stream(dataset).shards(3).batch_size(2).num_workers(workers).build().unwrap();
        let batches = collect(loader.iter().unwrap());
        let errors: Vec<_> = batches.iter().filter_map(|(_, batch)| batch.as_ref().err()).collect();
        let [error @ Error::OpenFailed { batch: 1, .. }] = errors[..] else { panic!("{errors:?}") };
        assert!(
            error.to_string().contains("opening shard 1: reading record 1: the disk is on fire"),
            "{error}"
        );
        assert_eq!(batches.len(), 5);
    }
}

#[derive(Serialize, Deserialize)]
struct Unopened;

impl IterableDataset for Unopened {
    type Sample = u64;

    fn iter(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        Ok(std::iter::repeat_with(|| Ok(1)))
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        anyhow::bail!("no such archive")
    }
}

#[test]
fn a_dataset_that_cannot_be_set_up_ends_the_epoch_with_an_error_of_each_process() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 2] {
        let loader = DataLoader::stream(Unopened).shards(4).num_workers(workers).build().unwrap();
        let batches = collect(loader.iter().unwrap());
        assert_eq!(batches.len(), workers.max(1));
        assert!(
            batches.iter().all(|(_, batch)| batch
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("no such archive"))
        );
    }
}

#[test]
fn out_of_order_nothing_is_lost() {
    let _watchdog = Watchdog::start();
    for (workers, shards) in [(2, 2), (2, 5), (3, 2)] {
        let dataset = Counting { count: 200 };
        let builder = DataLoader::stream(dataset).shards(shards).batch_size(3).in_order(false);
        let loader = builder.num_workers(workers).build().unwrap();
        let batches = loader.iter().unwrap().map(|batch| batch.unwrap());
        let mut numbers: Vec<u64> = batches.flat_map(|(numbers, _)| numbers.as_slice().to_vec()).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..200));
    }
}

// PyTorch: U20
#[test]
fn a_stream_that_is_longer_than_it_said_is_warned_of_once() {
    let _watchdog = Watchdog::start();
    /// Gives everything in every shard.
    #[derive(Serialize, Deserialize)]
    struct Unsplit;

    impl IterableDataset for Unsplit {
        type Sample = u64;

        fn iter(
            &self,
            _shard: Shard,
            _cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
            Ok((0..20).map(Ok))
        }

        fn len(&self) -> Option<usize> {
            Some(20)
        }
    }
    for workers in [0, 2] {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&warnings);
        let builder = DataLoader::stream(Unsplit).shards(2).batch_size(7).num_workers(workers);
        let loader =
            builder.on_warning(move |warning| noted.lock().unwrap().push(warning.clone())).build().unwrap();
        // 7, 7 and 6 of each shard.
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(2).count(), 2);
        assert!(warnings.lock().unwrap().is_empty());
        batches.for_each(|batch| drop(batch.unwrap()));
        assert_eq!(*warnings.lock().unwrap(), [Warning::LongerThanLen { announced: 20, loaded: 21 }]);
    }
}

// PyTorch: N18
#[test]
fn an_empty_stream_is_no_error() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = DataLoader::stream(Counting { count: 0 }).num_workers(workers).build().unwrap();
        assert!(loader.is_empty());
        assert_eq!(loader.iter().unwrap().count(), 0);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |options: &str| {
        let options = loader_core::config::Config::<toml::Table>::from_toml(options);
        let builder = DataLoader::stream(Counting { count: 1 }).options(options.unwrap().loader);
        builder.build().unwrap_err().to_string()
    };
    let text = refused("[dataset]\n[loader]\nshuffle = true\n");
    assert!(text.starts_with("shuffle: an iterable dataset has no indices to shuffle"), "{text}");
    let text = DataLoader::stream(Counting { count: 1 }).shards(0).build().unwrap_err().to_string();
    assert!(text.starts_with("shards: "), "{text}");
    let error = DataLoader::stream(Counting { count: 1 }).persistent_workers(true).build().unwrap_err();
    assert!(error.to_string().starts_with("persistent_workers: "), "{error}");
}

// PyTorch: U12
#[test]
fn no_two_functions_or_parts_draw_the_same_numbers() {
    let _watchdog = Watchdog::start();
    let draw = |(_, noise): (u64, u32), cx: &mut SampleContext| {
        let first: u32 = cx.rng().random();
        Ok(vec![noise, first])
    };
    let further = |mut numbers: Vec<u32>, cx: &mut SampleContext| {
        numbers.push(cx.rng().random());
        Ok(numbers)
    };
    let part = || Counting { count: 20 }.map(draw).map(further);
    let mut drawn = Vec::new();
    let loader = DataLoader::stream(part().chain(part())).batch_size(10).build().unwrap();
    loader.iter().unwrap().for_each(|batch| drawn.extend_from_slice(batch.unwrap().as_slice()));
    let distinct: BTreeSet<u32> = drawn.iter().copied().collect();
    assert_eq!((drawn.len(), distinct.len()), (120, 120));

    let mixed = || Counting { count: 20 }.shuffle_buffer(8);
    let loader = DataLoader::stream(mixed().chain(mixed())).batch_size(20).build().unwrap();
    let halves: Vec<Vec<u64>> =
        loader.iter().unwrap().map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
    assert_ne!(halves[0], halves[1]);
}
