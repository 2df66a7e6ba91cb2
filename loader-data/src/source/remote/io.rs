//! The thread that does all network I/O of this process.

use std::{
    future::Future,
    io,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Handle};

/// Time that the thread gets beyond the deadline of the work, to say that the deadline has passed.
const GRACE: Duration = Duration::from_secs(5);

/// Why work on the thread has no result.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The time has passed.
    TimedOut,
    /// The thread cannot be started, or the work has panicked.
    Failed(io::Error),
}

/// The thread, and the process that started it.
static THREAD: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Runs `work` on the thread, for at most `within`, and waits for its result.
///
/// The calling thread may itself be inside a tokio runtime: it only blocks, and enters no runtime.
pub(super) fn run<T: Send + 'static>(
    within: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Stopped> {
    let (done, result) = mpsc::sync_channel(1);
    let task = handle().map_err(Stopped::Failed)?.spawn(async move {
        // The receiver is gone only if it has waited for too long.
        drop(done.send(tokio::time::timeout(within, work).await));
    });
    match result.recv_timeout(within.saturating_add(GRACE)) {
        Ok(result) => result.map_err(|_| Stopped::TimedOut),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            task.abort();
            Err(Stopped::TimedOut)
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Stopped::Failed(io::Error::other("the thread for network I/O has panicked")))
        }
    }
}

/// Returns the runtime of the thread, which is started if this process has none.
fn handle() -> io::Result<Handle> {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((_, handle)) = thread.as_ref().filter(|(started_by, _)| *started_by == process) {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("loader-io".to_owned())
        // It ends with the process.
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *thread = Some((process, handle.clone()));
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_runs_inside_and_outside_of_a_runtime() {
        let ask = || run(Duration::from_secs(5), async { 7 }).unwrap();
        assert_eq!(ask(), 7);
        let host = Builder::new_current_thread().build().unwrap();
        assert_eq!(host.block_on(async { ask() }), 7);
    }

    #[test]
    fn work_ends_at_its_deadline_and_a_panic_is_an_error() {
        let started = Instant::now();
        let stopped = run(Duration::from_millis(50), std::future::pending::<()>());
        assert!(matches!(stopped, Err(Stopped::TimedOut)));
        assert!(started.elapsed() < GRACE, "the thread itself ends the work");
        let panicked = run(Duration::from_secs(5), async { panic!("a test panics on purpose") });
        assert!(matches!(panicked, Err::<(), _>(Stopped::Failed(_))));
        assert_eq!(run(Duration::from_secs(5), async { 7 }).unwrap(), 7, "the thread goes on");
    }
}
