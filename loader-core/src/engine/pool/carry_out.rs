//! Implements [`Crew`] for [`Pool`]: carries out what the coordinator decides.

use std::{io, mem, sync::Arc, time::Duration};

use loader_ipc::{
    channel::SendError,
    control::WorkerSnapshot,
    frame::{Command, Lease, MAX_FORGOTTEN},
    handshake::Notice,
    lifeline::LifelineError,
    patience::Patience,
    process::{CpuUse, Halt},
    violation::ProtocolViolation,
};
use nix::sys::signal::Signal;

use super::{Greeted, Pool, Restart, Worker};
use crate::{
    engine::coordinator::{Crew, UnsentTask},
    error::Error,
    report::warning::Warning,
};

/// Maximum time for a worker's lifeline to accept a message. A worker that takes longer counts as having
/// broken the protocol, so that a stuck worker cannot block main.
const LIFELINE_DEADLINE: Duration = Duration::from_secs(5);

impl Crew for Pool {
    fn give(&mut self, worker: usize, task: UnsentTask, claim: u32) -> Result<(), Error> {
        self.share_slot(worker, task.lease)?;
        let Worker { to_forget, .. } = &mut self.workers[worker];
        let forget = to_forget.split_off(to_forget.len().saturating_sub(MAX_FORGOTTEN));
        self.send(worker, Command::Task(task.into_task(claim, forget)))
    }

    fn offer(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        self.share_slot(worker, lease)?;
        self.send(worker, Command::Offer { task, lease })
    }

    fn resume(&mut self, worker: usize, epoch: u64) -> Result<(), Error> {
        self.send(worker, Command::Resume { epoch })
    }

    fn finish(&mut self, worker: usize) {
        self.workers[worker].send_sentinel();
    }

    fn withdraw(&mut self, worker: usize, claim: u32) -> bool {
        self.workers[worker].commands.withdraw(claim)
    }

    fn grant(&mut self, worker: usize, task: u64, lease: Result<Lease, String>) -> Result<(), Error> {
        if let Ok(lease) = &lease {
            self.share_slot(worker, *lease)?;
        }
        self.notify(worker, &Notice::Grant { task, lease })
    }

    fn vacate(&mut self, worker: usize, task: u64) -> Result<(), Error> {
        self.notify(worker, &Notice::Vacate { task })
    }

    fn kill(&mut self, worker: usize, trusted: bool) {
        if !trusted {
            self.results.stop_reading(worker);
        }
        self.workers[worker].process.signal(Signal::SIGKILL);
    }

    fn start(&mut self, worker: usize, pause: Duration) -> Result<(), Error> {
        self.control.reset(worker);
        if let Some(ended) = self.workers.get_mut(worker) {
            ended.sentinel_sent = false;
        }
        let (starter, notes) = (Arc::clone(&self.starter), self.notes.clone());
        let restart = Restart::begin(worker, starter, notes, pause)?;
        self.restarts.insert(worker, restart);
        Ok(())
    }

    fn adopt(&mut self, worker: usize) -> Result<(), Error> {
        let Some(restart) = self.restarts.remove(&worker) else { return Ok(()) };
        let Greeted { worker: new, watched, reader } = restart.finish()?;
        self.results.replace(worker, reader);
        match self.workers.get_mut(worker) {
            Some(ended) => ended.become_started(new),
            None => self.workers.push(new),
        }
        if let Some(reaper) = &self.reaper {
            reaper.watch(worker, watched);
        }
        Ok(())
    }

    fn set_wanted(&mut self, is_wanted: bool) {
        self.control.set_cancelled(!is_wanted);
    }

    fn warn(&mut self, warning: &Warning) {
        self.warn.warn(warning);
    }

    fn pid(&self, worker: usize) -> u32 {
        self.pid(worker)
    }

    fn is_down(&self, worker: usize) -> bool {
        self.workers[worker].exited.is_some()
    }

    fn takes_tasks(&self, worker: usize) -> bool {
        let worker = &self.workers[worker];
        worker.exited.is_none() && !worker.sentinel_sent
    }

    fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        self.snapshot(worker)
    }

    fn cpu_use(&self, worker: usize) -> CpuUse {
        self.workers[worker].cpu_use()
    }

    fn halt(&self, worker: usize) -> Option<Halt> {
        let Worker { process, lifeline, .. } = &self.workers[worker];
        if lifeline.is_closed() { Some(Halt::LifelineClosed) } else { process.halt() }
    }

    fn has_oom_killer_acted(&mut self) -> bool {
        self.oom.has_acted()
    }

    fn knows(&self, worker: usize, slot: u32) -> bool {
        self.workers[worker].used.contains(&slot)
    }

    fn forget_destroyed_slots(&mut self) -> bool {
        let destroyed = self.slots.destroyed_regions();
        if mem::replace(&mut self.looked_through, destroyed) == destroyed {
            return false;
        }
        for worker in &mut self.workers {
            let Worker { regions, used, to_forget, .. } = worker;
            regions.retain(|&first| {
                let exists = self.slots.has_region(first);
                to_forget.extend((!exists).then_some(first));
                exists
            });
            used.retain(|&slot| self.slots.exists(slot));
        }
        true
    }
}

impl Pool {
    fn send(&mut self, worker: usize, command: Command) -> Result<(), Error> {
        match self.workers[worker].commands.send(&Some(command)) {
            // If the worker is gone, the reaper reports it.
            Ok(()) | Err(SendError::Closed) => Ok(()),
            Err(SendError::Io(source)) => Err(Error::System { what: "sending to a worker", source }),
            Err(error) => Err(Error::System { what: "sending to a worker", source: io::Error::other(error) }),
        }
    }

    /// Sends a worker the memory of a slot, unless the worker has it already.
    fn share_slot(&mut self, number: usize, lease: Lease) -> Result<(), Error> {
        let worker = &mut self.workers[number];
        if !worker.used.insert(lease.slot) {
            return Ok(());
        }
        let Some(region) = self.slots.region_of(lease.slot) else { return Ok(()) };
        if !worker.regions.insert(region.first) {
            return Ok(());
        }
        let notice = Notice::Slots { first: region.first, count: region.count, slot_len: region.slot_len };
        let memory = region.fd.get().map_err(LifelineError::Io);
        let sent = memory.and_then(|memory| {
            worker.lifeline.send(&notice, &[memory], &mut Patience::new(LIFELINE_DEADLINE))
        });
        sent.or_else(|error| lifeline_failed(number, error))
    }

    fn notify(&self, worker: usize, notice: &Notice) -> Result<(), Error> {
        let sent = self.workers[worker].lifeline.send(notice, &[], &mut Patience::new(LIFELINE_DEADLINE));
        sent.or_else(|error| lifeline_failed(worker, error))
    }
}

fn lifeline_failed(worker: usize, error: LifelineError) -> Result<(), Error> {
    match error {
        // If the worker is gone, the reaper reports it.
        LifelineError::Closed => Ok(()),
        LifelineError::TimedOut => Err(Error::misbehaved(worker, ProtocolViolation::LifelineNotRead)),
        LifelineError::Io(source) => Err(Error::System { what: "sending a slot to a worker", source }),
        error => {
            let source = io::Error::other(error);
            Err(Error::System { what: "sending a slot to a worker", source })
        }
    }
}
