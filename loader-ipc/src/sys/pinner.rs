//! Who registers memory with the driver, and the registrations.

use std::{
    fmt, mem,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::driver::Driver;
use crate::pin::PinError;

/// An open driver. Clones share it; the last one, with the last registration, closes it.
#[derive(Clone)]
pub struct Pinner(Arc<Shared>);

struct Shared {
    driver: Driver,
    /// The driver works in the process that opened it, and not in its forks.
    owner: u32,
    failed: AtomicBool,
    failure: Mutex<Option<PinError>>,
}

impl Pinner {
    /// Opens the driver, for the device of the context that is current on this thread; else the first one whose primary context is in
    /// use; else the first one. That device's primary context is kept until the last clone is dropped.
    ///
    /// # Errors
    /// When there is no driver or no device.
    pub fn open() -> Result<Self, PinError> {
        let shared = Shared {
            driver: Driver::open()?,
            owner: std::process::id(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// The first failure to register memory, once.
    pub fn take_failure(&self) -> Option<PinError> {
        // Relaxed: the lock orders what is behind it, and a failure that is seen late is told late.
        if !self.0.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Registers a mapped range. When it cannot be, the failure is kept for [`take_failure`](Self::take_failure).
    pub(super) fn register(&self, start: NonNull<u8>, len: usize) -> Option<Registration> {
        let registered = match self.0.owner == std::process::id() {
            true => self.0.driver.register(start, len),
            false => Err(PinError::Forked),
        };
        match registered {
            Ok(()) => Some(Registration { pinner: self.clone(), start }),
            Err(error) => {
                if !self.0.failed.swap(true, Ordering::Relaxed) {
                    *self.0.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
                None
            }
        }
    }
}

impl fmt::Debug for Pinner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinner").field("driver", &self.0.driver).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.driver.close();
        }
    }
}

/// A registered range. Its owner ends it before the range is unmapped.
#[derive(Debug)]
pub(super) struct Registration {
    pinner: Pinner,
    start: NonNull<u8>,
}

impl Registration {
    /// False in a forked child, where the mapping is a copy, or is its parent's to lock.
    pub(super) fn is_valid(&self) -> bool {
        self.pinner.0.owner == std::process::id()
    }

    /// Ends it. False when the driver still counts on the range: then it must stay mapped, for whatever were mapped at its place
    /// later would be taken for it.
    #[must_use]
    pub(super) fn end(self) -> bool {
        // In a forked child the registration is its parent's.
        let ended = !self.is_valid() || self.pinner.0.driver.unregister(self.start);
        if !ended {
            // The driver stays open for what it still holds.
            mem::forget(self.pinner);
        }
        ended
    }
}
