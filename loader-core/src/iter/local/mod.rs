//! An epoch without workers: each batch is loaded when it is asked for.

mod batches;
mod once;
mod shards;

pub(crate) use batches::{BatchSource, LocalBatches, MapSource};
pub(crate) use shards::{LocalShards, ShardSource, StreamSource};
