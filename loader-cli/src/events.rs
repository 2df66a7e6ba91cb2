//! The events that `--json` prints. docs/command.md describes them.

use std::path::Path;

use loader_core::{
    Advice, BadSample, BatchDigest, BatchInfo, EpochReport, Error, LaunchedRank, LoadTimes, TuningDecision,
    Verdict, Warning, WorkerReport, internal::is_printable, pack::Fill,
};
use serde::Serialize;

use crate::settings::Settings;

/// One line of output.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Start {
        pid: u32,
        workers: Vec<WorkerEntry>,
        /// Number of samples in an epoch, if known.
        samples: Option<usize>,
        /// Number of batches in an epoch, if known.
        batches: Option<usize>,
        /// What the launcher says about the rank, if the run takes it from there.
        #[serde(skip_serializing_if = "Option::is_none")]
        launched: Option<&'a LaunchedRank>,
        config: &'a Settings,
    },
    Batch {
        epoch: u64,
        batch: u64,
        indices: &'a [usize],
    },
    WorkerExited {
        worker: usize,
        pid: u32,
        status: String,
        /// What happens next: `restart` (another worker replaces it) or `fail` (the run ends).
        action: &'static str,
    },
    WorkerStarted {
        worker: usize,
        pid: u32,
    },
    Error {
        kind: &'a str,
        message: &'a str,
        #[serde(flatten)]
        context: ErrorContext,
    },
    Epoch(Box<EpochFigures<'a>>),
    Interval(IntervalFigures),
    Tuned(TunedFigures<'a>),
    End {
        /// Number of epochs that were loaded to their end.
        epochs: u64,
        restarts: u64,
        errors: u64,
    },
}

#[derive(Debug, Serialize)]
pub(crate) struct WorkerEntry {
    id: usize,
    pid: u32,
}

/// An interval of `loader tune`, printed with `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct IntervalFigures {
    /// Number of the round, from 1; 0 before the rounds.
    pub(crate) round: usize,
    pub(crate) num_workers: usize,
    /// `None` without workers.
    pub(crate) prefetch_factor: Option<usize>,
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) samples_per_second: f64,
}

/// The winner of `loader tune`, printed with `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct TunedFigures<'a> {
    pub(crate) num_workers: usize,
    /// `None` without workers.
    pub(crate) prefetch_factor: Option<usize>,
    pub(crate) samples_per_second: f64,
    /// The rate divided by that of the setting in the config, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gain: Option<f64>,
    pub(crate) rounds: usize,
    pub(crate) failed_batches: u64,
    /// The config, if the setting was written.
    pub(crate) written: Option<&'a Path>,
}

/// What an error is about. A field that is `None` is not printed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ErrorContext {
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    option: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(crate) struct EpochFigures<'a> {
    epoch: u64,
    batches: u64,
    samples: u64,
    /// How many of `samples` the rank repeats, so that all ranks have equally many.
    repeated: u64,
    /// Bytes of shared memory that the batches took.
    bytes: u64,
    /// Number of tokens that are not padding, if the batches are padded or packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// Share of the tokens that are not padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    fill_ratio: Option<f64>,
    seconds: f64,
    samples_per_second: f64,
    first_batch_seconds: Option<f64>,
    wait_seconds: f64,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Advice>,
    times: &'a LoadTimes,
    /// Mean number of batches that were ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_ready_batches: Option<f64>,
    /// Mean time in which main decodes a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    main_decode_seconds: Option<f64>,
    main_cpu_seconds: f64,
    /// What each worker did in the epoch.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    workers: &'a [WorkerReport],
    /// Samples that were skipped or replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bad_samples: Vec<BadSampleEntry>,
    /// Changes of the number of workers and of the prefetch factor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tuning: Vec<TuningDecision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_digest: Option<String>,
    /// Number of samples in `sample_digest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest_samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_digest: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BadSampleEntry {
    batch: u64,
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_by: Option<usize>,
    reason: String,
}

impl BadSampleEntry {
    fn new(sample: &BadSample) -> Self {
        let BadSample { batch, index, shard, replaced_by, reason, .. } = sample.clone();
        Self { batch, index, shard, replaced_by, reason }
    }
}

impl<'a> Event<'a> {
    pub(crate) fn start(
        samples: Option<usize>,
        batches: Option<usize>,
        worker_pids: &[u32],
        config: &'a Settings,
    ) -> Self {
        let workers = worker_pids.iter().enumerate().map(|(id, &pid)| WorkerEntry { id, pid }).collect();
        let launched = config.launched.as_ref();
        Self::Start { pid: std::process::id(), workers, samples, batches, launched, config }
    }

    pub(crate) fn batch(epoch: u64, info: &'a BatchInfo) -> Self {
        Self::Batch { epoch, batch: info.number, indices: &info.indices }
    }

    /// Returns the event for `error` if it says that a worker died and that the run ends for that reason.
    pub(crate) fn worker_exited(error: &Error) -> Option<Self> {
        let Error::WorkerExited { worker, pid, exit, .. } = error else { return None };
        Some(Self::WorkerExited { worker: *worker, pid: *pid, status: exit.to_string(), action: "fail" })
    }

    /// Returns the event for `warning` if it says that a worker died and is replaced.
    pub(crate) fn worker_replaced(warning: &Warning) -> Option<Self> {
        let Warning::WorkerReplaced { worker, pid, exit, .. } = warning else { return None };
        Some(Self::WorkerExited { worker: *worker, pid: *pid, status: exit.to_string(), action: "restart" })
    }

    /// Returns the event for an error of the loader in `epoch`, or before the first epoch. `message` is the
    /// text of `error`.
    pub(crate) fn error(epoch: Option<u64>, error: &Error, message: &'a str) -> Self {
        let context = ErrorContext { epoch, ..ErrorContext::of(error) };
        Self::Error { kind: error.kind(), message, context }
    }

    /// Returns the event for an error that ends the command and is not from the loader.
    pub(crate) fn stopped(kind: &'a str, message: &'a str) -> Self {
        Self::Error { kind, message, context: ErrorContext::default() }
    }

    pub(crate) fn epoch(report: &'a EpochReport, digest: Option<&BatchDigest>) -> Self {
        Self::Epoch(Box::new(EpochFigures {
            epoch: report.epoch,
            batches: report.batches,
            samples: report.samples,
            repeated: report.repeated,
            bytes: report.bytes,
            tokens: report.fill.map(|fill| fill.tokens),
            fill_ratio: report.fill.map(Fill::ratio),
            seconds: report.elapsed.as_secs_f64(),
            samples_per_second: report.samples_per_second(),
            first_batch_seconds: report.first_batch.map(|after| after.as_secs_f64()),
            wait_seconds: report.waiting.as_secs_f64(),
            verdict: match report.verdict() {
                Verdict::LoaderBound => "loader_bound",
                Verdict::StepBound => "step_bound",
                _ => "unknown",
            },
            advice: report.advice(),
            times: &report.times,
            mean_ready_batches: report.ready.mean(),
            main_decode_seconds: report.main_decode.map(|time| time.as_secs_f64()),
            main_cpu_seconds: report.main_cpu.as_secs_f64(),
            workers: &report.workers,
            bad_samples: report.bad_samples.iter().map(BadSampleEntry::new).collect(),
            tuning: report.tuning.clone(),
            sample_digest: report.digest.map(|digest| digest.to_string()),
            digest_samples: report.digest.map(|digest| digest.samples()),
            order_digest: digest.map(|digest| hex(digest.order())),
            content_digest: digest.map(|digest| hex(digest.content())),
        }))
    }

    /// Returns the event as JSON, without a line break.
    pub(crate) fn to_line(&self) -> String {
        json_line(self)
    }
}

impl ErrorContext {
    fn of(error: &Error) -> Self {
        let nothing = Self::default();
        match *error {
            Error::InvalidOption { option, .. } => Self { option: Some(option), ..nothing },
            Error::CpuNotAllowed { .. } => Self { option: Some("worker_affinity"), ..nothing },
            Error::DatasetFailed { index, shard, batch, worker, .. }
            | Error::CollateFailed { index, shard, batch, worker, .. } => {
                Self { index, shard, batch: Some(batch), worker, ..nothing }
            }
            Error::OpenFailed { batch, worker, .. } | Error::SendFailed { batch, worker, .. } => {
                Self { batch: Some(batch), worker, ..nothing }
            }
            Error::BatchNotReadable { batch, worker, .. } | Error::ProgramsDiffer { batch, worker, .. } => {
                Self { batch: Some(batch), worker: Some(worker), ..nothing }
            }
            Error::IndexOutOfRange { index, batch, .. } => {
                Self { index: Some(index), batch: Some(batch), ..nothing }
            }
            Error::WorkerExited { worker, pid, .. } => {
                Self { worker: Some(worker), pid: Some(pid), ..nothing }
            }
            Error::BatchGivenUp { batch, worker, pid, .. } => {
                Self { batch: Some(batch), worker: Some(worker), pid: Some(pid), ..nothing }
            }
            Error::TooManyBadSamples { ref sample, .. } => {
                Self { index: Some(sample.index), shard: sample.shard, batch: Some(sample.batch), ..nothing }
            }
            Error::TimedOut { ref waiting_for, .. } | Error::WorkerStuck { ref waiting_for, .. } => {
                Self { worker: Some(waiting_for.worker), ..nothing }
            }
            Error::WorkerNotStarted { worker, .. } | Error::WorkerMisbehaved { worker, .. } => {
                Self { worker: Some(worker), ..nothing }
            }
            _ => nothing,
        }
    }
}

/// Returns a value as JSON in one line. Control characters, line breaks and characters that change the direction of a
/// text are escaped in its strings, because a terminal that interprets escape sequences may show the line.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    // Serialising cannot fail: what the command prints consists of strings, numbers, arrays and maps with string keys.
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if is_printable(character) {
            line.push(character)
        } else {
            // All of these are below U+10000.
            line.push_str(&format!("\\u{:04x}", u32::from(character)))
        }
    }
    line
}

/// Formats a digest: 16 hexadecimal digits.
pub(crate) fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_no_character_that_a_terminal_obeys() {
        let text = "a\n\u{1b}]0;\u{9b}2J\u{202e}é";
        let line = json_line(&[text]);
        assert_eq!(line, "[\"a\\n\\u001b]0;\\u009b2J\\u202eé\"]");
        assert_eq!(serde_json::from_str::<[String; 1]>(&line).unwrap(), [text]);
    }
}
