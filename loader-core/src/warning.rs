//! What is probably a mistake and no error.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    error::{Doing, while_doing},
    report::BadSample,
};

/// Something that is probably a mistake, and no reason to stop. Printed to standard error, each text once,
/// or given to [`Builder::on_warning`](crate::Builder::on_warning).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// `build()`: more workers than processors that this process may use (its affinity and its control group's quota count).
    #[error(
        "num_workers is {workers}, but this process may use {cpus} processors: workers then take turns, and more of them may make \
         loading slower; lower num_workers, or use \"auto\""
    )]
    MoreWorkersThanCpus {
        /// Workers asked for.
        workers: usize,
        /// Processors.
        cpus: usize,
    },
    /// `next()` waits for a batch for longer than [`Builder::warn_after`](crate::Builder::warn_after). Said once a wait, which goes on.
    #[error("no batch for {after:?}: waiting for {waiting_for}; with a timeout this would be an error")]
    LongWait {
        /// The loader's `warn_after`.
        after: Duration,
        /// For which worker, and what it is doing.
        waiting_for: Doing,
    },
    /// A worker's process has ended, and another one starts in its place. What it had not finished is done again; nothing is lost.
    #[error("{}", replaced(*.worker, *.pid, .reason, .doing, .batches, *.deaths, *.most))]
    WorkerReplaced {
        /// Number of the worker.
        worker: usize,
        /// Process id of the one that ended.
        pid: u32,
        /// How it ended, or what it was ended for.
        reason: String,
        /// What it was doing.
        doing: Doing,
        /// Batches that are done again.
        batches: Vec<u64>,
        /// How often this worker has died in a row outside of batches; 0 when it died on a batch, because
        /// such a death counts for the batch.
        deaths: u32,
        /// How often it may (`max_worker_deaths`).
        most: u32,
    },
    /// The worker that was to take a dead one's place could not be started, which counts as a death. It is tried again.
    #[error(
        "{problem}; it is tried again (death {deaths} in a row without finishing a batch; max_worker_deaths is {most})"
    )]
    WorkerNotReplaced {
        /// Number of the worker.
        worker: usize,
        /// Why it did not start.
        problem: String,
        /// How often this worker has died in a row outside of batches.
        deaths: u32,
        /// How often it may (`max_worker_deaths`).
        most: u32,
    },
    /// A sample could not be loaded, and was skipped or replaced.
    #[error("{0}")]
    BadSample(BadSample),
    /// A worker had more memory of its own than `worker_memory_limit`, and another one starts in its place, between two batches.
    #[error(
        "worker {worker} (pid {pid}) has {resident} bytes in memory, worker_memory_limit is {limit}: another one takes its place"
    )]
    WorkerOversized {
        /// Number of the worker.
        worker: usize,
        /// Process id of the one that ends.
        pid: u32,
        /// Bytes of its own that it has in memory.
        resident: u64,
        /// The limit.
        limit: u64,
    },
    /// `iter()`: persistent workers could not go on with another epoch, and others were started.
    #[error("persistent workers were replaced, with their copies of the dataset: {problem}")]
    WorkersReplaced {
        /// What happened to them.
        problem: String,
    },
    /// A batch sampler gave more or fewer batches in an epoch than its `len` said. Given at most once per
    /// iterator, as soon as the loader notices.
    #[error(
        "the batch sampler said that epoch {epoch} has {said} batches, and it has given {given}; correct its `len`, or that of the \
         sampler that it cuts"
    )]
    WrongBatchCount {
        /// Number of the epoch.
        epoch: u64,
        /// Number that its `len` returned.
        said: usize,
        /// Number of batches that it gave: all of the epoch if it gave fewer than it said, otherwise one more
        /// than it said.
        given: u64,
    },
    /// An iterable dataset gave more samples than its `len`. Said once an iterator.
    #[error(
        "the iterable dataset said that it has {said} samples, and {loaded} have come; either its `len` is wrong, or its shards \
         overlap: `iter` must give each sample in one shard only"
    )]
    LongerThanSaid {
        /// Number that its `len` returned.
        said: usize,
        /// Samples so far.
        loaded: u64,
    },
    /// `pin_memory` is on, and memory could not be page-locked: batches, or some of them, lie in ordinary memory. Said once a loader by
    /// `build()` when there is no driver or device, and once by the iterator when the driver refuses memory.
    #[error(
        "pin_memory is on, but batches are loaded into ordinary memory: {reason}; or leave pin_memory out"
    )]
    NotPinned {
        /// Why, and what can be done.
        reason: String,
    },
}

fn replaced(
    worker: usize,
    pid: u32,
    reason: &str,
    doing: &Doing,
    batches: &[u64],
    deaths: u32,
    most: u32,
) -> String {
    let doing = while_doing(doing);
    let mut text = format!("worker {worker} (pid {pid}) {reason}{doing}; another one takes its place");
    if !batches.is_empty() {
        text.push_str(&format!(" and does batches {batches:?} again"));
    }
    if deaths > 0 {
        text.push_str(&format!(
            " (death {deaths} in a row without finishing a batch; max_worker_deaths is {most})"
        ));
    }
    text
}

/// Where warnings go.
#[derive(Clone)]
pub(crate) struct Warn(Arc<dyn Fn(&Warning) + Send + Sync>);

impl Warn {
    pub(crate) fn with(function: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    pub(crate) fn warn(&self, warning: &Warning) {
        (self.0)(warning);
    }
}

impl Default for Warn {
    fn default() -> Self {
        /// What this process has printed: the same text is said once, as by Python's `warnings`.
        static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        Self::with(|warning| {
            let text = warning.to_string();
            // Not `eprintln`, which panics when nobody reads standard error.
            let line = format!("loader: warning: {text}");
            if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(text) {
                drop(writeln!(io::stderr(), "{line}"));
            }
        })
    }
}

impl fmt::Debug for Warn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warn").finish_non_exhaustive()
    }
}
