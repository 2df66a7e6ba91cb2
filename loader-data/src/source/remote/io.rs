//! The thread that does all network I/O of this process.

use std::{
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::Semaphore,
    task::AbortHandle,
    time::error::Elapsed,
};

/// Time that the thread gets beyond the deadline of the work, to say that the deadline has passed.
const GRACE: Duration = Duration::from_secs(5);

/// Maximum number of requests of this process that are sent ahead at the same time.
pub(super) const AHEAD: usize = 8;

/// Locked by tests that need all permits: the tests of a program share them.
#[cfg(test)]
pub(super) static ALL_PERMITS: Mutex<()> = Mutex::new(());

/// Why work on the thread has no result.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The time has passed.
    TimedOut,
    /// The thread cannot be started, or the work has panicked.
    Failed(io::Error),
}

/// The thread, once it is started.
static THREAD: Mutex<Option<IoThread>> = Mutex::new(None);

#[derive(Debug, Clone)]
struct IoThread {
    /// The process that has started it.
    process: u32,
    runtime: Handle,
    /// A permit for each request that may be sent ahead. A forked process has its own, because no task of that process
    /// gives back the permits that its parent had taken.
    ahead: Arc<Semaphore>,
}

/// Work on the thread. Dropping it stops the work.
#[derive(Debug)]
pub(in super::super) struct Task<T> {
    result: mpsc::Receiver<Result<T, Elapsed>>,
    work: AbortHandle,
    started: Instant,
    within: Duration,
}

/// Runs `work` on the thread, for at most `within`, and waits for its result.
///
/// The calling thread may itself be inside a tokio runtime: it only blocks, and enters no runtime.
pub(super) fn run<T: Send + 'static>(
    within: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Stopped> {
    start(within, work).map_err(Stopped::Failed)?.wait()
}

/// Starts `work` on the thread, for at most `within`.
pub(super) fn start<T: Send + 'static>(
    within: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> io::Result<Task<T>> {
    let (done, result) = mpsc::sync_channel(1);
    let work = io_thread()?.runtime.spawn(async move {
        // The receiver is gone if the task was dropped.
        drop(done.send(tokio::time::timeout(within, work).await));
    });
    Ok(Task { result, work: work.abort_handle(), started: Instant::now(), within })
}

impl<T> Task<T> {
    /// True if the work has ended. [`wait`](Self::wait) does not block then.
    pub(super) fn has_ended(&self) -> bool {
        self.work.is_finished()
    }

    /// Waits for the result.
    pub(super) fn wait(self) -> Result<T, Stopped> {
        let rest = self.within.saturating_add(GRACE).saturating_sub(self.started.elapsed());
        match self.result.recv_timeout(rest) {
            Ok(result) => result.map_err(|_| Stopped::TimedOut),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Stopped::TimedOut),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Stopped::Failed(io::Error::other("the thread for network I/O has panicked")))
            }
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.work.abort();
    }
}

/// Returns the permits of this process: one for each request that may be sent ahead.
pub(super) fn permits() -> io::Result<Arc<Semaphore>> {
    Ok(io_thread()?.ahead)
}

/// Returns the thread of this process, which is started if there is none.
fn io_thread() -> io::Result<IoThread> {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some(started) = thread.as_ref().filter(|started| started.process == process) {
        return Ok(started.clone());
    }
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let started =
        IoThread { process, runtime: runtime.handle().clone(), ahead: Arc::new(Semaphore::new(AHEAD)) };
    thread::Builder::new()
        .name("loader-io".to_owned())
        // It ends with the process.
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *thread = Some(started.clone());
    Ok(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_inside_and_outside_of_a_runtime() {
        let ask = || run(Duration::from_secs(5), async { 7 }).unwrap();
        assert_eq!(ask(), 7);
        let host = Builder::new_current_thread().build().unwrap();
        assert_eq!(host.block_on(async { ask() }), 7);
    }

    #[test]
    fn dropping_a_task_stops_it_and_a_late_wait_gets_its_result() {
        let (dropped, stopped) = mpsc::channel::<()>();
        let task = start(Duration::from_secs(60), async move {
            std::future::pending::<()>().await;
            drop(dropped);
        });
        drop(task.unwrap());
        let stopped = stopped.recv_timeout(Duration::from_secs(5));
        assert_eq!(stopped, Err(mpsc::RecvTimeoutError::Disconnected), "the work was dropped");

        let mut task = start(Duration::from_secs(5), async { 7 }).unwrap();
        task.within = Duration::ZERO;
        task.started = task.started.checked_sub(2 * GRACE).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(task.wait().unwrap(), 7);
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
