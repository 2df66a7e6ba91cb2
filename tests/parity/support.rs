//! What the tests share: every way to load, plain datasets, and a gate that stands between processes.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use loader_core::{Builder, Error, Iter, collate::Batch, kind::DatasetKind, prelude::*};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// One way to load: without workers, with few or many, fresh ones for each epoch or such that stay. PyTorch's tests of its loader run
/// once for each kind, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) workers: usize,
    pub(crate) stays: bool,
}

/// All of them.
pub(crate) const WAYS: [Way; 5] = [
    Way { workers: 0, stays: false },
    Way { workers: 1, stays: false },
    Way { workers: 1, stays: true },
    Way { workers: 4, stays: false },
    Way { workers: 4, stays: true },
];

impl Way {
    /// The builder of a loader that loads this way.
    pub(crate) fn of<K: DatasetKind, C, W>(self, builder: Builder<K, C, W>) -> Builder<K, C, W> {
        builder.num_workers(self.workers).persistent_workers(self.stays)
    }
}

/// The batches of the first two epochs, in every way; they must be the same in each. A second epoch is what shows that workers stay.
pub(crate) fn two_epochs<B>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>) -> [Vec<B>; 2]
where
    B: Batch + PartialEq + std::fmt::Debug,
{
    let mut ways = WAYS.iter().map(|&way| {
        let loader = build(way).expect("the options are good");
        let epochs = [0, 1].map(|_| all(loader.iter().expect("workers start")));
        (way, epochs)
    });
    let (_, expected) = ways.next().expect("there are several");
    for (way, epochs) in ways {
        assert_eq!(epochs, expected, "{way:?}");
    }
    expected
}

/// The same of the first epoch alone.
pub(crate) fn one_epoch<B>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>) -> Vec<B>
where
    B: Batch + PartialEq + std::fmt::Debug,
{
    let [first, _] = two_epochs(build);
    first
}

/// All batches, none of which fails.
pub(crate) fn all<B: Batch>(batches: Iter<B>) -> Vec<B> {
    batches.map(|batch| batch.expect("no batch fails")).collect()
}

/// The numbers in batches.
pub(crate) fn numbers<T: loader_core::Element>(batches: &[Tensor<T>]) -> Vec<Vec<T>> {
    batches.iter().map(|batch| batch.as_slice().to_vec()).collect()
}

/// The numbers below `count`; sample `n` is `n`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Count(pub(crate) usize);

impl Dataset for Count {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

/// Shards of any sizes, whose samples are numbered through: PyTorch's tests call it `WorkerSpecificIterableDataset`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shards {
    pub(crate) sizes: Vec<u64>,
    /// What it says of its length.
    pub(crate) says: Option<usize>,
}

impl Shards {
    /// Shard `n` has `sizes[n]` samples, from the sum of the sizes before it on.
    pub(crate) fn of(sizes: &[u64]) -> Self {
        Self { sizes: sizes.to_vec(), says: None }
    }
}

impl IterableDataset for Shards {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        let first: u64 = self.sizes[..shard.index()].iter().sum();
        Ok((first..first + self.sizes[shard.index()]).map(Ok))
    }

    fn len(&self) -> Option<usize> {
        self.says
    }
}

/// A gate that one process waits at and another opens: a file that is there or not. Where a test needs a sample to be slow it waits
/// here, so that nothing depends on how fast the machine is.
#[derive(Debug)]
pub(crate) struct Gate {
    folder: TempDir,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the gate") }
    }

    /// For a dataset, which goes to another process.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("open")
    }

    pub(crate) fn open(&self) {
        fs::write(self.path(), "").expect("the gate opens");
    }
}

/// Waits until the gate at `path` is open.
pub(crate) fn wait_at(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Numbers of which one waits at a gate: `(number, worker)`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Gated {
    pub(crate) count: u64,
    pub(crate) slow: u64,
    pub(crate) gate: PathBuf,
}

impl Gated {
    fn sample(&self, number: u64, cx: &SampleContext) -> (u64, u64) {
        if number == self.slow {
            wait_at(&self.gate);
        }
        (number, cx.worker().map_or(u64::MAX, |worker| worker.id() as u64))
    }
}

impl Dataset for Gated {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.count as usize
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        Ok(self.sample(index as u64, cx))
    }
}

/// The same as a stream: its shards are halves, thirds and so on, not interleaved.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatedStream(pub(crate) Gated);

impl IterableDataset for GatedStream {
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        let size = self.0.count / shard.count() as u64;
        let first = size * shard.index() as u64;
        Ok((first..first + size).map(|number| Ok(self.0.sample(number, cx))))
    }
}
