//! Errors of slots.

use std::io;

use crate::{advice, frame::Lease};

/// Reasons why a slot cannot be leased or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The limit does not allow another slot.
    #[error(
        "a slot of {wanted} bytes does not fit into the shared memory limit of {limit} bytes: {held} batches are \
         held by the program and {leased} are being loaded; set shared_memory_limit to at least {sufficient} bytes"
    )]
    LimitReached {
        /// Size of the requested slot, in bytes.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
        /// Number of batches that the program holds.
        held: usize,
        /// Number of slots that are leased.
        leased: usize,
        /// Limit with room for the slot and for the batches that the program holds, in bytes.
        sufficient: u64,
    },
    /// The system has no more memory, descriptors or mappings.
    #[error("no shared memory for a slot of {wanted} bytes: {source}{}", advice(source))]
    System {
        /// Size of the requested slot, in bytes.
        wanted: u64,
        /// Number of batches that the program holds.
        held: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The lease has ended or never existed: a worker answered under an old or an invented lease.
    #[error("slot {} is not leased in generation {}", .0.slot, .0.generation)]
    NotLeased(Lease),
}
