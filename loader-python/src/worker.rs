//! The entries of worker processes, and of the template that forks them.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::{
    WorkerProgram,
    internal::{self, Fork},
};
use loader_worker::{Registry, StartRequest, Streams};
use nix::sys::signal::{SigSet, SigmaskHow};
use pyo3::{exceptions::PyRuntimeError, prelude::*};

/// Serves as a worker until main does not need it any more. Returns the exit code for the process.
///
/// Main has the same extension module, so it sends the addresses of functions, and the worker needs no registry.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>) -> i32 {
    py.detach(|| Registry::new().serve_code())
}

/// Called in main: starts the template process unless it runs, and does not wait until it has loaded its libraries.
#[pyfunction]
pub(crate) fn start_template(program: PathBuf, arguments: Vec<String>) -> PyResult<()> {
    Ok(WorkerProgram::new(program).args(arguments).template().start_template()?)
}

/// Called in main: the names of the environment variables by which a launcher has told main its rank. The template does
/// not inherit them.
#[pyfunction]
pub(crate) fn launchers_variables() -> Vec<OsString> {
    internal::launchers_variables().collect()
}

/// Called in main, before it makes files for workers: opens `/dev/null` in the place of each standard stream that is
/// closed.
#[pyfunction]
pub(crate) fn open_closed_streams() -> PyResult<()> {
    Ok(internal::open_closed_streams()?)
}

/// A process that forks workers. Make it before the interpreter loads large libraries.
///
/// For each request, call `next_request`, then `os.fork`, then `become_worker` in the child, and `started` or
/// `not_started` in the template.
#[pyclass(module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Template {
    /// `None` in a worker.
    template: Option<loader_worker::Template>,
    request: Option<StartRequest>,
}

#[pymethods]
impl Template {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self { template: Some(loader_worker::Template::from_stdin()?), request: None })
    }

    /// Waits for main's next request. False if no request will come: the process should exit.
    fn next_request(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Self { template, request } = self;
        let template = template.as_mut().ok_or_else(out_of_turn)?;
        *request = py.detach(|| template.next_request())?;
        Ok(request.is_some())
    }

    /// Reports that this process has forked the child `pid` for the request.
    fn started(&mut self, pid: u32) -> PyResult<()> {
        let (template, request) = self.turn()?;
        template.started(request, pid);
        Ok(())
    }

    /// Reports that the system refused to fork, with the error number `errno`.
    fn not_started(&mut self, errno: i32) -> PyResult<()> {
        let (template, request) = self.turn()?;
        template.not_started(request, &io::Error::from_raw_os_error(errno));
        Ok(())
    }

    /// Makes this process, a forked child, a template if the request wants one. False if it wants a worker.
    fn become_spare(&mut self) -> PyResult<bool> {
        let (template, request) = self.turn()?;
        let request = template.become_spare(request);
        self.request = request;
        Ok(self.request.is_none())
    }

    /// Makes this process, a forked child, the worker of the request. `serve` must follow.
    fn become_worker(&mut self) -> PyResult<()> {
        let request = self.request.take().ok_or_else(out_of_turn)?;
        let template = self.template.take().ok_or_else(out_of_turn)?;
        Ok(template.become_worker(request)?)
    }
}

/// A template that main forks from itself by `fork`. In the child, `in_child` must follow.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct ForkedTemplate {
    /// `None` once the process has forked.
    fork: Mutex<Option<Fork>>,
    /// `None` before the process has forked, and in the child.
    forked: Mutex<Option<Arc<internal::ForkedTemplate>>>,
}

#[pymethods]
impl ForkedTemplate {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self { fork: Mutex::new(Some(Fork::new()?)), forked: Mutex::default() })
    }

    /// Forks by Python's `os.fork`. True in the child, which has all signals blocked until `in_child`, so that no
    /// handler of main runs there.
    ///
    /// This is not written in Python, because an exception of a signal handler, such as `KeyboardInterrupt`, may come
    /// between any two steps there: main would lose the process id, or keep its signals blocked.
    fn fork(&self, py: Python<'_>) -> PyResult<bool> {
        let fork = py.import("os")?.getattr("fork")?;
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(io::Error::from)?;
        let pid = fork.call0().and_then(|pid| pid.extract::<u32>());
        let result = match pid {
            Ok(0) => return Ok(true),
            Ok(pid) => self.take_fork().and_then(|fork| self.note(fork, pid)),
            Err(error) => Err(error),
        };
        before.thread_set_mask().map_err(io::Error::from)?;
        result.map(|()| false)
    }

    /// Makes this process, the forked child, a template. The arguments tell whether the interpreter was started with
    /// these streams.
    fn in_child(&self, has_stdin: bool, has_stderr: bool) -> PyResult<Template> {
        let (requests, main) = self.take_fork()?.in_child();
        let template = loader_worker::Template::of_fork(requests, main, Streams { has_stdin, has_stderr })?;
        Ok(Template { template: Some(template), request: None })
    }
}

impl ForkedTemplate {
    fn note(&self, fork: Fork, pid: u32) -> PyResult<()> {
        let forked = Arc::new(internal::ForkedTemplate::new(fork.in_main(pid)?));
        self.forked.lock().unwrap_or_else(PoisonError::into_inner).replace(forked);
        Ok(())
    }

    fn take_fork(&self) -> PyResult<Fork> {
        self.fork.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(out_of_turn)
    }

    /// Takes the template, for an engine.
    pub(crate) fn take(&self) -> Option<Arc<internal::ForkedTemplate>> {
        self.forked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Template {
    fn turn(&mut self) -> PyResult<(&mut loader_worker::Template, StartRequest)> {
        let request = self.request.take().ok_or_else(out_of_turn)?;
        Ok((self.template.as_mut().ok_or_else(out_of_turn)?, request))
    }
}

fn out_of_turn() -> PyErr {
    PyRuntimeError::new_err("call `next_request` first; a forked worker cannot use the template")
}
