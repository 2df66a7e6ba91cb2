//! A cache of decoded parts of files.

use std::{collections::VecDeque, sync::Arc};

use loader_core::{DatasetMemory, MemoryReservation};

/// Decoded parts of files by index, the most recently used first.
#[derive(Debug)]
pub(crate) struct PartCache<T>(VecDeque<(usize, Arc<T>, MemoryReservation)>);

impl<T> Default for PartCache<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> PartCache<T> {
    /// Returns part `index` if it is in the cache.
    pub(crate) fn get(&mut self, index: usize) -> Option<Arc<T>> {
        let at = self.0.iter().position(|(part, ..)| *part == index)?;
        let found = self.0.remove(at)?;
        let part = Arc::clone(&found.1);
        self.0.push_front(found);
        Some(part)
    }

    /// Reserves `bytes` from `memory` for another part. Drops the least recently used parts until all parts
    /// together have at most `limit` bytes and `memory` grants the reservation. Returns `None` if `memory`
    /// refuses even without any part. If `bytes` alone exceeds one of the limits, returns `None` and drops
    /// nothing.
    pub(crate) fn make_room(
        &mut self,
        bytes: u64,
        limit: u64,
        memory: &DatasetMemory,
    ) -> Option<MemoryReservation> {
        if bytes > memory.limit().map_or(limit, |of_memory| of_memory.min(limit)) {
            return None;
        }
        loop {
            if self.bytes().saturating_add(bytes) <= limit
                && let Ok(reserved) = memory.reserve(bytes)
            {
                return Some(reserved);
            }
            drop(self.0.pop_back()?);
        }
    }

    /// Adds part `index`, whose bytes are `reserved`. Drops the least recently used parts while all parts
    /// together have more than `limit` bytes.
    pub(crate) fn insert(&mut self, index: usize, part: &Arc<T>, reserved: MemoryReservation, limit: u64) {
        self.0.push_front((index, Arc::clone(part), reserved));
        while self.bytes() > limit {
            self.0.pop_back();
        }
    }

    /// Returns the number of bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(.., reserved)| reserved.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use loader_core::SampleContext;

    use super::*;

    #[test]
    fn the_least_recently_used_part_is_dropped() {
        let cx = SampleContext::new(0);
        let mut cache = PartCache::default();
        for part in 0..4 {
            let reserved = cache.make_room(10, 30, cx.memory()).unwrap();
            cache.insert(part, &Arc::new(part), reserved, 30);
            assert_eq!(cache.get(0).as_deref(), Some(&0), "part 0 was used last");
        }
        let kept = [0, 1, 2, 3].map(|part| cache.get(part).is_some());
        assert_eq!((cache.bytes(), kept), (30, [true, false, true, true]));
        assert!(cache.make_room(31, 30, cx.memory()).is_none());
        assert_eq!(cache.bytes(), 30, "a part that cannot fit drops no other");
    }
}
