//! The datasets of Python objects that are open in this process: in a worker, or in main without workers.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use pyo3::{PyTraverseError, PyVisit, exceptions::PyException, prelude::*};

use crate::{
    errors,
    shared_object::{LatestObject, SharedObject},
};

/// Counts the datasets of this process. Relaxed: each caller only needs a number of its own.
static DATASETS: AtomicU64 = AtomicU64::new(0);

/// Returns a number for a dataset. No other process returns it: a dataset that main has sent to a worker may make a
/// loader there.
pub(crate) fn new_number() -> u64 {
    u64::from(std::process::id()) << 32 | DATASETS.fetch_add(1, Ordering::Relaxed)
}

/// The opened datasets of this process, by number. Locked only with the interpreter's lock, as [`SharedObject`].
static OPENED: LazyLock<Mutex<HashMap<u64, Arc<Opened>>>> = LazyLock::new(Mutex::default);

/// A dataset that is open in this process: the parts of a Python object of the class `loader._data._fetch.Fetcher`.
pub(crate) struct Opened {
    pub(crate) fetcher: Py<PyAny>,
    /// The user's object.
    pub(crate) dataset: Py<PyAny>,
    /// The method of the fetcher that returns the sample of any key, and seeds the generators before.
    pub(crate) get: Py<PyAny>,
    pub(crate) collate: Py<PyAny>,
    pub(crate) has_many: bool,
    /// True without workers: batches stay as they are.
    pub(crate) is_local: bool,
    /// The samples of the shard that was opened last; without workers there is one shard.
    pub(crate) items: LatestObject,
    /// The last exception of the user's code, without workers.
    raised: SharedObject,
}

impl Opened {
    fn new(fetcher: &Bound<'_, PyAny>) -> PyResult<Self> {
        let part = |name| fetcher.getattr(name).map(Bound::unbind);
        Ok(Self {
            fetcher: fetcher.clone().unbind(),
            dataset: part("dataset")?,
            get: part("get")?,
            collate: part("collate")?,
            has_many: fetcher.getattr("has_many")?.extract()?,
            is_local: fetcher.getattr("is_local")?.extract()?,
            items: LatestObject::default(),
            raised: SharedObject::default(),
        })
    }

    /// Keeps an exception for [`take_raised`]. The engine carries errors as text.
    pub(crate) fn note_raised(&self, py: Python<'_>, error: PyErr) {
        self.raised.set(py, error.into_value(py).into_any());
    }

    /// Keeps an exception of a sample that cannot be hashed, if it must reach the program as it is, such as
    /// `KeyboardInterrupt`. Any other becomes a `RuntimeError`, and must not be taken for the exception of an earlier
    /// sample.
    pub(crate) fn note_unhashed(&self, py: Python<'_>, error: PyErr) {
        if error.is_instance_of::<PyException>(py) {
            self.raised.clear(py)
        } else {
            self.note_raised(py, error)
        }
    }

    /// Takes the exception that was noted last.
    fn take_raised(&self, py: Python<'_>) -> Option<PyErr> {
        self.raised.take(py).map(|raised| PyErr::from_value(raised.into_bound(py)))
    }

    /// Visits all Python objects, for Python's garbage collector.
    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.fetcher, &self.dataset, &self.get, &self.collate] {
            visit.call(object)?;
        }
        self.raised.visit(visit)?;
        self.items.visit(visit)
    }
}

/// Returns the opened dataset `number`.
pub(crate) fn get(number: u64) -> Option<Arc<Opened>> {
    all_opened().get(&number).cloned()
}

/// Notes an opened dataset, for this process: an object of the class `loader._data._fetch.Fetcher`.
pub(crate) fn add(number: u64, fetcher: &Bound<'_, PyAny>) -> PyResult<()> {
    let opened = Arc::new(Opened::new(fetcher)?);
    let before = all_opened().insert(number, opened);
    drop(before);
    Ok(())
}

/// Forgets an opened dataset. The object is dropped after the lock, because its end may run Python code.
pub(crate) fn remove(number: u64) {
    let removed = all_opened().remove(&number);
    drop(removed);
}

/// Takes the exception that a dataset of Python objects has noted last in this process.
pub(crate) fn take_raised(py: Python<'_>, number: Option<u64>) -> Option<PyErr> {
    number.and_then(get)?.take_raised(py)
}

/// Calls `call` with the opened dataset `number`. An exception becomes an error that the engine can carry.
pub(crate) fn with<T>(
    number: u64,
    call: impl FnOnce(Python<'_>, &Opened) -> PyResult<T>,
) -> anyhow::Result<T> {
    Python::attach(|py| {
        let Some(opened) = get(number) else {
            anyhow::bail!("the dataset is not open in this process");
        };
        call(py, &opened).map_err(|error| errors::into_chain(py, error, number))
    })
}

fn all_opened() -> MutexGuard<'static, HashMap<u64, Arc<Opened>>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}
