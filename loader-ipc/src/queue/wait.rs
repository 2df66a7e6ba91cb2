//! How a receiver of frames waits, and how a sender decides whether to wake it.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    atomic::{AtomicU64, Ordering, fence},
    channel::ReceiveError,
};

/// How long a receiver spins before it sleeps. A sleeping processor takes longer to wake than a small batch
/// takes to load. Zero in a loom model, where no time passes.
const SPIN: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_micros(20) };

/// A receiver of frames that can sleep.
pub(super) trait Receive {
    type Frame;
    type Error: From<ReceiveError>;

    /// Returns the next frame, if there is one; does not wait.
    fn look(&mut self) -> Result<Option<Self::Frame>, Self::Error>;

    /// Sleeps until a sender wakes the receiver, at most until `deadline`.
    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError>;

    /// The word that is nonzero while the receiver sleeps.
    fn asleep(&self) -> &AtomicU64;
}

/// Waits for a frame until `deadline`: spins, yielding the processor in between, then sleeps. Looks at least
/// once.
pub(super) fn wait<R: Receive>(receiver: &mut R, deadline: Instant) -> Result<R::Frame, R::Error> {
    let mut started = None;
    loop {
        if let Some(frame) = receiver.look()? {
            return Ok(frame);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(ReceiveError::TimedOut.into());
        }
        if now - *started.get_or_insert(now) < SPIN {
            thread::yield_now();
            continue;
        }
        // Relaxed, with the fence: either the sender sees this store and the wake-ups that we have received
        // before it, or we see the sender's frame.
        receiver.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let looked = receiver.look();
        let slept = match looked {
            Ok(None) => receiver.sleep(deadline),
            _ => Ok(()),
        };
        receiver.asleep().store(0, Ordering::Relaxed);
        if let Some(frame) = looked? {
            return Ok(frame);
        }
        match slept {
            Ok(()) | Err(ReceiveError::TimedOut) => {}
            // Frames that were sent before the channel closed are still received.
            Err(error) => return receiver.look()?.ok_or_else(|| error.into()),
        }
    }
}

/// True if the receiver sleeps, or is about to sleep, and may not have seen the last frame that was sent.
pub(super) fn is_asleep(asleep: &AtomicU64) -> bool {
    // Pairs with the fence in `wait`: either we see that the receiver sleeps, or it sees our frame.
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0
}

/// True if the receiver is asleep and the caller must wake it. Of several senders that find it asleep, only
/// the first gets true.
pub(super) fn must_wake(asleep: &AtomicU64) -> bool {
    // Relaxed: the exchange only decides which sender wakes the receiver. `swap` would write even if the word
    // is 0 already, because another sender was first or the receiver woke up by itself.
    is_asleep(asleep) && asleep.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
