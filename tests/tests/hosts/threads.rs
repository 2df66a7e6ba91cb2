//! Many threads, many loaders, many iterators.

use std::{sync::mpsc, thread, time::Duration};

use loader_core::{Builder, Error, kind::MapStyle, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Large, Noise, NoiseSample, Slow},
    digest, processes,
    traces::Before,
    ways::WAYS,
};
use serde::{Deserialize, Serialize};

type NoiseBatch = <NoiseSample as Sample>::Batch;

fn noise() -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count: 100 }).batch_size(3).shuffle(true).seed(5)
}

/// A loader of 34 batches.
fn loader(workers: usize) -> DataLoader<NoiseBatch> {
    noise().num_workers(workers).build().unwrap()
}

/// Returns the digests of the first epochs, loaded without workers.
fn expected(epochs: u64) -> Vec<(u64, u64)> {
    let loader = loader(0);
    (0..epochs).map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap()).collect()
}

// PyTorch: U03
#[test]
fn each_thread_that_asks_one_loader_gets_its_own_epoch() {
    alone(|| {
        let before = Before::take();
        let (loader, expected) = (loader(2), expected(6));
        let mut epochs: Vec<_> = thread::scope(|scope| {
            let load = || {
                let batches = loader.iter().unwrap();
                (batches.epoch(), digest(batches).unwrap())
            };
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(load)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        epochs.sort_unstable();
        assert!(epochs.into_iter().eq((0..).zip(expected)));
        drop(loader);
        before.assert_nothing_left();
    });
}

/// One thread builds the loader, another one starts the epoch, others take one batch each, and another one
/// drops all.
// PyTorch: P-28, N11, N12, X02
#[test]
fn an_iterator_moves_from_thread_to_thread() {
    alone(|| {
        let before = Before::take();
        let plain: Vec<_> = loader(0).epoch(0).unwrap().map(Result::unwrap).collect();
        for way in WAYS {
            for stop in [10, 34] {
                let build = move || way.apply(noise()).build().unwrap();
                let loader = thread::spawn(build).join().unwrap();
                let mut batches =
                    thread::scope(|scope| scope.spawn(|| loader.epoch(0).unwrap()).join().unwrap());
                let mut content = Vec::new();
                for _ in 0..stop {
                    let taken = thread::spawn(move || (batches.next(), batches));
                    let (batch, rest) = taken.join().unwrap();
                    batches = rest;
                    content.push(batch.unwrap().unwrap());
                }
                assert_eq!(content, plain[..stop], "{way:?}");
                thread::spawn(move || drop((batches, loader))).join().unwrap();
                assert_eq!(content, plain[..stop], "{way:?}: batches outlive the iterator");
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn workers_outlive_the_thread_that_started_them() {
    alone(|| {
        let before = Before::take();
        let started = thread::spawn(|| loader(2).epoch(0).unwrap());
        let batches = started.join().unwrap();
        let pids = batches.worker_pids();
        // PR_SET_PDEATHSIG in the workers would have killed them by now.
        thread::sleep(Duration::from_millis(700));
        assert!(pids.iter().all(|&pid| processes::is_running(pid)), "a worker is gone");
        assert_eq!(digest(batches).unwrap(), expected(1)[0]);
        before.assert_nothing_left();
    });
}

#[test]
fn iterators_of_several_loaders_take_turns() {
    alone(|| {
        let before = Before::take();
        let loaders: Vec<_> = (0..3).map(|_| loader(1)).collect();
        let mut iterators: Vec<_> =
            loaders.iter().flat_map(|loader| [0, 1].map(|epoch| loader.epoch(epoch).unwrap())).collect();
        let mut plain = [0, 1].map(|epoch| loader(0).epoch(epoch).unwrap());
        for _ in 0..34 {
            let expected = [0, 1].map(|epoch| plain[epoch].next().unwrap().unwrap().1);
            for (number, batches) in iterators.iter_mut().enumerate() {
                let noise = batches.next().unwrap().unwrap().1;
                assert_eq!(noise.as_slice(), expected[number % 2].as_slice());
            }
        }
        assert!(iterators.iter_mut().all(|batches| batches.next().is_none()));
        drop((iterators, loaders));
        before.assert_nothing_left();
    });
}

#[test]
fn iterators_are_dropped_by_one_thread_while_another_loads() {
    alone(|| {
        let before = Before::take();
        let loader = DataLoader::builder(Slow { count: 60, delay: Duration::from_millis(2) }).num_workers(1);
        let loader = loader.build().unwrap();
        let number = |batch: Result<Tensor<u64>, Error>| batch.unwrap().as_slice()[0];
        thread::scope(|scope| {
            let whole = scope.spawn(|| loader.epoch(0).unwrap().map(number).collect::<Vec<_>>());
            let (give, take) = mpsc::channel();
            scope.spawn(move || take.into_iter().for_each(drop));
            for _ in 0..8 {
                let mut batches = loader.epoch(1).unwrap();
                batches.next().unwrap().unwrap();
                give.send(batches).unwrap();
            }
            drop(give);
            assert!(whole.join().unwrap().into_iter().eq(0..60));
        });
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn batches_outlive_their_loader_on_other_threads() {
    alone(|| {
        let before = Before::take();
        let loader = DataLoader::builder(Large { count: 12, bytes: 100_000 }).num_workers(2).build().unwrap();
        let held: Vec<_> = loader.iter().unwrap().map(Result::unwrap).collect();
        drop(loader);
        let threads = held.into_iter().enumerate().map(|(index, batch)| {
            thread::spawn(move || assert!(batch.as_slice().iter().all(|&byte| byte == index as u8)))
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        before.assert_nothing_left();
    });
}

/// Builds a loader for each sample.
#[derive(Debug, Serialize, Deserialize)]
struct Nested {
    workers: usize,
}

impl Dataset for Nested {
    type Sample = u64;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let loader = DataLoader::builder(Noise { count: 4 }).num_workers(self.workers).build()?;
        Ok(loader.iter()?.count() as u64)
    }
}

#[test]
fn a_loader_inside_a_worker_is_refused() {
    alone(|| {
        let before = Before::take();
        for workers in [0, 1] {
            let loader = DataLoader::builder(Nested { workers }).num_workers(2).build().unwrap();
            let errors: Vec<_> = loader.iter().unwrap().map(|batch| batch.unwrap_err()).collect();
            assert_eq!(errors.len(), 6, "each sample fails, and the epoch goes on");
            for error in errors {
                assert!(matches!(error, Error::DatasetFailed { .. }), "{error:?}");
                assert!(error.to_string().contains("a worker process tried to build a loader"), "{error}");
            }
        }
        before.assert_nothing_left();
    });
}
