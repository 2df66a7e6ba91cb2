//! The slots that this worker has mapped, and its ear on the lifeline for new ones.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use loader_ipc::{
    Loan, SlotMemory,
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
    mapped: BTreeMap<u32, Arc<SlotMemory>>,
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
        Self { lifeline, mapped: BTreeMap::new() }
    }

    /// Maps the slot of a task, then unmaps those that came with the task to be forgotten. For each task, also one that is not done:
    /// the other way round, a slot could be mapped after it was to be forgotten.
    pub(crate) fn update(&mut self, lease: Lease, forget: Vec<u32>) -> anyhow::Result<()> {
        self.map(lease)?;
        for slot in forget {
            self.mapped.remove(&slot);
        }
        Ok(())
    }

    /// Main sends a slot's memory before the first task that uses it.
    fn map(&mut self, lease: Lease) -> anyhow::Result<()> {
        let deadline = Instant::now() + SLOT_DEADLINE;
        while !self.mapped.contains_key(&lease.slot) {
            self.receive(deadline).context("waiting for a slot's memory")?;
        }
        Ok(())
    }

    /// The memory of a leased slot, to be written.
    pub(crate) fn lend(&mut self, lease: Lease) -> anyhow::Result<Loan> {
        self.map(lease)?;
        let memory = &self.mapped[&lease.slot];
        memory.lend(()).context("a slot was leased while a tensor in it is still held in this worker")
    }

    pub(crate) fn memory(&self, slot: u32) -> Option<&Arc<SlotMemory>> {
        self.mapped.get(&slot)
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

    /// Takes one notice: maps a slot (`None`), or gives main's answer.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Answer>, LifelineError> {
        let (notice, fds) = self.lifeline.receive::<Notice>(deadline)?;
        match notice {
            Notice::Grant { task, lease } => {
                Ok(Some((task, lease.map_or_else(Grant::Refused, Grant::Lease))))
            }
            Notice::Vacate { task } => Ok(Some((task, Grant::Vacate))),
            Notice::Slot { slot, len } => {
                let malformed = |what: &str| LifelineError::Malformed(what.to_owned());
                let fd = fds.into_iter().next().ok_or_else(|| malformed("a slot without its memory"))?;
                let len = usize::try_from(len).ok().and_then(NonZeroUsize::new);
                let len = len.ok_or_else(|| malformed("a slot of an impossible size"))?;
                self.mapped.insert(slot, SlotMemory::map(fd, len)?);
                Ok(None)
            }
        }
    }
}
