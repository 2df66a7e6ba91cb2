//! What a template tells main about a worker that it has forked.

use serde::{Deserialize, Serialize};

use crate::{frame::ExitStatus, observed::CpuUse};

/// What a template tells main about one worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum TemplateReport {
    /// The template has forked the worker (one descriptor: the worker's pidfd).
    Started {
        /// The worker's process id.
        pid: u32,
    },
    /// The template could not fork.
    NotStarted {
        /// The number of the operating system's error, if it has one.
        errno: Option<i32>,
        /// The error as text.
        text: String,
    },
    /// The worker has ended, and the template has reaped it.
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// For how long it has used CPUs, and has waited for them.
        cpu_use: CpuUse,
    },
}
