//! Loaders with chosen and with random combinations of options, whose workers are killed all the time. Every
//! epoch must equal an undisturbed one.

use std::time::{Duration, Instant};

use loader_core::{Builder, collate::Batch, kind::DatasetKind, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Counting, Fault, Flaky, Large, Noise},
    digest_rest,
    traces::Before,
};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use crate::kills::kill_until;

#[derive(Debug, Clone, Copy)]
enum Data {
    Noise { count: usize },
    Large { count: usize, bytes: usize },
    Stream { count: u64 },
    Snapshots { count: usize },
}

#[derive(Debug, Clone)]
struct Combination {
    data: Data,
    workers: usize,
    prefetch: usize,
    batch_size: usize,
    persistent: bool,
    shuffle: bool,
    hedge: bool,
    memory: u64,
    shards: usize,
    /// Time between two kills.
    pause: Duration,
    kills: usize,
    digest: bool,
}

/// The chosen combinations differ from this one in some options.
const BASE: Combination = Combination {
    data: Data::Noise { count: 3000 },
    workers: 2,
    prefetch: 2,
    batch_size: 4,
    persistent: false,
    shuffle: true,
    hedge: false,
    memory: 1 << 30,
    shards: 5,
    pause: Duration::from_millis(7),
    kills: 30,
    digest: true,
};

impl Combination {
    fn random(seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        Self {
            data: match seed % 4 {
                0 => Data::Noise { count: 1500 },
                1 => Data::Large { count: 200, bytes: 150_000 },
                2 => Data::Stream { count: 1500 },
                _ => Data::Snapshots { count: 800 },
            },
            workers: rng.random_range(1..=4),
            prefetch: rng.random_range(1..=5),
            batch_size: rng.random_range(1..=9),
            persistent: rng.random(),
            shuffle: rng.random(),
            hedge: rng.random(),
            memory: if rng.random() { 1 << 30 } else { 12 << 20 },
            shards: rng.random_range(1..=5),
            pause: Duration::from_millis(rng.random_range(2..12)),
            kills: rng.random_range(1..25),
            digest: rng.random(),
        }
    }

    /// Sets these options on `builder`. Without workers, sets only the options that change the batches.
    fn apply<K: DatasetKind, C, W>(&self, builder: Builder<K, C, W>, workers: usize) -> Builder<K, C, W> {
        let builder =
            builder.batch_size(self.batch_size).num_workers(workers).digest(self.digest).on_warning(|_| {});
        if workers == 0 {
            return builder;
        }
        let builder = builder.prefetch_factor(self.prefetch).persistent_workers(self.persistent);
        builder.hedge(self.hedge).shared_memory_limit(self.memory).max_worker_deaths(1000)
    }

    /// Loads epochs until `kills` workers were killed. Each epoch must equal an undisturbed one.
    fn check(&self) {
        println!("{self:?}");
        match self.data {
            Data::Noise { count } => self.check_loader(|workers| {
                let builder = DataLoader::builder(Noise { count }).shuffle(self.shuffle);
                self.apply(builder, workers).build().unwrap()
            }),
            Data::Large { count, bytes } => self.check_loader(|workers| {
                let builder = DataLoader::builder(Large { count, bytes }).shuffle(self.shuffle);
                self.apply(builder, workers).build().unwrap()
            }),
            Data::Stream { count } => self.check_loader(|workers| {
                let builder = DataLoader::stream(Counting { count }).shards(self.shards);
                self.apply(builder, workers).build().unwrap()
            }),
            Data::Snapshots { count } => self.check_loader(|workers| {
                let dataset = Flaky { count, fault: Fault::Hang, tokens: "/nowhere".into() };
                let builder = DataLoader::stream(dataset).snapshots().shards(self.shards);
                self.apply(builder, workers).build().unwrap()
            }),
        }
    }

    fn check_loader<B: Batch>(&self, build: impl Fn(usize) -> DataLoader<B>) {
        let load = |loader: &DataLoader<B>| {
            [0, 1].map(|epoch| {
                let mut batches = loader.epoch(epoch).unwrap();
                (digest_rest(&mut batches).unwrap(), batches.report().digest)
            })
        };
        let expected = load(&build(0));
        let loader = build(self.workers);
        kill_until(self.kills, self.pause, || assert_eq!(load(&loader), expected, "{self:?}"));
    }
}

fn check_alone(combinations: impl Iterator<Item = Combination>, time: Duration) {
    let before = Before::take();
    let started = Instant::now();
    combinations.take_while(|_| started.elapsed() < time).for_each(|combination| combination.check());
    before.assert_nothing_left();
}

#[test]
fn kills_change_nothing_with_chosen_options() {
    alone(|| {
        let chosen = [
            BASE,
            // Each batch needs a larger slot than the worker has at first.
            Combination { data: Data::Large { count: 400, bytes: 300_000 }, batch_size: 2, ..BASE },
            // A list of 700 indices is too long for a message, so it is sent in the slot.
            Combination { data: Data::Noise { count: 14_000 }, batch_size: 700, ..BASE },
            Combination { data: Data::Stream { count: 4000 }, ..BASE },
            Combination { data: Data::Snapshots { count: 1500 }, shards: 3, ..BASE },
        ];
        let both = |chosen: Combination| [false, true].map(|persistent| Combination { persistent, ..chosen });
        check_alone(chosen.into_iter().flat_map(both), Duration::MAX);
    });
}

#[test]
fn kills_change_nothing_with_random_options() {
    alone(|| check_alone((0..4).map(Combination::random), Duration::from_secs(30)));
}

/// Run it with `cargo test -p loader-tests --test deaths combinations -- --ignored`. `FAULTS_SEED` sets the
/// first seed.
#[test]
#[ignore = "takes 40 seconds"]
fn kills_change_nothing_with_many_random_options() {
    alone(|| {
        let first = std::env::var("FAULTS_SEED").map_or(1000, |seed| seed.parse().unwrap());
        check_alone((first..).map(Combination::random), Duration::from_secs(40));
    });
}
