//! Errors of `worker_init`, of `setup` and of opening shards.

use anyhow::ensure;
use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Noise, Uneven},
    ways::WAYS,
};
use serde::{Deserialize, Serialize};

// PyTorch: P-40
#[test]
fn if_the_hook_fails_the_worker_s_batches_fail() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 8 }).batch_size(2).num_workers(2);
    let loader = builder.worker_init(|worker| {
        ensure!(worker.id() != 1, "worker 1 has no device");
        Ok(())
    });
    let batches: Vec<_> = loader.build().unwrap().iter().unwrap().collect();
    // Worker 0 may load the last batch if it was idle while worker 1 started.
    assert_eq!(batches.iter().take(3).map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let error = batches[1].as_ref().unwrap_err();
    let Error::OpenFailed { worker: Some(1), failure, .. } = error else { panic!("{error:?}") };
    assert_eq!(failure.chain, ["worker 1 has no device"]);
    let wants_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    assert_eq!(failure.backtrace.is_some(), wants_backtrace, "{failure:?}");
}

/// In PyTorch, the batches after the first error of the hook fail with an unrelated error.
// PyTorch: 30, 251, X11, P-40, T11, N07
#[test]
fn an_error_of_the_hook_fails_every_batch_of_every_epoch() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let builder = DataLoader::builder(Count(6)).num_workers(2).persistent_workers(persistent);
        let loader = builder.worker_init(|_| anyhow::bail!("no such device")).build().unwrap();
        for _ in 0..2 {
            let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
            assert_eq!(errors.len(), 6);
            for error in errors {
                let Error::OpenFailed { worker: Some(_), failure, .. } = &error else { panic!("{error:?}") };
                assert_eq!(failure.chain, ["no such device"]);
            }
        }
    }
}

#[test]
fn a_panic_of_the_hook_has_its_message_and_backtrace() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 8 }).batch_size(2).num_workers(1);
    let loader = builder.worker_init(|_| panic!("no such device")).build().unwrap();
    let error = loader.iter().unwrap().find_map(Result::err).unwrap();
    let Error::OpenFailed { worker: Some(0), failure, .. } = &error else { panic!("{error:?}") };
    assert!(failure.panicked && failure.chain[0].contains("no such device"), "{failure:?}");
    let backtrace = failure.backtrace.as_deref().unwrap();
    assert!(backtrace.contains("opening.rs"), "{backtrace}");
}

/// Four samples, which tell whether `setup` has run; or `setup` fails.
#[derive(Serialize, Deserialize)]
struct Archive {
    #[serde(skip)]
    is_open: bool,
    is_missing: bool,
}

impl Archive {
    fn open(&mut self) -> anyhow::Result<()> {
        ensure!(!self.is_missing, "no such archive");
        self.is_open = true;
        Ok(())
    }
}

impl Dataset for Archive {
    type Sample = bool;

    fn len(&self) -> usize {
        4
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        self.open()
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<bool> {
        Ok(self.is_open)
    }
}

impl IterableDataset for Archive {
    type Sample = bool;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<bool>> + Send> {
        Ok(shard.of(0..4).map(|_| Ok(self.is_open)))
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        self.open()
    }
}

/// If it fails, each batch of a map-style dataset fails; an iterable dataset has one error of each process.
#[test]
fn setup_runs_in_each_process() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let load = |is_missing| {
            let archive = || Archive { is_open: false, is_missing };
            let map = DataLoader::builder(archive()).batch_size(2).num_workers(workers).build().unwrap();
            let stream = DataLoader::stream(archive()).shards(4).num_workers(workers).build().unwrap();
            [map, stream].map(|loader| loader.iter().unwrap().collect::<Vec<_>>())
        };
        let [map, stream] = load(false);
        assert_eq!((map.len(), stream.len()), (2, 4));
        for batch in map.into_iter().chain(stream) {
            assert!(batch.unwrap().as_slice().iter().all(|is_open| is_open.get()));
        }
        let [map, stream] = load(true);
        assert_eq!((map.len(), stream.len()), (2, workers.max(1)));
        for batch in map.into_iter().chain(stream) {
            let error = batch.unwrap_err();
            let Error::OpenFailed { worker, failure, .. } = &error else { panic!("{error:?}") };
            assert_eq!(worker.is_some(), workers > 0);
            assert_eq!(failure.chain, ["no such archive"]);
        }
    }
}

#[test]
fn a_shard_that_cannot_be_opened_has_one_error() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 3] {
        let dataset = Uneven { sizes: vec![3, 3, 3], at: Some(u64::MAX), fault: Fault::Error };
        let loader =
            DataLoader::stream(dataset).shards(3).batch_size(2).num_workers(workers).build().unwrap();
        let batches: Vec<_> = loader.iter().unwrap().collect();
        assert_eq!(batches.len(), 5);
        let errors: Vec<_> = batches.iter().filter_map(|batch| batch.as_ref().err()).collect();
        let [Error::OpenFailed { batch: 1, failure, .. }] = errors[..] else { panic!("{errors:?}") };
        assert_eq!(failure.chain, ["opening shard 1", "reading record 1", "the disk is on fire"]);
    }
}

/// Its shards cannot be opened in epochs `from` and `from + 1`.
#[derive(Serialize, Deserialize)]
struct Offline {
    from: u64,
}

impl IterableDataset for Offline {
    type Sample = u64;

    fn iter(
        &self,
        _shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        ensure!(cx.epoch() < self.from || cx.epoch() > self.from + 1, "the server is offline");
        Ok((0..3).map(Ok))
    }
}

/// In PyTorch, an error of `__iter__` in a later epoch ends a persistent worker.
// PyTorch: 30, F06, P-40, N08
#[test]
fn a_stream_that_cannot_be_opened_loses_that_epoch_only() {
    let _watchdog = Watchdog::start();
    // Every error captures a backtrace if RUST_BACKTRACE is set, so the first case has few workers.
    for (from, ways) in [(0, &WAYS[..2]), (1, &WAYS)] {
        for way in ways {
            let loader = way.apply(DataLoader::stream(Offline { from })).build().unwrap();
            let shards = way.workers.max(1);
            let mut pids = Vec::new();
            for epoch in 0..4 {
                let batches = loader.iter().unwrap();
                pids.push(batches.worker_pids());
                let batches: Vec<_> = batches.collect();
                if (from..from + 2).contains(&epoch) {
                    assert_eq!(batches.len(), shards, "{way:?}, epoch {epoch}");
                    for batch in batches {
                        let error = batch.unwrap_err();
                        assert!(matches!(error, Error::OpenFailed { .. }), "{error:?}");
                        assert!(error.to_string().contains("the server is offline"), "{error}");
                    }
                } else {
                    assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 3 * shards, "{way:?}");
                    assert_eq!(batches.len(), 3 * shards, "{way:?}, epoch {epoch}");
                }
            }
            if way.persistent {
                assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "a worker was replaced");
            }
        }
    }
}
