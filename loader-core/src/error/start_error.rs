//! Why a worker did not start.

use std::io;

use loader_ipc::{
    advice, frame::ExitStatus, handshake::HandshakeError, lifeline::LifelineError, process::Halt,
    template::TemplateError,
};
use nix::libc::{EAGAIN, EMFILE, ENFILE, ENOMEM};

/// Why a worker did not start; see [`Error::WorkerNotStarted`](crate::Error::WorkerNotStarted).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerStartError {
    /// The operating system refused to start the process, or refused a descriptor that the process needs.
    #[error("{source}{}", not_spawned(source, program))]
    NotSpawned {
        /// The worker program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The template forked no worker.
    #[error("the template failed: {source} ({program})")]
    TemplateFailed {
        /// The worker program.
        program: String,
        /// Why the last template failed.
        source: TemplateError,
    },
    /// A template that is a fork of main started no worker.
    #[error("the process that forks the workers failed: {source}{}", advice_without_template(*can_fork))]
    ForkFailed {
        /// Why it failed.
        source: TemplateError,
        /// True if main can still start workers with the same objects: from the spare or, after an interrupt, from this
        /// template.
        can_fork: bool,
    },
    /// No folder can hold the socket through which main and the worker connect. The text names the folders
    /// that the loader tried.
    #[error("{0}")]
    NoSocketFolder(String),
    /// The process ended before it answered.
    #[error("{}", ended(*.0))]
    Ended(ExitStatus),
    /// The process did not answer, because it could not continue, for example because SIGSTOP had stopped it.
    #[error("it did not answer: {0}")]
    Halted(Halt),
    /// The process did not answer within 30 seconds.
    #[error(
        "it did not answer; a worker program must call loader::init() or serve a registry first in its main"
    )]
    NoAnswer,
    /// The worker cannot serve the dataset, for the reason that the text gives: it is another build of the
    /// program, or its registry does not have the dataset.
    #[error("{0}")]
    Refused(String),
    /// The worker's queues could not be made.
    #[error("the queues cannot be made: {0}{advice}", advice = advice(.0))]
    NoQueues(#[source] io::Error),
    /// The process answered with something else than the loader's protocol, or the connection failed.
    #[error("{0}")]
    InvalidAnswer(String),
}

impl WorkerStartError {
    /// Returns the error for a handshake that failed. `own_end` is how the process ended, if main did not end
    /// it.
    pub(crate) fn new(error: HandshakeError, own_end: Option<ExitStatus>) -> Self {
        match (own_end, error) {
            (Some(status @ ExitStatus::Signal { .. }), _) => Self::Ended(status),
            (Some(status), error) if error.is_gone() => Self::Ended(status),
            (_, HandshakeError::Lifeline(LifelineError::TimedOut)) => Self::NoAnswer,
            (_, HandshakeError::Lifeline(LifelineError::Halted(halt))) => Self::Halted(halt),
            (_, HandshakeError::Refused(reason)) => Self::Refused(reason),
            (_, HandshakeError::Queue(source)) => Self::NoQueues(source),
            (_, error) => Self::InvalidAnswer(error.to_string()),
        }
    }

    /// True if each later start would fail too: no process is left that can fork workers with main's objects, or the
    /// system does not permit the start. Other causes may go away, such as a lack of memory or a file that is being
    /// replaced.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::ForkFailed { can_fork, .. } => !can_fork,
            Self::NotSpawned { source, .. } => {
                matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
            }
            _ => false,
        }
    }
}

/// True if the template was killed, by main because it hung or by another process, so that another template may start
/// the worker. A program that ends by itself would end again.
pub(crate) fn was_killed(error: &TemplateError) -> bool {
    match error {
        TemplateError::NoAnswer | TemplateError::Halted(_) => true,
        TemplateError::Ended(status) => !matches!(status, ExitStatus::Code(_)),
        _ => false,
    }
}

/// Returns what to do if no process is left that can fork workers.
fn advice_without_template(can_fork: bool) -> &'static str {
    if can_fork {
        return "";
    }
    "; main cannot fork another one with the same objects: begin the epoch again, or resume from the state"
}

fn not_spawned(error: &io::Error, program: &str) -> String {
    match error.raw_os_error() {
        Some(EMFILE | ENFILE) => "; raise the limit on open files (`ulimit -n`), or use fewer workers".into(),
        Some(EAGAIN) => {
            "; the limit on processes (`ulimit -u`, or pids.max of the control group) is reached".into()
        }
        Some(ENOMEM) => advice(error).into(),
        _ => format!(" ({program})"),
    }
}

fn ended(status: ExitStatus) -> String {
    match status {
        // A program that is not a worker program ends by itself.
        ExitStatus::Code(_) => format!(
            "its process {status} before it answered; is loader::init() called first in its main, and is it a worker \
             program?"
        ),
        ExitStatus::Signal { .. } => format!(
            "its process was {status} before it answered; if no other process sent the signal, code that runs before \
             loader::init() crashes"
        ),
        _ => format!("its process is {status}, before it answered"),
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::{EACCES, ENOENT, ENOSYS, EPERM, ETXTBSY};

    use super::*;

    #[test]
    fn only_what_stays_is_final() {
        let not_spawned = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            WorkerStartError::NotSpawned { program: "worker".into(), source }
        };
        for errno in [EACCES, EPERM, ENOSYS] {
            assert!(not_spawned(errno).is_final(), "{errno}");
        }
        for errno in [EAGAIN, EMFILE, ENFILE, ENOMEM, ENOENT, ETXTBSY] {
            assert!(!not_spawned(errno).is_final(), "{errno}");
        }
        let forked = |can_fork| WorkerStartError::ForkFailed { source: TemplateError::NoAnswer, can_fork };
        assert!(forked(false).is_final() && !forked(true).is_final());
        assert!(!WorkerStartError::NoAnswer.is_final());
    }
}
