//! Starts workers from templates ([`loader_ipc::template`]). The templates belong to this process, not to a
//! loader: all loaders that name the same program and arguments share one, and it stays until this process
//! ends.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use loader_ipc::{
    cpu_set::CpuSet,
    open_closed_streams,
    patience::{Awaited, Patience},
    process::WorkerProcess,
    template::{TemplateError, TemplateProcess},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};

use super::{
    program::{StartProcess, launchers_variables},
    surroundings::Surroundings,
};
use crate::error::start_error::WorkerStartError;

/// Maximum time for an answer of a template that has loaded its libraries. It runs the program's fork handlers, and the
/// kernel copies its page tables, which takes seconds if it has much memory or the machine swaps.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
/// Maximum time to reap a template after SIGKILL.
const REAP_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum time in milliseconds between two checks of a template that no loader uses any more.
const CHECK_INTERVAL: u16 = 60_000;

/// A program that serves as a template.
#[derive(Debug)]
pub(super) struct Template {
    key: Key,
}

/// Path and arguments of a program.
type Key = (PathBuf, Vec<OsString>);

#[derive(Debug)]
struct Running {
    template: TemplateProcess,
    /// True once it has answered a request, and so has loaded its libraries.
    has_answered: AtomicBool,
    /// Those of this process when it started the template.
    surroundings: Surroundings,
    /// This process. A forked child of it has a copy of this value, and must start a template of its own.
    owner: u32,
}

/// The templates of this process.
static TEMPLATES: Mutex<BTreeMap<Key, Arc<Running>>> = Mutex::new(BTreeMap::new());

/// Reaps all templates of this process that have ended.
pub(super) fn reap_ended() {
    // A forked child of this process has copies of them, which it must not touch.
    templates().retain(|_, running| running.owner != process::id() || running.is_running());
}

impl Running {
    fn is_running(&self) -> bool {
        self.template.process().try_reap().is_none()
    }
}

fn templates() -> MutexGuard<'static, BTreeMap<Key, Arc<Running>>> {
    TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Template {
    pub(super) fn new(path: PathBuf, args: Vec<OsString>) -> Self {
        Self { key: (path, args) }
    }

    /// Starts the template if it does not run, and does not wait until it has loaded its libraries.
    pub(super) fn start_early(path: PathBuf, args: Vec<OsString>) -> io::Result<()> {
        Self::new(path, args).running().map(drop)
    }

    /// Returns the running template; starts one if there is none, if it has ended, if the program has closed its
    /// descriptors, or if the [`Surroundings`] of this process have changed.
    fn running(&self) -> io::Result<Arc<Running>> {
        let surroundings = Surroundings::now();
        reap_ended();
        let mut templates = templates();
        if let Some(running) = templates.get(&self.key)
            && running.owner == process::id()
            && running.surroundings == surroundings
            && running.template.has_descriptors()
            && running.is_running()
        {
            return Ok(Arc::clone(running));
        }
        let (path, args) = &self.key;
        open_closed_streams()?;
        let template = TemplateProcess::spawn(path, args, launchers_variables())?;
        let has_answered = AtomicBool::new(false);
        let running = Running { template, has_answered, surroundings, owner: process::id() };
        let running = Arc::new(running);
        if let Some(replaced) = templates.insert(self.key.clone(), Arc::clone(&running))
            && replaced.owner == process::id()
        {
            reap_at_its_end(Arc::clone(replaced.template.process()));
        }
        Ok(running)
    }

    /// Kills a template that has failed, so that the next start begins another one.
    fn discard(&self, failed: &Arc<Running>) {
        let mut templates = templates();
        if templates.get(&self.key).is_some_and(|running| Arc::ptr_eq(running, failed)) {
            templates.remove(&self.key);
        }
        drop(templates);
        let process = failed.template.process();
        process.signal(Signal::SIGKILL);
        if process.reap_within(REAP_DEADLINE).is_none() {
            reap_at_its_end(Arc::clone(process));
        }
    }
}

/// Starts a thread that reaps a template which no loader uses any more: a replaced template ends after its last
/// worker. A reaper cannot do it, because it stops with its pool, and this may be earlier.
fn reap_at_its_end(process: Arc<WorkerProcess>) {
    let wait = move || {
        while process.try_reap().is_none() {
            let mut ends: Vec<_> =
                process.pidfd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into_iter().collect();
            // After any result, including EINTR, the thread looks again.
            let _ = poll(&mut ends, PollTimeout::from(CHECK_INTERVAL));
        }
    };
    // Without the thread, the ended process stays in the list of processes until this process ends.
    drop(thread::Builder::new().name("loader-template".into()).spawn(wait));
}

/// Starts worker `worker` from `template`. Waits for its first answer up to `first_limit`, or without limit, and for a
/// later one up to [`ANSWER_DEADLINE`]. `has_answered` tells which one it is. `descriptors` are the worker's lifeline and
/// output.
pub(super) fn start_from(
    template: &TemplateProcess,
    has_answered: &AtomicBool,
    first_limit: Option<Duration>,
    cpus: Option<&CpuSet>,
    descriptors: (OwnedFd, OwnedFd),
    worker: usize,
    patience: &mut Patience<'_>,
) -> Result<WorkerProcess, TemplateError> {
    // Relaxed, here and below: the flag guards no other data. With an old value, the wait is longer.
    let limit = if has_answered.load(Ordering::Relaxed) { Some(ANSWER_DEADLINE) } else { first_limit };
    let awaited = Awaited { worker, process: Arc::clone(template.process()) };
    patience.turn_to(awaited, limit.map_or(Duration::MAX, |limit| patience.waited() + limit));
    let (lifeline, output) = descriptors;
    let process = template.start(cpus, lifeline, output, patience)?;
    has_answered.store(true, Ordering::Relaxed);
    Ok(process)
}

impl StartProcess for Template {
    /// A forked worker keeps the template's arguments, so `name` is not used.
    fn start(
        &self,
        _name: &OsStr,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        worker: usize,
        patience: &mut Patience<'_>,
    ) -> Result<WorkerProcess, WorkerStartError> {
        let program = || self.describe();
        let not_spawned = |source| WorkerStartError::NotSpawned { program: program(), source };
        let running = self.running().map_err(not_spawned)?;
        let failed = |source| Err(WorkerStartError::TemplateFailed { program: program(), source });
        let Running { template, has_answered, .. } = &*running;
        // Until its first answer, it may run code of the user, such as the imports of a script.
        match start_from(template, has_answered, None, cpus, (lifeline, output), worker, patience) {
            Ok(process) => Ok(process),
            Err(TemplateError::Refused(source)) => Err(not_spawned(source)),
            // It may load its libraries for the next call.
            Err(source @ TemplateError::Interrupted) => failed(source),
            Err(source) => {
                self.discard(&running);
                failed(source)
            }
        }
    }

    fn describe(&self) -> String {
        self.key.0.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use loader_ipc::{frame::ExitStatus, lifeline::Lifeline};

    use super::*;

    /// Asks a shell that runs `script` instead of a template for a worker.
    fn ask(script: &str) -> TemplateError {
        let template = Template::new("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let (_lifeline, theirs) = Lifeline::pair().unwrap();
        let (_reader, output) = io::pipe().unwrap();
        let mut look = |_: Duration, _: &Awaited| false;
        let mut patience = Patience::with(&mut look);
        let name = OsStr::new("worker");
        let error = template.start(name, None, theirs, output.into(), 0, &mut patience).unwrap_err();
        assert!(!templates().contains_key(&template.key), "the template is discarded");
        let WorkerStartError::TemplateFailed { program, source } = error else { panic!("{error:?}") };
        assert_eq!(program, "/bin/sh");
        source
    }

    #[test]
    fn a_program_that_is_no_template_is_an_error_at_once() {
        for (script, status) in [
            ("exit 7", ExitStatus::Code(7)),
            ("kill -9 $$", ExitStatus::Signal { signal: 9, core_dumped: false }),
        ] {
            let error = ask(script);
            assert!(matches!(error, TemplateError::Ended(ended) if ended == status), "{error:?}");
        }
        let error = ask("exec <&-; exec sleep 60");
        assert!(matches!(error, TemplateError::InvalidAnswer(_)), "{error:?}");
    }

    #[test]
    fn a_template_loads_without_limit_and_goes_on_when_the_wait_for_it_is_interrupted() {
        let template = Template::new("/bin/sleep".into(), vec!["61".into()]);
        let mut pids = Vec::new();
        for worker in 0..2 {
            let (_lifeline, theirs) = Lifeline::pair().unwrap();
            let (_reader, output) = io::pipe().unwrap();
            let mut look = |_: Duration, awaited: &Awaited| {
                pids.push(awaited.process.pid());
                awaited.worker == worker
            };
            let mut patience = Patience::with(&mut look);
            let started =
                template.start(OsStr::new("worker"), None, theirs, output.into(), worker, &mut patience);
            let error = started.unwrap_err();
            let WorkerStartError::TemplateFailed { source, .. } = error else { panic!("{error:?}") };
            assert!(matches!(source, TemplateError::Interrupted), "{source:?}");
            assert!(format!("{patience:?}").contains(&format!("end: {:?}", Duration::MAX)), "{patience:?}");
        }
        let running = templates().get(&template.key).map(Arc::clone).unwrap();
        assert_eq!(pids, [running.template.process().pid(); 2]);
        template.discard(&running);
    }
}
