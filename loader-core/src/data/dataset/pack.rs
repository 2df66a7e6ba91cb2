//! Streams of documents that are packed into windows.

use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    groups::{GroupSnapshot, groups, groups_from},
    with_len,
};
use crate::data::{
    context::SampleContext,
    pack::{PackError, PackedWindow, Packer, Packing, TokenSequence},
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

    fn packer(&self, cx: &SampleContext) -> Packer<D::Sample> {
        Packer::new(self.packing, cx.buffer_key(self.layers()))
    }
}

impl<D: IterableDataset<Sample: TokenSequence>> IterableDataset for PackedDataset<D> {
    type Sample = PackedWindow<<D::Sample as TokenSequence>::Token>;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send> {
        groups(self.packer(cx), &self.dataset, shard, cx)
    }

    fn fingerprint(&self) -> String {
        format!("pack({:?}, {})", self.packing, with_len(&self.dataset.fingerprint(), self.dataset.len()))
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: SnapshotDataset<Sample: TokenSequence>> SnapshotDataset for PackedDataset<D> {
    type Snapshot = GroupSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<GroupSnapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = GroupSnapshot> + Send,
    > {
        groups_from(self.packer(cx), &self.dataset, shard, cx, snapshot)
    }
}
