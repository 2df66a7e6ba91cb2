//! Ends a wait for a batch before the batch has arrived.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// A function that is asked at intervals, while main waits for a batch, whether to end the wait.
pub(crate) struct Interrupt {
    every: Duration,
    check: Box<dyn FnMut() -> bool + Send>,
    /// When to ask next.
    due: Instant,
}

impl Interrupt {
    pub(crate) fn new(every: Duration, check: impl FnMut() -> bool + Send + 'static) -> Self {
        Self { every, check: Box::new(check), due: Instant::now() }
    }

    /// Begins a wait: the function is asked for the first time after an interval.
    pub(crate) fn start_wait(&mut self, now: Instant) {
        self.due = now + self.every;
    }

    /// Asks the function if an interval has passed. Returns true if the wait must end.
    pub(crate) fn is_wanted(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.due = now + self.every;
        (self.check)()
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }
}

/// What makes an [`Interrupt`] for the wait of each epoch for persistent workers.
#[derive(Clone)]
pub(crate) struct StartInterrupt {
    every: Duration,
    check: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl StartInterrupt {
    pub(crate) fn new(every: Duration, check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { every, check: Arc::new(check) }
    }

    pub(crate) fn start(&self, now: Instant) -> Interrupt {
        let check = Arc::clone(&self.check);
        let mut interrupt = Interrupt::new(self.every, move || check());
        interrupt.start_wait(now);
        interrupt
    }
}

impl fmt::Debug for StartInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartInterrupt").field("every", &self.every).finish_non_exhaustive()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("every", &self.every).finish_non_exhaustive()
    }
}
