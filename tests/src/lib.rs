//! What the integration tests share: datasets that misbehave on purpose, and eyes for what is left behind.

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

/// The README's program must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// So must the guide for people who come from PyTorch.
#[cfg(doctest)]
#[doc = include_str!("../../docs/pytorch.md")]
struct FromPyTorch;

/// And those of the guide must run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/resume.md")]
struct Resume;

/// And those of the guide to workers.
#[cfg(doctest)]
#[doc = include_str!("../../docs/workers.md")]
struct Workers;

use loader_core::{DataLoader, Digest, Error, Iter, collate::Batch};

/// Order and content digests of an epoch whose batches all arrive.
pub fn digest<B: Batch>(mut batches: Iter<B>) -> Result<(u64, u64), Error> {
    digest_rest(&mut batches)
}

/// The same of the batches that are still to come, where the iterator is to be asked afterwards.
pub fn digest_rest<B: Batch>(batches: &mut Iter<B>) -> Result<(u64, u64), Error> {
    let mut digest = Digest::new();
    while let Some(batch) = batches.next() {
        let batch = batch?;
        let indices = &batches.last_batch().expect("a batch was returned").indices;
        digest.add(indices, &batch);
    }
    Ok((digest.order(), digest.content()))
}

/// All batches, which must have the same digest with 0, 1 and 3 workers.
/// # Panics
/// When they have not, or a batch does not come.
pub fn everywhere<B: Batch>(build: impl Fn(usize) -> Result<DataLoader<B>, Error>) -> Vec<B> {
    let digests = [0, 1, 3].map(|workers| digest(build(workers).unwrap().epoch(1).unwrap()).unwrap());
    assert_eq!((digests[0], digests[0]), (digests[1], digests[2]));
    build(3).unwrap().epoch(1).unwrap().map(Result::unwrap).collect()
}
