//! Memory of large heap buffers that is used again, for loading without workers: a fresh buffer of batch size costs a page fault for
//! each of its pages, a used one nothing.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::sys::Line;

/// Smaller buffers are left to the allocator, which uses their memory again by itself.
const LEAST_LINES: usize = 64 * 1024 / size_of::<Line>();
/// Most buffers that wait to be used again. More come back only when the program drops batches that it had kept.
const MOST_WAITING: usize = 4;

/// Buffers on their way from one batch to the next. Clones share them; the last one frees them.
#[derive(Clone, Default)]
pub struct HeapPool(Arc<Mutex<Vec<Vec<Line>>>>);

impl HeapPool {
    /// Memory of at least `lines` lines with any content, or `None` where the allocator does as well.
    pub(crate) fn take(&self, lines: usize) -> Option<Vec<Line>> {
        if lines < LEAST_LINES {
            return None;
        }
        let mut waiting = self.lock();
        // One that is far too large would be held by a small batch.
        let fits = |other: &Vec<Line>| (lines..=2 * lines).contains(&other.len());
        Some(match waiting.iter().position(fits) {
            Some(place) => waiting.swap_remove(place),
            None => bytemuck::allocation::zeroed_vec(lines),
        })
    }

    pub(crate) fn give_back(&self, memory: Vec<Line>) {
        let mut waiting = self.lock();
        if waiting.len() == MOST_WAITING {
            // The oldest is the least likely to be of the right size.
            waiting.remove(0);
        }
        waiting.push(memory);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapPool").field("waiting", &self.lock().len()).finish()
    }
}
