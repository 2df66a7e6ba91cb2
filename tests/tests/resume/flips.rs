//! Samples that are errors when a stream is read for the first time and none when it is read again, or the other way
//! round. The worker is killed in between.

use std::{fs::File, path::PathBuf};

use loader_core::{Error, Iter, prelude::*};
use loader_tests::Watchdog;
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

use crate::resumed::saved;

const COUNT: u64 = 60;
/// The number that is an error once.
const BAD: u64 = 7;
/// The number on which the first worker is killed.
const DEADLY: u64 = 50;

/// The numbers below `COUNT`.
#[derive(Serialize, Deserialize)]
struct Numbers;

impl IterableDataset for Numbers {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        Ok(shard.of(0..COUNT).map(Ok))
    }
}

/// Fails when the number `BAD` is loaded for the time `bad_in`, counted from 1. Kills its process when the number
/// `DEADLY` is loaded for the first time.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Flips {
    folder: PathBuf,
    bad_in: u64,
}

impl Flips {
    fn load(&self, number: u64, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let is_new = |path: PathBuf| File::create_new(path).is_ok();
        if number == DEADLY && is_new(self.folder.join("killed")) {
            raise(Signal::SIGKILL)?;
        }
        if number == BAD {
            let time = (1..10).find(|&time| is_new(self.load_of_bad(time)));
            anyhow::ensure!(time != Some(self.bad_in), "no answer");
        }
        Ok(number)
    }

    /// Returns the file that exists once the number `BAD` was loaded so often.
    fn load_of_bad(&self, time: u64) -> PathBuf {
        self.folder.join(format!("load-{time}"))
    }
}

fn build<D: IterableDataset<Sample = u64>>(dataset: D) -> DataLoader<Tensor<u64>> {
    let builder = DataLoader::stream(dataset).shards(1).batch_size(5).num_workers(1).seed(3);
    builder.on_bad_sample(OnBadSample::Skip).build().unwrap()
}

/// Reads the rest of an epoch. Returns the numbers, and the error of the shard if there is one.
fn read(batches: &mut Iter<Tensor<u64>>) -> (Vec<u64>, Option<Error>) {
    let (mut numbers, mut error) = (Vec::new(), None);
    for batch in batches.by_ref() {
        match batch {
            Ok(batch) => numbers.extend_from_slice(batch.as_slice()),
            Err(other) => assert!(error.replace(other).is_none(), "a shard that has ended fails again"),
        }
    }
    (numbers, error)
}

fn is_refused(error: Option<Error>) -> bool {
    let Some(error) = error else { return false };
    let Error::OpenFailed { failure, .. } = &error else { panic!("{error:?}") };
    let is_it = |cause: &String| cause.contains("the errors before this item are not the same");
    assert!(failure.chain.iter().any(is_it), "{error}");
    true
}

#[test]
fn a_shuffled_stream_of_other_samples_is_an_error() {
    let _watchdog = Watchdog::start();
    for bad_in in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let flips = Flips { folder: folder.path().to_owned(), bad_in };
        let loader = build(Numbers.map_with(flips.clone(), Flips::load).shuffle_buffer(10));
        let mut batches = loader.iter().unwrap();
        let (mut numbers, error) = read(&mut batches);
        assert!(flips.load_of_bad(2).exists(), "the stream is read again");
        assert!(is_refused(error), "bad for the time {bad_in}: {numbers:?}");
        let state = saved(&batches.state());
        assert_eq!(state.epoch(), 0, "the epoch has a rest");
        let (rest, error) = read(&mut loader.resume(&state).unwrap());
        // The number is good from the third time on. If it was good for the first time, the rest comes.
        assert_eq!(is_refused(error), bad_in == 1);
        numbers.extend(rest);
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "a number came twice");
        assert!(bad_in == 1 || numbers.into_iter().eq(0..COUNT));
    }
}

#[test]
fn a_flip_that_changes_no_later_sample_is_not_an_error() {
    let _watchdog = Watchdog::start();
    for (bad_in, shuffles) in [(1, false), (2, false), (1, true), (2, true)] {
        let folder = tempfile::tempdir().unwrap();
        let flips = Flips { folder: folder.path().to_owned(), bad_in };
        let loader = if shuffles {
            build(Numbers.shuffle_buffer(10).map_with(flips.clone(), Flips::load))
        } else {
            build(Numbers.map_with(flips.clone(), Flips::load))
        };
        let (mut numbers, error) = read(&mut loader.iter().unwrap());
        assert!(flips.load_of_bad(2).exists(), "the stream is read again");
        assert!(error.is_none(), "{error:?}");
        numbers.sort_unstable();
        // The loader reports the error of the first time only.
        let expected = (0..COUNT).filter(|&number| bad_in == 2 || number != BAD);
        assert!(numbers.iter().copied().eq(expected), "bad for the time {bad_in}: {numbers:?}");
    }
}
