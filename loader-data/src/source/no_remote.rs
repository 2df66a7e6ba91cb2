//! Takes the place of `remote` in a program without the feature `cloud`.

use std::ops::Range;

use bytes::Bytes;
use loader_core::{DatasetMemory, internal::Reclaimable};

use super::{DataFile, StoreOptions};
use crate::error::{DataProblem, Result};

/// Has no value, because a program without the feature `cloud` opens no file on a server.
#[derive(Debug)]
pub(super) enum Remote {}

impl Remote {
    /// Returns an error that names the feature.
    pub(super) fn new(_: &StoreOptions) -> Result<Self, DataProblem> {
        Err(super::needs_cloud())
    }

    pub(super) fn list(&self, _: &str, _: &[&str], _: &mut Vec<DataFile>) -> Result<()> {
        match *self {}
    }

    #[cfg(feature = "columnar")]
    pub(super) fn describe(&self, _: &str) -> Result<DataFile> {
        match *self {}
    }

    pub(super) fn open(&self, _: DataFile, _: &str) -> Result<Object> {
        match *self {}
    }
}

/// As [`Remote`].
#[derive(Debug)]
pub(super) enum Object {}

impl Object {
    pub(super) fn read(&self, _: &[Range<u64>], _: u64) -> Result<Vec<Bytes>, DataProblem> {
        match *self {}
    }

    pub(super) fn read_ahead(&self, _: Vec<Range<u64>>, _: &DatasetMemory) -> Option<Reclaimable<Ahead>> {
        match *self {}
    }
}

/// As [`Remote`].
#[derive(Debug)]
pub(super) enum Ahead {}

impl Ahead {
    pub(super) fn wait(self) -> Result<Option<Vec<Bytes>>, DataProblem> {
        match self {}
    }
}
