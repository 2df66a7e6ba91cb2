//! Datasets that cannot be opened for a while: the position in the epoch is kept.

use std::{path::PathBuf, sync::mpsc};

use loader_core::{Error, InterleaveDataset, Warning, collate::Batch, prelude::*};
use loader_tests::{Watchdog, ways::all};
use serde::{Deserialize, Serialize};

use crate::resumed::saved;

/// Numbers below 100 in one shard. While the file `outage` exists, the dataset cannot be opened.
#[derive(Serialize, Deserialize)]
struct Unavailable {
    outage: PathBuf,
    /// True if `setup` fails, false if the stream cannot be opened.
    in_setup: bool,
}

impl Unavailable {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.outage.exists(), "the mount is missing");
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

impl IterableDataset for Unavailable {
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

impl SnapshotDataset for Unavailable {
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

/// Resumes during an outage. Returns the batches before the error, and the state after it.
fn resume_during_outage<B: Batch>(loader: &DataLoader<B>, state: &State) -> (Vec<B>, State) {
    let mut seen = Vec::new();
    let mut batches = loader.resume(state).unwrap();
    let error = loop {
        match batches.next().expect("the outage causes an error") {
            Ok(batch) => seen.push(batch),
            Err(error) => break error,
        }
    };
    let (Error::OpenFailed { failure, .. } | Error::DatasetFailed { failure, .. }) = &error else {
        panic!("{error:?}")
    };
    assert!(failure.chain.iter().any(|cause| cause == "the mount is missing"), "{error:?}");
    let state = saved(&batches.state());
    assert!(batches.next().is_none(), "the shard ends with the error");
    assert_eq!(saved(&batches.state()), state, "the epoch has a rest");
    (seen, state)
}

#[test]
fn a_dataset_that_cannot_be_opened_keeps_the_position() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let outage = folder.path().join("outage");
    for (workers, in_setup, snapshots) in
        [(0, false, true), (2, true, true), (2, false, false), (0, true, false)]
    {
        let builder = || {
            let dataset = Unavailable { outage: outage.clone(), in_setup };
            DataLoader::stream(dataset).shards(1).batch_size(10).num_workers(workers)
        };
        let build = || if snapshots { builder().snapshots().build() } else { builder().build() }.unwrap();
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(5).for_each(|batch| drop(batch.unwrap()));
        let state = batches.state();
        std::fs::write(&outage, "").unwrap();
        let (seen, state) = resume_during_outage(&build(), &state);
        assert_eq!(seen.len(), 0);
        std::fs::remove_file(&outage).unwrap();
        // A loader without snapshots accepts a state with snapshots.
        for loader in [build(), builder().build().unwrap()] {
            let next = loader.resume(&state).unwrap().next().unwrap().unwrap();
            assert_eq!(next.as_slice()[0], 50, "{workers} workers, snapshots {snapshots}");
        }
    }
}

#[test]
fn a_batch_that_is_read_again_takes_one_step() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let outage = folder.path().join("outage");
    for workers in [0, 2] {
        let dataset = Unavailable { outage: outage.clone(), in_setup: false };
        let builder = DataLoader::stream(dataset).shards(1).batch_size(10).num_workers(workers);
        let loader = builder.steps_per_epoch(10).build().unwrap();
        std::fs::write(&outage, "").unwrap();
        let mut state = loader.state();
        for _ in 0..11 {
            state = resume_during_outage(&loader, &state).1;
        }
        std::fs::remove_file(&outage).unwrap();
        let mut batches = loader.resume(&state).unwrap();
        assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 10, "{workers} workers");
        assert_eq!(batches.state().epoch(), 1);
    }
}

#[test]
fn an_epoch_that_was_cut_short_gives_one_warning() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let outage = folder.path().join("outage");
    for workers in [0, 2] {
        let (sender, warnings) = mpsc::channel();
        let dataset = Unavailable { outage: outage.clone(), in_setup: false };
        let builder = DataLoader::stream(dataset).shards(1).batch_size(10).num_workers(workers);
        let builder = builder.on_warning(move |warning| sender.send(warning.clone()).unwrap());
        let loader = builder.build().unwrap();
        std::fs::write(&outage, "").unwrap();
        let mut batches = loader.iter().unwrap();
        assert!(batches.next().unwrap().is_err());
        assert_eq!(warnings.try_recv().ok(), None, "the epoch has not ended yet");
        assert!(batches.next().is_none() && batches.next().is_none());
        let expected = Warning::EpochNotRead { epoch: 0 };
        assert_eq!(warnings.try_iter().collect::<Vec<_>>(), [expected], "{workers} workers");
        std::fs::remove_file(&outage).unwrap();
        let mut rest = loader.resume(&batches.state()).unwrap();
        assert!(rest.by_ref().all(|batch| batch.is_ok()));
        assert_eq!((rest.state().epoch(), warnings.try_recv().ok()), (1, None), "{workers} workers");
    }
}

/// `interleave` and `chain` open some of their streams in the middle of an epoch.
#[test]
fn a_nested_stream_that_cannot_be_opened_keeps_the_position() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let outage = folder.path().join("outage");
    let stream = |outage: PathBuf| Unavailable { outage, in_setup: false };
    let available = || stream(folder.path().join("never written"));
    let interleaved =
        || InterleaveDataset::new([available(), stream(outage.clone()), available(), available()], 2);
    let chained = || available().chain(stream(outage.clone())).shuffle_buffer(30);
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
        let whole = all(build().iter().unwrap());
        for stop in [0, 1, 24, 30] {
            let mut batches = build().iter().unwrap();
            batches.by_ref().take(stop).for_each(|batch| drop(batch.unwrap()));
            let state = batches.state();
            drop(batches);
            std::fs::write(&outage, "").unwrap();
            let (mut seen, state) = resume_during_outage(&build(), &state);
            std::fs::remove_file(&outage).unwrap();
            seen.extend(all(build().resume(&state).unwrap()));
            assert_eq!(seen, whole[stop..], "{what}, {stop} batches");
        }
    }
}
