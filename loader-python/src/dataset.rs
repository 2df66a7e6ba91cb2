//! Datasets whose samples are Python objects.

use std::{
    collections::HashMap,
    fmt,
    sync::{LazyLock, Mutex, PoisonError},
};

use loader_core::{
    Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator, Tensor,
    collate::ContentHash, internal, rand::RngExt,
};
use pyo3::{buffer::PyBuffer, exceptions::PyStopIteration, prelude::*};
use serde::{Deserialize, Serialize};

use crate::{batch::Collated, errors, memory::Memory};

/// Numbers from this one on stand for keys that are not plain integers. It is `FIRST` in `loader/_keys.py`.
const FIRST_KEY: usize = 1 << 62;

/// Number of samples that each map-style dataset announces. PyTorch's datasets need not have a length, and the
/// sampler alone decides what is loaded.
const ANY_LENGTH: usize = usize::MAX >> 1;

/// The opened datasets of this process, by number: Python objects of the class `loader._fetch.Fetcher`.
static OPENED: LazyLock<Mutex<HashMap<u64, Py<PyAny>>>> = LazyLock::new(Mutex::default);

/// Returns the opened dataset `number`.
pub(crate) fn opened<'py>(py: Python<'py>, number: u64) -> Option<Bound<'py, PyAny>> {
    let all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&number).map(|fetcher| fetcher.bind(py).clone())
}

/// Notes an opened dataset, for this process.
pub(crate) fn note_opened(number: u64, fetcher: Py<PyAny>) {
    let before = OPENED.lock().unwrap_or_else(PoisonError::into_inner).insert(number, fetcher);
    drop(before);
}

/// Forgets an opened dataset. The object is dropped after the lock, because its end may run Python code.
pub(crate) fn forget_opened(number: u64) {
    let removed = OPENED.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    drop(removed);
}

/// One sample.
pub(crate) struct PySample(Py<PyAny>);

/// What main sends to the workers: the pickle of the dataset and of the user's functions. Without workers it is
/// empty, and main itself has opened the dataset.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sent {
    /// Number of the dataset in main.
    pub(crate) number: u64,
    pub(crate) pickle: Option<Tensor<u8>>,
    pub(crate) fingerprint: String,
}

impl Sent {
    /// Opens the dataset in a worker.
    fn open(&mut self, cx: &SampleContext) -> anyhow::Result<()> {
        let Some(pickle) = self.pickle.take() else { return Ok(()) };
        let worker = cx.worker().map_or(0, |worker| worker.id());
        Python::attach(|py| {
            let opened = py
                .import("loader._worker")
                .and_then(|module| module.call_method1("open_dataset", (Memory::read_only(pickle), worker)));
            match opened {
                Ok(fetcher) => {
                    note_opened(self.number, fetcher.unbind());
                    Ok(())
                }
                Err(error) => Err(errors::into_chain(py, error, self.number)),
            }
        })
    }

    /// Calls `call` with the opened dataset.
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> anyhow::Result<T> {
        with_opened(self.number, call)
    }
}

fn with_opened<T>(number: u64, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> anyhow::Result<T> {
    Python::attach(|py| {
        let Some(fetcher) = opened(py, number) else {
            anyhow::bail!("the dataset is not open in this process");
        };
        call(&fetcher).map_err(|error| errors::into_chain(py, error, number))
    })
}

/// A map-style dataset: an object with `__getitem__`, and perhaps `__getitems__`.
#[derive(Serialize, Deserialize)]
pub(crate) struct MapDataset {
    pub(crate) sent: Sent,
    #[serde(skip)]
    opened: Option<Opened>,
    /// True if each sample gets seeds of its own.
    seed_samples: bool,
}

impl MapDataset {
    pub(crate) fn new(sent: Sent, seed_samples: bool) -> Self {
        Self { sent, opened: None, seed_samples }
    }
}

/// What a process that loads has of the dataset.
struct Opened {
    /// The user's object.
    dataset: Py<PyAny>,
    /// The method of the fetcher that returns the sample of any key, and seeds the generators before.
    get: Py<PyAny>,
    has_many: bool,
}

impl Dataset for MapDataset {
    type Sample = PySample;

    fn len(&self) -> usize {
        ANY_LENGTH
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.sent.open(cx)?;
        let opened = self.sent.with(|fetcher| {
            let (dataset, get) = (fetcher.getattr("dataset")?.unbind(), fetcher.getattr("get")?.unbind());
            Ok(Opened { dataset, get, has_many: fetcher.getattr("has_many")?.extract()? })
        })?;
        self.opened = Some(opened);
        Ok(())
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<PySample> {
        let seed = self.seed_samples.then(|| seed_of(index, cx));
        Python::attach(|py| {
            let Some(Opened { dataset, get, .. }) = &self.opened else {
                anyhow::bail!("the dataset is not open")
            };
            let sample = match seed {
                // The usual case calls no Python code but the user's.
                None if index < FIRST_KEY => dataset.bind(py).get_item(index).map(Bound::unbind),
                _ => get.call1(py, (index, cx.epoch(), seed)),
            };
            match sample {
                Ok(sample) => Ok(PySample(sample)),
                Err(error) => Err(errors::into_chain(py, error, self.sent.number)),
            }
        })
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<PySample>> {
        if !self.opened.as_ref().is_some_and(|opened| opened.has_many) {
            return internal::get_one_by_one(self, indices, cx);
        }
        let seed = self.seed_samples.then(|| {
            let first = indices.first().copied().unwrap_or(0);
            cx.set_index(first);
            seed_of(first, cx)
        });
        self.sent.with(|fetcher| {
            let samples = fetcher.call_method1("get_many", (indices.to_vec(), cx.epoch(), seed))?;
            samples.try_iter()?.map(|sample| Ok(PySample(sample?.unbind()))).collect()
        })
    }

    fn fingerprint(&self) -> String {
        self.sent.fingerprint.clone()
    }
}

/// Returns the seed of a sample. A key that is not a plain integer gets the seed of the epoch, and `Fetcher` mixes
/// the key into it: the number of such a key depends on how far main has read the sampler.
fn seed_of(index: usize, cx: &mut SampleContext) -> u64 {
    match index < FIRST_KEY {
        true => cx.rng().random(),
        false => cx.epoch_rng().random(),
    }
}

/// An iterable dataset: an object with `__iter__`. Each worker reads one shard, and the dataset decides by
/// `get_worker_info` which samples these are, as with PyTorch.
#[derive(Serialize, Deserialize)]
pub(crate) struct StreamDataset {
    pub(crate) sent: Sent,
}

impl IterableDataset for StreamDataset {
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

impl SnapshotDataset for StreamDataset {
    /// A pickle of the position: the dataset's own `state_dict`, or the number of samples.
    type Snapshot = Vec<u8>;

    fn iter_from(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<Vec<u8>>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<PySample>, Snapshot = Vec<u8>> + Send>
    {
        let number = self.sent.number;
        let snapshot = snapshot.as_deref();
        let items =
            self.sent.with(|fetcher| fetcher.call_method1("iterate", (snapshot,)).map(Bound::unbind))?;
        Ok(Items { number, items })
    }
}

/// The samples of a shard: a Python object of the class `loader._fetch.Items`.
struct Items {
    number: u64,
    items: Py<PyAny>,
}

impl Iterator for Items {
    type Item = anyhow::Result<PySample>;

    fn next(&mut self) -> Option<Self::Item> {
        Python::attach(|py| match self.items.call_method0(py, "__next__") {
            Ok(sample) => Some(Ok(PySample(sample))),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => None,
            Err(error) => Some(Err(errors::into_chain(py, error, self.number))),
        })
    }
}

impl SnapshotIterator for Items {
    type Snapshot = Vec<u8>;

    fn snapshot(&self) -> anyhow::Result<Vec<u8>> {
        Python::attach(|py| {
            let taken = self.items.call_method0(py, "snapshot").and_then(|taken| taken.extract(py));
            taken.map_err(|error| errors::into_chain(py, error, self.number))
        })
    }
}

/// Adds the content of a sample to the digest of the epoch: its pickle and the bytes of its arrays. The function
/// for [`digest_with`](loader_core::Builder::digest_with).
pub(crate) fn hash_content(sample: &PySample, hash: &mut ContentHash) {
    let added = Python::attach(|py| -> PyResult<()> {
        let parts = py.import("loader._collate")?.call_method1("content", (&sample.0,))?;
        for part in parts.try_iter()? {
            hash.bytes(&PyBuffer::<u8>::get(&part?)?.to_vec(py)?);
        }
        Ok(())
    });
    // A panic here is an error of the batch, which is right: a digest without the sample would be wrong.
    added.unwrap_or_else(|error| panic!("the sample cannot be hashed for the digest: {error}"));
}

/// Collates the samples of a batch with the dataset's collation function. The function for
/// [`collate_with`](loader_core::Builder::collate_with); `number` is the dataset's.
pub(crate) fn collate(number: &u64, samples: Vec<PySample>) -> anyhow::Result<Collated> {
    with_opened(*number, |fetcher| {
        let samples: Vec<_> = samples.into_iter().map(|sample| sample.0).collect();
        let collated = fetcher.call_method1("collate", (samples,))?;
        if fetcher.getattr("is_local")?.extract()? {
            return Ok(Collated::Object(collated.unbind()));
        }
        let encoded = fetcher.call_method1("encode", (&collated,))?;
        // The batch must be gone before its memory is taken.
        drop(collated);
        let (pickle, buffers): (Bound<'_, PyAny>, Vec<Bound<'_, PyAny>>) = encoded.extract()?;
        drop(encoded);
        Collated::from_pickle(pickle.extract()?, buffers)
    })
}

impl fmt::Debug for PySample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PySample")
    }
}
