//! The user's position in the shards of an iterable dataset.

use loader_ipc::frame::{AfterFailure, StreamPosition};

use crate::{
    data::fetch::{ShardLayout, ShardPosition, Snapshot},
    error::Error,
    state::{SHARDS, ShardsPosition, must_agree},
};

/// The shards of one epoch.
#[derive(Debug)]
pub(crate) struct Shards {
    epoch: u64,
    layout: ShardLayout,
    positions: Vec<ShardPosition>,
    /// Number of batches returned to the user.
    returned: u64,
    /// The shard after the one whose batch was returned last.
    turn: usize,
    /// True if an error has ended a shard for this epoch, so that a resumed run must read the rest.
    has_unread_shard: bool,
}

impl Shards {
    /// Begins every shard at its start.
    pub(crate) fn new(epoch: u64, layout: ShardLayout) -> Self {
        let positions = vec![ShardPosition::default(); layout.shards];
        Self { epoch, layout, positions, returned: 0, turn: 0, has_unread_shard: false }
    }

    /// Begins every shard where a state says.
    ///
    /// # Errors
    /// If the state has another number of shards, or the turn is that of none of them. `State::check` has compared the
    /// layout of the shards, but the position may contradict it.
    pub(crate) fn resume(epoch: u64, layout: ShardLayout, position: &ShardsPosition) -> Result<Self, Error> {
        must_agree(SHARDS, position.shards.len(), layout.shards)?;
        let turn = position.turn;
        if turn >= layout.shards {
            let expected = format!("below {}", layout.shards);
            must_agree("shard whose turn is next", turn.to_string(), expected)?;
        }
        let (positions, returned) = (position.shards.clone(), position.batches);
        Ok(Self { epoch, layout, positions, returned, turn, has_unread_shard: false })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn count(&self) -> usize {
        self.positions.len()
    }

    /// Maximum number of items that a batch takes from its shard.
    pub(crate) fn max_items(&self) -> u64 {
        self.layout.max_items() as u64
    }

    /// Number of batches returned so far, which is the number of the next one.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    pub(crate) fn turn(&self) -> usize {
        self.turn
    }

    /// Returns the position of a shard.
    pub(crate) fn position(&self, shard: usize) -> &ShardPosition {
        &self.positions[shard]
    }

    /// Notes that the user gets the next batch of `shard`, or its error, which ends at `position`. Returns
    /// the number of its items.
    pub(crate) fn advance(
        &mut self,
        shard: usize,
        position: StreamPosition,
        snapshot: Option<Vec<u8>>,
    ) -> u64 {
        let reached = &mut self.positions[shard];
        // A worker cannot go back.
        let before = reached.position;
        reached.position = before.or_later(position);
        if let Some(bytes) = snapshot {
            reached.snapshot = Some(Snapshot { position: reached.position, bytes: bytes.into() });
        }
        self.returned += 1;
        self.turn = (shard + 1) % self.positions.len();
        self.positions[shard].position.items - before.items
    }

    /// Notes what the failure of the batch that was returned last means for its shard.
    pub(crate) fn failed(&mut self, shard: usize, after: AfterFailure) {
        match after {
            AfterFailure::Continues => {}
            AfterFailure::EndsForEpoch => self.has_unread_shard = true,
            AfterFailure::Ends => self.positions[shard].ended = true,
        }
    }

    /// True if an error has ended a shard before its end, and a resumed run must read the rest.
    pub(crate) fn has_unread_shard(&self) -> bool {
        self.has_unread_shard
    }

    /// Returns the position for a state.
    pub(crate) fn write(&self) -> ShardsPosition {
        ShardsPosition { batches: self.returned, turn: self.turn, shards: self.positions.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_of_no_shard_is_refused() {
        let layout =
            ShardLayout { shards: 2, first_shard: 0, all_shards: 2, batch_size: 4, drop_last: false };
        let resume = |turn| {
            let position = ShardsPosition { turn, ..Shards::new(0, layout).write() };
            Shards::resume(0, layout, &position)
        };
        assert_eq!(resume(1).unwrap().turn(), 1);
        let message = resume(2).unwrap_err().to_string();
        assert!(message.contains("its shard whose turn is next is 2, the loader's is below 2"), "{message}");
    }
}
