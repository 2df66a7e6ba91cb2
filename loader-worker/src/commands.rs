//! The worker's loop: carries out commands until the sentinel.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use loader_core::internal::{
    BatchRequest, EncodeBatch, Fetch, NoBatch, ProgressSink, ShardPosition, Snapshot, to_failure,
};
use loader_ipc::{
    arena::{Arena, Encoded},
    channel::SendError,
    control::{ControlPage, WorkerLine, WorkerState},
    end_if_forked,
    fault::{self, Point},
    frame::{AfterFailure, Event, Failure, Indices, Lease, Stage, StreamPosition, Task},
    lifeline::Lifeline,
    queue::{CommandReceiver, ReportSender},
    schema::Schema,
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    encode::{EncodeFailure, WaitingBatch, encode, schema},
    inbox::{Inbox, Next},
    memory::MemoryLimit,
    progress::PageSink,
    slots::{Grant, Slots},
};

/// If a batch takes at least this long, the worker measures its page faults and memory after the batch.
const LONG_BATCH: Duration = Duration::from_millis(1);
/// The worker also measures its page faults and memory after every batch whose number is a multiple of this.
const MEASURE_INTERVAL: u64 = 16;

/// What [`run`] needs besides the dataset.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) worker: usize,
    pub(crate) control: Arc<ControlPage>,
    pub(crate) commands: CommandReceiver,
    pub(crate) results: ReportSender,
    /// Limit of the memory that this process allocates.
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// True if main is another program, and compares the schemas of batches.
    pub(crate) sends_schemas: bool,
}

/// Carries out commands until the sentinel arrives or main is gone.
///
/// # Errors
/// If main breaks the protocol, a report cannot be sent, or code of the loader panics. Main was told the reason, unless
/// the report failed too. The process then ends.
pub(crate) fn run(
    fetch: Result<Box<dyn Fetch>, Failure>,
    session: Session,
    lifeline: &Lifeline,
) -> anyhow::Result<()> {
    let mut worker = Worker {
        fetch,
        session,
        slots: Slots::new(lifeline),
        batches: 0,
        compared_epoch: None,
        is_failure_reported: false,
        allocated: 0,
    };
    // User code has its own guards, so this catches panics of the loader's own code.
    let carried_out = catch_unwind(AssertUnwindSafe(|| worker.carry_out_commands()));
    let error = match carried_out {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(payload) => {
            let Failure { chain, backtrace, .. } = to_failure(&*payload, Stage::Send, None);
            let backtrace = backtrace.unwrap_or_default();
            // `eprintln` would panic if standard error is closed.
            drop(writeln!(io::stderr(), "{backtrace}"));
            let location = backtrace.lines().next().unwrap_or_default();
            anyhow!("the loader panicked {location}: {}", chain.join(": "))
        }
    };
    // What has failed may fail again. Main then learns of the exit alone.
    let report = AssertUnwindSafe(|| worker.report(Event::loader_failed(format!("{error:#}"))).map(drop));
    drop(catch_unwind(report));
    Err(error)
}

impl Worker<'_> {
    /// See [`run`].
    fn carry_out_commands(&mut self) -> anyhow::Result<()> {
        // The state precedes the report: once main has received the report, main must not see `Starting`.
        self.enter(WorkerState::Idle);
        let ready = match &self.fetch {
            Ok(_) => Event::Ready,
            Err(failure) => Event::NotReady { failure: failure.clone().cut_to_frame() },
        };
        if self.report(ready)?.is_break() {
            return Ok(());
        }
        let mut inbox = Inbox::default();
        loop {
            self.enter(WorkerState::Idle);
            let flow = match inbox.next(&mut self.session.commands)? {
                Next::Load(task) => {
                    fault::point(Point::WorkerReceive);
                    let flow = self.load(task)?;
                    fault::point(Point::WorkerAcknowledge);
                    flow
                }
                Next::Withdrawn(task) => self.skip_withdrawn(task)?,
                Next::GiveBack { task, lease } => self.report(Event::Unused { task, lease })?,
                Next::Resume { epoch } => self.resume(epoch)?,
                Next::End => break,
            };
            if flow.is_break() {
                return Ok(());
            }
            if let Some(resident) = self.oversize() {
                // This process ends, and main replaces it by a process with less memory.
                return self.report(Event::Oversized { resident }).map(drop);
            }
        }
        // Commands behind the sentinel are ignored.
        self.report(Event::Bye).map(drop)
    }
}

struct Worker<'a> {
    fetch: Result<Box<dyn Fetch>, Failure>,
    session: Session,
    slots: Slots<'a>,
    /// Number of batches finished.
    batches: u64,
    /// The last epoch in which the worker has sent the schema of a batch.
    compared_epoch: Option<u64>,
    /// True if the worker has reported in this epoch that the dataset could not be opened.
    is_failure_reported: bool,
    /// Bytes that this process had allocated at the last measurement.
    allocated: u64,
}

/// `Break` if main no longer receives reports.
type Flow = ControlFlow<()>;

/// The result of a task.
enum Outcome {
    Done {
        lease: Lease,
        encoded: Encoded,
        schema: Option<Box<Schema>>,
    },
    Failed {
        lease: Lease,
        failure: Failure,
    },
    /// The epoch was abandoned, or the done flag is set.
    Cancelled {
        lease: Lease,
    },
    /// The shard has no more samples.
    Exhausted {
        lease: Lease,
    },
    /// Every sample was bad and was left out.
    AllSamplesBad {
        lease: Lease,
    },
    /// Main is gone.
    MainGone,
}

impl Worker<'_> {
    /// Carries out one task and reports its result.
    fn load(&mut self, task: Task) -> anyhow::Result<Flow> {
        let Task { epoch, number, lease, indices, forget, known_bad, .. } = task;
        if self.session.control.is_done() {
            return self.report(Event::Skipped { task: number, lease, held: false });
        }
        self.slots.update(lease, forget)?;
        if self.session.control.is_cancelled() {
            return self.report(Event::Skipped { task: number, lease, held: false });
        }
        let control = Arc::clone(&self.session.control);
        let shard = match indices {
            Indices::NextOf { shard, .. } => Some(shard),
            _ => None,
        };
        let timer = control.area_of(self.session.worker).start_batch(epoch, number, shard);
        self.line().set_task(number);
        let request = self.unpack(indices, lease)?;
        let first = match &request {
            BatchRequest::Samples(indices) => indices.first().map_or(0, |&index| index as u64),
            BatchRequest::NextOf { .. } => self.position(&request).items,
        };
        self.line().progress(WorkerState::Fetching, first);
        fault::point(Point::WorkerFetch);
        let before = self.position(&request).items;
        let sink = PageSink::new(&control, self.session.worker, &known_bad, &timer);
        let outcome = self.fetch_and_send(epoch, number, lease, &request, &sink)?;
        // If there is no batch, the control page still shows the last sample, which the worker no longer
        // loads.
        if !matches!(outcome, Outcome::Done { .. }) {
            self.enter(WorkerState::Sending);
        }
        let position = self.position(&request);
        let bad = sink.into_bad();
        let event = match outcome {
            Outcome::Done { lease, encoded, schema } => {
                fault::point(Point::WorkerSend);
                let samples = match &request {
                    BatchRequest::Samples(indices) => indices.len() as u64,
                    BatchRequest::NextOf { .. } => position.items.saturating_sub(before),
                };
                self.count(samples, timer.finish(samples));
                self.compared_epoch = schema.as_ref().map(|_| epoch).or(self.compared_epoch);
                Event::Done { task: number, lease, encoded, held: self.is_held(lease), position, bad, schema }
            }
            Outcome::Failed { lease, failure } => {
                let failure = failure.cut_to_frame();
                let after = match (&request, &self.fetch) {
                    (BatchRequest::NextOf { shard, .. }, Ok(fetch)) => fetch.after_failure(*shard),
                    (BatchRequest::NextOf { .. }, Err(_)) => AfterFailure::EndsForEpoch,
                    _ => AfterFailure::Continues,
                };
                Event::Failed { task: number, lease, failure, held: self.is_held(lease), position, after }
            }
            Outcome::Cancelled { lease } => Event::Skipped { task: number, lease, held: self.is_held(lease) },
            Outcome::Exhausted { lease } => {
                Event::Exhausted { task: number, lease, held: self.is_held(lease) }
            }
            Outcome::AllSamplesBad { lease } => {
                Event::AllSamplesBad { task: number, lease, held: self.is_held(lease), position, bad }
            }
            Outcome::MainGone => return Ok(Flow::Break(())),
        };
        self.report(event)
    }

    /// Skips a task that main has withdrawn, but maps and unmaps the regions that the task names.
    fn skip_withdrawn(&mut self, task: Task) -> anyhow::Result<Flow> {
        self.slots.update(task.lease, task.forget)?;
        self.report(Event::Withdrawn { task: task.number })
    }

    /// Closes all shards and begins another epoch.
    fn resume(&mut self, epoch: u64) -> anyhow::Result<Flow> {
        self.is_failure_reported = false;
        self.session.control.area_of(self.session.worker).forget_slowest();
        if let Ok(fetch) = &mut self.fetch {
            // Dropping the shards' iterators runs user code.
            drop(catch_unwind(AssertUnwindSafe(|| fetch.rewind())));
        }
        self.report(Event::Resumed { epoch })
    }

    /// Returns the position in the task's shard, or the one at which the worker will open it; the beginning for a task
    /// of indices.
    fn position(&self, request: &BatchRequest) -> StreamPosition {
        let BatchRequest::NextOf { shard, open_at } = request else { return StreamPosition::default() };
        let position = self.fetch.as_ref().map_or(open_at.position, |fetch| fetch.position(*shard));
        position.or_later(open_at.position)
    }

    /// Loads a batch and encodes it into its slot. When this returns, this process has dropped the batch,
    /// except tensors that user code has kept.
    fn fetch_and_send(
        &mut self,
        epoch: u64,
        task: u64,
        lease: Lease,
        request: &BatchRequest,
        sink: &PageSink<'_>,
    ) -> anyhow::Result<Outcome> {
        let fetch = match &mut self.fetch {
            Ok(fetch) => fetch,
            // The number of batches of a shard is not known. So the worker reports the failure once, and then
            // reports that its shards are exhausted.
            Err(_) if self.is_failure_reported && matches!(request, BatchRequest::NextOf { .. }) => {
                return Ok(Outcome::Exhausted { lease });
            }
            Err(failure) => {
                self.is_failure_reported = true;
                return Ok(Outcome::Failed { lease, failure: failure.clone() });
            }
        };
        let mut arena = Arena::in_slot(self.slots.lend(lease)?);
        let batch = match fetch.fetch(epoch, request, &mut arena, sink) {
            Ok(batch) => batch,
            Err(NoBatch::Exhausted) => return Ok(Outcome::Exhausted { lease }),
            Err(NoBatch::AllSamplesBad) => return Ok(Outcome::AllSamplesBad { lease }),
            Err(NoBatch::Cancelled) => return Ok(Outcome::Cancelled { lease }),
            Err(NoBatch::Failed(failure)) => return Ok(Outcome::Failed { lease, failure }),
        };
        self.enter(WorkerState::Sending);
        if let Some(timer) = sink.timer() {
            timer.start_encoding();
        }
        fault::point(Point::WorkerWrite);
        let schema = match self.schema_of(&*batch, epoch) {
            Ok(schema) => schema,
            Err(failure) => return Ok(Outcome::Failed { lease, failure }),
        };
        match encode(&*batch, &mut arena) {
            Ok(encoded) => Ok(Outcome::Done { lease, encoded, schema }),
            Err(EncodeFailure::Failed(failure)) => Ok(Outcome::Failed { lease, failure }),
            Err(EncodeFailure::TooLarge { needed }) => {
                drop(arena);
                let outcome = self.send_in_larger_slot(task, lease, batch, needed, sink)?;
                Ok(match outcome {
                    Outcome::Done { lease, encoded, .. } => Outcome::Done { lease, encoded, schema },
                    other => other,
                })
            }
        }
    }

    /// Returns the schema of the batch if it is the first one of its epoch, and main is another program. Main may not
    /// have compared it when the user abandons the epoch, so the worker sends one in each epoch.
    fn schema_of(&self, batch: &dyn EncodeBatch, epoch: u64) -> Result<Option<Box<Schema>>, Failure> {
        if self.session.sends_schemas && self.compared_epoch != Some(epoch) {
            Ok(Some(Box::new(schema(batch)?)))
        } else {
            Ok(None)
        }
    }

    /// Asks main for a larger slot and encodes the batch into it. Main may first ask the worker to vacate the
    /// task's slot; the batch then waits in private memory.
    fn send_in_larger_slot(
        &mut self,
        task: u64,
        lease: Lease,
        batch: Box<dyn EncodeBatch>,
        needed: usize,
        sink: &PageSink<'_>,
    ) -> anyhow::Result<Outcome> {
        if self.report(Event::NeedSlot { task, lease, needed: needed as u64 })?.is_break() {
            return Ok(Outcome::MainGone);
        }
        let failed = |failure| Ok(Outcome::Failed { lease, failure });
        let mut waiting = WaitingBatch::InSlot(batch);
        let larger = loop {
            let mut wait = || self.slots.wait_for_grant(task, &self.session.control);
            let grant = match sink.timer() {
                Some(timer) => timer.waiting(wait),
                None => wait(),
            };
            match grant? {
                Grant::Lease(larger) => break larger,
                Grant::Refused(reason) => return failed(Failure::to_send(reason)),
                Grant::Done => return Ok(Outcome::Cancelled { lease }),
                Grant::Vacate => {
                    waiting = match waiting.copy_out(needed) {
                        Ok(copied) => copied,
                        Err(failure) => return failed(failure),
                    };
                    let held = self.is_held(lease);
                    if self.report(Event::Vacated { task, lease, held })?.is_break() {
                        return Ok(Outcome::MainGone);
                    }
                }
            }
        };
        match waiting.encode(self.slots.lend(larger)?, needed) {
            Ok(encoded) => Ok(Outcome::Done { lease: larger, encoded, schema: None }),
            Err(failure) => Ok(Outcome::Failed { lease: larger, failure }),
        }
    }

    /// Returns the bytes that this process has allocated if they exceed the limit.
    fn oversize(&self) -> Option<u64> {
        let limit = self.session.memory_limit.as_ref()?;
        limit.is_exceeded_by(self.allocated).then_some(self.allocated)
    }

    fn is_held(&self, lease: Lease) -> bool {
        self.slots.memory(lease.slot).is_some_and(|memory| memory.is_lent())
    }

    fn count(&mut self, samples: u64, busy: Duration) {
        self.batches += 1;
        // Both measurements take system calls, so the worker does not make them after every small batch.
        if busy >= LONG_BATCH || self.batches.is_multiple_of(MEASURE_INTERVAL) {
            let faults = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.minor_page_faults());
            self.line().set_page_faults(u64::try_from(faults).unwrap_or(0));
            if let Some(limit) = &mut self.session.memory_limit {
                self.allocated = limit.allocated();
            }
        }
        self.line().count_batch(samples, busy);
    }

    fn unpack(&mut self, indices: Indices, lease: Lease) -> anyhow::Result<BatchRequest> {
        let list = match indices {
            Indices::Range { start, len } => (start..start.saturating_add(len)).collect(),
            Indices::List(list) => list,
            Indices::InSlot { len } => {
                let bytes = len.checked_mul(size_of::<u64>() as u64);
                let Some(bytes) = bytes else { bail!("a task has {len} indices, more than fit a slot") };
                let bytes = self.read_slot(lease, bytes)?;
                let (words, _) = bytes.as_chunks();
                words.iter().map(|word| u64::from_le_bytes(*word)).collect()
            }
            Indices::NextOf { shard, position, start, snapshot } => {
                let snapshot = match snapshot {
                    None => None,
                    Some(len) => {
                        Some(Snapshot { position: start, bytes: self.read_slot(lease, len)?.into() })
                    }
                };
                let open_at = ShardPosition { position, snapshot, ended: false };
                return Ok(BatchRequest::NextOf { shard: shard as usize, open_at });
            }
        };
        let narrow = list.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        narrow.map(BatchRequest::Samples).context("an index of a task exceeds the range of `usize`")
    }

    /// Returns the first `len` bytes of a slot.
    fn read_slot(&mut self, lease: Lease, len: u64) -> anyhow::Result<Vec<u8>> {
        let len = usize::try_from(len).context("a task refers to more bytes than memory has")?;
        let mut loan = self.slots.lend(lease)?;
        Ok(loan.take(0..len)?.as_bytes().to_vec())
    }

    fn report(&mut self, event: Event) -> anyhow::Result<Flow> {
        end_if_forked();
        match self.session.results.send(&event) {
            Ok(()) => Ok(Flow::Continue(())),
            Err(SendError::Closed) => Ok(Flow::Break(())),
            Err(error) => Err(error).context("sending a report"),
        }
    }

    fn enter(&self, state: WorkerState) {
        self.line().enter(state);
    }

    /// Returns the worker's line of the control page. Checks for a fork first, because user code may have run
    /// since the last access.
    fn line(&self) -> WorkerLine<'_> {
        end_if_forked();
        self.session.control.line_of(self.session.worker)
    }
}
