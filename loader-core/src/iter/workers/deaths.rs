//! Workers that die. Tasks are main's, and a worker's lease on one ends with its process: another process takes its place and does
//! again what was not finished, so that the user gets each batch once and in its place, whatever happens to workers.
//!
//! A batch that ends its worker each time must not end the epoch: it is given up, and its error says which samples it is of.

use std::time::Duration;

use loader_ipc::{control::WorkerState, frame::ExitStatus};
use nix::sys::signal::Signal;

use super::{Arrival, Wanted, WorkerIter};
use crate::{
    collate::Batch,
    error::{Doing, Error, GivenUp},
    options::OnBadSample,
    warning::Warning,
};

/// So many workers may be ended by one batch: by a crash of their own,
const MOST_CRASHES: u32 = 2;
/// or by a signal that somebody else may have sent, each time at the same sample. Such a signal can hit a batch twice by accident.
const MOST_KILLS: u32 = 3;

/// How long to wait before a worker is started again that could not be started: for descriptors or processes to come free.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of the deaths of an epoch.
#[derive(Debug)]
pub(super) struct Deaths {
    /// How often a worker may die.
    most: u32,
    /// By worker, how often it has.
    of_worker: Vec<u32>,
    /// Batches at which workers have died, by number of the task.
    suspects: Vec<Suspect>,
    /// By worker, why it ends, if that is known beforehand.
    causes: Vec<Option<Cause>>,
    /// By worker, whether its process has answered a task.
    useful: Vec<bool>,
    /// Deaths after which another process was to take the place.
    pub(super) replaced: u64,
}

/// Why a worker ends, where main knows beforehand.
#[derive(Debug)]
pub(super) enum Cause {
    /// It broke the protocol.
    Expelled { problem: String },
    /// It was on a sample for too long: on one of several if that is not known.
    Stuck { task: u64, sample: Option<usize> },
    /// It did not go on, in whatever it was.
    Still { problem: String },
    /// It was for too long on a task that another worker has, or has done.
    Late,
    /// It has grown too large, and ends by itself.
    Oversized,
}

impl Cause {
    /// Says what became of the worker.
    fn reason(&self) -> String {
        let killed_since = match self {
            Self::Expelled { problem } => format!("it broke the protocol ({problem})"),
            Self::Stuck { .. } => "a sample took longer than sample_timeout".to_owned(),
            Self::Still { problem } => format!("it {problem}"),
            Self::Late => "it was on a batch for too long that another worker has".to_owned(),
            Self::Oversized => return "ended, since it was too large".to_owned(),
        };
        format!("was killed, since {killed_since}")
    }
}

#[derive(Debug)]
struct Suspect {
    task: u64,
    sample: usize,
    deaths: u32,
}

impl Deaths {
    pub(super) fn new(workers: usize, most: u32) -> Self {
        let causes = (0..workers).map(|_| None).collect();
        let (of_worker, useful) = (vec![0; workers], vec![false; workers]);
        Self { most, of_worker, suspects: Vec::new(), causes, useful, replaced: 0 }
    }

    /// True when a worker is about to end, and why is known.
    pub(super) fn is_expected(&self, worker: usize) -> bool {
        self.causes[worker].is_some()
    }

    /// Notes why a worker is about to end. What was noted first counts.
    pub(super) fn expect(&mut self, worker: usize, cause: Cause) {
        self.causes[worker].get_or_insert(cause);
    }

    /// True where workers that die are replaced at all.
    pub(super) fn may_be_replaced(&self) -> bool {
        self.most > 0
    }

    /// Notes that a worker has answered a task.
    pub(super) fn note_answer(&mut self, worker: usize) {
        self.useful[worker] = true;
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
        let deaths = suspect.deaths;
        (deaths >= most).then(|| {
            // Explained: what else is wrong with the task, or with its worker, is told by others.
            self.suspects.swap_remove(place);
            deaths
        })
    }

    /// Deaths that turned out to be a batch's fault are not the worker's.
    fn forgive(&mut self, worker: usize, deaths: u32) {
        self.of_worker[worker] = self.of_worker[worker].saturating_sub(deaths);
    }
}

impl<B: Batch> WorkerIter<B> {
    /// A worker's process has ended, and everything that it had said is known.
    pub(super) fn worker_exited(&mut self, worker: usize, pid: u32, status: ExitStatus) -> Result<(), Error> {
        self.take_offers_back(worker);
        self.forget_hedges(worker);
        self.looks.forget(worker);
        // A worker that will get no more tasks is not missed; before that, or with work, it is.
        if self.schedule.is_over(worker) {
            // Its place is empty in the next epoch.
            self.home = None;
            return Ok(());
        }
        let doing = self.pool.doing(worker);
        let batches = self.schedule.waiting_at(worker);
        let was_useful = std::mem::take(&mut self.deaths.useful[worker]);
        let cause = self.deaths.causes[worker].take();
        // A worker that stays too large without ever doing anything would be replaced for ever.
        let is_counted = match &cause {
            // The worker of a sample that it should not even have tried.
            Some(Cause::Stuck { sample, .. }) => {
                sample.is_some_and(|sample| self.known_bad.contains_key(&sample))
            }
            Some(Cause::Late) => false,
            Some(Cause::Oversized) => !was_useful,
            _ => true,
        };
        let reason = cause.as_ref().map(Cause::reason);
        if is_counted && self.deaths.count(worker) {
            return Err(match cause {
                Some(Cause::Expelled { problem }) => Error::WorkerMisbehaved { worker, problem },
                _ => {
                    let deaths = self.deaths.of_worker[worker];
                    let (doing, given_up) = (Box::new(doing), None);
                    Error::WorkerExited { worker, pid, status, reason, batches, doing, deaths, given_up }
                }
            });
        }
        match cause {
            None | Some(Cause::Still { .. }) => {
                if let Some(deaths) = self.blame(&doing, status, &batches) {
                    self.deaths.forgive(worker, deaths);
                    self.take_blamed(&doing, status, reason.clone(), deaths, batches)?;
                }
            }
            Some(Cause::Stuck { task, sample }) => self.take_stuck(worker, task, sample)?,
            Some(Cause::Expelled { .. } | Cause::Late | Cause::Oversized) => {}
        }
        let reason = reason.unwrap_or_else(|| status.to_string());
        self.warn_of_death(worker, pid, reason, doing);
        self.deaths.replaced += 1;
        self.pool.restart(worker, Duration::ZERO)?;
        self.redo(worker)
    }

    /// A worker says that it ends since it has grown too large.
    pub(super) fn worker_oversized(&mut self, worker: usize, resident: u64) -> Result<(), Error> {
        let Some(limit) = self.options.memory_limit else {
            return Err(Error::misbehaved(worker, "it ended for a limit that it does not have"));
        };
        self.pool.note_last_word(worker)?;
        let pid = self.pool.pid(worker);
        self.warn.warn(&Warning::WorkerOversized { worker, pid, resident, limit });
        self.deaths.expect(worker, Cause::Oversized);
        Ok(())
    }

    /// How many workers the task at which one died has ended, when that is enough to blame it.
    fn blame(&mut self, doing: &Doing, status: ExitStatus, batches: &[u64]) -> Option<u32> {
        let is_at_task = match doing.state {
            WorkerState::Fetching | WorkerState::Collating | WorkerState::Sending => true,
            WorkerState::FetchingMany if self.options.on_bad_sample != OnBadSample::Error => {
                // Which one it is comes out when they are tried one by one.
                !self.one_by_one.insert(doing.batch)
            }
            WorkerState::FetchingMany => true,
            _ => false,
        };
        (is_at_task && batches.contains(&doing.batch)).then(|| self.deaths.suspect(doing, status)).flatten()
    }

    /// A task is to blame for deaths: its sample, if bad samples are not to fail their batches, or all of it.
    fn take_blamed(
        &mut self,
        doing: &Doing,
        status: ExitStatus,
        reason: Option<String>,
        deaths: u32,
        batches: Vec<u64>,
    ) -> Result<(), Error> {
        let Doing { worker, pid, batch: task, .. } = *doing;
        let is_sample = doing.state == WorkerState::Fetching && !self.supply.has_shards();
        if is_sample && self.options.on_bad_sample != OnBadSample::Error {
            let last = reason.unwrap_or_else(|| status.to_string());
            let reason = format!("it has ended {deaths} workers, the last one {last}");
            self.known_bad.insert(doing.index, reason);
            return Ok(());
        }
        let doing = Box::new(doing.clone());
        self.give_up(task, |indices| {
            let given_up = Box::new(GivenUp { batch: task, indices, deaths });
            let given_up = Some(given_up);
            Error::WorkerExited { worker, pid, status, reason, batches, doing, deaths, given_up }
        })
    }

    /// The attempt to start a worker again is over.
    pub(super) fn worker_started(&mut self, worker: usize) -> Result<(), Error> {
        match self.pool.adopt(worker) {
            Ok(()) => self.pool.send_backlog(worker),
            Err(error) if self.deaths.count(worker) => Err(error),
            Err(error) => {
                let (deaths, most) = (self.deaths.of_worker[worker], self.deaths.most);
                let problem = error.to_string();
                self.warn.warn(&Warning::WorkerNotReplaced { worker, problem, deaths, most });
                self.pool.restart(worker, PAUSE)
            }
        }
    }

    /// Goes on after an error if it is of a worker that can be replaced. A worker that broke the protocol is ended in any case.
    pub(super) fn survive(&mut self, error: Error) -> Result<(), Error> {
        let Error::WorkerMisbehaved { worker, problem } = error else { return Err(error) };
        // What else it has said is not believed either.
        self.pool.kill(worker, false);
        if !self.deaths.may_be_replaced() {
            return Err(Error::WorkerMisbehaved { worker, problem });
        }
        self.deaths.expect(worker, Cause::Expelled { problem });
        Ok(())
    }

    /// Does not try a batch any more: an error takes its place, which is made from its indices.
    pub(super) fn give_up(
        &mut self,
        task: u64,
        error: impl FnOnce(Vec<usize>) -> Error,
    ) -> Result<(), Error> {
        self.give_up_hedge(task)?;
        let Some(sent) = self.sent_mut(task) else { return Ok(()) };
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
        let arrived = self.schedule.arrived(task, Arrival::Lost(Box::new(error(indices))));
        debug_assert!(arrived.is_ok(), "the worker had not answered it");
        Ok(())
    }

    /// Gives a worker that is being started again the tasks that its last process had not answered.
    fn redo(&mut self, worker: usize) -> Result<(), Error> {
        let over = self.supply.reopen(worker, self.options.workers);
        for number in self.schedule.waiting_at(worker) {
            let place = self.place_of(number).expect("every task in the schedule is noted");
            let lease = self.tasks[place].lease.expect("a worker was given it");
            self.tasks[place].has_asked = false;
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
