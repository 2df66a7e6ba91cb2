//! Epochs that are interrupted and resumed, of every kind of dataset and sampler.

use loader_core::{Error, State, collate::Batch, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise, Shards},
    ways::{Way, all},
};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

/// Without workers, with three, and with three that stay: as PyTorch's `StatefulDataLoader` is tested.
pub(crate) const WAYS: [Way; 3] =
    [Way { workers: 0, stays: false }, Way { workers: 3, stays: false }, Way { workers: 3, stays: true }];

/// Through text, as in a checkpoint.
pub(crate) fn saved(state: &State) -> State {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// Interrupts the second epoch behind 1 and 10 batches, and at its end, in every way; what is loaded afterwards, by another loader and
/// by the same, is what would have come, and so is the epoch behind it.
fn interrupt<B>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>)
where
    B: Batch + PartialEq + std::fmt::Debug,
{
    let reference = build(WAYS[0]).unwrap();
    let [_, second, third] = [0, 1, 2].map(|_| all(reference.iter().unwrap()));
    for way in WAYS {
        let loader = build(way).unwrap();
        for stop in [1, 10, second.len()] {
            let mut batches = loader.epoch(1).unwrap();
            let first: Vec<B> = batches.by_ref().take(stop).map(Result::unwrap).collect();
            assert_eq!(first, second[..stop]);
            let state = saved(&batches.state());
            // What is loaded later does not change it.
            let copy = state.clone();
            assert_eq!(batches.by_ref().filter(Result::is_ok).count(), second.len() - stop);
            assert_eq!(state, copy);
            drop(batches);
            let other = build(way).unwrap();
            // The same loader at every second stop.
            let resumed = if stop % 2 == 0 { &other } else { &loader };
            let what = format!("{way:?}, {stop} batches");
            let rest = resumed.resume(&state).unwrap();
            if stop < second.len() {
                assert_eq!(saved(&rest.state()), state, "{what}: it stands where it was put");
                assert_eq!(all(rest), second[stop..], "{what}");
                assert_eq!(all(resumed.iter().unwrap()), third, "{what}: the epoch behind it");
            } else {
                assert_eq!((rest.epoch(), &all(rest)), (2, &third), "{what}");
            }
        }
    }
}

/// A stream that writes down where it is, and its generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stateful {
    sizes: Vec<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    next: u64,
    end: u64,
    /// What a generator is rebuilt from.
    seed: u64,
    drawn: u64,
}

/// Numbers with noise.
struct Numbers {
    place: Place,
    rng: ChaCha8Rng,
}

impl Iterator for Numbers {
    type Item = anyhow::Result<(u64, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        let Place { next, end, drawn, .. } = &mut self.place;
        if next == end {
            return None;
        }
        *next += 1;
        *drawn += 1;
        Some(Ok((*next - 1, self.rng.random())))
    }
}

impl SnapshotIterator for Numbers {
    type Snapshot = Place;

    fn snapshot(&self) -> anyhow::Result<Place> {
        Ok(self.place.clone())
    }
}

impl IterableDataset for Stateful {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Stateful {
    type Snapshot = Place;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Place>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u32)>, Snapshot = Place> + Send>
    {
        let first: u64 = self.sizes[..shard.index()].iter().sum();
        let end = first + self.sizes[shard.index()];
        let place = match snapshot {
            Some(place) => place,
            None => Place { next: first, end, seed: cx.rng().random(), drawn: 0 },
        };
        let mut rng = ChaCha8Rng::seed_from_u64(place.seed);
        for _ in 0..place.drawn {
            rng.random::<u32>();
        }
        Ok(Numbers { place, rng })
    }
}

pub(crate) fn stateful() -> Stateful {
    Stateful { sizes: vec![0, 100, 37] }
}

// PyTorch: 200, 201, 202, 203, 204, 215, 216, 217, 218, 219, 244, 245, 263, A18, T06, T10, T13
#[test]
fn streams_with_snapshots() {
    let _watchdog = Watchdog::start();
    assert_resumes(stateful);
}

// PyTorch: 225, 226, 227, 228, 229
#[test]
fn a_dataset_that_is_its_own_iterator() {
    let _watchdog = Watchdog::start();
    assert_resumes(|| OwnIterator { sizes: [0, 100, 37], left: 0, generator: 0 });
}

/// Interrupts a stream of three shards, with a snapshot every few batches, and with one for each sample.
fn assert_resumes<D: SnapshotDataset<Sample = (u64, u32)>>(dataset: impl Fn() -> D) {
    for every in [2, 5] {
        interrupt(|way| {
            let builder = DataLoader::stream(dataset()).snapshots().snapshot_every(every);
            way.of(builder.shards(3).batch_size(4)).build()
        });
    }
    interrupt(|way| way.of(DataLoader::stream(dataset()).snapshots().shards(3).unbatched()).build());
}

/// A dataset that is its own iterator: its snapshot is itself, with the state of its generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OwnIterator {
    sizes: [u64; 3],
    left: u64,
    /// State of a linear congruential generator.
    generator: u64,
}

impl Iterator for OwnIterator {
    type Item = anyhow::Result<(u64, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.generator =
            self.generator.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Some(Ok((self.left, (self.generator >> 32) as u32)))
    }
}

impl SnapshotIterator for OwnIterator {
    type Snapshot = Self;

    fn snapshot(&self) -> anyhow::Result<Self> {
        Ok(self.clone())
    }
}

impl IterableDataset for OwnIterator {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for OwnIterator {
    type Snapshot = Self;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u32)>, Snapshot = Self> + Send>
    {
        // Another one in each epoch.
        let generator = cx.rng().random();
        Ok(snapshot.unwrap_or_else(|| Self { left: self.sizes[shard.index()], generator, ..self.clone() }))
    }
}

// PyTorch: 205, 206, 207, 208, 209, 246, 247, T16
#[test]
fn map_style_datasets() {
    let _watchdog = Watchdog::start();
    interrupt(|way| {
        let builder = DataLoader::builder(Noise { count: 45 }).batch_size(4).shuffle(true);
        way.of(builder.seed(3)).build()
    });
    interrupt(|way| way.of(DataLoader::builder(Count(12)).unbatched().shuffle(true)).build());
}

/// A sampler of the user's, whose order is another in each epoch.
#[derive(Debug)]
struct Rotated(usize);

impl Sampler for Rotated {
    fn len(&self) -> usize {
        self.0
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let len = self.0;
        Box::new((0..len).map(move |place| (place + epoch.number as usize) % len))
    }
}

/// Batches of one to four.
#[derive(Debug)]
struct Growing;

impl BatchSampler for Growing {
    fn len(&self, _epoch: Epoch) -> usize {
        12
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new(
            (0..12).map(move |batch| (0..1 + batch % 4).map(|n| n + batch + epoch.number as usize).collect()),
        )
    }
}

// PyTorch: 210, 211, 212, 213, 214, 260
#[test]
fn samplers_of_the_users() {
    let _watchdog = Watchdog::start();
    interrupt(|way| {
        way.of(DataLoader::builder(Noise { count: 47 }).sampler(Rotated(47)).batch_size(4)).build()
    });
    interrupt(|way| way.of(DataLoader::builder(Noise { count: 47 }).batch_sampler(Growing)).build());
}

// PyTorch: 220, 221, 222, 223, 224, T08, T09
#[test]
fn streams_without_snapshots() {
    let _watchdog = Watchdog::start();
    interrupt(|way| way.of(DataLoader::stream(Shards::of(&[0, 60, 37])).shards(3).batch_size(4)).build());
    interrupt(|way| {
        let builder = DataLoader::stream(Shards::of(&[21, 60, 33]).shuffle_buffer(7)).shards(3);
        way.of(builder.batch_size(4).drop_last(true)).build()
    });
    interrupt(|way| way.of(DataLoader::stream(stateful().shuffle_buffer(3)).shards(3).batch_size(5)).build());
}
