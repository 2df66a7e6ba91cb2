//! What an epoch took, and who was waiting for whom.

use std::{
    fmt,
    time::{Duration, Instant},
};

use loader_ipc::control::WorkerSnapshot;

/// An epoch's figures so far.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EpochReport {
    /// Number of the epoch.
    pub epoch: u64,
    /// Batches returned.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Batches that failed.
    pub errors: u64,
    /// How often a worker died and another one took its place.
    pub restarts: u64,
    /// Samples that were skipped or replaced, in the order of the batches.
    pub bad_samples: Vec<BadSample>,
    /// Time since `iter()` was called, up to the end of the epoch.
    pub elapsed: Duration,
    /// From `iter()` to the first batch.
    pub first_batch: Option<Duration>,
    /// Time that the program spent waiting for batches after the first.
    pub waiting: Duration,
    /// By number of the worker; empty without workers.
    pub workers: Vec<WorkerReport>,
    /// Bytes in all slots.
    pub shared_memory_bytes: u64,
}

/// A sample that could not be loaded, and was skipped or replaced: see [`OnBadSample`](crate::OnBadSample).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadSample {
    /// Number of the batch in its epoch.
    pub batch: u64,
    /// Its index; of an iterable dataset its place in the shard.
    pub index: usize,
    /// The shard of an iterable dataset, counted in this process.
    pub shard: Option<usize>,
    /// Index of the one that took its place.
    pub replaced_by: Option<usize>,
    /// What is wrong with it: the error and its causes, or a panic's message.
    pub reason: String,
}

impl fmt::Display for BadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, index, shard, replaced_by, reason } = self;
        write!(f, "sample {index} of ")?;
        if let Some(shard) = shard {
            write!(f, "shard {shard}, ")?;
        }
        write!(f, "batch {batch} is ")?;
        match replaced_by {
            Some(other) => write!(f, "replaced by sample {other}")?,
            None => f.write_str("skipped")?,
        }
        write!(f, ": {reason}")
    }
}

/// A worker's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Batches loaded.
    pub batches: u64,
    /// Samples loaded.
    pub samples: u64,
    /// Time spent loading.
    pub busy: Duration,
    /// Page faults served from memory (`ru_minflt`), its start included if that was in this epoch.
    pub page_faults: u64,
}

impl WorkerReport {
    pub(crate) fn new(snapshot: &WorkerSnapshot) -> Self {
        let WorkerSnapshot { batches, samples, busy, page_faults, .. } = *snapshot;
        Self { batches, samples, busy, page_faults }
    }

    /// What was added since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(before.batches),
            samples: self.samples.saturating_sub(before.samples),
            busy: self.busy.saturating_sub(before.busy),
            page_faults: self.page_faults.saturating_sub(before.page_faults),
        }
    }
}

/// Which side is the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Too few batches to tell.
    Unknown,
    /// The program waits for batches: more workers, or less work per sample, would make it faster.
    LoaderBound,
    /// Batches wait for the program: the loader is fast enough.
    StepBound,
}

/// Waiting less than this share of the time counts as not waiting.
const NOISE: f64 = 0.05;

impl EpochReport {
    /// Samples per second, from `iter()` on.
    pub fn samples_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 }
    }

    /// Which side is the bottleneck, by the share of time spent waiting after the first batch.
    pub fn verdict(&self) -> Verdict {
        let steady = self.elapsed.saturating_sub(self.first_batch.unwrap_or_default()).as_secs_f64();
        if self.batches < 3 || steady <= 0.0 {
            Verdict::Unknown
        } else if self.waiting.as_secs_f64() / steady > NOISE {
            Verdict::LoaderBound
        } else {
            Verdict::StepBound
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "too few batches to tell",
            Self::LoaderBound => "the loader is the bottleneck",
            Self::StepBound => "the training step is the bottleneck",
        })
    }
}

impl fmt::Display for EpochReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batches, samples, elapsed, waiting, .. } = self;
        let rate = self.samples_per_second();
        let (batches, samples) =
            (counted(*batches, "batch", "batches"), counted(*samples, "sample", "samples"));
        write!(f, "epoch {epoch}: {batches}, {samples} in {elapsed:.2?} ({rate:.0} samples/s), ")?;
        if waiting.is_zero() {
            f.write_str("no time")?;
        } else {
            write!(f, "{waiting:.2?}")?;
        }
        write!(f, " waiting for batches: {}", self.verdict())
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Measures an epoch.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    epoch: u64,
    started: Instant,
    ended: Option<Instant>,
    first_batch: Option<Duration>,
    waiting: Duration,
    batches: u64,
    samples: u64,
    errors: u64,
    bad_samples: Vec<BadSample>,
}

impl Stopwatch {
    pub(crate) fn start_at(epoch: u64, started: Instant) -> Self {
        Self {
            epoch,
            started,
            ended: None,
            first_batch: None,
            waiting: Duration::ZERO,
            batches: 0,
            samples: 0,
            errors: 0,
            bad_samples: Vec::new(),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Samples that came.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples that were skipped or replaced.
    pub(crate) fn bad_samples(&self) -> u64 {
        self.bad_samples.len() as u64
    }

    /// The program asked at `asked` and gets a batch of `samples`, or an error.
    pub(crate) fn waited(&mut self, asked: Instant, samples: Option<usize>) {
        let now = Instant::now();
        match samples {
            Some(samples) => {
                self.batches += 1;
                self.samples += samples as u64;
            }
            None => self.errors += 1,
        }
        if self.first_batch.is_none() {
            self.first_batch = Some(now - self.started);
        } else {
            self.waiting += now - asked;
        }
    }

    /// Notes a batch's bad samples; gives the one that is one more than `most`, if there is one.
    pub(crate) fn note_bad(&mut self, samples: &[BadSample], most: u64) -> Option<&BadSample> {
        let before = self.bad_samples.len();
        self.bad_samples.extend_from_slice(samples);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.bad_samples.get(most.max(before))
    }

    /// The program asked at `asked` and gets the end.
    pub(crate) fn ended(&mut self, asked: Instant) {
        self.ended.get_or_insert(asked);
    }

    pub(crate) fn report(&self) -> EpochReport {
        EpochReport {
            epoch: self.epoch,
            batches: self.batches,
            samples: self.samples,
            errors: self.errors,
            restarts: 0,
            bad_samples: self.bad_samples.clone(),
            elapsed: self.ended.unwrap_or_else(Instant::now) - self.started,
            first_batch: self.first_batch,
            waiting: self.waiting,
            workers: Vec::new(),
            shared_memory_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_epoch() {
        let mut report = Stopwatch::start_at(3, Instant::now()).report();
        report.elapsed = Duration::from_millis(1500);
        (report.batches, report.samples) = (1, 1);
        let one = "epoch 3: 1 batch, 1 sample in 1.50s (1 samples/s), no time waiting for batches: too few batches to tell";
        assert_eq!(report.to_string(), one);
        (report.batches, report.samples) = (3, 300);
        report.waiting = Duration::from_millis(1);
        let three = "epoch 3: 3 batches, 300 samples in 1.50s (200 samples/s), 1.00ms waiting for batches: \
                     the training step is the bottleneck";
        assert_eq!(report.to_string(), three);
    }
}
