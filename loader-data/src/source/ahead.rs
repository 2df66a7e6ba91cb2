//! What a stream fetches from a server before it needs it.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use loader_core::{DatasetMemory, Phase, internal::Reclaimable};

use super::{Blob, remote::Ahead};
use crate::error::Result;

/// Ranges of a file on a server that are being fetched. Until they are read, their bytes are part of the dataset's
/// memory. Dropping them cancels their requests, except those that fill the cache.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    blob: Arc<Blob>,
    ranges: Vec<Range<u64>>,
    fetched: Reclaimable<Ahead>,
}

impl ReadAhead {
    /// Starts to fetch `ranges` of `blob`. Returns `None` if the file is local (the system reads it ahead), if the cache
    /// of remote files has the bytes, if `memory` has no room for them, or if the fetch cannot be started. The caller
    /// then reads the ranges when it needs them.
    pub(crate) fn start(blob: &Arc<Blob>, ranges: Vec<Range<u64>>, memory: &DatasetMemory) -> Option<Self> {
        let fetched = blob.read_ahead(&ranges, memory)?;
        Some(Self { blob: Arc::clone(blob), ranges, fetched })
    }

    /// Gives back the bytes, and keeps the data: no later reservation drops it. Returns `None` if it was dropped.
    #[cfg(feature = "columnar")]
    pub(crate) fn claim(self) -> Option<Self> {
        Some(Self { fetched: self.fetched.claim()?, ..self })
    }

    /// Returns the bytes of each range. Ranges that were dropped because a reservation needed their memory, and those
    /// whose requests had failed before this call, are read now.
    ///
    /// # Errors
    /// As for [`Blob::read_ranges`], also if a request that was sent ahead fails during this call.
    pub(crate) fn read(self) -> Result<Vec<Bytes>> {
        match Phase::Read.measure(|| self.fetched.take().map_or(Ok(None), Ahead::wait)) {
            Ok(Some(read)) => Ok(read),
            Ok(None) => self.blob.read_ranges(&self.ranges),
            Err(problem) => Err(self.blob.ranges_error(&self.ranges, problem)),
        }
    }
}

/// The part of a shard after the one that is read, such as a file or a row group: its number, and what fetches it.
#[derive(Debug)]
pub(crate) struct NextPart<T>(Option<(u64, Option<T>)>);

impl<T> Default for NextPart<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> NextPart<T> {
    /// Calls `begin` to fetch part `number`, once for each part. Drops the part that was begun before.
    pub(crate) fn begin(&mut self, number: u64, begin: impl FnOnce() -> Option<T>) {
        if self.0.as_ref().is_none_or(|(begun, _)| *begun != number) {
            // The bytes of the old part are given back before those of the new one are reserved.
            self.0 = None;
            self.0 = Some((number, begin()));
        }
    }

    /// Returns what fetches part `number`; `None` if another part was begun, or none.
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        self.0.take_if(|(begun, _)| *begun == number)?.1
    }
}
