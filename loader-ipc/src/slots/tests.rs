//! Tests of the slots.

mod random_steps;

use super::{recent::RECENT, *};

/// Prefers no slot, so that a lease may be on any slot.
const ANY_SLOT: fn(u32) -> bool = |_| false;

/// Leases a slot for a batch of unknown size.
fn lease_one(pool: &SlotPool) -> Lease {
    pool.lease(1, 0, ANY_SLOT).unwrap()
}

/// Leases a slot, and then a larger one in its place, as for a worker that asks for `needed` bytes.
fn lease_grown(pool: &SlotPool, needed: usize) -> Lease {
    pool.regrow(Some(lease_one(pool)), needed, 0).unwrap()
}

#[track_caller]
fn assert_limit_reached(result: Result<Lease, SlotError>) {
    assert!(matches!(result, Err(SlotError::LimitReached { .. })), "{result:?}");
}

#[test]
fn a_batch_gives_its_slot_back_in_the_process_that_has_got_it_and_not_in_its_forks() {
    let pool = SlotPool::new(1 << 20);
    for (owner, given_back) in [(process::id(), 1), (process::id() + 1, 0)] {
        drop(Ticket { slot: 0, returns: Arc::clone(&pool.returns), owner });
        assert_eq!(lock(&pool.returns.slots).drain(..).count(), given_back);
    }
}

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
fn the_limit_is_never_exceeded_and_the_error_counts_batches() {
    let pool = SlotPool::new(2 * FIRST_LEN as u64);
    let first = lease_one(&pool);
    let loan = pool.lend(first, 8, false).unwrap();
    let _second = lease_one(&pool);
    let error = pool.lease(1, 0, ANY_SLOT).unwrap_err();
    assert!(matches!(error, SlotError::LimitReached { held: 1, leased: 1, .. }), "{error}");
    drop(loan);
    lease_one(&pool);
}

#[test]
fn regrowing_destroys_the_smaller_slot() {
    let pool = SlotPool::new(1 << 30);
    let small = lease_one(&pool);
    // A worker may ask for any size, but no slot is smaller than the first size.
    let first = pool.regrow(Some(small), 0, 0).unwrap();
    assert_eq!(first.len, FIRST_LEN as u64);
    assert!(!pool.exists(small.slot));
    let large = pool.regrow(Some(first), 1_000_000, 0).unwrap();
    assert!(large.len >= 1_000_000 && large.len < 1_200_000, "{large:?}");
    assert!(!pool.exists(first.slot));
    pool.release(large, false);
    assert_eq!(lease_one(&pool).slot, large.slot, "the next batch is expected to be as large");
}

#[test]
fn room_is_kept_for_earlier_tasks() {
    let pool = SlotPool::new(3 << 20);
    let leases = [(); 3].map(|()| lease_one(&pool));
    assert_limit_reached(pool.regrow(Some(leases[2]), 1 << 20, 2));
    let grown = pool.regrow(Some(leases[0]), 1 << 20, 1).unwrap();
    assert_eq!(grown.len, 1 << 20, "no slack if it would take the room of the others");
    assert_limit_reached(pool.lease(1, 1, ANY_SLOT));
    lease_one(&pool);
}

#[test]
fn a_warmer_slot_was_used_later() {
    let pool = SlotPool::new(1 << 20);
    let (first, second) = (lease_one(&pool), lease_one(&pool));
    assert_eq!(pool.lease_warmer(first, |_| true), None, "no slot is free");
    drop(pool.lend(second, 8, false).unwrap());
    assert_eq!(pool.lease_warmer(first, |_| true).unwrap().slot, second.slot);
    assert_eq!(pool.lease_warmer(first, |_| true), None, "the warmer slot is leased now");
}

#[test]
fn a_slot_with_a_kept_tensor_is_destroyed_when_it_comes_back() {
    let pool = SlotPool::new(1 << 20);
    let lease = lease_one(&pool);
    let mut loan = pool.lend(lease, 8, true).unwrap();
    assert!(loan.take(0..8).unwrap().is_frozen(), "the worker still reads it");
    drop(loan);
    assert!(!pool.exists(lease.slot));
    assert_eq!(pool.bytes(), 0);
}

/// Lends and drops `count` batches of `used` bytes, one at a time.
fn lend_and_drop(pool: &SlotPool, count: usize, used: usize) {
    for _ in 0..count {
        let mut lease = lease_one(pool);
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
    let large = lease_grown(&pool, 100_000_000);
    let held = pool.lend(large, 100_000_000, false).unwrap();
    lend_and_drop(&pool, 1, 100_000_000);
    assert!(pool.expected() >= 100_000_000, "another one may come soon");
    assert!(pool.bytes() >= 200_000_000, "a batch is held, and the slot of the other one is kept");
    lend_and_drop(&pool, RECENT, 100_000);
    assert_eq!(pool.expected(), 100_000);
    assert!(pool.bytes() < large.len + 1_000_000, "the free slot is destroyed: {}", pool.bytes());
    drop(held);
    assert!(pool.bytes() < 1_000_000, "the lent slot is destroyed when it comes back: {}", pool.bytes());
    assert!(lease_one(&pool).len < 200_000);
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
    let large = lease_grown(&pool, 90_000_000);
    let _held = pool.lend(large, 90_000_000, false).unwrap();
    assert_limit_reached(pool.lease(1, 0, ANY_SLOT));
    let small = pool.lease_small(1).unwrap();
    assert_eq!(small.len, FIRST_LEN as u64);
    assert!(pool.regrow(Some(small), 5_000_000, 0).is_ok());
}

#[test]
fn a_task_without_slot_can_lease_a_larger_one() {
    let pool = SlotPool::new(20 * FIRST_LEN as u64);
    let [first, second] = [(); 2].map(|()| lease_one(&pool));
    assert_limit_reached(pool.regrow(Some(first), 19 * FIRST_LEN + 1, 0));
    pool.release(second, false);
    let grown = pool.regrow(Some(first), 19 * FIRST_LEN + 1, 0).unwrap();
    pool.release(grown, false);
    assert!(pool.regrow(None, 19 * FIRST_LEN, 0).is_ok());
}

#[test]
fn slots_of_this_process_need_no_descriptor() {
    let pool = SlotPool::of_this_process(1 << 20);
    let lease = lease_one(&pool);
    assert!(pool.region_of(lease.slot).is_none(), "no worker can map it");
    pool.write(lease, b"indices").unwrap();
    assert_eq!(pool.lend(lease, 8, false).unwrap().take(0..7).unwrap().as_bytes(), b"indices");
    assert_eq!(pool.regrow(None, 1 << 19, 0).unwrap().len, 1 << 19);
}

#[test]
fn slots_of_other_threads_iterators_may_come_back() {
    let pool = SlotPool::new(1 << 20);
    let (ours, theirs) = (pool.of_iterator(), pool.of_iterator());
    let _own = lease_one(&ours);
    assert_eq!((ours.used_by_other_iterators(), ours.others_may_return_slots()), (0, false));
    let lease = lease_one(&theirs);
    assert_eq!(
        (ours.used_by_other_iterators(), ours.others_may_return_slots()),
        (1, false),
        "only this thread could give it back"
    );
    let _other = lease_one(&theirs);
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
    pool.lend(lease_one(pool), used, false).unwrap()
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
    let inner = lock(&pool.table);
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
    // Other tests of this process may open descriptors too.
    assert!(descriptors() <= before + 50);
}

#[test]
fn only_existing_slots_have_reserved_pages() {
    let pool = SlotPool::new(1 << 30);
    let held: Vec<Loan> = (0..500).map(|_| lend_one(&pool, 8)).collect();
    let pages = |region: &SharedRegion| nix::sys::stat::fstat(&*region.fd).unwrap().st_blocks as u64 * 512;
    let regions: Vec<SharedRegion> = lock(&pool.table).regions.values().filter_map(Region::share).collect();
    let all = || regions.iter().map(pages).sum::<u64>();
    assert_eq!(all(), pool.bytes(), "the pages of slots are reserved, and no others");
    drop(held);
    assert_eq!(pool.held(), 0);
    assert_eq!(all(), pool.bytes());
}

#[test]
fn a_slot_that_is_made_again_has_a_new_generation() {
    let pool = SlotPool::new(1 << 30);
    let leases: Vec<Lease> = (0..3).map(|_| lease_one(&pool)).collect();
    let (first, last) = (leases[0], leases[2]);
    pool.release(last, false);
    pool.table.lock().unwrap().destroy(last.slot, false);
    assert!(!pool.exists(last.slot) && pool.has_region(first.slot));
    let again = lease_one(&pool);
    assert_eq!(again.slot, last.slot, "its memory is used again, and workers need not map anything");
    assert_ne!(again.generation, last.generation);
    assert!(matches!(pool.lend(last, 8, false), Err(SlotError::NotLeased(_))));
}
