//! Samples that fail are skipped or replaced. Which ones does not depend on the number of workers.

use std::collections::BTreeSet;

use loader_core::{BadSample, Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Noise},
    processes,
    ways::numbers,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Numbers, some of which fail: the even ones with an error, the odd ones with a panic.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failing {
    count: usize,
    bad: BTreeSet<usize>,
}

/// Makes 60 samples, of which some fail.
fn failing(bad: &[usize]) -> Failing {
    Failing { count: 60, bad: bad.iter().copied().collect() }
}

impl Dataset for Failing {
    type Sample = u64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        if self.bad.contains(&index) {
            let fault = if index.is_multiple_of(2) { Fault::Error } else { Fault::Panic };
            fault.happen(index)?;
        }
        Ok(index as u64)
    }
}

/// The same samples, loaded by `get_many`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct FailingMany(Failing);

impl Dataset for FailingMany {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        anyhow::bail!("the loader must call get_many")
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        indices.iter().map(|&index| self.0.get(index, cx)).collect()
    }
}

/// A batch's number, indices and samples.
type Loaded = (u64, Vec<usize>, Vec<u64>);

/// Returns the batches of an epoch and its bad samples.
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

/// Returns the same for a shuffled epoch, which must not depend on the number of workers or on `get_many`.
fn load_in_all_ways(bad: &[usize], on_bad: OnBadSample) -> (Vec<Loaded>, Vec<BadSample>) {
    fn shuffled<D: Dataset<Sample = u64>>(
        dataset: D,
        workers: usize,
        on_bad: OnBadSample,
    ) -> Iter<Tensor<u64>> {
        let builder = DataLoader::builder(dataset).batch_size(4).shuffle(true).seed(7).num_workers(workers);
        builder.on_bad_sample(on_bad).on_warning(|_| {}).build().unwrap().iter().unwrap()
    }
    let expected = load(shuffled(failing(bad), 0, on_bad));
    for workers in [1, 3] {
        assert_eq!(load(shuffled(failing(bad), workers, on_bad)), expected, "{workers} workers");
    }
    for workers in [0, 2] {
        let many = load(shuffled(FailingMany(failing(bad)), workers, on_bad));
        assert_eq!(many, expected, "get_many, {workers} workers");
    }
    let (batches, bad_samples) = expected;
    let is_consistent = |(_, indices, samples): &Loaded| {
        indices.iter().map(|&index| index as u64).eq(samples.iter().copied())
    };
    assert!(batches.iter().all(is_consistent));
    (batches, bad_samples)
}

// PyTorch: U09
#[test]
fn skipped_samples_are_missing_and_reported() {
    let _watchdog = Watchdog::start();
    let bad = [3, 10, 25, 58];
    let (batches, skipped) = load_in_all_ways(&bad, OnBadSample::Skip);
    let seen: BTreeSet<usize> = batches.iter().flat_map(|(_, indices, _)| indices.clone()).collect();
    assert!(seen.into_iter().eq((0..60).filter(|index| !bad.contains(index))));
    let reported: BTreeSet<usize> = skipped.iter().map(|sample| sample.index).collect();
    assert!(reported.into_iter().eq(bad));
    for BadSample { index, replaced_by, reason, .. } in skipped {
        let expected = match index % 2 {
            0 => format!("reading record {index}: the disk is on fire"),
            _ => format!("sample {index} panics"),
        };
        assert_eq!((replaced_by, reason), (None, expected));
    }
}

// PyTorch: U09
#[test]
fn replacements_are_drawn_by_seed_epoch_and_index() {
    let _watchdog = Watchdog::start();
    let bad: Vec<usize> = (0..40).step_by(5).collect();
    let (batches, replaced) = load_in_all_ways(&bad, OnBadSample::Replace);
    assert!(batches.iter().all(|(_, _, samples)| samples.len() == 4));
    assert!(!batches.iter().flat_map(|(_, indices, _)| indices).any(|index| bad.contains(index)));
    assert!(replaced.len() >= bad.len() && replaced.iter().all(|sample| sample.replaced_by.is_some()));
    let builder = DataLoader::builder(failing(&bad)).on_bad_sample(OnBadSample::Replace);
    let loader = builder.on_warning(|_| {}).build().unwrap();
    let drawn = |epoch| -> Vec<_> {
        let mut bad = load(loader.epoch(epoch).unwrap()).1;
        bad.sort_by_key(|sample| sample.index);
        bad.into_iter().map(|sample| sample.replaced_by).collect()
    };
    assert_ne!(drawn(0), drawn(1));
}

#[test]
fn replacements_are_among_the_indices_of_the_sampler() {
    let chosen: Vec<usize> = (0..60).step_by(3).collect();
    let builder = DataLoader::builder(failing(&[6, 30])).batch_size(4).sampler(chosen.clone());
    let loader = builder.on_bad_sample(OnBadSample::Replace).on_warning(|_| {}).build().unwrap();
    let (batches, bad) = load(loader.iter().unwrap());
    assert!(bad.len() >= 2);
    assert!(batches.iter().flat_map(|(_, indices, _)| indices).all(|index| chosen.contains(index)));
}

#[test]
fn a_batch_of_bad_samples_is_left_out() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        let builder = DataLoader::builder(failing(&[4, 5, 6, 7, 59])).batch_size(4).num_workers(workers);
        let loader = builder.on_bad_sample(OnBadSample::Skip).build().unwrap();
        let (batches, bad) = load(loader.iter().unwrap());
        let numbers = batches.iter().map(|(number, ..)| *number);
        assert!(numbers.eq((0..15).filter(|&number| number != 1)), "{workers} workers");
        assert_eq!(bad.len(), 5);
    }
}

// PyTorch: U09
#[test]
fn too_many_bad_samples_end_the_iterator_but_not_the_epoch() {
    let _watchdog = Watchdog::start();
    let bad: Vec<usize> = (20..40).collect();
    for (workers, persistent) in [(0, false), (1, false), (2, false), (2, true)] {
        let builder = DataLoader::builder(failing(&bad)).batch_size(4).num_workers(workers);
        let builder = builder.persistent_workers(persistent);
        let builder = builder.on_bad_sample(OnBadSample::Skip).max_bad_samples(6).on_warning(|_| {});
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        assert_eq!(batches.by_ref().take(5).filter(Result::is_ok).count(), 5);
        let error = batches.next().unwrap().unwrap_err();
        let Error::TooManyBadSamples { max_bad_samples: 6, sample } = &error else { panic!("{error:?}") };
        assert_eq!((sample.index, sample.batch), (26, 6));
        assert!(error.ends_iteration() && error.to_string().contains("reading record 26"), "{error}");
        assert!(batches.next().is_none() && batches.next().is_none());
        assert_eq!(batches.state().epoch(), 0);
        if persistent {
            drop((loader, batches));
        }
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    }
}

#[test]
fn a_resumed_epoch_counts_the_bad_samples_from_its_beginning() {
    let _watchdog = Watchdog::start();
    for workers in 0..=2 {
        let builder = DataLoader::builder(failing(&[1, 9, 17])).batch_size(4).num_workers(workers);
        let builder = builder.on_bad_sample(OnBadSample::Skip).max_bad_samples(2).on_warning(|_| {});
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
        let state = batches.state();
        drop(batches);
        let mut rest = loader.resume(&state).unwrap();
        assert!(rest.next().unwrap().is_ok() && rest.report().bad_samples.is_empty());
        // After a second resume, too.
        let again = rest.state();
        drop(rest);
        let error = loader.resume(&again).unwrap().find_map(Result::err).unwrap();
        let Error::TooManyBadSamples { max_bad_samples: 2, sample } = &error else { panic!("{error:?}") };
        assert_eq!(sample.index, 17);
        // The next epoch begins at zero.
        assert_eq!(loader.epoch(1).unwrap().take(4).filter(Result::is_ok).count(), 4);
    }
}

#[test]
fn a_run_resumed_after_too_many_bad_samples_begins_with_the_batch_that_was_not_returned() {
    let _watchdog = Watchdog::start();
    // The first two count in the state, the third does not.
    let bad = [20, 22, 30];
    for workers in 0..=2 {
        let run = |batches: Iter<Tensor<u64>>, again: &dyn Fn(&State) -> Iter<Tensor<u64>>| {
            let mut batches = batches;
            let (mut numbers, mut errors) = (Vec::<u64>::new(), 0);
            while let Some(batch) = batches.next() {
                match batch {
                    Ok(batch) => numbers.extend(batch.as_slice()),
                    Err(error) => {
                        assert!(matches!(error, Error::TooManyBadSamples { .. }), "{error:?}");
                        errors += 1;
                        batches = again(&batches.state());
                    }
                }
            }
            assert_eq!((errors, batches.report().bad_samples.len()), (1, 1));
            assert!(numbers.into_iter().eq((0..60).filter(|number| !bad.contains(&(*number as usize)))));
        };
        let samples = || DataLoader::builder(failing(&bad)).on_bad_sample(OnBadSample::Skip);
        let loader = |max| {
            let builder = samples().batch_size(4).num_workers(workers).on_warning(|_| {});
            builder.max_bad_samples(max).build().unwrap()
        };
        run(loader(2).iter().unwrap(), &|state| loader(3).resume(state).unwrap());
        let stream = |max| {
            let items = failing(&bad).into_stream();
            let builder = DataLoader::stream(items).shards(1).on_bad_sample(OnBadSample::Skip).batch_size(4);
            builder.num_workers(workers).on_warning(|_| {}).max_bad_samples(max).build().unwrap()
        };
        run(stream(2).iter().unwrap(), &|state| stream(3).resume(state).unwrap());
    }
}

/// A report of a worker has room for 256 bad samples.
#[test]
fn a_batch_reports_at_most_256_bad_samples() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = || {
            let dataset = Count(900).map(|number, _| {
                anyhow::ensure!(number >= 600, "sample {number} fails");
                Ok(number)
            });
            let builder = DataLoader::builder(dataset).batch_size(300).num_workers(workers);
            builder.on_bad_sample(OnBadSample::Skip).on_warning(|_| {})
        };
        let error = builder().build().unwrap().iter().unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::TooManyBadSamples { max_bad_samples: 10, .. }), "{error:?}");
        let loader = builder().max_bad_samples(1_000).build().unwrap();
        let (batches, bad) = load(loader.iter().unwrap());
        assert_eq!((batches.len(), batches[0].0, bad.len()), (1, 2, 2 * 256));
    }
}

#[test]
fn a_batch_of_a_stream_ends_at_its_256th_bad_sample() {
    let _watchdog = Watchdog::start();
    for (workers, drop_last) in [(0, false), (2, false), (0, true), (2, true)] {
        let stream = Count(900).map(|number, _| {
            anyhow::ensure!(!(10..310).contains(&number), "sample {number} fails");
            Ok(number)
        });
        let builder = DataLoader::stream(stream.into_stream()).shards(1).batch_size(40).num_workers(workers);
        let builder = builder.drop_last(drop_last).max_bad_samples(1_000).on_warning(|_| {});
        let mut batches = builder.on_bad_sample(OnBadSample::Skip).build().unwrap().iter().unwrap();
        let numbers: Vec<_> = batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect();
        let expected: Vec<_> =
            if drop_last { (310..870).collect() } else { (0..10).chain(310..900).collect() };
        assert_eq!(numbers, expected, "{workers} workers");
        assert_eq!(batches.report().bad_samples.len(), 300);
    }
}

#[test]
fn a_panic_does_not_change_the_numbers_that_other_samples_draw() {
    let load = |panics: bool| {
        let draw = |_, cx: &mut SampleContext| Ok(cx.rng().random::<u64>());
        let faulty = Noise { count: 12 }.map_with(panics, |panics, (number, ..), cx| {
            assert!(!(*panics && number == 5), "sample 5 panics");
            Ok(cx.rng().random::<u64>())
        });
        let whole = Noise { count: 12 }
            .map(draw)
            .concat(faulty)
            .map(|sample, cx| Ok(sample ^ cx.rng().random::<u64>()));
        let builder = DataLoader::builder(whole).batch_size(24).on_bad_sample(OnBadSample::Skip);
        let loader = builder.on_warning(|_| {}).build().unwrap();
        numbers(&[loader.iter().unwrap().next().unwrap().unwrap()]).remove(0)
    };
    let mut undisturbed = load(false);
    undisturbed.remove(12 + 5);
    assert_eq!(load(true), undisturbed);
}
