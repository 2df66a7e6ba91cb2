//! The iterator over the batches of an epoch.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use loader_core::{BatchInfo, Error, Iter, SampleDigest, State, collate::Batch};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyRuntimeError, PyStopIteration, PyValueError},
    prelude::*,
    types::PyDict,
};

use crate::{
    batch::AnyBatch, errors, opened, order::HAS_RAISED, raised::Raised, state::EngineState,
    warnings::Warnings,
};

/// How often a wait for a batch looks for signals, such as Ctrl-C.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the end of the interpreter waits for an iterator that another thread uses.
const EXIT_DEADLINE: Duration = Duration::from_secs(1);

/// How often it looks meanwhile.
const EXIT_INTERVAL: Duration = Duration::from_millis(5);

/// The exception after the last batch that an interrupted sampler has given.
const SAMPLER_INTERRUPTED: &str = "the rest of the epoch is not known, because the sampler was interrupted, for \
                                   example by Ctrl-C: resume from state_dict(), or begin a new epoch";

/// The warning of an iterator that goes on although its loader has loaded a state.
const STATE_MISSED: &str = "the loader has loaded a state after this iterator was made, and the iterator goes on without \
                            that state: call load_state_dict() before iter()";

/// The batches of an epoch. Waiting for one releases the interpreter's lock and notices Ctrl-C.
#[pyclass(frozen, weakref, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct BatchIterator {
    /// `None` once it is closed. A thread waits for this lock only while it does not hold the interpreter's lock,
    /// which the thread that holds this one may wait for.
    iter: Mutex<Option<Box<dyn AnyIter>>>,
    /// The thread that is in `__next__`, and the state before that call. User code of the call, such as a signal
    /// handler, may ask for the state in the same thread.
    busy: Mutex<Option<(ThreadId, State)>>,
    /// The state before the last call of `__next__`.
    before: Mutex<Option<State>>,
    /// The state when the iterator was closed.
    last_state: LastState,
    /// Set if the last call of `__next__` was interrupted, such as by Ctrl-C, and so the program has not got a batch.
    undone: Mutex<Option<Undone>>,
    /// Number of the dataset, if it is one of Python objects.
    dataset_number: Option<u64>,
    /// True if each sample calls Python code in this thread, so that it keeps the interpreter's lock.
    is_local: bool,
    /// What the sampler has raised.
    raised: Raised,
    warnings: Warnings,
    /// True until the warning, if the loader has loaded a state since the iterator was made, and the iterator may go on
    /// without it.
    has_missed_state: AtomicBool,
    /// Makes an object of a pickle and its arrays, or of a tensor of a Rust dataset's batch.
    convert: Py<PyAny>,
}

/// The state of an iterator when it was closed or dropped, which its engine keeps.
pub(crate) type LastState = Arc<Mutex<Option<State>>>;

/// What the engine returns for a batch; `None` at the end.
type Next = Option<Result<Box<dyn AnyBatch>, Error>>;

/// A call of `__next__` that was interrupted.
#[derive(Debug)]
struct Undone {
    /// The state before the call, which is the state until the next call.
    state: Option<State>,
    /// What the next call returns; `None` if it could not be kept, as the batch of a Rust dataset that was being
    /// converted.
    next: Option<Next>,
}

/// An [`Iter`] over batches of any type.
pub(crate) trait AnyIter: fmt::Debug + Send {
    /// Returns the next batch, or an error in its place.
    fn next(&mut self) -> Next;
    fn epoch(&self) -> u64;
    fn state(&self) -> State;
    fn first_unreturned(&self) -> Option<u64>;
    fn draw_first(&mut self);
    fn worker_pids(&self) -> Vec<u32>;
    fn report(&self) -> String;
    fn digest(&self) -> Option<SampleDigest>;
    fn last_batch(&self) -> Option<BatchInfo>;
    /// Interrupts a wait at intervals, for signal handlers.
    fn interrupt_waits(&mut self);
}

impl<B: Batch + AnyBatch> AnyIter for Iter<B> {
    fn next(&mut self) -> Next {
        let next = Iterator::next(self)?;
        Some(next.map(|batch| -> Box<dyn AnyBatch> { Box::new(batch) }))
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn state(&self) -> State {
        self.state()
    }

    fn first_unreturned(&self) -> Option<u64> {
        self.first_unreturned()
    }

    fn draw_first(&mut self) {
        self.draw_first();
    }

    fn worker_pids(&self) -> Vec<u32> {
        self.worker_pids()
    }

    fn report(&self) -> String {
        self.report().to_string()
    }

    fn digest(&self) -> Option<SampleDigest> {
        self.report().digest
    }

    fn last_batch(&self) -> Option<BatchInfo> {
        self.last_batch().cloned()
    }

    fn interrupt_waits(&mut self) {
        self.interrupt_when(SIGNAL_INTERVAL, || true);
    }
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_busy() {
            return Err(PyValueError::new_err("the iterator is already executing in this thread"));
        }
        // Before a batch is taken: a warning may be an exception, and no batch may be lost for it.
        self.warn(py)?;
        let (next, noted) = match self.take_undone() {
            Some(next) => (next, None),
            None => loop {
                match self.next_batch(py) {
                    // Signal handlers run while the iterator is not locked.
                    (Some(Err(Error::Interrupted)), _) => py.check_signals()?,
                    // The ranks may be the workers of PyTorch's loader, which need not have equally many batches.
                    (Some(Err(Error::NoShare { .. })), _) if is_in_worker(py)? => break (None, None),
                    next => break next,
                }
            },
        };
        if let Some(interrupt) = self.raised.take_interrupt(py) {
            self.undo(Some(next));
            return Err(interrupt);
        }
        // At the end of its epoch, the iterator does not go on, and the next one begins at the state. Relaxed: the flag
        // guards no other data.
        if next.is_some()
            && self.has_missed_state.swap(false, Ordering::Relaxed)
            && let Err(error) = warn(py, STATE_MISSED)
        {
            self.undo(Some(next));
            return Err(error);
        }
        let (mut kept, is_batch, is_end) = (None, matches!(next, Some(Ok(_))), next.is_none());
        let object = match next {
            Some(Ok(batch)) => batch.into_object(self.convert.bind(py), &mut kept),
            Some(Err(error)) if is_of_sampler(&error) => Err(self.raised.take(py).unwrap_or_else(|| {
                // The program has got the exception of an interrupt before. Each later call raises this one too,
                // because StopIteration would say that the epoch is over.
                self.undo(Some(Some(Err(error))));
                PyRuntimeError::new_err(SAMPLER_INTERRUPTED)
            })),
            Some(Err(error)) => Err(errors::to_python(py, &error, self.dataset_number.is_some(), noted)),
            None => {
                self.warn(py)?;
                Err(PyStopIteration::new_err(()))
            }
        };
        object.map_err(|error| {
            if errors::is_interrupt(py, &error) || (is_batch && errors::is_of_signal_handler(py, &error)) {
                self.undo(kept.map(|batch| Some(Ok(batch))));
            }
            if is_end { error } else { errors::without_stop_iteration(py, error) }
        })
    }

    /// Takes the batch back that the last call of `__next__` has returned, because the program has not got it: the next
    /// call returns it again.
    fn put_back(&self, batch: Py<PyAny>) {
        self.undo(Some(Some(Ok(Box::new(batch)))));
    }

    /// Notes that the loader has loaded a state, which this iterator does not know.
    fn note_loaded_state(&self) {
        self.has_missed_state.store(true, Ordering::Relaxed);
    }

    /// True if the next call of `__next__` returns what the last one could not return, and loads nothing.
    fn has_put_back(&self) -> bool {
        lock(&self.undone).as_ref().is_some_and(|undone| undone.next.is_some())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.convert)
    }

    /// Returns the state; `None` once the iterator is closed.
    fn state(&self, py: Python<'_>) -> Option<EngineState> {
        let state = match lock(&self.busy).as_ref() {
            Some((thread, state)) if *thread == thread::current().id() => Some(state.clone()),
            _ => None,
        };
        let state = state.or_else(|| self.undone_state());
        state.or_else(|| self.with(py, |iter| iter.state())).map(EngineState)
    }

    /// Number of the epoch.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> u64 {
        self.with(py, |iter| iter.epoch()).unwrap_or_default()
    }

    /// Returns the number of the first batch that was not returned; `None` if there is none, or if it is not known.
    fn first_unreturned(&self, py: Python<'_>) -> Option<u64> {
        self.with(py, |iter| iter.first_unreturned()).flatten()
    }

    /// Takes the first batch from the sampler now. Without workers, the first call of `next` does it otherwise.
    fn draw_first(&self, py: Python<'_>) {
        self.with(py, |iter| iter.draw_first());
    }

    /// Returns the process ids of the workers.
    fn worker_pids(&self, py: Python<'_>) -> Vec<u32> {
        self.with(py, |iter| iter.worker_pids()).unwrap_or_default()
    }

    /// Returns the report of the epoch so far.
    fn report(&self, py: Python<'_>) -> Option<String> {
        self.with(py, |iter| iter.report())
    }

    /// Returns the digest of the samples of the epoch so far, which includes the part of the epoch before a resume: the
    /// sum of one hash of 128 bits per sample, as 32 hexadecimal digits, and the number of these samples.
    ///
    /// Returns `None` without the option `digest`, and once the iterator is closed.
    fn digest(&self, py: Python<'_>) -> Option<(String, u64)> {
        let digest = self.with(py, |iter| iter.digest()).flatten()?;
        Some((digest.to_string(), digest.samples()))
    }

    /// Returns what is known of the batch that was returned last.
    fn last_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(Some(info)) = self.with(py, |iter| iter.last_batch()) else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("number", info.number)?;
        dict.set_item("indices", info.indices)?;
        dict.set_item("samples", info.samples)?;
        dict.set_item("shard", info.shard)?;
        dict.set_item("worker", info.worker)?;
        Ok(Some(dict))
    }

    /// Ends the workers, or keeps persistent ones for the next epoch.
    fn close(&self, py: Python<'_>) {
        if !self.is_busy() {
            py.detach(|| {
                let iter = lock(&self.iter).take();
                self.keep_state(iter.as_deref());
                // After the lock: the end of a sampler may run user code that uses this iterator.
                drop(iter);
            });
            let undone = lock(&self.undone).take();
            drop(undone);
        }
    }

    /// Closes the iterator at the end of the interpreter. Leaves it if another thread uses it for longer than a
    /// second.
    fn close_at_exit(&self, py: Python<'_>) {
        if self.is_busy() {
            return;
        }
        py.detach(|| {
            let deadline = Instant::now() + EXIT_DEADLINE;
            let iter = loop {
                match self.iter.try_lock() {
                    Ok(mut iter) => break iter.take(),
                    Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner().take(),
                    Err(TryLockError::WouldBlock) if Instant::now() >= deadline => break None,
                    Err(TryLockError::WouldBlock) => thread::sleep(EXIT_INTERVAL),
                }
            };
            self.keep_state(iter.as_deref());
            // After the lock, as in `close`.
            drop(iter);
        });
    }
}

/// True in a worker process, also in one of PyTorch's loader.
pub(crate) fn is_in_worker(py: Python<'_>) -> PyResult<bool> {
    Ok(!py.import("loader._worker_info")?.call_method0("any_worker_info")?.is_none())
}

impl BatchIterator {
    pub(crate) fn new(
        mut iter: Box<dyn AnyIter>,
        dataset_number: Option<u64>,
        is_local: bool,
        raised: Raised,
        warnings: Warnings,
        convert: Py<PyAny>,
        last_state: LastState,
    ) -> Self {
        iter.interrupt_waits();
        let (busy, before, undone) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self {
            iter: Mutex::new(Some(iter)),
            busy,
            before,
            last_state,
            undone,
            dataset_number,
            is_local,
            raised,
            warnings,
            has_missed_state: AtomicBool::new(false),
            convert,
        }
    }

    /// Gives the engine's warnings to Python. A warning may be an exception there.
    fn warn(&self, py: Python<'_>) -> PyResult<()> {
        for warning in self.warnings.take() {
            warn(py, &warning)?;
        }
        Ok(())
    }

    /// Notes that the last call of `__next__` was interrupted, and what the next call returns if that could be kept.
    fn undo(&self, next: Option<Next>) {
        let state = lock(&self.before).clone();
        let before = lock(&self.undone).replace(Undone { state, next });
        drop(before);
    }

    /// Returns the state before the call that was interrupted.
    fn undone_state(&self) -> Option<State> {
        lock(&self.undone).as_ref()?.state.clone()
    }

    /// Gives the engine the state of an iterator that is closed now.
    fn keep_state(&self, iter: Option<&dyn AnyIter>) {
        if let Some(iter) = iter {
            *lock(&self.last_state) = Some(self.undone_state().unwrap_or_else(|| iter.state()));
        }
    }

    /// Takes what the last call could not return.
    fn take_undone(&self) -> Option<Next> {
        let Undone { state, next } = lock(&self.undone).take()?;
        if next.is_some() {
            *lock(&self.before) = state;
        }
        next
    }

    /// True if this thread is in `__next__`, and waiting for the iterator would never end.
    fn is_busy(&self) -> bool {
        lock(&self.busy).as_ref().is_some_and(|(thread, _)| *thread == thread::current().id())
    }

    /// Returns what the engine returns, and the exception that it stands for if this process loads the samples.
    fn next_batch(&self, py: Python<'_>) -> (Next, Option<PyErr>) {
        if self.is_local
            && let Ok(mut iter) = self.iter.try_lock()
        {
            return self.next_of(&mut iter);
        }
        py.detach(|| self.next_of(&mut lock(&self.iter)))
    }

    fn next_of(&self, iter: &mut Option<Box<dyn AnyIter>>) -> (Next, Option<PyErr>) {
        let Some(iter) = iter.as_mut() else { return (None, None) };
        *lock(&self.busy) = Some((thread::current().id(), iter.state()));
        let _idle = OnDrop(|| *lock(&self.before) = lock(&self.busy).take().map(|(_, state)| state));
        let next = iter.next();
        // While the iterator is locked, because another thread that loads the next batch may note an exception too.
        // After a batch this drops the exception of a sample that was skipped.
        let noted = self
            .is_local
            .then(|| Python::attach(|py| opened::take_raised(py, self.dataset_number)))
            .flatten();
        (next, noted)
    }

    /// Calls `call` without the interpreter's lock; `None` once the iterator is closed, and in a call of
    /// `__next__` in this thread.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Box<dyn AnyIter>) -> T + Send,
    ) -> Option<T> {
        if self.is_busy() {
            return None;
        }
        py.detach(|| lock(&self.iter).as_mut().map(call))
    }
}

fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("loader._errors")?.call_method1("warn", (text,))?;
    Ok(())
}

/// True for the error that the engine returns where the sampler has raised an exception.
fn is_of_sampler(error: &Error) -> bool {
    matches!(error, Error::SamplerPanicked { message, .. } if message == HAS_RAISED)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a function at the end of a scope, even if it panics.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Drop for BatchIterator {
    fn drop(&mut self) {
        let iter = self.iter.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.keep_state(iter.as_deref());
        // The end of an iterator waits for its workers. The sampler's objects need the interpreter, which may
        // have ended: then the closure is dropped, and the iterator with it.
        let _: Option<()> = Python::try_attach(|py| py.detach(|| drop(iter)));
    }
}
