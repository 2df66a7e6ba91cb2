//! What the slots contain, and which workers write to them.

use std::collections::{BTreeMap, BTreeSet};

use super::dataset::Content;

/// A worker, by number of its iterator and its own number.
pub(super) type Writer = (usize, usize);

/// The memory that all workers of a loader share with main.
#[derive(Debug, Default)]
pub(super) struct Memory {
    contents: BTreeMap<u32, Content>,
    /// Slots in which the user holds batches.
    lent: BTreeSet<u32>,
    /// Slots in which a worker has kept a tensor.
    kept: BTreeMap<u32, Writer>,
    /// Slots that a worker is writing.
    writers: BTreeMap<u32, Writer>,
}

impl Memory {
    pub(super) fn start_writing(&mut self, slot: u32, worker: Writer) {
        assert!(!self.lent.contains(&slot), "worker {worker:?} writes slot {slot}, which the user holds");
        assert!(
            !self.kept.contains_key(&slot),
            "worker {worker:?} writes slot {slot}, which a worker has kept"
        );
        let other = self.writers.insert(slot, worker);
        assert!(
            other.is_none_or(|other| other == worker),
            "workers {worker:?} and {other:?} write slot {slot}"
        );
        self.contents.remove(&slot);
    }

    pub(super) fn finish_writing(&mut self, slot: u32, worker: Writer, content: Option<Content>) {
        assert_eq!(self.writers.remove(&slot), Some(worker), "slot {slot} has another writer");
        if let Some(content) = content {
            self.contents.insert(slot, content);
        }
    }

    /// Notes that a worker has kept a tensor in a slot.
    pub(super) fn keep(&mut self, slot: u32, worker: Writer) {
        self.kept.insert(slot, worker);
    }

    /// Notes that a worker's process has ended, so that it writes to no slot and keeps no tensor.
    pub(super) fn forget(&mut self, worker: Writer) {
        self.kept.retain(|_, keeper| *keeper != worker);
        self.writers.retain(|_, writer| *writer != worker);
    }

    /// Notes that the user gets the batch in a slot, and returns it.
    pub(super) fn lend(&mut self, slot: u32) -> Content {
        assert!(!self.writers.contains_key(&slot), "slot {slot} is lent while a worker writes it");
        assert!(self.lent.insert(slot), "slot {slot} is lent twice");
        *self.contents.get(&slot).unwrap_or_else(|| panic!("slot {slot} is lent without a batch"))
    }

    /// Notes that the user has dropped the batch in a slot.
    pub(super) fn take_back(&mut self, slot: u32) {
        assert!(self.lent.remove(&slot));
    }

    /// Number of batches that the user holds.
    pub(super) fn lent(&self) -> usize {
        self.lent.len()
    }
}
