//! Takes the place of `driver.rs` in a program without the feature `cuda`.

use std::ptr::NonNull;

use crate::PinError;

/// A type without values: [`open`](Self::open) always fails.
#[derive(Debug)]
pub(crate) enum Driver {}

impl Driver {
    pub(crate) fn open() -> Result<Self, PinError> {
        Err(PinError::NotBuilt)
    }

    pub(crate) fn close(&self) {
        match *self {}
    }

    /// # Safety
    /// As in `driver.rs`.
    pub(crate) unsafe fn register(&self, _start: NonNull<u8>, _len: usize) -> Result<(), PinError> {
        match *self {}
    }

    pub(crate) fn unregister(&self, _start: NonNull<u8>) -> bool {
        match *self {}
    }
}
