//! Workers that die. Tasks are main's, and a worker's lease on one ends with its process: another process takes its place and does
//! again what was not finished, so that the user gets each batch once and in its place, whatever happens to workers.
//!
//! A batch that ends its worker each time must not end the epoch: it is given up, and its error says which samples it is of.
//!
//! Each death counts either for the task that the worker was on ([`Suspects`]), or, outside of tasks, for the
//! worker: a worker that cannot open the dataset, or that dies whenever it waits, is not started again for
//! ever. The worker's count starts again from zero when one of its processes answers a task, so that kills
//! from outside do not end a run that makes progress.

use std::time::Duration;

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::ExitStatus,
};
use nix::sys::signal::Signal;

use super::{
    Arrival, Sent, Wanted, WorkerIter,
    suspects::{Blame, Evidence, Place, Suspects},
};
use crate::{
    collate::Batch,
    error::{Doing, Error, GivenUp},
    options::OnBadSample,
    warning::Warning,
};

/// How long to wait before a worker is started again that could not be started: for descriptors or processes to come free.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of the deaths of an epoch.
#[derive(Debug)]
pub(super) struct Deaths {
    /// Max number of deaths of a worker in a row outside of tasks.
    most: u32,
    /// By worker, how often it has.
    of_worker: Vec<u32>,
    suspects: Suspects,
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

impl Deaths {
    pub(super) fn new(workers: usize, most: u32) -> Self {
        let causes = (0..workers).map(|_| None).collect();
        let (of_worker, useful) = (vec![0; workers], vec![false; workers]);
        Self { most, of_worker, suspects: Suspects::default(), causes, useful, replaced: 0 }
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
    pub(super) fn note_answer(&mut self, worker: usize, task: u64) {
        self.useful[worker] = true;
        self.of_worker[worker] = 0;
        self.suspects.acquit(task);
    }

    /// Counts a death; true when it was one too many.
    fn count(&mut self, worker: usize) -> bool {
        self.of_worker[worker] += 1;
        self.of_worker[worker] > self.most
    }
}

impl<B: Batch> WorkerIter<B> {
    /// A worker's process has ended, and everything that it had said is known.
    pub(super) fn worker_exited(&mut self, worker: usize, pid: u32, status: ExitStatus) -> Result<(), Error> {
        self.take_offers_back(worker);
        let spare = self.hedges.task_of(worker);
        self.forget_hedges(worker);
        self.looks.forget(worker);
        // A worker that will get no more tasks is not missed; before that, or with work, it is.
        if self.schedule.is_over(worker) {
            // Its place is empty in the next epoch.
            self.home = None;
            return Ok(());
        }
        let doing = self.doing(worker);
        let task = self.task_of_death(worker);
        // The second attempt at a task says nothing about the task: the first one goes on.
        let is_at_task = task.is_some() || spare.is_some();
        let batches = self.numbers_at(worker);
        let was_useful = std::mem::take(&mut self.deaths.useful[worker]);
        let cause = self.deaths.causes[worker].take();
        let is_counted = self.counts_for_worker(cause.as_ref(), is_at_task, was_useful);
        let reason = cause.as_ref().map(Cause::reason).or_else(|| self.out_of_memory(status));
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
                let evidence = match reason {
                    Some(_) => Evidence::Loss,
                    None if is_crash(status) => Evidence::Crash,
                    None if status == ExitStatus::Unknown => Evidence::Unknown,
                    None => Evidence::Kill,
                };
                if let Some(task) = task {
                    self.note_death_on(task, &doing, status, evidence, reason.clone())?;
                }
            }
            Some(Cause::Stuck { task, sample }) => self.take_stuck(worker, task, sample)?,
            Some(Cause::Expelled { .. } | Cause::Late | Cause::Oversized) => {}
        }
        let reason = reason.unwrap_or_else(|| status.to_string());
        let counted = if is_counted { self.deaths.of_worker[worker] } else { 0 };
        self.warn_of_death(worker, pid, reason, doing, counted);
        self.deaths.replaced += 1;
        self.pool.restart(worker, Duration::ZERO)?;
        self.redo(worker)
    }

    /// True when a death counts for the worker, not for the task that it was on.
    fn counts_for_worker(&self, cause: Option<&Cause>, is_at_task: bool, was_useful: bool) -> bool {
        match cause {
            None | Some(Cause::Still { .. }) => !is_at_task || !self.deaths.may_be_replaced(),
            // The worker was told that the sample is bad, and loaded it nevertheless.
            Some(Cause::Stuck { sample, .. }) => {
                sample.is_some_and(|sample| self.known_bad.contains_key(&sample))
            }
            Some(Cause::Expelled { .. }) => true,
            Some(Cause::Late) => false,
            // A worker that stays too large without ever doing anything would be replaced for ever.
            Some(Cause::Oversized) => !was_useful,
        }
    }

    /// The reason of a SIGKILL, if the kernel's OOM killer has ended a process since main looked last.
    fn out_of_memory(&mut self, status: ExitStatus) -> Option<String> {
        let is_sigkill =
            matches!(status, ExitStatus::Signal { signal, .. } if signal == Signal::SIGKILL as i32);
        let is_it = is_sigkill && self.pool.has_oom_killer_acted();
        is_it.then(|| format!("{status}, out of memory (the kernel's OOM killer ended a process)"))
    }

    /// The task that a dead worker was on, and that it has not answered.
    fn task_of_death(&self, worker: usize) -> Option<u64> {
        let WorkerSnapshot { state, task, .. } = self.pool.snapshot(worker);
        let is_at_task = matches!(
            state,
            WorkerState::Fetching | WorkerState::FetchingMany | WorkerState::Collating | WorkerState::Sending
        );
        let is_its_own = || self.sent(task).is_some_and(|sent| sent.worker == worker);
        (is_at_task && self.schedule.is_waiting(task) && is_its_own()).then_some(task)
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

    /// Notes that a worker died on a task. The sample, or the task, is not tried again once it is to blame.
    fn note_death_on(
        &mut self,
        task: u64,
        doing: &Doing,
        status: ExitStatus,
        evidence: Evidence,
        reason: Option<String>,
    ) -> Result<(), Error> {
        let by_sample = self.options.on_bad_sample != OnBadSample::Error && !self.supply.has_shards();
        // Which sample of a `get_many` kills the worker is found out when they are loaded one by one.
        if doing.state == WorkerState::FetchingMany && by_sample && self.one_by_one.insert(task) {
            return Ok(());
        }
        let is_sample = doing.state == WorkerState::Fetching;
        let is_read_again =
            is_sample && self.sent(task).is_some_and(|sent| sent.wanted.begins_behind(doing.index));
        let place = Place { state: doing.state, sample: is_sample.then_some(doing.index), is_read_again };
        let deaths = match self.deaths.suspects.note(task, place, evidence, by_sample && is_sample) {
            None => return Ok(()),
            Some(Blame::Sample { deaths }) => {
                let last = reason.clone().unwrap_or_else(|| status.to_string());
                let reason = format!("it has ended {deaths} workers, the last one {last}");
                if self.note_bad(task, doing.index, reason) {
                    return Ok(());
                }
                self.deaths.suspects.acquit(task);
                deaths
            }
            Some(Blame::Task { deaths }) => deaths,
        };
        let (batches, doing) = (self.numbers_at(doing.worker), Box::new(doing.clone()));
        let Doing { worker, pid, batch, .. } = *doing;
        self.give_up(task, |indices| {
            let given_up = Some(Box::new(GivenUp { batch, indices, deaths }));
            Error::WorkerExited { worker, pid, status, reason, batches, doing, deaths, given_up }
        })
    }

    /// Notes that a sample is bad. False when its task must be given up instead: the task is already told of as many bad samples as fit
    /// its frame, so that the next worker would try this one again.
    pub(super) fn note_bad(&mut self, task: u64, sample: usize, reason: String) -> bool {
        self.known_bad.entry(sample).or_insert(reason);
        let told = self.sent(task).map(|sent| self.known_bad_for(task, &sent.wanted));
        told.is_none_or(|told| told.contains(&(sample as u64)))
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
        self.parked.remove(&task);
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
            self.end_shard(shard);
        }
        let arrived = self.schedule.arrived(task, Arrival::Lost(Box::new(error(indices))));
        debug_assert!(arrived.is_ok(), "the worker had not answered it");
        Ok(())
    }

    /// Sends no more tasks of a shard, one of whose batches was given up: a worker would answer the next one with the samples of that batch,
    /// or, where that batch was to open the shard again, with those at its beginning. The tasks of the shard that still wait for a slot
    /// bring nothing. Of the tasks that have a slot, [`redo`](Self::redo) takes care: their worker has died.
    fn end_shard(&mut self, shard: usize) {
        let is_of_shard =
            |sent: &Sent| matches!(sent.wanted, Wanted::NextOf { shard: of, .. } if of == shard);
        let parked: Vec<u64> =
            self.parked.iter().copied().filter(|&task| self.sent(task).is_some_and(is_of_shard)).collect();
        parked.into_iter().for_each(|task| self.bring_nothing(task, false));
        self.schedule.close_lane(shard);
    }

    /// Gives a worker that is being started again the tasks that its last process had not answered.
    fn redo(&mut self, worker: usize) -> Result<(), Error> {
        let over = self.supply.reopen(worker, self.options.workers);
        let tasks = self.schedule.waiting_at(worker);
        // One whose slot is gone must wait for another; those behind it wait too, since a shard is read in order.
        let has_slot = |sent: &Sent| sent.lease.is_some() && !sent.has_vacated;
        let all_have =
            tasks.iter().all(|&task| self.place_of(task).is_some_and(|at| has_slot(&self.tasks[at])));
        for number in tasks {
            let place = self.place_of(number).expect("every task in the schedule is noted");
            let lease = self.tasks[place].lease.filter(|_| all_have);
            self.tasks[place].has_asked = false;
            if let Wanted::NextOf { shard, .. } = self.tasks[place].wanted {
                if over.contains(&shard) {
                    self.bring_nothing(number, false);
                    continue;
                }
                self.tasks[place].wanted =
                    self.supply.again(shard, lease.map_or(u64::MAX, |lease| lease.len));
            }
            let Some(lease) = lease else {
                self.park(number);
                continue;
            };
            let task = self.task(number, &self.tasks[place].wanted, lease)?;
            self.pool.give_task(worker, task)?;
        }
        over.into_iter().for_each(|shard| self.schedule.close_lane(shard));
        Ok(())
    }

    /// What was offered to a worker, or asked for by it, has no meaning for the next one, which has written no slot either.
    fn take_offers_back(&mut self, worker: usize) {
        self.writers.retain(|_, writer| *writer != worker);
        self.requests.retain(|_, request| request.worker != worker);
        self.offers.retain(|_, &mut (to, lease)| {
            if to == worker {
                self.slots.release(lease, false);
            }
            to != worker
        });
    }

    fn warn_of_death(&self, worker: usize, pid: u32, reason: String, doing: Doing, deaths: u32) {
        let batches = self.numbers_at(worker);
        self.warn.warn(&Warning::WorkerReplaced {
            worker,
            pid,
            reason,
            doing,
            batches,
            deaths,
            most: self.deaths.most,
        });
    }
}

/// True when a process ended by itself, or by a signal for what it did; false when another process may have
/// sent the signal.
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
