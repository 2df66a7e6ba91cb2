//! Tests of the slots: single cases, and random steps of a state machine.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{recent::RECENT, *};
use crate::sys::{Chunk, SlotRegion};

const ANY_SLOT: fn(u32) -> bool = |_| false;

#[test]
fn a_slot_is_used_again_when_its_last_tensor_is_dropped() {
    let pool = SlotPool::new(1 << 20);
    let lease = pool.lease(100, 0, ANY_SLOT).unwrap();
    let mut loan = pool.lend(lease, 8, false).unwrap();
    assert_eq!(pool.held(), 1);
    let chunk = loan.take(0..8).unwrap();
    drop(loan);
    assert_eq!(pool.held(), 1, "a chunk keeps the slot");
    drop(chunk);
    assert_eq!(pool.held(), 0);
    let again = pool.lease(100, 0, ANY_SLOT).unwrap();
    assert_eq!((again.slot, again.generation), (lease.slot, lease.generation + 1));
}

#[test]
fn old_and_invented_leases_are_refused() {
    let pool = SlotPool::new(1 << 20);
    let lease = pool.lease(100, 0, ANY_SLOT).unwrap();
    pool.release(lease, false);
    assert!(matches!(pool.lend(lease, 8, false), Err(SlotError::NotLeased(_))));
    let invented = Lease { slot: 99, generation: 1, len: 4096 };
    assert!(matches!(pool.lend(invented, 8, false), Err(SlotError::NotLeased(_))));
    assert!(matches!(pool.regrow(Some(invented), 1, 0), Err(SlotError::NotLeased(_))));
}

#[test]
fn the_limit_is_never_exceeded_and_the_error_counts_batches() {
    let pool = SlotPool::new(2 * FIRST_LEN as u64);
    let first = pool.lease(1, 0, ANY_SLOT).unwrap();
    let loan = pool.lend(first, 8, false).unwrap();
    let _second = pool.lease(1, 0, ANY_SLOT).unwrap();
    let error = pool.lease(1, 0, ANY_SLOT).unwrap_err();
    assert!(matches!(error, SlotError::LimitReached { held: 1, leased: 1, .. }), "{error}");
    drop(loan);
    pool.lease(1, 0, ANY_SLOT).unwrap();
}

#[test]
fn regrowing_destroys_the_smaller_slot() {
    let pool = SlotPool::new(1 << 30);
    let small = pool.lease(1, 0, ANY_SLOT).unwrap();
    let large = pool.regrow(Some(small), 1_000_000, 0).unwrap();
    assert!(large.len >= 1_000_000 && large.len < 1_200_000, "{large:?}");
    assert!(!pool.exists(small.slot));
    pool.release(large, false);
    assert_eq!(
        pool.lease(1, 0, ANY_SLOT).unwrap().slot,
        large.slot,
        "the next batch is expected to be as large"
    );
}

#[test]
fn no_slot_is_smaller_than_the_first() {
    let pool = SlotPool::new(1 << 20);
    let lease = pool.lease(1, 0, ANY_SLOT).unwrap();
    // A worker may ask for any size.
    let again = pool.regrow(Some(lease), 0, 0).unwrap();
    assert_eq!(again.len, FIRST_LEN as u64);
}

#[test]
fn room_is_kept_for_earlier_tasks() {
    let pool = SlotPool::new(3 << 20);
    let leases = [(); 3].map(|()| pool.lease(1, 0, ANY_SLOT).unwrap());
    assert!(matches!(pool.regrow(Some(leases[2]), 1 << 20, 2), Err(SlotError::LimitReached { .. })));
    let grown = pool.regrow(Some(leases[0]), 1 << 20, 1).unwrap();
    assert_eq!(grown.len, 1 << 20, "no slack if it would take the room of the others");
    assert!(matches!(pool.lease(1, 1, ANY_SLOT), Err(SlotError::LimitReached { .. })));
    pool.lease(1, 0, ANY_SLOT).unwrap();
}

#[test]
fn a_warmer_slot_was_used_later() {
    let pool = SlotPool::new(1 << 20);
    let (first, second) = (pool.lease(1, 0, ANY_SLOT).unwrap(), pool.lease(1, 0, ANY_SLOT).unwrap());
    assert_eq!(pool.lease_warmer(first, |_| true), None, "no slot is free");
    drop(pool.lend(second, 8, false).unwrap());
    assert_eq!(pool.lease_warmer(first, |_| true).unwrap().slot, second.slot);
    assert_eq!(pool.lease_warmer(first, |_| true), None, "the warmer slot is leased now");
}

#[test]
fn a_slot_with_a_kept_tensor_is_destroyed_when_it_comes_back() {
    let pool = SlotPool::new(1 << 20);
    let lease = pool.lease(1, 0, ANY_SLOT).unwrap();
    let mut loan = pool.lend(lease, 8, true).unwrap();
    assert!(loan.take(0..8).unwrap().is_frozen(), "the worker still reads it");
    drop(loan);
    assert!(!pool.exists(lease.slot));
    assert_eq!(pool.bytes(), 0);
}

/// Lends and drops `count` batches of `used` bytes, one at a time.
fn lend_and_drop(pool: &SlotPool, count: usize, used: usize) {
    for _ in 0..count {
        let mut lease = pool.lease(1, 0, ANY_SLOT).unwrap();
        if lease.len < used as u64 {
            lease = pool.regrow(Some(lease), used, 0).unwrap();
        }
        drop(pool.lend(lease, used as u64, false).unwrap());
    }
}

#[test]
fn one_large_batch_makes_slots_large_for_a_while_only() {
    let pool = SlotPool::new(1 << 30);
    lend_and_drop(&pool, 10, 100_000);
    lend_and_drop(&pool, 1, 100_000_000);
    assert!(pool.expected() >= 100_000_000 && pool.bytes() >= 100_000_000, "another one may come soon");
    lend_and_drop(&pool, RECENT, 100_000);
    assert_eq!(pool.expected(), 100_000);
    assert!(pool.bytes() < 1_000_000, "its slot is given back: {}", pool.bytes());
    assert!(pool.lease(1, 0, ANY_SLOT).unwrap().len < 200_000);
}

#[test]
fn a_large_slot_that_comes_back_late_is_destroyed() {
    let pool = SlotPool::new(1 << 30);
    let first = pool.lease(1, 0, ANY_SLOT).unwrap();
    let large = pool.regrow(Some(first), 100_000_000, 0).unwrap();
    let held = pool.lend(large, 100_000_000, false).unwrap();
    lend_and_drop(&pool, RECENT, 100_000);
    let kept = pool.bytes() - large.len;
    drop(held);
    assert_eq!((pool.held(), pool.bytes()), (0, kept));
}

#[test]
fn a_false_size_makes_slots_large_for_a_while_only() {
    let pool = SlotPool::new(1 << 30);
    let lease = pool.lease(1, 0, ANY_SLOT).unwrap();
    let large = pool.regrow(Some(lease), 500_000_000, 0).unwrap();
    // The worker has asked for a large slot, and then claims to have written even more.
    drop(pool.lend(large, u64::MAX, false).unwrap());
    assert!(pool.expected() as u64 <= large.len);
    lend_and_drop(&pool, RECENT, 1000);
    assert_eq!((pool.expected(), pool.lease(1, 0, ANY_SLOT).unwrap().len), (FIRST_LEN, FIRST_LEN as u64));
    assert!(pool.bytes() < 1_000_000, "{}", pool.bytes());
}

#[test]
fn slots_stay_when_batches_vary_in_size() {
    let pool = SlotPool::new(1 << 30);
    let sizes = [700_000, 2_000_000, 1_100_000, 1_900_000, 900_000];
    sizes.into_iter().cycle().take(2 * RECENT).for_each(|size| lend_and_drop(&pool, 1, size));
    let destroyed = pool.destroyed_regions();
    sizes.into_iter().cycle().take(10 * RECENT).for_each(|size| lend_and_drop(&pool, 1, size));
    assert_eq!(pool.destroyed_regions(), destroyed, "no slot is replaced in a steady state");
}

#[test]
fn a_small_slot_can_be_leased_when_the_expected_size_does_not_fit() {
    let pool = SlotPool::new(100_000_000);
    let first = pool.lease(1, 0, ANY_SLOT).unwrap();
    let large = pool.regrow(Some(first), 90_000_000, 0).unwrap();
    let _held = pool.lend(large, 90_000_000, false).unwrap();
    assert!(matches!(pool.lease(1, 0, ANY_SLOT), Err(SlotError::LimitReached { .. })));
    let small = pool.lease_small(1).unwrap();
    assert_eq!(small.len, FIRST_LEN as u64);
    assert!(pool.regrow(Some(small), 5_000_000, 0).is_ok());
}

#[test]
fn a_task_without_slot_can_lease_a_larger_one() {
    let pool = SlotPool::new(20 * FIRST_LEN as u64);
    let [first, second] = [(); 2].map(|()| pool.lease(1, 0, ANY_SLOT).unwrap());
    assert!(matches!(pool.regrow(Some(first), 19 * FIRST_LEN + 1, 0), Err(SlotError::LimitReached { .. })));
    pool.release(second, false);
    let grown = pool.regrow(Some(first), 19 * FIRST_LEN + 1, 0).unwrap();
    pool.release(grown, false);
    assert!(pool.regrow(None, 19 * FIRST_LEN, 0).is_ok());
}

#[test]
fn slots_of_this_process_need_no_descriptor() {
    let pool = SlotPool::of_this_process(1 << 20);
    let lease = pool.lease(1, 0, ANY_SLOT).unwrap();
    assert!(pool.region_of(lease.slot).is_none(), "no worker can map it");
    pool.write(lease, b"indices").unwrap();
    assert_eq!(pool.lend(lease, 8, false).unwrap().take(0..7).unwrap().as_bytes(), b"indices");
    assert_eq!(pool.regrow(None, 1 << 19, 0).unwrap().len, 1 << 19);
}

#[test]
fn slots_of_other_threads_iterators_may_come_back() {
    let pool = SlotPool::new(1 << 20);
    let (ours, theirs) = (pool.of_iterator(), pool.of_iterator());
    let _own = ours.lease(1, 0, ANY_SLOT).unwrap();
    assert_eq!((ours.used_by_other_iterators(), ours.others_may_return_slots()), (0, false));
    let lease = theirs.lease(1, 0, ANY_SLOT).unwrap();
    assert_eq!(
        (ours.used_by_other_iterators(), ours.others_may_return_slots()),
        (1, false),
        "only this thread could give it back"
    );
    let _other = theirs.lease(1, 0, ANY_SLOT).unwrap();
    theirs.set_user(thread::spawn(|| thread::current().id()).join().unwrap());
    assert_eq!((ours.used_by_other_iterators(), ours.others_may_return_slots()), (2, true));
    let returned = ours.returned();
    drop(theirs.lend(lease, 1, false).unwrap());
    assert_eq!((ours.used_by_other_iterators(), ours.returned()), (1, returned + 1));
    drop(theirs);
    assert_eq!(ours.used_by_other_iterators(), 0, "a dropped iterator gives nothing back by itself");
}

/// Number of descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Leases a slot and lends a batch of `used` bytes.
fn lend_one(pool: &SlotPool, used: u64) -> Loan {
    let lease = pool.lease(1, 0, ANY_SLOT).unwrap();
    pool.lend(lease, used, false).unwrap()
}

#[test]
fn held_small_batches_share_descriptors() {
    let pool = SlotPool::new(1 << 30);
    let held: Vec<Loan> = (0..2000).map(|_| lend_one(&pool, 8)).collect();
    assert_eq!((pool.held(), pool.bytes()), (2000, 2000 * FIRST_LEN as u64));
    assert!(pool.lock().regions.len() < 16, "{}", pool.lock().regions.len());
    drop(held);
    let kept = pool.bytes() / FIRST_LEN as u64;
    assert!((1..=10).contains(&kept), "{kept} slots are kept");
    assert!(pool.lock().regions.len() <= 2);
}

#[test]
fn a_thread_that_drops_many_batches_gives_their_memory_back() {
    let pool = SlotPool::new(1 << 30);
    let held: Vec<Loan> = (0..1000).map(|_| lend_one(&pool, 8)).collect();
    drop(held);
    // Locks the inner mutex, because a call of the pool would take the slots back.
    let inner = lock(&pool.inner);
    assert!(inner.slots.len() < MANY_RETURNS + 20, "{}", inner.slots.len());
}

#[test]
fn a_large_slot_has_a_region_of_its_own() {
    let pool = SlotPool::new(1 << 30);
    let before = descriptors();
    let lease = pool.lease(1 << 20, 0, ANY_SLOT).unwrap();
    let region = pool.region_of(lease.slot).unwrap();
    assert_eq!((region.count, region.slot_len), (1, lease.len));
    drop(region);
    pool.release(lease, true);
    assert!(!pool.has_region(lease.slot));
    for _ in 0..200 {
        let lease = pool.lease(1 << 20, 0, ANY_SLOT).unwrap();
        pool.release(lease, true);
    }
    // The margin is for the other tests of this process.
    assert!(descriptors() <= before + 50);
}

#[test]
fn only_existing_slots_have_reserved_pages() {
    let pool = SlotPool::new(1 << 30);
    let held: Vec<Loan> = (0..500).map(|_| lend_one(&pool, 8)).collect();
    let pages = |region: &SharedRegion| nix::sys::stat::fstat(region).unwrap().st_blocks as u64 * 512;
    let regions: Vec<SharedRegion> = lock(&pool.inner).regions.values().filter_map(Region::share).collect();
    let all = || regions.iter().map(pages).sum::<u64>();
    assert_eq!(all(), pool.bytes(), "the pages of slots are reserved, and no others");
    drop(held);
    assert_eq!(pool.held(), 0);
    assert_eq!(all(), pool.bytes());
}

#[test]
fn a_slot_that_is_made_again_has_a_new_generation() {
    let pool = SlotPool::new(1 << 30);
    let leases: Vec<Lease> = (0..3).map(|_| pool.lease(1, 0, ANY_SLOT).unwrap()).collect();
    let (first, last) = (leases[0], leases[2]);
    pool.release(last, false);
    pool.inner.lock().unwrap().destroy(last.slot, false);
    assert!(!pool.exists(last.slot) && pool.has_region(first.slot));
    let again = pool.lease(1, 0, ANY_SLOT).unwrap();
    assert_eq!(again.slot, last.slot, "the place is used again, and workers need not map anything");
    assert_ne!(again.generation, last.generation);
    assert!(matches!(pool.lend(last, 8, false), Err(SlotError::NotLeased(_))));
}

/// A step of main, of a worker or of the program. `which` selects a lease or a batch, modulo their number.
#[derive(Debug, Clone)]
enum Step {
    Lease {
        min_len: usize,
        others: usize,
    },
    Regrow {
        which: usize,
        needed: usize,
        others: usize,
    },
    LeaseWarmer {
        which: usize,
    },
    Release {
        which: usize,
        kept_by_worker: bool,
    },
    Lend {
        which: usize,
        used: u64,
        kept_by_worker: bool,
    },
    /// The program drops a batch (`all`), or all of it but one tensor.
    Drop {
        which: usize,
        all: bool,
    },
    /// A worker answers under a lease that has ended.
    AnswerLate {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0usize..100;
    let len = prop_oneof![0usize..100, 50_000usize..300_000, Just(usize::MAX)];
    prop_oneof![
        4 => (len.clone(), 0usize..4).prop_map(|(min_len, others)| Step::Lease { min_len: min_len.min(1 << 40), others }),
        2 => (which.clone(), len, 0usize..4)
            .prop_map(|(which, needed, others)| Step::Regrow { which, needed, others }),
        2 => which.clone().prop_map(|which| Step::LeaseWarmer { which }),
        2 => (which.clone(), any::<bool>()).prop_map(|(which, kept_by_worker)| Step::Release { which, kept_by_worker }),
        4 => (which.clone(), prop_oneof![0u64..100_000, any::<u64>()], any::<bool>())
            .prop_map(|(which, used, kept_by_worker)| Step::Lend { which, used, kept_by_worker }),
        4 => (which.clone(), any::<bool>()).prop_map(|(which, all)| Step::Drop { which, all }),
        1 => which.prop_map(|which| Step::AnswerLate { which }),
    ]
}

/// A batch that the program holds, with the number that its worker wrote.
struct Held {
    lease: Lease,
    loan: Option<Loan>,
    tensor: Chunk,
    written: u64,
}

/// The pool, and a model of its state.
struct World {
    pool: SlotPool,
    leases: Vec<Lease>,
    held: Vec<Held>,
    /// Leases that have ended.
    ended: Vec<Lease>,
    /// Slot and generation of every lease so far.
    known: BTreeSet<(u32, u32)>,
    /// The number that the worker wrote last.
    written: u64,
    /// Sizes of all batches and granted requests, oldest first.
    sizes: Vec<usize>,
    /// The `min_len` of each lease, by slot and generation.
    min_lens: BTreeMap<(u32, u32), usize>,
    /// Regions that the worker has mapped, by number of the first slot.
    mapped: BTreeMap<u32, Arc<SlotRegion>>,
    /// Tensors that the worker keeps, with the numbers that it wrote.
    kept: Vec<(Chunk, u64)>,
}

impl World {
    /// Writes a unique number to a leased slot as its worker. Returns the worker's tensor with it.
    fn write_as_worker(&mut self, lease: Lease) -> Chunk {
        let region = self.pool.region_of(lease.slot).unwrap();
        let map = || {
            let len = NonZeroUsize::new(region.slot_len as usize).unwrap();
            SlotRegion::map(&region, len, NonZeroUsize::new(region.count as usize).unwrap()).unwrap()
        };
        let mapped = self.mapped.entry(region.first).or_insert_with(map);
        let slot = mapped
            .slot((lease.slot - region.first) as usize, None)
            .expect("the worker keeps no tensor in it");
        self.written += 1;
        let mut loan = slot.lend(()).unwrap();
        loan.put(0, &self.written.to_le_bytes()).unwrap();
        drop(loan);
        slot.lend(()).unwrap().take(0..8).unwrap()
    }
}

const LIMIT: u64 = 8 * FIRST_LEN as u64;

impl World {
    fn new() -> Self {
        Self {
            pool: SlotPool::new(LIMIT),
            leases: Vec::new(),
            held: Vec::new(),
            ended: Vec::new(),
            known: BTreeSet::new(),
            written: 0,
            sizes: Vec::new(),
            min_lens: BTreeMap::new(),
            mapped: BTreeMap::new(),
            kept: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Lease { min_len, others } => match self.pool.lease(min_len, others, ANY_SLOT) {
                Ok(lease) => {
                    prop_assert!(lease.len >= min_len as u64);
                    self.min_lens.insert((lease.slot, lease.generation), min_len);
                    self.start(lease)?;
                }
                Err(error) => self.expect_full(&error)?,
            },
            Step::Regrow { which, needed, others } => {
                let Some(lease) = pick(&mut self.leases, which) else { return Ok(()) };
                self.regrow(lease, needed, others)?;
            }
            Step::LeaseWarmer { which } => {
                let Some(&lease) = self.leases.get(which % self.leases.len().max(1)) else { return Ok(()) };
                if let Some(warmer) = self.pool.lease_warmer(lease, |_| true) {
                    prop_assert!(warmer.len >= lease.len && warmer.slot != lease.slot);
                    self.start(warmer)?;
                }
            }
            Step::Release { which, kept_by_worker } => {
                let Some(lease) = pick(&mut self.leases, which) else { return Ok(()) };
                if kept_by_worker {
                    let tensor = self.write_as_worker(lease);
                    self.kept.push((tensor, self.written));
                }
                self.pool.release(lease, kept_by_worker);
                let is_too_large = lease.len as usize / 2 > with_slack(self.pool.expected());
                // The pool may also have destroyed the slot because it needs fewer free slots.
                let exists = self.pool.exists(lease.slot);
                prop_assert!(!exists || (!kept_by_worker && !is_too_large));
                self.ended.push(lease);
            }
            Step::Lend { which, used, kept_by_worker } => {
                let Some(lease) = pick(&mut self.leases, which) else { return Ok(()) };
                let kept = self.write_as_worker(lease);
                if kept_by_worker {
                    self.kept.push((kept, self.written));
                }
                let mut loan = self.pool.lend(lease, used, kept_by_worker).unwrap();
                let min_len = self.min_lens.get(&(lease.slot, lease.generation)).copied().unwrap_or(0);
                self.sizes.push((used.min(lease.len) as usize).max(min_len));
                let tensor = loan.take(0..8).unwrap();
                self.held.push(Held { lease, loan: Some(loan), tensor, written: self.written });
            }
            Step::Drop { which, all } => {
                let Some(place) = which.checked_rem(self.held.len()) else { return Ok(()) };
                self.held[place].loan = None;
                if all {
                    self.ended.push(self.held.swap_remove(place).lease);
                }
            }
            Step::AnswerLate { which } => self.answer_late(which)?,
        }
        Ok(())
    }

    fn regrow(&mut self, lease: Lease, needed: usize, others: usize) -> Result<(), TestCaseError> {
        let batch = self.write_as_worker(lease);
        match self.pool.regrow(Some(lease), needed, others) {
            Ok(larger) => {
                // The worker copies its batch from the smaller slot.
                self.kept.push((batch, self.written));
                prop_assert!(larger.len >= needed as u64 && larger.slot != lease.slot);
                self.sizes.push(needed);
                self.ended.push(lease);
                self.start(larger)
            }
            Err(error) => {
                // The lease is unchanged.
                self.leases.push(lease);
                self.expect_full(&error)
            }
        }
    }

    /// Uses leases that are no longer valid, or were not given like this.
    fn answer_late(&self, which: usize) -> Result<(), TestCaseError> {
        let late = self.ended.get(which % self.ended.len().max(1)).copied();
        let lent = self.held.get(which % self.held.len().max(1)).map(|held| held.lease);
        let false_len =
            self.leases.get(which % self.leases.len().max(1)).map(|lease| Lease { len: u64::MAX, ..*lease });
        for lease in late.into_iter().chain(lent).chain(false_len) {
            prop_assert!(matches!(self.pool.lend(lease, 8, false), Err(SlotError::NotLeased(_))));
            prop_assert!(matches!(self.pool.regrow(Some(lease), 1, 0), Err(SlotError::NotLeased(_))));
            prop_assert!(matches!(self.pool.write(lease, b"late"), Err(SlotError::NotLeased(_))));
            self.pool.release(lease, true);
        }
        Ok(())
    }

    /// Checks a new lease, and writes to its slot.
    fn start(&mut self, lease: Lease) -> Result<(), TestCaseError> {
        prop_assert!(self.known.insert((lease.slot, lease.generation)), "leased twice: {:?}", lease);
        let in_use = self.leases.iter().chain(self.held.iter().map(|held| &held.lease));
        prop_assert!(in_use.clone().all(|other| other.slot != lease.slot), "in use: {:?}", lease);
        // The worker may write at once. The program's batches and tensors that workers keep must not change.
        self.pool.write(lease, &[255; 64]).unwrap();
        self.leases.push(lease);
        Ok(())
    }

    fn expect_full(&self, error: &SlotError) -> Result<(), TestCaseError> {
        let SlotError::LimitReached { held, leased, limit, .. } = error else {
            return Err(TestCaseError::fail(error.to_string()));
        };
        prop_assert_eq!((*held, *leased, *limit), (self.held.len(), self.leases.len(), LIMIT));
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for held in &self.held {
            prop_assert_eq!(held.tensor.as_bytes(), held.written.to_le_bytes(), "a lent slot was written");
        }
        for (tensor, written) in &self.kept {
            prop_assert_eq!(
                tensor.as_bytes(),
                written.to_le_bytes(),
                "a tensor that a worker keeps was written"
            );
        }
        let recent = self.sizes.iter().rev().take(RECENT).copied();
        prop_assert_eq!(self.pool.expected(), recent.max().unwrap_or(0).max(FIRST_LEN));
        let inner = self.pool.lock();
        let largest_free = inner.free.iter().map(|number| inner.slots[number].memory.len()).max();
        prop_assert!(largest_free.is_none_or(|len| len / 2 <= with_slack(inner.expected())));
        let len_of = |wanted: fn(State) -> bool| -> u64 {
            inner.slots.values().filter(|slot| wanted(slot.state)).map(|slot| slot.memory.len() as u64).sum()
        };
        prop_assert_eq!(inner.bytes, len_of(|_| true));
        prop_assert!(inner.bytes <= LIMIT);
        prop_assert_eq!(inner.in_use, len_of(|state| state != State::Free));
        let free =
            inner.slots.iter().filter(|(_, slot)| slot.state == State::Free).map(|(number, _)| *number);
        prop_assert!(free.eq(inner.free.iter().copied()));
        prop_assert_eq!(inner.count(State::Leased), self.leases.len());
        prop_assert_eq!(inner.count(State::Lent), self.held.len());
        prop_assert_eq!(inner.leased, self.leases.len());
        prop_assert!(inner.free.len() <= 2 * inner.max_leased + SPARE);
        for (&first, region) in &inner.regions {
            prop_assert!(first == region.first() && !region.is_empty());
            let own = inner.slots.range(first..region.end()).count();
            prop_assert!(region.counts() == (own, region.end() as usize - first as usize));
        }
        prop_assert_eq!(inner.slots.keys().filter(|&&slot| inner.region_of(slot).is_none()).count(), 0);
        Ok(())
    }
}

fn pick(leases: &mut Vec<Lease>, which: usize) -> Option<Lease> {
    let place = which.checked_rem(leases.len())?;
    Some(leases.swap_remove(place))
}

proptest! {
    #[test]
    fn no_sequence_of_steps_leases_a_slot_twice_or_loses_a_byte(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.take(step)?;
            world.check()?;
        }
        world.held.clear();
        for lease in world.leases.drain(..) {
            world.pool.release(lease, false);
        }
        world.check()?;
        prop_assert_eq!(world.pool.lock().in_use, 0);
    }
}
