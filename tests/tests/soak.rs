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
    processes,
};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

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

type Figure = fn(&Footprint) -> u64;

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
    let (mut epoch, mut restarts, mut footprints) = (0, 0, Vec::new());
    let mut next_look = started;
    while started.elapsed() < time || killer.kills.load(Ordering::Relaxed) < kills {
        for kind in &kinds {
            restarts += kind(epoch, &killer);
        }
        epoch += 1;
        // After a first part everything has been used once.
        if started.elapsed() > time / 5 && Instant::now() >= next_look {
            footprints.push(Footprint::take());
            next_look = Instant::now() + time / 20;
        }
    }
    let killed = killer.stop();
    let (early, late) = footprints.split_at(footprints.len() / 2);
    // Workers that rest, or are being started, may be there or not: growth is what is never as low again as it has once been high.
    let least = |figure: Figure| late.iter().map(figure).min().unwrap();
    let most = |figure: Figure| early.iter().map(figure).max().unwrap();
    let (time, epochs) = (started.elapsed().as_secs(), 5 * epoch);
    println!("{time} s, {epochs} epochs, {killed} workers killed, {restarts} replaced in mid-epoch");
    let figures: [(&str, Figure, u64); 4] = [
        ("bytes of memory", |footprint| footprint.resident, 4 << 20),
        ("descriptors", |footprint| footprint.descriptors as u64, 4),
        ("threads", |footprint| footprint.threads as u64, 1),
        ("mappings", |footprint| footprint.mappings as u64, 4),
    ];
    for (name, figure, slack) in figures {
        let (before, after) = (most(figure), least(figure));
        println!("{name}: at most {before} in the first half, at least {after} in the second");
        assert!(after <= before + slack, "{name} grow: {footprints:?}");
    }
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
        // Collation, which is no sample, takes most of the time of a batch.
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

#[test]
fn a_few_seconds() {
    let _watchdog = Watchdog::start();
    soak(Duration::from_secs(10), 100);
}

#[test]
#[ignore = "takes half an hour; see docs/testing.md"]
fn half_an_hour() {
    soak(Duration::from_secs(30 * 60), 1_000);
}

#[test]
#[ignore = "takes some minutes; see docs/testing.md"]
fn a_thousand_kills() {
    soak(Duration::from_secs(180), 1_000);
}
