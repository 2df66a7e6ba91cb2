//! Panics of user code, as failures with a message and a place.

use std::{any::Any, backtrace::Backtrace, cell::RefCell, panic, thread};

use loader_ipc::frame::{Failure, Stage};

thread_local! {
    static BACKTRACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes panics of this thread silent and remembers their backtraces: in a worker, the error that the main process returns says
/// it all, and says it once. Panics of other threads are printed as ever.
#[doc(hidden)]
pub fn record_backtraces() {
    let loading = thread::current().id();
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != loading {
            return previous(info);
        }
        let place = info.location().map(|place| format!("at {place}\n")).unwrap_or_default();
        BACKTRACE.set(Some(format!("{place}{}", Backtrace::force_capture())));
    }));
}

/// Forgets the backtrace of a panic that user code caught itself.
pub(crate) fn forget_backtrace() {
    BACKTRACE.take();
}

/// A caught panic as a failure.
#[doc(hidden)]
pub fn to_failure(payload: &(dyn Any + Send), stage: Stage, index: Option<u64>) -> Failure {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    Failure { stage, index, chain: vec![message], panicked: true, backtrace: BACKTRACE.take() }
}

/// An error as a failure.
pub(crate) fn error_to_failure(error: &anyhow::Error, stage: Stage, index: Option<u64>) -> Failure {
    let captured = error.backtrace().status() == std::backtrace::BacktraceStatus::Captured;
    Failure {
        stage,
        index,
        chain: error.chain().map(ToString::to_string).collect(),
        panicked: false,
        backtrace: captured.then(|| error.backtrace().to_string()),
    }
}
