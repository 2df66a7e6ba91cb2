//! Iterates over an epoch without workers: each batch is loaded when the user asks for it.

mod batches;
mod once;
mod shards;

use crate::{data::fetch::Hashed, engine::iter::Step, error::Error, report::batch_info::BatchInfo};

pub(crate) use batches::{BatchSource, LocalBatches, MapSource};
pub(crate) use shards::{LocalShards, ShardSource, StreamSource};

/// Sets the digest of `info` if the batch has hashes, and returns both as a step.
fn digested<B>(mut info: BatchInfo, batch: Result<Option<Hashed<B>>, Error>) -> Step<B> {
    let batch = batch.map(|batch| {
        batch.map(|(hashes, batch)| {
            if let Some(hashes) = hashes {
                let is_complete = info.set_digest(&hashes);
                debug_assert!(is_complete, "this process has hashed each sample that it has stacked");
            }
            batch
        })
    });
    (Some(info), batch)
}
