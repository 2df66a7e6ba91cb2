//! Starts workers from a template that the program has forked from itself, so that workers have what the program had at
//! that moment.
//!
//! A worker that replaces another one must have the same objects. Main may have changed its objects since, so it cannot
//! fork another template. Therefore the first template forks a spare, which takes its place if it ends. If both have
//! ended, the start of a worker is an error.

use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use loader_ipc::{
    cpu_set::CpuSet,
    patience::Patience,
    process::WorkerProcess,
    slots::KeptLoans,
    template::{Spare, TemplateError, TemplateProcess},
};

use super::{program::StartProcess, start::kill_and_reap, template::start_from};
use crate::error::start_error::WorkerStartError;

/// Maximum time in which the template runs the fork handlers of the program, before it answers for the first time.
const BEGIN_DEADLINE: Duration = Duration::from_secs(300);
/// Maximum time for the end of the template once its last worker has ended.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// A process that main has forked from itself, and that forks workers. It ends when this value is dropped and its last
/// worker has ended.
#[derive(Debug)]
pub struct ForkedTemplate {
    templates: Mutex<Templates>,
    /// True once the template has answered a request, and so has run the fork handlers of the program.
    has_answered: AtomicBool,
    /// The batches that the program held at the fork. Dropped after the template has ended.
    _held: KeptLoans,
    /// The process that has forked it. A forked child of that process has a copy of this value.
    owner: u32,
}

#[derive(Debug)]
struct Templates {
    current: Arc<TemplateProcess>,
    spare: Option<Spare>,
}

impl ForkedTemplate {
    /// The template that this process has forked, and what must be kept as long as it runs.
    pub fn new((template, held): (TemplateProcess, KeptLoans)) -> Self {
        let templates = Templates { current: Arc::new(template), spare: None };
        Self {
            templates: Mutex::new(templates),
            has_answered: AtomicBool::new(false),
            _held: held,
            owner: process::id(),
        }
    }

    fn templates(&self) -> MutexGuard<'_, Templates> {
        self.templates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills a template that has failed, and lets its spare take its place. Returns false if it has none.
    fn replace(&self, failed: &Arc<TemplateProcess>) -> bool {
        let mut templates = self.templates();
        if !Arc::ptr_eq(&templates.current, failed) {
            // Another thread has replaced it.
            return true;
        }
        kill_and_reap(failed.process());
        let Some(Ok(template)) = templates.spare.take().map(Spare::into_template) else { return false };
        templates.current = Arc::new(template);
        true
    }
}

impl Drop for ForkedTemplate {
    fn drop(&mut self) {
        if self.owner != process::id() {
            return;
        }
        let Templates { current, spare } = &mut *self.templates();
        let spare = spare.take().and_then(|spare| spare.into_template().ok());
        // The spare is a child of the template, which ends after it and reports how. If the template was killed, the spare
        // may be a child of this process.
        let all: Vec<_> = spare.iter().chain([&**current]).collect();
        all.iter().for_each(|template| template.end());
        for template in all {
            if template.process().reap_within(END_DEADLINE).is_none() {
                kill_and_reap(template.process());
            }
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
        let template = Arc::clone(&self.templates().current);
        let (limit, descriptors) = (Some(BEGIN_DEADLINE), (lifeline, output));
        let started = start_from(&template, &self.has_answered, limit, cpus, descriptors, worker, patience);
        started.map_err(|error| match error {
            TemplateError::Refused(source) => {
                WorkerStartError::NotSpawned { program: self.describe(), source }
            }
            TemplateError::Interrupted => WorkerStartError::ForkFailed { source: error, can_fork: true },
            // It may have forked a worker for this request, so it must not be asked again.
            source => WorkerStartError::ForkFailed { source, can_fork: self.replace(&template) },
        })
    }

    fn prepare_replacements(&self) {
        let mut templates = self.templates();
        if templates.spare.is_none() {
            // Without a spare, the next call asks for one again.
            templates.spare = templates.current.ask_for_spare().ok();
        }
    }

    fn describe(&self) -> String {
        "a fork of this program".to_owned()
    }
}
