//! Errors and panics of datasets and collate functions. Each loses its batch only, and names the sample.

use std::{fmt, thread, time::Duration};

use anyhow::ensure;
use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Noise},
    gate::{Gate, Gated},
    ways::WAYS,
};
use serde::{Deserialize, Serialize};

// PyTorch: P-41, P-42, P-45, C13, X08, X25, U22
#[test]
fn a_sample_that_fails_loses_its_batch_only() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for fault in [Fault::Error, Fault::Panic, Fault::Ragged] {
            let dataset = Faulty { count: 30, at: 7, fault };
            let loader = DataLoader::builder(dataset).batch_size(3).num_workers(workers).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let mut errors = Vec::new();
            for number in 0..10 {
                match batches.next().unwrap() {
                    Ok(batch) => assert_eq!(batch.shape(), [3, 1]),
                    Err(error) => errors.push(error),
                }
                assert_eq!(
                    batches.last_batch().unwrap().number,
                    number,
                    "the error takes the place of its batch"
                );
            }
            assert!(batches.next().is_none());
            assert_eq!(batches.report().errors, 1);
            let [error] = &errors[..] else { panic!("{errors:?}") };
            assert!(!error.ends_iteration());
            let (Error::DatasetFailed { index, shard: None, batch, worker, failure }
            | Error::CollateFailed { index, shard: None, batch, worker, failure }) = error
            else {
                panic!("{error:?}")
            };
            assert_eq!((*index, *batch, worker.is_some()), (Some(7), 2, workers > 0));
            assert_eq!(failure.panicked, matches!(fault, Fault::Panic));
            assert_eq!(matches!(error, Error::CollateFailed { .. }), matches!(fault, Fault::Ragged));
            let text = error.to_string();
            match fault {
                Fault::Error => {
                    assert_eq!(failure.chain, ["reading record 7", "the disk is on fire"]);
                    assert!(text.starts_with("the dataset failed on batch 2, sample 7"), "{text}");
                    assert!(text.ends_with(": reading record 7: the disk is on fire"), "{text}");
                }
                Fault::Panic => {
                    assert_eq!(failure.chain, ["sample 7 panics"]);
                    if workers > 0 {
                        let backtrace = failure.backtrace.as_deref().unwrap();
                        assert!(backtrace.contains("fault.rs"), "{backtrace}");
                        assert!(
                            text.contains(": sample 7 panics (at ") && text.contains("fault.rs:"),
                            "{text}"
                        );
                    }
                }
                _ => assert!(text.contains("shape [2] differs from the batch's first sample, [1]"), "{text}"),
            }
        }
    }
}

/// An error type of the user.
#[derive(Debug)]
struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file is unreadable")
    }
}

impl std::error::Error for Unreadable {}

#[derive(Serialize, Deserialize)]
struct UnreadableFiles(usize);

impl Dataset for UnreadableFiles {
    type Sample = u8;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u8> {
        Err(Unreadable.into())
    }
}

// PyTorch: 77, 78, F05, P-46
#[test]
fn each_batch_has_an_error_of_its_own() {
    let _watchdog = Watchdog::start();
    for (samples, batches) in [(100, 50), (41, 21)] {
        for way in WAYS {
            let builder = DataLoader::builder(UnreadableFiles(samples)).batch_size(2);
            let loader = way.apply(builder).build().unwrap();
            for _ in 0..2 {
                let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
                assert_eq!(errors.len(), batches);
                for (number, error) in errors.iter().enumerate() {
                    let Error::DatasetFailed { index: Some(index), batch, worker, failure, .. } = error
                    else {
                        panic!("{error:?}")
                    };
                    assert_eq!((*batch, *index), (number as u64, 2 * number));
                    assert_eq!(worker.is_some(), way.workers > 0);
                    assert_eq!(failure.chain, ["the file is unreadable"]);
                }
            }
        }
    }
}

/// The error of batch 1 arrives before batch 0, and main returns it after batch 0.
// PyTorch: P-44
#[test]
fn errors_keep_the_order_of_batches() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = Gated { count: 4, slow: 0, gate: gate.path() }.map(|(number, worker), _| {
        ensure!(number != 1, "sample 1 fails");
        Ok((number, worker))
    });
    let loader = DataLoader::builder(dataset).num_workers(2).prefetch_factor(1).build().unwrap();
    let mut batches = loader.iter().unwrap();
    thread::sleep(Duration::from_millis(50));
    gate.open();
    let outcomes: Vec<Option<u64>> =
        batches.by_ref().map(|batch| batch.ok().map(|(number, _)| number.as_slice()[0])).collect();
    assert_eq!(outcomes, [Some(0), None, Some(2), Some(3)]);
}

#[test]
fn errors_and_panics_of_a_collate_function_are_reported() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let builder = || DataLoader::builder(Noise { count: 4 }).batch_size(2).num_workers(workers);
        let failing =
            builder().collate(|samples| -> anyhow::Result<u8> { anyhow::bail!("{} fail", samples.len()) });
        let panicking =
            builder().collate(|samples| -> anyhow::Result<u8> { panic!("{} panic", samples.len()) });
        for (loader, panics) in [(failing.build().unwrap(), false), (panicking.build().unwrap(), true)] {
            let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
            assert_eq!(errors.len(), 2);
            for error in errors {
                let Error::CollateFailed { index: None, failure, .. } = &error else { panic!("{error:?}") };
                assert_eq!(failure.panicked, panics);
                assert_eq!(failure.chain, [if panics { "2 panic" } else { "2 fail" }]);
                assert_eq!(error.to_string().contains("collation panicked"), panics, "{error}");
            }
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Unencodable(#[serde(serialize_with = "refuse")] u8);

fn refuse<S: serde::Serializer>(_value: &u8, _serializer: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("it has no encoding"))
}

// PyTorch: X18, N04
#[test]
fn a_batch_that_cannot_be_encoded_loses_itself_only() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 4 }).batch_size(2).num_workers(1);
    let loader = builder.collate(|_| Ok(Unencodable(1))).build().unwrap();
    let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert!(matches!(error, Error::SendFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("it has no encoding"), "{error}");
    }
}
