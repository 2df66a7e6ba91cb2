//! A dataset whose samples are kept in files, so that each is computed once.
//!
//! # Files
//!
//! | file in the cache's folder | content |
//! |---|---|
//! | `index` | a header (see `identity.rs`), and an entry of 32 bytes for each sample: its offset and length in `samples`, and a checksum |
//! | `samples` | the encoded samples, in the order in which processes finished them |
//! | `index.*.tmp` | the header while it is written. Only a process that is killed meanwhile leaves it behind |
//!
//! A process computes a sample that has no valid entry, appends its encoding to `samples` with one `write`,
//! and then writes the entry with one `write`. Each process reads the offset of its sample from its own file
//! position, because a write in append mode is atomic. There is no lock between processes: if two of them
//! compute one sample, the second finds the entry of the first and writes nothing, or writes another valid
//! entry.
//!
//! A sample is complete or absent. The checksum covers the random number in the header, the sample's index,
//! its offset and its bytes, and each read verifies it. A torn entry, a part of a sample, or data that a
//! power cut has lost therefore make the sample absent, and the next process that needs it computes it again.
//! Only the header is flushed to the disk, before it gets its name.
//!
//! # Choices
//!
//! - Alternative considered: a file of samples for each worker. Rejected because each replaced worker would
//!   add a file, and each reader would hold all of them open.
//! - Alternative considered: a lock for each sample, so that no sample is computed twice. Rejected because an
//!   epoch asks for each index once; only sampling with replacement, or two programs at once, can compute a
//!   sample twice.
//! - Alternative considered: mapping the files. Rejected because a process that reads a mapped file dies of
//!   SIGBUS if the file is truncated. `pread` costs one copy of the sample.
//! - Alternative considered: verifying a checksum once per process. Rejected because the kernel may drop a
//!   page and read it from the disk again at any time.
//! - Alternative considered: this module in `loader-data`. Rejected because the cache needs no file format
//!   and no dependency that this crate lacks, and every dataset should have the method.
//! - Before a process uses the cache, it computes one of the samples that are stored, and compares the two. The header
//!   cannot tell two datasets apart whose files have the same names and sizes, and the default fingerprint tells none
//!   apart. Alternative considered: the paths and the times of the files in the header. Rejected because the cache must
//!   survive a copy of the files, and because a dataset that a program implements has neither.
//! - A computed sample is delivered as decoded from its encoding, whether or not it could be written. All
//!   epochs therefore have the same samples, even if the encoding loses a field.

mod error;
mod identity;
mod store;
#[cfg(test)]
mod tests;

use std::{
    any::type_name,
    ffi::OsString,
    panic::{self, AssertUnwindSafe},
    path::{self, Path},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use loader_ipc::codec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use self::error::{CacheError, CachePart};
use self::{
    identity::Identity,
    store::{Entry, Store, warn_not_filled},
};
use super::{Dataset, many};
use crate::data::{context::SampleContext, fingerprint::shorten, panic::forget_backtrace};

/// Number of encodings of a sample that are compared to find out whether its type has a fixed order.
const ENCODINGS: usize = 20;

/// A dataset whose samples are kept in files. Created by [`Dataset::cached`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct Cached<D> {
    dataset: D,
    folder: OsString,
    identity: Identity,
    max_bytes: u64,
    /// Opened by the first sample in each process. `None` if the files cannot be used.
    #[serde(skip)]
    store: Arc<OnceLock<Option<Store>>>,
    /// Set by the first sample in each process.
    #[serde(skip)]
    comparison: Arc<OnceLock<Comparison>>,
    /// Number of comparisons in this process that have failed.
    #[serde(skip)]
    failures: Arc<AtomicU32>,
}

/// What a process has found when it compared a stored sample with the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// No sample was stored.
    Empty,
    Equal,
    /// Two computations of the sample, or two encodings of it, differ.
    Varies,
    /// The dataset did not return the sample: its files have gone, or a server does not answer. The process uses the
    /// stored samples, and stores none.
    Failed,
    /// The sample with this index differs.
    Differs(usize),
}

/// Number of samples that a process tries to compare with a dataset that fails.
const ATTEMPTS: u32 = 3;

/// A sample in the cache, or the entry that says that it is absent.
enum Lookup<S> {
    Sample(S),
    Absent(Entry),
}

impl<D: Dataset<Sample: Serialize + DeserializeOwned>> Cached<D> {
    pub(super) fn new(dataset: D, folder: &Path, version: &str) -> Result<Self, CacheError> {
        let folder = path::absolute(folder)
            .map_err(|source| CacheError::System { folder: folder.to_owned(), source })?;
        let identity = Identity {
            version: version.to_owned(),
            sample: type_name::<D::Sample>().to_owned(),
            len: dataset.len() as u64,
            dataset: shorten(dataset.fingerprint()),
        };
        Store::open(&folder, &identity, u64::MAX)?;
        let folder = folder.into_os_string();
        Ok(Self {
            dataset,
            folder,
            identity,
            max_bytes: u64::MAX,
            store: Arc::default(),
            comparison: Arc::default(),
            failures: Arc::default(),
        })
    }

    /// Sets the maximum size of the file of samples, in bytes; unlimited by default. Each process may exceed
    /// it by one sample. Samples for which there is no room are computed in each epoch.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self.store = Arc::default();
        self
    }

    fn store(&self) -> Option<&Store> {
        let open = || {
            let folder = Path::new(&self.folder);
            let opened = Store::open(folder, &self.identity, self.max_bytes);
            // `cached` has opened the files in main: they were changed since, or this process lacks
            // descriptors. The epoch must not fail because of it.
            opened.inspect_err(|error| warn_not_filled(folder, error)).ok()
        };
        self.store.get_or_init(open).as_ref()
    }

    fn find(&self, index: usize, cx: &SampleContext) -> anyhow::Result<Lookup<D::Sample>> {
        let Some(store) = self.store() else { return Ok(Lookup::Absent(Entry::default())) };
        if let Comparison::Differs(other) = self.comparison(store, index, cx)? {
            return Err(CacheError::OtherSample { folder: self.folder.clone().into(), index: other }.into());
        }
        let (entry, bytes) = store.read(index);
        match bytes {
            Some(bytes) => Ok(Lookup::Sample(self.decode(index, &bytes)?)),
            None => Ok(Lookup::Absent(entry)),
        }
    }

    /// Compares sample `wanted` of the store with that of the dataset, or the next one that is stored. Each process
    /// does so once, before it reads or writes a sample.
    fn comparison(&self, store: &Store, wanted: usize, cx: &SampleContext) -> anyhow::Result<Comparison> {
        if let Some(&comparison) = self.comparison.get() {
            return Ok(comparison);
        }
        let comparison = match store.first_from(wanted, self.dataset.len()) {
            Ok(Some((index, stored))) => self.compare(index, &stored, cx)?,
            Ok(None) => Comparison::Empty,
            Err(_) => Comparison::Failed,
        };
        // Relaxed: the number protects no other data.
        if comparison == Comparison::Failed && self.failures.fetch_add(1, Relaxed) + 1 < ATTEMPTS {
            return Ok(comparison);
        }
        Ok(*self.comparison.get_or_init(|| comparison))
    }

    fn compare(&self, index: usize, stored: &[u8], cx: &SampleContext) -> anyhow::Result<Comparison> {
        let mut sample = self.decode(index, stored)?;
        // In a context of its own: the caller goes on with its index and its generator, also after a panic.
        let mut cx = cx.for_layer(0);
        cx.set_index(index);
        // As when the cache was filled: some datasets have `get_many` only.
        let load = |cx: &mut SampleContext| match many::try_get_many(&self.dataset, &[index], cx)? {
            Some(mut samples) => Ok(samples.remove(0)),
            None => self.dataset.get(index, cx),
        };
        let mut compute = || {
            let load = |cx: &mut SampleContext| Ok(catch(|| load(cx)));
            let Some(sample) = self.compute(index, &mut cx, load)? else { return Ok(None) };
            anyhow::Ok(Some(self.encode(index, &sample)?))
        };
        let Some(computed) = compute()? else { return Ok(Comparison::Failed) };
        if computed == stored {
            return Ok(Comparison::Equal);
        }
        // Each decoded `HashMap` has an order of its own.
        for _ in 0..ENCODINGS {
            if self.encode(index, &sample)? != stored {
                return Ok(Comparison::Varies);
            }
            sample = self.decode(index, stored)?;
        }
        Ok(match compute()? {
            None => Comparison::Failed,
            Some(again) if again != computed => Comparison::Varies,
            Some(_) => Comparison::Differs(index),
        })
    }

    /// Stores a computed sample. Returns it as the next epoch will read it.
    fn keep(&self, index: usize, seen: Entry, sample: &D::Sample) -> Result<D::Sample, CacheError> {
        let bytes = self.encode(index, sample)?;
        let sample = self.decode(index, &bytes)?;
        let may_store =
            |comparison| matches!(comparison, Comparison::Empty | Comparison::Equal | Comparison::Varies);
        if let Some(store) = self.store()
            && self.comparison.get().copied().is_some_and(may_store)
        {
            store.write(index, seen, &bytes);
        }
        Ok(sample)
    }

    fn encode(&self, index: usize, sample: &D::Sample) -> Result<Vec<u8>, CacheError> {
        codec::encode(sample).map_err(|error| self.unreadable(index, &error))
    }

    fn decode(&self, index: usize, bytes: &[u8]) -> Result<D::Sample, CacheError> {
        codec::decode(bytes).map_err(|error| self.unreadable(index, &error))
    }

    fn unreadable(&self, index: usize, error: &codec::CodecError) -> CacheError {
        let folder = self.folder.clone().into();
        CacheError::NotReadable {
            folder,
            index,
            sample: self.identity.sample.clone(),
            problem: error.to_string(),
        }
    }

    /// Runs `load`, which computes sample `index`, and maybe others. Refuses samples that are random.
    fn compute<R>(
        &self,
        index: usize,
        cx: &mut SampleContext,
        load: impl FnOnce(&mut SampleContext) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let (loaded, is_random) = cx.detect_draws(load);
        let loaded = loaded?;
        if is_random {
            Err(CacheError::RandomSample { folder: self.folder.clone().into(), index }.into())
        } else {
            Ok(loaded)
        }
    }
}

impl<D: Dataset<Sample: Serialize + DeserializeOwned>> Dataset for Cached<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<D::Sample> {
        match self.find(index, cx)? {
            Lookup::Sample(sample) => Ok(sample),
            Lookup::Absent(seen) => {
                let sample = self.compute(index, cx, |cx| self.dataset.get(index, cx))?;
                Ok(self.keep(index, seen, &sample)?)
            }
        }
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<D::Sample>> {
        let found = indices.iter().map(|&index| self.find(index, cx)).collect::<Result<Vec<_>, _>>()?;
        let is_absent =
            |(found, &index): (&Lookup<_>, &usize)| matches!(found, Lookup::Absent(_)).then_some(index);
        let absent: Vec<usize> = found.iter().zip(indices).filter_map(is_absent).collect();
        let mut computed = Vec::new();
        if let Some(&first) = absent.first() {
            let load = |cx: &mut SampleContext| many::try_get_many(&self.dataset, &absent, cx);
            match self.compute(first, cx, load)? {
                Some(samples) => computed = samples,
                None => return many::decline(self, indices, cx),
            }
        }
        let mut computed = computed.iter();
        let samples = found.into_iter().zip(indices).map(|(found, &index)| match found {
            Lookup::Sample(sample) => Ok(sample),
            Lookup::Absent(seen) => {
                let sample = computed.next().expect("`try_get_many` checks the number");
                Ok(self.keep(index, seen, sample)?)
            }
        });
        samples.collect()
    }

    /// That of the dataset: a state fits with and without the cache.
    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }

    pass_on_to_inner!(adds_layers: 0);
}

/// Returns what `load` returns, or `None` if it fails or panics.
fn catch<S>(load: impl FnOnce() -> anyhow::Result<S>) -> Option<S> {
    panic::catch_unwind(AssertUnwindSafe(load)).inspect_err(|_| forget_backtrace()).ok()?.ok()
}
