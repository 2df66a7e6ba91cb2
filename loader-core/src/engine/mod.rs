//! What loads the batches of an epoch: the plan of the order, the coordinator, the pool of workers, and the iterators.

pub(crate) mod ahead;
pub(crate) mod coordinator;
pub(crate) mod interrupt;
pub(crate) mod iter;
pub(crate) mod pinning;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod shards;
pub(crate) mod start_wait;
pub(crate) mod tuner;
