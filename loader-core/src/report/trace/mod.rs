//! The trace of a loader: what main and the workers did, and when, as a file for a trace viewer.
//!
//! Workers always write their last spans to shared memory ([`loader_ipc::profile`]). With the option `trace`, main
//! collects the spans whenever it returns a batch, and writes the file at the end of each epoch. With
//! `trace_on_failure` alone, main collects the spans that the workers' memory still holds when it has replaced a worker
//! that died, or when an error ends the epoch. Main keeps the last [`MAX_EVENTS`] events, so the memory is bounded.
//!
//! Alternative considered: each process writes a file of its own. Rejected because a killed worker would
//! leave part of a line, and somebody would have to merge the files.

mod chrome;

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use loader_ipc::profile::{self, ProfileArea, Span, SpanKind};

use crate::{
    error::Error,
    launch::ranks::LaunchedRank,
    options::LoaderOptions,
    report::warning::{Warn, Warning},
};

/// Maximum number of events that are kept; the oldest are dropped.
const MAX_EVENTS: usize = 100_000;

/// Collects events of a loader, and writes them to files. Clones share the events. In a forked child of the
/// process that built the loader, it does nothing: the file belongs to the parent, and another thread of the
/// parent may have held the lock when the child was made.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// File that is replaced at the end of each epoch.
    file: Option<PathBuf>,
    /// File that is replaced when an error ends an epoch, or when a worker has died.
    failure_file: Option<PathBuf>,
    /// A moment on both clocks, to convert one to the other. Times in the file begin there.
    clock: (Instant, u64),
    /// Process id of the process that built the loader.
    owner: u32,
    /// Number of passes begun.
    passes: AtomicU64,
    /// Number of workers that have died and were replaced.
    deaths: AtomicU64,
    events: Mutex<Events>,
}

/// The part of a trace that one iterator makes.
#[derive(Debug, Clone)]
pub(crate) struct PassTracer {
    tracer: Tracer,
    pass: Pass,
}

/// One iteration over an epoch. A program may iterate over the same epoch several times, also at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    number: u64,
    epoch: u64,
}

/// The trace of an iterator. Writes the file when the epoch has ended, or when it is dropped.
#[derive(Debug)]
pub(crate) struct IterTrace {
    pass: PassTracer,
    warn: Warn,
    is_written: bool,
    /// Number of spans that were collected from main's own memory.
    seen: u64,
    /// Number of deaths of workers that this iterator has seen.
    deaths_seen: u64,
}

#[derive(Debug, Default)]
struct Events {
    last: VecDeque<TraceEvent>,
    /// Number of events that were dropped, or overwritten before main collected them.
    lost: u64,
}

/// Something that happened, with its time on the monotonic clock in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TraceEvent {
    start: u64,
    nanos: u64,
    /// The iteration to which it belongs, if it is known.
    pass: Option<Pass>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The program called `next` and got batch `batch`, which task `task` loaded, or an error (`None`).
    Next { returned: Option<Returned> },
    /// Main decoded a batch.
    DecodeBatch { batch: u64 },
    /// Number of batches that were ready when `next` returned.
    Ready { batches: u64 },
    /// A process that loads did something: worker `worker`, or main (`None`).
    Load { worker: Option<usize>, kind: SpanKind, task: u64, detail: u64 },
    /// Something that is described in words, about `worker` if it is known.
    Instant { worker: Option<usize>, title: &'static str, text: String },
}

/// A batch that the program got. For an iterable dataset, the number of the task differs from that of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Returned {
    batch: u64,
    task: u64,
}

impl Tracer {
    /// Returns the tracer that the options ask for. `launched` is what a launcher says about the rank.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if a file cannot be written, or if several ranks would write the same file.
    pub(crate) fn new(
        options: &LoaderOptions,
        launched: Option<&LaunchedRank>,
    ) -> Result<Option<Self>, Error> {
        let rank = options.rank.zip(options.world_size);
        let rank = rank.or_else(|| launched.map(|launched| (launched.rank, launched.world_size)));
        let file_of = |option, file: &Option<PathBuf>| {
            file.as_deref().map(|file| resolve_file(option, file, rank.unwrap_or((0, 1)))).transpose()
        };
        let file = file_of("trace", &options.trace)?;
        let failure_file = file_of("trace_on_failure", &options.trace_on_failure)?;
        if file.is_none() && failure_file.is_none() {
            return Ok(None);
        }
        Ok(Some(Self(Arc::new(Shared {
            file,
            failure_file,
            clock: (Instant::now(), profile::now()),
            owner: std::process::id(),
            passes: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
            events: Mutex::default(),
        }))))
    }

    /// Returns a `Warn` that also adds each warning to the trace.
    pub(crate) fn watch(&self, warn: Warn) -> Warn {
        let tracer = self.clone();
        Warn::with(move |warning| {
            tracer.add_instant(None, warning.worker(), warning_title(warning), warning.to_string());
            if let Warning::WorkerReplaced { exit, .. } = warning
                && !exit.is_routine()
            {
                // Relaxed: the events have a lock of their own.
                tracer.0.deaths.fetch_add(1, Ordering::Relaxed);
            }
            warn.warn(warning);
        })
    }

    /// Begins an iteration over an epoch.
    pub(crate) fn begin_pass(&self, epoch: u64) -> PassTracer {
        // Relaxed: only the number matters.
        let number = self.0.passes.fetch_add(1, Ordering::Relaxed);
        PassTracer { tracer: self.clone(), pass: Pass { number, epoch } }
    }

    fn deaths(&self) -> u64 {
        self.0.deaths.load(Ordering::Relaxed)
    }

    fn add_instant(&self, pass: Option<Pass>, worker: Option<usize>, title: &'static str, text: String) {
        let start = self.nanos_at(Instant::now());
        self.add([TraceEvent { start, nanos: 0, pass, kind: Kind::Instant { worker, title, text } }], 0);
    }

    fn add(&self, new: impl IntoIterator<Item = TraceEvent>, lost: u64) {
        if self.0.owner != std::process::id() {
            return;
        }
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.lost = events.lost.saturating_add(lost);
        for event in new {
            if events.last.len() == MAX_EVENTS {
                events.last.pop_front();
                events.lost = events.lost.saturating_add(1);
            }
            events.last.push_back(event);
        }
    }

    /// Replaces a file by the events so far.
    fn write(&self, file: &Path, warn: &Warn) {
        if self.0.owner != std::process::id() {
            return;
        }
        // A copy, so that no thread waits for the lock while the file is written.
        let (events, lost) = {
            let events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
            (events.last.clone(), events.lost)
        };
        let start = self.0.clock.1;
        if let Err(error) = replace(file, |writer| chrome::write(writer, events.iter(), start, lost)) {
            warn.warn(&Warning::TraceNotWritten { file: file.to_owned(), problem: error.to_string() });
        }
    }

    fn nanos_at(&self, instant: Instant) -> u64 {
        let (base, nanos) = self.0.clock;
        nanos.saturating_add(profile::nanos(instant.saturating_duration_since(base)))
    }
}

impl PassTracer {
    /// True if main collects spans after each batch, and not only after a failure.
    pub(crate) fn is_continuous(&self) -> bool {
        self.tracer.0.file.is_some()
    }

    /// Returns the trace of the iterator.
    pub(crate) fn of_iterator(self, warn: Warn) -> IterTrace {
        let deaths_seen = self.tracer.deaths();
        IterTrace { pass: self, warn, is_written: false, seen: 0, deaths_seen }
    }

    /// Notes that main has decoded `batch` since `started`.
    pub(crate) fn decoded(&self, started: Instant, batch: u64) {
        self.add(started, started.elapsed(), Kind::DecodeBatch { batch });
    }

    /// Notes something in words that happens now.
    pub(crate) fn add_instant(&self, title: &'static str, text: String) {
        self.tracer.add_instant(Some(self.pass), None, title, text);
    }

    /// Collects the spans of a process that loads, from number `seen` on. Changes `seen` to the number of the next
    /// span.
    pub(crate) fn collect(&self, worker: Option<usize>, area: ProfileArea<'_>, seen: &mut u64) {
        let (spans, next) = area.spans(*seen);
        let lost = next.saturating_sub(*seen).saturating_sub(spans.len() as u64);
        *seen = next;
        if spans.is_empty() && lost == 0 {
            return;
        }
        // A worker that has failed may have written any time.
        let valid = self.tracer.0.clock.1..=profile::now();
        let is_valid = |span: &Span| {
            let end = span.start.saturating_add(profile::nanos(span.time));
            valid.contains(&span.start) && valid.contains(&end)
        };
        let events = spans.into_iter().filter(is_valid).map(|span| {
            let kind = Kind::Load { worker, kind: span.kind, task: span.task, detail: span.detail };
            let nanos = profile::nanos(span.time);
            TraceEvent { start: span.start, nanos, pass: Some(self.pass), kind }
        });
        self.tracer.add(events, lost);
    }

    fn add(&self, started: Instant, time: Duration, kind: Kind) {
        let (start, nanos) = (self.tracer.nanos_at(started), profile::nanos(time));
        self.tracer.add([TraceEvent { start, nanos, pass: Some(self.pass), kind }], 0);
    }
}

impl IterTrace {
    /// True if the spans of workers are collected after each batch.
    pub(crate) fn is_continuous(&self) -> bool {
        self.pass.is_continuous()
    }

    /// Adds the call of `next` from `asked` to `now`. It returned the batch and task with these numbers, or
    /// an error (`None`). `ready` batches are ready.
    pub(crate) fn returned(
        &self,
        asked: Instant,
        now: Instant,
        returned: Option<(u64, u64)>,
        ready: Option<u64>,
    ) {
        let returned = returned.map(|(batch, task)| Returned { batch, task });
        self.pass.add(asked, now - asked, Kind::Next { returned });
        if let Some(batches) = ready {
            self.pass.add(now, Duration::ZERO, Kind::Ready { batches });
        }
    }

    /// True if workers have died and were replaced since the last call.
    pub(crate) fn has_new_deaths(&mut self) -> bool {
        let deaths = self.pass.tracer.deaths();
        std::mem::replace(&mut self.deaths_seen, deaths) != deaths
    }

    /// Collects the spans of batches that main loads itself.
    pub(crate) fn collect(&mut self, area: ProfileArea<'_>) {
        self.pass.collect(None, area, &mut self.seen);
    }

    /// Writes the file of the option `trace_on_failure`: `error` has ended the epoch, or workers have died (`None`).
    pub(crate) fn failed(&self, error: Option<&Error>) {
        if let Some(error) = error {
            self.pass.add_instant("epoch failed", error.to_string());
        }
        let tracer = &self.pass.tracer;
        if let Some(file) = &tracer.0.failure_file {
            tracer.write(file, &self.warn);
        }
    }

    /// Writes the file of the option `trace`, unless it was written, and that of `trace_on_failure` if workers have
    /// died since the last call of `next`.
    pub(crate) fn finish(&mut self) {
        if self.has_new_deaths() {
            self.failed(None);
        }
        let tracer = &self.pass.tracer;
        if !std::mem::replace(&mut self.is_written, true)
            && let Some(file) = &tracer.0.file
        {
            tracer.write(file, &self.warn);
        }
    }
}

impl Drop for IterTrace {
    fn drop(&mut self) {
        self.finish();
    }
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
fn resolve_file(
    option: &'static str,
    file: &Path,
    (rank, world_size): (usize, usize),
) -> Result<PathBuf, Error> {
    let text = file.as_os_str().to_string_lossy();
    if world_size > 1 && !text.contains("{rank}") {
        const PROBLEM: &str =
            "each rank needs a file of its own; write `{rank}` in the name, as in `trace-{rank}.json`";
        return Err(Error::invalid_option(option, PROBLEM));
    }
    let file: PathBuf = if text.contains("{rank}") {
        text.replace("{rank}", &rank.to_string()).into()
    } else {
        file.to_owned()
    };
    let writable = if file.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        new_file_beside(&file).map(drop)
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
    let new = new_file_beside(file)?;
    let mut writer = io::BufWriter::new(new.as_file());
    write(&mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    new.persist(file)?;
    Ok(())
}

/// Creates a temporary file in the folder of `file`, with the permissions of a file that a program creates.
fn new_file_beside(file: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o666)).tempfile_in(folder)
}
