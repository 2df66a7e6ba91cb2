//! Memory of heap buffers that is used again, for loading without workers: a fresh buffer of batch size costs a page fault for
//! each of its pages, a fresh small one the allocator's slow way to aligned memory, a used one next to nothing.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::sys::Line;

/// Larger buffers are large.
const MOST_SMALL: usize = 64 * 1024 / size_of::<Line>();
/// Most buffers of either size that wait to be used again. More come back only when the program drops batches that it had kept.
const MOST_WAITING: usize = 4;

/// Buffers on their way from one batch to the next. Clones share them; the last one frees them.
#[derive(Clone, Default)]
pub struct HeapPool(Arc<Mutex<Waiting>>);

/// Apart, so that a batch's labels do not push out its images.
#[derive(Default)]
struct Waiting {
    small: Vec<Vec<Line>>,
    large: Vec<Vec<Line>>,
}

impl HeapPool {
    /// Memory of at least `lines` lines with any content.
    pub(crate) fn take(&self, lines: usize) -> Vec<Line> {
        let mut all = self.lock();
        let waiting = all.of_size(lines);
        // One that is far too large would be held by a small batch.
        let fits = |other: &Vec<Line>| (lines..=2 * lines).contains(&other.len());
        match waiting.iter().position(fits) {
            Some(place) => waiting.swap_remove(place),
            None => bytemuck::allocation::zeroed_vec(lines),
        }
    }

    pub(crate) fn give_back(&self, memory: Vec<Line>) {
        let mut all = self.lock();
        let waiting = all.of_size(memory.len());
        if waiting.len() == MOST_WAITING {
            // The oldest is the least likely to be of the right size.
            waiting.remove(0);
        }
        waiting.push(memory);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn of_size(&mut self, lines: usize) -> &mut Vec<Vec<Line>> {
        if lines > MOST_SMALL { &mut self.large } else { &mut self.small }
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.lock();
        let (small, large) = (waiting.small.len(), waiting.large.len());
        f.debug_struct("HeapPool").field("small", &small).field("large", &large).finish()
    }
}
