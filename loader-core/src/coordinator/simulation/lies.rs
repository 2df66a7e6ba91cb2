//! Events that break the protocol. Each must have its worker expelled, whatever main is doing when it
//! receives the event.

use loader_ipc::{
    arena::Encoded,
    frame::{Event, Failure, Lease},
};
use rand::{RngExt, rngs::ChaCha8Rng};

/// A task that main never sends.
const NO_TASK: u64 = u64::MAX;

/// Returns an invalid event. It names `task` and `lease`, which another worker may have: the generation that
/// it claims never comes.
pub(super) fn invalid_event(rng: &mut ChaCha8Rng, task: u64, lease: Lease) -> Event {
    let lease = Lease { generation: lease.generation ^ (1 << 31), ..lease };
    let (held, position, bad) = (rng.random(), 0, Vec::new());
    match rng.random_range(0..12) {
        // It has said so when it had started.
        0 => Event::Ready,
        1 => Event::NotReady { failure: Failure::to_send("a lie".to_owned()) },
        2 => Event::Done { task, lease, encoded: Encoded { start: 0, len: 1 }, held, position, bad },
        3 => {
            let failure = Failure::to_send("a lie".to_owned());
            Event::Failed { task, lease, failure, held, position, ended: rng.random() }
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
