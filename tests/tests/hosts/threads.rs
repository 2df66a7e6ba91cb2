//! Many threads, many loaders, many iterators.

use std::{sync::mpsc, thread, time::Duration};

use loader_core::{Error, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Large, Noise, NoiseSample, Slow},
    digest, processes,
    traces::Before,
};
use serde::{Deserialize, Serialize};

type NoiseBatch = <NoiseSample as Sample>::Batch;

fn loader(workers: usize) -> DataLoader<NoiseBatch> {
    let builder = DataLoader::builder(Noise { count: 100 }).batch_size(3).shuffle(true).seed(5);
    builder.num_workers(workers).build().unwrap()
}

/// Digests of the first epochs, without workers.
fn expected(epochs: u64) -> Vec<(u64, u64)> {
    let loader = loader(0);
    (0..epochs).map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap()).collect()
}

// PyTorch: U03
#[test]
fn one_loader_and_an_iterator_for_each_of_several_threads() {
    alone(|| {
        let before = Before::take();
        let (loader, expected) = (loader(2), expected(6));
        thread::scope(|scope| {
            let load = |epoch| digest(loader.epoch(epoch).unwrap()).unwrap();
            let threads: Vec<_> = (0..6).map(|epoch| scope.spawn(move || load(epoch))).collect();
            let digests: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(digests, expected);
        });
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn threads_that_take_the_next_epoch_each_get_another() {
    alone(|| {
        let before = Before::take();
        let loader = loader(1);
        let mut epochs: Vec<u64> = thread::scope(|scope| {
            let next = || {
                let batches = loader.iter().unwrap();
                (batches.epoch(), batches.filter(Result::is_ok).count())
            };
            let threads: Vec<_> = (0..5).map(|_| scope.spawn(next)).collect();
            let epochs = threads.into_iter().map(|thread| thread.join().unwrap());
            epochs
                .map(|(epoch, batches)| {
                    assert_eq!(batches, 34);
                    epoch
                })
                .collect()
        });
        epochs.sort_unstable();
        assert_eq!(epochs, [0, 1, 2, 3, 4]);
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn an_iterator_that_moves_from_thread_to_thread() {
    alone(|| {
        let before = Before::take();
        let mut batches = loader(2).epoch(0).unwrap();
        let mut content = Vec::new();
        // Each batch is taken, and each iterator dropped, by a thread that then ends.
        loop {
            let taken = thread::spawn(move || {
                let batch = batches.next();
                (batches, batch)
            });
            let (rest, batch) = taken.join().unwrap();
            batches = rest;
            let Some(batch) = batch else { break };
            content.push(batch.unwrap());
        }
        let plain: Vec<_> = loader(0).epoch(0).unwrap().map(Result::unwrap).collect();
        let same = |(one, other): (&NoiseBatch, &NoiseBatch)| {
            one.0.as_slice() == other.0.as_slice() && one.1.as_slice() == other.1.as_slice()
        };
        assert!(content.len() == plain.len() && content.iter().zip(&plain).all(same));
        thread::spawn(move || drop((batches, content))).join().unwrap();
        before.assert_nothing_left();
    });
}

#[test]
fn workers_live_on_when_the_thread_that_started_them_ends() {
    alone(|| {
        let before = Before::take();
        let started = thread::spawn(|| loader(2).epoch(0).unwrap());
        let batches = started.join().unwrap();
        let pids = batches.worker_pids();
        // PR_SET_PDEATHSIG would have killed them by now.
        thread::sleep(Duration::from_millis(700));
        assert!(pids.iter().all(|&pid| processes::is_running(pid)), "a worker is gone");
        assert_eq!(digest(batches).unwrap(), expected(1)[0]);
        before.assert_nothing_left();
    });
}

#[test]
fn several_loaders_and_iterators_take_turns() {
    alone(|| {
        let before = Before::take();
        let loaders: Vec<_> = (0..3).map(|_| loader(1)).collect();
        let mut iterators: Vec<_> =
            loaders.iter().flat_map(|loader| [0, 1].map(|epoch| loader.epoch(epoch).unwrap())).collect();
        let mut plain = [0, 1].map(|epoch| loader(0).epoch(epoch).unwrap());
        for _ in 0..34 {
            let expected = [0, 1].map(|epoch| plain[epoch].next().unwrap().unwrap().1);
            for (place, batches) in iterators.iter_mut().enumerate() {
                let noise = batches.next().unwrap().unwrap().1;
                assert_eq!(noise.as_slice(), expected[place % 2].as_slice());
            }
        }
        assert!(iterators.iter_mut().all(|batches| batches.next().is_none()));
        drop((iterators, loaders));
        before.assert_nothing_left();
    });
}

#[test]
fn iterators_dropped_by_several_threads_while_others_load() {
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
fn batches_outlive_their_iterator_and_loader_on_other_threads() {
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

/// Builds a loader of its own for each sample.
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
            assert_eq!(errors.len(), 6, "each sample is told, and the epoch goes on");
            for error in errors {
                assert!(matches!(error, Error::DatasetFailed { .. }), "{error:?}");
                assert!(error.to_string().contains("a worker process tried to build a loader"), "{error}");
            }
        }
        before.assert_nothing_left();
    });
}
