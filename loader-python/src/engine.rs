//! The loader of one dataset.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use loader_core::{
    Builder, DataLoader, Error, LoaderOptions, State, Tensor, Warning, WorkerProgram,
    collate::{Batch, HashWith},
    function::CollateFnWith,
    kind::DatasetKind,
};
use pyo3::{PyTraverseError, PyVisit, exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes};

use crate::{
    batch::Collated,
    dataset::{self, MapDataset, PySample, Sent, StreamDataset},
    errors,
    iterator::{BatchIterator, Batches, SIGNAL_INTERVAL},
    objects::IntoObject,
    order::{OrderObjects, PyOrder, Raised},
};

/// Counts the datasets of this process. Relaxed: each caller only needs a number of its own.
static DATASETS: AtomicU64 = AtomicU64::new(0);

/// Returns a number for a dataset. No other process returns it: a dataset that main has sent to a worker may make a
/// loader there.
fn new_number() -> u64 {
    u64::from(std::process::id()) << 32 | DATASETS.fetch_add(1, Ordering::Relaxed)
}

/// A loader, with its dataset and options as they were when it was made.
///
/// `dataset` is the pickle of what workers need, or an opened dataset, which this process loads from without
/// workers. `options` is JSON with the names of the section `[loader]` of a config file. `order` is an object
/// whose method `begin(epoch)` returns the batches of indices, or `None` for an iterable dataset.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Engine {
    /// Number of the dataset, if it is one of Python objects.
    number: Option<u64>,
    /// `None` while it is dropped.
    loader: Option<Box<dyn Loader>>,
    /// True if this process loads the samples, with Python code.
    is_local: bool,
    objects: OrderObjects,
    raised: Raised,
    warnings: Warnings,
}

/// A [`DataLoader`] of batches of any type.
pub(crate) trait Loader: fmt::Debug + Send + Sync {
    fn epoch(&self, number: u64) -> Result<Box<dyn Batches>, Error>;
    fn resume(&self, state: &State) -> Result<Box<dyn Batches>, Error>;
    fn resume_epoch(&self, state: &State) -> Result<Box<dyn Batches>, Error>;
    /// Number of batches in an epoch, if it is known.
    fn len(&self) -> Option<usize>;
}

impl<B: Batch + IntoObject> Loader for DataLoader<B> {
    fn epoch(&self, number: u64) -> Result<Box<dyn Batches>, Error> {
        Ok(Box::new(self.epoch(number)?))
    }

    fn resume(&self, state: &State) -> Result<Box<dyn Batches>, Error> {
        Ok(Box::new(self.resume(state)?))
    }

    fn resume_epoch(&self, state: &State) -> Result<Box<dyn Batches>, Error> {
        Ok(Box::new(self.resume_epoch(state)?))
    }

    fn len(&self) -> Option<usize> {
        self.len()
    }
}

/// Warnings that Python has not seen yet. Any thread of the engine may add one; only the thread that iterates
/// calls Python with them, so that no thread waits for the interpreter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the callback that notes warnings. With PyTorch's class, it leaves those out that PyTorch's own code
    /// gives, or has no reason to give: of too many workers, and of its samplers, which need not have a length and
    /// share the dataset among ranks.
    pub(crate) fn listener(self, is_pytorch: bool) -> impl Fn(&Warning) + Send + Sync + 'static {
        move |warning| {
            let is_left_out = matches!(
                warning,
                Warning::MoreWorkersThanCpus { .. }
                    | Warning::WrongBatchCount { .. }
                    | Warning::RankIgnored { .. }
            );
            if !(is_pytorch && is_left_out) {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push(warning.to_string());
            }
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the engine is made from.
#[derive(FromPyObject)]
struct Parts {
    /// Pickle of the dataset, for workers.
    pickle: Option<PyBackedBytes>,
    /// The opened dataset, without workers.
    opened: Option<Py<PyAny>>,
    fingerprint: String,
    /// The object with the method `begin`.
    begin: Option<Py<PyAny>>,
    /// Number of batches in an epoch.
    batches: usize,
    sampler_fingerprint: String,
    seed_samples: bool,
    options: String,
    program: PathBuf,
    arguments: Vec<String>,
    /// True if the program is a template that forks workers.
    is_template: bool,
}

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, parts: Parts) -> PyResult<Self> {
        let number = new_number();
        let Parts { pickle, opened, fingerprint, begin, batches, sampler_fingerprint, seed_samples, .. } =
            parts;
        let pickle = pickle.map(|pickle| Tensor::from_slice(&pickle, [pickle.len()])).transpose();
        let pickle = pickle.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let sent = Sent { number, pickle, fingerprint };
        let options: LoaderOptions = serde_json::from_str(&parts.options)
            .map_err(|error| PyValueError::new_err(format!("invalid options: {error}")))?;
        let program = WorkerProgram::new(parts.program).args(parts.arguments);
        let program = if parts.is_template { program.template() } else { program };
        let is_local = opened.is_some();
        if let Some(opened) = opened {
            dataset::note_opened(number, opened.bind(py))?;
        }
        let (raised, warnings) = (Raised::default(), Warnings::default());
        let common = Common { number, options, program, raised: raised.clone(), warnings: warnings.clone() };
        let (is_map, objects) = (begin.is_some(), OrderObjects::new(begin));
        let loader: Result<DataLoader<Collated>, Error> = py.detach(|| match is_map {
            true => {
                let (objects, raised) = (objects.clone(), raised.clone());
                let order = PyOrder { objects, batches, fingerprint: sampler_fingerprint, raised };
                common
                    .builder(DataLoader::builder(MapDataset::new(sent, seed_samples)).batch_sampler(order))
                    .build()
            }
            false => common.builder(DataLoader::stream(StreamDataset { sent }).snapshots()).build(),
        });
        let number = Some(number);
        match loader {
            Ok(loader) => {
                Ok(Self { number, loader: Some(Box::new(loader)), is_local, objects, raised, warnings })
            }
            Err(error) => {
                forget(number);
                Err(raised.take(py).unwrap_or_else(|| errors::to_python(py, &error, number)))
            }
        }
    }

    /// Returns the number of batches in an epoch, if it is known.
    fn batches(&self) -> Option<usize> {
        self.loader.as_ref()?.len()
    }

    /// Begins an epoch.
    fn iterate(&self, py: Python<'_>, epoch: u64, loads: Py<PyAny>) -> PyResult<BatchIterator> {
        self.iterator(py, loads, |loader| loader.epoch(epoch))
    }

    /// Continues from a state, as JSON. After the last batch of an epoch that is the next epoch.
    fn resume(&self, py: Python<'_>, state: &str, loads: Py<PyAny>) -> PyResult<BatchIterator> {
        let state = parsed(state)?;
        self.iterator(py, loads, |loader| loader.resume(&state))
    }

    /// Continues the epoch of a state, as JSON. After the last batch of an iterable dataset there are no batches.
    fn resume_epoch(&self, py: Python<'_>, state: &str, loads: Py<PyAny>) -> PyResult<BatchIterator> {
        let state = parsed(state)?;
        self.iterator(py, loads, |loader| loader.resume_epoch(&state))
    }

    /// Visits the Python objects that the loader and its iterator hold.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.objects.visit(&visit)?;
        self.raised.visit(&visit)?;
        match self.number.and_then(dataset::opened) {
            Some(opened) => opened.visit(&visit),
            None => Ok(()),
        }
    }
}

fn parsed(state: &str) -> PyResult<State> {
    serde_json::from_str(state)
        .map_err(|error| PyValueError::new_err(format!("this is no state of a loader: {error}")))
}

impl Engine {
    /// Makes an engine of the loader of a Rust dataset.
    pub(crate) fn of_loader(
        loader: Box<dyn Loader>,
        objects: OrderObjects,
        raised: Raised,
        warnings: Warnings,
    ) -> Self {
        Self { number: None, loader: Some(loader), is_local: false, objects, raised, warnings }
    }

    fn iterator(
        &self,
        py: Python<'_>,
        loads: Py<PyAny>,
        start: impl FnOnce(&dyn Loader) -> Result<Box<dyn Batches>, Error> + Send,
    ) -> PyResult<BatchIterator> {
        // What the sampler of an epoch that was left has raised does not concern this one.
        drop(self.raised.take(py));
        let iter =
            py.detach(|| start(self.loader.as_deref().expect("it is only taken when the engine is dropped")));
        let iter = iter.map_err(|error| {
            self.raised.take(py).unwrap_or_else(|| errors::to_python(py, &error, self.number))
        })?;
        let (raised, warnings) = (self.raised.clone(), self.warnings.clone());
        Ok(BatchIterator::new(iter, self.number, self.is_local, raised, warnings, loads))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        forget(self.number);
        let loader = self.loader.take();
        // Persistent workers that are idle end with the loader, which takes some time.
        let _: Option<()> = Python::try_attach(|py| py.detach(|| drop(loader)));
    }
}

/// Runs Python's signal handlers. Returns true if one has raised an exception, which `raised` has then.
pub(crate) fn has_signal(raised: &Raised) -> bool {
    Python::attach(|py| py.check_signals().map_err(|error| raised.set(py, error)).is_err())
}

fn forget(number: Option<u64>) {
    if let Some(number) = number {
        dataset::forget_opened(number);
    }
}

/// The options that both kinds of loaders have.
struct Common {
    number: u64,
    options: LoaderOptions,
    program: WorkerProgram,
    raised: Raised,
    warnings: Warnings,
}

impl Common {
    fn builder<K: DatasetKind<Sample = PySample>>(
        self,
        builder: Builder<K>,
    ) -> Builder<K, HashWith<CollateFnWith<u64, PySample, Collated>, PySample>> {
        let Self { number, options, program, raised, warnings } = self;
        let digest = options.digest == Some(true);
        builder
            .options(options)
            .allow_nested()
            .interrupt_start_when(SIGNAL_INTERVAL, move || has_signal(&raised))
            .worker_program(program)
            .on_warning(warnings.listener(true))
            .collate_with(number, dataset::collate)
            .digest_with(dataset::hash_content)
            .digest(digest)
    }
}
