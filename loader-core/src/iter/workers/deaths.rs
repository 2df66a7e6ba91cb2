//! Workers that die. Tasks are main's, and a worker's lease on one ends with its process: another process takes its place and does
//! again what was not finished, so that the user gets each batch once and in its place, whatever happens to workers.
//!
//! A batch that ends its worker each time must not end the epoch: it is given up, and its error says which samples it is of.

use loader_ipc::{control::WorkerState, frame::ExitStatus};
use nix::sys::signal::Signal;

use super::{Arrival, Wanted, WorkerIter};
use crate::{
    collate::Batch,
    error::{Doing, Error, GivenUp},
    warning::Warning,
};

/// So many workers may be ended by one batch: by a crash of their own,
const MOST_CRASHES: u32 = 2;
/// or by a signal that somebody else may have sent, each time at the same sample. Such a signal can hit a batch twice by accident.
const MOST_KILLS: u32 = 3;

/// What is known of the deaths of an epoch.
#[derive(Debug)]
pub(super) struct Deaths {
    /// How often a worker may die.
    most: u32,
    /// By worker, how often it has.
    of_worker: Vec<u32>,
    /// Batches at which workers have died, by number of the task.
    suspects: Vec<Suspect>,
    /// By worker, why it was killed here.
    expelled: Vec<Option<String>>,
    /// Deaths after which another process was to take the place.
    pub(super) replaced: u64,
}

#[derive(Debug)]
struct Suspect {
    task: u64,
    sample: usize,
    deaths: u32,
}

impl Deaths {
    pub(super) fn new(workers: usize, most: u32) -> Self {
        let (of_worker, expelled) = (vec![0; workers], vec![None; workers]);
        Self { most, of_worker, suspects: Vec::new(), expelled, replaced: 0 }
    }

    /// Counts a death; true when it was one too many.
    fn count(&mut self, worker: usize) -> bool {
        self.of_worker[worker] += 1;
        self.of_worker[worker] > self.most
    }

    /// Notes at which task a worker died; how many have, when that is enough to blame it.
    fn suspect(&mut self, doing: &Doing, status: ExitStatus) -> Option<u32> {
        let place = self.suspects.iter().position(|suspect| suspect.task == doing.batch);
        let place = place.unwrap_or_else(|| {
            self.suspects.push(Suspect { task: doing.batch, sample: doing.index, deaths: 0 });
            self.suspects.len() - 1
        });
        let suspect = &mut self.suspects[place];
        let most = if is_crash(status) { MOST_CRASHES } else { MOST_KILLS };
        if !is_crash(status) && suspect.sample != doing.index {
            suspect.deaths = 0;
        }
        suspect.sample = doing.index;
        suspect.deaths += 1;
        (suspect.deaths >= most).then_some(suspect.deaths)
    }
}

impl<B: Batch> WorkerIter<B> {
    /// A worker's process has ended, and everything that it had said is known.
    pub(super) fn worker_exited(&mut self, worker: usize, pid: u32, status: ExitStatus) -> Result<(), Error> {
        self.take_offers_back(worker);
        // A worker that will get no more tasks is not missed; before that, or with work, it is.
        if self.schedule.is_over(worker) {
            // Its place is empty in the next epoch.
            self.home = None;
            return Ok(());
        }
        let doing = self.pool.doing(worker);
        let batches = self.schedule.waiting_at(worker);
        let expelled = self.deaths.expelled[worker].take();
        if self.deaths.count(worker) {
            return Err(match expelled {
                Some(problem) => Error::WorkerMisbehaved { worker, problem },
                None => {
                    let deaths = self.deaths.of_worker[worker];
                    Error::WorkerExited { worker, pid, status, batches, doing, deaths, given_up: None }
                }
            });
        }
        let is_at_task =
            matches!(doing.state, WorkerState::Fetching | WorkerState::Collating | WorkerState::Sending)
                && batches.contains(&doing.batch);
        let blamed = match is_at_task && expelled.is_none() {
            true => self.deaths.suspect(&doing, status),
            false => None,
        };
        if let Some(deaths) = blamed {
            self.give_up(doing.batch, deaths, |given_up| {
                let (batches, doing) = (batches.clone(), doing.clone());
                Error::WorkerExited { worker, pid, status, batches, doing, deaths, given_up: Some(given_up) }
            });
        }
        let reason =
            expelled.map_or_else(|| status.to_string(), |problem| format!("{problem}, and was killed"));
        self.warn_of_death(worker, pid, reason, doing);
        self.deaths.replaced += 1;
        self.pool.restart(worker)?;
        self.redo(worker)
    }

    /// The attempt to start a worker again is over.
    pub(super) fn worker_started(&mut self, worker: usize) -> Result<(), Error> {
        match self.pool.adopt(worker) {
            Ok(()) => Ok(()),
            Err(error) if self.deaths.count(worker) => Err(error),
            Err(error) => {
                let doing = self.pool.doing(worker);
                self.warn_of_death(worker, doing.pid, error.to_string(), doing);
                self.pool.restart(worker)
            }
        }
    }

    /// Goes on after an error if it is of a worker that can be replaced: ends that worker.
    pub(super) fn survive(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::WorkerMisbehaved { worker, problem } if self.deaths.most > 0 => {
                // What else it has said is not believed either.
                self.pool.kill(worker, false);
                self.deaths.expelled[worker].get_or_insert(format!("broke the protocol: {problem}"));
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Does not try a batch any more: its error takes its place.
    fn give_up(&mut self, task: u64, deaths: u32, error: impl FnOnce(Box<GivenUp>) -> Error) {
        let Some(sent) = self.sent_mut(task) else { return };
        let lease = sent.lease.take();
        let (indices, shard) = match &sent.wanted {
            Wanted::Samples(indices) => (indices.clone(), None),
            Wanted::NextOf { shard, .. } => (Vec::new(), Some(*shard)),
        };
        if let Some(lease) = lease {
            self.slots.release(lease, false);
        }
        if let Some(shard) = shard {
            self.supply.reached(shard, 0, true);
        }
        let error = error(Box::new(GivenUp { batch: task, indices, deaths }));
        let arrived = self.schedule.arrived(task, Arrival::Lost(Box::new(error)));
        debug_assert!(arrived.is_ok(), "the worker had not answered it");
    }

    /// Gives a worker that is being started again the tasks that its last process had not answered.
    fn redo(&mut self, worker: usize) -> Result<(), Error> {
        let over = self.supply.reopen(worker, self.options.workers);
        for number in self.schedule.waiting_at(worker) {
            let place = self.place_of(number).expect("every task in the schedule is noted");
            let lease = self.tasks[place].lease.expect("a worker was given it");
            if let Wanted::NextOf { shard, .. } = self.tasks[place].wanted {
                if over.contains(&shard) {
                    self.bring_nothing(number, lease);
                    continue;
                }
                self.tasks[place].wanted = self.supply.again(shard, lease.len);
            }
            let task = self.task(number, &self.tasks[place].wanted, lease)?;
            self.pool.give_task(worker, task)?;
        }
        over.into_iter().for_each(|shard| self.schedule.close_lane(shard));
        Ok(())
    }

    /// What was offered to a worker, or asked for by it, has no meaning for the next one.
    fn take_offers_back(&mut self, worker: usize) {
        self.requests.retain(|_, request| request.worker != worker);
        self.offers.retain(|_, &mut (to, lease)| {
            if to == worker {
                self.slots.release(lease, false);
            }
            to != worker
        });
    }

    fn warn_of_death(&self, worker: usize, pid: u32, reason: String, doing: Doing) {
        let batches = self.schedule.waiting_at(worker);
        self.warn.warn(&Warning::WorkerReplaced {
            worker,
            pid,
            reason,
            doing,
            batches,
            deaths: self.deaths.of_worker[worker],
            most: self.deaths.most,
        });
    }
}

/// True when a process ended by itself, or by a signal for what it did; false when somebody else may have sent the signal.
fn is_crash(status: ExitStatus) -> bool {
    match status {
        ExitStatus::Code(_) => true,
        ExitStatus::Signal { signal, .. } => matches!(
            Signal::try_from(signal),
            Ok(Signal::SIGABRT
                | Signal::SIGBUS
                | Signal::SIGFPE
                | Signal::SIGILL
                | Signal::SIGSEGV
                | Signal::SIGSYS
                | Signal::SIGTRAP
                | Signal::SIGXCPU
                | Signal::SIGXFSZ)
        ),
        _ => false,
    }
}
