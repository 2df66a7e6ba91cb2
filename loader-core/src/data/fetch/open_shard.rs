//! Opens the shards of an iterable dataset.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use loader_ipc::codec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::data::{
    context::{SampleContext, Shard},
    dataset::{IterableDataset, SnapshotDataset, SnapshotIterator, generator::Generator},
};

/// An iterable dataset whose shards are opened with or without snapshots.
pub trait OpenShard: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The dataset.
    type Dataset: IterableDataset;
    /// One sample.
    type Sample: Send + 'static;

    /// True if it writes snapshots and opens shards at them.
    const SNAPSHOTS: bool;

    /// Returns the dataset.
    fn dataset(&self) -> &Self::Dataset;

    /// Returns the dataset, for its `setup`.
    fn dataset_mut(&mut self) -> &mut Self::Dataset;

    /// Opens a shard at a snapshot. If the dataset can skip the next `skip` items without reading them, skips
    /// them. While `wants_snapshot` is set, each item comes with a snapshot.
    #[doc(hidden)]
    fn open(
        self: Arc<Self>,
        shard: Shard,
        cx: SampleContext,
        snapshot: Option<Vec<u8>>,
        skip: u64,
        wants_snapshot: Arc<AtomicBool>,
    ) -> Items<Self::Sample>;
}

/// An iterable dataset in a builder, without snapshots. A shard is resumed at a position, by
/// [`IterableDataset::iter_at`] or by reading from its beginning.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plain<D>(pub(crate) D);

/// An iterable dataset in a builder, with snapshots. A shard is resumed at its last snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshots<D>(pub(crate) D);

/// An open shard.
#[doc(hidden)]
pub struct Items<S>(pub(super) Generator<'static, Given<S>>);

/// What the iterator of a shard gives: first `Opened` or `NotOpen`, then only `Item`.
pub(super) enum Given<S> {
    /// The shard is open, and `skipped` items after the snapshot were skipped. Later errors are errors of
    /// samples.
    Opened { skipped: u64 },
    /// A sample, and the encoded snapshot after it if one was wanted and the dataset writes snapshots.
    Item(anyhow::Result<S>, Option<Vec<u8>>),
    /// The shard cannot be opened.
    NotOpen(anyhow::Error),
}

impl<D: IterableDataset> OpenShard for Plain<D> {
    type Dataset = D;
    type Sample = D::Sample;

    const SNAPSHOTS: bool = false;

    fn dataset(&self) -> &D {
        &self.0
    }

    fn dataset_mut(&mut self) -> &mut D {
        &mut self.0
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: SampleContext,
        _snapshot: Option<Vec<u8>>,
        skip: u64,
        _wants_snapshot: Arc<AtomicBool>,
    ) -> Items<D::Sample> {
        Items(Generator::new(move |giver| async move {
            if skip > 0 {
                // If this returns `None`, `iter` must draw its numbers from the beginning.
                let mut ahead = cx.for_layer(0);
                match self.0.iter_at(shard, skip, &mut ahead) {
                    Ok(Some(items)) => {
                        giver.give(Given::Opened { skipped: skip }).await;
                        for item in items {
                            giver.give(Given::Item(item, None)).await;
                        }
                        return;
                    }
                    Ok(None) => {}
                    Err(error) => return giver.give(Given::NotOpen(error)).await,
                }
            }
            match self.0.iter(shard, &mut cx) {
                Ok(items) => {
                    giver.give(Given::Opened { skipped: 0 }).await;
                    for item in items {
                        giver.give(Given::Item(item, None)).await;
                    }
                }
                Err(error) => giver.give(Given::NotOpen(error)).await,
            }
        }))
    }
}

impl<D: SnapshotDataset> OpenShard for Snapshots<D> {
    type Dataset = D;
    type Sample = D::Sample;

    const SNAPSHOTS: bool = true;

    fn dataset(&self) -> &D {
        &self.0
    }

    fn dataset_mut(&mut self) -> &mut D {
        &mut self.0
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: SampleContext,
        snapshot: Option<Vec<u8>>,
        _skip: u64,
        wants_snapshot: Arc<AtomicBool>,
    ) -> Items<D::Sample> {
        Items(Generator::new(move |giver| async move {
            let decode = |bytes: Vec<u8>| codec::decode(&bytes).context("reading the snapshot");
            let opened = match snapshot.map(decode).transpose() {
                Ok(snapshot) => self.0.iter_from(shard, &mut cx, snapshot),
                Err(error) => Err(error),
            };
            let mut items = match opened {
                Ok(items) => items,
                Err(error) => return giver.give(Given::NotOpen(error)).await,
            };
            giver.give(Given::Opened { skipped: 0 }).await;
            while let Some(item) = items.next() {
                // Relaxed: the same thread writes the flag.
                let snapshot = if wants_snapshot.load(Ordering::Relaxed) && item.is_ok() {
                    encode_snapshot(&items).map(Some)
                } else {
                    Ok(None)
                };
                let given = match snapshot {
                    Ok(snapshot) => Given::Item(item, snapshot),
                    Err(error) => Given::Item(Err(error), None),
                };
                giver.give(given).await;
            }
        }))
    }
}

fn encode_snapshot<S: Serialize>(items: &impl SnapshotIterator<Snapshot = S>) -> anyhow::Result<Vec<u8>> {
    let snapshot = items.snapshot().context("writing a snapshot")?;
    codec::encode(&snapshot).context("encoding a snapshot")
}

impl<S> fmt::Debug for Items<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Items").field(&self.0).finish()
    }
}
