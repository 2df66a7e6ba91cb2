//! The slots that this worker has mapped, and its ear on the lifeline for new ones.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use loader_ipc::{
    Loan, SlotMemory, SlotRegion,
    control::ControlPage,
    frame::Lease,
    handshake::Notice,
    lifeline::{Lifeline, LifelineError},
};

/// How long main may take to send a slot that it has announced.
const SLOT_DEADLINE: Duration = Duration::from_secs(30);
/// How often the done flag is looked at while waiting for a grant, which comes when the user asks for a batch.
const DONE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Slots<'a> {
    lifeline: &'a Lifeline,
    /// By number of the first slot.
    regions: BTreeMap<u32, Region>,
}

/// Mapped memory of several slots.
#[derive(Debug)]
struct Region {
    mapping: Arc<SlotRegion>,
    count: u32,
    /// The slots that were used, by number.
    slots: BTreeMap<u32, Arc<SlotMemory>>,
}

/// A task, and what main says about its slot.
type Answer = (u64, Grant);

/// Main's answer to `NeedSlot`.
#[derive(Debug)]
pub(crate) enum Grant {
    Lease(Lease),
    /// There will be no larger slot, for the reason given.
    Refused(String),
    /// The slot is needed for an earlier batch. A larger one comes later.
    Vacate,
    /// The done flag went up meanwhile.
    Unwanted,
}

impl<'a> Slots<'a> {
    pub(crate) fn new(lifeline: &'a Lifeline) -> Self {
        Self { lifeline, regions: BTreeMap::new() }
    }

    /// Maps the memory of a task's slot, then unmaps the regions that the task says to forget. Called for
    /// each task, including one that is not done; otherwise a region could be mapped after main had told the
    /// worker to unmap it.
    pub(crate) fn update(&mut self, lease: Lease, forget: Vec<u32>) -> anyhow::Result<()> {
        self.map(lease)?;
        for first in forget {
            self.regions.remove(&first);
        }
        Ok(())
    }

    /// Main sends a slot's memory before the first task that uses it.
    fn map(&mut self, lease: Lease) -> anyhow::Result<()> {
        let deadline = Instant::now() + SLOT_DEADLINE;
        while self.region_of(lease.slot).is_none() {
            self.receive(deadline).context("waiting for a slot's memory")?;
        }
        Ok(())
    }

    /// The memory of a leased slot, to be written.
    pub(crate) fn lend(&mut self, lease: Lease) -> anyhow::Result<Loan> {
        self.map(lease)?;
        let (&first, region) = self.regions.range_mut(..=lease.slot).next_back().context("it was mapped")?;
        let memory = match region.slots.entry(lease.slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let memory = region.mapping.slot((lease.slot - first) as usize, None);
                new.insert(memory.context("a slot has two owners")?)
            }
        };
        memory.lend(()).context("a slot was leased while a tensor in it is still held in this worker")
    }

    /// The memory of a slot that was used.
    pub(crate) fn memory(&self, slot: u32) -> Option<&Arc<SlotMemory>> {
        self.region_of(slot)?.slots.get(&slot)
    }

    fn region_of(&self, slot: u32) -> Option<&Region> {
        let (first, region) = self.regions.range(..=slot).next_back()?;
        (slot - first < region.count).then_some(region)
    }

    /// Waits for the answer to `NeedSlot` for `task`. Main gives it when the user asks for a batch, which may be any time.
    pub(crate) fn wait_for_grant(&mut self, task: u64, control: &ControlPage) -> anyhow::Result<Grant> {
        loop {
            if control.is_done() {
                return Ok(Grant::Unwanted);
            }
            match self.receive(Instant::now() + DONE_INTERVAL) {
                Ok(Some((answered, grant))) if answered == task => return Ok(grant),
                Ok(Some((answered, _))) => bail!("main answered for task {answered}, not {task}"),
                Ok(None) | Err(LifelineError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes one notice: maps memory of slots (`None`), or gives main's answer.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Answer>, LifelineError> {
        let (notice, fds) = self.lifeline.receive::<Notice>(deadline)?;
        match notice {
            Notice::Grant { task, lease } => {
                Ok(Some((task, lease.map_or_else(Grant::Refused, Grant::Lease))))
            }
            Notice::Vacate { task } => Ok(Some((task, Grant::Vacate))),
            Notice::Slots { first, count, slot_len } => {
                let malformed = |what: &str| LifelineError::Malformed(what.to_owned());
                let fd = fds.into_iter().next().ok_or_else(|| malformed("slots without their memory"))?;
                let slot_len = usize::try_from(slot_len).ok().and_then(NonZeroUsize::new);
                let places = usize::try_from(count).ok().and_then(NonZeroUsize::new);
                let (Some(slot_len), Some(places)) = (slot_len, places) else {
                    return Err(malformed("slots of an impossible size"));
                };
                let mapping = SlotRegion::map(fd, slot_len, places)?;
                self.regions.insert(first, Region { mapping, count, slots: BTreeMap::new() });
                Ok(None)
            }
        }
    }
}
