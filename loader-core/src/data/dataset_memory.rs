//! The account of the memory that a dataset keeps between samples, such as decoded row groups and caches, and what
//! streams read ahead from servers.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering, fence},
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
/// The bytes that a stream of files on a server reads ahead count, too. They make no reservation fail: where a
/// reservation needs their memory, the account drops them, and the stream fetches them again.
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
    /// The data that may be dropped, each with the number of its bytes, from the oldest to the newest.
    reclaimable: Mutex<Vec<(u64, Weak<dyn Reclaim>)>>,
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
    /// Maximum number of bytes that may be reserved: the part of the loader's `memory_limit` that the worker or
    /// shard has.
    pub limit: u64,
}

impl DatasetMemory {
    /// Makes an account with a limit of `limit` bytes and no reservation.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Some(Arc::new(Account { limit, reserved: AtomicU64::new(0), reclaimable: Mutex::default() })))
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

    /// Returns the maximum number of bytes that may be reserved; `None` if there is no limit.
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
            account.reserve(more).or_else(|_| account.reclaim_and_reserve(more))?;
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

impl Account {
    fn reserve(&self, bytes: u64) -> Result<(), MemoryLimitReached> {
        let fits = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= self.limit);
        // Relaxed: the counter guards no other memory.
        let reserved = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map(drop).map_err(|reserved| MemoryLimitReached { bytes, reserved, limit: self.limit })
    }

    /// Reserves `bytes` bytes. Drops reclaimable data, the newest first, until they fit; drops none if they cannot fit.
    fn reclaim_and_reserve(&self, bytes: u64) -> Result<(), MemoryLimitReached> {
        // The lock is held until the bytes are reserved, so that no other reclaimable data takes them.
        let mut reclaimable = self.reclaimable.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = reclaimable.iter().filter(|(_, data)| data.strong_count() > 0);
        let kept = kept.map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
        // Acquire: of data whose count is 0, the owner has given back the bytes before it released the count.
        fence(Ordering::Acquire);
        // Relaxed: the fence comes before. Data that its owner drops between the two reads makes the difference too low,
        // so that no reservation that fits is refused.
        let reserved = self.reserved.load(Ordering::Relaxed).saturating_sub(kept);
        if reserved.checked_add(bytes).is_none_or(|sum| sum > self.limit) {
            return Err(MemoryLimitReached { bytes, reserved, limit: self.limit });
        }
        loop {
            let refused = match self.reserve(bytes) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            let (_, data) = reclaimable.pop().ok_or(refused)?;
            if let Some(data) = data.upgrade() {
                data.reclaim();
            }
        }
    }
}

/// Data that a dataset can do without, such as what it has read ahead. The account drops it where a reservation needs
/// its bytes.
#[derive(Debug)]
pub struct Reclaimable<T: Send>(Arc<Kept<T>>);

/// The data and the reservation of its bytes; `None` once the data was dropped or taken.
type Kept<T> = Mutex<Option<(T, MemoryReservation)>>;

impl<T: Send + 'static> Reclaimable<T> {
    /// Reserves `bytes` bytes of `memory` for the data that `make` makes. Returns `None` if these bytes do not fit
    /// beside the reserved ones, or if `make` returns `None`. `make` must not use `memory`.
    pub fn new(memory: &DatasetMemory, bytes: u64, make: impl FnOnce() -> Option<T>) -> Option<Self> {
        let Some(account) = &memory.0 else { return Some(Self::unlisted(make()?)) };
        // The lock is held until the data is in the list, so that no reservation is refused because of it.
        let mut reclaimable = account.reclaimable.lock().unwrap_or_else(PoisonError::into_inner);
        account.reserve(bytes).ok()?;
        let reservation = MemoryReservation { memory: memory.clone(), bytes };
        let kept = Arc::new(Mutex::new(Some((make()?, reservation))));
        let listed: Weak<Kept<T>> = Arc::downgrade(&kept);
        reclaimable.retain(|(_, data)| data.strong_count() > 0);
        reclaimable.push((bytes, listed));
        Some(Self(kept))
    }

    /// Holds data that no account knows, so that none drops it.
    fn unlisted(data: T) -> Self {
        let reservation = MemoryReservation { memory: DatasetMemory::default(), bytes: 0 };
        Self(Arc::new(Mutex::new(Some((data, reservation)))))
    }

    /// Returns the data, and gives back its bytes. Returns `None` if the account has dropped the data.
    pub fn take(self) -> Option<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (data, reservation) = kept.take()?;
        // This comes before the lock is released: a reservation that waits for the lock needs the bytes.
        drop(reservation);
        Some(data)
    }

    /// Gives back the bytes of the data, and keeps the data: no later reservation drops it. Returns `None` if the
    /// account has dropped the data.
    pub fn claim(self) -> Option<Self> {
        self.take().map(Self::unlisted)
    }
}

impl<T: Send> Drop for Reclaimable<T> {
    /// Gives back the bytes while the lock is held, so that a reservation that needs them waits for them.
    fn drop(&mut self) {
        self.0.reclaim();
    }
}

trait Reclaim: Send + Sync {
    /// Drops the data, and gives back its bytes.
    fn reclaim(&self);
}

impl<T: Send> Reclaim for Kept<T> {
    fn reclaim(&self) {
        let mut kept = self.lock().unwrap_or_else(PoisonError::into_inner);
        // The assignment drops the reservation before the lock is released.
        *kept = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

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

    #[test]
    fn reclaimable_data_gives_way_to_reservations_and_to_no_other_reclaimable_data() {
        let memory = DatasetMemory::new(100);
        let first = memory.reserve(30).unwrap();
        let dropped = Arc::new(());
        let kept = Arc::clone(&dropped);
        let data = Reclaimable::new(&memory, 60, || Some(kept)).unwrap();
        assert!(Reclaimable::new(&memory, 11, || Some(())).is_none(), "90 bytes are reserved");
        let small = Reclaimable::new(&memory, 10, || Some(1)).unwrap();
        assert_eq!(Arc::strong_count(&dropped), 2);

        let refused = MemoryLimitReached { bytes: 71, reserved: 30, limit: 100 };
        assert_eq!(memory.reserve(71).unwrap_err(), refused);
        let second = memory.reserve(1).unwrap();
        assert_eq!(small.take(), None, "the newest data is dropped");
        assert_eq!(
            Arc::strong_count(&dropped),
            2,
            "the refused reservation and the small one have kept the data"
        );
        let third = memory.reserve(10).unwrap();
        assert_eq!(Arc::strong_count(&dropped), 1, "the account has dropped the data");
        assert_eq!(data.take(), None);
        drop((first, second, third));

        let taken = Reclaimable::new(&memory, 100, || Some(7)).unwrap();
        assert_eq!(taken.take(), Some(7));
        assert!(Reclaimable::new(&memory, 100, || None::<u8>).is_none());
        drop(Reclaimable::new(&memory, 100, || Some(7)));
        assert_eq!(memory.reserve(100).unwrap().bytes(), 100, "the bytes were given back");
    }

    #[test]
    fn claimed_data_is_kept_and_has_no_bytes() {
        let memory = DatasetMemory::new(100);
        let claimed = Reclaimable::new(&memory, 100, || Some(7)).unwrap().claim().unwrap();
        let all = memory.reserve(100).unwrap();
        assert_eq!(claimed.take(), Some(7));
        drop(all);
        let dropped = Reclaimable::new(&memory, 100, || Some(7)).unwrap();
        let all = memory.reserve(1).unwrap();
        assert!(dropped.claim().is_none());
        assert_eq!(all.bytes(), 1);
    }

    #[test]
    fn a_reservation_waits_for_data_that_its_owner_drops() {
        struct Slow(mpsc::Sender<()>);

        impl Drop for Slow {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
        }

        let memory = DatasetMemory::new(100);
        let (began, drops) = mpsc::channel();
        let data = Reclaimable::new(&memory, 100, || Some(Slow(began))).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(data));
            drops.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(memory.reserve(100).unwrap().bytes(), 100);
        });
    }

    #[test]
    fn reclaimable_data_without_a_limit_is_kept() {
        let memory = DatasetMemory::default();
        let data = Reclaimable::new(&memory, u64::MAX, || Some(7)).unwrap();
        drop(memory.reserve(u64::MAX).unwrap());
        assert_eq!(data.take(), Some(7));
    }
}
