//! The slots that this worker has mapped, and the notices on the lifeline that announce new slots.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use loader_ipc::{
    Loan, SlotMemory, SlotRegion,
    control::ControlPage,
    frame::Lease,
    handshake::Notice,
    lifeline::{Lifeline, LifelineError, Until},
    patience::Patience,
};

/// Maximum time that main may take to send the memory of a leased slot.
const SLOT_DEADLINE: Duration = Duration::from_secs(30);
/// Interval at which a worker that waits for a grant looks at the done flag. The grant comes when the user
/// asks for a batch, so it has no deadline.
const DONE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Slots<'a> {
    lifeline: &'a Lifeline,
    /// The mapped regions, by number of the first slot.
    regions: BTreeMap<u32, Region>,
}

/// The mapped memory of one or more slots.
#[derive(Debug)]
struct Region {
    mapping: Arc<SlotRegion>,
    count: u32,
    /// The slots that this worker has used so far, by number.
    slots: BTreeMap<u32, Arc<SlotMemory>>,
}

/// The number of a task, and main's answer for it.
type Answer = (u64, Grant);

/// Main's answer to `NeedSlot`.
#[derive(Debug)]
pub(crate) enum Grant {
    Lease(Lease),
    /// Main gives no larger slot, for this reason.
    Refused(String),
    /// The worker must give up its slot, because an earlier batch needs the memory. Main grants a larger slot
    /// later.
    Vacate,
    /// Main has set the done flag.
    Done,
}

impl<'a> Slots<'a> {
    pub(crate) fn new(lifeline: &'a Lifeline) -> Self {
        Self { lifeline, regions: BTreeMap::new() }
    }

    /// Maps the memory of a task's slot, then unmaps the regions in `forget`. Until the done flag is set,
    /// this must be called for every task, even a skipped one: otherwise a region could be mapped after main
    /// had told the worker to unmap it.
    pub(crate) fn update(&mut self, lease: Lease, forget: Vec<u32>) -> anyhow::Result<()> {
        self.map(lease)?;
        for first in forget {
            self.regions.remove(&first);
        }
        Ok(())
    }

    /// Receives notices until the slot's memory is mapped. Main sends the memory before the first task that
    /// uses the slot.
    fn map(&mut self, lease: Lease) -> anyhow::Result<()> {
        let mut patience = Patience::new(SLOT_DEADLINE);
        while self.region_of(lease.slot).is_none() {
            self.receive(&mut patience).context("waiting for the memory of a slot")?;
        }
        Ok(())
    }

    /// Returns the memory of a leased slot for writing.
    pub(crate) fn lend(&mut self, lease: Lease) -> anyhow::Result<Loan> {
        self.map(lease)?;
        let (&first, region) =
            self.regions.range_mut(..=lease.slot).next_back().context("the slot is not mapped")?;
        let memory = match region.slots.entry(lease.slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let memory = region.mapping.slot((lease.slot - first) as usize, None);
                new.insert(memory.context("the slot is outside of its region or already mapped")?)
            }
        };
        memory.lend(()).context("main leased a slot while this worker still holds a tensor in it")
    }

    /// Returns the memory of a slot, if the slot was used in this worker.
    pub(crate) fn memory(&self, slot: u32) -> Option<&Arc<SlotMemory>> {
        self.region_of(slot)?.slots.get(&slot)
    }

    fn region_of(&self, slot: u32) -> Option<&Region> {
        let (first, region) = self.regions.range(..=slot).next_back()?;
        (slot - first < region.count).then_some(region)
    }

    /// Waits for the answer to `NeedSlot` for `task`, without a deadline: main answers when the user asks for
    /// a batch.
    pub(crate) fn wait_for_grant(&mut self, task: u64, control: &ControlPage) -> anyhow::Result<Grant> {
        loop {
            if control.is_done() {
                return Ok(Grant::Done);
            }
            match self.receive(Instant::now() + DONE_INTERVAL) {
                Ok(Some((answered, grant))) if answered == task => return Ok(grant),
                Ok(Some((answered, _))) => {
                    bail!("main granted a slot for task {answered} instead of task {task}")
                }
                Ok(None) | Err(LifelineError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives one notice. If the notice brings the memory of slots, maps it and returns `None`; otherwise
    /// returns main's answer.
    fn receive(&mut self, deadline: impl Until) -> Result<Option<Answer>, LifelineError> {
        let (notice, fds) = self.lifeline.receive::<Notice>(deadline)?;
        match notice {
            Notice::Grant { task, lease } => {
                Ok(Some((task, lease.map_or_else(Grant::Refused, Grant::Lease))))
            }
            Notice::Vacate { task } => Ok(Some((task, Grant::Vacate))),
            Notice::Slots { first, count, slot_len } => {
                let malformed = |what: &str| LifelineError::Malformed(what.to_owned());
                let fd = fds.into_iter().next().ok_or_else(|| malformed("the memory of slots is missing"))?;
                let slot_len = usize::try_from(slot_len).ok().and_then(NonZeroUsize::new);
                let capacity = usize::try_from(count).ok().and_then(NonZeroUsize::new);
                let (Some(slot_len), Some(capacity)) = (slot_len, capacity) else {
                    return Err(malformed("the number or the size of slots is invalid"));
                };
                let mapping = SlotRegion::map(fd, slot_len, capacity)?;
                self.regions.insert(first, Region { mapping, count, slots: BTreeMap::new() });
                Ok(None)
            }
        }
    }
}
