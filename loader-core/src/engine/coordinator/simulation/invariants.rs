//! Checks what must hold after every step of main.

use std::collections::BTreeMap;

use loader_ipc::{frame::Lease, slots::SlotPool};

use super::{super::Coordinator, iterator::Iteration, shared::Shared};

/// Checks that tasks and bytes are bounded, and that each lease and each loan has one owner.
pub(super) fn check<'a>(iterations: impl Iterator<Item = &'a Iteration>, slots: &SlotPool, shared: &Shared) {
    assert!(slots.bytes() <= slots.limit(), "too many bytes");
    assert_eq!(
        slots.held(),
        shared.memory.borrow().lent(),
        "the pool and the users disagree on which batches are held"
    );
    let mut owners: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for iteration in iterations {
        let pending = iteration.coordinator.schedule.len();
        assert!(pending <= iteration.max_pending, "too many tasks: {pending}");
        for lease in leases(&iteration.coordinator) {
            *owners.entry((lease.slot, lease.generation)).or_default() += 1;
        }
    }
    for lease in slots.leases() {
        let count = owners.get(&(lease.slot, lease.generation)).copied().unwrap_or(0);
        assert_eq!(count, 1, "number of owners of {lease:?}");
    }
}

/// Returns the leases that a coordinator knows. Some of them may have ended.
fn leases(coordinator: &Coordinator) -> impl Iterator<Item = Lease> {
    let tasks = coordinator.schedule.tasks().filter_map(|scheduled| {
        // A task that has failed has given its slot back.
        let has_slot = !scheduled.has_arrived || scheduled.task.has_batch();
        scheduled.task.lease().filter(|_| has_slot)
    });
    tasks.chain(coordinator.attempts.leases()).chain(coordinator.leasing.offered_leases())
}
