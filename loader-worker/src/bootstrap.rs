//! What a worker does from the start of its process to the first command.

use std::{
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use loader_core::{
    WorkerInfo,
    internal::{Fetch, OpenFn, OpenRequest, OpenSignature, record_backtraces, to_failure},
};
use loader_ipc::{
    attach::Attached,
    end_if_forked,
    entry::AnyFunction,
    frame::{Failure, Stage},
    guard_against_forks,
    handshake::{Bootstrap, Connected, DatasetCode, HandshakeError, refuse},
    keep_freed_memory,
    lifeline::{Lifeline, LifelineError},
    oom::take_number_of_main,
    patience::Patience,
    process::{is_worker, take_lifeline_from_stdin},
};
use nix::sys::prctl::set_name;

use crate::{
    commands::{self, Session},
    inherited::{leave_host, main_pidfd, take_lifeline},
    memory::MemoryLimit,
    registry::Registry,
    watchdog::Watchdog,
};

/// Maximum time from the start of the process to the end of the handshake.
const DEADLINE: Duration = Duration::from_secs(30);

impl Registry {
    /// Serves as a worker until the main process does not need the worker any more. Make this call the whole
    /// `main` of a worker program.
    ///
    /// In a process that no loader has started, prints an explanation to standard error and returns exit code
    /// 2.
    pub fn serve(&self) -> ExitCode {
        ExitCode::from(u8::try_from(self.serve_code()).unwrap_or(1))
    }

    /// As [`serve`](Self::serve), for an interpreter that ends its process itself: returns the exit code as a
    /// number.
    #[doc(hidden)]
    pub fn serve_code(&self) -> i32 {
        if !is_worker() {
            eprintln!(
                "this program is a worker of a data loader, and only a loader can start it: set `worker_program` or \
                 LOADER_WORKER to its path; it serves the datasets {}",
                self.names()
            );
            return 2;
        }
        run(self)
    }
}

/// Serves as a worker. Returns the exit code for this process.
pub(crate) fn run(registry: &Registry) -> i32 {
    match serve(registry) {
        Ok(()) => 0,
        Err(error) => {
            // Main knows the reason of a refusal, and a closed lifeline means that main has ended or dropped
            // this worker. Main prints other errors to its own standard error, with this worker's number.
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
    let lifeline = Arc::new(match take_lifeline() {
        Some(lifeline) => lifeline,
        None => take_lifeline_from_stdin()?,
    });
    let mut patience = Patience::new(DEADLINE);
    let (open, functions, connected) = match perform_handshake(registry, &lifeline, &mut patience) {
        Ok(connected) => connected,
        // The worker has sent the error to main, or main is gone.
        Err(error @ HandshakeError::Refused(_)) => return Err(error.into()),
        Err(error) => return Err(refuse(&lifeline, error.to_string(), &mut patience).into()),
    };
    let (fetch, session) = open_dataset(open, functions, connected);
    commands::run(fetch, session, &lifeline)
}

/// Performs the handshake. Returns the function that opens the dataset, and what it needs.
fn perform_handshake(
    registry: &Registry,
    lifeline: &Arc<Lifeline>,
    patience: &mut Patience<'_>,
) -> Result<(OpenFn, Vec<AnyFunction>, Connected), HandshakeError> {
    let (bootstrap, fds) = Bootstrap::receive(lifeline, patience)?;
    set_process_name(bootstrap.worker);
    if !bootstrap.raises_oom_score {
        take_number_of_main();
    }
    let mut chosen = None;
    let accepts = |code: &DatasetCode| {
        chosen = Some(find_open(registry, code)?);
        Ok(())
    };
    let listening = bootstrap.listen(lifeline, accepts, patience)?;
    // The watchdog starts only now, because it must know which socket to remove. The steps before wait only
    // on the lifeline, so they end without a watchdog if main is gone.
    let watchdog = Watchdog::start(Arc::clone(lifeline), bootstrap.main_pid, listening.socket())
        .map_err(HandshakeError::Queue)?;
    let connected = listening.accept(bootstrap, fds, lifeline, patience)?;
    watchdog.forget_socket();
    let (open, functions) = chosen.expect("`accepts` has set it, or `listen` has failed");
    Ok((open, functions, connected))
}

/// Gives this process the state that user code expects in a new process, with one exception: the signals
/// [`signals_for_main`](loader_ipc::process::signals_for_main) do not end a worker.
fn prepare_process() -> anyhow::Result<()> {
    guard_against_forks();
    // The template has done this, and its libraries may have opened files and set signal actions since.
    if main_pidfd().is_none() {
        leave_host()?;
    }
    keep_freed_memory();
    Ok(())
}

/// Sets the name of this process in process lists. Without this call the name is `exe`, from
/// `/proc/self/exe`.
fn set_process_name(worker: u32) {
    // The kernel keeps at most 15 bytes. A failure does no harm.
    if let Ok(name) = CString::new(format!("loader-wkr-{worker}")) {
        let _ = set_name(&name);
    }
}

/// Finds the function that opens the dataset, and the functions that the dataset's encoding refers to.
fn find_open(registry: &Registry, code: &DatasetCode) -> Result<(OpenFn, Vec<AnyFunction>), String> {
    match code {
        DatasetCode::Entries(entries) => {
            let functions = entries.resolve().map_err(|error| {
                format!(
                    "{error}; the worker program and the main program differ: use the same build for both, or register the \
                     dataset in the worker program and select it with `registered`"
                )
            })?;
            let open = functions.first().and_then(|open| open.get::<OpenSignature>());
            let open = open.ok_or("the main program sent no function that opens a dataset")?;
            Ok((open, functions[1..].to_vec()))
        }
        DatasetCode::Registered { name, types, .. } => Ok((registry.find(name, types)?.open, Vec::new())),
    }
}

type Opened = Result<Box<dyn Fetch>, Failure>;

fn open_dataset(open: OpenFn, functions: Vec<AnyFunction>, connected: Connected) -> (Opened, Session) {
    let Connected { bootstrap, control, dataset, memories, files, commands, results } = connected;
    let worker = bootstrap.worker as usize;
    let (seed, memory_limit) = (bootstrap.seed, bootstrap.memory_limit.map(MemoryLimit::set));
    let info = WorkerInfo::new(worker, bootstrap.workers as usize, bootstrap.base_seed);
    let attached = Attached { memories, files, functions };
    let schema = match bootstrap.code {
        DatasetCode::Registered { schema, .. } => Some(schema),
        DatasetCode::Entries(_) => None,
    };
    let sends_schemas = schema.is_some();
    let opening = OpenRequest { dataset, attached, schema, seed, worker: info };
    record_backtraces();
    // If opening fails or panics, the worker keeps the failure and answers every task with it.
    let opened = catch_unwind(AssertUnwindSafe(|| open(opening)));
    end_if_forked();
    let opened = opened.unwrap_or_else(|payload| Err(to_failure(&*payload, Stage::Open, None)));
    (opened, Session { worker, control, commands, results, memory_limit, sends_schemas })
}
