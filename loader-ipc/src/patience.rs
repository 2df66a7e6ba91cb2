//! How this process waits for another one: [`Patience`].
//!
//! A wait has a limit, counts only time in which this process has run, looks at the state of the awaited process, and
//! lets the caller end it or tell the user about it. Main waits in this way for the answers of workers and templates and
//! for their ends; a worker waits in this way for main in the handshake.
//!
//! Alternatives considered:
//! - A deadline as an `Instant`, which takes less code. Rejected because it also counts the time in which this process
//!   was stopped, its container was frozen or its machine slept. The awaited process was then stopped too, and has had no
//!   time to answer.
//! - A clock that stands still while this process is stopped. Linux has none: the monotonic clock goes on, and the
//!   processor time of a process stands still while the process waits.
//! - A thread that ends the wait of another thread, for Ctrl-C and for a process that is stopped. Rejected because each
//!   wait would need one more descriptor, and a program that forks would have one more thread.

use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::event::PollFd;

use crate::{
    lifeline::{LifelineError, PAUSE, Until, poll_until},
    observed::{Halt, HaltWatch},
    process::WorkerProcess,
};

/// Maximum time between two looks at what may end a wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two looks at the state of the awaited process, which read a file.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for which the awaited process may be unable to continue, because SIGSTOP or a debugger stopped it or
/// because its main thread has ended. It leaves a person who stops a process some time to inspect it.
pub const MAX_HALTED: Duration = Duration::from_secs(10);
/// Maximum delay of the end of a pause. A longer delay shows that this process itself was not running.
pub const MAX_DELAY: Duration = Duration::from_millis(250);

/// Returns the part of the time `elapsed` that counts, if this process meant to pause for at most `planned`. Of a pause
/// that was much longer only the planned part counts, so that a wait ends on an overloaded machine too.
fn counted(elapsed: Duration, planned: Duration) -> Duration {
    if elapsed <= planned + MAX_DELAY { elapsed } else { planned }
}

/// A clock that stands still while this process does not run, as far as its pauses show that: for decisions that compare
/// many times.
#[derive(Debug, Default)]
pub struct RunClock {
    /// Time that does not count.
    skipped: Duration,
    /// The planned end of the present pause.
    pause_until: Option<Instant>,
}

impl RunClock {
    /// Returns the time on this clock, and ends the present pause.
    pub fn now(&mut self) -> Instant {
        self.at(Instant::now())
    }

    /// Begins a pause that ends at the time `until` of this clock, or at once if that has passed. Returns the time of the
    /// system's clock at which it ends.
    pub fn pause_until(&mut self, until: Instant) -> Instant {
        let until = until + self.skipped;
        self.pause_until = Some(until.max(Instant::now()));
        until
    }

    fn at(&mut self, now: Instant) -> Instant {
        let late =
            self.pause_until.take().map_or(Duration::ZERO, |until| now.saturating_duration_since(until));
        if late > MAX_DELAY {
            self.skipped += late;
        }
        now - self.skipped
    }
}

/// The process for which a wait is.
#[derive(Debug, Clone)]
pub struct Awaited {
    /// Number of the worker that the process is, or that a template is to start.
    pub worker: usize,
    /// The process.
    pub process: Arc<WorkerProcess>,
}

/// Is called at each look with the time that has counted so far. Returns true if the wait must end.
pub type Look<'a> = dyn FnMut(Duration, &Awaited) -> bool + 'a;

/// How long this process waits for another one, in one wait or in several that follow each other.
pub struct Patience<'a> {
    /// Time that has counted.
    waited: Duration,
    /// Value of `waited` at which the present wait ends.
    end: Duration,
    awaited: Option<Awaited>,
    halted: HaltWatch,
    /// Value of `waited` at which the state of the awaited process is looked at next.
    state_due: Duration,
    look: Option<&'a mut Look<'a>>,
}

/// Why a wait has ended before what it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The limit has passed.
    #[error("nothing came within the limit of the wait")]
    TimedOut,
    /// The function that is called at each look has ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// The awaited process was unable to continue for [`MAX_HALTED`].
    #[error("{0}")]
    Halted(Halt),
}

impl From<WaitError> for LifelineError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self::TimedOut,
            WaitError::Interrupted => Self::Interrupted,
            WaitError::Halted(halt) => Self::Halted(halt),
        }
    }
}

impl<'a> Patience<'a> {
    /// The patience for one wait of at most `limit`.
    pub fn new(limit: Duration) -> Self {
        let (waited, state_due) = (Duration::ZERO, Duration::ZERO);
        Self { waited, end: limit, awaited: None, halted: HaltWatch::default(), state_due, look: None }
    }

    /// The patience for several waits. Each begins with [`turn_to`](Self::turn_to), and calls `look` every 50 ms.
    pub fn with(look: &'a mut Look<'a>) -> Self {
        Self { look: Some(look), ..Self::new(Duration::ZERO) }
    }

    /// Begins a wait for `awaited`, until the time that has counted reaches `end`.
    pub fn turn_to(&mut self, awaited: Awaited, end: Duration) {
        (self.awaited, self.end) = (Some(awaited), end);
        (self.halted, self.state_due) = (HaltWatch::default(), self.waited + STATE_INTERVAL);
    }

    /// Begins the limit of this wait again.
    pub fn begin_again(&mut self, limit: Duration) {
        self.end = self.waited.saturating_add(limit);
    }

    /// Returns the time that has counted, of all waits together.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// True if the limit has passed.
    pub fn is_over(&self) -> bool {
        self.waited >= self.end
    }

    /// Calls `attempt`, which pauses for at most the time that it is given, and counts this time.
    pub fn step<T>(&mut self, attempt: impl FnOnce(Duration) -> T) -> T {
        let planned = LOOK_INTERVAL.min(self.end.saturating_sub(self.waited));
        let began = Instant::now();
        let came = attempt(planned);
        self.waited += counted(began.elapsed(), planned);
        came
    }

    /// Calls `attempt` until it returns a value; at least once. It pauses for at most the time that it is given.
    ///
    /// # Errors
    /// [`WaitError`] if the wait has ended before, or the error of `attempt`.
    pub fn wait<T, E: From<WaitError>>(
        &mut self,
        mut attempt: impl FnMut(Duration) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        loop {
            if let Some(came) = self.step(&mut attempt)? {
                return Ok(came);
            }
            self.check()?;
        }
    }

    /// Looks at what may end the wait.
    fn check(&mut self) -> Result<(), WaitError> {
        if let Some(awaited) = &self.awaited {
            if self.look.as_mut().is_some_and(|look| look(self.waited, awaited)) {
                return Err(WaitError::Interrupted);
            }
            if self.waited >= self.state_due {
                self.state_due = self.waited + STATE_INTERVAL;
                let halt = awaited.process.halt();
                if let Some(halt) = halt
                    && self.halted.note(self.waited, Some(halt)) >= MAX_HALTED
                {
                    return Err(WaitError::Halted(halt));
                }
                self.halted.note(self.waited, halt);
            }
        }
        if self.is_over() { Err(WaitError::TimedOut) } else { Ok(()) }
    }
}

impl Until for &mut Patience<'_> {
    fn poll(&mut self, fds: &mut [PollFd<'_>]) -> Result<(), LifelineError> {
        self.wait(|step| Ok(poll_until(fds, Instant::now() + step)?.then_some(())))
    }

    fn pause(&mut self) -> Result<(), LifelineError> {
        self.step(|step| thread::sleep(PAUSE.min(step)));
        Ok(self.check()?)
    }
}

impl fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waited, end, awaited, .. } = self;
        f.debug_struct("Patience")
            .field("waited", waited)
            .field("end", end)
            .field("awaited", awaited)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::signal::Signal;

    use super::*;
    use crate::lifeline::Lifeline;

    const STEP: Duration = Duration::from_millis(50);

    fn nothing(pause: Duration) -> Result<Option<()>, WaitError> {
        thread::sleep(pause);
        Ok(None)
    }

    #[test]
    fn a_wait_ends_at_its_limit_and_looks_at_least_once() {
        let began = Instant::now();
        assert_eq!(Patience::new(2 * STEP).wait(nothing), Err(WaitError::TimedOut));
        assert!(began.elapsed() >= 2 * STEP);
        let mut patience = Patience::new(Duration::ZERO);
        assert_eq!(patience.wait(|_| Ok::<_, WaitError>(Some(7))), Ok(7));
        assert!(patience.is_over());
    }

    #[test]
    fn time_in_which_this_process_did_not_run_does_not_count() {
        let mut patience = Patience::new(4 * STEP);
        // As if the process had been stopped during the step.
        patience.step(|pause| thread::sleep(pause + 2 * MAX_DELAY));
        assert_eq!((patience.waited(), patience.is_over()), (STEP, false));
        assert_eq!(counted(STEP + MAX_DELAY, STEP), STEP + MAX_DELAY);
        assert_eq!(counted(100 * MAX_DELAY, STEP), STEP);
    }

    #[test]
    fn a_clock_stands_still_while_this_process_does_not_run() {
        let (mut clock, start) = (RunClock::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(clock.pause_until(after(5)), after(5));
        // This process is a little late.
        assert_eq!(clock.at(after(5) + MAX_DELAY), after(5) + MAX_DELAY);
        clock.pause_until(after(6));
        assert_eq!(clock.at(after(16)), after(6), "it did not run for ten seconds");
        assert_eq!(clock.pause_until(after(7)), after(17));
        assert_eq!(clock.at(after(17)), after(7));
        // A pause that was over before it began.
        clock.pause_until(start);
        assert!(clock.at(Instant::now() + MAX_DELAY / 2) >= start - Duration::from_secs(10) + MAX_DELAY / 2);
        // The time between two pauses counts.
        assert_eq!(clock.at(after(100)), after(90));
    }

    /// A process that sleeps, with its lifeline, and the patience of a wait for it.
    fn sleeper() -> (Awaited, Lifeline) {
        let (lifeline, theirs) = Lifeline::pair().unwrap();
        let output = fs::File::create("/dev/null").unwrap().into();
        let args = ["60".into()];
        let process =
            WorkerProcess::spawn("/bin/sleep".as_ref(), &args, None, [], "sleep".as_ref(), theirs, output);
        (Awaited { worker: 3, process: Arc::new(process.unwrap()) }, lifeline)
    }

    fn end(awaited: &Awaited) {
        awaited.process.signal(Signal::SIGKILL);
        assert!(awaited.process.reap_within(Duration::from_secs(10)).is_some());
    }

    #[test]
    fn each_look_may_end_the_wait() {
        let (awaited, lifeline) = sleeper();
        let mut looks = Vec::new();
        let mut look = |waited: Duration, awaited: &Awaited| {
            looks.push((waited, awaited.worker));
            looks.len() == 3
        };
        let mut patience = Patience::with(&mut look);
        patience.turn_to(awaited.clone(), Duration::from_secs(60));
        let received = lifeline.receive::<u64>(&mut patience);
        assert!(matches!(received, Err(LifelineError::Interrupted)), "{received:?}");
        assert!(patience.waited() < Duration::from_secs(10));
        assert!(looks.is_sorted() && looks.iter().all(|&(_, worker)| worker == 3), "{looks:?}");
        let (mut pauses, mut look) = (0, |_: Duration, _: &Awaited| true);
        let mut patience = Patience::with(&mut look);
        patience.turn_to(awaited.clone(), Duration::from_secs(60));
        let paused = (&mut patience).pause();
        assert!(matches!(paused, Err(LifelineError::Interrupted)), "{paused:?}");
        let mut deadline = Instant::now() + 2 * PAUSE;
        while deadline.pause().is_ok() {
            pauses += 1;
        }
        assert!((1..=2).contains(&pauses), "{pauses}");
        end(&awaited);
    }

    #[test]
    fn a_process_that_stays_stopped_is_not_waited_for() {
        let (awaited, lifeline) = sleeper();
        awaited.process.signal(Signal::SIGSTOP);
        let mut look = |_: Duration, _: &Awaited| false;
        let mut patience = Patience::with(&mut look);
        patience.turn_to(awaited.clone(), Duration::from_secs(60));
        let received = lifeline.receive::<u64>(&mut patience);
        assert!(matches!(received, Err(LifelineError::Halted(Halt::Stopped { .. }))), "{received:?}");
        let waited = patience.waited();
        assert!((MAX_HALTED..2 * MAX_HALTED).contains(&waited), "{waited:?}");
        end(&awaited);
    }
}
