//! The memory of slots: each region is one memfd with room for one or more slots of one size.

use std::{collections::BTreeSet, io, num::NonZeroUsize, sync::Arc};

use loader_pinning::Pinner;

use crate::{
    held_fd::HeldFd,
    memory,
    sys::{SlotMemory, SlotRegion},
};

/// Minimum size of a slot that has a region, and therefore a descriptor, of its own, in bytes.
const MIN_LEN_ALONE: usize = 1 << 20;
/// Maximum size of a region of smaller slots, in bytes.
const MAX_REGION_LEN: usize = 32 << 20;
/// Minimum number of slots for which a region of smaller slots has room.
const MIN_SLOTS: usize = 8;

/// Shared memory with room for `count` slots. The pages of a slot are reserved when it is made, and given
/// back when it is destroyed.
#[derive(Debug)]
pub(super) struct Region {
    first: u32,
    count: u32,
    slot_len: NonZeroUsize,
    backing: Backing,
    mapping: Arc<SlotRegion>,
    /// Numbers of the slots that can be made.
    vacant: BTreeSet<u32>,
    /// Number of slots that exist in it.
    slots: usize,
    /// Number of slots that are never made again.
    given_up: usize,
}

/// Where the memory of a region is.
#[derive(Debug)]
enum Backing {
    /// In a memfd, which workers map too.
    Memfd(Arc<HeldFd>),
    /// In this process only. The system reserves a page when it is first written.
    ThisProcess,
}

impl Backing {
    /// Reserves the pages of `len` bytes from `start` on.
    fn reserve(&self, start: usize, len: NonZeroUsize) -> io::Result<()> {
        match self {
            Self::Memfd(fd) => memory::reserve_pages(fd, start, len),
            Self::ThisProcess => Ok(()),
        }
    }

    /// Gives the pages of `len` bytes from `start` on back to the system.
    fn release(&self, start: usize, len: NonZeroUsize) -> io::Result<()> {
        match self {
            Self::Memfd(fd) => memory::release_pages(fd, start, len),
            Self::ThisProcess => Ok(()),
        }
    }
}

/// Who can map the memory of slots.
///
/// Alternative considered: slots without memory, of which only the numbers and sizes exist. Rejected because
/// [`SlotMemory`] gives out bytes, so each of its methods would need a second case, while memory of this
/// process takes two system calls per region and no pages as long as nothing writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// This process and its workers.
    WithWorkers,
    /// Only this process.
    None,
}

/// Description of a region, and its descriptor, with which a worker maps it.
#[derive(Debug)]
pub struct SharedRegion {
    /// Number of its first slot.
    pub first: u32,
    /// Number of slots for which it has room.
    pub count: u32,
    /// Size of each slot, in bytes.
    pub slot_len: u64,
    /// Its memory.
    pub fd: Arc<HeldFd>,
}

impl Region {
    /// Makes a region for slots of `slot_len` bytes whose numbers begin at `first`. It has room for as many
    /// slots as the loader has (`slots`), so that the number of regions grows with the logarithm of the
    /// number of slots until regions have their maximum size.
    ///
    /// # Errors
    /// If the system is out of descriptors, mappings or memory.
    pub(super) fn create(
        first: u32,
        slot_len: NonZeroUsize,
        slots: usize,
        sharing: Sharing,
    ) -> io::Result<Self> {
        let max_count = if slot_len.get() < MIN_LEN_ALONE { MAX_REGION_LEN / slot_len } else { 1 };
        let count = slots.max(MIN_SLOTS).min(max_count);
        // A limit on address space or on the size of files may allow memory for one slot, but not for
        // several.
        Self::with_room(first, slot_len, count, sharing).or_else(|error| match count {
            1 => Err(error),
            _ => Self::with_room(first, slot_len, 1, sharing),
        })
    }

    fn with_room(first: u32, slot_len: NonZeroUsize, count: usize, sharing: Sharing) -> io::Result<Self> {
        let slots = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let (backing, mapping) = match sharing {
            Sharing::WithWorkers => {
                let fd = memory::create(slot_len.checked_mul(slots).ok_or(io::ErrorKind::InvalidInput)?)?;
                let mapping = SlotRegion::map(&fd, slot_len, slots)?;
                (Backing::Memfd(Arc::new(fd)), mapping)
            }
            Sharing::None => (Backing::ThisProcess, SlotRegion::of_this_process(slot_len, slots)?),
        };
        let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let vacant = (first..first + count).collect();
        Ok(Self { first, count, slot_len, backing, mapping, vacant, slots: 0, given_up: 0 })
    }

    /// Returns the number of its first slot.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the number after that of its last slot.
    pub(super) fn end(&self) -> u32 {
        self.first + self.count
    }

    /// True if a slot of `len` bytes can be made in it.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.slot_len.get() == len && !self.vacant.is_empty()
    }

    /// True if no slot exists in it.
    pub(super) fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// Makes the vacant slot with the smallest number. `pinner` page-locks it; if that fails, the slot is
    /// ordinary memory.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub(super) fn make_slot(&mut self, pinner: Option<&Pinner>) -> io::Result<(u32, Arc<SlotMemory>)> {
        while let Some(&number) = self.vacant.first() {
            self.backing.reserve(self.offset(number), self.slot_len)?;
            self.vacant.remove(&number);
            // The CUDA driver may still have the memory of a destroyed slot registered. Such memory is never
            // used again.
            if let Some(slot) = self.mapping.slot(self.position(number), pinner) {
                self.slots += 1;
                return Ok((number, slot));
            }
            self.given_up += 1;
        }
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// Notes that a slot is destroyed. If a worker may still read it, its memory stays until the region is
    /// destroyed and the worker has unmapped it. Otherwise its pages go back to the system, and it is vacant.
    pub(super) fn remove_slot(&mut self, number: u32, may_be_read: bool) {
        self.slots -= 1;
        if !may_be_read && self.backing.release(self.offset(number), self.slot_len).is_ok() {
            self.vacant.insert(number);
        } else {
            self.given_up += 1;
        }
    }

    /// Returns what a worker needs to map it; `None` if only this process can.
    pub(super) fn share(&self) -> Option<SharedRegion> {
        let Self { first, count, slot_len, ref backing, .. } = *self;
        match backing {
            Backing::Memfd(fd) => {
                Some(SharedRegion { first, count, slot_len: slot_len.get() as u64, fd: Arc::clone(fd) })
            }
            Backing::ThisProcess => None,
        }
    }

    /// Returns the number of existing slots, and of existing, vacant and given-up slots together.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.slots, self.slots + self.vacant.len() + self.given_up)
    }

    fn position(&self, number: u32) -> usize {
        (number - self.first) as usize
    }

    fn offset(&self, number: u32) -> usize {
        self.position(number) * self.slot_len.get()
    }
}
