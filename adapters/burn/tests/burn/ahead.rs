//! `BurnLoader` with a thread that converts batches ahead, and what it tells of its epochs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use burn_core::{
    data::dataloader::DataLoader as _,
    tensor::{Device, Int, Tensor as BurnTensor},
};
use loader::prelude::*;
use loader_burn::{BurnLoader, Error, ToBurn};
use loader_conformance::watchdog::Watchdog;

use crate::loaders::{Numbers, epoch, numbers, progress, source};

type Labels = BurnTensor<1, Int>;

fn loader(numbers: Numbers) -> DataLoader<Tensor<i64>> {
    DataLoader::builder(numbers).batch_size(4).shuffle(true).num_workers(2).build().unwrap()
}

fn adapted(numbers: Numbers, ahead: usize) -> BurnLoader<Tensor<i64>, Labels> {
    BurnLoader::new(loader(numbers), |batch, device| batch.to_burn::<1>(device)).ahead(ahead)
}

#[test]
fn a_thread_gives_the_same_batches_errors_and_progress() {
    let _watchdog = Watchdog::start();
    for number in 0..3 {
        let epochs = [0, 1, 3].map(|ahead| epoch(&adapted(numbers(30), ahead).first_epoch(number)));
        assert_eq!((epochs[0].len(), &epochs[1], &epochs[2]), (30, &epochs[0], &epochs[0]));
    }
    let damaged = || Numbers { len: 30, bad: Some(3) };
    assert_eq!(progress(&adapted(damaged(), 2)), progress(&adapted(damaged(), 0)));
    let results = |ahead| -> Vec<_> {
        let loader = adapted(damaged(), ahead);
        let results = loader.iter().map(|batch| match batch {
            Ok(labels) => labels.into_data().try_into_vec::<i64>().unwrap(),
            Err(error) => {
                assert!(matches!(source(&error), loader::Error::DatasetFailed { .. }), "{error:?}");
                Vec::new()
            }
        });
        results.collect()
    };
    assert_eq!(results(2), results(0));

    let wrong_rank = |batch: Tensor<i64>, device: &Device| batch.to_burn::<3>(device);
    let wrong_rank = BurnLoader::new(loader(numbers(8)), wrong_rank).ahead(1);
    let errors: Vec<_> = wrong_rank.iter().map(Result::unwrap_err).collect();
    for (expected, error) in errors.iter().enumerate() {
        assert!(matches!(source(error), Error::Convert { number, .. } if *number == expected as u64));
    }
    assert_eq!(errors.len(), 2);
}

#[test]
fn a_thread_converts_batches_before_they_are_asked_for() {
    let _watchdog = Watchdog::start();
    let converted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&converted);
    let convert = move |batch: Tensor<i64>, device: &Device| {
        count.fetch_add(1, Ordering::Relaxed); // only the total matters
        batch.to_burn::<1>(device)
    };
    let loader = BurnLoader::new(loader(numbers(40)), convert).ahead(2);
    let mut batches = loader.iter();
    batches.next().unwrap().unwrap();
    // The batch that was returned, two that wait, and one that the thread holds.
    let deadline = Instant::now() + Duration::from_secs(20);
    while converted.load(Ordering::Relaxed) < 4 {
        assert!(Instant::now() < deadline, "{converted:?} batches are converted ahead");
        thread::sleep(Duration::from_millis(5));
    }
    // Dropping it in mid-epoch ends the thread, and the next epoch is whole.
    drop(batches);
    assert_eq!(converted.load(Ordering::Relaxed), 4);
    assert_eq!((loader.last_report(), epoch(&loader).len()), (None, 40));
}

#[test]
fn a_panic_of_the_conversion_is_an_error_of_the_thread() {
    let _watchdog = Watchdog::start();
    let panics = |_: Tensor<i64>, _: &Device| -> Result<Labels, Error> { panic!("the batcher is wrong") };
    let loader = BurnLoader::new(loader(numbers(4)), panics).ahead(1);
    let error = loader.iter().next().unwrap().unwrap_err();
    assert!(matches!(source(&error), loader::Error::ConversionFailed { batch: 0, .. }), "{error:?}");
    assert!(error.to_string().contains("the batcher is wrong"), "{error}");
}

#[test]
fn the_report_and_the_loader_of_the_last_epoch_are_there() {
    let _watchdog = Watchdog::start();
    for ahead in [0, 2] {
        let loader = adapted(numbers(10), ahead);
        assert!(loader.last_report().is_none());
        epoch(&loader);
        // As burn's learner does.
        epoch(&*loader.to_device(&Device::flex()));
        let report = loader.last_report().unwrap();
        assert_eq!((report.epoch, report.batches, report.samples), (1, 3, 10));
        let stats = loader.loader().unwrap().stats();
        assert_eq!((stats.epochs, stats.samples), (2, 20));
    }
}

#[test]
fn a_rank_counts_the_items_of_its_share() {
    let _watchdog = Watchdog::start();
    let mut all = 0;
    for rank in 0..3 {
        let builder = DataLoader::builder(numbers(10)).batch_size(2).distributed(rank, 3);
        let loader = BurnLoader::new(builder.build().unwrap(), |batch: Tensor<i64>, device| {
            batch.to_burn::<1>(device)
        });
        assert_eq!(loader.num_items(), 4);
        assert_eq!(progress(&loader), [(0, false), (2, false), (4, true)]);
        all += loader.num_items();
    }
    assert_eq!(all, 12, "two samples are repeated");
}
