//! Reuses the memory of heap buffers, for loading without workers. A fresh large buffer costs a page fault
//! for each of its pages, a fresh small one the allocator's slow path for aligned memory, a reused one almost
//! nothing.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use loader_pinning::Pinner;

use crate::sys::{Line, Pages};

/// Maximum size of a buffer in the class of small buffers, in lines.
const MAX_SMALL: usize = 64 * 1024 / size_of::<Line>();
/// Number of free buffers that a class may always keep. It keeps as many as were in use at a time, in this
/// period or the previous one, if that is more. Loading needs those of a batch or two; more come back only
/// when the program drops batches that it had kept.
const MIN_FREE: usize = 4;

/// Free buffers, which later batches use again. Clones share them, and the last clone frees them.
#[derive(Clone, Default)]
pub struct HeapPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    classes: Mutex<Classes>,
    /// Page-locks the buffers.
    pinner: Option<Pinner>,
}

/// The buffers by size class, so that a batch's labels do not displace its images.
#[derive(Default)]
struct Classes {
    small: Class,
    large: Class,
}

/// Buffers of one size class.
#[derive(Default)]
struct Class {
    /// Free buffers, oldest first.
    free: Vec<Block>,
    /// Number of buffers in use.
    in_use: usize,
    /// Peak of `in_use` in this period. A period ends when no buffer is in use.
    peak: usize,
    /// Peak of `in_use` in the previous period.
    previous_peak: usize,
}

/// Memory of a buffer.
#[derive(Debug)]
pub(crate) enum Block {
    Lines(Vec<Line>),
    Pinned(Pages),
}

impl HeapPool {
    /// Creates a pool of buffers that `pinner` page-locks. A buffer that it cannot page-lock is ordinary
    /// memory.
    pub fn pinned(pinner: Option<Pinner>) -> Self {
        Self(Arc::new(Shared { classes: Mutex::default(), pinner }))
    }

    /// Returns memory of at least `lines` lines with arbitrary content; `None` if there is no memory.
    pub(crate) fn take(&self, lines: usize) -> Option<Block> {
        let mut classes = self.lock();
        let class = classes.of_size(lines);
        // A small batch must not hold a block of more than twice its size.
        let fits = |block: &Block| (lines..=2 * lines).contains(&block.len()) && !block.is_stale();
        let block = match class.free.iter().position(fits) {
            Some(position) => class.free.swap_remove(position),
            None => {
                drop(classes);
                let block = Block::new(lines, self.0.pinner.as_ref())?;
                classes = self.lock();
                block
            }
        };
        let class = classes.of_size(lines);
        class.in_use += 1;
        class.peak = class.peak.max(class.in_use);
        Some(block)
    }

    pub(crate) fn give_back(&self, block: Block) {
        let mut classes = self.lock();
        let class = classes.of_size(block.len());
        class.free.push(block);
        class.in_use = class.in_use.saturating_sub(1);
        if class.in_use == 0 {
            class.previous_peak = std::mem::take(&mut class.peak);
        }
        // The oldest buffers are the least likely to have a size that is needed.
        let max_free = MIN_FREE.max(class.peak).max(class.previous_peak);
        let excess = class.free.len().saturating_sub(max_free);
        let freed: Vec<Block> = class.free.drain(..excess).collect();
        // Freeing and unregistering them takes time, so no other thread should wait for it.
        drop(classes);
        drop(freed);
    }

    fn lock(&self) -> MutexGuard<'_, Classes> {
        self.0.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Classes {
    fn of_size(&mut self, lines: usize) -> &mut Class {
        if lines > MAX_SMALL { &mut self.large } else { &mut self.small }
    }
}

impl Block {
    fn new(lines: usize, pinner: Option<&Pinner>) -> Option<Self> {
        match pinner.and_then(|pinner| Pages::pinned(lines, pinner)) {
            Some(pages) => Some(Self::Pinned(pages)),
            None => bytemuck::allocation::try_zeroed_vec(lines).ok().map(Self::Lines),
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned(pages) if pages.is_pinned())
    }

    /// True in a forked child for a page-locked block of its parent.
    fn is_stale(&self) -> bool {
        matches!(self, Self::Pinned(pages) if !pages.is_pinned())
    }

    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        match self {
            Self::Lines(lines) => lines,
            Self::Pinned(pages) => pages.lines(),
        }
    }

    #[inline]
    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Lines(lines) => lines,
            Self::Pinned(pages) => pages.lines_mut(),
        }
    }

    fn len(&self) -> usize {
        self.lines().len()
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = self.lock();
        let (small, large) = (classes.small.free.len(), classes.large.free.len());
        f.debug_struct("HeapPool").field("small", &small).field("large", &large).finish()
    }
}
