//! Reads the samples of one shard.

use std::sync::Arc;

use loader_core::{DatasetMemory, SnapshotIterator};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    TarShards,
    members::Members,
    samples::{Samples, Wanted},
};
use crate::{
    error::Result,
    shard_items::ItemError,
    source::{Blob, BlobReader, NextPart},
};

/// A position in a shard of [`TarShards`](crate::TarShards).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TarPosition {
    /// Number of files of the shard that have been read.
    files: u64,
    /// Offset of the next sample in the archive.
    offset: u64,
    /// Number of items that the shard has returned.
    items: u64,
}

/// The samples of one shard from a position on.
pub(super) struct Stream<'a, R> {
    shards: &'a TarShards<R>,
    /// Numbers of the files of the shard, in order.
    files: Vec<usize>,
    next: TarPosition,
    /// The file at `next`, if it is open.
    open: Option<(Arc<Blob>, Samples)>,
    /// The beginning of the file after the open one, which is being fetched if it lies on a server.
    ahead: NextPart<BlobReader>,
    /// The account of what is read ahead.
    memory: DatasetMemory,
    /// Seed of the random numbers of the samples.
    seed: [u8; 32],
}

impl<'a, R: DeserializeOwned + 'static> Stream<'a, R> {
    pub(super) fn new(
        shards: &'a TarShards<R>,
        files: Vec<usize>,
        seed: [u8; 32],
        memory: DatasetMemory,
        next: TarPosition,
    ) -> Self {
        Self { shards, files, next, open: None, ahead: NextPart::default(), memory, seed }
    }

    /// Returns the next sample of `file`, or `None` at its end.
    fn next_of(&mut self, file: usize) -> Option<Result<R, ItemError>> {
        let shards = self.shards;
        if self.open.is_none() {
            match self.opened(file) {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    self.close();
                    return Some(Err(ItemError::Rest(error)));
                }
            }
        }
        let (blob, samples) = self.open.as_mut()?;
        let blob = Arc::clone(blob);
        let is_wanted = |field: &str| shards.decoding.is_wanted(field);
        let wanted = Wanted { is_wanted: &is_wanted, max_sample_bytes: shards.max_sample_bytes };
        let sample = samples.next(wanted);
        match samples.position() {
            Some(offset) => self.next.offset = offset,
            None => self.close(),
        }
        // Each sample has random numbers of its own, so that they are the same after a resume.
        let mut rng = ChaCha8Rng::from_seed(self.seed);
        rng.set_stream(self.next.items);
        let row = |sample| Ok(shards.decoding.row(sample, &blob.file().location, &mut rng)?);
        Some(sample?.and_then(row))
    }

    fn opened(&mut self, file: usize) -> Result<(Arc<Blob>, Samples)> {
        let ahead = self.ahead.take(file as u64);
        let blob = self.shards.files.open(file)?;
        let whole = |blob: &Arc<Blob>| blob.reader(0..blob.len()).with_memory(&self.memory);
        // A resumed shard continues further on, and needs only a few bytes of the beginning.
        let reader = (self.next.offset == 0).then(|| ahead.unwrap_or_else(|| whole(&blob)));
        let members = Members::open(&blob, reader, self.next.offset, self.shards.end);
        // This comes after the requests for the open file, so that they are sent first.
        let next = usize::try_from(self.next.files).ok().and_then(|files| self.files.get(files + 1));
        if let Some(&next) = next {
            self.ahead.begin(next as u64, || self.shards.files.begin(next, whole));
        }
        Ok((blob, Samples::new(members?)))
    }

    /// Moves on to the next file.
    fn close(&mut self) {
        self.open = None;
        self.next.offset = 0;
        self.next.files += 1;
    }
}

impl<R: DeserializeOwned + 'static> Iterator for Stream<'_, R> {
    type Item = Result<R, ItemError>;

    fn next(&mut self) -> Option<Result<R, ItemError>> {
        loop {
            let file = *self.files.get(usize::try_from(self.next.files).ok()?)?;
            if let Some(sample) = self.next_of(file) {
                self.next.items += 1;
                return Some(sample);
            }
        }
    }
}

impl<R: DeserializeOwned + 'static> SnapshotIterator for Stream<'_, R> {
    type Snapshot = TarPosition;

    fn snapshot(&self) -> anyhow::Result<TarPosition> {
        Ok(self.next)
    }
}
