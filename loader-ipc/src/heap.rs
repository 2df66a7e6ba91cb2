//! Memory of heap buffers that is used again, for loading without workers: a fresh buffer of batch size costs a page fault for
//! each of its pages, a fresh small one the allocator's slow way to aligned memory, a used one next to nothing.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    pin::Pinner,
    sys::{Line, Pages},
};

/// Larger buffers are large.
const MOST_SMALL: usize = 64 * 1024 / size_of::<Line>();
/// So many buffers of either size may wait to be used again, or as many as a batch or two needed lately. More come back only when the
/// program drops batches that it had kept.
const LEAST_WAITING: usize = 4;

/// Buffers on their way from one batch to the next. Clones share them; the last one frees them.
#[derive(Clone, Default)]
pub struct HeapPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Page-locks the buffers.
    pinner: Option<Pinner>,
}

/// Apart, so that a batch's labels do not push out its images.
#[derive(Default)]
struct Waiting {
    small: Class,
    large: Class,
}

/// Buffers of about one size.
#[derive(Default)]
struct Class {
    waiting: Vec<Block>,
    /// In use now,
    out: usize,
    /// at most since all were here,
    most_out: usize,
    /// and at most the time before.
    most_before: usize,
}

/// Memory of a buffer.
#[derive(Debug)]
pub(crate) enum Block {
    Lines(Vec<Line>),
    Pinned(Pages),
}

impl HeapPool {
    /// A pool of buffers that `pinner` page-locks when they are made, as far as it can.
    pub fn pinned(pinner: Option<Pinner>) -> Self {
        Self(Arc::new(Shared { waiting: Mutex::default(), pinner }))
    }

    /// Memory of at least `lines` lines with any content; `None` when there is none.
    pub(crate) fn take(&self, lines: usize) -> Option<Block> {
        let mut all = self.lock();
        let class = all.of_size(lines);
        // One that is far too large would be held by a small batch.
        let fits = |other: &Block| (lines..=2 * lines).contains(&other.len()) && !other.is_stale();
        let block = match class.waiting.iter().position(fits) {
            Some(place) => class.waiting.swap_remove(place),
            None => {
                drop(all);
                let block = Block::new(lines, self.0.pinner.as_ref())?;
                all = self.lock();
                block
            }
        };
        let class = all.of_size(lines);
        class.out += 1;
        class.most_out = class.most_out.max(class.out);
        Some(block)
    }

    pub(crate) fn give_back(&self, memory: Block) {
        let mut all = self.lock();
        let class = all.of_size(memory.len());
        class.waiting.push(memory);
        class.out = class.out.saturating_sub(1);
        if class.out == 0 {
            class.most_before = std::mem::take(&mut class.most_out);
        }
        // The oldest are the least likely to be of the right size.
        let most = LEAST_WAITING.max(class.most_out).max(class.most_before);
        let too_many = class.waiting.len().saturating_sub(most);
        let freed: Vec<Block> = class.waiting.drain(..too_many).collect();
        // To free them, and to take them from the driver, takes time that nobody else should wait for.
        drop(all);
        drop(freed);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn of_size(&mut self, lines: usize) -> &mut Class {
        if lines > MOST_SMALL { &mut self.large } else { &mut self.small }
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

    /// True for what a forked child has from its parent's pool.
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
        let waiting = self.lock();
        let (small, large) = (waiting.small.waiting.len(), waiting.large.waiting.len());
        f.debug_struct("HeapPool").field("small", &small).field("large", &large).finish()
    }
}
