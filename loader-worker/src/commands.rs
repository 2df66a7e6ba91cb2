//! The worker's loop: carries out commands until the sentinel.

use std::{
    cell::{Cell, RefCell},
    io,
    num::NonZeroUsize,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use loader_core::internal::{
    BatchRequest, EncodeBatch, Fetch, NoBatch, ProgressSink, ShardPosition, Snapshot, to_failure,
};
use loader_ipc::{
    ChunkError, Loan, SlotMemory,
    arena::{Arena, EncodeError, Encoded},
    channel::SendError,
    control::{ControlPage, WorkerLine, WorkerState},
    end_if_forked,
    fault::{self, Point},
    frame::{BadSampleRecord, Event, Failure, Indices, Lease, MAX_BAD_SAMPLES, ONE_BY_ONE, Stage, Task},
    lifeline::Lifeline,
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    bootstrap::Session,
    inbox::{Inbox, Next},
    memory::own_memory,
    slots::{Grant, Slots},
};

/// Minimum time of a batch after which page faults and memory are always measured.
const LONG_BATCH: Duration = Duration::from_millis(1);
/// Page faults and memory are also measured after each batch whose number is a multiple of this.
const MEASURE_INTERVAL: u64 = 16;

/// Carries out commands until the sentinel arrives or main is gone.
///
/// # Errors
/// If main breaks the protocol, or a report cannot be sent. The process then ends, which main notices.
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
        is_failure_reported: false,
        resident: 0,
    };
    // Before the report: once main has received it, main must not see the state `Starting`.
    worker.enter(WorkerState::Idle);
    let ready = match &worker.fetch {
        Ok(_) => Event::Ready,
        Err(failure) => Event::NotReady { failure: failure.clone().cut_to_frame() },
    };
    if worker.report(ready)?.is_break() {
        return Ok(());
    }
    let mut inbox = Inbox::default();
    loop {
        worker.enter(WorkerState::Idle);
        let flow = match inbox.next(&mut worker.session.commands)? {
            Next::Load(task) => {
                fault::point(Point::WorkerReceive);
                let flow = worker.load(task)?;
                fault::point(Point::WorkerAcknowledge);
                flow
            }
            Next::Withdrawn(task) => worker.skip_withdrawn(task)?,
            Next::GiveBack { task, lease } => worker.report(Event::Unused { task, lease })?,
            Next::Resume { epoch } => worker.resume(epoch)?,
            Next::End => break,
        };
        if flow.is_break() {
            return Ok(());
        }
        if let Some(resident) = worker.oversize() {
            // This process ends, and the process that replaces it starts with little memory.
            return worker.report(Event::Oversized { resident }).map(drop);
        }
    }
    // Commands behind the sentinel are ignored.
    worker.report(Event::Bye).map(drop)
}

struct Worker<'a> {
    fetch: Result<Box<dyn Fetch>, Failure>,
    session: Session,
    slots: Slots<'a>,
    /// Number of batches finished.
    batches: u64,
    /// True if main was told in this epoch that the dataset could not be opened.
    is_failure_reported: bool,
    /// Private memory in bytes when last measured.
    resident: u64,
}

/// `Break` if main receives no reports any more.
type Flow = ControlFlow<()>;

/// The result of a task.
enum Outcome {
    Done {
        lease: Lease,
        encoded: Encoded,
    },
    Failed {
        lease: Lease,
        failure: Failure,
    },
    /// The epoch is over or abandoned.
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

/// Why a batch is not in its slot.
enum NotSent {
    TooLarge { needed: usize },
    Failed(Failure),
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
        let started = Instant::now();
        self.line().set_task(number);
        let request = self.unpack(indices, lease)?;
        let first = match &request {
            BatchRequest::Samples(indices) => indices.first().map_or(0, |&index| index as u64),
            BatchRequest::NextOf { .. } => self.position(&request),
        };
        self.line().progress(WorkerState::Fetching, first);
        fault::point(Point::WorkerFetch);
        let before = self.position(&request);
        let control = Arc::clone(&self.session.control);
        let sink = PageSink::new(&control, self.session.worker, &known_bad);
        let outcome = self.fetch_and_send(epoch, number, lease, &request, &sink)?;
        // Without a batch the state is still that of a sample, which is over.
        if !matches!(outcome, Outcome::Done { .. }) {
            self.enter(WorkerState::Sending);
        }
        let position = self.position(&request);
        let mut bad = sink.bad.into_inner();
        bad.truncate(MAX_BAD_SAMPLES);
        BadSampleRecord::cut_to_frame(&mut bad);
        let event = match outcome {
            Outcome::Done { lease, encoded } => {
                fault::point(Point::WorkerSend);
                let samples = match &request {
                    BatchRequest::Samples(indices) => indices.len() as u64,
                    BatchRequest::NextOf { .. } => position.saturating_sub(before),
                };
                self.count(samples, started);
                Event::Done { task: number, lease, encoded, held: self.is_held(lease), position, bad }
            }
            Outcome::Failed { lease, failure } => {
                let failure = failure.cut_to_frame();
                let ended = match (&request, &self.fetch) {
                    (BatchRequest::NextOf { shard, .. }, Ok(fetch)) => fetch.has_panicked(*shard),
                    _ => false,
                };
                Event::Failed { task: number, lease, failure, held: self.is_held(lease), position, ended }
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

    /// Skips a task that main has withdrawn. What the task says about slots still applies.
    fn skip_withdrawn(&mut self, task: Task) -> anyhow::Result<Flow> {
        self.slots.update(task.lease, task.forget)?;
        self.report(Event::Withdrawn { task: task.number })
    }

    /// Closes all shards and begins another epoch.
    fn resume(&mut self, epoch: u64) -> anyhow::Result<Flow> {
        self.is_failure_reported = false;
        if let Ok(fetch) = &mut self.fetch {
            // Dropping the shards' iterators runs user code.
            drop(catch_unwind(AssertUnwindSafe(|| fetch.rewind())));
        }
        self.report(Event::Resumed { epoch })
    }

    /// Returns how many items were taken from the task's shard, or where it will be opened; 0 for a task of
    /// indices.
    fn position(&self, request: &BatchRequest) -> u64 {
        let BatchRequest::NextOf { shard, place } = request else { return 0 };
        self.fetch.as_ref().map_or(0, |fetch| fetch.position(*shard)).max(place.position)
    }

    /// Loads a batch and encodes it into its slot. When this returns, nothing of the batch is left in this
    /// process, unless user code has kept one of its tensors.
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
            // The number of a shard's batches is not known, so the failure is reported once, and then all
            // shards are exhausted.
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
        fault::point(Point::WorkerWrite);
        match encode(&*batch, &mut arena) {
            Ok(encoded) => Ok(Outcome::Done { lease, encoded }),
            Err(NotSent::Failed(failure)) => Ok(Outcome::Failed { lease, failure }),
            Err(NotSent::TooLarge { needed }) => {
                drop(arena);
                self.send_in_larger_slot(task, lease, batch, needed)
            }
        }
    }

    /// Asks main for a larger slot and encodes the batch into it. Main may first ask for the slot that the
    /// task has; the batch then waits in private memory.
    fn send_in_larger_slot(
        &mut self,
        task: u64,
        lease: Lease,
        batch: Box<dyn EncodeBatch>,
        needed: usize,
    ) -> anyhow::Result<Outcome> {
        if self.report(Event::NeedSlot { task, lease, needed: needed as u64 })?.is_break() {
            return Ok(Outcome::MainGone);
        }
        let failed = |failure| Ok(Outcome::Failed { lease, failure });
        let mut waiting = Waiting::Batch(batch);
        let larger = loop {
            match self.slots.wait_for_grant(task, &self.session.control)? {
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
            Ok(encoded) => Ok(Outcome::Done { lease: larger, encoded }),
            Err(failure) => Ok(Outcome::Failed { lease: larger, failure }),
        }
    }

    /// Returns the private memory of this process in bytes if it exceeds the limit.
    fn oversize(&self) -> Option<u64> {
        self.session.memory_limit.filter(|&limit| self.resident > limit).map(|_| self.resident)
    }

    fn is_held(&self, lease: Lease) -> bool {
        self.slots.memory(lease.slot).is_some_and(|memory| memory.is_lent())
    }

    fn count(&mut self, samples: u64, started: Instant) {
        let busy = started.elapsed();
        self.batches += 1;
        // Both measurements take system calls, so they are not made for every small batch.
        if busy >= LONG_BATCH || self.batches.is_multiple_of(MEASURE_INTERVAL) {
            let faults = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.minor_page_faults());
            self.line().set_page_faults(u64::try_from(faults).unwrap_or(0));
            if self.session.memory_limit.is_some() {
                self.resident = own_memory().unwrap_or(0);
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
            Indices::NextOf { shard, position, skip, snapshot } => {
                let snapshot = match snapshot {
                    None => None,
                    Some(len) => Some(Snapshot {
                        position: position.saturating_sub(skip),
                        bytes: self.read_slot(lease, len)?,
                    }),
                };
                let place = ShardPosition { position, snapshot, ended: false };
                return Ok(BatchRequest::NextOf { shard: shard as usize, place });
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

/// A batch that waits for a larger slot.
enum Waiting {
    Batch(Box<dyn EncodeBatch>),
    /// Encoded in private memory, exactly as it will be in the slot.
    Copied(Arc<SlotMemory>, Encoded),
}

impl Waiting {
    /// Copies the batch, which takes `needed` bytes, out of its slot.
    fn copy_out(self, needed: usize) -> Result<Self, Failure> {
        let Self::Batch(batch) = &self else { return Ok(self) };
        let no_memory =
            |error: io::Error| Failure::to_send(format!("there is no memory to copy the batch: {error}"));
        let len = NonZeroUsize::new(needed).ok_or_else(|| no_memory(io::ErrorKind::InvalidInput.into()))?;
        let memory = SlotMemory::of_this_process(len).map_err(no_memory)?;
        let loan = memory.lend(()).expect("new memory is not lent");
        let encoded = encode_again(&**batch, &mut Arena::in_slot(loan), needed)?;
        Ok(Self::Copied(memory, encoded))
    }

    /// Encodes or copies the batch into a slot.
    fn encode(self, mut slot: Loan, needed: usize) -> Result<Encoded, Failure> {
        match self {
            Self::Batch(batch) => encode_again(&*batch, &mut Arena::in_slot(slot), needed),
            Self::Copied(memory, encoded) => {
                let not_copied =
                    |error: ChunkError| Failure::to_send(format!("the batch cannot be copied: {error}"));
                let mut copy = memory.lend(()).expect("the arena in it was dropped");
                let end = usize::try_from(encoded.start + encoded.len).expect("the encoding is in memory");
                let bytes = copy.take(0..end).map_err(not_copied)?;
                slot.put(0, bytes.as_bytes()).map_err(not_copied)?;
                Ok(encoded)
            }
        }
    }
}

/// Encodes a batch that needed `needed` bytes when it was first encoded.
fn encode_again(batch: &dyn EncodeBatch, arena: &mut Arena, needed: usize) -> Result<Encoded, Failure> {
    encode(batch, arena).map_err(|error| match error {
        NotSent::Failed(failure) => failure,
        NotSent::TooLarge { needed: again } => Failure::to_send(format!(
            "the batch needed {needed} bytes when it was first encoded, but {again} bytes the second time"
        )),
    })
}

/// Encodes a batch. The batch's `Serialize` is user code and may fail or panic.
fn encode(batch: &dyn EncodeBatch, arena: &mut Arena) -> Result<Encoded, NotSent> {
    match catch_unwind(AssertUnwindSafe(|| batch.encode(arena))) {
        Ok(Ok(encoded)) => Ok(encoded),
        Ok(Err(EncodeError::TooLarge { needed })) => Err(NotSent::TooLarge { needed }),
        Ok(Err(error)) => Err(NotSent::Failed(Failure::to_send(error.to_string()))),
        Err(payload) => Err(NotSent::Failed(to_failure(&*payload, Stage::Send, None))),
    }
}

/// Publishes the progress of a batch on the control page, and tells the fetcher when the batch is not wanted
/// any more.
struct PageSink<'a> {
    control: &'a ControlPage,
    line: WorkerLine<'a>,
    /// Number of following samples that are noted without the time.
    untimed: Cell<u32>,
    /// Length of the current run of untimed samples. `None` before the first sample, whose timing says
    /// nothing about how long a sample takes.
    run: Cell<Option<u32>>,
    known_bad: &'a [u64],
    bad: RefCell<Vec<BadSampleRecord>>,
}

/// Maximum number of samples in a row that are noted without the time.
///
/// While each sample takes at least a tick of the coarse clock (some milliseconds), every sample is timed.
/// While the clock does not advance, runs of 1, 2, 4 and more samples are noted without reading the clock, so
/// that small samples do not pay for it. The age of a slow sample that follows fast ones is then too large,
/// by at most the time that those took.
const MAX_UNTIMED: u32 = 16;

impl<'a> PageSink<'a> {
    fn new(control: &'a ControlPage, worker: usize, known_bad: &'a [u64]) -> Self {
        let (untimed, run, bad) = (Cell::new(0), Cell::new(None), RefCell::default());
        Self { control, line: control.line_of(worker), untimed, run, known_bad, bad }
    }
}

impl ProgressSink for PageSink<'_> {
    fn progress(&self, state: WorkerState, index: usize) -> bool {
        end_if_forked();
        if state == WorkerState::Collating {
            fault::point(Point::WorkerCollate);
        }
        match self.untimed.get() {
            0 => {
                let is_same_tick = self.line.progress(state, index as u64);
                let run = match self.run.get() {
                    Some(run) if is_same_tick => (2 * run).clamp(1, MAX_UNTIMED),
                    _ => 0,
                };
                self.run.set(Some(run));
                self.untimed.set(run);
            }
            left => {
                self.line.progress_untimed(state, index as u64);
                self.untimed.set(left - 1);
            }
        }
        !self.control.is_cancelled()
    }

    fn bad(&self, sample: BadSampleRecord) {
        self.bad.borrow_mut().push(sample);
    }

    fn bad_samples(&self) -> usize {
        self.bad.borrow().len()
    }

    fn is_one_by_one(&self) -> bool {
        self.known_bad.contains(&ONE_BY_ONE)
    }

    fn is_known_bad(&self, index: usize) -> bool {
        self.known_bad.contains(&(index as u64))
    }
}
