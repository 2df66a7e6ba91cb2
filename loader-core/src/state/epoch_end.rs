//! How the epoch before the one of a state ended.

use serde::{Deserialize, Serialize};

use super::ShardsPosition;

/// How an epoch of an iterable dataset ended for a rank. The state of the next epoch has it until that epoch has
/// returned its first batch. `State::merge` needs it if other ranks are still in the epoch that ended. The default is
/// the end of an epoch without the option `steps_per_epoch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpochEnd {
    /// Number of batches that the rank returned, or whose error it returned; 0 without the option.
    pub(super) steps: u64,
    pub(super) shards: ShardsAtEnd,
}

/// What a rank has read of its shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ShardsAtEnd {
    /// All of them.
    #[default]
    AllRead,
    /// `steps_per_epoch` ended the epoch at this position.
    At(ShardsPosition),
    /// `steps_per_epoch` ended the epoch, and only the iterator knew the position.
    Unknown,
}

impl EpochEnd {
    /// The end of an epoch with the option, after `steps` batches, at this position of the rank. A rank that has read
    /// all of its shards has a position too: the ranks of a group save equal states, although one of them may know
    /// earlier than another that its shards have ended.
    pub(crate) fn after_steps(steps: u64, position: ShardsPosition) -> Self {
        Self { steps, shards: ShardsAtEnd::At(position) }
    }

    /// How an epoch ended for all ranks of a merged state, if it ended so for each of them. The ranks of the next run
    /// may have other shards, so a merged state has no position at which the epoch ended.
    pub(super) fn of_all_ranks<'a>(mut ends: impl Iterator<Item = &'a Self>) -> Self {
        match ends.find(|end| end.shards != ShardsAtEnd::AllRead) {
            Some(end) => Self { steps: end.steps, shards: ShardsAtEnd::Unknown },
            None => Self::default(),
        }
    }

    /// What a loader with this option `steps_per_epoch` knows of the end of an epoch without its iterator.
    pub(crate) fn without_iterator(steps_per_epoch: Option<u64>) -> Self {
        match steps_per_epoch {
            Some(steps) => Self { steps, shards: ShardsAtEnd::Unknown },
            None => Self::default(),
        }
    }
}
