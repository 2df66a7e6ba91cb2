//! What the integration tests share: datasets, many of which misbehave on purpose, and checks of what is left
//! behind.

pub mod alone;
pub mod datasets;
pub mod driver_log;
pub mod gate;
pub mod growth;
pub mod lies;
pub mod processes;
mod skip;
pub mod timing;
pub mod traces;
mod watchdog;
pub mod ways;

pub use skip::{SKIPPED, show, skipped};
pub use watchdog::Watchdog;

/// The program in the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs in the guide for users of PyTorch must compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/pytorch.md")]
struct FromPyTorch;

/// The programs in the guide to states must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/resume.md")]
struct Resume;

/// The programs in the guide to workers must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/workers.md")]
struct Workers;

/// The programs in the guide to embedding must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
struct Embedding;

/// The programs in the guide to many processes must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/distributed.md")]
struct Distributed;

/// The programs in the guide to tuning must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tuning.md")]
struct Tuning;

use loader_core::{BatchDigest, DataLoader, Error, Iter, collate::Batch};

/// Returns the digests of order and content of an epoch.
///
/// # Errors
/// Returns the error of the first batch that fails.
pub fn digest<B: Batch>(mut batches: Iter<B>) -> Result<(u64, u64), Error> {
    digest_rest(&mut batches)
}

/// Returns the digests of the batches that are left, and leaves the iterator to the caller.
///
/// # Errors
/// As [`digest`].
pub fn digest_rest<B: Batch>(batches: &mut Iter<B>) -> Result<(u64, u64), Error> {
    let mut digest = BatchDigest::new();
    while let Some(batch) = batches.next() {
        let batch = batch?;
        let indices = &batches.last_batch().expect("a batch was returned").indices;
        digest.add(indices, &batch);
    }
    Ok((digest.order(), digest.content()))
}

/// Returns all batches of an epoch, which must have the same digests with 0, 1 and 3 workers.
///
/// # Panics
/// Panics if the digests differ or a batch fails.
pub fn everywhere<B: Batch>(build: impl Fn(usize) -> Result<DataLoader<B>, Error>) -> Vec<B> {
    let digests = [0, 1, 3].map(|workers| digest(build(workers).unwrap().epoch(1).unwrap()).unwrap());
    assert_eq!(digests, [digests[0]; 3]);
    build(3).unwrap().epoch(1).unwrap().map(Result::unwrap).collect()
}
