//! What main does for the user while it waits at the start of an epoch.

use std::time::{Duration, Instant};

use crate::{
    engine::{
        coordinator::MAX_OPENING,
        interrupt::{Interrupt, StartInterrupt},
    },
    error::{Error, exit::WorkerActivity},
    report::warning::{Warn, Warning},
};

/// The wait of one call that starts an epoch, for the answers of new workers or of persistent ones. It asks whether to
/// end the wait, and warns after `warn_after`. The wait for new workers ends at `timeout`, which begins after
/// [`MAX_OPENING`], because they may have to load libraries.
pub(crate) struct StartWait<'a> {
    interrupt: Option<Interrupt>,
    warn_after: Option<Duration>,
    timeout: Option<Duration>,
    warn: &'a Warn,
    /// Why the wait must end.
    error: Option<Error>,
}

impl<'a> StartWait<'a> {
    /// `warn_after` and `timeout` are the options of the loader.
    pub(crate) fn new(
        interrupt: Option<&StartInterrupt>,
        warn_after: Option<Duration>,
        timeout: Option<Duration>,
        warn: &'a Warn,
    ) -> Self {
        let interrupt = interrupt.map(|interrupt| interrupt.start(Instant::now()));
        Self { interrupt, warn_after, timeout, warn, error: None }
    }

    /// Does what is due after the time `waited`. `waiting_for` says for what main waits. Returns true if the wait must
    /// end, for the reason that [`error`](Self::error) then returns.
    pub(crate) fn look(&mut self, waited: Duration, waiting_for: impl Fn() -> WorkerActivity) -> bool {
        if self.interrupt.as_mut().is_some_and(|interrupt| interrupt.is_wanted(Instant::now())) {
            self.error = Some(Error::Interrupted);
        }
        if let Some(after) = self.warn_after.filter(|&after| waited >= after) {
            self.warn_after = None;
            self.warn.warn(&Warning::LongWait { after, waiting_for: waiting_for() });
        }
        self.error.is_some()
    }

    /// As [`look`](Self::look), for the start of a worker, which `timeout` limits.
    pub(crate) fn look_at_start(
        &mut self,
        waited: Duration,
        waiting_for: impl Fn() -> WorkerActivity,
    ) -> bool {
        self.look(waited, &waiting_for);
        if let Some(after) = self.timeout
            && waited >= after.saturating_add(MAX_OPENING)
        {
            self.error.get_or_insert(Error::TimedOut { after, waiting_for: waiting_for() });
        }
        self.error.is_some()
    }

    /// Returns why the wait has ended early; `None` if it has not.
    pub(crate) fn error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use loader_ipc::control::WorkerState;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn activity() -> WorkerActivity {
        WorkerActivity { worker: 2, pid: 7, state: WorkerState::Starting, batch: 0, index: 0, age: SECOND }
    }

    #[test]
    fn a_long_start_is_warned_about_once_and_ends_at_the_timeout() {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&warnings);
        let warn = Warn::with(move |warning| kept.lock().unwrap().push(warning.clone()));
        let (warn_after, timeout) = (Some(SECOND), Some(2 * SECOND));
        let mut wait = StartWait::new(None, warn_after, timeout, &warn);
        assert!(!wait.look_at_start(SECOND / 2, activity));
        assert!(warnings.lock().unwrap().is_empty());
        for seconds in [1, 2, 31] {
            assert!(!wait.look_at_start(seconds * SECOND, activity), "{seconds} s");
        }
        let warned = Warning::LongWait { after: SECOND, waiting_for: activity() };
        let text = warned.to_string();
        assert!(text.contains("starting for 1.00 s (it loads libraries"), "{text}");
        assert_eq!(*warnings.lock().unwrap(), [warned]);
        assert!(wait.look_at_start(32 * SECOND, activity));
        let error = wait.error().unwrap();
        let Error::TimedOut { after, waiting_for } = error else { panic!("{error:?}") };
        assert_eq!((after, waiting_for), (2 * SECOND, activity()));
    }

    #[test]
    fn a_start_ends_when_it_is_interrupted() {
        let warn = Warn::default();
        let interrupt = StartInterrupt::new(Duration::ZERO, || true);
        let mut wait = StartWait::new(Some(&interrupt), None, None, &warn);
        assert!(wait.look_at_start(Duration::ZERO, activity));
        assert!(matches!(wait.error(), Some(Error::Interrupted)));
    }
}
