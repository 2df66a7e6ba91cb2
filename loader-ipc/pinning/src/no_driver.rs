//! Takes the place of `driver.rs` in a program without the feature `cuda`.

use std::ptr::NonNull;

use crate::pin::PinError;

/// A type without values: [`open`](Self::open) always fails.
#[derive(Debug)]
pub(super) enum Driver {}

impl Driver {
    pub(super) fn open() -> Result<Self, PinError> {
        Err(PinError::NotBuilt)
    }

    pub(super) fn close(&self) {
        match *self {}
    }

    pub(super) fn register(&self, _start: NonNull<u8>, _len: usize) -> Result<(), PinError> {
        match *self {}
    }

    pub(super) fn unregister(&self, _start: NonNull<u8>) -> bool {
        match *self {}
    }
}
