//! What fails in user code: when it is told, and what goes on.

use std::{fmt, time::Duration};

use anyhow::ensure;
use loader_core::{Error, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Faulty, Shards, Squares},
    gate::{Gate, Gated, GatedStream},
    processes,
    ways::{WAYS, all},
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// A user's own type of error.
#[derive(Debug)]
struct Rotten;

impl fmt::Display for Rotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the apple is rotten")
    }
}

impl std::error::Error for Rotten {}

#[derive(Serialize, Deserialize)]
struct Apples(usize);

impl Dataset for Apples {
    type Sample = u8;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u8> {
        Err(Rotten.into())
    }
}

// PyTorch: 77, 78, F05, P-46
#[test]
fn one_error_for_each_batch() {
    let _watchdog = Watchdog::start();
    for (samples, batches) in [(100, 50), (41, 21)] {
        for way in WAYS {
            let loader = way.of(DataLoader::builder(Apples(samples)).batch_size(2)).build().unwrap();
            for _ in 0..2 {
                let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
                assert_eq!(errors.len(), batches);
                for (number, error) in errors.iter().enumerate() {
                    let Error::DatasetFailed { index: Some(index), batch, worker, failure } = error else {
                        panic!("{error:?}")
                    };
                    assert_eq!((*batch, *index), (number as u64, 2 * number));
                    assert_eq!(worker.is_some(), way.workers > 0);
                    assert_eq!(failure.chain, ["the apple is rotten"]);
                }
            }
        }
    }
}

/// Fails to open its shards in the epochs that it is told.
#[derive(Serialize, Deserialize)]
struct Closed {
    from: u64,
}

impl IterableDataset for Closed {
    type Sample = u64;

    fn iter(
        &self,
        _shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        ensure!(cx.epoch() < self.from || cx.epoch() > self.from + 1, "Error in __iter__");
        Ok((0..3).map(Ok))
    }
}

// PyTorch: 30, F06, P-40
#[test]
fn errors_at_the_beginning_are_told_at_the_first_batch() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = DataLoader::stream(Closed { from: 0 }).num_workers(workers).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::OpenFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("Error in __iter__"), "{error}");
    }
    let builder = DataLoader::builder(Count(4)).num_workers(2);
    let loader = builder.worker_init(|_| anyhow::bail!("Error in worker_init_fn")).build().unwrap();
    let error = loader.iter().unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("Error in worker_init_fn"), "{error}");
}

/// In PyTorch an error of `__iter__` in a later epoch kills a worker that stays.
// PyTorch: P-40, N08
#[test]
fn a_stream_that_fails_to_open_in_its_second_epoch_loses_that_epoch_only() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::stream(Closed { from: 1 })).build().unwrap();
        let mut pids = Vec::new();
        let epochs: Vec<(usize, usize)> = (0..4)
            .map(|_| {
                let batches = loader.iter().unwrap();
                pids.push(batches.worker_pids());
                let batches: Vec<_> = batches.collect();
                let good = batches.iter().filter(|batch| batch.is_ok()).count();
                (good, batches.len() - good)
            })
            .collect();
        let shards = way.workers.max(1);
        assert_eq!(epochs, [(3 * shards, 0), (0, shards), (0, shards), (3 * shards, 0)], "{way:?}");
        if way.stays {
            assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "no worker died");
        }
    }
}

/// In PyTorch the batch behind an error of the hook fails with an unrelated one.
// PyTorch: 251, X11, T11, N07
#[test]
fn an_error_of_the_hook_stays() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let builder = DataLoader::builder(Count(6)).num_workers(2).persistent_workers(stays);
        let loader = builder.worker_init(|_| anyhow::bail!("no such device")).build().unwrap();
        for _ in 0..2 {
            let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
            assert_eq!(errors.len(), 6);
            for error in errors {
                assert!(matches!(error, Error::OpenFailed { worker: Some(_), .. }), "{error:?}");
                assert!(error.to_string().contains("no such device"), "{error}");
            }
        }
    }
}

/// An error of batch 1 that comes long before batch 0 waits for its turn.
// PyTorch: P-44
#[test]
fn errors_keep_the_order_of_batches() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = Gated { count: 4, slow: 0, gate: gate.path() }.map(|(number, worker), _| {
        ensure!(number != 1, "one fails");
        Ok((number, worker))
    });
    let loader = DataLoader::builder(dataset).num_workers(2).prefetch_factor(1).build().unwrap();
    let mut batches = loader.iter().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    gate.open();
    let outcomes: Vec<Option<u64>> =
        batches.by_ref().map(|batch| batch.ok().map(|(number, _)| number.as_slice()[0])).collect();
    assert_eq!(outcomes, [Some(0), None, Some(2), Some(3)]);
}

/// PyTorch goes on after a worker's death without its batches, and ends early without a word. Here, where workers are not replaced, the
/// error is the last thing, and what is missing can be loaded from where the user stands.
// PyTorch: P-29, X06, N10
#[test]
fn after_a_death_nothing_is_lost_in_silence() {
    let _watchdog = Watchdog::start();
    for (workers, in_order) in [(1, true), (3, true), (3, false)] {
        let gate = Gate::closed();
        let dataset = || Gated { count: 20, slow: 7, gate: gate.path() };
        let builder = |workers| {
            DataLoader::builder(dataset()).num_workers(workers).on_worker_death(OnWorkerDeath::Fail)
        };
        let loader = builder(workers).in_order(in_order).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut seen = Vec::new();
        let mut last = |batches: &mut loader_core::Iter<(Tensor<u64>, Tensor<u64>)>| {
            let (number, _) = batches.next().unwrap().unwrap();
            seen.push(number.as_slice()[0]);
        };
        (0..4).for_each(|_| last(&mut batches));
        for pid in batches.worker_pids() {
            processes::signal(pid, Signal::SIGKILL);
        }
        // What was loaded before may still come.
        let error = loop {
            match batches.next().unwrap() {
                Ok((number, _)) => seen.push(number.as_slice()[0]),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::WorkerExited { .. }), "{error:?}");
        assert!(batches.next().is_none() && batches.next().is_none(), "the error was the last thing");
        let state = batches.state();
        assert_eq!(state.batches(), seen.len() as u64);
        gate.open();
        let rest = builder(2).build().unwrap().resume(&state).unwrap();
        seen.extend(all(rest).iter().map(|(number, _)| number.as_slice()[0]));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..20), "{workers} workers");
    }
}

/// Of two loaders that live at once, the one whose worker died says so, and the other does not.
// PyTorch: X22, N13
#[test]
fn a_death_is_told_by_its_own_loader() {
    let _watchdog = Watchdog::start();
    let good = DataLoader::builder(Count(50)).num_workers(2).build().unwrap();
    let bad = DataLoader::builder(Faulty { count: 50, at: 9, fault: Fault::Kill }).num_workers(2);
    let (mut good, bad) = (good.iter().unwrap(), bad.build().unwrap().iter().unwrap());
    let mut deaths = 0;
    for batch in bad {
        deaths += usize::from(batch.is_err());
        assert!(good.next().unwrap().is_ok());
    }
    assert_eq!(deaths, 1);
    assert!(good.all(|batch| batch.is_ok()));
}

/// The clock is the user's: it starts when `next` is called, and batches that arrive out of turn do not set it back. In PyTorch each
/// of them does.
// PyTorch: 42, P-20, N16
#[test]
fn timeout_with_other_batches_arriving() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let timeout = Duration::from_millis(200);
    let dataset = Gated { count: 40, slow: 0, gate: gate.path() }.map(|sample, _| {
        std::thread::sleep(Duration::from_millis(20));
        Ok(sample)
    });
    let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(15).timeout(timeout);
    let loader = builder.build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    for _ in 0..2 {
        let started = std::time::Instant::now();
        let error = batches.next().unwrap().unwrap_err();
        let Error::TimedOut { after, waiting_for, is_final: false } = &error else { panic!("{error:?}") };
        assert_eq!((*after, waiting_for.worker, waiting_for.index, waiting_for.batch), (timeout, 0, 0, 0));
        assert!(started.elapsed() >= timeout && started.elapsed() < 10 * timeout);
    }
    gate.open();
    let numbers = batches.filter_map(Result::ok).map(|(number, _)| number.as_slice()[0]);
    assert!(numbers.eq(0..40), "nothing was lost");
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}

/// Each iterator of a loader has its own clock.
// PyTorch: A10
#[test]
fn a_timeout_of_one_iterator_is_not_the_others() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = Gated { count: 6, slow: 3, gate: gate.path() };
    let builder = DataLoader::builder(dataset).num_workers(1).timeout(Duration::from_millis(100));
    let loader = builder.persistent_workers(true).build().unwrap();
    let (mut one, mut two) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap());
    assert!(one.by_ref().take(3).all(|batch| batch.is_ok()));
    assert!(matches!(one.next().unwrap(), Err(Error::TimedOut { .. })));
    assert!(two.by_ref().take(3).all(|batch| batch.is_ok()));
    assert!(matches!(one.next().unwrap(), Err(Error::TimedOut { .. })));
    gate.open();
    assert_eq!((one.filter(Result::is_ok).count(), two.filter(Result::is_ok).count()), (3, 3));
}

/// Ends all workers of an epoch behind its third batch, and loads what is left where the user stands. Gives all numbers.
fn killed_and_resumed<B: Batch>(
    loader: &DataLoader<B>,
    other: &DataLoader<B>,
    gate: &Gate,
    numbers: fn(&B) -> &[u64],
) -> Vec<u64> {
    let mut batches = loader.iter().unwrap();
    let mut seen: Vec<u64> =
        batches.by_ref().take(3).flat_map(|batch| numbers(&batch.unwrap()).to_vec()).collect();
    batches.worker_pids().into_iter().for_each(|pid| processes::signal(pid, Signal::SIGKILL));
    let mut died = false;
    for batch in batches.by_ref() {
        match batch {
            Ok(batch) => seen.extend_from_slice(numbers(&batch)),
            Err(error) => died = matches!(error, Error::WorkerExited { .. }),
        }
    }
    assert!(died, "there was more to load");
    gate.open();
    seen.extend(other.resume(&batches.state()).unwrap().flat_map(|batch| numbers(&batch.unwrap()).to_vec()));
    seen.sort_unstable();
    seen
}

/// The same of a stream, whose shards were read ahead of the user; some with snapshots.
// PyTorch: P-29
#[test]
fn after_a_death_a_stream_goes_on_where_the_user_stands() {
    let _watchdog = Watchdog::start();
    for in_order in [true, false] {
        let gate = Gate::closed();
        let path = gate.path();
        let stream =
            || DataLoader::stream(GatedStream(Gated { count: 40, slow: 15, gate: path.clone() })).shards(4);
        let loader =
            stream().num_workers(2).in_order(in_order).on_worker_death(OnWorkerDeath::Fail).build().unwrap();
        let seen =
            killed_and_resumed(&loader, &stream().build().unwrap(), &gate, |(numbers, _)| numbers.as_slice());
        assert!(seen.into_iter().eq(0..40), "in order: {in_order}");

        let gate = Gate::closed();
        gate.open();
        let stream = || {
            let dataset = Squares { count: 4000 }.map(|(square, read), _| {
                std::thread::sleep(Duration::from_micros(100));
                Ok((square, read))
            });
            DataLoader::stream(dataset).snapshots().shards(4).batch_size(2)
        };
        let loader =
            stream().num_workers(2).in_order(in_order).on_worker_death(OnWorkerDeath::Fail).build().unwrap();
        let other = stream().num_workers(3).build().unwrap();
        let seen = killed_and_resumed(&loader, &other, &gate, |(squares, _)| squares.as_slice());
        assert!(seen.into_iter().eq((0..4000).map(|number| number * number)), "in order: {in_order}");
    }
}

/// A worker whose shards are over has nothing to give any more: its death is no error, and the next epoch has it back.
// PyTorch: N02
#[test]
fn a_worker_that_dies_behind_its_end_is_not_missed() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let builder = DataLoader::stream(Shards::of(&[1, 60])).shards(2).num_workers(2);
        let loader = builder.persistent_workers(stays).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let first: Vec<u64> = all_of(batches.by_ref().take(20));
        let pid = batches.worker_pids()[0];
        // One that does not stay was told to end, and has, or is about to.
        if stays {
            assert!(processes::is_running(pid), "it waits for the next epoch");
            processes::signal(pid, Signal::SIGKILL);
        }
        let rest: Vec<u64> = all_of(batches);
        assert!(first.into_iter().chain(rest).eq(0..61), "stays {stays}");
        assert!(all_of(loader.iter().unwrap()).into_iter().eq(0..61));
    }
}

fn all_of(batches: impl Iterator<Item = Result<Tensor<u64>, Error>>) -> Vec<u64> {
    batches.flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect()
}
