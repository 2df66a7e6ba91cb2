//! Registers memory with the CUDA driver, which page-locks it.

use std::{
    fmt, mem,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{PinError, driver::Driver};

/// An open driver. Clones and registrations share it; the last of them closes it.
#[derive(Clone)]
pub struct Pinner(Arc<Shared>);

struct Shared {
    driver: Driver,
    /// The process that opened the driver. The driver does not work in its forked children.
    owner: u32,
    /// True once a registration has failed.
    failed: AtomicBool,
    /// The first failure, until [`Pinner::take_failure`] takes it.
    failure: Mutex<Option<PinError>>,
}

impl Pinner {
    /// Opens the driver for the device of the context that is current on this thread, otherwise for the first
    /// device whose primary context is in use, otherwise for the first device. Retains the primary context of
    /// that device until the driver is closed.
    ///
    /// # Errors
    /// If there is no driver or no device, or if a call of the driver fails.
    pub fn open() -> Result<Self, PinError> {
        let shared = Shared {
            driver: Driver::open()?,
            owner: std::process::id(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// Returns the first failure to register memory, once.
    pub fn take_failure(&self) -> Option<PinError> {
        // Relaxed: the lock orders the access to `failure`. A flag that is seen late only delays the report.
        if !self.0.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Page-locks the `len` bytes from `start` on, for all devices. If that fails, returns `None` and keeps
    /// the first error for [`take_failure`](Self::take_failure). The driver does not touch the bytes.
    ///
    /// Two registrations must not share a page: the driver refuses the second one.
    ///
    /// # Safety
    /// The range must be mapped for reading and writing, and must stay so until [`Registration::end`] returns
    /// true, or for good if the registration is dropped without a call of `end`.
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Option<Registration> {
        let registered = if self.0.owner == std::process::id() {
            // SAFETY: the caller promises the same.
            unsafe { self.0.driver.register(start, len) }
        } else {
            Err(PinError::Forked)
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

/// A registered range. The owner must [end](Self::end) the registration before it unmaps the range. Keeps the
/// driver open.
#[derive(Debug)]
#[must_use = "the range must stay mapped until `end` returns true"]
pub struct Registration {
    pinner: Pinner,
    start: NonNull<u8>,
}

impl Registration {
    /// True in the process that made the registration. In a forked child, the range is a copy, or the
    /// parent's shared memory.
    pub fn is_valid(&self) -> bool {
        self.pinner.0.owner == std::process::id()
    }

    /// Ends the registration. If false, the driver still has the range registered: it must then stay mapped,
    /// because the driver would take other memory at its address for it.
    #[must_use]
    pub fn end(self) -> bool {
        // In a forked child, the registration belongs to the parent.
        let ended = !self.is_valid() || self.pinner.0.driver.unregister(self.start);
        if !ended {
            // The driver stays open while a range is registered.
            mem::forget(self.pinner);
        }
        ended
    }
}
