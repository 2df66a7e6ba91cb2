//! PyTorch's `pin_memory`: opens the driver, and warns if memory cannot be page-locked.

use loader_pinning::{PinError, Pinner};

use crate::report::warning::{Warn, Warning};

/// Opens the driver if `wanted`. If it cannot be opened, warns and returns `None`: as in PyTorch, batches are
/// then loaded into ordinary memory.
pub(crate) fn open(wanted: bool, warn: &Warn) -> Option<Pinner> {
    if !wanted {
        return None;
    }
    Pinner::open().map_err(|error| warn.warn(&not_pinned(&error))).ok()
}

/// Warns, once per loader, if the driver has refused to page-lock memory.
///
/// The code that page-locks memory does not warn itself, because it holds a lock while the user's warning
/// function may do anything.
pub(crate) fn warn_of_failure(pinner: Option<&Pinner>, warn: &Warn) {
    if let Some(error) = pinner.and_then(Pinner::take_failure) {
        warn.warn(&not_pinned(&error));
    }
}

fn not_pinned(error: &PinError) -> Warning {
    Warning::NotPinned { reason: error.to_string() }
}
