//! Implements the traits of the streams of lines.

/// Implements `IterableDataset` and `SnapshotDataset` for a type with a field `stream`, which is a
/// [`LineStream`](super::LineStream), a method `parse` that makes a sample from a line, and a method
/// `description` that returns the fingerprint.
///
/// Alternative considered: one generic stream with the public types as aliases. Rejected because each alias
/// would then show the documentation of the generic stream.
macro_rules! line_stream {
    ($stream:ident $(<$row:ident>)?, $sample:ty) => {
        impl$(<$row: serde::de::DeserializeOwned + Send + 'static>)? loader_core::IterableDataset
            for $stream$(<$row>)?
        {
            type Sample = $sample;

            fn iter(
                &self,
                shard: loader_core::Shard,
                cx: &mut loader_core::SampleContext,
            ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<$sample>> + Send> {
                self.stream.samples(shard, None, cx.memory(), |line| self.parse(line))
            }

            fn iter_at(
                &self,
                shard: loader_core::Shard,
                position: u64,
                cx: &mut loader_core::SampleContext,
            ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<$sample>> + Send>> {
                self.stream.samples_after(shard, position, cx.memory(), |line| self.parse(line)).map(Some)
            }

            /// Returns the number of samples if the stream was made from a dataset with random access.
            fn len(&self) -> Option<usize> {
                self.stream.len()
            }

            /// Returns the number of files and their total size, and a hash of their names, sizes and partitions,
            /// the size of the blocks, and the options.
            fn fingerprint(&self) -> String {
                self.description()
            }
        }

        impl$(<$row: serde::de::DeserializeOwned + Send + 'static>)? loader_core::SnapshotDataset
            for $stream$(<$row>)?
        {
            type Snapshot = crate::lines::LineSnapshot;

            fn iter_from(
                &self,
                shard: loader_core::Shard,
                cx: &mut loader_core::SampleContext,
                snapshot: Option<crate::lines::LineSnapshot>,
            ) -> anyhow::Result<
                impl loader_core::SnapshotIterator<
                    Item = anyhow::Result<$sample>,
                    Snapshot = crate::lines::LineSnapshot,
                > + Send,
            > {
                self.stream.samples(shard, snapshot, cx.memory(), |line| self.parse(line))
            }
        }
    };
}

pub(crate) use line_stream;
