//! What collects the samples of a stream and gives groups of them: packed windows, batches of similar length.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// Collects samples and gives groups of them.
pub(crate) trait Collector<S> {
    /// A group of samples.
    type Group;

    /// Adds the sample at `position` of the shard.
    ///
    /// # Errors
    /// Returns an error if the sample fits into no group. The collector leaves it out.
    fn push(&mut self, position: u64, sample: S) -> anyhow::Result<()>;

    /// Notes that there are no more samples.
    fn end(&mut self);

    /// Returns the next group, if enough samples were added.
    fn pop(&mut self) -> Option<anyhow::Result<Self::Group>>;

    /// Returns what the collector needs to continue.
    fn position(&self) -> CollectorPosition;

    /// Drops what was given before the snapshot: `given` is [`CollectorPosition::given`]. Returns false if
    /// the samples of the collector cannot have given that many groups.
    fn skip(&mut self, given: usize) -> bool;

    /// Continues at `position`, after the samples from its oldest one were added again.
    ///
    /// # Errors
    /// Returns an error if `position` cannot be that of these samples.
    fn restore(&mut self, position: &CollectorPosition) -> anyhow::Result<()> {
        if position.has_ended {
            self.end();
        }
        ensure!(
            self.skip(position.given) && self.position().samples == position.samples,
            "the samples differ from those at the time of the snapshot; the data must not change between two runs"
        );
        Ok(())
    }
}

/// What a [`Collector`] needs to continue.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct CollectorPosition {
    /// Position of the oldest sample that is needed; `None` if no sample is.
    pub(crate) oldest: Option<u64>,
    /// Number of samples in the collector.
    pub(crate) samples: usize,
    /// Number of groups of these samples that were given, or another measure of how far the collector is.
    pub(crate) given: usize,
    pub(crate) has_ended: bool,
}
