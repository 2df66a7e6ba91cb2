//! A value that is opened when it is first needed.

use std::sync::{Mutex, OnceLock, PoisonError};

use loader_ipc::frame::Failure;

/// Holds a `Closed` value until the first call of [`get`](Self::get) makes the `Open` value from it, once for
/// all threads.
pub(super) struct OpenOnce<Closed, Open> {
    closed: Mutex<Option<Closed>>,
    open: OnceLock<Result<Open, Failure>>,
}

impl<Closed, Open> OpenOnce<Closed, Open> {
    pub(super) fn new(closed: Closed) -> Self {
        Self { closed: Mutex::new(Some(closed)), open: OnceLock::new() }
    }

    /// Returns the value that `open` made, or its failure. A failed `open` is not tried again.
    pub(super) fn get(&self, open: impl FnOnce(Closed) -> Result<Open, Failure>) -> Result<&Open, Failure> {
        let opened = self.open.get_or_init(|| {
            let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
            open(closed.expect("taken here only, and once"))
        });
        opened.as_ref().map_err(Clone::clone)
    }
}
