//! Measures the batch that a thread loads.

use std::{cell::Cell, time::Duration};

use super::{
    BATCH_TIMES, BATCHES, Histogram, MIN_SAMPLE_NANOS, PHASES, PROFILED_BATCHES, PROFILED_INTERVAL,
    ProfileArea, SAMPLE_MEAN, SAMPLE_TIMES, SLOWEST, SPANS, SlowSample, Span, SpanKind, now, slowest, spans,
};
use crate::{atomic::Ordering, sys::end_if_forked};

pub(super) const PHASE_COUNT: usize = 6;

/// A part of the work on a batch. The report of an epoch has the time of each phase.
///
/// A dataset marks reading, decoding and transforming with [`measure`](Self::measure). Time that it does not mark
/// counts as [`Fetch`](Self::Fetch).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Time in the dataset that it marks as no other phase.
    Fetch,
    /// Time in which the dataset reads from a file or a server.
    Read,
    /// Time in which the dataset decodes what it has read.
    Decode,
    /// Time in which the dataset transforms what it has decoded. Functions given to `map` count as this.
    Transform,
    /// Time in which samples are stacked into a batch.
    Collate,
    /// Time in which the worker encodes the batch for the main process.
    Encode,
}

impl Phase {
    /// All phases, in the order of the work.
    pub const ALL: [Self; PHASE_COUNT] =
        [Self::Fetch, Self::Read, Self::Decode, Self::Transform, Self::Collate, Self::Encode];

    /// Returns the name: `"fetch"`, `"read"`, `"decode"`, `"transform"`, `"collate"` or `"encode"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::Collate => "collate",
            Self::Encode => "encode",
        }
    }

    /// Calls `work` and returns its result. The time of the call counts as this phase. If `work` calls `measure`
    /// again, the time of the inner call counts only for the inner phase. Only calls `work` on a thread other than
    /// the one that loads the batch.
    ///
    /// In a profiled batch this reads the clock twice; in others it reads one flag of the thread. A worker
    /// profiles a batch if the samples of its previous batch took at least 50 µs on average, and otherwise
    /// one of 512 batches.
    ///
    /// # Examples
    /// ```
    /// # use loader_ipc::profile::Phase;
    /// fn load(path: &str) -> std::io::Result<Vec<u32>> {
    ///     let text = Phase::Read.measure(|| std::fs::read_to_string(path))?;
    ///     Ok(Phase::Decode.measure(|| text.split_whitespace().map(|word| word.len() as u32).collect()))
    /// }
    /// assert!(!load("Cargo.toml")?.is_empty());
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub fn measure<R>(self, work: impl FnOnce() -> R) -> R {
        /// Enters the outer phase again, even if `work` panics.
        struct Leave(Option<Phase>);

        impl Drop for Leave {
            fn drop(&mut self) {
                if let Some(outer) = self.0 {
                    METER.with(|meter| meter.enter(outer));
                }
            }
        }

        let _leave = Leave(METER.with(|meter| meter.is_on.get().then(|| meter.enter(self))));
        work()
    }
}

/// Adds up the time of each phase of the batch that this thread loads.
struct Meter {
    is_on: Cell<bool>,
    phase: Cell<Phase>,
    /// When the phase began.
    since: Cell<u64>,
    nanos: [Cell<u64>; PHASE_COUNT],
}

thread_local! {
    static METER: Meter = const {
        Meter {
            is_on: Cell::new(false),
            phase: Cell::new(Phase::Fetch),
            since: Cell::new(0),
            nanos: [const { Cell::new(0) }; PHASE_COUNT],
        }
    };
}

impl Meter {
    fn start(&self, now: u64) {
        self.is_on.set(true);
        self.phase.set(Phase::Fetch);
        self.since.set(now);
        self.nanos.iter().for_each(|nanos| nanos.set(0));
    }

    /// Enters a phase now. Returns the phase before.
    fn enter(&self, phase: Phase) -> Phase {
        self.enter_at(phase, now())
    }

    fn enter_at(&self, phase: Phase, now: u64) -> Phase {
        let before = self.phase.replace(phase);
        let nanos = &self.nanos[before as usize];
        nanos.set(nanos.get() + now.saturating_sub(self.since.replace(now)));
        before
    }
}

/// Measures one batch, which this thread loads. If it is dropped before [`finish`](Self::finish), the batch does
/// not count.
#[derive(Debug)]
pub struct BatchTimer<'a> {
    area: ProfileArea<'a>,
    epoch: u64,
    batch: u64,
    shard: Option<u32>,
    started: u64,
    is_profiled: bool,
    /// When the current sample, or the last step of the batch, began.
    step: Cell<u64>,
    is_encoding: Cell<bool>,
}

impl<'a> ProfileArea<'a> {
    /// Begins a batch.
    pub fn start_batch(self, epoch: u64, batch: u64, shard: Option<u32>) -> BatchTimer<'a> {
        let started = now();
        let is_profiled = self.load(SAMPLE_MEAN) >= MIN_SAMPLE_NANOS
            || self.load(BATCHES).is_multiple_of(PROFILED_INTERVAL);
        if is_profiled {
            METER.with(|meter| meter.start(started));
        }
        let (step, is_encoding) = (Cell::new(started), Cell::new(false));
        BatchTimer { area: self, epoch, batch, shard, started, is_profiled, step, is_encoding }
    }

    fn push(self, span: Span) {
        spans::push(&self.words[SPANS..], span);
    }
}

impl BatchTimer<'_> {
    /// Returns the timer if the batch is profiled. Call the methods that note a step only on a timer
    /// that this method returned.
    pub fn if_profiled(&self) -> Option<&Self> {
        self.is_profiled.then_some(self)
    }

    /// Notes that the dataset is asked for a sample now.
    pub fn start_sample(&self) {
        self.enter(Phase::Fetch);
    }

    /// Notes that all samples are there, and that collation finishes the batch.
    pub fn start_collating(&self) {
        self.enter(Phase::Collate);
    }

    /// Notes that collation is done, and that the batch is now encoded.
    pub fn start_encoding(&self) {
        self.is_encoding.set(true);
        self.enter(Phase::Encode);
    }

    /// Calls `wait`, whose time counts as no phase.
    pub fn waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        let result = wait();
        METER.with(|meter| meter.since.set(now()));
        result
    }

    fn enter(&self, phase: Phase) {
        self.step.set(now());
        METER.with(|meter| meter.enter_at(phase, self.step.get()));
    }

    /// Notes that the dataset has returned sample `index`, or one of several samples (`None`), and that collation
    /// goes on.
    pub fn sample_returned(&self, index: Option<u64>) {
        // User code has just run, and may have forked. A forked child has no area.
        end_if_forked();
        let now = now();
        METER.with(|meter| meter.enter_at(Phase::Collate, now));
        let started = self.step.replace(now);
        let Some(index) = index else { return };
        let nanos = now.saturating_sub(started);
        Histogram::count(&self.area.words[SAMPLE_TIMES..SLOWEST], nanos);
        let Self { epoch, batch, shard, .. } = *self;
        let time = Duration::from_nanos(nanos);
        let words = &self.area.words[SLOWEST..SLOWEST + slowest::WORDS];
        slowest::note(words, SlowSample { epoch, batch, shard, index, time });
        self.area.push(Span { kind: SpanKind::Sample, start: started, time, task: batch, detail: index });
    }

    /// Records the batch, which has `samples` samples. Returns the time since its start.
    pub fn finish(self, samples: u64) -> Duration {
        // Encoding runs user code too.
        end_if_forked();
        let Self { area, batch, started, is_profiled, .. } = self;
        let now = now();
        let nanos = now.saturating_sub(started);
        let time = Duration::from_nanos(nanos);
        if is_profiled {
            METER.with(|meter| {
                meter.enter_at(Phase::Fetch, now);
                (0..PHASE_COUNT).for_each(|phase| area.add(PHASES + phase, meter.nanos[phase].get()));
            });
            area.add(PROFILED_BATCHES, 1);
        }
        if self.is_encoding.get() {
            let step = self.step.get();
            let time = Duration::from_nanos(now.saturating_sub(step));
            area.push(Span { kind: SpanKind::Encode, start: step, time, task: batch, detail: samples });
        }
        area.add(BATCHES, 1);
        // Relaxed: only this process reads it.
        area.words[SAMPLE_MEAN].store(nanos / samples.max(1), Ordering::Relaxed);
        Histogram::count(&area.words[BATCH_TIMES..SAMPLE_TIMES], nanos);
        area.push(Span { kind: SpanKind::Batch, start: started, time, task: batch, detail: samples });
        time
    }
}

impl Drop for BatchTimer<'_> {
    fn drop(&mut self) {
        if self.is_profiled {
            METER.with(|meter| meter.is_on.set(false));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::catch_unwind, thread::sleep};

    use super::{super::OwnProfile, *};

    const TICK: Duration = Duration::from_millis(2);

    /// Loads a batch of two samples that read, decode and transform.
    fn load(own: &OwnProfile, batch: u64) -> Duration {
        let timer = own.area().start_batch(3, batch, None);
        for index in [7, 8] {
            timer.if_profiled().inspect(|timer| timer.start_sample());
            Phase::Transform.measure(|| {
                sleep(TICK);
                Phase::Decode.measure(|| Phase::Read.measure(|| sleep(TICK)));
                sleep(TICK);
            });
            timer.if_profiled().inspect(|timer| timer.sample_returned(Some(index)));
        }
        sleep(TICK);
        timer.if_profiled().inspect(|timer| timer.start_encoding());
        timer.finish(2)
    }

    #[test]
    fn the_phases_of_a_batch_add_up_to_its_time() {
        let own = OwnProfile::default();
        let time = load(&own, 5);
        let profile = own.area().read();
        assert_eq!(
            (profile.profiled_batches, profile.batch_times.len(), profile.sample_times.len()),
            (1, 1, 2)
        );
        assert_eq!(profile.phases.iter().sum::<Duration>(), time);
        let of = |phase: Phase| profile.phases[phase as usize];
        assert!(
            of(Phase::Transform) >= 4 * TICK && of(Phase::Read) >= 2 * TICK && of(Phase::Collate) >= TICK
        );
        let slowest = own.area().slowest(3);
        assert_eq!(slowest.len(), 2);
        assert!(slowest.iter().all(|sample| sample.batch == 5 && sample.time >= 3 * TICK));
        let (spans, _) = own.area().spans(0);
        let kinds: Vec<_> = spans.iter().map(|span| (span.kind, span.detail)).collect();
        let expected =
            [(SpanKind::Sample, 7), (SpanKind::Sample, 8), (SpanKind::Encode, 2), (SpanKind::Batch, 2)];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn one_of_512_fast_batches_is_profiled() {
        let own = OwnProfile::default();
        let mut batches = 0;
        let mut empty = || {
            let timer = own.area().start_batch(0, batches, None);
            batches += 1;
            let is_profiled = timer.is_profiled;
            timer.finish(1_000_000);
            is_profiled
        };
        let timed = (0..2 * PROFILED_INTERVAL).filter(|_| empty()).count();
        assert_eq!(timed, 2);
        load(&own, batches);
        // The last batch was slow.
        let next = || own.area().start_batch(0, 0, None).is_profiled;
        assert!(next());
    }

    #[test]
    fn after_a_panic_and_outside_of_batches_nothing_is_measured() {
        let own = OwnProfile::default();
        let caught = catch_unwind(|| {
            let timer = own.area().start_batch(0, 0, None);
            assert!(timer.is_profiled);
            Phase::Decode.measure(|| panic!("the user's code fails"))
        });
        assert!(caught.is_err());
        assert!(METER.with(|meter| !meter.is_on.get()));
        Phase::Decode.measure(|| sleep(TICK));
        assert_eq!(own.area().read(), super::super::Profile::default());
    }
}
