//! Datasets whose samples are Python objects.

use std::{
    fmt, io,
    os::fd::{IntoRawFd, RawFd},
    panic::resume_unwind,
    sync::Arc,
};

use loader_core::{
    Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator, Tensor,
    collate::ContentHash,
    internal::{self, SentFile},
    rand::RngExt,
};
use pyo3::{
    buffer::PyBuffer,
    exceptions::{PyStopIteration, PyValueError},
    prelude::*,
    types::PyList,
};
use serde::{Deserialize, Serialize};

use crate::{
    errors,
    memory::Memory,
    opened::{self, Opened},
    python_batch::PyBatch,
    shared_object::SharedObject,
};

/// Numbers from this one on stand for keys that are not plain integers. It is `FIRST_NUMBER` in
/// `loader/_data/_keys.py`.
const FIRST_KEY: usize = 1 << 62;

/// Number of samples that each map-style dataset announces. PyTorch's datasets need not have a length, and the
/// sampler alone decides what is loaded.
const ANY_LENGTH: usize = usize::MAX >> 1;

/// One sample.
pub(crate) struct PySample {
    object: Py<PyAny>,
    dataset_number: u64,
}

/// What main sends to the workers: the pickle of the dataset and of the user's functions, and the files that the
/// pickle refers to by their positions. Without workers it is empty, and main itself has opened the dataset.
#[derive(Serialize, Deserialize)]
pub(crate) struct SentDataset {
    /// Number of the dataset in main.
    number: u64,
    pickle: Option<Tensor<u8>>,
    files: Vec<SentFile>,
    fingerprint: String,
}

impl SentDataset {
    pub(crate) fn new(
        number: u64,
        pickle: Option<&[u8]>,
        files: &[RawFd],
        fingerprint: String,
    ) -> PyResult<Self> {
        let pickle = pickle.map(|pickle| Tensor::from_slice(pickle, [pickle.len()])).transpose();
        let pickle = pickle.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let files = files.iter().map(|&file| SentFile::of(file)).collect::<io::Result<_>>()?;
        Ok(Self { number, pickle, files, fingerprint })
    }

    /// Opens the dataset in a worker.
    fn open(&mut self, cx: &SampleContext) -> anyhow::Result<()> {
        let Some(pickle) = self.pickle.take() else { return Ok(()) };
        let worker = cx.worker().map_or(0, |worker| worker.id());
        let files = self.files.drain(..).map(|file| file.to_fd()).collect::<io::Result<Vec<_>>>()?;
        let files: Vec<RawFd> = files.into_iter().map(IntoRawFd::into_raw_fd).collect();
        Python::attach(|py| {
            let opened = py.import("loader._workers._worker").and_then(|module| {
                module.call_method1("open_dataset", (Memory::read_only(pickle), files, worker))
            });
            let noted = opened.and_then(|fetcher| opened::add(self.number, &fetcher));
            noted.map_err(|error| errors::into_chain(py, error, self.number))
        })
    }

    /// Calls `call` with the opened dataset.
    fn with<T>(&self, call: impl FnOnce(Python<'_>, &Opened) -> PyResult<T>) -> anyhow::Result<T> {
        opened::with(self.number, call)
    }
}

/// A map-style dataset: an object with `__getitem__`, and perhaps `__getitems__`.
#[derive(Serialize, Deserialize)]
pub(crate) struct PyMapDataset {
    pub(crate) sent: SentDataset,
    #[serde(skip)]
    opened: Option<Arc<Opened>>,
    /// True if each sample gets seeds of its own.
    seed_samples: bool,
}

impl PyMapDataset {
    pub(crate) fn new(sent: SentDataset, seed_samples: bool) -> Self {
        Self { sent, opened: None, seed_samples }
    }
}

impl Dataset for PyMapDataset {
    type Sample = PySample;

    fn len(&self) -> usize {
        ANY_LENGTH
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.sent.open(cx)?;
        self.opened = Python::attach(|_py| opened::get(self.sent.number));
        Ok(())
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<PySample> {
        let seed = self.seed_samples.then(|| seed_of(index, cx));
        Python::attach(|py| {
            let Some(opened) = &self.opened else { anyhow::bail!("the dataset is not open") };
            let Opened { fetcher, dataset, get, has_many, .. } = &**opened;
            let sample = match seed {
                // The usual case calls no Python code but the user's.
                None if index < FIRST_KEY => dataset.bind(py).get_item(index).map(Bound::unbind),
                // The same method as without a seed, but for one sample.
                Some(_) if *has_many => fetcher
                    .bind(py)
                    .call_method1("get_many", ([index], cx.epoch(), seed))
                    .and_then(|samples| samples.get_item(0))
                    .map(Bound::unbind),
                _ => get.call1(py, (index, cx.epoch(), seed)),
            };
            match sample {
                Ok(object) => Ok(PySample { object, dataset_number: self.sent.number }),
                Err(error) => Err(errors::into_chain(py, error, self.sent.number)),
            }
        })
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<PySample>> {
        // With seeds, `get` calls `__getitems__` for one sample. Alternative considered: it calls `__getitem__`. But a
        // dataset may have `__getitems__` alone.
        if self.seed_samples || !self.opened.as_ref().is_some_and(|opened| opened.has_many) {
            return internal::get_one_by_one(self, indices, cx);
        }
        self.sent.with(|py, opened| {
            let numbers = (indices.to_vec(), cx.epoch(), None::<u64>);
            let samples = opened.fetcher.bind(py).call_method1("get_many", numbers)?;
            let dataset_number = self.sent.number;
            samples
                .try_iter()?
                .map(|sample| Ok(PySample { object: sample?.unbind(), dataset_number }))
                .collect()
        })
    }

    fn fingerprint(&self) -> String {
        self.sent.fingerprint.clone()
    }
}

/// Returns the seed of a sample. A key that is not a plain integer gets the seed of the epoch, and `Fetcher` mixes
/// the key into it: the number of such a key depends on how far main has read the sampler.
fn seed_of(index: usize, cx: &mut SampleContext) -> u64 {
    if index < FIRST_KEY { cx.rng().random() } else { cx.epoch_rng().random() }
}

/// An iterable dataset: an object with `__iter__`. Each worker reads one shard, and the dataset decides by
/// `get_worker_info` which samples these are, as with PyTorch.
#[derive(Serialize, Deserialize)]
pub(crate) struct PyIterableDataset {
    pub(crate) sent: SentDataset,
}

impl IterableDataset for PyIterableDataset {
    type Sample = PySample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<PySample>> + Send> {
        self.iter_from(shard, cx, None)
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.sent.open(cx)
    }

    fn fingerprint(&self) -> String {
        self.sent.fingerprint.clone()
    }
}

impl SnapshotDataset for PyIterableDataset {
    /// A pickle of the position: the dataset's own `state_dict`, or the number of samples.
    type Snapshot = Vec<u8>;

    fn iter_from(
        &self,
        _shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Vec<u8>>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<PySample>, Snapshot = Vec<u8>> + Send>
    {
        let snapshot = snapshot.as_deref();
        let items = self.sent.with(|py, opened| {
            let items = opened.fetcher.call_method1(py, "iterate", (cx.epoch(), snapshot))?;
            let items = SharedObject::new(items);
            opened.items.set(py, &items);
            Ok(items)
        })?;
        Ok(Items { dataset_number: self.sent.number, items })
    }
}

/// The samples of a shard: a Python object of the class `loader._data._items.Items`.
struct Items {
    dataset_number: u64,
    items: SharedObject,
}

impl Items {
    fn call<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyAny>> {
        self.items.get(py).expect("it is cleared only when it is dropped").call_method0(method)
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        let _: Option<()> = Python::try_attach(|py| self.items.clear(py));
    }
}

impl Iterator for Items {
    type Item = anyhow::Result<PySample>;

    fn next(&mut self) -> Option<Self::Item> {
        Python::attach(|py| match self.call(py, "__next__") {
            Ok(sample) => Some(Ok(PySample { object: sample.unbind(), dataset_number: self.dataset_number })),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => None,
            Err(error) => Some(Err(errors::into_chain(py, error, self.dataset_number))),
        })
    }
}

impl SnapshotIterator for Items {
    type Snapshot = Vec<u8>;

    fn snapshot(&self) -> anyhow::Result<Vec<u8>> {
        Python::attach(|py| {
            let taken = self.call(py, "snapshot").and_then(|taken| taken.extract());
            taken.map_err(|error| errors::into_chain(py, error, self.dataset_number))
        })
    }
}

/// Adds the content of a sample to the digest of the epoch: its pickle and the bytes of its arrays. The function
/// for [`digest_with`](loader_core::Builder::digest_with).
///
/// # Panics
/// If the sample cannot be pickled. The engine makes an error of the batch of it: a digest without the sample would be
/// wrong.
pub(crate) fn hash_content(sample: &PySample, hash: &mut ContentHash) {
    let added = Python::attach(|py| {
        add_content(py, &sample.object, hash).map_err(|error| {
            let problem = format!("the sample cannot be hashed for the digest: {error}");
            if let Some(opened) = opened::get(sample.dataset_number).filter(|opened| opened.is_local) {
                opened.note_unhashed(py, error);
            }
            problem
        })
    });
    // Without a message on standard error.
    added.unwrap_or_else(|problem| resume_unwind(Box::new(problem)));
}

fn add_content(py: Python<'_>, sample: &Py<PyAny>, hash: &mut ContentHash) -> PyResult<()> {
    let parts = py.import("loader._pickling._batch_pickle")?.call_method1("content", (sample,))?;
    for part in parts.try_iter()? {
        hash.bytes(&PyBuffer::<u8>::get(&part?)?.to_vec(py)?);
    }
    Ok(())
}

/// Collates the samples of a batch with the dataset's collation function. The function for
/// [`collate_with`](loader_core::Builder::collate_with); `number` is the dataset's.
pub(crate) fn collate(number: &u64, samples: Vec<PySample>) -> anyhow::Result<PyBatch> {
    opened::with(*number, |py, opened| {
        let samples = PyList::new(py, samples.into_iter().map(|sample| sample.object))?;
        let collated = opened.collate.bind(py).call1((samples,))?;
        if opened.is_local {
            return Ok(PyBatch::Object(collated.unbind()));
        }
        let encoded = opened.fetcher.bind(py).call_method1("encode", (&collated,))?;
        // The batch must be gone before its memory is taken.
        drop(collated);
        let (pickle, buffers): (Bound<'_, PyAny>, Vec<Bound<'_, PyAny>>) = encoded.extract()?;
        drop(encoded);
        PyBatch::from_pickle(pickle.extract()?, buffers)
    })
}

impl fmt::Debug for PySample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PySample")
    }
}
