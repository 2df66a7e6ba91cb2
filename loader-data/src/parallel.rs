//! Runs numbered tasks on several threads.

use std::{
    panic,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

/// Maximum number of files that are read at the same time. Reading waits more than it computes.
pub(crate) const READS: usize = 16;

/// Returns what `task`, which reads files, returns for each number below `count`. Runs on [`READS`] threads. All of the
/// time counts as reading: what the other threads measure counts for no batch.
///
/// # Errors
/// Returns the error of the lowest number. Tasks that have not begun when a task fails are not run.
#[cfg(any(feature = "audio", feature = "columnar", all(feature = "cloud", feature = "image-folder")))]
pub(crate) fn read<T: Send, E: Send>(
    count: usize,
    task: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    loader_core::Phase::Read.measure(|| map_on(READS, count, task))
}

/// Returns what `task` returns for each number below `count`. Runs on as many threads as the process may use
/// cores.
///
/// # Errors
/// Returns the error of the lowest number. Tasks that have not begun when a task fails are not run.
pub(crate) fn map<T: Send, E: Send>(
    count: usize,
    task: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    map_on(thread::available_parallelism().map_or(1, std::num::NonZero::get), count, task)
}

/// Returns what `task` returns for each number below `count`. Runs on `threads` threads.
///
/// # Errors
/// Returns the error of the lowest number. Tasks that have not begun when a task fails are not run.
pub(crate) fn map_on<T: Send, E: Send>(
    threads: usize,
    count: usize,
    task: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only deals out numbers. Results are passed on by joining the threads.
            let number = next.fetch_add(1, Relaxed);
            if number >= count {
                return done;
            }
            let result = task(number);
            let failed = result.is_err();
            done.push((number, result));
            if failed {
                // All lower numbers have been dealt out, so one of them may still report an earlier error.
                next.store(count, Relaxed);
                return done;
            }
        }
    };
    let mut results = thread::scope(|scope| {
        let start = |_| thread::Builder::new().name("loader-index".to_owned()).spawn_scoped(scope, work).ok();
        // If a thread cannot be started, the others do its work.
        let others: Vec<_> = (1..threads.min(count)).map_while(start).collect();
        let mut results = work();
        for thread in others {
            results.extend(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|&(number, _)| number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DataError, DataProblem};

    #[test]
    fn results_are_in_order_and_the_first_error_is_returned() {
        assert_eq!(
            map_on(4, 1000, |number| Ok::<_, DataError>(number * 2)).unwrap(),
            (0..1000).map(|n| n * 2).collect::<Vec<_>>()
        );
        assert!(map_on(4, 0, Ok::<_, DataError>).unwrap().is_empty());
        let fail = |number| match number {
            30.. => Err(DataError::new(number, DataProblem::NotFound)),
            number => Ok(number),
        };
        for _ in 0..100 {
            assert_eq!(map_on(4, 1000, fail).unwrap_err().file, "30");
        }
    }
}
