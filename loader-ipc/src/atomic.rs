//! The atomics that processes share. Named in one place, because the models in `tests/model` run the same code on others, which try
//! every order of events that a processor may show.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
