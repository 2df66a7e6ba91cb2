//! `num_workers` and `prefetch_factor` that the loader finds itself.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use loader_core::{
    AutoWorkers, Builder, CpuSet, Error, Iter, PrefetchFactor, TuningDecision, TuningReason, Warning,
    WorkerAffinity, kind::MapStyle, prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{ShardNumbers, Slow},
    processes,
    ways::all,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

const DELAY: Duration = Duration::from_millis(2);
const BATCH_SIZE: usize = 8;
/// Maximum time until the loader has found more workers.
const SEARCH_DEADLINE: Duration = Duration::from_secs(60);

/// A loader for which a single worker is not enough.
fn slow(workers: impl Into<NumWorkers>) -> Builder<MapStyle<Slow>> {
    let delay = DELAY;
    DataLoader::builder(Slow { count: 1_000_000, delay })
        .batch_size(BATCH_SIZE)
        .shuffle(true)
        .seed(5)
        .num_workers(workers)
}

/// Loads until `is_enough` is true of the iterator. With `kills`, a worker is killed now and then.
fn load_until(
    batches: &mut Iter<Tensor<u64>>,
    kills: bool,
    is_enough: impl Fn(&Iter<Tensor<u64>>) -> bool,
) -> Vec<Vec<u64>> {
    let (started, mut loaded) = (Instant::now(), Vec::new());
    while !is_enough(batches) {
        assert!(started.elapsed() < SEARCH_DEADLINE, "{:#?}", batches.report().tuning);
        if kills && loaded.len() % 20 == 7 {
            let pids = batches.worker_pids();
            processes::try_signal(pids[loaded.len() % pids.len()], Signal::SIGKILL);
        }
        loaded.push(batches.next().unwrap().unwrap().as_slice().to_vec());
    }
    loaded
}

#[test]
fn workers_are_added_and_the_batches_stay_the_same() {
    let _watchdog = Watchdog::start();
    let numbers = Slow { count: 1_000_000, delay: Duration::ZERO };
    let reference =
        DataLoader::builder(numbers).batch_size(BATCH_SIZE).shuffle(true).seed(5).build().unwrap();
    for kills in [false, true] {
        let auto = AutoWorkers::default().max(4);
        let loader = slow(auto).prefetch_factor(PrefetchFactor::Auto).on_warning(|_| {}).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let loaded = load_until(&mut batches, kills, |batches| batches.num_workers() > 2);
        let report = batches.report();
        let first = &report.tuning[0];
        assert!(first.num_workers.1 > first.num_workers.0, "{first}");
        assert_eq!(first.reason, TuningReason::ProgramWaits);
        assert!(first.figures.waiting_share > 0.5 && first.figures.busy_share > 0.5, "{first}");
        let expected = reference.epoch(0).unwrap().take(loaded.len());
        assert!(expected.map(|batch: Result<Tensor<u64>, _>| batch.unwrap().as_slice().to_vec()).eq(loaded));
        assert_eq!(kills, report.restarts > 0);
    }
}

#[test]
fn the_next_epoch_begins_with_what_was_found() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let loader = slow(AutoWorkers::default().max(3)).persistent_workers(persistent).build().unwrap();
        let mut batches = loader.iter().unwrap();
        load_until(&mut batches, false, |batches| batches.num_workers() > 1);
        let found = batches.num_workers();
        drop(batches);
        assert_eq!(loader.num_workers(), found);
        assert_eq!(loader.iter().unwrap().num_workers(), found, "persistent: {persistent}");
    }
}

#[test]
fn the_tuner_keeps_a_number_that_the_program_sets() {
    let _watchdog = Watchdog::start();
    let loader = slow(AutoWorkers::default().max(4)).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.set_num_workers(2).unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        batches.next().unwrap().unwrap();
    }
    assert_eq!(batches.num_workers(), 2);
    assert_eq!(batches.report().tuning, []);
    drop(batches);
    assert_eq!(loader.num_workers(), 2);
}

/// A stream without snapshots.
#[derive(Debug, Serialize, Deserialize)]
struct SlowStream {
    samples: u64,
}

impl IterableDataset for SlowStream {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        let own = (0..self.samples).skip(shard.index()).step_by(shard.count());
        Ok(own.map(|sample| {
            thread::sleep(DELAY);
            Ok(sample)
        }))
    }
}

#[test]
fn the_workers_of_a_stream_change_between_epochs() {
    let _watchdog = Watchdog::start();
    let stream = || DataLoader::stream(SlowStream { samples: 1200 }).batch_size(BATCH_SIZE);
    let loader = stream().num_workers(AutoWorkers::default().max(3)).build().unwrap();
    let reference = stream().shards(3).build().unwrap();
    let expected: Vec<Tensor<u64>> = all(reference.iter().unwrap());
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut batches = loader.iter().unwrap();
        numbers.push(batches.num_workers());
        let loaded: Vec<_> = batches.by_ref().map(Result::unwrap).collect();
        assert_eq!(loaded, expected);
        // The decision at the end of the epoch is for the next one.
        assert!(batches.report().tuning.iter().all(|decision| decision.batch == expected.len() as u64));
    }
    assert!(numbers[1] > numbers[0] || numbers[0] == 3, "{numbers:?}");
}

#[test]
fn an_order_that_follows_from_the_number_of_cpus_is_warned_of() {
    let warnings = |workers: NumWorkers, shards: Option<usize>| {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&warnings);
        let stream = DataLoader::stream(SlowStream { samples: 1200 }).num_workers(workers);
        let stream = shards.into_iter().fold(stream, Builder::shards);
        drop(
            stream
                .on_warning(move |warning| collected.lock().unwrap().push(warning.clone()))
                .build()
                .unwrap(),
        );
        let warnings = warnings.lock().unwrap();
        warnings.clone()
    };
    let cpus = LoaderOptions::default().count_cpus();
    let shards = (4 * cpus).clamp(16, 62);
    assert_eq!(warnings(NumWorkers::auto(), None), [Warning::OrderDependsOnCpus { shards, cpus }]);
    assert_eq!(warnings(NumWorkers::auto(), Some(5)), []);
    assert_eq!(warnings(AutoWorkers::default().max(16).into(), None), []);
    assert_eq!(warnings(1.into(), None), []);
}

/// Ranks on machines with other CPUs would have other numbers of shards, and read some data twice and some
/// never.
#[test]
fn ranks_do_not_find_their_numbers_of_shards() {
    let build = |workers: NumWorkers, shards: Option<usize>, world_size, group_size| {
        let stream = DataLoader::stream(SlowStream { samples: 1200 }).num_workers(workers);
        let stream = stream.distributed(0, world_size).group_size(group_size).on_warning(|_| {});
        shards.into_iter().fold(stream, Builder::shards).build().map(drop).map_err(|error| error.to_string())
    };
    for group_size in [1, 2] {
        let error = build(NumWorkers::auto(), None, 2, group_size).unwrap_err();
        assert!(
            error.starts_with("shards: ") && error.contains("set shards, or max of num_workers"),
            "{error}"
        );
        assert_eq!(build(NumWorkers::auto(), Some(16), 2, group_size), Ok(()));
        assert_eq!(build(AutoWorkers::default().max(16).into(), None, 2, group_size), Ok(()));
        assert_eq!(build(1.into(), None, 2, group_size), Ok(()));
        assert_eq!(build(NumWorkers::auto(), None, 1, group_size), Ok(()));
    }
}

/// A stream with snapshots.
#[derive(Debug, Serialize, Deserialize)]
struct SlowSnapshots {
    samples: u64,
}

impl IterableDataset for SlowSnapshots {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for SlowSnapshots {
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send> {
        let load = |number| {
            thread::sleep(DELAY);
            Ok(number)
        };
        Ok(ShardNumbers::new(shard, snapshot, self.samples, load))
    }
}

/// Workers are added within the epoch, so shards change their workers, and some of these die.
#[test]
fn the_digests_of_a_stream_with_snapshots_stay_the_same() {
    let _watchdog = Watchdog::start();
    let one: CpuSet = CpuSet::allowed().unwrap().iter().take(1).collect();
    let digests = |workers: NumWorkers, kills: bool| {
        let stream = DataLoader::stream(SlowSnapshots { samples: 8000 }).snapshots().shards(3).digest(true);
        // With one CPU, the loader begins with one worker on any machine.
        let stream = stream.worker_affinity(WorkerAffinity::Sets(vec![one.clone()]));
        let loader = stream.batch_size(BATCH_SIZE).num_workers(workers).on_warning(|_| {}).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut digest = BatchDigest::new();
        for number in 0.. {
            if kills && number % 50 == 7 {
                let pids = batches.worker_pids();
                processes::try_signal(pids[number % pids.len()], Signal::SIGKILL);
            }
            let Some(batch) = batches.next() else { break };
            let batch: Tensor<u64> = batch.unwrap();
            digest.add(&batches.last_batch().unwrap().indices, &batch);
        }
        let report = batches.report();
        assert_eq!(kills, report.restarts > 0);
        (report.digest.unwrap(), (digest.order(), digest.content()), report.tuning)
    };
    let (samples, batches, _) = digests(3.into(), false);
    assert_eq!(samples.samples(), 8000);
    let auto = digests(AutoWorkers::default().max(3).into(), true);
    assert_eq!((auto.0, auto.1), (samples, batches));
    let added = |decision: &TuningDecision| decision.num_workers.1 > decision.num_workers.0;
    let within = auto.2.iter().any(|decision| added(decision) && decision.batch < 8000 / BATCH_SIZE as u64);
    assert!(within, "{:#?}", auto.2);
}

#[test]
fn invalid_bounds_are_refused() {
    let auto = AutoWorkers::default();
    for (auto, problem) in [
        (auto.min(0), "`min` is 0, and \"auto\" never loads without workers; use 1 or more"),
        (auto.min(3).max(2), "`max` is 2, below `min`, which is 3; raise `max` or lower `min`"),
        (auto.max(5000), "5000 is more than 4096, the maximum"),
    ] {
        let Err(error) = slow(auto).build::<Tensor<u64>>() else { panic!("{auto:?} was accepted") };
        assert!(matches!(error, Error::InvalidOption { option: "num_workers", .. }));
        assert_eq!(error.to_string(), format!("num_workers: {problem}"));
    }
}
