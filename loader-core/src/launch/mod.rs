//! What the loader finds on the machine and in its environment: the launcher's rank, CPUs, memory, the
//! values of a loader's options there, and whether `loader::init()` was called.

pub(crate) mod affinity;
pub(crate) mod control_group;
pub(crate) mod init;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod ranks;
