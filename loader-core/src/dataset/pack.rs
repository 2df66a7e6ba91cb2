//! Streams of documents that are packed into windows.

use anyhow::Context;
use loader_ipc::codec;
use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard, SnapshotDataset, SnapshotIterator, shuffle_buffer::Reader, with_len};
use crate::{
    context::SampleContext,
    pack::{PackError, PackedWindow, Packer, PackerPosition, Packing, TokenSequence},
};

/// A stream of documents that are packed into windows of one length. Created by
/// [`IterableDataset::pack`]. The module [`pack`](crate::pack) describes the methods.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PackedDataset<D> {
    dataset: D,
    packing: Packing,
}

impl<D: IterableDataset<Sample: TokenSequence>> PackedDataset<D> {
    pub(super) fn new(dataset: D, packing: Packing) -> Result<Self, PackError> {
        packing.check::<<D::Sample as TokenSequence>::Token>()?;
        Ok(Self { dataset, packing })
    }
}

type WindowOf<S> = PackedWindow<<S as TokenSequence>::Token>;

impl<D: IterableDataset<Sample: TokenSequence>> IterableDataset for PackedDataset<D> {
    type Sample = WindowOf<D::Sample>;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send> {
        let mut packer = Packer::new(self.packing);
        let mut items = self.dataset.iter(shard, cx)?.fuse();
        Ok(std::iter::from_fn(move || {
            next(&mut packer, |_| Some(items.next()?.map(|document| (0, document))))
        }))
    }

    fn fingerprint(&self) -> String {
        format!("pack({:?}, {})", self.packing, with_len(&self.dataset.fingerprint(), self.dataset.len()))
    }

    pass_on_to_inner!(adds_layers: 0);
}

/// Returns the next window. `read` returns the next document with its position.
fn next<S: TokenSequence>(
    packer: &mut Packer<S>,
    mut read: impl FnMut(&Packer<S>) -> Option<anyhow::Result<(u64, S)>>,
) -> Option<anyhow::Result<WindowOf<S>>> {
    loop {
        if let Some(window) = packer.pop() {
            return Some(window);
        }
        if packer.position().has_ended {
            return None;
        }
        match read(packer) {
            None => packer.end(),
            Some(Ok((position, document))) => {
                if let Err(error) = packer.push(position, document) {
                    return Some(Err(error.into()));
                }
            }
            Some(Err(error)) => return Some(Err(error)),
        }
    }
}

/// Snapshot of a [`PackedDataset`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PackSnapshot {
    at: PackerPosition,
    /// Number of items read from the stream.
    read: u64,
    /// Number of items that had been read when the inner snapshot was taken.
    start: u64,
    /// The inner snapshot, encoded; `None` stands for the beginning of the shard.
    inner: Option<Vec<u8>>,
}

/// Number of documents between two snapshots of the stream. A resumed stream reads up to this number of documents
/// more than it needs.
const INTERVAL: u64 = 64;

impl<D: SnapshotDataset<Sample: TokenSequence>> SnapshotDataset for PackedDataset<D> {
    type Snapshot = PackSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<PackSnapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = PackSnapshot> + Send,
    > {
        let mut packer = Packer::new(self.packing);
        let inner = snapshot.as_ref().and_then(|snapshot| snapshot.inner.as_deref());
        let inner = inner.map(codec::decode).transpose().context("reading the snapshot of the documents")?;
        let items = self.dataset.iter_from(shard, cx, inner)?;
        let Some(snapshot) = snapshot else {
            return Ok(PackIter { packer, reader: Reader::new(items, INTERVAL, 0, None) });
        };
        let PackSnapshot { at, read, start, inner } = snapshot;
        let mut reader = Reader::new(items, INTERVAL, start, inner);
        let oldest = at.oldest.unwrap_or(read);
        reader.repeat(read, Some(oldest), |position, document| {
            if let Ok(document) = document
                && position >= oldest
            {
                // The user has received the error of a document that is too long.
                let _ = packer.push(position, document);
            }
            Ok(())
        })?;
        packer.restore(&at)?;
        Ok(PackIter { packer, reader })
    }
}

struct PackIter<I, S> {
    packer: Packer<S>,
    reader: Reader<I>,
}

impl<S, I> Iterator for PackIter<I, S>
where
    S: TokenSequence,
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Item = anyhow::Result<WindowOf<S>>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { packer, reader } = self;
        next(packer, |packer| reader.next(|| packer.oldest()))
    }
}

impl<S, I> SnapshotIterator for PackIter<I, S>
where
    S: TokenSequence,
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Snapshot = PackSnapshot;

    fn snapshot(&self) -> anyhow::Result<PackSnapshot> {
        let (read, start, inner) = self.reader.snapshot_for(self.packer.oldest());
        Ok(PackSnapshot { at: self.packer.position(), read, start, inner: inner.map(<[u8]>::to_vec) })
    }
}
