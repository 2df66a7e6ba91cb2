//! The user's place in the shards of an iterable dataset.

use crate::{
    error::Error,
    fetch::{ShardLayout, ShardPosition, Snapshot},
    state::{SHARDS, ShardsPosition, must_agree},
};

/// The shards of one epoch.
#[derive(Debug)]
pub(crate) struct Shards {
    epoch: u64,
    layout: ShardLayout,
    places: Vec<ShardPosition>,
    /// Number of batches returned to the user.
    returned: u64,
    /// The shard after the one whose batch was returned last.
    turn: usize,
}

impl Shards {
    /// Begins every shard at its start.
    pub(crate) fn new(epoch: u64, layout: ShardLayout) -> Self {
        Self { epoch, layout, places: vec![ShardPosition::default(); layout.shards], returned: 0, turn: 0 }
    }

    /// Begins every shard where a state says.
    ///
    /// # Errors
    /// If the state has another number of shards. `State::check` has compared the layout of the shards, but
    /// a user may have edited the state.
    pub(crate) fn resume(epoch: u64, layout: ShardLayout, place: &ShardsPosition) -> Result<Self, Error> {
        must_agree(SHARDS, place.shards.len(), layout.shards)?;
        let turn = place.turn % layout.shards;
        Ok(Self { epoch, layout, places: place.shards.clone(), returned: place.batches, turn })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn count(&self) -> usize {
        self.places.len()
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

    /// Returns the place of a shard.
    pub(crate) fn place(&self, shard: usize) -> &ShardPosition {
        &self.places[shard]
    }

    /// Notes that the user gets the next batch of `shard`, or its error, which ends at `position`. Returns
    /// the number of its items.
    pub(crate) fn advance(&mut self, shard: usize, position: u64, snapshot: Option<Vec<u8>>) -> u64 {
        let place = &mut self.places[shard];
        // A worker cannot go back.
        let before = place.position;
        place.position = position.max(before);
        if let Some(bytes) = snapshot {
            place.snapshot = Some(Snapshot { position: place.position, bytes });
        }
        self.returned += 1;
        self.turn = (shard + 1) % self.places.len();
        self.places[shard].position - before
    }

    /// Notes that the user knows the end of `shard`.
    pub(crate) fn end(&mut self, shard: usize) {
        self.places[shard].ended = true;
    }

    /// Returns the place for a state.
    pub(crate) fn write(&self) -> ShardsPosition {
        ShardsPosition { batches: self.returned, turn: self.turn, shards: self.places.clone() }
    }
}
