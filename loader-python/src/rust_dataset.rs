//! Datasets of `loader-data`: their samples are made without Python code, in main and in workers.
//!
//! Workers run a bare interpreter that loads this extension module and nothing else, so that main sends the
//! addresses of functions, as for datasets of Python objects.
//!
//! Alternative considered: the ready-made program `loader-worker` in the wheel. It starts some milliseconds sooner and
//! needs some megabytes less per worker, because it has no interpreter. But the wheel would have all decoders twice,
//! and each composition of a dataset, such as a batch of one sample, would need a name in the program's registry.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{
        OnceLock,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
};

use loader_core::{
    DataLoader, Dataset, Error, IterableDataset, LoaderOptions, SampleContext, SnapshotDataset, Warning,
    WorkerProgram,
    collate::{Batch, Sample},
};
use loader_data::{
    DataError, DataProblem, DatasetConfig, DatasetError, ImageFolderError, OpenDataset, Records,
};
use pyo3::{
    exceptions::{PyFileNotFoundError, PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
};

use crate::{
    batch::{AnyBatch, IntoObject},
    engine::{AnyLoader, Engine, Observers},
    errors,
    iterator::{SIGNAL_INTERVAL, is_in_worker},
    order::{OrderObjects, PyOrder},
    raised::Raised,
    rust_batch::single,
    warnings::{Warnings, is_left_to_pytorch},
};

/// A dataset of `loader-data`, which is open in this process. It is made of JSON with the keys of the section
/// `[dataset]` of a config file.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct RustDataset {
    config: DatasetConfig,
    opened: OpenDataset,
    /// A copy that is set up for loading in this process.
    ready: OnceLock<OpenDataset>,
}

/// What a loader is made from, beside the dataset.
#[derive(FromPyObject)]
struct Parts {
    /// The object with the method `begin`. `None` for a stream, and if the options determine the order.
    begin: Option<Py<PyAny>>,
    /// Number of batches in an epoch, if there is `begin`.
    batches: usize,
    sampler_fingerprint: String,
    /// JSON with the names of the section `[loader]` of a config file.
    options: String,
    /// True if samples are batched; otherwise each batch is one sample.
    auto_collation: bool,
    program: PathBuf,
    arguments: Vec<String>,
    observers: Py<Observers>,
}

#[pymethods]
impl RustDataset {
    #[new]
    fn new(py: Python<'_>, keys: &str) -> PyResult<Self> {
        let invalid = |error: serde_json::Error| PyValueError::new_err(format!("invalid dataset: {error}"));
        let keys = serde_json::from_str(keys).map_err(invalid)?;
        Self::open(py, DatasetConfig::from_json(keys).map_err(invalid)?)
    }

    /// Reads a config file. Returns the dataset, and the options of the loader as JSON. Environment variables
    /// override the options.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<(Self, String)> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let (dataset, config) = DatasetConfig::load(path).map_err(|error| invalid(&error))?;
        let options = LoaderOptions::from_env().map_err(|error| invalid(&error))?.over(config.loader);
        let options = serde_json::to_string(&options).map_err(|error| invalid(&error))?;
        Ok((Self::open(py, dataset)?, options))
    }

    /// The names of all kinds.
    #[classattr]
    fn kinds() -> Vec<&'static str> {
        DatasetConfig::KINDS.to_vec()
    }

    /// The keys, as JSON, with the defaults filled in. Another dataset can be made of them.
    fn keys(&self) -> String {
        let keys = match &self.config {
            DatasetConfig::ImageFolder(options) => serde_json::to_string(options),
            DatasetConfig::Records(config) => serde_json::to_string(config),
            config => serde_json::to_string(config),
        };
        keys.expect("a config has text keys only")
    }

    /// The keys, as JSON, without the credentials in URLs.
    fn shown_keys(&self) -> String {
        serde_json::to_string(&self.config).expect("a config has text keys only")
    }

    /// True if the samples are read in order.
    #[getter]
    fn is_stream(&self) -> bool {
        matches!(&self.opened, OpenDataset::Records(records) if matches!(**records, Records::Stream(_)))
    }

    /// Number of samples, if it is known.
    #[getter]
    fn samples(&self) -> Option<usize> {
        match &self.opened {
            OpenDataset::F32(images) => Some(images.len()),
            OpenDataset::U8(images) => Some(images.len()),
            OpenDataset::Records(records) => match &**records {
                Records::Map(records) => Some(records.len()),
                Records::Stream(records) => IterableDataset::len(records),
            },
            _ => None,
        }
    }

    /// The names of the classes of an image folder.
    fn classes(&self) -> PyResult<Vec<String>> {
        match &self.opened {
            OpenDataset::F32(images) => Ok(images.classes().to_vec()),
            OpenDataset::U8(images) => Ok(images.classes().to_vec()),
            _ => Err(PyTypeError::new_err("only an image folder has classes")),
        }
    }

    /// The path or URL, and the label, of each sample of an image folder. A `PathBuf` would become a `pathlib.Path`, which
    /// drops one of the two slashes after the scheme of a URL.
    fn files(&self) -> PyResult<Vec<(OsString, u32)>> {
        let with_label = |path: Option<PathBuf>, label| path.map(PathBuf::into_os_string).zip(label);
        match &self.opened {
            OpenDataset::F32(images) => {
                Ok((0..).map_while(|index| with_label(images.path(index), images.label(index))).collect())
            }
            OpenDataset::U8(images) => {
                Ok((0..).map_while(|index| with_label(images.path(index), images.label(index))).collect())
            }
            _ => Err(PyTypeError::new_err("only an image folder has a file per sample")),
        }
    }

    /// Loads one sample in this process. `seed` determines its random numbers.
    fn get(
        &self,
        py: Python<'_>,
        index: usize,
        seed: u64,
        convert: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let sample = py.detach(|| self.sample(index, seed));
        sample.map_err(|error| PyRuntimeError::new_err(format!("{error:#}")))?.into_object(convert, &mut None)
    }

    /// Makes a loader of this dataset.
    fn engine(&self, py: Python<'_>, parts: Parts) -> PyResult<Engine> {
        let mut parts = parts;
        let begin = parts.begin.take();
        let has_order = begin.is_some();
        let (raised, warnings, objects) = (Raised::default(), Warnings::default(), OrderObjects::new(begin));
        let order = has_order.then(|| PyOrder {
            objects: objects.clone(),
            batches: parts.batches,
            fingerprint: std::mem::take(&mut parts.sampler_fingerprint),
            raised: raised.clone(),
        });
        let is_in_worker = is_in_worker(py)?;
        let loader =
            Building { parts, order, raised: raised.clone(), warnings: warnings.clone(), is_in_worker };
        let loader = loader.options().map(|options| py.detach(|| self.build(loader, options)));
        match loader? {
            Ok(loader) => Ok(Engine::of_loader(loader, objects, raised, warnings)),
            Err(error) => Err(raised.take(py).unwrap_or_else(|| errors::to_python(py, &error, false, None))),
        }
    }
}

impl RustDataset {
    fn open(py: Python<'_>, config: DatasetConfig) -> PyResult<Self> {
        let config = config.resolved().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let (config, opened) = interruptible(py, move || {
            let opened = config.open();
            (config, opened)
        })?;
        match opened {
            Ok(opened) => Ok(Self { config, opened, ready: OnceLock::new() }),
            Err(error) => Err(not_opened(&error)),
        }
    }

    fn sample(&self, index: usize, seed: u64) -> anyhow::Result<Box<dyn AnyBatch>> {
        let mut cx = SampleContext::new(seed);
        if self.ready.get().is_none() {
            let mut copy = self.opened.clone();
            match &mut copy {
                OpenDataset::F32(images) => images.setup(&mut cx)?,
                OpenDataset::U8(images) => images.setup(&mut cx)?,
                OpenDataset::Records(records) => match &mut **records {
                    Records::Map(records) => Dataset::setup(records, &mut cx)?,
                    Records::Stream(_) => anyhow::bail!("a stream has no samples by index; iterate over it"),
                },
                _ => anyhow::bail!("this package reads samples of image folders and records only"),
            }
            // Another thread may have been first.
            drop(self.ready.set(copy));
        }
        cx.set_index(index);
        Ok(match self.ready.get() {
            Some(OpenDataset::F32(images)) => Box::new(images.get(index, &mut cx)?),
            Some(OpenDataset::U8(images)) => Box::new(images.get(index, &mut cx)?),
            Some(OpenDataset::Records(records)) => match &**records {
                Records::Map(records) => Box::new(records.get(index, &mut cx)?),
                Records::Stream(_) => unreachable!("it was refused above"),
            },
            Some(_) => unreachable!("it was refused above"),
            None => unreachable!("it was just set up"),
        })
    }

    fn build(&self, loader: Building, options: LoaderOptions) -> Result<Box<dyn AnyLoader>, Error> {
        match &self.opened {
            OpenDataset::F32(images) => loader.map_style(images.clone(), options),
            OpenDataset::U8(images) => loader.map_style(images.clone(), options),
            OpenDataset::Records(records) => match &**records {
                Records::Map(records) => loader.map_style(records.clone(), options),
                Records::Stream(records) => loader.stream(records.clone(), options),
            },
            _ => unreachable!("the package has no other kinds"),
        }
    }
}

/// A loader that is being built.
struct Building {
    parts: Parts,
    /// `None` for a stream, and if the options determine the order.
    order: Option<PyOrder>,
    raised: Raised,
    warnings: Warnings,
    is_in_worker: bool,
}

impl Building {
    fn options(&self) -> PyResult<LoaderOptions> {
        serde_json::from_str(&self.parts.options)
            .map_err(|error| PyValueError::new_err(format!("invalid options: {error}")))
    }

    fn map_style<D>(self, dataset: D, options: LoaderOptions) -> Result<Box<dyn AnyLoader>, Error>
    where
        D: Dataset<Sample: Sample<Batch: IntoObject> + Batch + IntoObject>,
    {
        let Self { parts, order, raised, warnings, .. } = self;
        let has_order = order.is_some();
        let program = WorkerProgram::new(parts.program).args(parts.arguments);
        let mut builder = DataLoader::builder(dataset)
            .options(options)
            .allow_nested()
            .interrupt_start_when(SIGNAL_INTERVAL, move || raised.check_signals())
            .worker_program(program)
            .share_observers(&parts.observers.get().0)
            .on_warning(warnings.listener(move |warning| has_order && is_left_to_pytorch(warning), false));
        if let Some(order) = order {
            builder = builder.batch_sampler(order);
        }
        Ok(if parts.auto_collation {
            Box::new(builder.build()?)
        } else {
            Box::new(builder.collate(single::<D::Sample>).build()?)
        })
    }

    fn stream<D>(self, dataset: D, options: LoaderOptions) -> Result<Box<dyn AnyLoader>, Error>
    where
        D: SnapshotDataset<Sample: Sample<Batch: IntoObject> + Batch + IntoObject>,
    {
        let Self { parts, raised, warnings, is_in_worker, .. } = self;
        // The ranks may be the workers of PyTorch's loader, which need not take equally many steps.
        let is_left_out =
            move |warning: &Warning| is_in_worker && matches!(warning, Warning::StepsMayDiffer { .. });
        let program = WorkerProgram::new(parts.program).args(parts.arguments);
        let builder = DataLoader::stream(dataset)
            .snapshots()
            .options(options)
            .allow_nested()
            .interrupt_start_when(SIGNAL_INTERVAL, move || raised.check_signals())
            .worker_program(program)
            .share_observers(&parts.observers.get().0)
            .on_warning(warnings.listener(is_left_out, false));
        Ok(if parts.auto_collation {
            Box::new(builder.build()?)
        } else {
            Box::new(builder.collate(single::<D::Sample>).build()?)
        })
    }
}

/// Runs `work` on a thread of its own, and Python's signal handlers meanwhile. If one raises an exception, such as
/// `KeyboardInterrupt`, returns it; the thread goes on to its end, and its result is dropped.
fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("loader-open".into());
    thread.spawn(move || drop(sender.send(work())))?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(SIGNAL_INTERVAL)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("opening the dataset has panicked"));
            }
        }
    }
}

/// Turns the error into the exception that torchvision raises, or `ValueError`.
fn not_opened(error: &DatasetError) -> PyErr {
    let is_missing = matches!(
        error,
        DatasetError::Images(
            ImageFolderError::NotFound { .. }
                | ImageFolderError::NoClasses { .. }
                | ImageFolderError::EmptyClasses { .. }
                | ImageFolderError::AudioInClasses { .. }
                | ImageFolderError::ImagesWithoutClass { .. }
        ) | DatasetError::Records(DataError {
            problem: DataProblem::NotFound | DataProblem::NoSuchBucket | DataProblem::NoFiles { .. },
            ..
        })
    );
    if is_missing {
        PyFileNotFoundError::new_err(error.to_string())
    } else {
        PyValueError::new_err(error.to_string())
    }
}
