//! Iterates over an epoch without workers: each batch is loaded when the user asks for it.

mod batches;
mod once;
mod shards;

pub(crate) use batches::{BatchSource, LocalBatches, MapSource};
pub(crate) use shards::{LocalShards, ShardSource, StreamSource};
