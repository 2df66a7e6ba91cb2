//! What a worker is told, its seed and its hook.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise},
    ways::{WAYS, all, one_epoch},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Seeds of six workers, which take turns: with one batch each on its way there is nothing to move to another one.
fn seeds(seed: u64, order: Order, epoch: u64) -> Vec<u64> {
    let dataset = Count(10).map(|_, cx| Ok(cx.worker().map_or(0, WorkerInfo::seed)));
    let builder = DataLoader::builder(dataset).num_workers(6).prefetch_factor(1).seed(seed).order(order);
    let loader = builder.shuffle(true).build().unwrap();
    all(loader.epoch(epoch).unwrap()).iter().take(6).map(|batch| batch.as_slice()[0]).collect()
}

// PyTorch: 51, 52, R01, R02
#[test]
fn each_worker_has_its_own_seed_again_and_again() {
    let _watchdog = Watchdog::start();
    let first = seeds(42, Order::Native, 0);
    assert!(first.iter().copied().eq(first[0]..first[0] + 6), "a base seed and the worker's number");
    assert_eq!(seeds(42, Order::Native, 0), first);
    assert_ne!(seeds(43, Order::Native, 0), first);
    assert_ne!(seeds(42, Order::Native, 1), first);
    // PyTorch's, with a generator of seed 42 and 10 samples.
    assert_eq!(seeds(42, Order::Torch, 0)[0], 6_909_045_637_428_952_499);
    assert_eq!(seeds(42, Order::Torch, 1)[0], 379_716_980_844_854_580);
}

static FROM_HOOK: AtomicU64 = AtomicU64::new(0);

// PyTorch: 54, A11
#[test]
fn the_hook_runs_before_the_first_sample() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let dataset = Count(8).map(|_, _| Ok(FROM_HOOK.load(Ordering::SeqCst)));
        let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(stays);
        let loader = builder.worker_init(|worker| {
            FROM_HOOK.fetch_add(100 + worker.id() as u64, Ordering::SeqCst);
            Ok(())
        });
        let loader = loader.build().unwrap();
        for _ in 0..2 {
            let mut batches = loader.iter().unwrap();
            while let Some(batch) = batches.next() {
                let worker = batches.last_batch().unwrap().worker.unwrap();
                assert_eq!(batch.unwrap().as_slice(), [100 + worker as u64], "once in the life of a process");
            }
        }
    }
    assert_eq!(FROM_HOOK.load(Ordering::SeqCst), 0, "not in the main process");
}

/// The hook comes before an iterable dataset is opened.
// PyTorch: A11
#[test]
fn the_hook_runs_before_a_stream_begins() {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    #[derive(Serialize, Deserialize)]
    struct Opens;
    impl IterableDataset for Opens {
        type Sample = u64;

        fn iter(
            &self,
            _shard: Shard,
            _cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
            Ok(std::iter::once(Ok(ORDER.load(Ordering::SeqCst))))
        }

        fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
            // 2 behind the hook, 3 before it.
            ORDER.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }
    let _watchdog = Watchdog::start();
    let builder = DataLoader::stream(Opens).num_workers(1).worker_init(|_| {
        ORDER.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |order| Some(10 * order)).ok();
        Ok(())
    });
    assert_eq!(
        all(builder.build().unwrap().iter().unwrap())[0].as_slice(),
        [10],
        "setup, the hook, the stream"
    );
}

/// What a process knows of itself: its id, its worker's number, how many there are, and its copy of the dataset.
#[derive(Serialize, Deserialize)]
struct Whoami {
    #[serde(skip)]
    copies: u64,
}

impl Dataset for Whoami {
    type Sample = (u32, u64, u64, u64);

    fn len(&self) -> usize {
        20
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let (id, workers) =
            cx.worker().map_or((99, 0), |worker| (worker.id() as u64, worker.num_workers() as u64));
        Ok((std::process::id(), id, workers, self.copies))
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.copies = 1 + cx.worker().map_or(0, |worker| worker.id() as u64);
        Ok(())
    }
}

// PyTorch: 55, W01, W02, W04
#[test]
fn a_worker_knows_who_it_is() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Whoami { copies: 0 })).build().unwrap();
        for _ in 0..2 {
            let mut batches = loader.iter().unwrap();
            let pids = batches.worker_pids();
            while let Some(batch) = batches.next() {
                let (pid, id, workers, copies) = batch.unwrap();
                let (id, workers) = (id.as_slice()[0], workers.as_slice()[0]);
                if way.workers == 0 {
                    assert_eq!((id, workers, pid.as_slice()[0]), (99, 0, std::process::id()), "not a worker");
                    continue;
                }
                assert_eq!(workers, way.workers as u64);
                assert_eq!(pid.as_slice(), [pids[id as usize]]);
                assert_eq!(batches.last_batch().unwrap().worker, Some(id as usize));
                assert_eq!(copies.as_slice(), [1 + id], "what `setup` did to this worker's copy");
            }
        }
    }
}

/// The number of processors that a sample's process may use.
#[derive(Serialize, Deserialize)]
struct Processors;

impl Dataset for Processors {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        8
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let may_use = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
        let count = (0..CpuSet::count()).filter(may_use).count();
        Ok((count as u64, (0..CpuSet::count()).find(may_use).unwrap_or(0) as u64))
    }
}

// PyTorch: 112
#[test]
fn a_hook_may_bind_its_worker_to_a_processor() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Processors).num_workers(2).worker_init(|_| {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let last = (0..CpuSet::count()).rfind(|&cpu| set.is_set(cpu).unwrap_or(false)).unwrap_or(0);
        let mut own = CpuSet::new();
        own.set(last)?;
        Ok(sched_setaffinity(Pid::from_raw(0), &own)?)
    });
    let batches = all(builder.build().unwrap().iter().unwrap());
    assert!(batches.iter().all(|(count, first)| count.as_slice() == [1] && first == &batches[0].1));
}

/// What a sample looks like depends on seed, epoch and index: PyTorch's depends on which worker met it.
// PyTorch: R03, R10, R11
#[test]
fn augmentation_does_not_depend_on_the_workers() {
    let _watchdog = Watchdog::start();
    let noise = |seed: u64| {
        one_epoch(|way| way.of(DataLoader::builder(Noise { count: 30 }).batch_size(4).seed(seed)).build())
    };
    assert_eq!(noise(1), noise(1));
    assert_ne!(noise(1), noise(2));
    // Whatever the batches are, and in whatever order they come.
    let drawn = |builder: loader_core::Builder<loader_core::kind::MapStyle<Noise>>| {
        let batches = all(builder.build().unwrap().iter().unwrap());
        let rows = batches.iter().flat_map(|(index, noise, _)| {
            index.as_slice().iter().enumerate().map(|(row, &index)| (index, noise.row(row).to_vec()))
        });
        rows.collect::<BTreeMap<u64, Vec<f32>>>()
    };
    let builder = || DataLoader::builder(Noise { count: 30 }).seed(1);
    let expected = drawn(builder());
    assert_eq!(drawn(builder().batch_size(7).shuffle(true)), expected);
    assert_eq!(drawn(builder().batch_size(3).num_workers(3).in_order(false)), expected);
}

/// PyTorch's workers go on with the generator they had; here each epoch has its own.
// PyTorch: R04
#[test]
fn each_epoch_has_its_own_noise_when_workers_stay() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let dataset = Count(4).map(|_, cx| Ok(cx.rng().random::<u64>()));
        let loader = way.of(DataLoader::builder(dataset).batch_size(4)).build().unwrap();
        let epochs: Vec<_> = (0..3).map(|_| all(loader.iter().unwrap())).collect();
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
        assert_eq!(all(loader.epoch(1).unwrap()), epochs[1]);
    }
}

/// The epoch is known to the dataset, where PyTorch's workers have no way to learn it.
// PyTorch: W05
#[test]
fn the_epoch_is_told() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Count(2).map(|_, cx| Ok(cx.epoch())))).build().unwrap();
        for epoch in 0..3 {
            assert!(all(loader.iter().unwrap()).iter().all(|batch| batch.as_slice() == [epoch]));
        }
    }
}

/// Main may have threads and locks of its own: workers are started anew, not forked off.
// PyTorch: 41
#[test]
fn threads_in_main_do_no_harm() {
    let _watchdog = Watchdog::start();
    static LOCK: std::sync::Mutex<u64> = std::sync::Mutex::new(0);
    let held = LOCK.lock().unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        (0..4).for_each(|_| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    drop(vec![0u8; 4096]);
                }
            });
        });
        let dataset = Count(20).map(|number, _| {
            // In a forked process it would be held for ever.
            *LOCK.lock().map_err(|_| anyhow::anyhow!("poisoned"))? += 1;
            Ok(number)
        });
        let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
        let batches = all(loader.iter().unwrap());
        end.store(true, Ordering::Relaxed);
        assert_eq!(batches.len(), 20);
    });
    drop(held);
}
