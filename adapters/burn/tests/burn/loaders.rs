//! Burn's `DataLoader` over worker processes: epochs, progress, parts and errors, as burn's strategies use it.

use std::{collections::HashSet, error::Error as StdError, ops::Range, sync::Arc, time::Duration};

use burn_core::{
    data::{
        dataloader::{DataLoader as BurnDataLoader, batcher::Batcher, split::split_dataloader},
        dataset::{Dataset as BurnDatasetTrait, DatasetError},
    },
    tensor::{Device, Int, Tensor as BurnTensor},
};
use loader::{collate::Batch, prelude::*};
use loader_burn::{BurnDataset, BurnLoader, Error, ToBurn};
use loader_conformance::watchdog::Watchdog;
use serde::{Deserialize, Serialize};

type Labels = BurnTensor<1, Int>;

/// Sample `n` is `n`; sample `bad` fails.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Numbers {
    pub(crate) len: usize,
    pub(crate) bad: Option<usize>,
}

impl Dataset for Numbers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        anyhow::ensure!(self.bad != Some(index), "sample {index} is damaged");
        Ok(index as i64)
    }
}

pub(crate) fn numbers(len: usize) -> Numbers {
    Numbers { len, bad: None }
}

fn shuffled(numbers: Numbers) -> BurnLoader<Tensor<i64>, Labels> {
    adapted(DataLoader::builder(numbers).batch_size(4).shuffle(true).num_workers(2).build().unwrap())
}

fn adapted(loader: DataLoader<Tensor<i64>>) -> BurnLoader<Tensor<i64>, Labels> {
    BurnLoader::new(loader, |batch, device| batch.to_burn::<1>(device))
}

fn splittable(len: usize) -> BurnLoader<Tensor<i64>, Labels> {
    let build = move |items: Range<usize>| {
        let part = Subset::new(numbers(len), items)?;
        anyhow::Ok(DataLoader::builder(part).batch_size(4).shuffle(true).num_workers(1).build()?)
    };
    BurnLoader::splittable(len, build, |batch, device| batch.to_burn::<1>(device)).unwrap()
}

/// Loads an epoch.
pub(crate) fn epoch(loader: &dyn BurnDataLoader<Labels>) -> Vec<i64> {
    loader.iter().flat_map(|batch| batch.unwrap().into_data().try_into_vec::<i64>().unwrap()).collect()
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn each_iter_is_the_next_epoch_also_on_another_device() {
    let _watchdog = Watchdog::start();
    let loader = shuffled(numbers(10));
    let on_device = loader.to_device(&Device::flex());
    let epochs = [epoch(&loader), epoch(&*on_device), epoch(&loader)];
    for numbers in &epochs {
        assert_eq!(sorted(numbers.clone()), (0..10).collect::<Vec<_>>());
    }
    assert_eq!(epochs.iter().collect::<HashSet<_>>().len(), 3, "{epochs:?}");
    assert_eq!(epoch(&shuffled(numbers(10)).first_epoch(2)), epochs[2]);
}

/// Items processed, and whether the epoch is completed, before the first batch and after each batch or error.
pub(crate) fn progress<B: Batch>(loader: &BurnLoader<B, Labels>) -> Vec<(usize, bool)> {
    let mut batches = loader.iter();
    let mut seen = vec![(batches.progress().items_processed, batches.progress().is_completed())];
    while batches.next().is_some() {
        seen.push((batches.progress().items_processed, batches.progress().is_completed()));
    }
    seen
}

#[test]
fn progress_counts_items_and_the_last_batch_completes_it() {
    let _watchdog = Watchdog::start();
    let whole = shuffled(numbers(10));
    assert_eq!((whole.num_items(), whole.iter().progress().items_total), (10, 10));
    assert_eq!(progress(&whole), [(0, false), (4, false), (8, false), (10, true)]);
    assert_eq!(progress(&shuffled(Numbers { len: 10, bad: Some(3) })).last(), Some(&(10, true)));
    let builder = || DataLoader::builder(numbers(10)).batch_size(4);
    let full_batches = adapted(builder().drop_last(true).build().unwrap());
    assert_eq!(progress(&full_batches), [(0, false), (4, false), (10, true)]);
    // An order that has each item twice.
    let twice: Vec<usize> = (0..10).chain(0..10).collect();
    let steps = progress(&adapted(builder().batch_size(5).sampler(twice).build().unwrap()));
    let completed: Vec<bool> = steps.iter().map(|(_, is_completed)| *is_completed).collect();
    assert_eq!(completed, [false, false, false, false, true], "{steps:?}");
    assert_eq!(steps.last().unwrap().0, 20);
}

#[test]
fn batches_that_are_left_out_do_not_hinder_the_completion() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let loader = DataLoader::builder(Numbers { len: 5, bad: Some(2) })
            .batch_size(1)
            .num_workers(workers)
            .on_bad_sample(OnBadSample::Skip)
            .build()
            .unwrap();
        let loader = adapted(loader);
        assert_eq!(progress(&loader), [(0, false), (1, false), (2, false), (3, false), (5, true)]);
    }
}

#[test]
fn an_error_without_a_batch_counts_for_nothing() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Slow)
        .batch_size(1)
        .num_workers(1)
        .timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let loader = adapted(loader);
    let mut batches = loader.iter();
    let mut timeouts = 0;
    while let Some(batch) = batches.next() {
        let Err(error) = batch else { continue };
        assert!(matches!(source(&error), loader::Error::TimedOut { .. }), "{error:?}");
        assert!(!batches.progress().is_completed());
        timeouts += 1;
    }
    assert!(timeouts > 0);
    assert!(batches.progress().is_completed());
}

/// Two samples; the last one takes longer than the timeout.
#[derive(Serialize, Deserialize)]
struct Slow;

impl Dataset for Slow {
    type Sample = i64;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        if index == 1 {
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(1)
    }
}

/// Counts up without end.
#[derive(Serialize, Deserialize)]
struct Endless;

impl IterableDataset for Endless {
    type Sample = i64;

    fn iter(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<i64>>> {
        Ok((0..).map(Ok))
    }
}

#[test]
fn a_stream_completes_only_if_the_number_of_batches_is_known() {
    let loader = adapted(DataLoader::stream(Endless).batch_size(3).build().unwrap());
    let mut batches = loader.iter();
    assert_eq!((loader.num_items(), batches.progress().is_completed()), (0, false));
    for number in 1..4 {
        batches.next().unwrap().unwrap();
        assert_eq!(
            (batches.progress().items_processed, batches.progress().is_completed()),
            (3 * number, false)
        );
    }
    let steps = adapted(DataLoader::stream(Endless).batch_size(3).steps_per_epoch(2).build().unwrap());
    let completed: Vec<bool> = progress(&steps).iter().map(|(_, is_completed)| *is_completed).collect();
    assert_eq!(completed, [false, false, true]);
}

#[test]
fn burn_splits_a_loader_into_disjoint_parts_in_the_same_order_each_run() {
    let _watchdog = Watchdog::start();
    let split = || {
        let loader: Arc<dyn BurnDataLoader<Labels>> = Arc::new(splittable(11));
        let parts = split_dataloader(loader, &[Device::flex(), Device::flex(), Device::flex()]);
        assert_eq!(parts.iter().map(|part| part.num_items()).collect::<Vec<_>>(), [3, 3, 5]);
        // As the strategies do: the parts are loaded at the same time, each on its own thread.
        let threads: Vec<_> = parts
            .into_iter()
            .map(|part| std::thread::spawn(move || [epoch(&*part), epoch(&*part)]))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    };
    let parts = split();
    for epoch in [0, 1] {
        let parts: Vec<_> = parts.iter().map(|epochs| sorted(epochs[epoch].clone())).collect();
        assert_eq!(parts, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8, 9, 10]]);
    }
    assert!(parts.iter().any(|epochs| epochs[0] != epochs[1]), "no part is shuffled: {parts:?}");
    assert_eq!(split(), parts);
}

#[test]
fn a_part_has_parts_and_may_be_empty() {
    let loader = splittable(10);
    assert_eq!(sorted(epoch(&*loader.slice(2, 8).slice(1, 3))), [3, 4]);
    let empty = loader.slice(4, 4);
    assert_eq!((empty.num_items(), empty.iter().count()), (0, 0));
    // A part goes on with the epoch that the whole would start next.
    let (later, at_once) = (splittable(10), splittable(10).first_epoch(1));
    epoch(&later);
    assert_eq!(epoch(&*later.slice(0, 10)), epoch(&at_once));
}

/// Returns the error of the first item.
fn error_of(loader: &dyn BurnDataLoader<Labels>) -> DatasetError {
    loader.iter().next().unwrap().unwrap_err()
}

/// Returns the loader's or the adapter's error at the bottom of burn's.
pub(crate) fn source<E: StdError + 'static>(error: &DatasetError) -> &E {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return found;
        }
        if let Some(shared) = error.downcast_ref::<Arc<Error>>() {
            source = Some(&**shared);
            continue;
        }
        source = error.source();
    }
    panic!("{error:?}")
}

#[test]
fn loaders_that_cannot_be_split_return_an_error_that_says_so() {
    let whole = shuffled(numbers(10)).slice(0, 5);
    assert_eq!(whole.num_items(), 0);
    for _ in 0..2 {
        assert!(matches!(source(&error_of(&*whole)), Error::NotSplittable));
    }
    let outside = splittable(10).slice(5, 11);
    assert!(matches!(source(&error_of(&*outside)), Error::OutOfRange { len: 10, .. }));

    // A function that ignores the range would train each device on all items.
    let ignores = |_| DataLoader::builder(numbers(10)).build();
    let ignores = BurnLoader::splittable(10, ignores, |batch, device| batch.to_burn::<1>(device)).unwrap();
    let part = ignores.slice(0, 5);
    let error = error_of(&*part);
    assert!(matches!(source(&error), Error::WrongItems { found: Some(10), .. }));
    let expected = "`build` was called for the items 0..5, but its loader has 10 samples (expected 5)";
    assert!(error.to_string().contains(expected), "{error}");
    let wrong = |_| DataLoader::builder(numbers(10)).batch_size(0).build();
    let wrong = BurnLoader::splittable(10, wrong, |batch: Tensor<i64>, device| batch.to_burn::<1>(device));
    assert!(matches!(wrong, Err(Error::Build { items, .. }) if items == (0..10)));
}

#[test]
fn errors_of_batches_and_of_conversions_keep_their_types() {
    let _watchdog = Watchdog::start();
    let loader = shuffled(Numbers { len: 10, bad: Some(3) });
    let (failed, loaded): (Vec<_>, Vec<_>) = loader.iter().partition(Result::is_err);
    assert_eq!((failed.len(), loaded.len()), (1, 2), "the iterator goes on");
    let error = failed.into_iter().next().unwrap().unwrap_err();
    assert!(matches!(source(&error), loader::Error::DatasetFailed { .. }), "{error:?}");
    assert!(error.to_string().contains("sample 3 is damaged"), "{error}");

    let loader = DataLoader::builder(numbers(2)).build().unwrap();
    let loader = BurnLoader::new(loader, |batch: Tensor<i64>, device| batch.to_burn::<3>(device));
    let error = loader.iter().next().unwrap().unwrap_err();
    assert!(matches!(source(&error), Error::Convert { number: 0, .. }));
    assert!(error.to_string().contains("not a burn tensor of rank 3"), "{error}");
}

/// A dataset and a batcher as users of burn have written them.
#[derive(Serialize, Deserialize)]
struct Words(Vec<String>);

impl BurnDatasetTrait<String> for Words {
    fn get(&self, index: usize) -> Result<String, DatasetError> {
        Ok(self.0[index].clone())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

struct Lengths;

impl Batcher<String, Labels> for Lengths {
    fn batch(&self, items: Vec<String>, device: &Device) -> Labels {
        let lengths: Vec<i64> = items.iter().map(|word| word.len() as i64).collect();
        BurnTensor::from_data(lengths.as_slice(), device)
    }
}

#[test]
fn a_dataset_and_a_batcher_of_burn_are_used_as_they_are() {
    let _watchdog = Watchdog::start();
    let words = BurnDataset::new(Words(["a", "bb", "ccc"].map(str::to_owned).to_vec()));
    let loader = DataLoader::builder(words).batch_size(2).num_workers(1).build().unwrap();
    let loader = BurnLoader::batched(loader, Lengths).device(&Device::flex());
    let lengths: Vec<i64> = loader
        .iter()
        .flat_map(|batch| batch.unwrap().into_data().try_into_vec_as::<i64>().unwrap())
        .collect();
    assert_eq!(lengths, [1, 2, 3]);
}
