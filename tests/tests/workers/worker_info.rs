//! What user code in a worker knows and may do: its worker's number and seed, the epoch, `worker_init`,
//! random numbers.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use loader_core::{Builder, kind::MapStyle, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise},
    ways::{WAYS, all, two_epochs},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// Returns the seeds of six workers. With one task per worker, no task moves to another worker.
fn seeds(seed: u64, order: Order, epoch: u64) -> Vec<u64> {
    let dataset = Count(10).map(|_, cx| Ok(cx.worker().map_or(0, WorkerInfo::seed)));
    let builder = DataLoader::builder(dataset).num_workers(6).prefetch_factor(1).seed(seed).order(order);
    let loader = builder.shuffle(true).build().unwrap();
    all(loader.epoch(epoch).unwrap()).iter().take(6).map(|batch| batch.as_slice()[0]).collect()
}

// PyTorch: 51, 52, R01, R02
#[test]
fn a_workers_seed_depends_on_seed_epoch_and_worker() {
    let _watchdog = Watchdog::start();
    let first = seeds(42, Order::Native, 0);
    assert!(first.iter().copied().eq(first[0]..first[0] + 6), "a base seed plus the worker's number");
    assert_eq!(seeds(42, Order::Native, 0), first);
    assert_ne!(seeds(43, Order::Native, 0), first);
    assert_ne!(seeds(42, Order::Native, 1), first);
    // The seeds that PyTorch gives with a generator of seed 42 and 10 samples.
    assert_eq!(seeds(42, Order::Torch, 0)[0], 6_909_045_637_428_952_499);
    assert_eq!(seeds(42, Order::Torch, 1)[0], 379_716_980_844_854_580);
}

/// What `worker_init` leaves in its process.
static FROM_INIT: AtomicU64 = AtomicU64::new(0);

// PyTorch: 54, 106, A11
#[test]
fn worker_init_runs_once_in_each_worker_before_the_first_sample() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let dataset = Count(8).map(|_, _| Ok(FROM_INIT.load(Ordering::SeqCst)));
        let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(persistent);
        let loader = builder.worker_init(|worker| {
            FROM_INIT.fetch_add(100 + worker.id() as u64, Ordering::SeqCst);
            Ok(())
        });
        let loader = loader.build().unwrap();
        for _ in 0..2 {
            let mut batches = loader.iter().unwrap();
            while let Some(batch) = batches.next() {
                let worker = batches.last_batch().unwrap().worker.unwrap();
                assert_eq!(batch.unwrap().as_slice(), [100 + worker as u64]);
            }
        }
    }
    assert_eq!(FROM_INIT.load(Ordering::SeqCst), 0, "it does not run in main");
}

// PyTorch: A11
#[test]
fn worker_init_runs_after_setup_and_before_a_stream_is_opened() {
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
            ORDER.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }
    let _watchdog = Watchdog::start();
    let builder = DataLoader::stream(Opens).num_workers(1).worker_init(|_| {
        ORDER.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |order| Some(10 * order)).ok();
        Ok(())
    });
    // In any other order of the three calls the sample would be 0 or 1.
    assert_eq!(all(builder.build().unwrap().iter().unwrap())[0].as_slice(), [10]);
}

/// Samples `(process id, worker, num_workers, what setup stored in this copy of the dataset, epoch)`.
#[derive(Serialize, Deserialize)]
struct Whoami {
    #[serde(skip)]
    stored: u64,
}

impl Dataset for Whoami {
    type Sample = (u32, u64, u64, u64, u64);

    fn len(&self) -> usize {
        20
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let (id, workers) =
            cx.worker().map_or((99, 0), |worker| (worker.id() as u64, worker.num_workers() as u64));
        Ok((std::process::id(), id, workers, self.stored, cx.epoch()))
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.stored = 1 + cx.worker().map_or(0, |worker| worker.id() as u64);
        Ok(())
    }
}

/// PyTorch's workers cannot learn the epoch.
// PyTorch: 55, W01, W02, W04, W05
#[test]
fn a_sample_knows_its_worker_and_its_epoch() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.apply(DataLoader::builder(Whoami { stored: 0 })).build().unwrap();
        for expected in 0..3 {
            let mut batches = loader.iter().unwrap();
            let pids = batches.worker_pids();
            while let Some(batch) = batches.next() {
                let (pid, id, workers, stored, epoch) = batch.unwrap();
                let (id, workers) = (id.as_slice()[0], workers.as_slice()[0]);
                assert_eq!(epoch.as_slice(), [expected]);
                if way.workers == 0 {
                    assert_eq!((id, workers, pid.as_slice()[0]), (99, 0, std::process::id()), "not a worker");
                    continue;
                }
                assert_eq!(workers, way.workers as u64);
                assert_eq!(pid.as_slice(), [pids[id as usize]]);
                assert_eq!(batches.last_batch().unwrap().worker, Some(id as usize));
                assert_eq!(stored.as_slice(), [1 + id]);
            }
        }
    }
}

/// Samples `(number of processors that the process may use, the first of them)`.
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
fn worker_init_may_bind_its_worker_to_a_processor() {
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

/// In PyTorch, random numbers depend on the worker that loads the sample, and persistent workers continue
/// with the generators of the previous epoch.
// PyTorch: R03, R04, R10, R11
#[test]
fn random_numbers_depend_on_seed_epoch_and_index_only() {
    let _watchdog = Watchdog::start();
    let epochs = |seed: u64| {
        two_epochs(|way| way.apply(DataLoader::builder(Noise { count: 30 }).batch_size(4).seed(seed)).build())
    };
    let [first, second] = epochs(1);
    assert_ne!(first, second);
    assert_ne!(first, epochs(2)[0]);
    // Sizes of batches and their order change nothing.
    let drawn = |builder: Builder<MapStyle<Noise>>, epoch| {
        let batches = all(builder.build().unwrap().epoch(epoch).unwrap());
        let rows = batches.iter().flat_map(|(index, noise, _)| {
            index.as_slice().iter().enumerate().map(|(row, &index)| (index, noise.row(row).to_vec()))
        });
        rows.collect::<BTreeMap<u64, Vec<f32>>>()
    };
    let builder = || DataLoader::builder(Noise { count: 30 }).seed(1);
    for epoch in [0, 1] {
        let expected = drawn(builder().batch_size(4), epoch);
        assert_eq!(
            expected[&29],
            [&first, &second][epoch as usize][7].1.row(1),
            "a repeated epoch is the same"
        );
        assert_eq!(drawn(builder().batch_size(7).shuffle(true), epoch), expected);
        assert_eq!(drawn(builder().batch_size(3).num_workers(3).in_order(false), epoch), expected);
    }
}

/// Workers are started as new programs. In a forked process, a lock that another thread of main held would
/// stay locked.
// PyTorch: 41
#[test]
fn threads_and_locks_of_main_do_not_affect_workers() {
    static LOCK: Mutex<u64> = Mutex::new(0);
    let _watchdog = Watchdog::start();
    let held = LOCK.lock().unwrap();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    drop(vec![0u8; 4096]);
                }
            });
        }
        let dataset = Count(20).map(|number, _| {
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

#[test]
fn without_move_tasks_each_batch_is_loaded_by_the_worker_whose_turn_it_is() {
    let _watchdog = Watchdog::start();
    // Worker 0 needs 30 times as long as worker 1, which would take over its batches.
    let dataset = Count(24).map(|index, cx| {
        let worker = cx.worker().map_or(0, WorkerInfo::id);
        thread::sleep(Duration::from_millis(if worker == 0 { 30 } else { 1 }));
        Ok((index, worker as u64))
    });
    let builder = DataLoader::builder(dataset).batch_size(1).num_workers(2).prefetch_factor(3);
    let loader = builder.move_tasks(false).build().unwrap();
    let mut begun = loader.iter().unwrap();
    let first: Vec<_> = begun.by_ref().take(3).map(Result::unwrap).collect();
    let state = begun.state();
    drop(begun);
    // A resumed epoch begins with the worker whose turn it was.
    let rest = all(loader.resume(&state).unwrap());
    assert_eq!(rest.len(), 21);
    for (indices, workers) in first.into_iter().chain(rest) {
        assert_eq!(workers.as_slice()[0], indices.as_slice()[0] % 2);
    }
}
