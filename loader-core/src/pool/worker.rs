//! One worker's process and its channels.

use std::{collections::BTreeSet, mem, sync::Arc};

use loader_ipc::{frame::ExitStatus, lifeline::Lifeline, process::WorkerProcess, queue::OrderSender};

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) process: Arc<WorkerProcess>,
    pub(super) lifeline: Lifeline,
    pub(super) orders: OrderSender,
    /// Regions of slots that the worker has mapped, by number of the first slot.
    pub(super) regions: BTreeSet<u32>,
    /// Slots that it has been given.
    pub(super) used: BTreeSet<u32>,
    /// Regions that it must unmap with its next task.
    pub(super) to_forget: Vec<u32>,
    pub(super) sentinel_sent: bool,
    pub(super) exited: Option<ExitStatus>,
}

impl Worker {
    pub(super) fn new(process: Arc<WorkerProcess>, lifeline: Lifeline, orders: OrderSender) -> Self {
        Self {
            process,
            lifeline,
            orders,
            regions: BTreeSet::new(),
            used: BTreeSet::new(),
            to_forget: Vec::new(),
            sentinel_sent: false,
            exited: None,
        }
    }

    /// Goes on with another process.
    pub(super) fn become_started(&mut self, new: Self) {
        let old = mem::replace(self, new);
        if old.sentinel_sent {
            self.send_sentinel();
        }
    }

    /// Never waits: the queue holds at most a few small tasks.
    pub(super) fn send_sentinel(&mut self) {
        if !mem::replace(&mut self.sentinel_sent, true) && self.exited.is_none() {
            // If the worker is gone, the reaper reports it.
            drop(self.orders.send(&None));
        }
    }
}
