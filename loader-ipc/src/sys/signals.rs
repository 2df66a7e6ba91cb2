//! Signal actions that a worker inherits and must not keep.

use nix::sys::signal::{SigHandler, Signal, signal};

/// Puts SIGCHLD back to its default. "Ignored" is inherited through exec, and a worker whose host ignores SIGCHLD could not wait for
/// the programs that its dataset starts.
pub fn default_sigchld() {
    // SAFETY: setting a default action installs no code, so nothing can be called at a wrong time.
    let set = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // It cannot fail for a valid signal, and if it did, all would be as before.
    let _ = set;
}
