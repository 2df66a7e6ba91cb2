//! Samples that end their worker or take too long. The loader finds out which sample it was.

use std::{process, time::Duration};

use loader_core::{BadSample, Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Faulty, Flaky, Many, ManyFault, put_tokens},
};

#[test]
fn a_sample_that_takes_too_long_fails_or_is_skipped_or_replaced() {
    let _watchdog = Watchdog::start();
    for workers in 1..=2 {
        let builder = || {
            let dataset = Faulty { count: 40, at: 9, fault: Fault::HangHard };
            let builder = DataLoader::builder(dataset).batch_size(4).num_workers(workers);
            builder.sample_timeout(Duration::from_millis(150))
        };
        let loader = builder().build().unwrap();
        let mut batches = loader.iter().unwrap();
        let outcomes: Vec<_> = batches.by_ref().collect();
        let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let [error @ Error::DatasetFailed { index: Some(9), batch: 2, .. }] = errors[..] else {
            panic!("{errors:?}")
        };
        assert!(error.to_string().contains("took longer than 150ms"), "{error}");
        assert_eq!((outcomes.len(), batches.report().restarts), (10, 1));
        for (on_bad, count) in [(OnBadSample::Skip, 39), (OnBadSample::Replace, 40)] {
            let loader = builder().on_bad_sample(on_bad).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let samples: usize = batches.by_ref().map(|batch| batch.unwrap().as_slice().len()).sum();
            let report = batches.report();
            assert_eq!((samples, report.bad_samples.len(), report.restarts), (count, 1, 1));
            assert!(report.bad_samples[0].reason.contains("took longer than 150ms"));
        }
    }
}

#[test]
fn a_sample_that_ended_two_workers_is_skipped() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    put_tokens(folder.path(), &[(21, 2)]);
    let dataset = Flaky { count: 40, fault: Fault::Abort, tokens: folder.path().to_owned() };
    let builder = DataLoader::builder(dataset).batch_size(4).num_workers(2);
    let loader = builder.on_bad_sample(OnBadSample::Skip).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let seen: Vec<u64> = batches.by_ref().flat_map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
    assert!(seen.into_iter().eq((0..40).filter(|&number| number != 21)));
    let bad = &batches.report().bad_samples[..];
    assert!(
        matches!(bad, [BadSample { index: 21, .. }]) && bad[0].reason.contains("has ended 2 workers"),
        "{bad:?}"
    );
}

/// `get_many` loads the batch with one call, which ends the process or takes too long because of sample 5.
#[test]
fn of_a_batch_that_is_loaded_at_once_only_the_deadly_sample_is_skipped() {
    let _watchdog = Watchdog::start();
    for fault in [Fault::Abort, Fault::Hang] {
        let dataset = Many { count: 40, fault: ManyFault::Sample(fault) };
        let builder =
            DataLoader::builder(dataset).batch_size(4).num_workers(2).on_bad_sample(OnBadSample::Skip);
        let builder = builder.sample_timeout(Duration::from_millis(200)).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        let seen: Vec<u64> =
            batches.by_ref().flat_map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
        assert!(seen.into_iter().eq((0..40).filter(|&number| number != 5)), "{fault:?}");
        let bad = batches.report().bad_samples;
        assert!(matches!(&bad[..], [BadSample { index: 5, .. }]), "{bad:?}");
    }
}

#[test]
fn a_batch_is_given_up_after_a_hundred_deaths() {
    let _watchdog = Watchdog::start();
    let dataset = Count(72).map(|number, _| match number {
        0..70 => process::exit(1),
        _ => Ok(number),
    });
    let builder = DataLoader::builder(dataset).batch_size(70).num_workers(1).on_bad_sample(OnBadSample::Skip);
    let loader = builder.max_bad_samples(1000).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::BatchGivenUp { deaths: 100, .. }), "{error:?}");
    assert_eq!(batches.next().unwrap().unwrap().as_slice(), [70, 71]);
}
