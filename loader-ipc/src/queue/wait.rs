//! How a receiver waits, and how it is woken.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    atomic::{AtomicU64, Ordering, fence},
    channel::ReceiveError,
};

/// How long a receiver looks again and again before it sleeps: a sleeping processor takes longer to wake than a small batch takes
/// to load. Not at all in a model, where no time passes.
const LOOKING: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_micros(20) };

/// A receiver: what it looks at, and how it sleeps.
pub(super) trait Receive {
    type Frame;
    type Error: From<ReceiveError>;

    fn look(&mut self) -> Result<Option<Self::Frame>, Self::Error>;

    /// Sleeps until it is woken, at most until `deadline`.
    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError>;

    /// Nonzero while it sleeps.
    fn asleep(&self) -> &AtomicU64;
}

/// Looks again and again, giving way to others in between, then sleeps; at least looks once.
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
        if now - *started.get_or_insert(now) < LOOKING {
            thread::yield_now();
            continue;
        }
        // Relaxed, with the fence: either the sender sees this, and what we have heard before, or we see its frame.
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
            // What was sent before the end counts.
            Err(error) => return receiver.look()?.ok_or_else(|| error.into()),
        }
    }
}

/// True when the receiver sleeps, or is about to, and may not have seen the frame that was sent last.
pub(super) fn is_asleep(asleep: &AtomicU64) -> bool {
    // Pairs with the fence in `wait`: either we see that it sleeps, or it sees our frame.
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0
}

/// True for the one of several senders that finds the receiver asleep.
pub(super) fn must_wake(asleep: &AtomicU64) -> bool {
    // Relaxed: it decides who wakes it. Not `swap`, which writes also when another sender was first, or the receiver woke up by itself.
    is_asleep(asleep) && asleep.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
