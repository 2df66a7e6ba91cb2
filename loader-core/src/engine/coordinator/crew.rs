//! The workers, as the coordinator commands and sees them.

use std::time::Duration;

use loader_ipc::{
    control::WorkerSnapshot,
    frame::{Indices, Lease, Task},
    process::{CpuUse, Halt},
};

use crate::{error::Error, report::warning::Warning};

/// Carries out what the coordinator decides. [`Pool`](crate::engine::pool::Pool) implements it with processes, and
/// the simulation with simulated ones.
///
/// No method waits for a worker to do its work. A method that sends a slot or an answer may wait until the
/// worker's lifeline accepts the message, which has a deadline. A method that sends to a worker whose process
/// has ended does nothing and succeeds, since the report of the exit follows.
///
/// Alternative considered: the coordinator puts commands into a queue that its owner empties. Rejected
/// because the coordinator needs two answers at once: whether a task could be withdrawn, and what a worker is
/// doing.
pub(crate) trait Crew {
    /// Sends a task with this claim over the worker's index queue, after the memory of its slot.
    fn give(&mut self, worker: usize, task: UnsentTask, claim: u32) -> Result<(), Error>;

    /// Offers the worker another slot for a task, after the memory of that slot.
    fn offer(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error>;

    /// Tells the worker that an epoch begins. The tasks that follow are of this epoch.
    fn resume(&mut self, worker: usize, epoch: u64) -> Result<(), Error>;

    /// Tells the worker that no more tasks come.
    fn finish(&mut self, worker: usize);

    /// Takes back the task with this claim. False if the worker has begun it.
    fn withdraw(&mut self, worker: usize, claim: u32) -> bool;

    /// Answers a worker that has asked for a larger slot: with the slot, or with the reason why there is
    /// none.
    fn grant(&mut self, worker: usize, task: u64, lease: Result<Lease, String>) -> Result<(), Error>;

    /// Asks a worker that waits for a larger slot for the one that it has.
    fn vacate(&mut self, worker: usize, task: u64) -> Result<(), Error>;

    /// Kills the worker's process. Reports that it has sent before still count if it is `trusted`.
    fn kill(&mut self, worker: usize, trusted: bool);

    /// Begins to start a process after `pause`: for a worker whose process has ended, or for a new worker
    /// with the next number.
    fn start(&mut self, worker: usize, pause: Duration) -> Result<(), Error>;

    /// Takes over the process that [`start`](Self::start) has started, after the report that it is there.
    ///
    /// # Errors
    /// Why it could not be started.
    fn adopt(&mut self, worker: usize) -> Result<(), Error>;

    /// Tells the workers whether the tasks that they have are still wanted.
    fn set_wanted(&mut self, is_wanted: bool);

    /// Tells the user.
    fn warn(&mut self, warning: &Warning);

    /// Returns the process id of the worker's process, or of the last one that it had.
    fn pid(&self, worker: usize) -> u32;

    /// True if the worker's process has ended and no other one was adopted.
    fn is_down(&self, worker: usize) -> bool;

    /// True if the worker's process runs and was not told that no more tasks come.
    fn takes_tasks(&self, worker: usize) -> bool;

    /// Returns what the worker is doing.
    fn snapshot(&self, worker: usize) -> WorkerSnapshot;

    /// Returns for how long all processes that the worker has had used CPUs, and waited for them.
    fn cpu_use(&self, worker: usize) -> CpuUse;

    /// Returns why the worker's process cannot continue by itself; `None` if it can.
    fn halt(&self, worker: usize) -> Option<Halt>;

    /// True if the kernel's OOM killer has ended a process since the last call.
    fn has_oom_killer_acted(&mut self) -> bool;

    /// True if the worker has used the slot before, so that its pages are in the worker's page table.
    fn knows(&self, worker: usize, slot: u32) -> bool;

    /// Notes which workers must unmap memory that no longer exists. True if some was destroyed since the last
    /// call.
    fn forget_destroyed_slots(&mut self) -> bool;
}

/// A task that main has not sent to a worker.
#[derive(Debug)]
pub(crate) struct UnsentTask {
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) lease: Lease,
    pub(crate) indices: Indices,
    pub(crate) known_bad: Vec<u64>,
}

impl UnsentTask {
    /// Returns the task as it is sent, with its claim and the regions that the worker unmaps.
    pub(crate) fn into_task(self, claim: u32, forget: Vec<u32>) -> Task {
        let Self { epoch, number, lease, indices, known_bad } = self;
        Task { epoch, number, lease, indices, forget, claim, known_bad }
    }
}
