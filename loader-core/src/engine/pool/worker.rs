//! A worker's process and its channels.

use std::{collections::BTreeSet, mem, sync::Arc};

use loader_ipc::{
    frame::ExitStatus,
    lifeline::Lifeline,
    process::{CpuUse, WorkerProcess},
    queue::CommandSender,
};

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) process: Arc<WorkerProcess>,
    /// What the earlier processes of the worker have used.
    cpu_before: CpuUse,
    pub(super) lifeline: Lifeline,
    pub(super) commands: CommandSender,
    /// Regions that the worker has mapped, each by the number of its first slot.
    pub(super) regions: BTreeSet<u32>,
    /// Slots that main has given the worker.
    pub(super) used: BTreeSet<u32>,
    /// Destroyed regions that the worker must unmap; its next tasks list them.
    pub(super) to_forget: Vec<u32>,
    pub(super) sentinel_sent: bool,
    pub(super) exited: Option<ExitStatus>,
}

impl Worker {
    pub(super) fn new(process: Arc<WorkerProcess>, lifeline: Lifeline, commands: CommandSender) -> Self {
        Self {
            process,
            cpu_before: CpuUse::default(),
            lifeline,
            commands,
            regions: BTreeSet::new(),
            used: BTreeSet::new(),
            to_forget: Vec::new(),
            sentinel_sent: false,
            exited: None,
        }
    }

    /// Replaces the process and its channels by those of `new`. Sends the sentinel again if the old process
    /// was sent it.
    pub(super) fn become_started(&mut self, new: Self) {
        let cpu_before = self.cpu_use();
        let old = mem::replace(self, Self { cpu_before, ..new });
        if old.sentinel_sent {
            self.send_sentinel();
        }
    }

    /// Returns for how long all processes that the worker has had used CPUs, and waited for them.
    pub(super) fn cpu_use(&self) -> CpuUse {
        self.cpu_before + self.process.cpu_use()
    }

    /// Sends the sentinel, once. Never blocks, since the index queue holds at most a few small tasks.
    pub(super) fn send_sentinel(&mut self) {
        if !mem::replace(&mut self.sentinel_sent, true) && self.exited.is_none() {
            // If the worker is gone, the reaper reports it.
            drop(self.commands.send(&None));
        }
    }
}
