//! State and resume: what is left is what an uninterrupted run would have returned.

use std::path::PathBuf;

use loader_core::{
    Error, InterleaveDataset, Iter, Order, State,
    collate::Batch,
    prelude::*,
    sampler::{Epoch, RandomSampler},
};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Fault, Faulty, Noise, SlowFirst, Squares, Uneven},
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Every batch as bytes, an error as its text.
fn record<B: Batch + Serialize>(batches: Iter<B>) -> Vec<String> {
    batches
        .map(|batch| {
            batch.map_or_else(|error| error.to_string(), |batch| serde_json::to_string(&batch).unwrap())
        })
        .collect()
}

/// Through text, as in a checkpoint.
fn through_json(state: &State) -> State {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// Stops after each of `stops` batches, with each of `workers`, and goes on with each of them.
fn check<B: Batch + Serialize>(build: impl Fn(usize) -> DataLoader<B>, workers: &[usize], stops: &[usize]) {
    let whole = build(0);
    let epochs: Vec<_> = (0..3).map(|_| record(whole.iter().unwrap())).collect();
    assert!(stops.iter().all(|&stop| stop <= epochs[1].len()));
    for &before in workers {
        let loader = build(before);
        for &stop in stops {
            let mut batches = loader.epoch(1).unwrap();
            assert_eq!(batches.by_ref().take(stop).count(), stop);
            let state = through_json(&batches.state());
            drop(batches);
            for &after in workers {
                let resumed = build(after);
                let rest = resumed.resume(&state).unwrap();
                let what = format!("{before} workers, {stop} batches, {after} workers");
                assert_eq!(
                    through_json(&rest.state()).batches(),
                    state.batches() % epochs[1].len() as u64,
                    "{what}"
                );
                if stop == epochs[1].len() {
                    assert_eq!(rest.epoch(), 2, "{what}");
                    assert_eq!(record(rest), epochs[2], "{what}");
                } else {
                    assert_eq!(rest.epoch(), 1);
                    assert_eq!(record(rest), epochs[1][stop..], "{what}");
                    assert_eq!(record(resumed.iter().unwrap()), epochs[2], "{what}: the epoch behind it");
                }
            }
        }
    }
}

// PyTorch: U18
#[test]
fn map_style() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize| {
        let builder = DataLoader::builder(Noise { count: 50 }).batch_size(7).shuffle(true).seed(5);
        builder.num_workers(workers).build().unwrap()
    };
    check(build, &[0, 1, 3], &[0, 1, 4, 8]);
}

#[test]
fn iterable_by_passing_over_what_was_returned() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize| {
        let dataset = Counting { count: 90 }.shuffle_buffer(5).map(|(number, noise), _| Ok((number, noise)));
        DataLoader::stream(dataset).shards(5).batch_size(4).seed(2).num_workers(workers).build().unwrap()
    };
    check(build, &[0, 2, 3], &[0, 1, 7, 24, 25]);
}

// PyTorch: T13, U18
#[test]
fn iterable_with_snapshots() {
    let _watchdog = Watchdog::start();
    for every in [1, 3] {
        let build = |workers: usize| {
            let dataset = Squares { count: 90 }.map(|(square, _), cx| Ok((square, cx.index() as u64)));
            let builder =
                DataLoader::stream(dataset).snapshots().snapshot_every(every).shards(4).batch_size(4);
            builder.num_workers(workers).build().unwrap()
        };
        check(build, &[0, 2], &[0, 5, 22, 24]);
    }
}

#[test]
fn a_shuffle_buffer_with_snapshots() {
    let _watchdog = Watchdog::start();
    for every in [1, 3] {
        let build = |workers: usize| {
            let squares =
                || Squares { count: 60 }.map(|(square, _), cx| Ok((square, cx.rng().random::<u64>())));
            let dataset = squares()
                .filter(|(square, _), _| Ok(square % 5 != 1))
                .shuffle_buffer(6)
                .chain(squares().take(30).shuffle_buffer(4))
                .map(|(square, noise), cx| Ok((square, noise, cx.index() as u64)));
            let builder =
                DataLoader::stream(dataset).snapshots().snapshot_every(every).shards(3).batch_size(4);
            builder.seed(9).num_workers(workers).build().unwrap()
        };
        check(build, &[0, 2], &[1, 8, 14]);
    }
}

/// Squares, each with the number of items that its iterator has read, to show how many items a resumed buffer
/// reads again.
#[test]
fn a_shuffle_buffer_reads_only_its_own_samples_again() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let dataset = Squares { count: 20_000 }.shuffle_buffer(10);
        let loader = DataLoader::stream(dataset).snapshots().shards(1).batch_size(10).num_workers(workers);
        let loader = loader.build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(1500).for_each(|batch| drop(batch.unwrap()));
        let mut rest = loader.resume(&batches.state()).unwrap();
        let (_, read) = rest.next().unwrap().unwrap();
        let most = read.as_slice().iter().max().unwrap();
        assert!(*most < 150, "{most} items were read, of 15,000 before the place");
    }
}

// PyTorch: T13
#[test]
fn a_snapshot_spares_reading_what_comes_before() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = DataLoader::stream(Squares { count: 1000 }).snapshots().shards(2).batch_size(10);
        let loader = builder.num_workers(workers).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(40).for_each(|batch| drop(batch.unwrap()));
        let state = batches.state();
        drop(batches);
        let mut rest = loader.resume(&state).unwrap();
        let (_, read) = rest.next().unwrap().unwrap();
        assert_eq!(read.as_slice()[0], 1, "the first sample that the new iterator read");
    }
}

#[test]
fn uneven_shards_and_failed_batches() {
    let _watchdog = Watchdog::start();
    for fault in [Fault::Error, Fault::Ragged] {
        let build = |workers: usize| {
            let dataset = Uneven { sizes: vec![3, 0, 12, 5], at: Some(205), fault };
            DataLoader::stream(dataset).shards(4).batch_size(2).num_workers(workers).build().unwrap()
        };
        // The error's text names the worker.
        let whole = record(build(0).iter().unwrap());
        for workers in [0, 1, 3] {
            for stop in 0..whole.len() {
                let mut batches = build(workers).iter().unwrap();
                batches.by_ref().take(stop).for_each(drop);
                let rest = record(build(0).resume(&through_json(&batches.state())).unwrap());
                assert_eq!(rest, whole[stop..], "{workers} workers, {stop} batches, {fault:?}");
            }
        }
    }
}

#[test]
fn a_failed_batch_counts_as_returned() {
    let _watchdog = Watchdog::start();
    let dataset = || Faulty { count: 10, at: 5, fault: Fault::Error };
    let loader = DataLoader::builder(dataset()).num_workers(1).build().unwrap();
    let mut batches = loader.iter().unwrap();
    assert!(batches.by_ref().take(6).last().unwrap().is_err());
    assert_eq!(batches.state().batches(), 6);
    assert_eq!(loader.resume(&batches.state()).unwrap().filter(|batch| batch.is_ok()).count(), 4);
}

// PyTorch: T19
#[test]
fn out_of_order_what_came_early_does_not_come_again() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize, in_order: bool| {
        let dataset = SlowFirst { count: 20, delay: std::time::Duration::from_millis(300), numbers: 1 };
        DataLoader::builder(dataset).num_workers(workers).in_order(in_order).build().unwrap()
    };
    let number = |batch: Result<Tensor<u64>, Error>| batch.unwrap().as_slice()[0];
    let mut batches = build(2, false).iter().unwrap();
    let first: Vec<u64> = batches.by_ref().take(9).map(number).collect();
    assert!(!first.contains(&0), "{first:?}");
    let state = through_json(&batches.state());
    assert_eq!(state.batches(), 9);
    for workers in [0, 2] {
        let rest = build(workers, true).resume(&state).unwrap();
        assert_eq!(rest.size_hint(), (11, Some(11)));
        let rest: Vec<u64> = rest.map(number).collect();
        assert!(rest.is_sorted());
        let mut all = [first.clone(), rest].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..20));
        // And once more, in the middle of the holes.
        let mut again = build(workers, true).resume(&state).unwrap();
        again.by_ref().take(3).for_each(drop);
        assert_eq!(build(0, true).resume(&through_json(&again.state())).unwrap().count(), 8);
    }
}

#[test]
fn the_end_of_an_epoch_is_the_beginning_of_the_next() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder =
            DataLoader::builder(Noise { count: 20 }).batch_size(5).shuffle(true).num_workers(workers);
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(4).for_each(drop);
        let inside = batches.state();
        assert!(batches.next().is_none());
        let behind = batches.state();
        assert_eq!((inside.epoch(), inside.batches()), (1, 0));
        assert_eq!(inside, behind);
        assert_eq!(behind, loader.state());
        let resumed = loader.resume(&inside).unwrap();
        assert_eq!((resumed.epoch(), resumed.count()), (1, 4));
        assert_eq!(loader.iter().unwrap().epoch(), 2);
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_with_both_values() {
    let _watchdog = Watchdog::start();
    let noise = || DataLoader::builder(Noise { count: 50 }).batch_size(5).shuffle(true).seed(1);
    let mut batches = noise().build().unwrap().iter().unwrap();
    batches.by_ref().take(2).for_each(drop);
    let state = batches.state();
    let refused = |loader: Result<DataLoader<_>, Error>| {
        let error = loader.unwrap().resume(&state).unwrap_err();
        assert_eq!(error.kind(), "StateMismatch");
        error.to_string()
    };
    assert!(refused(noise().seed(2).build()).ends_with("its seed is 1, the loader's is 2"));
    let text = refused(DataLoader::builder(Noise { count: 51 }).batch_size(5).shuffle(true).seed(1).build());
    assert!(text.ends_with("its number of samples is 50, the loader's is 51"), "{text}");
    let text = refused(noise().batch_size(10).build());
    let expected = "its sampler is batches(5, random(50)[50]), the loader's is batches(10, random(50)[50])";
    assert!(text.ends_with(expected), "{text}");
    let text = refused(noise().shuffle(false).build());
    assert!(text.ends_with("the loader's is batches(5, sequential[50])"), "{text}");
    assert!(refused(noise().drop_last(true).build()).contains("batches(5, drop_last, random(50)[50])"));
    assert!(refused(noise().distributed(0, 1).build()).contains("distributed(0 of 1, 50, shuffle)"));
    let mapped = DataLoader::builder(Noise { count: 50 }.map(|sample, _| Ok(sample))).batch_size(5);
    let text = refused(mapped.shuffle(true).seed(1).build());
    assert!(text.ends_with("its dataset is dataset, the loader's is map(dataset)"), "{text}");
    let stream = |shards| DataLoader::stream(Counting { count: 50 }).seed(1).shards(shards).build().unwrap();
    let text = stream(2).resume(&state).unwrap_err().to_string();
    assert!(text.ends_with("its kind of dataset is map-style, the loader's is iterable"), "{text}");
    let mut batches = stream(2).iter().unwrap();
    batches.next().unwrap().unwrap();
    let error = stream(3).resume(&batches.state()).unwrap_err().to_string();
    assert!(error.ends_with("its number of shards (see `shards`) is 2, the loader's is 3"), "{error}");
    // Nothing is lost: the loader goes on as it was.
    assert_eq!(noise().build().unwrap().iter().unwrap().count(), 10);
}

/// A state is refused if a part differs that decides the stream's order, both within an epoch and at its
/// beginning; other parts may differ.
#[test]
fn a_stream_that_was_put_together_differently_is_refused() {
    let _watchdog = Watchdog::start();
    let count = || Counting { count: 40 };
    let state = |loader: DataLoader<_>, batches| {
        let mut iter = loader.iter().unwrap();
        iter.by_ref()
            .take(batches)
            .for_each(|batch: Result<(Tensor<u64>, Tensor<u32>), Error>| drop(batch.unwrap()));
        through_json(&iter.state())
    };
    fn build<D: IterableDataset<Sample = (u64, u32)>>(dataset: D) -> DataLoader<(Tensor<u64>, Tensor<u32>)> {
        DataLoader::stream(dataset).shards(2).batch_size(4).build().unwrap()
    }
    for batches in [0, 3] {
        let state = state(build(count().shuffle_buffer(5).take(30)), batches);
        let refused = |loader: DataLoader<_>| match loader.resume(&state).unwrap_err() {
            Error::StateMismatch { part, state, loader } => (part, state, loader),
            error => panic!("{error}"),
        };
        let (part, theirs, ours) = refused(build(count().shuffle_buffer(6).take(30)));
        assert_eq!(part, "dataset");
        assert_eq!(theirs, "take(30, shuffle_buffer(5, stream)[40])");
        assert_eq!(ours, "take(30, shuffle_buffer(6, stream)[40])");
        assert_eq!(refused(build(count().take(30).shuffle_buffer(5))).0, "dataset");
        assert_eq!(
            refused(build(count().shuffle_buffer(5).take(30).filter(|_, _| Ok(true)))).0,
            "number of samples"
        );
        assert_eq!(refused(build(count().shuffle_buffer(5).take(31))).0, "number of samples");
        let halves =
            || Counting { count: 20 }.shuffle_buffer(5).chain(Counting { count: 10 }.shuffle_buffer(5));
        assert_eq!(
            refused(build(halves())).2,
            "chain(shuffle_buffer(5, stream)[20], shuffle_buffer(5, stream)[10])"
        );
        let same = DataLoader::stream(count().shuffle_buffer(5).take(30)).shards(2).batch_size(4);
        same.num_workers(2).prefetch_factor(7).build().unwrap().resume(&state).unwrap();
    }
}

/// A dataset and a sampler with fingerprints of their own.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Versioned(u32);

impl Dataset for Versioned {
    type Sample = u64;

    fn len(&self) -> usize {
        20
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }

    fn fingerprint(&self) -> String {
        format!("files of {}", self.0)
    }
}

impl Sampler for Versioned {
    fn len(&self) -> usize {
        20
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(0..20)
    }

    fn fingerprint(&self) -> String {
        format!("curriculum {}", self.0)
    }
}

#[test]
fn a_fingerprint_of_the_users_is_compared() {
    let _watchdog = Watchdog::start();
    let build = |files, curriculum| {
        let dataset = Versioned(files).map(|number, _| Ok(number));
        DataLoader::builder(dataset).batch_size(5).sampler(Versioned(curriculum)).build().unwrap()
    };
    let mut batches = build(1, 1).iter().unwrap();
    batches.next().unwrap().unwrap();
    let state = through_json(&batches.state());
    assert_eq!(build(1, 1).resume(&state).unwrap().count(), 3);
    let text = |loader: DataLoader<Tensor<u64>>| loader.resume(&state).unwrap_err().to_string();
    assert!(text(build(2, 1)).ends_with("its dataset is map(files of 1), the loader's is map(files of 2)"));
    assert!(text(build(1, 2)).contains("its sampler is batches(5, curriculum 1[20])"));
    // A sampler without a fingerprint of its own is recognised by its first batch.
    let rotated = |by: usize| {
        let order: Vec<usize> = (0..20).map(|place| (place + by) % 20).collect();
        DataLoader::builder(Versioned(1)).batch_size(5).sampler(Unsaid(order)).build().unwrap()
    };
    let mut batches = rotated(0).iter().unwrap();
    batches.next().unwrap().unwrap();
    let error = rotated(1).resume(&batches.state()).unwrap_err().to_string();
    assert!(error.contains("its first batch of the epoch (hash of its indices) is"), "{error}");
}

#[derive(Debug)]
struct Unsaid(Vec<usize>);

impl Sampler for Unsaid {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.0.clone().into_iter())
    }
}

/// Numbers below 100 in one shard, which cannot be opened while the file is there.
#[derive(Serialize, Deserialize)]
struct Fragile {
    missing: PathBuf,
    in_setup: bool,
}

impl Fragile {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.missing.exists(), "the mount is missing");
        Ok(())
    }
}

struct Below100(u64);

impl Iterator for Below100 {
    type Item = anyhow::Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0 += 1;
        (self.0 <= 100).then_some(Ok(self.0 - 1))
    }
}

impl SnapshotIterator for Below100 {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.0)
    }
}

impl IterableDataset for Fragile {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        self.iter_from(shard, cx, None)
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        if self.in_setup { self.check() } else { Ok(()) }
    }
}

impl SnapshotDataset for Fragile {
    type Snapshot = u64;

    fn iter_from(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send> {
        self.check()?;
        Ok(Below100(snapshot.unwrap_or(0)))
    }
}

#[test]
fn a_dataset_that_cannot_be_opened_does_not_lose_the_place() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (workers, in_setup, snapshots) in
        [(0, false, true), (2, true, true), (2, false, false), (0, true, false)]
    {
        let builder = || {
            let dataset = Fragile { missing: missing.clone(), in_setup };
            DataLoader::stream(dataset).shards(1).batch_size(10).num_workers(workers)
        };
        let build = || if snapshots { builder().snapshots().build() } else { builder().build() }.unwrap();
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(5).for_each(|batch| drop(batch.unwrap()));
        let state = batches.state();
        std::fs::write(&missing, "").unwrap();
        let mut batches = build().resume(&state).unwrap();
        assert!(batches.next().unwrap().unwrap_err().to_string().contains("the mount is missing"));
        let state = through_json(&batches.state());
        std::fs::remove_file(&missing).unwrap();
        let next = build().resume(&state).unwrap().next().unwrap().unwrap();
        assert_eq!(next.as_slice()[0], 50, "{workers} workers, snapshots {snapshots}");
        // Nor does a loader that was built without the snapshots that the state has.
        assert_eq!(
            builder().build().unwrap().resume(&state).unwrap().next().unwrap().unwrap().as_slice()[0],
            50
        );
    }
}

/// A stream that is read in turn with others, and is opened in the middle of the epoch, keeps the shard's place as the shard itself does.
#[test]
fn a_nested_stream_that_cannot_be_opened_does_not_lose_the_place() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let stream = |missing: PathBuf| Fragile { missing, in_setup: false };
    let here = || stream(folder.path().join("never written"));
    let interleaved = || InterleaveDataset::new([here(), stream(missing.clone()), here(), here()], 2);
    let chained = || here().chain(stream(missing.clone())).shuffle_buffer(30);
    let build = |is_chained, workers, every: Option<u64>| {
        macro_rules! build {
            ($dataset:expr) => {{
                let builder = DataLoader::stream($dataset).shards(1).batch_size(4).num_workers(workers);
                match every {
                    Some(every) => builder.snapshots().snapshot_every(every).build(),
                    None => builder.build(),
                }
            }};
        }
        if is_chained { build!(chained()) } else { build!(interleaved()) }.unwrap()
    };
    for (is_chained, workers, every) in
        [(false, 0, None), (false, 2, Some(1)), (true, 0, Some(1)), (true, 0, Some(3)), (true, 2, None)]
    {
        let what = format!("chained {is_chained}, {workers} workers, a snapshot every {every:?} batches");
        let build = || build(is_chained, workers, every);
        let whole = record(build().iter().unwrap());
        for stop in [0, 1, 24, 30] {
            let mut batches = build().iter().unwrap();
            batches.by_ref().take(stop).for_each(|batch| drop(batch.unwrap()));
            let state = batches.state();
            drop(batches);
            std::fs::write(&missing, "").unwrap();
            // The stream is not there: where it is needed, the shard ends with one error and keeps its place.
            let mut seen = Vec::new();
            let mut batches = build().resume(&state).unwrap();
            let state = loop {
                match batches.next().expect("the missing stream is noticed") {
                    Ok(batch) => seen.push(serde_json::to_string(&batch).unwrap()),
                    Err(error) => {
                        assert!(error.to_string().contains("the mount is missing"), "{what}: {error}");
                        break through_json(&batches.state());
                    }
                }
            };
            assert!(batches.next().is_none(), "{what}");
            std::fs::remove_file(&missing).unwrap();
            seen.extend(record(build().resume(&state).unwrap()));
            assert_eq!(seen, whole[stop..], "{what}, {stop} batches");
        }
    }
}

#[test]
fn behind_a_panic_a_shard_stays_over() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let build = || {
            let dataset = Uneven { sizes: vec![10, 10], at: Some(5), fault: Fault::Panic };
            DataLoader::stream(dataset).shards(2).batch_size(2).num_workers(workers).build().unwrap()
        };
        let whole = record(build().iter().unwrap());
        for stop in 0..whole.len() {
            let mut batches = build().iter().unwrap();
            batches.by_ref().take(stop).for_each(drop);
            let rest = record(build().resume(&through_json(&batches.state())).unwrap());
            assert_eq!(rest, whole[stop..], "{workers} workers, {stop} batches");
        }
    }
}

#[test]
fn a_state_is_of_one_rank() {
    let _watchdog = Watchdog::start();
    let build = |rank, world_size| {
        let builder = DataLoader::stream(Counting { count: 100 }).shards(2).batch_size(4);
        builder.distributed(rank, world_size).build().unwrap()
    };
    let numbers =
        |rank| build(rank, 2).iter().unwrap().flat_map(|batch| batch.unwrap().0.as_slice().to_vec());
    let mut all: Vec<u64> = numbers(0).chain(numbers(1)).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..100), "each sample is of one rank");
    let mut batches = build(0, 2).iter().unwrap();
    batches.by_ref().take(3).for_each(drop);
    for state in [batches.state(), build(0, 2).state()] {
        assert!(build(0, 2).resume(&state).is_ok());
        for (rank, world_size) in [(1, 2), (0, 4)] {
            let error = build(rank, world_size).resume(&state).unwrap_err();
            assert!(error.to_string().contains("see `distributed`"), "{error}");
        }
    }
}

/// A state from between two epochs names the same shards and batches as one from within an epoch.
#[test]
fn a_state_from_between_two_epochs_keeps_a_streams_shards_and_batches() {
    let _watchdog = Watchdog::start();
    let builder = || DataLoader::stream(Counting { count: 40 }.shuffle_buffer(5));
    let loader = builder().shards(4).batch_size(4).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    let part = |loader: Result<DataLoader<_>, Error>, state: &State| match loader.unwrap().resume(state) {
        Err(Error::StateMismatch { part, .. }) => part,
        other => panic!("{other:?}"),
    };
    for state in [loader.state(), through_json(&batches.state())] {
        assert_eq!((state.epoch(), state.batches()), (1, 0));
        let shards = "number of shards (see `shards`)";
        assert_eq!(part(builder().num_workers(2).batch_size(4).build(), &state), shards);
        assert_eq!(part(builder().shards(4).batch_size(8).build(), &state), "batch_size");
        let dropping = builder().shards(4).batch_size(4).drop_last(true);
        assert_eq!(part(dropping.build(), &state), "drop_last");
        assert!(builder().shards(4).batch_size(4).num_workers(2).build().unwrap().resume(&state).is_ok());
    }
}

/// The length of the dataset that a stage reads is part of the stage's fingerprint, though the stage's own length does not tell it.
#[test]
fn a_stage_that_hides_the_length_of_its_dataset_keeps_it_in_the_fingerprint() {
    let _watchdog = Watchdog::start();
    let theirs = |state: &State, loader: DataLoader<(Tensor<u64>, Tensor<u32>)>| match loader
        .resume(state)
        .unwrap_err()
    {
        Error::StateMismatch { part: "dataset", state, .. } => state,
        error => panic!("{error}"),
    };
    let filter = |count| {
        let kept = Counting { count }.shuffle_buffer(5).filter(|(number, _), _| Ok(number % 2 == 0));
        DataLoader::stream(kept).build().unwrap()
    };
    assert_eq!(theirs(&filter(40).state(), filter(50)), "filter(shuffle_buffer(5, stream)[40])");
    let take = |count| DataLoader::stream(Counting { count }.shuffle_buffer(5).take(30)).build().unwrap();
    assert_eq!(theirs(&take(40).state(), take(50)), "take(30, shuffle_buffer(5, stream)[40])");
}

/// With `order = "torch"` the loader's own shuffle and a given sampler have different generators.
#[test]
fn shuffle_and_a_random_sampler_are_exchangeable_in_the_native_order_only() {
    let _watchdog = Watchdog::start();
    for (order, is_same) in [(Order::Native, true), (Order::Torch, false)] {
        let builder = || DataLoader::builder(Noise { count: 50 }).batch_size(5).order(order);
        let shuffled = builder().shuffle(true).build().unwrap();
        let sampled = builder().sampler(RandomSampler::new(50)).build().unwrap();
        let indices = |loader: &DataLoader<_>| record(loader.epoch(1).unwrap());
        assert_eq!(indices(&shuffled) == indices(&sampled), is_same, "{order:?}");
        assert_eq!(sampled.resume(&shuffled.state()).is_ok(), is_same, "{order:?}");
        assert_eq!(shuffled.resume(&sampled.state()).is_ok(), is_same, "{order:?}");
    }
}

#[test]
fn a_state_from_somewhere_else_cannot_hurt() {
    let _watchdog = Watchdog::start();
    let build = || DataLoader::stream(Counting { count: 10 }).shards(1).build().unwrap();
    let mut batches = build().iter().unwrap();
    batches.next().unwrap().unwrap();
    let json = serde_json::to_string(&batches.state()).unwrap();
    let far = json.replace("\"position\":1", &format!("\"position\":{}", u64::MAX));
    let last = json.replace("\"epoch\":0", &format!("\"epoch\":{}", u64::MAX));
    assert!(far != json && last != json);
    for json in [far, last] {
        let iter = build().resume(&serde_json::from_str(&json).unwrap()).unwrap();
        iter.take(20).for_each(|batch| drop(batch.unwrap()));
    }
}
