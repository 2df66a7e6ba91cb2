//! The atomic types for memory that processes share. They are imported from here, because `tests/model`
//! compiles the same code with loom's types, which try every order of events that the memory model allows.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
