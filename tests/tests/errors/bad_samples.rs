//! Samples that cannot be loaded: their batches fail, or they are skipped or replaced, the same ones whoever loads.

use std::{collections::BTreeSet, process, time::Duration};

use loader_core::{BadSample, Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Mortal, Uneven, put_lives},
    processes,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Every sample of `bad` is an error, or a panic if it is odd.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Rotten {
    bad: BTreeSet<usize>,
}

impl Dataset for Rotten {
    type Sample = u64;

    fn len(&self) -> usize {
        60
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let is_bad = self.bad.contains(&index);
        assert!(index.is_multiple_of(2) || !is_bad, "sample {index} is odd");
        anyhow::ensure!(!is_bad, "sample {index} is rotten");
        Ok(index as u64)
    }
}

/// The same, many at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RottenBlocks(Rotten);

impl Dataset for RottenBlocks {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        indices.iter().map(|&index| self.0.get(index, cx)).collect()
    }
}

fn rotten(bad: &[usize]) -> Rotten {
    Rotten { bad: bad.iter().copied().collect() }
}

/// A batch's number, indices and samples.
type Loaded = (u64, Vec<usize>, Vec<u64>);

/// The batches of an epoch, and what was bad in it.
fn load(mut batches: Iter<Tensor<u64>>) -> (Vec<Loaded>, Vec<BadSample>) {
    let mut all = Vec::new();
    while let Some(batch) = batches.next() {
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        let info = batches.last_batch().unwrap();
        assert_eq!(info.samples, batch.as_slice().len());
        all.push((info.number, info.indices.clone(), batch.as_slice().to_vec()));
    }
    (all, batches.report().bad_samples)
}

/// What a dataset gives with any number of workers, which must be the same.
fn load_by_any<D: Dataset<Sample = u64>>(
    dataset: impl Fn() -> D,
    on_bad: OnBadSample,
) -> (Vec<Loaded>, Vec<BadSample>) {
    let loaded = (0..=3).map(|workers| {
        let builder = DataLoader::builder(dataset()).batch_size(4).shuffle(true).seed(7).num_workers(workers);
        load(builder.on_bad_sample(on_bad).on_warning(|_| {}).build().unwrap().iter().unwrap())
    });
    loaded
        .reduce(|one, other| {
            assert_eq!(one, other);
            one
        })
        .unwrap()
}

// PyTorch: U09
#[test]
fn skipped_ones_are_missing_and_listed() {
    let _watchdog = Watchdog::start();
    let bad = [3, 10, 25, 58];
    let (batches, skipped) = load_by_any(|| rotten(&bad), OnBadSample::Skip);
    assert_eq!(
        (batches.clone(), skipped.clone()),
        load_by_any(|| RottenBlocks(rotten(&bad)), OnBadSample::Skip)
    );
    assert!(
        batches.iter().all(|(_, indices, samples)| indices
            .iter()
            .map(|&index| index as u64)
            .eq(samples.iter().copied()))
    );
    let seen: BTreeSet<usize> = batches.iter().flat_map(|(_, indices, _)| indices.clone()).collect();
    assert!(seen.into_iter().eq((0..60).filter(|index| !bad.contains(index))));
    let listed: BTreeSet<usize> = skipped.iter().map(|sample| sample.index).collect();
    assert!(listed.into_iter().eq(bad));
    for BadSample { index, replaced_by, reason, .. } in skipped {
        let expected = if index % 2 == 0 { "is rotten" } else { "is odd" };
        assert_eq!((replaced_by, reason), (None, format!("sample {index} {expected}")));
    }
}

// PyTorch: U09
#[test]
fn replaced_ones_are_drawn_by_seed_epoch_and_index() {
    let _watchdog = Watchdog::start();
    let bad: Vec<usize> = (0..40).step_by(5).collect();
    let (batches, replaced) = load_by_any(|| rotten(&bad), OnBadSample::Replace);
    assert_eq!(
        (batches.clone(), replaced.clone()),
        load_by_any(|| RottenBlocks(rotten(&bad)), OnBadSample::Replace)
    );
    assert!(batches.iter().all(|(_, indices, samples)| samples.len() == 4
        && indices.iter().map(|&index| index as u64).eq(samples.iter().copied())));
    assert!(!batches.iter().flat_map(|(_, indices, _)| indices).any(|index| bad.contains(index)));
    assert!(replaced.len() >= bad.len() && replaced.iter().all(|sample| sample.replaced_by.is_some()));
    // Another epoch draws others.
    let loader = DataLoader::builder(rotten(&bad))
        .on_bad_sample(OnBadSample::Replace)
        .on_warning(|_| {})
        .build()
        .unwrap();
    let drawn = |epoch| -> Vec<_> {
        let mut bad = load(loader.epoch(epoch).unwrap()).1;
        bad.sort_by_key(|sample| sample.index);
        bad.into_iter().map(|sample| sample.replaced_by).collect()
    };
    assert_ne!(drawn(0), drawn(1));
}

#[test]
fn a_batch_without_any_good_sample_is_left_out() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        let builder = DataLoader::builder(rotten(&[4, 5, 6, 7, 59])).batch_size(4).num_workers(workers);
        let loader = builder.on_bad_sample(OnBadSample::Skip).build().unwrap();
        let (batches, bad) = load(loader.iter().unwrap());
        let numbers: Vec<u64> = batches.iter().map(|(number, ..)| *number).collect();
        assert!(numbers.into_iter().eq((0..15).filter(|&number| number != 1)), "{workers} workers");
        assert_eq!(bad.len(), 5);
    }
}

// PyTorch: U09
#[test]
fn one_too_many_ends_the_iterator() {
    let _watchdog = Watchdog::start();
    let bad: Vec<usize> = (20..40).collect();
    for workers in 0..=2 {
        let builder = DataLoader::builder(rotten(&bad)).batch_size(4).num_workers(workers);
        let builder = builder.on_bad_sample(OnBadSample::Skip).max_bad_samples(6).on_warning(|_| {});
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        assert_eq!(batches.by_ref().take(5).filter(Result::is_ok).count(), 5);
        let error = batches.next().unwrap().unwrap_err();
        let Error::TooManyBadSamples { max_bad_samples: 6, sample } = &error else { panic!("{error:?}") };
        assert_eq!((sample.index, sample.batch), (26, 6));
        assert!(error.ends_iteration() && error.to_string().contains("sample 26 is rotten"), "{error}");
        assert!(batches.next().is_none() && batches.next().is_none());
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    }
}

#[test]
fn the_budget_is_the_epochs_also_when_it_is_resumed() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        let builder = DataLoader::builder(rotten(&[1, 9, 17])).batch_size(4).num_workers(workers);
        let builder = builder.on_bad_sample(OnBadSample::Skip).max_bad_samples(2).on_warning(|_| {});
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
        let state = batches.state();
        drop(batches);
        let mut rest = loader.resume(&state).unwrap();
        assert!(rest.next().unwrap().is_ok() && rest.report().bad_samples.is_empty());
        // Twice resumed, too.
        let again = rest.state();
        drop(rest);
        let error = loader.resume(&again).unwrap().find_map(Result::err).unwrap();
        let Error::TooManyBadSamples { max_bad_samples: 2, sample } = &error else { panic!("{error:?}") };
        assert_eq!(sample.index, 17);
        // Another epoch has a budget of its own.
        assert_eq!(loader.epoch(1).unwrap().take(4).filter(Result::is_ok).count(), 4);
    }
}

#[test]
fn a_stream_goes_on_behind_what_is_skipped() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        // The eleventh of the first shard; the last of the second.
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
            assert!(
                seen.into_iter().eq((0..30).chain(100..120).filter(|&number| number != at)),
                "{workers} workers"
            );
            let bad = batches.report().bad_samples;
            assert_eq!(
                (bad.len(), bad[0].index, bad[0].shard),
                (1, at as usize % 100, Some(at as usize / 100))
            );
        }
    }
}

#[test]
fn a_sample_that_takes_too_long_is_bad() {
    let _watchdog = Watchdog::start();
    for workers in 1..=2 {
        let builder = || {
            let dataset = Faulty { count: 40, at: 9, fault: Fault::HangHard };
            DataLoader::builder(dataset)
                .batch_size(4)
                .num_workers(workers)
                .sample_timeout(Duration::from_millis(150))
        };
        // Its batch fails,
        let loader = builder().build().unwrap();
        let mut batches = loader.iter().unwrap();
        let outcomes: Vec<_> = batches.by_ref().collect();
        let [error] = &outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect::<Vec<_>>()[..]
        else {
            panic!("{outcomes:?}");
        };
        assert!(matches!(error, Error::DatasetFailed { index: Some(9), batch: 2, .. }), "{error:?}");
        assert!(error.to_string().contains("took longer than 150ms"), "{error}");
        assert_eq!((outcomes.len(), batches.report().restarts), (10, 1));
        // or goes on without it.
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
fn a_sample_that_ends_its_workers_is_bad() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    put_lives(folder.path(), &[(21, 2)]);
    let dataset = Mortal { count: 40, fault: Fault::Abort, lives: folder.path().to_owned() };
    let loader = DataLoader::builder(dataset).batch_size(4).num_workers(2).on_bad_sample(OnBadSample::Skip);
    let loader = loader.build().unwrap();
    let mut batches = loader.iter().unwrap();
    let seen: Vec<u64> = batches.by_ref().flat_map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
    assert!(seen.into_iter().eq((0..40).filter(|&number| number != 21)));
    let bad = &batches.report().bad_samples[..];
    assert!(
        matches!(bad, [BadSample { index: 21, .. }]) && bad[0].reason.contains("has ended 2 workers"),
        "{bad:?}"
    );
}

/// Ends its process with each sample below 70.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Deadly;

impl Dataset for Deadly {
    type Sample = u64;

    fn len(&self) -> usize {
        72
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        if index < 70 {
            process::exit(1);
        }
        Ok(index as u64)
    }
}

#[test]
fn a_batch_of_samples_that_each_end_their_workers_is_given_up() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Deadly).batch_size(70).num_workers(1).on_bad_sample(OnBadSample::Skip);
    let loader = loader.max_bad_samples(1000).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::BatchGivenUp { deaths: 100, .. }), "{error:?}");
    assert_eq!(batches.next().unwrap().unwrap().as_slice(), [70, 71]);
}

#[test]
fn what_cannot_be_is_refused() {
    let stream = DataLoader::stream(Uneven { sizes: vec![1], at: None, fault: Fault::Error });
    let refused = [
        stream.on_bad_sample(OnBadSample::Replace).build().map(drop),
        DataLoader::builder(rotten(&[])).sample_timeout(Duration::from_secs(1)).build().map(drop),
        DataLoader::builder(rotten(&[])).worker_memory_limit(1 << 30).build().map(drop),
        DataLoader::builder(rotten(&[])).num_workers(1).worker_memory_limit(1000).build().map(drop),
    ];
    let options = ["on_bad_sample", "sample_timeout", "worker_memory_limit", "worker_memory_limit"];
    for (refused, named) in refused.into_iter().zip(options) {
        assert!(
            matches!(refused, Err(Error::InvalidOption { option, .. }) if option == named),
            "{refused:?}"
        );
    }
}

/// Loaded many at once, and one of them ends the process.
#[derive(Debug, Serialize, Deserialize)]
struct Poisoned {
    at: u64,
    hangs: bool,
}

impl Dataset for Poisoned {
    type Sample = u64;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        let load = |&index: &usize| match index as u64 {
            index if index == self.at && self.hangs => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            index if index == self.at => process::abort(),
            index => Ok(index),
        };
        indices.iter().map(load).collect()
    }
}

#[test]
fn of_many_at_once_the_right_one_is_blamed() {
    let _watchdog = Watchdog::start();
    for hangs in [false, true] {
        let builder = DataLoader::builder(Poisoned { at: 22, hangs }).batch_size(4).num_workers(2);
        let builder = builder.on_bad_sample(OnBadSample::Skip).sample_timeout(Duration::from_millis(200));
        let loader = builder.on_warning(|_| {}).build().unwrap();
        let (batches, bad) = load(loader.iter().unwrap());
        let seen = batches.into_iter().flat_map(|(_, _, samples)| samples);
        assert!(seen.eq((0..40).filter(|&number| number != 22)), "hangs: {hangs}");
        assert!(matches!(&bad[..], [BadSample { index: 22, .. }]), "{bad:?}");
    }
}

/// Draws, and panics at one sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Drawn {
    panics: bool,
}

impl Dataset for Drawn {
    type Sample = u64;

    fn len(&self) -> usize {
        12
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<u64> {
        assert!(!(self.panics && index == 5), "five");
        Ok(cx.rng().random::<u64>())
    }
}

#[test]
fn a_panic_changes_no_other_sample() {
    let _watchdog = Watchdog::start();
    let samples = |panics| {
        let parts = Drawn { panics: false }
            .concat(Drawn { panics })
            .map(|sample, cx| Ok(sample ^ cx.rng().random::<u64>()));
        let loader =
            DataLoader::builder(parts).batch_size(24).on_bad_sample(OnBadSample::Skip).on_warning(|_| {});
        load(loader.build().unwrap().iter().unwrap()).0.remove(0).2
    };
    let mut undisturbed = samples(false);
    undisturbed.remove(12 + 5);
    assert_eq!(samples(true), undisturbed);
}

#[test]
fn more_bad_samples_than_a_frame_tells_of() {
    let _watchdog = Watchdog::start();
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct AllBad;
    impl Dataset for AllBad {
        type Sample = u64;

        fn len(&self) -> usize {
            900
        }

        fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
            anyhow::ensure!(index >= 600, "bad");
            Ok(index as u64)
        }
    }
    for workers in 0..=2 {
        let builder = || DataLoader::builder(AllBad).batch_size(300).num_workers(workers).on_warning(|_| {});
        let few = builder().on_bad_sample(OnBadSample::Skip).build().unwrap();
        let error = few.iter().unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::TooManyBadSamples { max_bad_samples: 10, .. }), "{error:?}");
        let many = builder().on_bad_sample(OnBadSample::Skip).max_bad_samples(1_000).build().unwrap();
        let (batches, bad) = load(many.iter().unwrap());
        assert_eq!((batches.len(), batches[0].0, bad.len()), (1, 2, 2 * 256));
    }
}

#[test]
fn a_state_behind_too_many_is_in_the_same_epoch() {
    let _watchdog = Watchdog::start();
    let bad: Vec<usize> = (20..40).collect();
    let builder = DataLoader::builder(rotten(&bad)).batch_size(4).num_workers(2).persistent_workers(true);
    let loader = builder.on_bad_sample(OnBadSample::Skip).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    assert!(batches.by_ref().any(|batch| batch.is_err()));
    assert_eq!(batches.state().epoch(), 0);
    assert!(batches.next().is_none());
}

#[test]
fn replacements_stay_among_what_the_sampler_chose() {
    let _watchdog = Watchdog::start();
    let chosen: Vec<usize> = (0..60).step_by(3).collect();
    let builder = DataLoader::builder(rotten(&[6, 30])).batch_size(4).sampler(chosen.clone());
    let loader = builder.on_bad_sample(OnBadSample::Replace).on_warning(|_| {}).build().unwrap();
    let (batches, bad) = load(loader.iter().unwrap());
    assert!(bad.len() >= 2);
    assert!(batches.iter().flat_map(|(_, indices, _)| indices).all(|index| chosen.contains(index)));
}
