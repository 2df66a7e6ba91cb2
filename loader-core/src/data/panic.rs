//! Turns panics and errors of user code into [`Failure`]s.

use std::{any::Any, backtrace::Backtrace, cell::RefCell, io::Write, panic, thread};

use loader_ipc::frame::{Failure, Stage};

use crate::data::foreign_error::ForeignError;

/// Beginnings of the messages of panics after which the Rust runtime aborts the process.
const ABORTING: [&str; 6] = [
    "panic in a function that cannot unwind",
    "panic in a destructor during cleanup",
    "unsafe precondition(s) violated",
    "misaligned pointer dereference",
    "null pointer dereference",
    "trying to construct an enum from an invalid value",
];

thread_local! {
    static PANIC: RefCell<Option<Recorded>> = const { RefCell::new(None) };
}

/// The last panic of this thread.
struct Recorded {
    /// Location and message, as the default hook prints them.
    text: String,
    /// Location and backtrace.
    backtrace: String,
    is_printed: bool,
}

/// Installs a panic hook that records the panics of this thread instead of printing them. In a worker, the
/// error that the main process returns contains the message and the backtrace, so printing them too would
/// repeat them. The hook prints panics of other threads as before.
///
/// The hook prints a panic that aborts the process, because no error can carry its message, and also the
/// panic before it: a panic in a destructor during another panic aborts, and so does a panic that reaches an
/// `extern "C"` function. If user code caught the first panic itself, the hook prints both when a second one
/// follows, although neither aborts: it cannot tell the two cases apart.
#[doc(hidden)]
pub fn record_backtraces() {
    let loading = thread::current().id();
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != loading {
            return previous(info);
        }
        let before = PANIC.take();
        let is_printed =
            before.is_some() || cfg!(panic = "abort") || message(info.payload()).is_some_and(aborts);
        if let Some(Recorded { text, is_printed: false, .. }) = before {
            // `eprintln` would panic if standard error is closed.
            drop(writeln!(std::io::stderr(), "{text}"));
        }
        if is_printed {
            previous(info);
        }
        let location = info.location().map(|location| format!("{LOCATION}{location}\n")).unwrap_or_default();
        let backtrace = format!("{location}{}", Backtrace::force_capture());
        PANIC.set(Some(Recorded { text: info.to_string(), backtrace, is_printed }));
    }));
}

fn aborts(message: &str) -> bool {
    ABORTING.iter().any(|beginning| message.starts_with(beginning))
}

fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Marks the first line of a recorded backtrace, which holds the location of the panic.
const LOCATION: &str = "at ";

/// Returns the file, line and column of a panic from its recorded backtrace.
pub(crate) fn location(backtrace: &str) -> Option<&str> {
    backtrace.lines().next()?.strip_prefix(LOCATION)
}

/// Forgets a recorded panic that user code has caught itself.
pub(crate) fn forget_backtrace() {
    PANIC.take();
}

/// Turns a caught panic into a failure.
#[doc(hidden)]
pub fn to_failure(payload: &(dyn Any + Send), stage: Stage, index: Option<u64>) -> Failure {
    let message = message(payload).unwrap_or("a panic without a message").to_owned();
    let backtrace = PANIC.take().map(|recorded| recorded.backtrace);
    Failure { stage, index, chain: vec![message], panicked: true, backtrace }
}

/// Turns an error into a failure.
pub(crate) fn error_to_failure(error: &anyhow::Error, stage: Stage, index: Option<u64>) -> Failure {
    let captured = error.backtrace().status() == std::backtrace::BacktraceStatus::Captured;
    let foreign = error.downcast_ref::<ForeignError>().map(|foreign| foreign.backtrace.clone());
    Failure {
        stage,
        index,
        chain: error.chain().map(ToString::to_string).collect(),
        panicked: false,
        backtrace: foreign.or_else(|| captured.then(|| error.backtrace().to_string())),
    }
}
