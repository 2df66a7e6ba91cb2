//! Random steps of main, workers and the program, checked against a model of the pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

use proptest::prelude::*;

use super::{
    super::{
        recent::RECENT,
        table::{SPARE, with_slack},
        *,
    },
    ANY_SLOT,
};
use crate::sys::{Chunk, SlotRegion};

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
            SlotRegion::map(&*region.fd, len, NonZeroUsize::new(region.count as usize).unwrap()).unwrap()
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
                let Some(position) = which.checked_rem(self.held.len()) else { return Ok(()) };
                self.held[position].loan = None;
                if all {
                    self.ended.push(self.held.swap_remove(position).lease);
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

    /// Answers under leases that have ended, that the pool has lent to the program, or that it never gave.
    fn answer_late(&self, which: usize) -> Result<(), TestCaseError> {
        let late = self.ended.get(which % self.ended.len().max(1)).copied();
        let lent = self.held.get(which % self.held.len().max(1)).map(|held| held.lease);
        let false_len =
            self.leases.get(which % self.leases.len().max(1)).map(|lease| Lease { len: u64::MAX, ..*lease });
        let invented = Lease { slot: u32::MAX, generation: 1, len: 4096 };
        for lease in late.into_iter().chain(lent).chain(false_len).chain([invented]) {
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
        let table = self.pool.lock();
        let largest_free = table.free.iter().map(|number| table.slots[number].memory.len()).max();
        prop_assert!(largest_free.is_none_or(|len| len / 2 <= with_slack(table.expected())));
        let len_of = |wanted: fn(State) -> bool| -> u64 {
            table.slots.values().filter(|slot| wanted(slot.state)).map(|slot| slot.memory.len() as u64).sum()
        };
        prop_assert_eq!(table.bytes, len_of(|_| true));
        prop_assert!(table.bytes <= LIMIT);
        prop_assert_eq!(table.in_use, len_of(|state| state != State::Free));
        let free =
            table.slots.iter().filter(|(_, slot)| slot.state == State::Free).map(|(number, _)| *number);
        prop_assert!(free.eq(table.free.iter().copied()));
        prop_assert_eq!(table.count(State::Leased), self.leases.len());
        prop_assert_eq!(table.count(State::Lent), self.held.len());
        prop_assert_eq!(table.leased, self.leases.len());
        prop_assert!(table.free.len() <= 2 * table.max_leased + SPARE);
        for (&first, region) in &table.regions {
            prop_assert!(first == region.first() && !region.is_empty());
            let own = table.slots.range(first..region.end()).count();
            prop_assert!(region.counts() == (own, region.end() as usize - first as usize));
        }
        prop_assert_eq!(table.slots.keys().filter(|&&slot| table.region_of(slot).is_none()).count(), 0);
        Ok(())
    }
}

fn pick(leases: &mut Vec<Lease>, which: usize) -> Option<Lease> {
    let position = which.checked_rem(leases.len())?;
    Some(leases.swap_remove(position))
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
