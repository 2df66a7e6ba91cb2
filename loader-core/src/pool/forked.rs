//! Starts workers from a template that the program has forked from itself, so that workers have what the program had at
//! that moment.
//!
//! A worker that replaces another one must have the same objects, so the template cannot be replaced: main may have
//! changed its objects since. If it has ended, a worker that dies is not replaced, and the start of its replacement is an
//! error.

use std::{ffi::OsStr, os::fd::OwnedFd, process, sync::Arc, time::Duration};

use loader_ipc::{
    cpu_set::CpuSet,
    patience::{Awaited, Patience},
    process::WorkerProcess,
    template::{TemplateError, TemplateProcess},
};
use nix::sys::signal::Signal;

use super::{WorkerStartError, program::StartProcess};

/// Maximum time for an answer of the template.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time for the end of the template once its last worker has ended.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// A process that main has forked from itself, and that forks workers. It ends when this value is dropped and its last
/// worker has ended.
#[derive(Debug)]
pub struct ForkedTemplate {
    template: TemplateProcess,
    /// The process that has forked it. A forked child of that process has a copy of this value.
    owner: u32,
}

impl ForkedTemplate {
    /// The template that this process has forked.
    pub fn new(template: TemplateProcess) -> Self {
        Self { template, owner: process::id() }
    }
}

impl Drop for ForkedTemplate {
    fn drop(&mut self) {
        if self.owner != process::id() {
            return;
        }
        self.template.end();
        let process = self.template.process();
        if process.reap_within(END_DEADLINE).is_none() {
            process.signal(Signal::SIGKILL);
            process.reap_within(END_DEADLINE);
        }
    }
}

/// Two are equal if they are the same process.
impl PartialEq for ForkedTemplate {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for ForkedTemplate {}

impl StartProcess for Arc<ForkedTemplate> {
    /// A forked worker keeps the arguments of main, so `name` is not used.
    fn start(
        &self,
        _name: &OsStr,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        worker: usize,
        patience: &mut Patience<'_>,
    ) -> Result<WorkerProcess, WorkerStartError> {
        let awaited = Awaited { worker, process: Arc::clone(self.template.process()) };
        patience.turn_to(awaited, patience.waited() + ANSWER_DEADLINE);
        self.template.start(cpus, lifeline, output, patience).map_err(|error| match error {
            TemplateError::Refused(source) => {
                WorkerStartError::NotSpawned { program: self.describe(), source }
            }
            source => {
                // It may have forked a worker for this request, so it must not be asked again.
                if !matches!(source, TemplateError::Interrupted) {
                    self.template.process().signal(Signal::SIGKILL);
                }
                WorkerStartError::ForkFailed { source }
            }
        })
    }

    fn describe(&self) -> String {
        "a fork of this program".to_owned()
    }
}
