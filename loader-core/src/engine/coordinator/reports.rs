//! Interprets what comes from workers. Main checks every report before it acts on it.

use loader_ipc::{
    fault::{self, Point},
    frame::{AfterFailure, BadSampleRecord, Event, Lease, Report, StreamPosition},
    violation::ProtocolViolation,
};

use super::{
    Coordinator, Phase,
    crew::Crew,
    pending::{Outcome, Pending},
};
use crate::{data::fetch::BatchRequest, error::Error, options::OnBadSample};

impl Coordinator {
    /// Handles a report. The coordinator may be loading an epoch, or waiting for the workers to begin the
    /// next one.
    pub(super) fn hear(&mut self, report: Report, crew: &mut impl Crew) -> Result<(), Error> {
        fault::point(Point::MainReceive);
        match report {
            Report::Event { worker, event } => self.hear_event(worker, event, crew),
            Report::Exited { worker, pid, status } => self.worker_exited(worker, pid, status, crew),
            Report::Started { worker } => self.worker_started(worker, crew),
        }
    }

    fn hear_event(&mut self, worker: usize, event: Event, crew: &mut impl Crew) -> Result<(), Error> {
        match event {
            Event::Ready => {
                self.roster.note_opened(worker, true)?;
                self.take_opened(worker, None, crew);
                Ok(())
            }
            Event::NotReady { failure } => {
                self.roster.note_opened(worker, false)?;
                self.take_opened(worker, Some(&failure), crew);
                Ok(())
            }
            Event::Bye => self.take_bye(worker),
            Event::Oversized { resident } => self.worker_oversized(worker, resident, crew),
            Event::LoaderFailed { problem } => self.loader_failed(worker, problem),
            Event::Withdrawn { task } => self.roster.saw_withdrawn(worker, task, crew),
            Event::Resumed { epoch } => self.take_resumed(worker, epoch),
            Event::NeedSlot { task, lease, needed } => self.take_request(worker, task, lease, needed, crew),
            Event::Vacated { task, lease, held } => self.take_vacated(Answer { worker, task, lease, held }),
            Event::Unused { task, lease } => self.take_unused(worker, task, lease),
            Event::Done { task, lease, encoded, held, position, bad, schema } => {
                let outcome = Outcome::Batch { lease, encoded, held, position, bad, schema };
                self.take_answer(Answer { worker, task, lease, held }, outcome, crew)
            }
            Event::Failed { task, lease, failure, held, position, after } => {
                let outcome = Outcome::Failed { failure: Box::new(failure), position, after };
                self.take_answer(Answer { worker, task, lease, held }, outcome, crew)
            }
            Event::AllSamplesBad { task, lease, held, position, bad } => {
                let outcome = Outcome::AllSamplesBad { position, bad };
                self.take_answer(Answer { worker, task, lease, held }, outcome, crew)
            }
            Event::Exhausted { task, lease, held } => {
                self.exhausted(Answer { worker, task, lease, held }, crew)
            }
            Event::Skipped { task, lease, held } => self.skipped(Answer { worker, task, lease, held }, crew),
        }
    }

    fn take_bye(&mut self, worker: usize) -> Result<(), Error> {
        let is_over = self.phase == Phase::Loading && self.schedule.is_over(worker);
        if is_over || self.roster.is_leaving(worker) {
            self.roster.note_bye(worker)
        } else {
            Err(Error::misbehaved(worker, ProtocolViolation::UnexpectedBye))
        }
    }

    /// Handles a batch, or the reason why there is none.
    fn take_answer(&mut self, answer: Answer, outcome: Outcome, crew: &mut impl Crew) -> Result<(), Error> {
        let Answer { worker, task, lease, held } = answer;
        let has_failed = matches!(outcome, Outcome::Failed { .. });
        if !self.wins(answer, has_failed, crew)? {
            return self.discard(answer, crew);
        }
        self.check_lease(worker, task, lease)?;
        self.check_outcome(worker, task, &outcome)?;
        match outcome {
            Outcome::Batch { .. } => self.leasing.note_writer(lease, worker),
            _ => self.leasing.slots().release(lease, held),
        }
        self.note_answer(worker, task);
        if has_failed && self.schedule.get(task).is_some_and(Pending::is_sent_back) {
            return self.take_sent_back(worker, task, crew);
        }
        self.leasing.stop_waiting(task);
        self.note_reached(task, &outcome);
        if let Some(pending) = self.schedule.get_mut(task) {
            pending.set_outcome(outcome);
        }
        let was_waiting = self.schedule.arrived(task);
        debug_assert!(was_waiting, "check_lease has seen that it waits");
        // Last: it sends other tasks, which may fail, and this one is done all the same.
        self.roster.answered(worker, task, crew)?;
        self.finish_idle_workers(crew);
        Ok(())
    }

    /// Handles the answer of a worker that was told to drop its batch: the task waits for a slot.
    fn take_sent_back(&mut self, worker: usize, task: u64, crew: &mut impl Crew) -> Result<(), Error> {
        if let Some(pending) = self.schedule.get_mut(task) {
            pending.start_again();
            pending.take_lease();
        }
        self.leasing.defer(task);
        self.roster.answered(worker, task, crew)
    }

    fn take_request(
        &mut self,
        worker: usize,
        task: u64,
        lease: Lease,
        needed: u64,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        if self.refuses_attempt(worker, task, crew)? {
            return Ok(());
        }
        self.check_lease(worker, task, lease)?;
        if !self.schedule.get_mut(task).is_some_and(|pending| pending.ask()) {
            return Err(Error::misbehaved(worker, ProtocolViolation::AskedTwice { task }));
        }
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        self.leasing.request(task, worker, lease, needed);
        Ok(())
    }

    /// Handles the end of a shard: the other shards get its turns.
    fn exhausted(&mut self, answer: Answer, crew: &mut impl Crew) -> Result<(), Error> {
        let Answer { worker, task, lease, held } = answer;
        if self.attempts.take_lost(worker, task, lease).is_some() {
            return self.discard(answer, crew);
        }
        self.check_lease(worker, task, lease)?;
        if !self.supply.has_shards() {
            return Err(Error::misbehaved(worker, ProtocolViolation::ExhaustedWithIndices { task }));
        }
        // The request for a slot would outlive the task.
        if self.schedule.get(task).is_some_and(Pending::has_asked) {
            return Err(Error::misbehaved(worker, ProtocolViolation::ExhaustedWithBatch { task }));
        }
        self.note_answer(worker, task);
        self.end_without_batch(task, held);
        self.roster.answered(worker, task, crew)?;
        self.finish_idle_workers(crew);
        self.dispatch(crew)
    }

    fn skipped(&mut self, answer: Answer, crew: &mut impl Crew) -> Result<(), Error> {
        let Answer { worker, task, lease, .. } = answer;
        if self.phase != Phase::Loading && self.attempts.take_lost(worker, task, lease).is_some() {
            return self.discard(answer, crew);
        }
        self.check_lease(worker, task, lease)?;
        Err(Error::misbehaved(worker, ProtocolViolation::SkippedInEpoch { task }))
    }

    /// Drops an answer that is not wanted, and takes its slot back.
    fn discard(&mut self, answer: Answer, crew: &mut impl Crew) -> Result<(), Error> {
        self.leasing.slots().release(answer.lease, answer.held);
        self.roster.answered(answer.worker, answer.task, crew)
    }

    /// Ends a task whose shard is over. `held`: the worker keeps a tensor in the slot.
    pub(super) fn end_without_batch(&mut self, task: u64, held: bool) {
        let ended = self.schedule.exhausted(task);
        debug_assert!(ended.is_some(), "the caller has seen that it waits");
        if let Some(lease) = ended.and_then(|mut pending| pending.take_lease()) {
            self.leasing.slots().release(lease, held);
        }
        self.leasing.undefer(task);
    }

    /// A report must be about a task that waits for it, under the lease of the task, by the worker of the
    /// task.
    pub(super) fn check_lease(&self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let has_lease = || self.schedule.get(task).is_some_and(|pending| pending.lease() == Some(lease));
        if self.schedule.worker_of(task) == Some(worker) && has_lease() && self.schedule.is_waiting(task) {
            return Ok(());
        }
        Err(Error::misbehaved(worker, ProtocolViolation::NotItsTask { task }))
    }

    fn check_outcome(&self, worker: usize, task: u64, outcome: &Outcome) -> Result<(), Error> {
        match outcome {
            Outcome::Batch { position, bad, .. } => {
                self.check_bad(worker, task, bad, false)?;
                self.check_position(worker, task, *position)
            }
            Outcome::AllSamplesBad { position, bad } => {
                self.check_bad(worker, task, bad, true)?;
                self.check_position(worker, task, *position)
            }
            Outcome::Failed { position, .. } => self.check_position(worker, task, *position),
            Outcome::Lost(_) => Ok(()),
        }
    }

    /// A worker may leave samples out only if the user allows it, and must name them.
    fn check_bad(
        &self,
        worker: usize,
        task: u64,
        bad: &[BadSampleRecord],
        all_left_out: bool,
    ) -> Result<(), Error> {
        let may_be = self.options.fetch.on_bad_sample != OnBadSample::Error;
        let is_right =
            if may_be { !all_left_out || !bad.is_empty() } else { !all_left_out && bad.is_empty() };
        if is_right {
            Ok(())
        } else {
            Err(Error::misbehaved(worker, ProtocolViolation::SamplesLeftOut { task }))
        }
    }

    /// A task takes a bounded number of items from its shard, and a task of indices takes none. Main must
    /// check this: a position too far ahead would silently skip the rest of the shard.
    fn check_position(&self, worker: usize, task: u64, position: StreamPosition) -> Result<(), Error> {
        let position = position.items;
        let pending = self.schedule.get(task);
        let max = pending.map_or(0, |pending| self.supply.max_position(pending.wanted()));
        if position <= max {
            return Ok(());
        }
        Err(Error::misbehaved(worker, ProtocolViolation::PositionTooFar { task, position, max }))
    }

    /// Notes where a batch ends in its shard: another worker may have to continue from there.
    fn note_reached(&mut self, task: u64, outcome: &Outcome) {
        let wanted = self.schedule.get(task).map(Pending::wanted);
        let Some(&BatchRequest::NextOf { shard, .. }) = wanted else { return };
        let (position, is_over) = match outcome {
            Outcome::Batch { position, .. } | Outcome::AllSamplesBad { position, .. } => (*position, false),
            Outcome::Failed { position, after, .. } => (*position, *after != AfterFailure::Continues),
            Outcome::Lost(_) => return,
        };
        self.supply.reached(shard, position, is_over);
    }
}

/// What every answer to a task says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) worker: usize,
    pub(super) task: u64,
    pub(super) lease: Lease,
    /// True if the worker keeps a tensor in the slot.
    pub(super) held: bool,
}
