//! Errors of user code that runs in an interpreter.

/// An error of user code in another language, as the extension module of its interpreter describes it.
#[doc(hidden)]
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ForeignError {
    /// The error in one line.
    pub text: String,
    /// Where it was raised. It becomes [`UserFailure::backtrace`](crate::UserFailure::backtrace).
    pub backtrace: String,
    /// True if it concerns the process, as Python's `KeyboardInterrupt` does: then
    /// [`on_bad_sample`](crate::Builder::on_bad_sample) does not apply to it.
    pub concerns_process: bool,
}

/// True if an error is not that of a sample.
pub(crate) fn concerns_process(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ForeignError>().is_some_and(|error| error.concerns_process)
}
