//! Statistics of an epoch: what it loaded, how long it took, and which side waited.

use std::{
    fmt,
    time::{Duration, Instant},
};

use loader_ipc::{control::WorkerSnapshot, process::CpuUse};
use serde::Serialize;

use crate::{
    data::{collate::fill::Fill, sample_digest::SampleDigest},
    error::bad_sample::BadSample,
    report::{
        advice::Advice,
        batch_info::BatchInfo,
        figures::{LoadFigures, ResourceUse, main_cpu},
        load_times::{LoadTimes, PhaseTimes, as_seconds},
        ready_batches::ReadyBatches,
        tuning_decision::TuningDecision,
    },
};

/// The display of a report names phases with at least this share of the loading time.
const MIN_SHOWN_SHARE: f64 = 0.05;

/// Statistics of an epoch so far, from [`Iter::report`](crate::Iter::report). Its `Display` is one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EpochReport {
    /// Number of the epoch.
    pub epoch: u64,
    /// Number of batches returned, without errors.
    pub batches: u64,
    /// Number of samples in these batches.
    pub samples: u64,
    /// Number of these samples that repeat those of another rank, so that all ranks load equally many.
    pub repeated: u64,
    /// Number of bytes of shared memory that these batches took; 0 without workers.
    pub bytes: u64,
    /// Digest of these samples except the repeated ones; `None` without the option
    /// [`digest`](crate::Builder::digest). If the iterator was resumed, the digest in its
    /// [`State`](crate::State) is included, so this is the digest of the epoch so far.
    pub digest: Option<SampleDigest>,
    /// Number of tokens of these batches without and with padding. Batches of packed windows, of
    /// [`Ragged`](crate::collate::Ragged) samples and of other samples whose [`Stack`](crate::collate::Stack)
    /// implements `fill` are counted. `None` if no batch is counted, as when a function collates the batches.
    pub fill: Option<Fill>,
    /// Number of errors returned.
    pub errors: u64,
    /// Number of times that a worker ended and another process took its place.
    pub restarts: u64,
    /// Samples that were skipped or replaced, in the order of their batches.
    pub bad_samples: Vec<BadSample>,
    /// Time from the call of `iter()` until now, or until the end of the epoch.
    pub elapsed: Duration,
    /// Time from the call of `iter()` until the first batch or error was returned; `None` before that.
    pub first_batch: Option<Duration>,
    /// Time that the program has waited in `next`, without the wait for the first batch.
    pub waiting: Duration,
    /// Processor time of the program's process from the call of `iter()`, with its own step.
    pub main_cpu: Duration,
    /// Counters of each worker, by its number; empty without workers.
    pub workers: Vec<WorkerReport>,
    /// Number of workers that load batches now, or did at the end of the epoch.
    pub num_workers: usize,
    /// Number of CPUs for the workers, or for the program without workers: by affinity, the control group's
    /// quota, and the number of the launcher's processes on this machine.
    pub cpus: usize,
    /// Bytes of shared memory that the loader has allocated for batches.
    pub shared_memory_bytes: u64,
    /// Times of the phases, batches and samples; without values before the first batch.
    pub times: LoadTimes,
    /// Batches that were ready, over time.
    pub ready: ReadyBatches,
    /// Mean time that main takes to decode a batch from its slot, measured for one of 16 batches; `None` without
    /// workers, and before the first batch.
    pub main_decode: Option<Duration>,
    /// What was measured since the first batch; `None` before the third batch.
    pub figures: Option<LoadFigures>,
    /// Decisions about the number of workers and the prefetch factor in this epoch, if the loader
    /// [finds](crate::AutoWorkers) them.
    pub tuning: Vec<TuningDecision>,
    /// True if the tuner has tried more workers without a gain.
    pub(crate) has_tried_more_workers: bool,
}

/// Counters of a worker in this epoch. Serialised, all times are numbers of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Number of batches loaded.
    pub batches: u64,
    /// Number of samples loaded.
    pub samples: u64,
    /// Time spent loading batches.
    #[serde(rename = "busy_seconds", serialize_with = "as_seconds")]
    pub busy: Duration,
    /// Processor time of the worker, with its start if it was in this epoch.
    #[serde(rename = "cpu_seconds", serialize_with = "as_seconds")]
    pub cpu: Duration,
    /// Time for which threads of the worker, all of them together, were ready to run while other threads had the CPUs,
    /// with the start of the worker if it was in this epoch. It misses what a thread waited between the last
    /// measurement and its end. Zero if the kernel does not measure it.
    #[serde(rename = "cpu_wait_seconds", serialize_with = "as_seconds")]
    pub cpu_wait: Duration,
    /// Number of page faults served from memory (`ru_minflt`). Includes the start of the worker, if it was in
    /// this epoch.
    pub page_faults: u64,
    /// Time of each phase, in the profiled batches; see [`LoadTimes`].
    pub phases: PhaseTimes,
}

impl WorkerReport {
    pub(crate) fn new(snapshot: &WorkerSnapshot, cpu_use: CpuUse) -> Self {
        let WorkerSnapshot { batches, samples, busy, page_faults, .. } = *snapshot;
        let CpuUse { time: cpu, wait: cpu_wait } = cpu_use;
        Self { batches, samples, busy, cpu, cpu_wait, page_faults, phases: PhaseTimes::default() }
    }

    /// Returns the difference to an earlier report of the worker.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(before.batches),
            samples: self.samples.saturating_sub(before.samples),
            busy: self.busy.saturating_sub(before.busy),
            cpu: self.cpu.saturating_sub(before.cpu),
            cpu_wait: self.cpu_wait.saturating_sub(before.cpu_wait),
            page_faults: self.page_faults.saturating_sub(before.page_faults),
            phases: self.phases,
        }
    }
}

/// Whether the loader or the training step is the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// There are too few batches to tell.
    Unknown,
    /// The program waits for batches. More workers or less work per sample make it faster.
    LoaderBound,
    /// Batches wait for the program. A faster loader would not help.
    StepBound,
}

impl EpochReport {
    /// Returns the number of samples per second since the call of `iter()`.
    pub fn samples_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 }
    }

    /// Returns what would make loading faster; `None` before the third batch.
    pub fn advice(&self) -> Option<Advice> {
        Some(Advice::new(&self.figures?, self.num_workers, self.cpus, self.has_tried_more_workers))
    }

    /// Tells which side is the bottleneck: the loader, if the program has waited for more than 5 % of the
    /// time after the first batch. Needs at least 3 batches.
    pub fn verdict(&self) -> Verdict {
        match self.advice() {
            None => Verdict::Unknown,
            Some(Advice::KeepsUp { .. }) => Verdict::StepBound,
            Some(_) => Verdict::LoaderBound,
        }
    }
}

impl fmt::Display for EpochReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batches, samples, elapsed, waiting, .. } = self;
        let rate = self.samples_per_second();
        let (batches, samples) =
            (counted(*batches, "batch", "batches"), counted(*samples, "sample", "samples"));
        let fill = self.fill.map(|fill| format!(", {fill},")).unwrap_or_default();
        write!(f, "epoch {epoch}: {batches}, {samples}{fill} in {elapsed:.2?} ({rate:.0} samples/s), ")?;
        if waiting.is_zero() {
            f.write_str("no time")?;
        } else {
            write!(f, "{waiting:.2?}")?;
        }
        match self.advice() {
            Some(advice @ Advice::KeepsUp { .. }) => write!(f, " waiting for batches: {advice}"),
            Some(advice) => {
                write!(f, " waiting for batches: {advice}")?;
                self.fmt_phases(f)
            }
            None => f.write_str(" waiting for batches: too few batches to tell what the bottleneck is"),
        }
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

impl EpochReport {
    /// Writes the phases that take most of the loading time.
    fn fmt_phases(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.times.phases.shares();
        let mut shown = shares.iter().filter(|(_, share)| *share >= MIN_SHOWN_SHARE).peekable();
        if shown.peek().is_some() {
            f.write_str("; time of loading:")?;
        }
        for (position, (phase, share)) in shown.enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma} {:.0} % {}", 100.0 * share, phase.name())?;
        }
        Ok(())
    }
}

/// Collects the statistics of an epoch.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    epoch: u64,
    started: Instant,
    /// Processor time that the process had used at the start.
    cpu_before: Duration,
    /// When the epoch ended, and the processor time that the process had used then.
    ended: Option<(Instant, Duration)>,
    first_batch: Option<Duration>,
    /// What the processes had used when the program got the first batch.
    first_use: ResourceUse,
    waiting: Duration,
    ready: ReadyBatches,
    batches: u64,
    samples: u64,
    repeated: u64,
    bytes: u64,
    digest: Option<SampleDigest>,
    fill: Option<Fill>,
    errors: u64,
    bad_samples: Vec<BadSample>,
}

impl Stopwatch {
    /// Starts at `started`. `digest` is the empty digest, or `None` without the option `digest`.
    pub(crate) fn start_at(epoch: u64, started: Instant, digest: Option<SampleDigest>) -> Self {
        Self {
            epoch,
            started,
            cpu_before: main_cpu(),
            ended: None,
            first_batch: None,
            first_use: ResourceUse::default(),
            waiting: Duration::ZERO,
            ready: ReadyBatches::default(),
            batches: 0,
            samples: 0,
            repeated: 0,
            bytes: 0,
            digest,
            fill: None,
            errors: 0,
            bad_samples: Vec::new(),
        }
    }

    /// Continues the digest of the epoch so far, if samples are digested and it is known.
    pub(crate) fn continue_digest(&mut self, so_far: Option<SampleDigest>) {
        self.digest = self.digest.map(|digest| digest + so_far.unwrap_or_default());
    }

    pub(crate) fn digest(&self) -> Option<SampleDigest> {
        self.digest
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of batches that `next` has returned, without errors.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    /// Number of samples in the returned batches.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of samples that were skipped or replaced.
    pub(crate) fn bad_samples(&self) -> u64 {
        self.bad_samples.len() as u64
    }

    /// Adds the fill of a batch that the program gets.
    pub(crate) fn note_fill(&mut self, fill: Fill) {
        self.fill = Some(self.fill.unwrap_or_default() + fill);
    }

    /// Notes that the program called `next` at `asked` and now gets a batch, or an error (`None`). `used`
    /// returns what the processes have used in this epoch. Returns the time at which
    /// `next` returns.
    pub(crate) fn waited(
        &mut self,
        asked: Instant,
        batch: Option<&BatchInfo>,
        used: impl FnOnce() -> ResourceUse,
    ) -> Instant {
        let now = Instant::now();
        match batch {
            Some(batch) => {
                self.batches += 1;
                self.samples += batch.samples as u64;
                self.repeated += batch.repeated as u64;
                self.bytes += batch.bytes;
                if let (Some(digest), Some(of_batch)) = (&mut self.digest, batch.digest) {
                    *digest += of_batch;
                }
            }
            None => self.errors += 1,
        }
        if self.first_batch.is_none() {
            self.first_batch = Some(now - self.started);
            self.first_use = self.with_main(used(), main_cpu());
        } else {
            self.waiting += now - asked;
        }
        now
    }

    /// True if the number of ready batches should be read `now`.
    pub(crate) fn is_count_due(&self, now: Instant) -> bool {
        self.ready.is_due(now - self.started)
    }

    /// Notes that `ready` batches are ready `now`.
    pub(crate) fn note_ready(&mut self, now: Instant, ready: u64) {
        self.ready.note(now - self.started, ready);
    }

    /// Notes the bad samples of a batch. Returns the first of them that exceeds `max` bad samples in the
    /// epoch, if any.
    pub(crate) fn note_bad(&mut self, samples: &[BadSample], max: u64) -> Option<&BadSample> {
        let before = self.bad_samples.len();
        self.bad_samples.extend_from_slice(samples);
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        self.bad_samples.get(max.max(before))
    }

    /// Notes that the program called `next` at `asked` and got `None`. Returns true on the first call.
    pub(crate) fn ended(&mut self, asked: Instant) -> bool {
        let is_first = self.ended.is_none();
        self.ended.get_or_insert_with(|| (asked, main_cpu()));
        is_first
    }

    /// Adds the processor time of this process to what the workers have used.
    fn with_main(&self, used: ResourceUse, cpu: Duration) -> ResourceUse {
        ResourceUse { main_cpu: cpu.saturating_sub(self.cpu_before), ..used }
    }

    /// Returns what was measured from the first batch to `ended`.
    fn figures(&self, ended: Instant, used: ResourceUse) -> Option<LoadFigures> {
        let steady = (ended - self.started).checked_sub(self.first_batch?)?;
        // The first batch was loaded before.
        let batches = self.batches.checked_sub(1).filter(|&batches| batches >= 2)?;
        LoadFigures::new(batches, steady, self.waiting, used - self.first_use)
    }

    /// Reports on the epoch, in which the workers have used `used`.
    pub(crate) fn report(&self, used: ResourceUse) -> EpochReport {
        let (ended, cpu) = self.ended.unwrap_or_else(|| (Instant::now(), main_cpu()));
        EpochReport {
            epoch: self.epoch,
            batches: self.batches,
            samples: self.samples,
            repeated: self.repeated,
            bytes: self.bytes,
            digest: self.digest,
            fill: self.fill,
            errors: self.errors,
            restarts: 0,
            bad_samples: self.bad_samples.clone(),
            elapsed: ended - self.started,
            first_batch: self.first_batch,
            waiting: self.waiting,
            main_cpu: cpu.saturating_sub(self.cpu_before),
            workers: Vec::new(),
            num_workers: 0,
            cpus: 0,
            shared_memory_bytes: 0,
            times: LoadTimes::default(),
            ready: self.ready.clone(),
            main_decode: None,
            figures: self.figures(ended, self.with_main(used, cpu)),
            tuning: Vec::new(),
            has_tried_more_workers: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_displayed_as_one_line() {
        let mut report = Stopwatch::start_at(3, Instant::now(), None).report(ResourceUse::default());
        report.elapsed = Duration::from_millis(1500);
        (report.batches, report.samples) = (1, 1);
        let one = "epoch 3: 1 batch, 1 sample in 1.50s (1 samples/s), no time waiting for batches: \
                   too few batches to tell what the bottleneck is";
        assert_eq!(report.to_string(), one);
        report.fill = Some(Fill { tokens: 3, capacity: 8 });
        assert_eq!(report.to_string(), one.replace("1 sample in", "1 sample, 37.5 % full, in"));
        report.fill = None;
        (report.batches, report.samples) = (3, 300);
        report.waiting = Duration::from_millis(1);
        report.figures = LoadFigures::new(3, report.elapsed, report.waiting, ResourceUse::default());
        let three = "epoch 3: 3 batches, 300 samples in 1.50s (200 samples/s), 1.00ms waiting for batches: \
                     the loader keeps up: the program waited for 0.1 % of the time";
        assert_eq!(report.to_string(), three);
    }
}
