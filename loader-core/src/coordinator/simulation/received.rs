//! What the user has got of an epoch: each batch once, in its place, and with its content.

use std::collections::BTreeMap;

use super::{
    iterator::{EndOfFailure, Returned},
    world::{Content, Expected, Fault, World},
};

#[derive(Debug)]
pub(super) struct Received {
    world: World,
    in_order: bool,
    /// What has come, by number of the batch.
    batches: BTreeMap<u64, Option<Content>>,
    /// By shard, the position after the last batch, and whether an error has ended it.
    shards: Vec<(u64, bool)>,
    /// The shard after the one whose batch came last.
    turn: usize,
}

impl Received {
    pub(super) fn new(world: World, in_order: bool) -> Self {
        let shards = vec![(0, false); world.shards as usize];
        Self { world, in_order, batches: BTreeMap::new(), shards, turn: 0 }
    }

    /// Notes a batch, or the error in its place.
    pub(super) fn note(&mut self, returned: &Returned) {
        let (number, content) = match *returned {
            Returned::Batch(number, content) => (number, Some(content)),
            Returned::Nothing(number) | Returned::Failed(number, _) => (number, None),
            _ => return,
        };
        if self.in_order {
            let last = self.batches.last_key_value().map(|(&last, _)| last);
            assert!(last.is_none_or(|last| last < number), "batch {number} comes behind {last:?}");
        }
        let before = self.batches.insert(number, content);
        assert_eq!(before, None, "batch {number} came twice");
        match (returned, content) {
            (_, Some(Content::Items { shard, from, to })) => self.note_items(shard, from, to),
            (Returned::Failed(_, Some(end)), _) => self.note_failure_of_shard(end),
            _ => self.check_batch(number, returned),
        }
    }

    fn check_batch(&self, number: u64, returned: &Returned) {
        assert!(number < self.world.batches, "there is no batch {number}");
        let expected = self.world.expected(number);
        let is_right = match (returned, expected) {
            (&Returned::Batch(_, content), Expected::Any) => self.world.is_of_batch(content, number),
            (&Returned::Batch(_, content), Expected::Batch { left_out: expected }) => {
                let is_complete =
                    matches!(content, Content::Samples { left_out, .. } if left_out == expected);
                is_complete && self.world.is_of_batch(content, number)
            }
            (Returned::Nothing(_), expected) => matches!(expected, Expected::Nothing | Expected::Any),
            (Returned::Failed(..), expected) => matches!(expected, Expected::Error | Expected::Any),
            _ => false,
        };
        assert!(is_right, "for batch {number} the user gets {returned:?} instead of {expected:?}");
    }

    /// Checks that it is the turn of a shard: in order, each shard that is not over has one.
    fn take_turn(&mut self, shard: u32) {
        let count = self.shards.len();
        while self.in_order && self.turn != shard as usize {
            let (next, is_over) = self.shards[self.turn];
            let has_items = !is_over && next < self.world.shard_len(self.turn as u32);
            assert!(!has_items, "shard {shard} comes before its turn, which is that of {}", self.turn);
            self.turn = (self.turn + 1) % count;
        }
        self.turn = (shard as usize + 1) % count;
    }

    fn note_items(&mut self, shard: u32, from: u64, to: u64) {
        self.take_turn(shard);
        let faults = (from..to).map(|item| self.world.fault_of_item(shard, item));
        let has_certain = faults.into_iter().any(|fault| !matches!(fault, Fault::None | Fault::HangsOnce));
        assert!(!has_certain, "items {from}..{to} of shard {shard} came, although they fail");
        let (next, is_over) = &mut self.shards[shard as usize];
        assert_eq!((from, false), (*next, *is_over), "shard {shard} has a gap or came twice");
        let end = self.world.shard_len(shard).min(from + self.world.batch_size);
        assert_eq!(to, end, "a batch of shard {shard} has a wrong length");
        *next = to;
    }

    fn note_failure_of_shard(&mut self, failure: &EndOfFailure) {
        let &EndOfFailure { shard, position, is_over: ends } = failure;
        self.take_turn(shard);
        let (next, is_over) = self.shards[shard as usize];
        assert!(!is_over, "shard {shard} continues behind its end");
        let end = self.world.shard_len(shard).min(next + self.world.batch_size);
        let has_fault = (next..end).any(|item| self.world.fault_of_item(shard, item) != Fault::None);
        let size = self.world.size(Content::Items { shard, from: next, to: end });
        let is_allowed = has_fault || size > self.world.max_sure_size;
        assert!(is_allowed, "items {next}..{end} of shard {shard} fail, although they are good");
        self.shards[shard as usize] = (position.max(next), ends);
    }

    /// Checks at the end of the epoch that nothing is missing.
    pub(super) fn check_end(&self) {
        if self.world.shards == 0 {
            let numbers = self.batches.keys().copied();
            assert!(numbers.eq(0..self.world.batches), "a batch is missing: {self:?}");
        }
        for (shard, &(next, is_over)) in self.shards.iter().enumerate() {
            let len = self.world.shard_len(shard as u32);
            assert!(is_over || next == len, "the end of shard {shard} is missing: {self:?}");
        }
    }
}
