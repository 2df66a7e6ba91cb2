//! From the start of the process to the first order.

use std::{
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use loader_core::{
    WorkerInfo,
    fetch::{Fetch, OpenFn, OpenSignature, Opening},
    panic::{record_backtraces, to_failure},
};
use loader_ipc::{
    attach::Attached,
    control::ControlPage,
    default_sigchld, end_if_forked,
    entry::AnyFunction,
    frame::{Failure, Stage},
    guard_against_forks,
    handshake::{Bootstrap, Connected, HandshakeError, Work, refuse},
    ignore_sigpipe, keep_freed_memory,
    lifeline::{Lifeline, LifelineError},
    process::take_lifeline_from_stdin,
    queue::{OrderReceiver, ReportSender},
};
use nix::sys::{prctl::set_name, signal::SigSet};
use signal_hook::consts::SIGINT;

use crate::{
    inherited::close_inherited, memory::limit_memory, orders, registry::Registry, watchdog::Watchdog,
};

/// How long the handshake may take, from the start of the process.
const DEADLINE: Duration = Duration::from_secs(30);

/// Serves as a worker to the end; gives the exit code.
pub(crate) fn run(registry: &Registry) -> i32 {
    match serve(registry) {
        Ok(()) => 0,
        Err(error) => {
            // A refusal has told main its reason already, and a main that has ended, or needs no worker any
            // more, reads nothing. Other errors are written to main's standard error, after this worker's
            // number.
            if !matches!(
                error.downcast_ref(),
                Some(HandshakeError::Refused(_) | HandshakeError::Lifeline(LifelineError::Closed))
            ) {
                eprintln!("{error:#}");
            }
            1
        }
    }
}

fn serve(registry: &Registry) -> anyhow::Result<()> {
    prepare_process()?;
    let lifeline = Arc::new(take_lifeline_from_stdin()?);
    let deadline = Instant::now() + DEADLINE;
    let (open, functions, connected) = match meet(registry, &lifeline, deadline) {
        Ok(met) => met,
        // Main is told already, or gone.
        Err(error @ HandshakeError::Refused(_)) => return Err(error.into()),
        Err(error) => return Err(refuse(&lifeline, error.to_string(), deadline).into()),
    };
    record_backtraces();
    let (fetch, session) = open_dataset(open, functions, connected);
    orders::follow(fetch, session, &lifeline)
}

/// The handshake; gives the function that opens the dataset, and everything that it needs.
fn meet(
    registry: &Registry,
    lifeline: &Arc<Lifeline>,
    deadline: Instant,
) -> Result<(OpenFn, Vec<AnyFunction>, Connected), HandshakeError> {
    let (bootstrap, fds) = Bootstrap::receive(lifeline, deadline)?;
    take_name(bootstrap.worker);
    let mut chosen = None;
    let accepts = |work: &Work| {
        chosen = Some(find_open(registry, work)?);
        Ok(())
    };
    let listening = bootstrap.listen(lifeline, accepts, deadline)?;
    // Only now, since it must know what to clean up; until here nothing waits for longer than a dead main lets it.
    let watchdog = Watchdog::start(Arc::clone(lifeline), bootstrap.main_pid, listening.socket())
        .map_err(HandshakeError::Queue)?;
    let connected = listening.accept(bootstrap, fds, lifeline, deadline)?;
    watchdog.nothing_to_clean_up();
    let (open, functions) = chosen.expect("set by `accepts`, without which there is no connection");
    Ok((open, functions, connected))
}

/// Everything that user code in this process should find as in a fresh one, but for Ctrl-C, which is main's business.
fn prepare_process() -> anyhow::Result<()> {
    guard_against_forks();
    close_inherited();
    // A mask is inherited through exec: the thread that started us may have had signals blocked.
    SigSet::empty().thread_set_mask()?;
    // A handler, not "ignore": programs that the dataset starts would inherit the latter.
    signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
    default_sigchld();
    ignore_sigpipe();
    keep_freed_memory();
    Ok(())
}

/// Sets the name of this process in lists of processes. Otherwise it would be `exe`, from `/proc/self/exe`.
fn take_name(worker: u32) {
    // The kernel keeps at most 15 bytes. A failure does no harm.
    if let Ok(name) = CString::new(format!("loader-wkr-{worker}")) {
        let _ = set_name(&name);
    }
}

/// The function that opens the dataset, and those that the dataset's encoding refers to.
fn find_open(registry: &Registry, work: &Work) -> Result<(OpenFn, Vec<AnyFunction>), String> {
    match work {
        Work::Entries(entries) => {
            let functions = entries.resolve().map_err(|error| {
                format!(
                    "{error}: the worker program is not the running one; use the same build, or register the dataset in the \
                     worker program and name it with `registered`"
                )
            })?;
            let open = functions.first().and_then(|open| open.get::<OpenSignature>());
            let open = open.ok_or("the main program sent no function that opens a dataset")?;
            Ok((open, functions[1..].to_vec()))
        }
        Work::Registered { name, types } => Ok((registry.find(name, types)?.open, Vec::new())),
    }
}

/// What `follow` needs of the handshake once the dataset is open.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) worker: usize,
    pub(crate) control: Arc<ControlPage>,
    pub(crate) orders: OrderReceiver,
    pub(crate) results: ReportSender,
    /// Most bytes of its own that this process may have in memory.
    pub(crate) memory_limit: Option<u64>,
}

type Opened = Result<Box<dyn Fetch>, Failure>;

fn open_dataset(open: OpenFn, functions: Vec<AnyFunction>, connected: Connected) -> (Opened, Session) {
    let Connected { bootstrap, control, dataset, attached, orders, results } = connected;
    let worker = bootstrap.worker as usize;
    let (seed, memory_limit) = (bootstrap.seed, bootstrap.memory_limit);
    if let Some(limit) = memory_limit {
        limit_memory(limit);
    }
    let info = WorkerInfo::new(worker, bootstrap.workers as usize, bootstrap.base_seed);
    let attached = Attached { memories: attached, functions };
    let opening = Opening { dataset, attached, seed, worker: info };
    // A failure, a panic included, is kept and answers every task.
    let opened = catch_unwind(AssertUnwindSafe(|| open(opening)));
    end_if_forked();
    let opened = opened.unwrap_or_else(|payload| Err(to_failure(&*payload, Stage::Open, None)));
    (opened, Session { worker, control, orders, results, memory_limit })
}
