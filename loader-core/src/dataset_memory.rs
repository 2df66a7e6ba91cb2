//! The account of the memory that a dataset keeps between samples, such as decoded row groups and caches.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// An account of the bytes that a dataset keeps from one sample to the next, such as decoded row groups or a
/// cache. Its limit is a part of the loader's [`memory_limit`](crate::Builder::memory_limit).
/// [`SampleContext::memory`] returns it.
///
/// What [`shared_memory_limit`](crate::Builder::shared_memory_limit) leaves of `memory_limit` is divided
/// equally:
///
/// - Map-style: among the workers. Without workers, the limit is the whole.
/// - Iterable: among the shards of this process. The limit does not depend on the number of workers, so an
///   error about it does not either.
///
/// A dataset reserves the bytes before it keeps them, and drops the [`MemoryReservation`] together with them.
/// All datasets of a composition, such as the parts of a [`ConcatDataset`](crate::ConcatDataset), reserve
/// from the same account.
///
/// Memory that a dataset needs only while it loads a sample is not reserved. There is no limit in `setup` of
/// an iterable dataset, and none if a program calls a dataset directly with [`SampleContext::new`].
///
/// Alternative considered: one account in shared memory for the slots and all workers, so that a worker could
/// use what others leave free. Rejected because timing would then decide which reservation fails.
///
/// # Examples
/// A dataset that keeps its last table if the limit permits it:
///
/// ```
/// use loader_core::{MemoryReservation, SampleContext};
///
/// #[derive(Default)]
/// struct LastTable(Option<(Vec<u8>, MemoryReservation)>);
///
/// impl LastTable {
///     fn keep(&mut self, table: Vec<u8>, cx: &SampleContext) {
///         self.0 = None; // Returns the old table's bytes before the new one's are reserved.
///         if let Ok(reserved) = cx.memory().reserve(table.len() as u64) {
///             self.0 = Some((table, reserved));
///         }
///     }
/// }
///
/// let mut last = LastTable::default();
/// last.keep(vec![0; 100], &SampleContext::new(0));
/// assert_eq!(last.0.unwrap().1.bytes(), 100);
/// ```
///
/// [`SampleContext::memory`]: crate::SampleContext::memory
/// [`SampleContext::new`]: crate::SampleContext::new
#[derive(Debug, Clone, Default)]
pub struct DatasetMemory(Option<Arc<Account>>);

#[derive(Debug)]
struct Account {
    limit: u64,
    reserved: AtomicU64,
}

/// A number of bytes that a dataset has reserved. Dropping the reservation returns them; see
/// [`DatasetMemory`].
#[derive(Debug)]
#[must_use = "dropping a reservation returns its bytes"]
pub struct MemoryReservation {
    memory: DatasetMemory,
    bytes: u64,
}

/// Error returned when a dataset may not keep as many bytes as it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the dataset may not keep {bytes} more bytes: its part of memory_limit is {limit} bytes, of which {reserved} are \
     reserved; raise memory_limit"
)]
#[non_exhaustive]
pub struct MemoryLimitReached {
    /// Number of bytes that were asked for.
    pub bytes: u64,
    /// Number of bytes that were already reserved.
    pub reserved: u64,
    /// Max number of bytes that may be reserved: the part of the loader's `memory_limit` that the worker or
    /// shard has.
    pub limit: u64,
}

impl DatasetMemory {
    /// Makes an account with a limit of `limit` bytes and no reservation.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Some(Arc::new(Account { limit, reserved: AtomicU64::new(0) })))
    }

    /// Reserves `bytes` bytes, or none if that would exceed the limit.
    ///
    /// # Errors
    /// Returns [`MemoryLimitReached`] if the reservations would exceed the limit.
    pub fn reserve(&self, bytes: u64) -> Result<MemoryReservation, MemoryLimitReached> {
        let mut reservation = MemoryReservation { memory: self.clone(), bytes: 0 };
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Returns the max number of bytes that may be reserved; `None` if there is no limit.
    pub fn limit(&self) -> Option<u64> {
        self.0.as_ref().map(|account| account.limit)
    }
}

impl MemoryReservation {
    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `more` bytes to the reservation.
    ///
    /// # Errors
    /// Returns [`MemoryLimitReached`] if the reservations would exceed the limit. This one is then unchanged.
    pub fn grow(&mut self, more: u64) -> Result<(), MemoryLimitReached> {
        if let Some(account) = &self.memory.0 {
            let fits = |reserved: u64| reserved.checked_add(more).filter(|sum| *sum <= account.limit);
            // Relaxed: the counter guards no other memory.
            account
                .reserved
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
                .map_err(|reserved| MemoryLimitReached { bytes: more, reserved, limit: account.limit })?;
        }
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }

    /// Gives back what the reservation has beyond `bytes` bytes. Does nothing if it has no more than that.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        if let Some(account) = &self.memory.0 {
            // Relaxed: as in `grow`.
            account.reserved.fetch_sub(excess, Ordering::Relaxed);
        }
        self.bytes -= excess;
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_share_the_limit_and_return_their_bytes() {
        let memory = DatasetMemory::new(100);
        let mut first = memory.reserve(60).unwrap();
        let refused = MemoryLimitReached { bytes: 41, reserved: 60, limit: 100 };
        assert_eq!(memory.reserve(41).unwrap_err(), refused);
        assert_eq!(first.grow(41).unwrap_err(), refused);
        let second = memory.reserve(40).unwrap();
        first.shrink_to(70);
        assert_eq!(first.bytes(), 60);
        first.shrink_to(10);
        first.grow(50).unwrap();
        drop(second);
        assert_eq!(memory.reserve(u64::MAX).unwrap_err().reserved, 60);
        drop(first);
        assert_eq!(memory.reserve(100).unwrap().bytes(), 100);
    }

    #[test]
    fn memory_without_a_limit_is_never_refused() {
        let memory = DatasetMemory::default();
        let mut all = memory.reserve(u64::MAX).unwrap();
        all.grow(1).unwrap();
        assert_eq!((memory.limit(), all.bytes()), (None, u64::MAX));
    }
}
