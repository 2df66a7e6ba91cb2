//! Events that break the protocol. Main must expel a worker that sends such an event, whatever main is doing
//! when it receives the event.

use loader_ipc::{
    arena::Encoded,
    frame::{AfterFailure, Event, Failure, Lease, StreamPosition},
};
use rand::{RngExt, rngs::ChaCha8Rng};

/// A task that main never sends.
const NO_TASK: u64 = u64::MAX;

/// Returns an invalid event. It may name `task` and the slot of `lease`, which may be another worker's, with
/// a generation that no lease has.
pub(super) fn invalid_event(rng: &mut ChaCha8Rng, task: u64, lease: Lease) -> Event {
    let lease = Lease { generation: lease.generation ^ (1 << 31), ..lease };
    let (held, position, bad) = (rng.random(), StreamPosition::default(), Vec::new());
    match rng.random_range(0..12) {
        // The worker has sent this event after its start already.
        0 => Event::Ready,
        1 => Event::NotReady { failure: Failure::to_send("a lie".to_owned()) },
        2 => {
            let encoded = Encoded { start: 0, len: 1 };
            Event::Done { task, lease, encoded, held, position, bad, schema: None }
        }
        3 => {
            let failure = Failure::to_send("a lie".to_owned());
            let after = [AfterFailure::Continues, AfterFailure::EndsForEpoch, AfterFailure::Ends];
            let after = after[rng.random_range(0..after.len())];
            Event::Failed { task, lease, failure, held, position, after }
        }
        4 => Event::AllSamplesBad { task, lease, held, position, bad },
        5 => Event::NeedSlot { task: NO_TASK, lease, needed: 1 << 40 },
        6 => Event::Vacated { task, lease, held },
        7 => Event::Unused { task: NO_TASK, lease },
        8 => Event::Withdrawn { task: NO_TASK },
        9 => Event::Exhausted { task, lease, held },
        10 => Event::Skipped { task, lease, held },
        // Main numbers the epochs from 0.
        _ => Event::Resumed { epoch: u64::MAX },
    }
}
