//! Any combination of options, with workers that are killed at any moment: the digests are those of an undisturbed run.

use std::time::{Duration, Instant};

use loader_core::{Builder, collate::Batch, kind::DatasetKind, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Counting, Fault, Large, Mortal, Noise},
    digest,
    traces::Before,
};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use crate::hunted::hunted_until;

/// What one round is like.
#[derive(Debug)]
struct Combination {
    workers: usize,
    prefetch: usize,
    batch_size: usize,
    stays: bool,
    shuffle: bool,
    hedge: bool,
    limit: u64,
    shards: usize,
    pause: Duration,
    kills: usize,
}

impl Combination {
    fn any(rng: &mut ChaCha8Rng) -> Self {
        Self {
            workers: rng.random_range(1..=4),
            prefetch: rng.random_range(1..=5),
            batch_size: rng.random_range(1..=9),
            stays: rng.random(),
            shuffle: rng.random(),
            hedge: rng.random(),
            limit: if rng.random() { 1 << 30 } else { 12 << 20 },
            shards: rng.random_range(1..=5),
            pause: Duration::from_millis(rng.random_range(2..12)),
            kills: rng.random_range(1..25),
        }
    }

    /// Gives `builder` the options, for so many workers.
    fn apply<K: DatasetKind, C, W>(&self, builder: Builder<K, C, W>, workers: usize) -> Builder<K, C, W> {
        let builder = builder.batch_size(self.batch_size).num_workers(workers).on_warning(|_| {});
        if workers == 0 {
            return builder;
        }
        let builder = builder.prefetch_factor(self.prefetch).persistent_workers(self.stays).hedge(self.hedge);
        builder.shared_memory_limit(self.limit).max_worker_deaths(1000)
    }

    fn assert_same<B: Batch>(&self, build: impl Fn(usize) -> DataLoader<B>) {
        let load = |loader: DataLoader<B>| [0, 1].map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap());
        let expected = load(build(0));
        hunted_until(self.kills, self.pause, || assert_eq!(load(build(self.workers)), expected));
    }
}

fn assert_same(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let options = Combination::any(&mut rng);
    println!("{seed}: {options:?}");
    match seed % 4 {
        0 => options.assert_same(|workers| {
            let builder = DataLoader::builder(Noise { count: 1500 }).shuffle(options.shuffle);
            options.apply(builder, workers).build().unwrap()
        }),
        1 => options.assert_same(|workers| {
            let builder = DataLoader::builder(Large { count: 200, bytes: 150_000 }).shuffle(options.shuffle);
            options.apply(builder, workers).build().unwrap()
        }),
        2 => options.assert_same(|workers| {
            let builder = DataLoader::stream(Counting { count: 1500 }).shards(options.shards);
            options.apply(builder, workers).build().unwrap()
        }),
        _ => options.assert_same(|workers| {
            let dataset = Mortal { count: 800, fault: Fault::Hang, lives: "/nowhere".into() };
            let builder = DataLoader::stream(dataset).snapshots().shards(options.shards);
            options.apply(builder, workers).build().unwrap()
        }),
    }
}

fn run(seeds: impl Iterator<Item = u64>, time: Duration) {
    let before = Before::take();
    let started = Instant::now();
    seeds.take_while(|_| started.elapsed() < time).for_each(assert_same);
    before.assert_nothing_left();
}

#[test]
fn a_few() {
    alone(|| run(0..4, Duration::from_secs(30)));
}

/// As many as there is time for: `cargo test -p loader-tests --test deaths combinations -- --ignored`. `FAULTS_SEED` says where to begin.
#[test]
#[ignore = "takes 40 seconds"]
fn many() {
    alone(|| {
        let first = std::env::var("FAULTS_SEED").map_or(1000, |seed| seed.parse().unwrap());
        run(first.., Duration::from_secs(40));
    });
}
