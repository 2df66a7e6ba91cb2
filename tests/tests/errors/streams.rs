//! Errors and panics of iterable datasets, and samples of theirs that are skipped.

use std::collections::BTreeSet;

use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Uneven},
};

/// Sample 5 of the first shard fails. An error or a sample of another shape loses its batch, and a panic ends
/// the shard.
#[test]
fn a_failure_loses_its_batch_or_the_rest_of_its_shard() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for (fault, lost) in [(Fault::Error, 4..6), (Fault::Ragged, 4..8), (Fault::Panic, 4..10)] {
            let dataset = Uneven { sizes: vec![10, 10], at: Some(5), fault };
            let builder = DataLoader::stream(dataset).shards(2).batch_size(4).num_workers(workers);
            let mut batches = builder.build().unwrap().iter().unwrap();
            let (mut left, mut errors) = (BTreeSet::new(), Vec::new());
            while let Some(batch) = batches.next() {
                let info = batches.last_batch().unwrap();
                match batch {
                    Ok(batch) => left.extend(batch.as_slice().to_vec()),
                    Err(error) => {
                        assert_eq!((info.number, info.shard), (2, Some(0)));
                        errors.push(error);
                    }
                }
            }
            let [
                error @ (Error::DatasetFailed { index, shard, batch, failure, .. }
                | Error::CollateFailed { index, shard, batch, failure, .. }),
            ] = &errors[..]
            else {
                panic!("{errors:?}")
            };
            assert_eq!((*index, *shard, *batch), (Some(5), Some(0), 2), "{error:?}");
            assert!(error.to_string().contains(" on batch 2, sample 5 of shard 0"), "{error}");
            assert_eq!(failure.panicked, matches!(fault, Fault::Panic));
            let expected = (0..10).filter(|number| !lost.contains(number)).chain(100..110);
            assert!(left.into_iter().eq(expected), "{workers} workers, {fault:?}");
        }
    }
}

/// The bad sample is in the middle of the first shard, or the last one of the second shard.
#[test]
fn a_stream_goes_on_after_a_skipped_sample() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        for at in [10, 119] {
            let dataset = Uneven { sizes: vec![30, 20], at: Some(at), fault: Fault::Error };
            let builder = DataLoader::stream(dataset).shards(2).batch_size(4).num_workers(workers);
            let loader = builder.on_bad_sample(OnBadSample::Skip).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let mut seen: Vec<u64> = Vec::new();
            while let Some(batch) = batches.next() {
                let batch = batch.unwrap();
                assert_eq!(batches.last_batch().unwrap().samples, batch.as_slice().len());
                seen.extend_from_slice(batch.as_slice());
            }
            seen.sort_unstable();
            let expected = (0..30).chain(100..120).filter(|&number| number != at);
            assert!(seen.into_iter().eq(expected), "{workers} workers");
            let bad = batches.report().bad_samples;
            let (index, shard) = (at as usize % 100, at as usize / 100);
            assert_eq!((bad.len(), bad[0].index, bad[0].shard), (1, index, Some(shard)));
        }
    }
}
