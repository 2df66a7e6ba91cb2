//! Short epochs, one after another, while workers are killed at random moments. Each epoch must be right, and
//! nothing may grow.

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
    datasets::{Fault, Flaky, Large, Noise, Slow, Squares},
    growth::Series,
    processes,
};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

/// Resources of this process.
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

/// Loads and checks an epoch. Returns the number of workers that were replaced.
type Epoch = dyn Fn(u64, &Killer) -> u64;

/// Sends SIGKILL to a random worker at random moments.
struct Killer {
    /// The workers of the current epoch.
    targets: Arc<Mutex<Vec<u32>>>,
    kills: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Killer {
    fn start(seed: u64, interval: Duration) -> Self {
        let (targets, kills, stop) =
            (Arc::<Mutex<Vec<u32>>>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (victims, counted, stopped) = (Arc::clone(&targets), Arc::clone(&kills), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(interval.mul_f64(random.random_range(0.0..2.0)));
                // While this is locked, no worker is reaped, so no other process has one of these ids.
                let pids = victims.lock().unwrap();
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

/// Loads an epoch while the killer kills its workers. Returns its digests and the number of workers that were
/// replaced.
fn hunted<B: Batch>(mut batches: Iter<B>, killer: &Killer) -> ((u64, u64), u64) {
    let mut digest = BatchDigest::new();
    loop {
        *killer.targets.lock().unwrap() = batches.worker_pids();
        let Some(batch) = batches.next() else { break };
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        digest.add(&batches.last_batch().unwrap().indices, &batch);
    }
    killer.targets.lock().unwrap().clear();
    ((digest.order(), digest.content()), batches.report().restarts)
}

/// Returns a function that loads an epoch while workers are killed, and compares it with that of an
/// undisturbed loader.
fn epochs<B: Batch>(disturbed: DataLoader<B>, undisturbed: DataLoader<B>) -> impl Fn(u64, &Killer) -> u64 {
    let idle = Killer {
        targets: Arc::default(),
        kills: Arc::default(),
        stop: Arc::default(),
        thread: thread::spawn(|| {}),
    };
    move |epoch, killer| {
        let (expected, _) = hunted(undisturbed.epoch(epoch).unwrap(), &idle);
        let (found, restarts) = hunted(disturbed.epoch(epoch).unwrap(), killer);
        assert_eq!(found, expected, "epoch {epoch}");
        restarts
    }
}

/// Loads epochs for at least `time` and until `kills` workers were killed, and checks that nothing grows.
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
    for (values, (name, _, max)) in series.iter().zip(BOUNDS) {
        let growth = values.growth();
        println!("soak: {name}: {growth} (allowed: {max})");
        grown.extend((growth.total > max).then_some(name));
    }
    assert!(grown.is_empty(), "{grown:?} grow");
    drop(kinds);
}

/// Loads epochs for `time` while 20 workers are killed per second. With the default options, each epoch must
/// be that of an undisturbed run.
fn twenty_kills_a_second(time: Duration) {
    let slow = |workers, delay| {
        let dataset = Slow { count: 500, delay };
        DataLoader::builder(dataset).batch_size(8).shuffle(true).num_workers(workers).on_warning(|_| {})
    };
    let stream = |workers| {
        let flaky = Flaky { count: 2_000, fault: Fault::Hang, tokens: "/nowhere".into() };
        let stream = DataLoader::stream(flaky).snapshots().shards(3).batch_size(8);
        stream.num_workers(workers).on_warning(|_| {})
    };
    let sample = Duration::from_millis(1);
    let kinds: [Box<Epoch>; 3] = [
        Box::new(epochs(slow(2, sample).build().unwrap(), slow(0, Duration::ZERO).build().unwrap())),
        // Collation takes most of the time of a batch. Meanwhile the worker loads no sample.
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
    // On a busy machine the killer is slower.
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

/// Numbers, each of which takes a while. The stream can be opened at any position.
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
fn a_stream_that_can_be_opened_anywhere_makes_progress_under_kills() {
    let _watchdog = Watchdog::start();
    let stream = |workers, delay| {
        let stream = DataLoader::stream(SlowStream { count: 1_500, delay }.map(|number, _| Ok(number + 1)));
        stream.batch_size(10).num_workers(workers).on_warning(|_| {}).build().unwrap()
    };
    let load = epochs(stream(1, Duration::from_millis(1)), stream(0, Duration::ZERO));
    let killer = Killer::start(3, Duration::from_millis(150));
    let restarts = load(0, &killer);
    println!("{restarts} workers were replaced, {} killed", killer.stop());
    assert!(restarts >= 3, "only {restarts} workers were replaced in more than a second");
}

#[test]
fn nothing_grows_in_ten_seconds() {
    let _watchdog = Watchdog::start();
    soak(Duration::from_secs(10), 100);
}

/// Takes `SOAK_SECONDS`, or half an hour.
#[test]
#[ignore = "takes half an hour; see docs/testing.md"]
fn for_as_long_as_asked() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(30 * 60, |seconds| seconds.parse().unwrap());
    soak(Duration::from_secs(seconds), 100);
}
