//! What main does after a worker's death: it loads the unfinished tasks again, gives up batches that kill
//! every worker, and warns.

use std::path::Path;

use loader_core::{Error, ExitStatus, Iter, OnBadSample, Warning, WorkerState, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Fault, Flaky, put_tokens},
    digest_rest,
    traces::Before,
    ways::{all, numbers},
};

use crate::{noise_digest, with_warnings};

fn flaky(tokens: &Path, fault: Fault) -> Flaky {
    Flaky { count: 200, fault, tokens: tokens.to_owned() }
}

/// Returns the digest of an epoch and the number of workers that were replaced.
fn digest(mut batches: Iter<NoiseBatch>) -> ((u64, u64), u64) {
    let digest = digest_rest(&mut batches).unwrap_or_else(|error| panic!("{error}"));
    (digest, batches.report().restarts)
}

type NoiseBatch = <<Flaky as Dataset>::Sample as Sample>::Batch;

// PyTorch: T13
#[test]
fn a_replacement_continues_a_shard_at_its_batch() {
    alone(|| {
        let before = Before::take();
        let folder = tempfile::tempdir().unwrap();
        let tokens = [(0, 1), (41, 1), (199, 1)];
        let builder = || DataLoader::stream(flaky(folder.path(), Fault::Kill)).shards(3).batch_size(4);
        let load = |loader: DataLoader<Tensor<u64>>| numbers(&all(loader.iter().unwrap()));
        let undisturbed = load(builder().build().unwrap());
        for workers in 1..=3 {
            put_tokens(folder.path(), &tokens);
            let loader = builder().num_workers(workers).build().unwrap();
            assert_eq!(load(loader), undisturbed, "read again, {workers} workers");
            for every in [1, 3] {
                put_tokens(folder.path(), &tokens);
                let builder = builder().snapshots().snapshot_every(every).num_workers(workers);
                let loader = builder.build().unwrap();
                assert_eq!(load(loader), undisturbed, "a snapshot every {every}, {workers} workers");
            }
        }
        drop(folder);
        before.assert_nothing_left();
    });
}

#[test]
fn a_batch_that_ends_its_workers_is_given_up() {
    alone(|| {
        let before = Before::take();
        let sigabrt = Fault::Signal(6);
        for (fault, max_deaths) in
            [(Fault::Abort, 2), (sigabrt, 2), (Fault::Exit(0), 2), (Fault::Exit(1), 2), (Fault::Kill, 32)]
        {
            let folder = tempfile::tempdir().unwrap();
            let builder = || DataLoader::builder(flaky(folder.path(), fault)).batch_size(4).shuffle(true);
            let undisturbed: Vec<NoiseBatch> = all(builder().build().unwrap().iter().unwrap());
            put_tokens(folder.path(), &[(21, 40)]);
            let loader = builder().num_workers(2).on_warning(|_| {}).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let mut given_up = 0;
            for expected in &undisturbed {
                let batch = batches.next().unwrap();
                let info = batches.last_batch().unwrap();
                let error = match batch {
                    Ok(batch) => {
                        assert!(batch == *expected && !info.indices.contains(&21), "{fault:?}");
                        continue;
                    }
                    Err(error) => error,
                };
                assert!(!error.ends_iteration(), "{error:?}");
                let Error::BatchGivenUp { batch, indices, deaths, exit, doing, .. } = error else {
                    panic!("{error:?}")
                };
                assert_eq!(
                    info.indices.iter().map(|&index| index as u64).collect::<Vec<_>>(),
                    expected.0.as_slice()
                );
                assert!(indices.contains(&21));
                assert_eq!((batch, &indices, deaths), (info.number, &info.indices, max_deaths), "{fault:?}");
                let doing = (doing.state, doing.batch, doing.index);
                assert_eq!(doing, (WorkerState::Fetching, info.number, 21), "{fault:?}");
                assert_eq!(exit.cause, None, "{fault:?}");
                given_up += 1;
            }
            assert!(batches.next().is_none());
            assert_eq!((given_up, batches.report().restarts), (1, u64::from(max_deaths)), "{fault:?}");
        }
        before.assert_nothing_left();
    });
}

/// Any process may have sent a SIGKILL, so neither the batch nor the worker is given up after a few of them.
#[test]
fn seven_kills_in_one_sample_lose_no_batch() {
    alone(|| {
        let before = Before::take();
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &[(21, 7), (26, 7)]);
        let builder = DataLoader::builder(flaky(folder.path(), Fault::Kill)).batch_size(4).shuffle(true);
        // Deaths on a batch do not count for the worker.
        let builder = builder.num_workers(2).max_worker_deaths(1).on_warning(|_| {});
        let loader = builder.build().unwrap();
        assert_eq!(digest(loader.iter().unwrap()), (noise_digest(200, 0), 14));
        drop(loader);

        put_tokens(folder.path(), &[(21, 7)]);
        let builder = DataLoader::stream(flaky(folder.path(), Fault::Kill)).shards(2).batch_size(4);
        let loader = builder.num_workers(2).on_warning(|_| {}).build().unwrap();
        let mut seen = numbers(&all(loader.iter().unwrap())).concat();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..200));
        drop((loader, folder));
        before.assert_nothing_left();
    });
}

#[test]
fn a_shard_ends_with_the_batch_that_is_given_up() {
    alone(|| {
        let before = Before::take();
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &[(41, 2)]);
        let loader = DataLoader::stream(flaky(folder.path(), Fault::Abort)).shards(4).batch_size(4);
        let loader = loader.num_workers(2).on_warning(|_| {}).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let (mut good, mut errors) = (Vec::new(), Vec::new());
        while let Some(batch) = batches.next() {
            match batch {
                Ok(batch) => good.extend_from_slice(batch.as_slice()),
                Err(error) => errors.push((batches.last_batch().unwrap().number, error)),
            }
        }
        let [(number, Error::BatchGivenUp { batch, indices, deaths: 2, doing, .. })] = &errors[..] else {
            panic!("{errors:?}")
        };
        assert_eq!((batch, doing.batch, doing.index), (number, *number, 10));
        assert!(indices.is_empty(), "the batch of a shard has no indices");
        good.sort_unstable();
        // 41 is the eleventh sample of the second shard: two batches of four came before.
        let is_lost = |number: &u64| number % 4 == 1 && *number >= 33;
        assert!(good.into_iter().eq((0..200).filter(|number| !is_lost(number))));
        // A resumed run reads the rest of the shard, from the beginning of the batch.
        let state = batches.state();
        assert_eq!(state.epoch(), 0);
        let mut rest = numbers(&all(loader.resume(&state).unwrap())).concat();
        rest.sort_unstable();
        assert!(rest.into_iter().eq((0..200).filter(is_lost)));
        drop((batches, loader, folder));
        before.assert_nothing_left();
    });
}

/// A loop that resumes as long as the state stays in the epoch would not end, but each of its passes does.
#[test]
fn a_batch_that_always_ends_its_workers_is_given_up_in_each_pass() {
    alone(|| {
        let before = Before::take();
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &[(41, 100)]);
        let builder = DataLoader::stream(flaky(folder.path(), Fault::Abort)).shards(4).batch_size(4);
        // A sample of a stream cannot be left out.
        let builder = builder.num_workers(2).on_bad_sample(OnBadSample::Skip);
        let (builder, warnings) = with_warnings(builder);
        let loader = builder.build().unwrap();
        let load = |mut batches: Iter<Tensor<u64>>| {
            let outcomes: Vec<_> = batches.by_ref().collect();
            let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
            let [Error::BatchGivenUp { deaths: 2, doing, .. }] = errors[..] else { panic!("{errors:?}") };
            assert_eq!(doing.index, 10);
            let text = errors[0].to_string();
            assert!(text.contains("is given up, with the rest of its shard for this epoch"), "{text}");
            let not_read = warnings.try_iter().filter(|one| matches!(one, Warning::EpochNotRead { .. }));
            assert_eq!(not_read.count(), 1);
            let good = outcomes.iter().flatten().map(|batch| batch.as_slice().len()).sum::<usize>();
            (good, batches.state())
        };
        // Of the 50 samples of the second shard, two batches of four come before the one with 41.
        let good = 200 - 50 + 8;
        let (first, state) = load(loader.iter().unwrap());
        let (again, resumed) = load(loader.resume(&state).unwrap());
        assert_eq!((first, again, state.epoch(), resumed.epoch()), (good, 0, 0, 0));
        let (next, state) = load(loader.iter().unwrap());
        assert_eq!((next, state.epoch()), (good, 1));
        drop((loader, folder));
        before.assert_nothing_left();
    });
}

#[test]
fn a_warning_says_which_worker_died_and_on_what() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &[(20, 1)]);
        let builder = DataLoader::builder(flaky(folder.path(), Fault::Kill)).batch_size(4).num_workers(2);
        let (builder, warnings) = with_warnings(builder);
        let mut batches = builder.build().unwrap().iter().unwrap();
        let pids = batches.worker_pids();
        assert!(batches.by_ref().all(|batch| batch.is_ok()));
        assert_ne!(batches.worker_pids(), pids);
        drop(batches);
        let warnings: Vec<Warning> = warnings.iter().collect();
        let [Warning::WorkerReplaced { worker, pid, batches, exit, doing, deaths, max_worker_deaths, .. }] =
            &warnings[..]
        else {
            panic!("{warnings:?}");
        };
        assert_eq!((*worker, *pid), (1, pids[1]));
        assert!(matches!(exit.status, ExitStatus::Signal { signal: 9, .. }) && exit.cause.is_none());
        assert_eq!((doing.state, doing.batch, doing.index), (WorkerState::Fetching, 5, 20));
        assert!(batches.contains(&5), "{batches:?}");
        assert_eq!((*deaths, *max_worker_deaths), (0, 10));
    });
}
