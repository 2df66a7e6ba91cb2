//! Loads a dataset in every way: in main, and with one worker or several, persistent or not.

use std::fmt::Debug;

use loader_core::{Builder, Element, Error, Iter, collate::Batch, kind::DatasetKind, prelude::*};

/// A way to load: the number of workers, and whether they are persistent. PyTorch's own tests also run in
/// several such ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Number of workers; 0 loads in main.
    pub workers: usize,
    /// True if the workers are kept between epochs.
    pub persistent: bool,
}

/// All ways that the tests use.
pub const WAYS: [Way; 5] = [
    Way { workers: 0, persistent: false },
    Way { workers: 1, persistent: false },
    Way { workers: 1, persistent: true },
    Way { workers: 4, persistent: false },
    Way { workers: 4, persistent: true },
];

impl Way {
    /// Sets the options of this way.
    pub fn apply<K: DatasetKind, C, W>(self, builder: Builder<K, C, W>) -> Builder<K, C, W> {
        builder.num_workers(self.workers).persistent_workers(self.persistent)
    }
}

/// Loads the first two epochs in every way and returns their batches. Workers persist into the second epoch.
///
/// # Panics
/// Panics if a loader cannot be built, if a batch fails, or if two ways give different batches.
pub fn two_epochs<B>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>) -> [Vec<B>; 2]
where
    B: Batch + PartialEq + Debug,
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

/// Returns the batches of the first epoch; otherwise as [`two_epochs`].
///
/// # Panics
/// As [`two_epochs`].
pub fn one_epoch<B>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>) -> Vec<B>
where
    B: Batch + PartialEq + Debug,
{
    let [first, _] = two_epochs(build);
    first
}

/// Returns all batches.
///
/// # Panics
/// Panics if a batch fails.
pub fn all<B: Batch>(batches: Iter<B>) -> Vec<B> {
    batches.map(|batch| batch.expect("no batch fails")).collect()
}

/// Returns the numbers of each batch.
pub fn numbers<T: Element>(batches: &[Tensor<T>]) -> Vec<Vec<T>> {
    batches.iter().map(|batch| batch.as_slice().to_vec()).collect()
}
