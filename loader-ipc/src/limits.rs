//! Limits of frames.

/// Maximum number of regions that one task tells the worker to unmap, so that its frame stays small.
pub const MAX_FORGOTTEN: usize = 64;
/// Maximum number of samples that a task lists as bad, so that its frame stays small.
pub const MAX_KNOWN_BAD: usize = 64;
/// Maximum number of bad samples that one event lists.
pub const MAX_BAD_SAMPLES: usize = 256;
/// Maximum number of indices in a frame; a longer list is in the slot. With frames of a few KiB, far more
/// than [`MAX_UNANSWERED`] tasks fit a ring.
pub const MAX_INLINE_INDICES: usize = 256;
/// Maximum number of tasks that a worker has been sent and has not answered. Further tasks wait in main, so
/// the index queue is never full and main never waits for room in it.
pub const MAX_UNANSWERED: usize = 16;
