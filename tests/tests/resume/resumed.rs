//! Epochs that are interrupted and resumed, with every kind of dataset and sampler.

use std::fmt::Debug;

use loader_core::{Error, State, collate::Batch, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting, Fault, Noise, Shards, Squares, Uneven},
    ways::{Way, all},
};
use rand::RngExt;
use serde::Serialize;

use crate::streams::{OwnIterator, Stateful};

/// The ways in which epochs are loaded and resumed: without workers, with more workers than the streams have
/// shards, and with fewer workers, which are persistent.
/// PyTorch's `StatefulDataLoader` is tested in similar ways.
pub(crate) const WAYS: [Way; 3] = [
    Way { workers: 0, persistent: false },
    Way { workers: 4, persistent: false },
    Way { workers: 2, persistent: true },
];

/// Writes and reads the state as JSON, as a checkpoint does.
pub(crate) fn saved(state: &State) -> State {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// In every way, interrupts the second epoch after each number of batches in `stops` and at its end, and
/// resumes it in the same or another way. (PyTorch refuses another number of workers.) The rest of the epoch
/// and the next epoch must be those of an uninterrupted run.
fn assert_resumes<B>(stops: &[usize], build: impl Fn(Way) -> Result<DataLoader<B>, Error>)
where
    B: Batch + PartialEq + Debug,
{
    let reference = build(WAYS[0]).unwrap();
    let [_, second, third] = [0, 1, 2].map(|_| all(reference.iter().unwrap()));
    let loaders = WAYS.map(|way| build(way).unwrap());
    for (number, loader) in loaders.iter().enumerate() {
        for (turn, &stop) in stops.iter().chain([&second.len()]).enumerate() {
            // With several stops, the states of each way are resumed in every way.
            let after = (number + turn) % WAYS.len();
            let resumed = &loaders[after];
            let what = format!("{:?}, {stop} batches, {:?}", WAYS[number], WAYS[after]);
            let mut batches = loader.epoch(1).unwrap();
            let first: Vec<B> = batches.by_ref().take(stop).map(Result::unwrap).collect();
            assert_eq!(first, second[..stop], "{what}");
            let state = batches.state();
            let text = serde_json::to_string(&state).unwrap();
            if turn % 2 == 0 {
                assert_eq!(batches.by_ref().filter(Result::is_ok).count(), second.len() - stop, "{what}");
            }
            drop(batches);
            assert_eq!(serde_json::to_string(&state).unwrap(), text, "later batches do not change a state");
            let state = saved(&state);
            let rest = resumed.resume(&state).unwrap();
            assert_eq!((rest.epoch(), saved(&rest.state())), (1, state), "{what}");
            assert_eq!(all(rest), second[stop..], "{what}");
            assert_eq!(all(resumed.iter().unwrap()), third, "{what}: the next epoch");
        }
    }
}

// PyTorch: 205, 206, 207, 208, 209, 240, 246, 247, T07, T16, U18
#[test]
fn map_style_datasets_resume() {
    let _watchdog = Watchdog::start();
    assert_resumes(&[0, 1, 10], |way| {
        let builder = DataLoader::builder(Noise { count: 45 }).batch_size(4).shuffle(true);
        way.apply(builder.seed(3)).build()
    });
    assert_resumes(&[1, 4, 10], |way| {
        way.apply(DataLoader::builder(Count(12)).unbatched().shuffle(true)).build()
    });
}

/// A user's sampler, whose order differs from epoch to epoch.
#[derive(Debug)]
struct Rotated(usize);

impl Sampler for Rotated {
    fn len(&self) -> usize {
        self.0
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let len = self.0;
        Box::new((0..len).map(move |position| (position + epoch.number as usize) % len))
    }
}

/// A user's batch sampler, with batches of one to four samples.
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
fn own_samplers_resume() {
    let _watchdog = Watchdog::start();
    let noise = || DataLoader::builder(Noise { count: 47 });
    assert_resumes(&[1, 5, 10], |way| way.apply(noise().sampler(Rotated(47)).batch_size(4)).build());
    assert_resumes(&[1, 5, 10], |way| way.apply(noise().batch_sampler(Growing)).build());
}

/// Without snapshots, the loader reads the earlier samples again and drops them.
// PyTorch: 220, 221, 222, 223, 224, T08, T09
#[test]
fn streams_without_snapshots_resume() {
    let _watchdog = Watchdog::start();
    assert_resumes(&[1, 10, 12], |way| {
        way.apply(DataLoader::stream(Shards::of(&[0, 60, 37])).shards(3).batch_size(4)).build()
    });
    assert_resumes(&[1, 10, 12], |way| {
        let builder = DataLoader::stream(Shards::of(&[21, 60, 33]).shuffle_buffer(7)).shards(3);
        way.apply(builder.batch_size(4).drop_last(true)).build()
    });
    assert_resumes(&[1, 10, 12], |way| {
        way.apply(DataLoader::stream(Stateful.shuffle_buffer(3)).shards(3).batch_size(5)).build()
    });
    assert_resumes(&[0, 1, 7, 24], |way| {
        let dataset = Counting { count: 90 }.shuffle_buffer(5).map(|(number, noise), _| Ok((number, noise)));
        way.apply(DataLoader::stream(dataset).shards(5).batch_size(4).seed(2)).build()
    });
}

/// Resumes a stream of three shards with a snapshot every few batches and with one for each sample.
fn assert_stream_resumes<D: SnapshotDataset<Sample = (u64, u32)>>(dataset: impl Fn() -> D) {
    for every in [2, 5] {
        assert_resumes(&[1, 5, 10], |way| {
            let builder = DataLoader::stream(dataset()).snapshots().snapshot_every(every);
            way.apply(builder.shards(3).batch_size(4)).build()
        });
    }
    assert_resumes(&[1, 5, 10], |way| {
        way.apply(DataLoader::stream(dataset()).snapshots().shards(3).unbatched()).build()
    });
}

// PyTorch: 200, 201, 202, 203, 204, 215, 216, 217, 218, 219, 240, 244, 245, 263, A18, T06, T07, T10, T13
#[test]
fn streams_with_snapshots_resume() {
    let _watchdog = Watchdog::start();
    assert_stream_resumes(|| Stateful);
}

// PyTorch: 225, 226, 227, 228, 229
#[test]
fn a_dataset_that_is_its_own_iterator_resumes() {
    let _watchdog = Watchdog::start();
    assert_stream_resumes(OwnIterator::default);
}

// PyTorch: T13, U18
#[test]
fn adaptors_of_streams_with_snapshots_resume() {
    let _watchdog = Watchdog::start();
    for every in [1, 3] {
        assert_resumes(&[0, 5, 22], |way| {
            let dataset = Squares { count: 90 }.map(|(square, _), cx| Ok((square, cx.index() as u64)));
            let builder = DataLoader::stream(dataset).snapshots().snapshot_every(every);
            way.apply(builder.shards(4).batch_size(4)).build()
        });
        assert_resumes(&[1, 8, 14], |way| {
            let squares =
                || Squares { count: 60 }.map(|(square, _), cx| Ok((square, cx.rng().random::<u64>())));
            let dataset = squares()
                .filter(|(square, _), _| Ok(square % 5 != 1))
                .shuffle_buffer(6)
                .chain(squares().take(30).shuffle_buffer(4))
                .map(|(square, noise), cx| Ok((square, noise, cx.index() as u64)));
            let builder = DataLoader::stream(dataset).snapshots().snapshot_every(every);
            way.apply(builder.shards(3).batch_size(4).seed(9)).build()
        });
    }
}

/// Returns the batch or its error as text.
fn outcome<B: Serialize>(batch: Result<B, Error>) -> String {
    match batch {
        Ok(batch) => serde_json::to_string(&batch).unwrap(),
        Err(
            Error::DatasetFailed { index, batch, failure, .. }
            | Error::CollateFailed { index, batch, failure, .. },
        ) => {
            format!("batch {batch}, sample {index:?}: {:?}", failure.chain)
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// A batch that failed is not loaded again, and a shard that ended with a panic stays at its end.
#[test]
fn uneven_shards_with_a_failed_batch_resume() {
    let _watchdog = Watchdog::start();
    let cases: [(&[u64], u64, Fault, &[usize]); 3] = [
        (&[3, 0, 12, 5], 205, Fault::Error, &[0, 1, 3]),
        (&[3, 0, 12, 5], 205, Fault::Ragged, &[0, 1, 3]),
        (&[10, 10], 5, Fault::Panic, &[0, 2]),
    ];
    for (sizes, at, fault, ways) in cases {
        let build = |workers: usize| {
            let dataset = Uneven { sizes: sizes.to_vec(), at: Some(at), fault };
            let builder = DataLoader::stream(dataset).shards(sizes.len()).batch_size(2);
            builder.num_workers(workers).build().unwrap()
        };
        let whole: Vec<String> = build(0).iter().unwrap().map(outcome).collect();
        for &workers in ways {
            for stop in 0..whole.len() {
                let mut batches = build(workers).iter().unwrap();
                batches.by_ref().take(stop).for_each(drop);
                let state = saved(&batches.state());
                drop(batches);
                let rest = build([0, workers][stop % 2]).resume(&state).unwrap().map(outcome);
                assert!(
                    rest.eq(whole[stop..].iter().cloned()),
                    "{workers} workers, {stop} batches, {fault:?}"
                );
            }
        }
    }
}
