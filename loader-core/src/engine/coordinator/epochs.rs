//! From one epoch to the next with the same workers: PyTorch's `persistent_workers`.
//!
//! At the end of an epoch, or when the user drops the iterator, the coordinator takes back what workers have
//! not begun, and keeps the leases of what they have begun: their results are not wanted. Before the next
//! epoch it tells each worker that the epoch begins (`Command::Resume`), and each worker says so once it
//! has answered everything before. A worker gives up what it is loading at its next sample.
//!
//! With `move_tasks = false`, workers load what they were sent to the end instead, as in PyTorch. There, samples may
//! draw random numbers from generators of their worker, and the next epoch must find these in a state that does not
//! depend on how fast the worker was.

use loader_ipc::{frame::ExitStatus, violation::ProtocolViolation};

use super::{
    Coordinator, Phase,
    attempts::Attempt,
    crew::Crew,
    hedging::ABANDONED,
    leasing::{Request, Vacate},
    wait::Wait,
};
use crate::error::{Error, exit::WorkerExit};

impl Coordinator {
    /// Ends the epoch, and keeps the workers for another one. They are not busy with anything that is wanted.
    pub(crate) fn rest(&mut self, crew: &mut impl Crew) {
        self.phase = Phase::Resting;
        if self.options.move_tasks {
            crew.set_wanted(false);
        }
        // A wait that was paused is not continued in another epoch.
        self.wait = Wait::default();
        let requests = self.leasing.stop_all_waiting();
        for &(task, request) in &requests {
            // If the worker is gone, the report of its exit follows.
            drop(crew.grant(request.worker, task, Err(ABANDONED.to_owned())));
        }
        let was_asked = |task, worker| {
            let is_it = |&(other, request): &(u64, Request)| {
                (other, request.worker, request.vacate) == (task, worker, Vacate::Asked)
            };
            requests.iter().any(is_it)
        };
        let attempts = self.attempts.take_all();
        for (number, worker, has_arrived, mut pending) in self.schedule.abandon() {
            let is_held = pending.is_held();
            let Some(lease) = pending.take_lease() else { continue };
            if has_arrived {
                self.leasing.slots().release(lease, is_held)
            } else {
                let attempt = Attempt::new(number, worker, lease);
                self.abandon(attempt, was_asked(number, worker), crew);
            }
        }
        attempts.into_iter().for_each(|attempt| self.abandon(attempt, false, crew));
    }

    /// Takes back what a worker has not begun, and waits for the answer to what it has. A worker that keeps its
    /// tasks answers all of them.
    fn abandon(&mut self, attempt: Attempt, was_asked: bool, crew: &mut impl Crew) {
        if self.options.move_tasks && self.roster.withdraw(attempt.worker, attempt.task, crew) {
            self.leasing.slots().release(attempt.lease, false)
        } else {
            self.attempts.lose(attempt, was_asked, self.now)
        }
    }

    /// True if the workers can load another epoch: all of them could open the dataset, and none has died.
    pub(crate) fn can_rest(&self, crew: &impl Crew) -> bool {
        self.persistent
            && self.phase == Phase::Loading
            && self.roster.all_are_fit()
            && self.present().all(|worker| crew.takes_tasks(worker))
    }

    /// Tells the workers that `epoch` begins.
    pub(crate) fn start_resuming(&mut self, epoch: u64, crew: &mut impl Crew) -> Result<(), Error> {
        let present: Vec<usize> = self.present().collect();
        self.phase = Phase::Resuming { epoch, awaited: present.iter().copied().collect() };
        present.into_iter().try_for_each(|worker| self.roster.resume(worker, epoch, crew))
    }

    /// Returns the workers that have a process and were not told to end.
    fn present(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.roster.len()).filter(|&worker| self.roster.is_present(worker))
    }

    /// Returns the number of tasks of the epoch before that workers have not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.attempts.len()
    }

    /// Returns the first worker that has not resumed.
    pub(crate) fn not_resumed(&self) -> Option<usize> {
        match &self.phase {
            Phase::Resuming { awaited, .. } => awaited.first().copied(),
            Phase::Loading | Phase::Resting => None,
        }
    }

    /// Notes that a worker has resumed: it has answered everything before.
    pub(super) fn take_resumed(&mut self, worker: usize, epoch: u64) -> Result<(), Error> {
        let is_expected = match &mut self.phase {
            Phase::Resuming { epoch: expected, awaited } => *expected == epoch && awaited.remove(&worker),
            Phase::Loading | Phase::Resting => false,
        };
        if !is_expected {
            return Err(Error::misbehaved(worker, ProtocolViolation::UnexpectedResume { epoch }));
        }
        if self.attempts.is_busy(worker) || self.leasing.has_offer(worker) {
            return Err(Error::misbehaved(worker, ProtocolViolation::ResumedTooEarly));
        }
        Ok(())
    }

    /// The error for a worker that has ended after its last task of an epoch.
    pub(super) fn ended_while_idle(
        &self,
        worker: usize,
        pid: u32,
        status: ExitStatus,
        crew: &impl Crew,
    ) -> Error {
        let exit = WorkerExit { status, cause: self.roster[worker].death_record.cause() };
        let doing = Box::new(self.doing(worker, crew));
        Error::WorkerExited { worker, pid, exit, batches: Vec::new(), doing, deaths: 1 }
    }
}
