//! Warnings: probable mistakes that do not stop the loader.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    error::{
        bad_sample::BadSample,
        exit::{WorkerActivity, WorkerExit, ended},
    },
    launch::ranks::{LaunchedRank, Launcher},
    text::print::print_once,
};

/// A probable mistake or a problem that does not stop the loader. The loader prints warnings to standard
/// error, each text once per process, or calls the function given to
/// [`Builder::on_warning`](crate::Builder::on_warning).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// `build()`: there are more workers than CPUs for the workers, by their affinity, the control group's
    /// quota, and the number of the launcher's processes on this machine.
    #[error(
        "num_workers is {workers}, but the workers may use {cpus} CPUs{}: workers share CPUs, which may make loading \
         slower; lower num_workers, or use \"auto\"", part_of(*.processes)
    )]
    MoreWorkersThanCpus {
        /// The loader's `num_workers`.
        workers: usize,
        /// Number of CPUs.
        cpus: usize,
        /// Number of the launcher's processes on this machine by which the CPUs were divided; 1 if they were not.
        processes: usize,
    },
    /// `build()`: a launcher has started several processes, but the loader loads the whole dataset in each.
    /// Set `launcher` to say which is intended.
    #[error(
        "the environment says {launched}, but the loader loads the whole dataset in each process; set launcher to \
         \"auto\" for a share of it, or to \"off\" if this is intended"
    )]
    RankIgnored {
        /// What the launcher's variables say.
        launched: LaunchedRank,
    },
    /// `build()`: a launcher tells only one of local rank and local size, so the loader cannot tell which part of the
    /// machine's CPUs is for the workers of the process. `num_workers = "auto"` or `worker_affinity` needs to
    /// know it.
    #[error(
        "the environment says {launched}, but does not say both the local rank and the local size, so the loader \
         cannot divide the CPUs of this machine and counts all of them for its workers; {}", complete(.variable)
    )]
    LocalRanksUnknown {
        /// What the launcher's variables say.
        launched: LaunchedRank,
        /// The variable that is missing; empty if the launcher has none.
        variable: &'static str,
    },
    /// `build()` of an iterable dataset: `num_workers` is `"auto"` without a maximum, and `shards` is not set, so the
    /// number of shards, and with it the order of the batches, follows from the number of CPUs.
    #[error(
        "the loader reads the dataset in {shards} shards because its workers may use {cpus} CPUs; with another \
         number of CPUs, the same seed may give another order; set shards, for example to {shards}, so that the order \
         does not depend on the machine"
    )]
    OrderDependsOnCpus {
        /// Number of shards.
        shards: usize,
        /// Number of CPUs.
        cpus: usize,
    },
    /// `build()` of an iterable dataset, in rank 0 of several: `steps_per_epoch` is not set, so each rank takes as many
    /// steps as its shards have batches. A rank that takes more steps than another waits for ever in the next
    /// collective operation, such as the sum of gradients.
    #[error(
        "the loader divides the stream into {shares} shares, and each rank takes as many steps as its share has batches, \
         so a rank with more batches waits for the others for ever; set steps_per_epoch to the same number on all ranks"
    )]
    StepsMayDiffer {
        /// Number of shares: that of the ranks, or with `group_size` that of the groups.
        shares: usize,
    },
    /// `build()`: a launcher has bound this process, and so its workers, to a small part of the CPUs.
    #[error(
        "{launcher} has bound this process and its {workers} workers to {cpus} of {all_cpus} CPUs, though it \
         runs {processes} processes on this machine; set worker_affinity to \"share\", or {}", unbind(*.launcher)
    )]
    BoundToFewCpus {
        /// The launcher.
        launcher: Launcher,
        /// The loader's `num_workers`.
        workers: usize,
        /// Number of CPUs that the process may use.
        cpus: usize,
        /// Number of CPUs that its control group or the machine has.
        all_cpus: usize,
        /// Number of the launcher's processes on this machine.
        processes: usize,
    },
    /// `next()` has waited for a batch, or `iter()` for workers, for longer than
    /// [`Builder::warn_after`](crate::Builder::warn_after) and continues to wait. There is one warning per wait.
    #[error("no batch for {after:?}: waiting for {waiting_for}; set timeout to get an error instead")]
    LongWait {
        /// The loader's `warn_after`.
        after: Duration,
        /// The awaited worker and what it is doing.
        waiting_for: WorkerActivity,
    },
    /// A worker process has ended, and another process takes its place. Its unfinished batches are loaded
    /// again; no batch is lost.
    #[error("{}", replaced(.exit, .doing, .batches, *.deaths, *.max_worker_deaths))]
    WorkerReplaced {
        /// Number of the worker.
        worker: usize,
        /// Process id of the process that ended.
        pid: u32,
        /// How it ended, and why.
        exit: WorkerExit,
        /// What it was doing.
        doing: WorkerActivity,
        /// Numbers of the batches that are loaded again.
        batches: Vec<u64>,
        /// Number of deaths of this worker in a row outside of batches. 0 if it died on a batch, because such
        /// a death counts for the batch.
        deaths: u32,
        /// The loader's `max_worker_deaths`.
        max_worker_deaths: u32,
    },
    /// The process that should replace a dead worker could not be started. This counts as a death, and the
    /// loader tries again.
    #[error(
        "{problem}; trying again (death {deaths} in a row without finishing a batch; max_worker_deaths is \
         {max_worker_deaths})"
    )]
    WorkerNotReplaced {
        /// Number of the worker.
        worker: usize,
        /// Why it did not start.
        problem: String,
        /// Number of deaths of this worker in a row outside of batches.
        deaths: u32,
        /// The loader's `max_worker_deaths`.
        max_worker_deaths: u32,
    },
    /// A worker that [`Iter::set_num_workers`](crate::Iter::set_num_workers) adds could not be started. The
    /// iterator continues with the workers that it has.
    #[error("worker {worker} could not be added, and the others continue: {problem}")]
    WorkerNotAdded {
        /// Number of the worker.
        worker: usize,
        /// Why it did not start.
        problem: String,
    },
    /// A sample could not be loaded, and was skipped or replaced.
    #[error("{0}")]
    BadSample(BadSample),
    /// A worker has allocated more private memory than `worker_memory_limit`. It ends before its next batch, and
    /// another process takes its place.
    #[error(
        "worker {worker} (pid {pid}) uses {resident} bytes of memory, but worker_memory_limit is {limit}; \
         another process takes its place"
    )]
    WorkerOversized {
        /// Number of the worker.
        worker: usize,
        /// Process id of the process that ends.
        pid: u32,
        /// Bytes of resident memory of its own.
        resident: u64,
        /// The loader's `worker_memory_limit`, in bytes.
        limit: u64,
    },
    /// Persistent workers cannot continue, for example because one of them has died after its last batch of an epoch.
    /// The loader ends them, and starts new ones for the next epoch.
    #[error("persistent workers cannot continue, so new workers load the next epoch: {problem}")]
    WorkersReplaced {
        /// Why they could not continue.
        problem: String,
    },
    /// The number of batches that the batch sampler gave in an epoch differs from its `len`. There is at most
    /// one such warning per iterator, as soon as the loader notices.
    #[error(
        "the batch sampler said that epoch {epoch} has {announced} batches, but it gave {given}; correct its \
         `len`, or the `len` of the sampler in it"
    )]
    WrongBatchCount {
        /// Number of the epoch.
        epoch: u64,
        /// Number that its `len` returned.
        announced: usize,
        /// Number of batches that it gave. If it gave more than it said, this is one more than it said,
        /// because the loader warns at the first surplus batch.
        given: u64,
    },
    /// The iterable dataset gave more samples than its `len`. There is at most one such warning per iterator.
    #[error(
        "the iterable dataset said that it has {announced} samples, but it gave {loaded} so far; either its `len` \
         is wrong, or its shards overlap: `iter` must give each sample in one shard only"
    )]
    LongerThanLen {
        /// Number that its `len` returned.
        announced: usize,
        /// Number of samples so far.
        loaded: u64,
    },
    /// Errors that `next` returned have ended the epoch, or some of its shards, before all data was read. The
    /// [state](crate::Iter::state) stays in the epoch. There is at most one such warning per iterator.
    #[error(
        "epoch {epoch} ended before all of its data was read, because of errors that `next` returned; resume from the state \
         to read the rest, because a new epoch does not read it"
    )]
    EpochNotRead {
        /// Number of the epoch.
        epoch: u64,
    },
    /// `pin_memory` is set, but memory could not be page-locked: some or all batches are loaded into ordinary
    /// memory. `build()` warns if there is no driver or device. The iterator warns, once per loader, if the
    /// driver refuses memory.
    #[error(
        "pin_memory is on, but batches are loaded into ordinary memory: {reason}; or leave pin_memory out"
    )]
    NotPinned {
        /// Why, and what to do.
        reason: String,
    },
    /// The file of the option `trace` or `trace_on_failure` could not be written.
    #[error("the trace {} was not written: {problem}", file.display())]
    TraceNotWritten {
        /// The file.
        file: PathBuf,
        /// Why.
        problem: String,
    },
}

impl Warning {
    /// Returns the number of the worker that the warning is about.
    pub(crate) fn worker(&self) -> Option<usize> {
        match self {
            Self::WorkerReplaced { worker, .. }
            | Self::WorkerNotReplaced { worker, .. }
            | Self::WorkerNotAdded { worker, .. }
            | Self::WorkerOversized { worker, .. } => Some(*worker),
            Self::LongWait { waiting_for, .. } => Some(waiting_for.worker),
            _ => None,
        }
    }
}

fn part_of(processes: usize) -> String {
    match processes {
        0 | 1 => String::new(),
        _ => format!(", the part of one of {processes} processes on this machine"),
    }
}

/// Returns what the user can do, given the variable that is missing.
fn complete(variable: &str) -> String {
    match variable {
        "" => "set num_workers to a number, and leave out worker_affinity".to_owned(),
        _ => format!("set {variable} too"),
    }
}

/// Returns how the user prevents the binding.
fn unbind(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::OpenMpi => "start it with `mpirun --bind-to none`",
        Launcher::Pmi => "set I_MPI_PIN=off for Intel MPI, or start it with `mpiexec -bind-to none` of MPICH",
        Launcher::Mvapich2 => "set MV2_ENABLE_AFFINITY=0",
        Launcher::Slurm => "start it with `srun --cpu-bind=none`, or with more `--cpus-per-task`",
        _ => "let each process use more CPUs, for example with `srun --cpu-bind=none`",
    }
}

fn replaced(
    exit: &WorkerExit,
    doing: &WorkerActivity,
    batches: &[u64],
    deaths: u32,
    max_worker_deaths: u32,
) -> String {
    let mut text = format!("{}; another process takes its place", ended(exit, doing));
    if !batches.is_empty() {
        text.push_str(&format!(" and loads batches {batches:?} again"));
    }
    if deaths > 0 {
        text.push_str(&format!(
            " (death {deaths} in a row without finishing a batch; max_worker_deaths is {max_worker_deaths})"
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
        Self::with(|warning| print_once(warning.to_string()))
    }
}

impl fmt::Debug for Warn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warn").finish_non_exhaustive()
    }
}
