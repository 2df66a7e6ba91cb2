//! Datasets by name, for worker programs that are not the main program.

use std::{collections::BTreeMap, fmt};

use loader_core::{
    Dataset, IterableDataset, Sample,
    collate::{Collate, DefaultCollate},
    internal::{OpenFn, open, types},
    kind::{DatasetKind, Iterable, MapStyle, NoWorkerInit, Plain, WorkerInit},
};

/// The datasets that a worker program serves, by name. The main program selects one with `registered`.
///
/// Build both programs from the same source: if a type of the dataset has other fields in the worker program, the
/// iterator returns [`Error::ProgramsDiffer`](loader_core::Error::ProgramsDiffer) and ends. If the workers cannot decode
/// the dataset, it returns [`Error::OpenFailed`](loader_core::Error::OpenFailed).
#[derive(Default)]
pub struct Registry {
    entries: BTreeMap<String, Registered>,
}

#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) open: OpenFn,
    pub(crate) types: String,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the map-style dataset `D` with default collation. A later dataset with the same name replaces it.
    #[must_use]
    pub fn register<D: Dataset<Sample: Sample>>(self, name: impl Into<String>) -> Self {
        self.register_with::<D, DefaultCollate, NoWorkerInit>(name)
    }

    /// Adds the iterable dataset `D` with default collation. A later dataset with the same name replaces it.
    #[must_use]
    pub fn register_stream<D: IterableDataset<Sample: Sample>>(self, name: impl Into<String>) -> Self {
        self.register_kind::<Iterable<Plain<D>>, DefaultCollate, NoWorkerInit>(name)
    }

    /// Adds the map-style dataset `D` with a collation `C` and a `worker_init` hook `W`. A later dataset with
    /// the same name replaces it.
    #[must_use]
    pub fn register_with<D, C, W>(self, name: impl Into<String>) -> Self
    where
        D: Dataset,
        C: Collate<D::Sample>,
        W: WorkerInit,
    {
        self.register_kind::<MapStyle<D>, C, W>(name)
    }

    /// Adds a dataset of either kind, in the form in which a loader sends it:
    /// [`MapStyle<D>`](loader_core::kind::MapStyle), [`Iterable<Plain<D>>`](loader_core::kind::Iterable), or
    /// `Iterable<Snapshots<D>>` for a loader with snapshots.
    #[must_use]
    pub fn register_kind<K, C, W>(mut self, name: impl Into<String>) -> Self
    where
        K: DatasetKind,
        C: Collate<K::Sample>,
        W: WorkerInit,
    {
        let entry = Registered { open: open::<K, C, W>, types: types::<K, C, W>() };
        self.entries.insert(name.into(), entry);
        self
    }

    /// Returns the names of all datasets, for messages.
    pub(crate) fn names(&self) -> String {
        self.entries.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Finds the dataset `name`, which must be of `types`. The error is for the user of the main program.
    pub(crate) fn find(&self, name: &str, types: &str) -> Result<Registered, String> {
        let Some(entry) = self.entries.get(name) else {
            return Err(if self.entries.is_empty() {
                format!("the worker program has no registered datasets; register `{name}` there")
            } else {
                format!("the worker program has no dataset `{name}`; it has {}", self.names())
            });
        };
        if entry.types != types {
            let ours = &entry.types;
            return Err(format!(
                "the worker program has registered `{name}` as {ours}, the main program sends {types}; dataset, collation and \
                 worker_init must have the same types on both sides"
            ));
        }
        Ok(entry.clone())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("names", &self.entries.keys().collect::<Vec<_>>()).finish()
    }
}
