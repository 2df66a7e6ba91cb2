//! The worker's loop: takes orders until the sentinel.

use std::{
    cell::{Cell, RefCell},
    io,
    num::NonZeroUsize,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use loader_core::{
    fetch::{Fetch, Loaded, NoBatch, ShardPlace, Snapshot, Watch, Work},
    panic::to_failure,
};
use loader_ipc::{
    ChunkError, Loan, SlotMemory,
    arena::{Arena, EncodeError, Encoded},
    channel::SendError,
    control::{ControlPage, WorkerLine, WorkerState},
    end_if_forked,
    fault::{self, Point},
    frame::{BadSample, Event, Failure, Indices, Lease, MOST_BAD_SAMPLES, ONE_BY_ONE, Stage, Task},
    lifeline::Lifeline,
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    bootstrap::Session,
    inbox::{Inbox, Next},
    memory::own_memory,
    slots::{Grant, Slots},
};

/// Page faults and memory are looked at after each batch that takes this long,
const LONG_BATCH: Duration = Duration::from_millis(1);
/// and after every so many others.
const FAULTS_INTERVAL: u64 = 16;

/// Follows orders until the sentinel comes or main is gone.
///
/// # Errors
/// When the protocol is broken: main then sees this process end.
pub(crate) fn follow(
    fetch: Result<Box<dyn Fetch>, Failure>,
    session: Session,
    lifeline: &Lifeline,
) -> anyhow::Result<()> {
    let mut worker =
        Worker { fetch, session, slots: Slots::new(lifeline), batches: 0, told: false, resident: 0 };
    // Before main is told, who must not find it starting afterwards.
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
        let flow = match inbox.next(&mut worker.session.orders)? {
            Next::Load(task) => {
                fault::point(Point::WorkerReceive);
                let flow = worker.load(task)?;
                fault::point(Point::WorkerAcknowledge);
                flow
            }
            Next::Withdrawn(task) => worker.leave(task)?,
            Next::GiveBack { task, lease } => worker.report(Event::Unused { task, lease })?,
            Next::Resume { epoch } => worker.resume(epoch)?,
            Next::End => break,
        };
        if flow.is_break() {
            return Ok(());
        }
        if let Some(resident) = worker.oversize() {
            // The next one begins small.
            return worker.report(Event::Oversized { resident }).map(drop);
        }
    }
    // What comes behind the sentinel is for nobody.
    worker.report(Event::Bye).map(drop)
}

struct Worker<'a> {
    fetch: Result<Box<dyn Fetch>, Failure>,
    session: Session,
    slots: Slots<'a>,
    /// Batches done.
    batches: u64,
    /// Main knows that the dataset could not be opened, in this epoch.
    told: bool,
    /// Bytes of its own that it had in memory when that was looked at last.
    resident: u64,
}

/// `Break` when main no longer listens.
type Flow = ControlFlow<()>;

/// What became of a task.
enum Outcome {
    Done {
        lease: Lease,
        encoded: Encoded,
    },
    Failed {
        lease: Lease,
        failure: Failure,
    },
    /// Its epoch is over or abandoned.
    Unwanted {
        lease: Lease,
    },
    /// The shard has no more samples.
    Exhausted {
        lease: Lease,
    },
    /// Every sample was bad and was left out.
    LeftOut {
        lease: Lease,
    },
    /// Main is gone.
    Unheard,
}

/// Why a batch is not in its slot.
enum NotSent {
    TooLarge { needed: usize },
    Failed(Failure),
}

impl Worker<'_> {
    /// Does one task and answers it.
    fn load(&mut self, task: Task) -> anyhow::Result<Flow> {
        let Task { epoch, number, lease, indices, forget, known_bad, .. } = task;
        if self.session.control.is_done() {
            return self.report(Event::Skipped { task: number, lease, held: false });
        }
        self.slots.update(lease, forget)?;
        if self.session.control.is_unwanted() {
            return self.report(Event::Skipped { task: number, lease, held: false });
        }
        let started = Instant::now();
        self.line().set_task(number);
        let work = self.unpack(indices, lease)?;
        let first = match &work {
            Work::Samples(indices) => indices.first().map_or(0, |&index| index as u64),
            Work::NextOf { .. } => self.position(&work),
        };
        self.line().progress(WorkerState::Fetching, first);
        fault::point(Point::WorkerFetch);
        let before = self.position(&work);
        let control = Arc::clone(&self.session.control);
        let watch = PageWatch::new(&control, self.session.worker, &known_bad);
        let outcome = self.fetch_and_send(epoch, number, lease, &work, &watch)?;
        // Also where there is no batch: from here on the worker is in no sample.
        if !matches!(outcome, Outcome::Done { .. }) {
            self.enter(WorkerState::Sending);
        }
        let position = self.position(&work);
        let mut bad = watch.bad.into_inner();
        bad.truncate(MOST_BAD_SAMPLES);
        BadSample::cut_to_frame(&mut bad);
        let event = match outcome {
            Outcome::Done { lease, encoded } => {
                fault::point(Point::WorkerSend);
                let samples = match &work {
                    Work::Samples(indices) => indices.len() as u64,
                    Work::NextOf { .. } => position.saturating_sub(before),
                };
                self.count(samples, started);
                Event::Done { task: number, lease, encoded, held: self.is_held(lease), position, bad }
            }
            Outcome::Failed { lease, failure } => {
                let failure = failure.cut_to_frame();
                let ended = match (&work, &self.fetch) {
                    (Work::NextOf { shard, .. }, Ok(fetch)) => fetch.is_broken(*shard),
                    _ => false,
                };
                Event::Failed { task: number, lease, failure, held: self.is_held(lease), position, ended }
            }
            Outcome::Unwanted { lease } => Event::Skipped { task: number, lease, held: self.is_held(lease) },
            Outcome::Exhausted { lease } => {
                Event::Exhausted { task: number, lease, held: self.is_held(lease) }
            }
            Outcome::LeftOut { lease } => {
                Event::LeftOut { task: number, lease, held: self.is_held(lease), position, bad }
            }
            Outcome::Unheard => return Ok(Flow::Break(())),
        };
        self.report(event)
    }

    /// Leaves a task that was withdrawn. What came with it about slots counts all the same.
    fn leave(&mut self, task: Task) -> anyhow::Result<Flow> {
        self.slots.update(task.lease, task.forget)?;
        self.report(Event::Withdrawn { task: task.number })
    }

    /// Begins another epoch.
    fn resume(&mut self, epoch: u64) -> anyhow::Result<Flow> {
        self.told = false;
        if let Ok(fetch) = &mut self.fetch {
            // Its iterators' destructors are user code.
            drop(catch_unwind(AssertUnwindSafe(|| fetch.rewind())));
        }
        self.report(Event::Resumed { epoch })
    }

    /// Items taken so far from the shard that a task is of, or where it is to be opened; 0 for indices.
    fn position(&self, work: &Work) -> u64 {
        let Work::NextOf { shard, place } = work else { return 0 };
        self.fetch.as_ref().map_or(0, |fetch| fetch.position(*shard)).max(place.position)
    }

    /// Loads a batch and encodes it into its slot. Nothing of the batch lives on when this returns, unless user code kept a
    /// handle on one of its tensors.
    fn fetch_and_send(
        &mut self,
        epoch: u64,
        task: u64,
        lease: Lease,
        work: &Work,
        watch: &PageWatch<'_>,
    ) -> anyhow::Result<Outcome> {
        let fetch = match &mut self.fetch {
            Ok(fetch) => fetch,
            // The batches of a shard are not counted beforehand: saying it once ends the shard.
            Err(_) if self.told && matches!(work, Work::NextOf { .. }) => {
                return Ok(Outcome::Exhausted { lease });
            }
            Err(failure) => {
                self.told = true;
                return Ok(Outcome::Failed { lease, failure: failure.clone() });
            }
        };
        let mut arena = Arena::in_slot(self.slots.lend(lease)?);
        let batch = match fetch.fetch(epoch, work, &mut arena, watch) {
            Ok(batch) => batch,
            Err(NoBatch::Exhausted) => return Ok(Outcome::Exhausted { lease }),
            Err(NoBatch::LeftOut) => return Ok(Outcome::LeftOut { lease }),
            Err(NoBatch::Unwanted) => return Ok(Outcome::Unwanted { lease }),
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
    /// task has: then the batch waits in memory of this process.
    fn send_in_larger_slot(
        &mut self,
        task: u64,
        lease: Lease,
        batch: Box<dyn Loaded>,
        needed: usize,
    ) -> anyhow::Result<Outcome> {
        if self.report(Event::NeedSlot { task, lease, needed: needed as u64 })?.is_break() {
            return Ok(Outcome::Unheard);
        }
        let failed = |failure| Ok(Outcome::Failed { lease, failure });
        let mut waiting = Waiting::Batch(batch);
        let larger = loop {
            match self.slots.wait_for_grant(task, &self.session.control)? {
                Grant::Lease(larger) => break larger,
                Grant::Refused(reason) => return failed(Failure::to_send(reason)),
                Grant::Unwanted => return Ok(Outcome::Unwanted { lease }),
                Grant::Vacate => {
                    waiting = match waiting.copy_out(needed) {
                        Ok(copied) => copied,
                        Err(failure) => return failed(failure),
                    };
                    let held = self.is_held(lease);
                    if self.report(Event::Vacated { task, lease, held })?.is_break() {
                        return Ok(Outcome::Unheard);
                    }
                }
            }
        };
        match waiting.encode(self.slots.lend(larger)?, needed) {
            Ok(encoded) => Ok(Outcome::Done { lease: larger, encoded }),
            Err(failure) => Ok(Outcome::Failed { lease: larger, failure }),
        }
    }

    /// Bytes that this process has in memory of its own, when they are more than it may have.
    fn oversize(&self) -> Option<u64> {
        self.session.memory_limit.filter(|&limit| self.resident > limit).map(|_| self.resident)
    }

    fn is_held(&self, lease: Lease) -> bool {
        self.slots.memory(lease.slot).is_some_and(|memory| memory.is_lent())
    }

    fn count(&mut self, samples: u64, started: Instant) {
        let busy = started.elapsed();
        self.batches += 1;
        // A system call: not for every one of thousands of small batches a second.
        if busy >= LONG_BATCH || self.batches.is_multiple_of(FAULTS_INTERVAL) {
            let faults = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.minor_page_faults());
            self.line().set_page_faults(u64::try_from(faults).unwrap_or(0));
            if self.session.memory_limit.is_some() {
                self.resident = own_memory().unwrap_or(0);
            }
        }
        self.line().count_batch(samples, busy);
    }

    fn unpack(&mut self, indices: Indices, lease: Lease) -> anyhow::Result<Work> {
        let list = match indices {
            Indices::Range { start, len } => (start..start.saturating_add(len)).collect(),
            Indices::List(list) => list,
            Indices::InSlot { len } => {
                let bytes = len.checked_mul(size_of::<u64>() as u64);
                let Some(bytes) = bytes else { bail!("{len} indices in a slot") };
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
                let place = ShardPlace { position, snapshot, ended: false };
                return Ok(Work::NextOf { shard: shard as usize, place });
            }
        };
        let narrow = list.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        narrow.map(Work::Samples).context("an index larger than memory")
    }

    /// The first bytes of a slot.
    fn read_slot(&mut self, lease: Lease, len: u64) -> anyhow::Result<Vec<u8>> {
        let len = usize::try_from(len).context("more bytes than memory has")?;
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

    /// The worker's line of the control page. Checks for a fork first, because user code may have run since
    /// the last access.
    fn line(&self) -> WorkerLine<'_> {
        end_if_forked();
        self.session.control.line_of(self.session.worker)
    }
}

/// A batch that waits for a larger slot.
enum Waiting {
    Batch(Box<dyn Loaded>),
    /// Encoded in memory of this process, as it will lie in the slot.
    Copied(Arc<SlotMemory>, Encoded),
}

impl Waiting {
    /// Copies the batch, which takes `needed` bytes, out of the slot that it lies in.
    fn copy_out(self, needed: usize) -> Result<Self, Failure> {
        let Self::Batch(batch) = &self else { return Ok(self) };
        let no_memory = |error: io::Error| Failure::to_send(format!("no memory to copy the batch: {error}"));
        let len = NonZeroUsize::new(needed).ok_or_else(|| no_memory(io::ErrorKind::InvalidInput.into()))?;
        let memory = SlotMemory::of_this_process(len).map_err(no_memory)?;
        let loan = memory.lend(()).expect("it is new");
        let encoded = encode_again(&**batch, &mut Arena::in_slot(loan), needed)?;
        Ok(Self::Copied(memory, encoded))
    }

    /// Puts the batch into a slot.
    fn encode(self, mut slot: Loan, needed: usize) -> Result<Encoded, Failure> {
        match self {
            Self::Batch(batch) => encode_again(&*batch, &mut Arena::in_slot(slot), needed),
            Self::Copied(memory, encoded) => {
                let not_copied = |error: ChunkError| Failure::to_send(format!("copying the batch: {error}"));
                let mut copy = memory.lend(()).expect("its arena is gone");
                let end = usize::try_from(encoded.start + encoded.len).expect("it lies in memory");
                let bytes = copy.take(0..end).map_err(not_copied)?;
                slot.put(0, bytes.as_bytes()).map_err(not_copied)?;
                Ok(encoded)
            }
        }
    }
}

/// Encodes a batch that needed `needed` bytes when it was encoded first.
fn encode_again(batch: &dyn Loaded, arena: &mut Arena, needed: usize) -> Result<Encoded, Failure> {
    encode(batch, arena).map_err(|error| match error {
        NotSent::Failed(failure) => failure,
        NotSent::TooLarge { needed: again } => Failure::to_send(format!(
            "the batch needed {needed} bytes when it was encoded first and {again} the second time"
        )),
    })
}

/// Encodes a batch; its `Serialize` is user code and may fail or panic.
fn encode(batch: &dyn Loaded, arena: &mut Arena) -> Result<Encoded, NotSent> {
    match catch_unwind(AssertUnwindSafe(|| batch.encode(arena))) {
        Ok(Ok(encoded)) => Ok(encoded),
        Ok(Err(EncodeError::TooLarge { needed })) => Err(NotSent::TooLarge { needed }),
        Ok(Err(error)) => Err(NotSent::Failed(Failure::to_send(error.to_string()))),
        Err(payload) => Err(NotSent::Failed(to_failure(&*payload, Stage::Send, None))),
    }
}

/// Writes a batch's progress to the control page, and gives up when the done flag is up.
struct PageWatch<'a> {
    control: &'a ControlPage,
    line: WorkerLine<'a>,
    /// Samples still to note without the time.
    untimed: Cell<u32>,
    /// How many at a time; `None` before the first sample, which is timed and says nothing about its own length.
    run: Cell<Option<u32>>,
    known_bad: &'a [u64],
    bad: RefCell<Vec<BadSample>>,
}

/// Samples are timed one by one as long as each takes a tick of the coarse clock (some milliseconds). While it stands still, 1, 2, 4 and
/// at last so many are noted without it: the clock is then not what a small sample costs, and the age of a slow one that comes after
/// fast ones is wrong by no more than those took.
const MOST_UNTIMED: u32 = 16;

impl<'a> PageWatch<'a> {
    fn new(control: &'a ControlPage, worker: usize, known_bad: &'a [u64]) -> Self {
        let (untimed, run, bad) = (Cell::new(0), Cell::new(None), RefCell::default());
        Self { control, line: control.line_of(worker), untimed, run, known_bad, bad }
    }
}

impl Watch for PageWatch<'_> {
    fn progress(&self, state: WorkerState, index: usize) -> bool {
        end_if_forked();
        if state == WorkerState::Collating {
            fault::point(Point::WorkerCollate);
        }
        match self.untimed.get() {
            0 => {
                let is_same_tick = self.line.progress(state, index as u64);
                let run = match self.run.get() {
                    Some(run) if is_same_tick => (2 * run).clamp(1, MOST_UNTIMED),
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
        !self.control.is_unwanted()
    }

    fn bad(&self, sample: BadSample) {
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
