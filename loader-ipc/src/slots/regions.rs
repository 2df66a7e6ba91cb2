//! The memory that slots lie in: each region is one memfd, cut into places of one size.

use std::{
    collections::BTreeSet,
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use crate::{
    memory,
    pin::Pinner,
    sys::{SlotMemory, SlotRegion},
};

/// Min size of a slot that has a region, and so a descriptor, of its own, in bytes.
const LEAST_ALONE: usize = 1 << 20;
/// Max size of a region of smaller slots, in bytes.
const LARGEST: usize = 32 << 20;
/// Min number of places in a region of smaller slots.
const FEWEST: usize = 8;

/// Shared memory with room for `count` slots. Pages are reserved for a slot when it is made, and given back when it is destroyed.
#[derive(Debug)]
pub(super) struct Region {
    first: u32,
    count: u32,
    slot_len: NonZeroUsize,
    fd: Arc<OwnedFd>,
    mapping: Arc<SlotRegion>,
    /// Numbers of the places that a slot can be made in.
    vacant: BTreeSet<u32>,
    /// Slots in it.
    slots: usize,
    /// Number of places that are not used again.
    given_up: usize,
}

/// What a worker needs to map a region.
#[derive(Debug)]
pub struct SharedRegion {
    /// Number of its first slot.
    pub first: u32,
    /// Number of slots that it has room for.
    pub count: u32,
    /// Size of each slot, in bytes.
    pub slot_len: u64,
    fd: Arc<OwnedFd>,
}

impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Region {
    /// Makes a region for slots of `slot_len` bytes whose numbers begin at `first`: with as many places as there are `slots`, so that the
    /// number of regions grows with the logarithm of the number of slots, until each is as large as a region may be.
    ///
    /// # Errors
    /// When the system has no descriptors, mappings or memory left.
    pub(super) fn create(first: u32, slot_len: NonZeroUsize, slots: usize) -> io::Result<Self> {
        let most = if slot_len.get() < LEAST_ALONE { LARGEST / slot_len } else { 1 };
        let count = slots.max(FEWEST).min(most);
        // A limit on address space or on the size of files may allow memory for one slot, but not for
        // several.
        Self::with_places(first, slot_len, count).or_else(|error| match count {
            1 => Err(error),
            _ => Self::with_places(first, slot_len, 1),
        })
    }

    fn with_places(first: u32, slot_len: NonZeroUsize, count: usize) -> io::Result<Self> {
        let places = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = memory::unreserved(slot_len.checked_mul(places).ok_or(io::ErrorKind::InvalidInput)?)?;
        let mapping = SlotRegion::map(&fd, slot_len, places)?;
        let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let vacant = (first..first + count).collect();
        Ok(Self { first, count, slot_len, fd: Arc::new(fd), mapping, vacant, slots: 0, given_up: 0 })
    }

    /// Number of its first slot.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The number behind that of its last slot.
    pub(super) fn end(&self) -> u32 {
        self.first + self.count
    }

    /// True when a slot of `len` bytes can be made in it.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.slot_len.get() == len && !self.vacant.is_empty()
    }

    /// True when there is no slot in it.
    pub(super) fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// Makes a slot, in the first vacant place; page-locked by `pinner`, as far as it can.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub(super) fn make_slot(&mut self, pinner: Option<&Pinner>) -> io::Result<(u32, Arc<SlotMemory>)> {
        while let Some(&number) = self.vacant.first() {
            memory::fill(&self.fd, self.offset(number), self.slot_len)?;
            self.vacant.remove(&number);
            // A place whose memory the CUDA driver still has registered is not used again.
            if let Some(slot) = self.mapping.slot(self.place(number), pinner) {
                self.slots += 1;
                return Ok((number, slot));
            }
            self.given_up += 1;
        }
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// Notes that a slot is destroyed. If a worker may still read it, its memory stays until the region is
    /// destroyed and the worker has unmapped it; otherwise its pages go back to the system, and its place is
    /// vacant.
    pub(super) fn remove_slot(&mut self, number: u32, may_be_read: bool) {
        self.slots -= 1;
        if !may_be_read && memory::empty(&self.fd, self.offset(number), self.slot_len).is_ok() {
            self.vacant.insert(number);
        } else {
            self.given_up += 1;
        }
    }

    pub(super) fn share(&self) -> SharedRegion {
        let Self { first, count, slot_len, ref fd, .. } = *self;
        SharedRegion { first, count, slot_len: slot_len.get() as u64, fd: Arc::clone(fd) }
    }

    /// Slots in it, and places with those that are vacant or were given up.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.slots, self.slots + self.vacant.len() + self.given_up)
    }

    fn place(&self, number: u32) -> usize {
        (number - self.first) as usize
    }

    fn offset(&self, number: u32) -> usize {
        self.place(number) * self.slot_len.get()
    }
}
