//! The loader of one dataset: it begins epochs, each with a [`BatchIterator`].

use std::{
    fmt,
    os::fd::RawFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::{
    Builder, DataLoader, Error, LoaderOptions, State, WorkerProgram,
    collate::{Batch, HashWith},
    function::CollateFnWith,
    internal::SharedObservers,
    kind::DatasetKind,
};
use pyo3::{PyTraverseError, PyVisit, exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes};

use crate::{
    batch::AnyBatch,
    errors,
    iterator::{AnyIter, BatchIterator, LastState, SIGNAL_INTERVAL},
    opened,
    order::{OrderObjects, PyOrder},
    python_batch::PyBatch,
    python_dataset::{self, PyIterableDataset, PyMapDataset, PySample, SentDataset},
    raised::Raised,
    state::EngineState,
    warnings::{Warnings, is_left_to_pytorch},
    worker::ForkedTemplate,
};

/// A loader, with its dataset and options as they were when it was made.
///
/// `Engine(parts)` makes the loader of a dataset of Python objects, from the attributes of `parts` that [`Parts`] has.
/// [`RustDataset`](crate::rust_dataset::RustDataset) makes that of a Rust dataset.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Engine {
    /// `None` for a Rust dataset.
    dataset_number: Option<u64>,
    /// `None` while the engine is dropped.
    loader: Option<Box<dyn AnyLoader>>,
    /// True if this process loads the samples, with Python code.
    is_local: bool,
    objects: OrderObjects,
    raised: Raised,
    warnings: Warnings,
    /// That of the iterator that was begun last.
    last_state: Mutex<LastState>,
}

/// A [`DataLoader`] of batches of any type.
pub(crate) trait AnyLoader: fmt::Debug + Send + Sync {
    fn epoch(&self, number: u64) -> Result<Box<dyn AnyIter>, Error>;
    fn resume(&self, state: &State) -> Result<Box<dyn AnyIter>, Error>;
    /// The state at the beginning of an epoch.
    fn state_at(&self, number: u64) -> State;
    /// Number of batches in an epoch, if it is known.
    fn len(&self) -> Option<usize>;
}

impl<B: Batch + AnyBatch> AnyLoader for DataLoader<B> {
    fn epoch(&self, number: u64) -> Result<Box<dyn AnyIter>, Error> {
        Ok(Box::new(self.epoch(number)?))
    }

    fn resume(&self, state: &State) -> Result<Box<dyn AnyIter>, Error> {
        Ok(Box::new(self.resume(state)?))
    }

    fn state_at(&self, number: u64) -> State {
        self.state_at(number)
    }

    fn len(&self) -> Option<usize> {
        self.len()
    }
}

/// What the loader of a dataset of Python objects is made from.
#[derive(FromPyObject)]
struct Parts {
    /// Pickle of the dataset, for workers.
    pickle: Option<PyBackedBytes>,
    /// The descriptors of the files that workers get with the pickle.
    files: Vec<RawFd>,
    /// The opened dataset, an object of the class `loader._data._fetch.Fetcher`, without workers.
    opened: Option<Py<PyAny>>,
    fingerprint: String,
    /// `begin(epoch)` returns the batches of indices. `None` for an iterable dataset.
    begin: Option<Py<PyAny>>,
    /// Number of batches in an epoch, as far as the sampler says.
    batches: usize,
    sampler_fingerprint: String,
    /// True if each sample gets seeds of its own.
    seed_samples: bool,
    /// JSON with the names of the section `[loader]` of a config file.
    options: String,
    /// `None` without workers.
    start: Option<Start>,
    /// True for a map-style dataset with a state.
    is_stateful_map: bool,
    observers: Py<Observers>,
}

/// What starts the workers.
#[derive(FromPyObject)]
enum Start {
    /// A process that main has forked.
    Forked(Py<ForkedTemplate>),
    /// The Python interpreter, its arguments, and true if the process is a template that forks workers.
    Program(PathBuf, Vec<String>, bool),
}

impl Start {
    fn program(&self) -> Option<WorkerProgram> {
        match self {
            Self::Forked(forked) => forked.get().take().map(WorkerProgram::forked),
            Self::Program(path, arguments, is_template) => {
                let program = WorkerProgram::new(path).args(arguments);
                Some(if *is_template { program.template() } else { program })
            }
        }
    }
}

/// The statistics, the trace and the metrics of all engines of a `DataLoader` of the Python package.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug, Default)]
pub(crate) struct Observers(pub(crate) SharedObservers);

#[pymethods]
impl Observers {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Returns the address at which the metrics are served, once an engine has been made with the option `metrics`.
    fn metrics_address(&self) -> Option<String> {
        self.0.metrics_address().map(|address| address.to_string())
    }
}

#[pymethods]
impl Engine {
    /// Makes the loader of a dataset of Python objects.
    ///
    /// Raises `ValueError` for an invalid option, and what the dataset or the sampler raises.
    #[new]
    fn new(py: Python<'_>, mut parts: Parts) -> PyResult<Self> {
        let dataset_number = opened::new_number();
        let is_local = parts.opened.is_some();
        let (raised, warnings) = (Raised::default(), Warnings::default());
        let begin = parts.begin.take();
        let (is_map, objects) = (begin.is_some(), OrderObjects::new(begin));
        let settings = Settings::of(&parts, dataset_number, raised.clone(), warnings.clone())?;
        let sent =
            SentDataset::new(dataset_number, parts.pickle.as_deref(), &parts.files, parts.fingerprint)?;
        if let Some(fetcher) = parts.opened {
            opened::add(dataset_number, fetcher.bind(py))?;
        }
        let order = is_map.then(|| PyOrder {
            objects: objects.clone(),
            batches: parts.batches,
            fingerprint: parts.sampler_fingerprint,
            raised: raised.clone(),
        });
        let dataset_number = Some(dataset_number);
        match py.detach(|| build(sent, parts.seed_samples, order, settings)) {
            Ok(loader) => {
                let loader: Option<Box<dyn AnyLoader>> = Some(Box::new(loader));
                let last_state = Mutex::default();
                Ok(Self { dataset_number, loader, is_local, objects, raised, warnings, last_state })
            }
            Err(error) => {
                let noted = opened::take_raised(py, dataset_number);
                forget(dataset_number);
                Err(raised.take(py).unwrap_or_else(|| errors::to_python(py, &error, true, noted)))
            }
        }
    }

    /// Returns the number of batches in an epoch, if it is known.
    fn batches(&self) -> Option<usize> {
        self.loader.as_ref()?.len()
    }

    /// Begins an epoch.
    fn iterate(&self, py: Python<'_>, epoch: u64, convert: Py<PyAny>) -> PyResult<BatchIterator> {
        self.iterator(py, convert, |loader| loader.epoch(epoch))
    }

    /// Continues the epoch of a state. After the last batch of the epoch there are no batches.
    fn resume(&self, py: Python<'_>, state: &EngineState, convert: Py<PyAny>) -> PyResult<BatchIterator> {
        self.iterator(py, convert, |loader| loader.resume(&state.0))
    }

    /// Returns the state at the beginning of an epoch.
    fn state_at(&self, epoch: u64) -> Option<EngineState> {
        Some(EngineState(self.loader.as_ref()?.state_at(epoch)))
    }

    /// Returns the state of the iterator that was begun last, if it was closed or dropped.
    fn last_state(&self) -> Option<EngineState> {
        let last = self.last_state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = last.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone().map(EngineState)
    }

    /// Visits the Python objects that the loader and its iterator hold.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.objects.visit(&visit)?;
        self.raised.visit(&visit)?;
        match self.dataset_number.and_then(opened::get) {
            Some(opened) => opened.visit(&visit),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Makes an engine of the loader of a Rust dataset.
    pub(crate) fn of_loader(
        loader: Box<dyn AnyLoader>,
        objects: OrderObjects,
        raised: Raised,
        warnings: Warnings,
    ) -> Self {
        let (dataset_number, loader, is_local, last_state) = (None, Some(loader), false, Mutex::default());
        Self { dataset_number, loader, is_local, objects, raised, warnings, last_state }
    }

    fn iterator(
        &self,
        py: Python<'_>,
        convert: Py<PyAny>,
        start: impl FnOnce(&dyn AnyLoader) -> Result<Box<dyn AnyIter>, Error> + Send,
    ) -> PyResult<BatchIterator> {
        // What the sampler of an epoch that was left has raised does not concern this one.
        drop(self.raised.take(py));
        let iter =
            py.detach(|| start(self.loader.as_deref().expect("it is only taken when the engine is dropped")));
        let iter = iter.map_err(|error| {
            let noted = opened::take_raised(py, self.dataset_number);
            let is_python = self.dataset_number.is_some();
            self.raised.take(py).unwrap_or_else(|| errors::to_python(py, &error, is_python, noted))
        })?;
        let (raised, warnings, last_state) =
            (self.raised.clone(), self.warnings.clone(), LastState::default());
        *self.last_state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&last_state);
        Ok(BatchIterator::new(
            iter,
            self.dataset_number,
            self.is_local,
            raised,
            warnings,
            convert,
            last_state,
        ))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        forget(self.dataset_number);
        let loader = self.loader.take();
        // Persistent workers that are idle end with the loader, which takes some time.
        let _: Option<()> = Python::try_attach(|py| py.detach(|| drop(loader)));
    }
}

/// What the loaders of map-style and iterable datasets of Python objects have in common.
struct Settings {
    dataset_number: u64,
    options: LoaderOptions,
    program: Option<WorkerProgram>,
    loses_state: bool,
    observers: SharedObservers,
    raised: Raised,
    warnings: Warnings,
}

impl Settings {
    fn of(parts: &Parts, dataset_number: u64, raised: Raised, warnings: Warnings) -> PyResult<Self> {
        let options = serde_json::from_str(&parts.options)
            .map_err(|error| PyValueError::new_err(format!("invalid options: {error}")))?;
        let program = parts.start.as_ref().and_then(Start::program);
        let observers = parts.observers.get().0.clone();
        let loses_state = parts.is_stateful_map;
        Ok(Self { dataset_number, options, program, loses_state, observers, raised, warnings })
    }

    fn apply<K: DatasetKind<Sample = PySample>>(
        self,
        builder: Builder<K>,
    ) -> Builder<K, HashWith<CollateFnWith<u64, PySample, PyBatch>, PySample>> {
        let Self { dataset_number, options, program, loses_state, observers, raised, warnings } = self;
        let digest = options.digest == Some(true);
        let builder = match program {
            Some(program) => builder.worker_program(program),
            None => builder,
        };
        builder
            .options(options)
            .allow_nested()
            .interrupt_start_when(SIGNAL_INTERVAL, move || raised.check_signals())
            .share_observers(&observers)
            .on_warning(warnings.listener(is_left_to_pytorch, loses_state))
            .collate_with(dataset_number, python_dataset::collate)
            .digest_with(python_dataset::hash_content)
            .digest(digest)
    }
}

/// Builds the loader of a map-style dataset if there is an `order`, and otherwise of an iterable dataset.
fn build(
    sent: SentDataset,
    seed_samples: bool,
    order: Option<PyOrder>,
    settings: Settings,
) -> Result<DataLoader<PyBatch>, Error> {
    match order {
        Some(order) => {
            let dataset = PyMapDataset::new(sent, seed_samples);
            settings.apply(DataLoader::builder(dataset).batch_sampler(order)).build()
        }
        None => settings.apply(DataLoader::stream(PyIterableDataset { sent }).snapshots()).build(),
    }
}

/// Forgets a dataset of Python objects that is open in this process.
fn forget(dataset_number: Option<u64>) {
    if let Some(number) = dataset_number {
        opened::remove(number);
    }
}
