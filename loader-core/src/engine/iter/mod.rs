//! The iterator over the batches of one epoch.

mod local;
mod team;
mod tuning;
mod workers;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use loader_ipc::{process, profile::ProfileArea};
use loader_pinning::Pinner;

use crate::{
    data::{
        collate::{Batch, fill::Fill},
        sample_digest::SampleDigest,
    },
    engine::{interrupt::Interrupt, pinning},
    error::{Error, bad_sample::BadSample},
    report::{
        batch_info::BatchInfo,
        epoch_report::{EpochReport, Stopwatch},
        figures::ResourceUse,
        load_times::LoadTimes,
        observers::Observers,
        stats::{IterStats, SharedStats},
        trace::IterTrace,
        tracing_events,
        warning::{Warn, Warning},
    },
    state::{EpochEnd, Origin, Position, ResumedFrom, Share, State},
};

pub(crate) use local::{BatchSource, LocalBatches, LocalShards, MapSource, ShardSource, StreamSource};
pub(crate) use team::{IdleTeam, Team};
pub(crate) use tuning::SharedTuner;
pub(crate) use workers::WorkerIter;

/// Iterates over the batches of one epoch, in order, or in order of arrival with `in_order(false)`. Returned
/// by [`DataLoader::iter`](crate::DataLoader::iter) and [`DataLoader::resume`](crate::DataLoader::resume).
///
/// An `Err` loses at most the batch that it belongs to. The iterator continues after it, unless
/// [`Error::ends_iteration`] returns true. After the end, [`next`](Iterator::next) always returns `None`.
///
/// With workers, `next` waits for the next batch, without limit if no `timeout` is set, but never for a
/// worker that has died. The iterator may move to another thread; since `next` takes `&mut self`, only one
/// thread at a time can call it.
///
/// Dropping the iterator ends its workers within a deadline, or keeps persistent workers for the next epoch.
/// Batches that you hold stay valid.
pub struct Iter<B> {
    inner: Inner<B>,
    stopwatch: Stopwatch,
    last: Option<BatchInfo>,
    origin: Origin,
    warn: Warn,
    /// Page-locks the memory of batches.
    pinner: Option<Pinner>,
    /// True once the loader has warned that the dataset or its sampler announced a wrong number of samples or
    /// batches.
    has_warned_of_length: bool,
    options: IterOptions,
    /// Number of times that `next` has returned a batch of the epoch, or the error of one, also before the
    /// position from which this iterator was resumed.
    steps: u64,
    /// True once `next` has returned [`Error::StreamTooShort`] or [`Error::NoShare`].
    was_too_short: bool,
    /// True once `next` has returned `None` at the end of the epoch. The user's position is then the beginning of the
    /// next epoch.
    has_ended: bool,
    /// Number of bad samples in the epoch before the position from which this iterator was resumed.
    bad_before: u64,
    /// Digest of the epoch before, if the state from which this iterator was resumed has it.
    digest_before: Option<SampleDigest>,
    /// What is known of how the epoch before ended.
    end_before: EpochEnd,
    /// The merged state from which the run was resumed, if it was.
    resumed_from: Option<ResumedFrom>,
    /// What came before the batch by which the epoch had more bad samples than allowed, which ends the iteration.
    before_too_many_bad_samples: Option<BeforeBatch>,
    /// Called once before `next` returns `SharedMemoryExhausted`: waits until the program may have made room.
    wait_for_room: Option<Box<dyn FnMut() + Send>>,
    /// Declared after `inner`, so it is dropped after `inner`, which collects its last spans when it is dropped.
    trace: Option<IterTrace>,
    stats: Arc<SharedStats>,
    /// What the loader's statistics say of this iterator, until the end of the epoch.
    own_stats: Arc<IterStats>,
    fill: FillOf<B>,
}

/// The part of a state that changes before the loader knows whether a batch has too many bad samples.
#[derive(Clone)]
struct BeforeBatch {
    position: Position,
    /// Number of bad samples in the epoch so far.
    bad_samples: u64,
}

/// Returns the number of tokens of a batch without and with padding, see [`Stack::fill`](crate::collate::Stack::fill).
pub(crate) type FillOf<B> = fn(&B) -> Option<Fill>;

/// The loader's options that main needs while it iterates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IterOptions {
    /// Maximum number of bad samples in the epoch.
    pub(crate) max_bad_samples: u64,
    /// True if the loader leaves bad samples out or replaces them.
    pub(crate) allows_bad_samples: bool,
    /// Number of batches after which the epoch ends; `None` for all.
    pub(crate) steps: Option<u64>,
    /// True if batches come with the hashes of their samples.
    pub(crate) digest: bool,
    /// Number of CPUs for the workers, or for main without workers.
    pub(crate) cpus: usize,
}

pub(crate) enum Inner<B> {
    Batches(LocalBatches<B>),
    Shards(LocalShards<B>),
    Workers(Box<WorkerIter<B>>),
}

/// What is known of a batch, and the batch or the error in its place. `Ok(None)` stands for a batch whose
/// samples were all left out.
pub(crate) type Step<B> = (Option<BatchInfo>, Result<Option<B>, Error>);

impl<B: Batch> Inner<B> {
    /// Returns the user's position in the epoch, also at its end.
    fn position(&self) -> Position {
        match self {
            Self::Batches(iter) => iter.position(),
            Self::Shards(iter) => iter.position(),
            Self::Workers(iter) => iter.position(),
        }
    }

    /// True if it is known that the epoch has no more batches, and that no part of it is left for a resumed run.
    fn is_over(&self) -> bool {
        match self {
            Self::Batches(iter) => iter.is_over(),
            Self::Shards(iter) => iter.is_over(),
            Self::Workers(iter) => iter.is_over(),
        }
    }

    /// True if an error has left a part of the epoch for a resumed run.
    fn has_rest(&self) -> bool {
        match self {
            Self::Batches(iter) => iter.has_rest(),
            Self::Shards(iter) => iter.has_rest(),
            Self::Workers(iter) => iter.has_rest(),
        }
    }

    /// Returns what the workers have used in this epoch; nothing without workers.
    fn resource_use(&self) -> ResourceUse {
        match self {
            Self::Batches(_) | Self::Shards(_) => ResourceUse::default(),
            Self::Workers(iter) => iter.resource_use(),
        }
    }

    /// Returns the number of batches that are ready, if the program has got `returned` batches of this epoch;
    /// `None` without workers.
    fn ready(&self, returned: u64) -> Option<u64> {
        match self {
            Self::Batches(_) | Self::Shards(_) => None,
            Self::Workers(iter) => iter.ready(returned),
        }
    }
}

impl<B: Batch> Iter<B> {
    pub(crate) fn new(
        inner: Inner<B>,
        epoch: u64,
        started: Instant,
        origin: Origin,
        warn: Warn,
        pinner: Option<Pinner>,
        options: IterOptions,
    ) -> Self {
        let stopwatch = Stopwatch::start_at(epoch, started, options.digest.then(SampleDigest::default));
        Self {
            inner,
            stopwatch,
            last: None,
            origin,
            warn,
            pinner,
            has_warned_of_length: false,
            options,
            steps: 0,
            was_too_short: false,
            has_ended: false,
            bad_before: 0,
            digest_before: None,
            end_before: EpochEnd::without_iterator(options.steps),
            resumed_from: None,
            before_too_many_bad_samples: None,
            wait_for_room: None,
            trace: None,
            stats: Arc::default(),
            own_stats: Arc::default(),
            fill: |_| None,
        }
    }

    /// Counts the tokens of the batches with `fill`.
    pub(crate) fn with_fill(self, fill: FillOf<B>) -> Self {
        Self { fill, ..self }
    }

    /// Adds the epoch to the loader's statistics and trace.
    pub(crate) fn observed(mut self, observers: &Observers) -> Self {
        let Observers { stats, tracer, .. } = observers;
        self.trace = match &self.inner {
            Inner::Workers(iter) => iter.trace(),
            _ => tracer.as_ref().map(|tracer| tracer.begin_pass(self.epoch())),
        }
        .map(|pass| pass.of_iterator(self.warn.clone()));
        self.stats = Arc::clone(stats);
        self.own_stats = stats.epoch_begins();
        tracing_events::epoch_began(self.epoch(), self.num_workers());
        if let Inner::Workers(iter) = &self.inner {
            iter.publish_to(stats, &self.own_stats);
        }
        self
    }

    /// Calls `check` each time `next` has waited for a batch for `every`. If it returns true, `next` returns
    /// [`Error::Interrupted`]; no batch is lost, and the next call continues the wait. The time between the two
    /// calls does not count towards [`timeout`](crate::Builder::timeout). Without workers `next` does not wait, and
    /// never calls `check`. A later call of this method replaces it.
    ///
    /// An interpreter uses it to look for signals, such as Ctrl-C.
    ///
    /// # Examples
    /// ```
    /// use std::{
    ///     sync::{Arc, atomic::{AtomicBool, Ordering}},
    ///     time::Duration,
    /// };
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let mut batches = DataLoader::builder(numbers).build()?.iter()?;
    /// let stop = Arc::new(AtomicBool::new(false)); // set by another thread
    /// let asked = Arc::clone(&stop);
    /// batches.interrupt_when(Duration::from_millis(50), move || asked.load(Ordering::Relaxed));
    /// # anyhow::Ok(())
    /// ```
    pub fn interrupt_when(&mut self, every: Duration, check: impl FnMut() -> bool + Send + 'static) {
        if let Inner::Workers(iter) = &mut self.inner {
            iter.interrupt_when(Interrupt::new(every, check));
        }
    }

    /// Where memory has no room for a batch, `next` calls `wait_for_room` and tries again once.
    pub(crate) fn wait_for_room_with(&mut self, wait_for_room: Box<dyn FnMut() + Send>) {
        self.wait_for_room = Some(wait_for_room);
    }

    /// Takes the first batch from the sampler now. Without this call and without workers, the first call of `next`
    /// takes it. A host calls this if its samplers draw from generators that the program changes.
    #[doc(hidden)]
    pub fn draw_first(&mut self) {
        if let Inner::Batches(iter) = &mut self.inner {
            iter.draw_first();
        }
    }

    /// Notes the merged state from which the run was resumed.
    pub(crate) fn with_resumed_from(self, resumed_from: Option<ResumedFrom>) -> Self {
        Self { resumed_from, ..self }
    }

    /// Takes over what `state`, from which this iterator was resumed, knows of the epoch.
    pub(crate) fn continue_from(&mut self, state: &State) {
        self.draw_first();
        self.resumed_from = state.resumed_from();
        self.digest_before = state.digest_before();
        self.end_before = state.end_before().clone();
        self.bad_before = state.bad_samples();
        self.steps = state.steps();
        self.stopwatch.continue_digest(state.digest());
    }

    /// Returns your position in the epoch: after the batch that `next` returned last, however many batches the workers
    /// have loaded ahead. The state stays in the epoch until `next` has returned `None`, also after the last batch. It
    /// is then the start of the next epoch, unless an error has ended a shard before its end (see
    /// [`EndsShard`](crate::EndsShard)): the state then stays in the epoch, and a run that resumes reads the rest of
    /// the shard. [`DataLoader::resume`](crate::DataLoader::resume) continues from the state, in this process or in
    /// another one, with any number of workers.
    ///
    /// This call only copies the state. The state is exact; a batch that failed counts as returned, unless its error
    /// ends the iterator, or the sampler has panicked: a resumed epoch asks the sampler again. For the cost of resuming
    /// an iterable dataset, see [`SnapshotDataset`](crate::SnapshotDataset).
    pub fn state(&self) -> State {
        let state = if self.has_ended {
            let end_before = match (self.options.steps, self.inner.position()) {
                (Some(_), Position::Shards(shards)) => EpochEnd::after_steps(self.steps, shards),
                _ => EpochEnd::default(),
            };
            State::start(&self.origin, self.epoch().saturating_add(1))
                .with_digest_before(self.stopwatch.digest())
                .with_end_before(end_before)
        } else {
            let reached = self.before_too_many_bad_samples.clone();
            let BeforeBatch { position, bad_samples } = reached.unwrap_or_else(|| self.before_batch());
            // No merge needs it after the first batch.
            let end_before = if self.steps == 0 { self.end_before.clone() } else { EpochEnd::default() };
            State::new(&self.origin, self.epoch(), bad_samples, self.stopwatch.digest(), position)
                .with_steps(self.steps)
                .with_digest_before(self.digest_before)
                .with_end_before(end_before)
        };
        state.with_resumed_from(self.resumed_from)
    }

    /// Returns the number of the epoch that is being loaded, from 0.
    pub fn epoch(&self) -> u64 {
        self.stopwatch.epoch()
    }

    /// Returns what is known of the batch that `next` returned last, or whose error it returned. Returns
    /// `None` before the first batch, and after an error that belongs to no batch.
    pub fn last_batch(&self) -> Option<&BatchInfo> {
        self.last.as_ref()
    }

    /// Returns the number of the first batch of a map-style dataset that `next` has not returned, nor its error.
    /// With `in_order(false)`, later ones may have been returned. `None` for an iterable dataset, and once the end of
    /// the epoch is known.
    pub fn first_unreturned(&self) -> Option<u64> {
        match self.inner.position() {
            Position::Batches(position) if !self.inner.is_over() => Some(position.next),
            _ => None,
        }
    }

    /// Returns the process ids of the workers, by number of the worker; empty without workers. A worker that
    /// dies and is replaced gets another process id; one that was removed keeps the last one. Do not signal a
    /// process by such an id, which the system may have given to another process.
    pub fn worker_pids(&self) -> Vec<u32> {
        match &self.inner {
            Inner::Batches(_) | Inner::Shards(_) => Vec::new(),
            Inner::Workers(iter) => iter.pids(),
        }
    }

    /// Returns the number of workers that load batches, including those that are being started; 0 without
    /// workers, and after the end of the epoch.
    pub fn num_workers(&self) -> usize {
        match &self.inner {
            Inner::Batches(_) | Inner::Shards(_) => 0,
            Inner::Workers(iter) => iter.workers(),
        }
    }

    /// Estimates how many workers the memory has room for: the present ones, and others as large as the largest
    /// of them in half of the memory that is available, divided by the number of the launcher's processes on this
    /// machine. Returns `None` without workers, and after the end of the
    /// epoch.
    pub fn affordable_workers(&self) -> Option<usize> {
        match &self.inner {
            Inner::Batches(_) | Inner::Shards(_) => None,
            Inner::Workers(iter) => iter.affordable_workers(),
        }
    }

    /// Changes the number of workers while the epoch is loaded. The number is from 1 to 62, or to the
    /// loader's `num_workers` if that is larger. The batches and their order stay the same. With
    /// `in_order(false)`, the batches stay the same, and their order may change.
    ///
    /// A worker that is no longer used finishes the batches that it has begun. Its process stays for ten
    /// seconds, in case it is used again, and then ends. A worker that is added is started in the background,
    /// and gets tasks once it has opened the dataset. If that fails, the loader warns
    /// ([`Warning::WorkerNotAdded`]) and continues with the other workers. The shards of an iterable
    /// dataset are dealt out again; a shard that changes its worker is opened again at its position, so
    /// [`SnapshotDataset`](crate::SnapshotDataset) keeps this cheap. More workers than shards are idle.
    ///
    /// Persistent workers keep the number for the next epochs. If the loader must end them and start others,
    /// it starts `num_workers` workers again. [`WorkerInfo::num_workers`](crate::WorkerInfo::num_workers)
    /// always returns the loader's `num_workers`; an added worker may have a larger `id`. After the end of
    /// the epoch this call has no effect.
    ///
    /// If the loader [finds](crate::AutoWorkers) the number of workers, it keeps the number that this call
    /// sets, also in the next epochs. `WorkerInfo::num_workers` then returns the maximum of `AutoWorkers`.
    ///
    /// # Errors
    /// - [`Error::InvalidOption`]: the iterator has no workers (`num_workers(0)`), or `num_workers` is 0 or
    ///   too large.
    /// - [`Error::System`]: a task cannot be sent, which ends the iteration, or this is a forked process.
    pub fn set_num_workers(&mut self, num_workers: usize) -> Result<(), Error> {
        match &mut self.inner {
            Inner::Batches(_) | Inner::Shards(_) => {
                let problem = "this iterator loads without workers; build the loader with `num_workers`";
                Err(Error::invalid_option("num_workers", problem))
            }
            Inner::Workers(iter) => iter.set_workers(num_workers),
        }
    }

    /// Returns the figures of the epoch so far: batches, samples, time spent waiting, and whether the loader
    /// or the training step is the bottleneck.
    pub fn report(&self) -> EpochReport {
        let mut report = self.stopwatch.report(self.inner.resource_use());
        report.cpus = self.options.cpus;
        let of_main = |profile: ProfileArea<'_>| {
            LoadTimes::new(&[profile.read()], profile.slowest(self.stopwatch.epoch()))
        };
        match &self.inner {
            Inner::Batches(iter) => report.times = of_main(iter.profile()),
            Inner::Shards(iter) => report.times = of_main(iter.profile()),
            Inner::Workers(iter) => {
                (report.times, report.workers) = iter.measured();
                report.main_decode = iter.main_decode();
                report.num_workers = iter.target_workers();
                report.restarts = iter.restarts();
                report.tuning = iter.tuning_decisions();
                report.has_tried_more_workers = iter.has_tried_more_workers();
                report.shared_memory_bytes = iter.shared_memory_bytes();
            }
        }
        report
    }
}

impl<B: Batch> Iterator for Iter<B> {
    type Item = Result<B, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut asked = Instant::now();
        self.stats.next_begins(asked);
        let step = self.next_with_samples(&mut asked);
        pinning::warn_of_failure(self.pinner.as_ref(), &self.warn);
        self.check_batch_count();
        let Some((info, batch)) = step.or_else(|| self.too_short().map(|error| (None, Err(error)))) else {
            self.stats.next_ends(asked, Instant::now(), None);
            self.own_stats = Arc::default();
            if self.stopwatch.ended(asked) {
                self.has_ended = self.before_too_many_bad_samples.is_none()
                    && (self.has_all_steps() || self.inner.is_over());
                self.check_rest();
                tracing_events::epoch_ended(|| self.report());
            }
            if let Some(trace) = &mut self.trace {
                trace.finish();
            }
            return None;
        };
        // A batch that a resumed run reads again counts then.
        self.steps += u64::from(info.as_ref().is_some_and(|info| !info.is_read_again));
        let loaded = info.as_ref().filter(|_| batch.is_ok());
        let now = self.stopwatch.waited(asked, loaded, || self.inner.resource_use());
        self.stats.next_ends(asked, now, Some(loaded));
        self.trace_step(asked, now, info.as_ref(), batch.as_ref().err());
        if self.stopwatch.is_count_due(now)
            && let Inner::Workers(iter) = &self.inner
            && let Some(ready) = iter.ready(self.stopwatch.batches())
        {
            self.stopwatch.note_ready(now, ready);
            self.own_stats.set_ready(ready, iter.shared_memory_bytes());
            iter.publish_to(&self.stats, &self.own_stats);
        }
        if info.as_ref().is_some_and(|info| info.shard.is_some()) {
            self.check_length();
        }
        self.last = info;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.before_too_many_bad_samples.is_some() {
            return (0, Some(0));
        }
        let (lower, upper) = match &self.inner {
            Inner::Batches(iter) => iter.size_hint(),
            Inner::Shards(_) => (0, None),
            Inner::Workers(iter) => iter.size_hint(),
        };
        let Some(steps) = self.options.steps else { return (lower, upper) };
        // One more for the error of a stream that is too short.
        let left = usize::try_from(steps.saturating_sub(self.steps)).unwrap_or(usize::MAX);
        (lower.min(left), Some(upper.map_or(left, |upper| upper.saturating_add(1).min(left))))
    }
}

impl<B: Batch> Iter<B> {
    fn step(&mut self) -> Option<Step<B>> {
        let has_ended = self.before_too_many_bad_samples.is_some() || self.has_all_steps();
        match &mut self.inner {
            // `WorkerIter` ends by itself, because it must wait for its workers.
            Inner::Workers(iter) => {
                if has_ended {
                    iter.finish();
                }
                iter.step()
            }
            _ if has_ended => None,
            Inner::Batches(iter) => iter.step(),
            Inner::Shards(iter) => iter.step(),
        }
    }

    fn before_batch(&self) -> BeforeBatch {
        let bad_samples = self.bad_before.saturating_add(self.stopwatch.bad_samples());
        BeforeBatch { position: self.inner.position(), bad_samples }
    }

    /// Returns the next batch that has samples, or its error. Counts the bad samples on the way. Sets `asked` again
    /// after a wait for memory that the program holds.
    fn next_with_samples(&mut self, asked: &mut Instant) -> Option<(Option<BatchInfo>, Result<B, Error>)> {
        let mut may_wait_for_room = true;
        loop {
            let before = self.options.allows_bad_samples.then(|| self.before_batch());
            let (info, batch) = tracing_events::in_next(self.stopwatch.epoch(), || self.step())?;
            let bad = info.as_ref().map_or(&[][..], |info| &info.bad_samples);
            if !bad.is_empty()
                && let Err(error) = self.count_bad_samples(bad)
            {
                self.before_too_many_bad_samples = before.or_else(|| Some(self.before_batch()));
                return Some((None, Err(error)));
            }
            match batch {
                Ok(None) => {}
                Err(Error::SharedMemoryExhausted { .. })
                    if may_wait_for_room && self.wait_for_room.is_some() =>
                {
                    may_wait_for_room = false;
                    // The program is the bottleneck in this wait, not the loader.
                    if let Some(wait_for_room) = &mut self.wait_for_room {
                        wait_for_room();
                    }
                    *asked = Instant::now();
                    self.stats.next_begins(*asked);
                }
                Ok(Some(batch)) => return Some((info, Ok(self.count_fill(batch)))),
                Err(error) => {
                    let shard = info.as_ref().and_then(|info| info.shard);
                    return Some((info, Err(error.in_shard(shard))));
                }
            }
        }
    }

    /// Adds the fill of `batch` to the report and the loader's statistics, and returns `batch`.
    fn count_fill(&mut self, batch: B) -> B {
        if let Some(fill) = (self.fill)(&batch) {
            self.stopwatch.note_fill(fill);
            self.stats.add_fill(fill);
        }
        batch
    }

    /// True if `next` has returned as many batches as the option `steps_per_epoch` says.
    fn has_all_steps(&self) -> bool {
        self.options.steps.is_some_and(|steps| self.steps >= steps)
    }

    /// Returns the error of a stream that has ended before `steps_per_epoch` batches, or of which this rank has none,
    /// once.
    fn too_short(&mut self) -> Option<Error> {
        let (given, epoch, Share { rank, world_size, .. }) = (self.steps, self.epoch(), self.origin.share);
        let error = match self.options.steps {
            Some(steps) if given < steps => Error::StreamTooShort { steps, given },
            // In a worker, the ranks may be the workers of a loader, which need not have equally many batches.
            None if given == 0 && world_size > 1 && self.origin.is_stream() && !process::is_worker() => {
                Error::NoShare { epoch, rank, world_size }
            }
            _ => return None,
        };
        // Another error may have ended the iteration, or a shard.
        let is_first = self.inner.is_over() && !std::mem::replace(&mut self.was_too_short, true);
        is_first.then_some(error)
    }

    /// Adds the call of `next` from `asked` to `now` to the trace. It returns a batch, or this error.
    fn trace_step(&mut self, asked: Instant, now: Instant, info: Option<&BatchInfo>, error: Option<&Error>) {
        let Some(trace) = &mut self.trace else { return };
        let ready = self.inner.ready(self.stopwatch.batches());
        let batch = info.map(|info| {
            let task = match &self.inner {
                Inner::Workers(iter) => iter.last_task(),
                _ => None,
            };
            (info.number, task.unwrap_or(info.number))
        });
        trace.returned(asked, now, batch, ready);
        let fatal = error.filter(|error| error.ends_iteration());
        let is_failure = trace.has_new_deaths() || fatal.is_some();
        if !is_failure && !trace.is_continuous() {
            return;
        }
        match &mut self.inner {
            Inner::Batches(iter) => trace.collect(iter.profile()),
            Inner::Shards(iter) => trace.collect(iter.profile()),
            Inner::Workers(iter) => iter.collect_spans(),
        }
        if is_failure {
            trace.failed(fatal);
        }
    }

    /// Warns once if a batch sampler yields another number of batches than its `len` announced.
    fn check_batch_count(&mut self) {
        let miscount = match &self.inner {
            Inner::Batches(iter) => iter.miscount(),
            Inner::Shards(_) => None,
            Inner::Workers(iter) => iter.miscount(),
        };
        if let Some((announced, given)) = miscount
            && !std::mem::replace(&mut self.has_warned_of_length, true)
        {
            let epoch = self.stopwatch.epoch();
            self.warn.warn(&Warning::WrongBatchCount { epoch, announced, given });
        }
    }

    /// Warns if the epoch has ended before all of its data was read.
    fn check_rest(&self) {
        if self.inner.has_rest() && !self.has_all_steps() {
            self.warn.warn(&Warning::EpochNotRead { epoch: self.stopwatch.epoch() });
        }
    }

    /// Warns of each bad sample of a batch.
    ///
    /// # Errors
    /// If the epoch now has more bad samples than allowed. The epoch is then ended.
    fn count_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), Error> {
        for sample in samples {
            self.warn.warn(&Warning::BadSample(sample.clone()));
        }
        let allowed = self.options.max_bad_samples.saturating_sub(self.bad_before);
        let Some(sample) = self.stopwatch.note_bad(samples, allowed) else { return Ok(()) };
        let error = Error::TooManyBadSamples {
            max_bad_samples: self.options.max_bad_samples,
            sample: Box::new(sample.clone()),
        };
        if let Inner::Workers(iter) = &mut self.inner {
            iter.end();
        }
        Err(error)
    }

    /// Warns once if an iterable dataset has more samples than it announced.
    fn check_length(&mut self) {
        let Some(announced) = self.origin.samples else { return };
        let loaded = self.stopwatch.samples();
        if loaded > announced as u64 && !std::mem::replace(&mut self.has_warned_of_length, true) {
            self.warn.warn(&Warning::LongerThanLen { announced, loaded });
        }
    }
}

impl<B: Batch> std::iter::FusedIterator for Iter<B> {}

impl<B> fmt::Debug for Iter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("epoch", &self.stopwatch.epoch())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
