//! PyTorch's `pin_memory`: the driver, and what is said when it does not do what was asked.

use loader_ipc::pin::{PinError, Pinner};

use crate::warning::{Warn, Warning};

/// The driver, if memory is to be page-locked and can be. Else that is said, and loading goes on with ordinary memory, as in PyTorch.
pub(crate) fn open(wanted: bool, warn: &Warn) -> Option<Pinner> {
    if !wanted {
        return None;
    }
    Pinner::open().map_err(|error| warn.warn(&not_pinned(&error))).ok()
}

/// Says, once a loader, that memory could not be page-locked after all.
///
/// Not said where it fails: that is under a lock, and what the user does with a warning is not known.
pub(crate) fn tell_failure(pinner: Option<&Pinner>, warn: &Warn) {
    if let Some(error) = pinner.and_then(Pinner::take_failure) {
        warn.warn(&not_pinned(&error));
    }
}

fn not_pinned(error: &PinError) -> Warning {
    Warning::NotPinned { reason: error.to_string() }
}
