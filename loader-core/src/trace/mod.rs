//! The trace of a loader: what main and the workers did, and when, as a file for a trace viewer.
//!
//! Workers always write their last spans to shared memory ([`loader_ipc::profile`]). With the option `trace`, main
//! collects the spans whenever it returns a batch, and writes the file at the end of each epoch. With
//! `trace_on_failure` alone, main collects the spans that the workers' memory still holds when an error ends the
//! epoch. Main keeps the last [`MAX_EVENTS`] events, so the memory is bounded.
//!
//! Alternative considered: each process writes a file of its own. Rejected because a killed worker would leave part
//! of a line, and somebody would have to merge the files.

mod chrome;

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use loader_ipc::profile::{self, ProfileArea, SpanKind};

use crate::{
    error::Error,
    options::LoaderOptions,
    warning::{Warn, Warning},
};

/// Maximum number of events that are kept; the oldest are dropped.
const MAX_EVENTS: usize = 100_000;

/// Collects events of a loader, and writes them to files. Clones share the events.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// File that is replaced at the end of each epoch.
    file: Option<PathBuf>,
    /// File that is replaced when an error ends an epoch.
    failure_file: Option<PathBuf>,
    /// A moment on both clocks, to convert one to the other.
    clock: (Instant, u64),
    events: Mutex<Events>,
}

/// The trace of an epoch. Writes the file when the epoch has ended, or when it is dropped.
#[derive(Debug)]
pub(crate) struct EpochTrace {
    tracer: Tracer,
    warn: Warn,
    /// Process id of the process that began the epoch. A forked child writes no file.
    owner: u32,
    is_written: bool,
    /// Number of spans that were collected from main's own memory.
    seen: u64,
}

#[derive(Debug, Default)]
struct Events {
    last: VecDeque<TraceEvent>,
    /// Number of events that were dropped, or overwritten before main collected them.
    lost: u64,
    epoch: u64,
}

/// Something that happened, with its time on the monotonic clock in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TraceEvent {
    start: u64,
    nanos: u64,
    epoch: u64,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The program called `next` and got batch `batch`, or an error (`None`).
    Next { batch: Option<u64> },
    /// Main decoded a batch.
    DecodeBatch { batch: u64 },
    /// Number of batches that were ready when `next` returned.
    Ready { batches: u64 },
    /// A process that loads did something: worker `worker`, or main (`None`).
    Load { worker: Option<usize>, kind: SpanKind, batch: u64, detail: u64 },
    /// Something that is described in words, about `worker` if it is known.
    Instant { worker: Option<usize>, title: &'static str, text: String },
}

impl Tracer {
    /// Returns the tracer that the options ask for.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if a file cannot be written, or if several ranks would write the same file.
    pub(crate) fn new(options: &LoaderOptions) -> Result<Option<Self>, Error> {
        let file_of = |option, file: &Option<PathBuf>| {
            file.as_deref().map(|file| resolve_file(option, file, options)).transpose()
        };
        let file = file_of("trace", &options.trace)?;
        let failure_file = file_of("trace_on_failure", &options.trace_on_failure)?;
        if file.is_none() && failure_file.is_none() {
            return Ok(None);
        }
        let (clock, events) = ((Instant::now(), profile::now()), Mutex::default());
        Ok(Some(Self(Arc::new(Shared { file, failure_file, clock, events }))))
    }

    /// Returns a `Warn` that also adds each warning to the trace.
    pub(crate) fn watch(&self, warn: Warn) -> Warn {
        let tracer = self.clone();
        Warn::with(move |warning| {
            tracer.add_instant(warning.worker(), warning_title(warning), warning.to_string());
            warn.warn(warning);
        })
    }

    pub(crate) fn begin_epoch(&self, epoch: u64, warn: Warn) -> EpochTrace {
        self.events().epoch = epoch;
        EpochTrace { tracer: self.clone(), warn, owner: std::process::id(), is_written: false, seen: 0 }
    }

    /// True if main collects spans after each batch, and not only after a failure.
    pub(crate) fn is_continuous(&self) -> bool {
        self.0.file.is_some()
    }

    /// Adds the call of `next` that began at `asked` and returns now: with `batch`, or with an error (`None`). `ready`
    /// batches are ready.
    fn returned(&self, asked: Instant, batch: Option<u64>, ready: Option<u64>) {
        let now = Instant::now();
        let mut events = self.events();
        events.push(self.nanos_at(asked), now - asked, Kind::Next { batch });
        if let Some(batches) = ready {
            events.push(self.nanos_at(now), Duration::ZERO, Kind::Ready { batches });
        }
    }

    /// Notes that main has decoded `batch` since `started`.
    pub(crate) fn decoded(&self, started: Instant, batch: u64) {
        self.events().push(self.nanos_at(started), started.elapsed(), Kind::DecodeBatch { batch });
    }

    /// Notes something in words that happens now.
    pub(crate) fn add_instant(&self, worker: Option<usize>, title: &'static str, text: String) {
        self.events().push(
            self.nanos_at(Instant::now()),
            Duration::ZERO,
            Kind::Instant { worker, title, text },
        );
    }

    /// Collects the spans of a process that loads, from number `seen` on. Changes `seen` to the number of the next
    /// span.
    pub(crate) fn collect(&self, worker: Option<usize>, area: ProfileArea<'_>, seen: &mut u64) {
        let (spans, next) = area.spans(*seen);
        let mut events = self.events();
        events.lost += next.saturating_sub(*seen).saturating_sub(spans.len() as u64);
        *seen = next;
        for span in spans {
            let kind = Kind::Load { worker, kind: span.kind, batch: span.batch, detail: span.detail };
            events.push(span.start, span.time, kind);
        }
    }

    fn write(&self, file: &Path, warn: &Warn) {
        let written = {
            let Events { last, lost, .. } = &*self.events();
            replace(file, |writer| chrome::write(writer, last.iter(), *lost))
        };
        if let Err(error) = written {
            warn.warn(&Warning::TraceNotWritten { file: file.to_owned(), problem: error.to_string() });
        }
    }

    fn nanos_at(&self, instant: Instant) -> u64 {
        let (base, nanos) = self.0.clock;
        nanos.saturating_add(as_nanos(instant.saturating_duration_since(base)))
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EpochTrace {
    /// True if the spans of workers are collected after each batch.
    pub(crate) fn is_continuous(&self) -> bool {
        self.tracer.is_continuous()
    }

    /// Adds the call of `next` that began at `asked` and returns now: with `batch`, or with an error (`None`). `ready`
    /// batches are ready.
    pub(crate) fn returned(&self, asked: Instant, batch: Option<u64>, ready: Option<u64>) {
        self.tracer.returned(asked, batch, ready);
    }

    /// Collects the spans of batches that main loads itself.
    pub(crate) fn collect(&mut self, area: ProfileArea<'_>) {
        self.tracer.collect(None, area, &mut self.seen);
    }

    /// Writes the file of the option `trace_on_failure`, because `error` has ended the epoch.
    pub(crate) fn failed(&self, error: &Error) {
        self.tracer.add_instant(None, "epoch failed", error.to_string());
        if let Some(file) = &self.tracer.0.failure_file {
            self.tracer.write(file, &self.warn);
        }
    }

    /// Writes the file of the option `trace`, unless it was written.
    pub(crate) fn finish(&mut self) {
        if std::mem::replace(&mut self.is_written, true) || self.owner != std::process::id() {
            return;
        }
        if let Some(file) = &self.tracer.0.file {
            self.tracer.write(file, &self.warn);
        }
    }
}

impl Drop for EpochTrace {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Events {
    fn push(&mut self, start: u64, time: Duration, kind: Kind) {
        if self.last.len() == MAX_EVENTS {
            self.last.pop_front();
            self.lost += 1;
        }
        self.last.push_back(TraceEvent { start, nanos: as_nanos(time), epoch: self.epoch, kind });
    }
}

fn as_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a short text for the event of a warning.
fn warning_title(warning: &Warning) -> &'static str {
    match warning {
        Warning::WorkerReplaced { .. } => "worker replaced",
        Warning::BadSample(_) => "bad sample",
        Warning::LongWait { .. } => "long wait",
        _ => "warning",
    }
}

/// Returns the file of an option, with the rank in place of `{rank}`.
///
/// # Errors
/// If it cannot be written, or if several ranks would write the same file.
fn resolve_file(option: &'static str, file: &Path, options: &LoaderOptions) -> Result<PathBuf, Error> {
    let text = file.as_os_str().to_string_lossy();
    if options.world_size.is_some_and(|world_size| world_size > 1) && !text.contains("{rank}") {
        const PROBLEM: &str =
            "each rank needs a file of its own; write `{rank}` in the name, as in `trace-{rank}.json`";
        return Err(Error::invalid_option(option, PROBLEM));
    }
    let file: PathBuf = match text.contains("{rank}") {
        true => text.replace("{rank}", &options.rank.unwrap_or(0).to_string()).into(),
        false => file.to_owned(),
    };
    let writable = match file.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => tempfile::NamedTempFile::new_in(folder_of(&file)).map(drop),
    };
    let problem = |error| {
        format!(
            "`{}` cannot be written: {error}; name a file in a folder that this process can write",
            file.display()
        )
    };
    writable.map_err(|error| Error::invalid_option(option, problem(error)))?;
    Ok(file)
}

/// Replaces `file` by what `write` writes, at once, so that a reader never sees a part of it.
fn replace(
    file: &Path,
    write: impl FnOnce(&mut io::BufWriter<&fs::File>) -> io::Result<()>,
) -> io::Result<()> {
    let new = tempfile::NamedTempFile::new_in(folder_of(file))?;
    let mut writer = io::BufWriter::new(new.as_file());
    write(&mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    new.persist(file)?;
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
