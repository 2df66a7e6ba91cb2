//! Short epochs, one after another, while workers are killed at random moments: each epoch must be right, and nothing may grow.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use loader_core::{DataLoader, Iter, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Large, Mortal, Noise, Slow, Squares},
    growth::Series,
    processes,
};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

/// What this process has.
#[derive(Debug, Clone, Copy)]
struct Footprint {
    resident: u64,
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Footprint {
    fn take() -> Self {
        Self {
            resident: processes::own_memory(std::process::id()).unwrap(),
            descriptors: processes::open_descriptors(),
            threads: fs::read_dir("/proc/self/task").unwrap().count(),
            mappings: processes::mapped_memory(),
        }
    }
}

/// Quantities that must not grow, each with the max growth over a run that its slope may show. A leak of 60
/// MB in half an hour is far above it.
type Bound = (&'static str, fn(&Footprint) -> u64, f64);

const BOUNDS: [Bound; 4] = [
    ("bytes of memory", |footprint| footprint.resident, (16 << 20) as f64),
    ("descriptors", |footprint| footprint.descriptors as u64, 32.0),
    ("threads", |footprint| footprint.threads as u64, 4.0),
    ("mappings", |footprint| footprint.mappings as u64, 32.0),
];

/// Loads an epoch and checks it; gives how many workers were replaced.
type Epoch = dyn Fn(u64, &Killer) -> u64;

/// Sends SIGKILL to a worker of those that are running, now and then.
struct Killer {
    targets: Arc<Mutex<Vec<u32>>>,
    kills: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Killer {
    fn start(seed: u64, interval: Duration) -> Self {
        let (targets, kills, stop) =
            (Arc::<Mutex<Vec<u32>>>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (theirs, counted, stopped) = (Arc::clone(&targets), Arc::clone(&kills), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(interval.mul_f64(random.random_range(0.0..2.0)));
                // While it is locked none of them is reaped: the numbers are still theirs.
                let pids = theirs.lock().unwrap();
                if !pids.is_empty() {
                    let victim = pids[random.random_range(0..pids.len())];
                    if processes::is_running(victim) && processes::try_signal(victim, Signal::SIGKILL) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Self { targets, kills, stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.kills.load(Ordering::Relaxed)
    }
}

/// Loads an epoch while the killer is about. Gives what it was, and how many workers were replaced.
fn hunted<B: Batch>(mut batches: Iter<B>, killer: &Killer) -> ((u64, u64), u64) {
    let mut digest = Digest::new();
    loop {
        *killer.targets.lock().unwrap() = batches.worker_pids();
        let Some(batch) = batches.next() else { break };
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        digest.add(&batches.last_batch().unwrap().indices, &batch);
    }
    killer.targets.lock().unwrap().clear();
    ((digest.order(), digest.content()), batches.report().restarts)
}

/// A loader with its undisturbed twin, as one: loads an epoch, checks it, and counts.
fn epochs<B: Batch>(hunted_one: DataLoader<B>, undisturbed: DataLoader<B>) -> impl Fn(u64, &Killer) -> u64 {
    let quiet = Killer {
        targets: Arc::default(),
        kills: Arc::default(),
        stop: Arc::default(),
        thread: thread::spawn(|| {}),
    };
    move |epoch, killer| {
        let (expected, _) = hunted(undisturbed.epoch(epoch).unwrap(), &quiet);
        let (found, restarts) = hunted(hunted_one.epoch(epoch).unwrap(), killer);
        assert_eq!(found, expected, "epoch {epoch}");
        restarts
    }
}

/// Runs for `time`, and until `kills` workers were killed.
fn soak(time: Duration, kills: u64) {
    const FOREVER: u32 = 1_000_000;
    let noise = |workers| {
        DataLoader::builder(Noise { count: 400 })
            .batch_size(8)
            .shuffle(true)
            .num_workers(workers)
            .max_worker_deaths(FOREVER)
            .on_warning(|_| {})
    };
    let large = |workers| {
        DataLoader::builder(Large { count: 40, bytes: 200_000 })
            .batch_size(4)
            .num_workers(workers)
            .max_worker_deaths(FOREVER)
            .on_warning(|_| {})
    };
    let stream = |workers| {
        let squares = DataLoader::stream(Squares { count: 300 }).snapshots().shards(3).batch_size(4);
        let squares = squares
            .collate(|samples| Ok(samples.into_iter().map(|(square, _)| square).collect::<Vec<u64>>()));
        squares.num_workers(workers).max_worker_deaths(FOREVER).on_warning(|_| {})
    };
    let kinds: [Box<Epoch>; 5] = [
        Box::new(epochs(noise(2).build().unwrap(), noise(0).build().unwrap())),
        Box::new(epochs(noise(3).persistent_workers(true).build().unwrap(), noise(0).build().unwrap())),
        Box::new(epochs(large(2).build().unwrap(), large(0).build().unwrap())),
        Box::new(epochs(stream(2).build().unwrap(), stream(0).build().unwrap())),
        Box::new(epochs(noise(2).hedge(true).build().unwrap(), noise(0).build().unwrap())),
    ];
    let (started, killer) = (Instant::now(), Killer::start(7, Duration::from_millis(15)));
    let (mut epoch, mut restarts, mut series) = (0, 0, BOUNDS.map(|_| Series::default()));
    while started.elapsed() < time || killer.kills.load(Ordering::Relaxed) < kills {
        for kind in &kinds {
            restarts += kind(epoch, &killer);
            let (seconds, footprint) = (started.elapsed().as_secs_f64(), Footprint::take());
            for (values, (_, figure, _)) in series.iter_mut().zip(BOUNDS) {
                values.add(seconds, figure(&footprint) as f64);
            }
        }
        epoch += 1;
    }
    let killed = killer.stop();
    let (time, epochs) = (started.elapsed().as_secs(), 5 * epoch);
    println!("soak: {time} s, {epochs} epochs, {killed} workers killed, {restarts} replaced in mid-epoch");
    let mut grown = Vec::new();
    for (values, (name, _, most)) in series.iter().zip(BOUNDS) {
        let growth = values.growth();
        println!("soak: {name}: {growth} (allowed: {most})");
        grown.extend((growth.total > most).then_some(name));
    }
    assert!(grown.is_empty(), "{grown:?} grow");
    drop(kinds);
}

/// Loads epochs for `time` while 20 workers a second are killed. With the default options each epoch is that of an undisturbed run.
fn twenty_kills_a_second(time: Duration) {
    let slow = |workers, delay| {
        let dataset = Slow { count: 500, delay };
        DataLoader::builder(dataset).batch_size(8).shuffle(true).num_workers(workers).on_warning(|_| {})
    };
    let stream = |workers| {
        let mortal = Mortal { count: 2_000, fault: Fault::Hang, lives: "/nowhere".into() };
        let stream = DataLoader::stream(mortal).snapshots().shards(3).batch_size(8);
        stream.num_workers(workers).on_warning(|_| {})
    };
    let sample = Duration::from_millis(1);
    let kinds: [Box<Epoch>; 3] = [
        Box::new(epochs(slow(2, sample).build().unwrap(), slow(0, Duration::ZERO).build().unwrap())),
        // Collation, during which the worker is in no sample, takes most of the time of a batch.
        Box::new(epochs(
            slow(2, Duration::ZERO).collate(collate_slowly).build().unwrap(),
            slow(0, Duration::ZERO).build().unwrap(),
        )),
        Box::new(epochs(stream(2).build().unwrap(), stream(0).build().unwrap())),
    ];
    let (started, killer) = (Instant::now(), Killer::start(7, Duration::from_millis(50)));
    let (mut epoch, mut restarts) = (0, 0);
    while started.elapsed() < time {
        for kind in &kinds {
            restarts += kind(epoch, &killer);
        }
        epoch += 1;
    }
    let (seconds, killed) = (started.elapsed().as_secs_f64(), killer.stop());
    println!(
        "{seconds:.1} s, {} epochs, {killed} workers killed, {restarts} replaced in mid-epoch",
        3 * epoch
    );
    // A busy machine may kill more slowly.
    assert!(killed as f64 > 5.0 * seconds, "{killed} workers were killed in {seconds} s");
}

fn collate_slowly(samples: Vec<u64>) -> anyhow::Result<Tensor<u64>> {
    thread::sleep(Duration::from_millis(10));
    Ok(Tensor::from_slice(&samples, [samples.len()])?)
}

// PyTorch: U08
#[test]
fn twenty_kills_a_second_lose_nothing() {
    let _watchdog = Watchdog::start();
    twenty_kills_a_second(Duration::from_secs(4));
}

#[test]
#[ignore = "takes a minute; see docs/testing.md"]
fn twenty_kills_a_second_for_a_minute() {
    twenty_kills_a_second(Duration::from_secs(60));
}

/// Numbers that take a millisecond each.
#[derive(Debug, Serialize, Deserialize)]
struct SlowStream {
    count: u64,
    delay: Duration,
}

impl SlowStream {
    fn from(&self, first: u64) -> impl Iterator<Item = anyhow::Result<u64>> + Send {
        let delay = self.delay;
        (first..self.count).map(move |number| {
            thread::sleep(delay);
            Ok(number)
        })
    }
}

impl IterableDataset for SlowStream {
    type Sample = u64;

    fn iter(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        Ok(self.from(0))
    }

    fn iter_at(
        &self,
        _shard: Shard,
        position: u64,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<u64>> + Send>> {
        Ok(Some(self.from(position)))
    }
}

/// Each worker reads a small part of the stream before it is killed.
#[test]
fn a_stream_that_is_opened_anywhere_makes_headway_under_kills() {
    let _watchdog = Watchdog::start();
    let stream = |workers, delay| {
        let stream = DataLoader::stream(SlowStream { count: 1_500, delay }.map(|number, _| Ok(number + 1)));
        stream.batch_size(10).num_workers(workers).on_warning(|_| {}).build().unwrap()
    };
    let load = epochs(stream(1, Duration::from_millis(1)), stream(0, Duration::ZERO));
    let killer = Killer::start(3, Duration::from_millis(150));
    let restarts = load(0, &killer);
    println!("{restarts} workers were replaced, {} killed", killer.stop());
    assert!(restarts >= 3, "{restarts} workers were killed in more than a second");
}

#[test]
fn a_few_seconds() {
    let _watchdog = Watchdog::start();
    soak(Duration::from_secs(10), 100);
}

/// For `SOAK_SECONDS`, or half an hour.
#[test]
#[ignore = "takes half an hour; see docs/testing.md"]
fn for_as_long_as_asked() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(30 * 60, |seconds| seconds.parse().unwrap());
    soak(Duration::from_secs(seconds), 100);
}
