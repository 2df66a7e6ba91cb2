//! Checks what a user receives in an epoch: each batch once, at its position, and with its content.

use std::collections::BTreeMap;

use loader_ipc::frame::AfterFailure;

use super::{
    dataset::{Content, Expected, Fault, SimulatedDataset},
    iterator::{EndOfFailure, Returned},
};
use crate::state::Position;

#[derive(Debug)]
pub(super) struct Received {
    dataset: SimulatedDataset,
    in_order: bool,
    /// The content of each batch received, by number; `None` for an error, or if every sample was left out.
    batches: BTreeMap<u64, Option<Content>>,
    /// For each shard, the position after its last batch, and what its last failure means.
    shards: Vec<(u64, AfterFailure)>,
    /// The shard whose turn is next.
    turn: usize,
}

impl Received {
    pub(super) fn new(dataset: SimulatedDataset, in_order: bool) -> Self {
        let shards = vec![(0, AfterFailure::Continues); dataset.shards as usize];
        Self { dataset, in_order, batches: BTreeMap::new(), shards, turn: 0 }
    }

    /// Notes that another iterator continues the epoch: it reads the rest of the shards that have ended for
    /// this epoch only.
    pub(super) fn resume(&mut self) {
        for (_, after) in &mut self.shards {
            if *after == AfterFailure::EndsForEpoch {
                *after = AfterFailure::Continues;
            }
        }
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
            assert!(last.is_none_or(|last| last < number), "batch {number} arrives after batch {last:?}");
        }
        let before = self.batches.insert(number, content);
        assert_eq!(before, None, "batch {number} arrived twice");
        match (returned, content) {
            (_, Some(Content::Items { shard, from, to })) => self.note_items(shard, from, to),
            (Returned::Failed(_, Some(end)), _) => self.note_failure_of_shard(end),
            _ => self.check_batch(number, returned),
        }
    }

    fn check_batch(&self, number: u64, returned: &Returned) {
        assert!(number < self.dataset.batches, "there is no batch {number}");
        let expected = self.dataset.expected(number);
        let is_right = match (returned, expected) {
            (&Returned::Batch(_, content), Expected::Any) => self.dataset.belongs_to(content, number),
            (&Returned::Batch(_, content), Expected::Batch { left_out: expected }) => {
                let is_complete =
                    matches!(content, Content::Samples { left_out, .. } if left_out == expected);
                is_complete && self.dataset.belongs_to(content, number)
            }
            (Returned::Nothing(_), expected) => matches!(expected, Expected::Nothing | Expected::Any),
            (Returned::Failed(..), expected) => matches!(expected, Expected::Error | Expected::Any),
            _ => false,
        };
        assert!(is_right, "the user received {returned:?} for batch {number} instead of {expected:?}");
    }

    /// Checks that it is the turn of `shard`: in order, every shard before it has ended.
    fn take_turn(&mut self, shard: u32) {
        let count = self.shards.len();
        while self.in_order && self.turn != shard as usize {
            let (next, after) = self.shards[self.turn];
            let has_items =
                after == AfterFailure::Continues && next < self.dataset.shard_len(self.turn as u32);
            assert!(!has_items, "a batch of shard {shard} arrives at the turn of shard {}", self.turn);
            self.turn = (self.turn + 1) % count;
        }
        self.turn = (shard as usize + 1) % count;
    }

    fn note_items(&mut self, shard: u32, from: u64, to: u64) {
        self.take_turn(shard);
        let faults = (from..to).map(|item| self.dataset.fault_of_item(shard, item));
        let has_fault = faults.into_iter().any(|fault| !matches!(fault, Fault::None | Fault::HangsOnce));
        assert!(!has_fault, "a batch has items {from}..{to} of shard {shard}, of which one always fails");
        let (next, after) = &mut self.shards[shard as usize];
        assert_eq!(
            (from, AfterFailure::Continues),
            (*next, *after),
            "shard {shard} has a gap, a repeated item, or an item after its end"
        );
        let end = self.dataset.shard_len(shard).min(from + self.dataset.batch_size);
        assert_eq!(to, end, "a batch of shard {shard} has a wrong length");
        *next = to;
    }

    fn note_failure_of_shard(&mut self, failure: &EndOfFailure) {
        let &EndOfFailure { shard, position, after } = failure;
        self.take_turn(shard);
        let (next, before) = self.shards[shard as usize];
        assert_eq!(before, AfterFailure::Continues, "shard {shard} continues after its end");
        let end = self.dataset.shard_len(shard).min(next + self.dataset.batch_size);
        let has_fault = (next..end).any(|item| self.dataset.fault_of_item(shard, item) != Fault::None);
        let size = self.dataset.size(Content::Items { shard, from: next, to: end });
        let is_allowed = has_fault || size > self.dataset.max_sure_size;
        assert!(is_allowed, "items {next}..{end} of shard {shard} failed, although they have no fault");
        self.shards[shard as usize] = (position.items.max(next), after);
    }

    /// Checks at the end of the epoch that nothing is missing, and that the state stays in the epoch if a shard has a
    /// rest for a resumed run.
    pub(super) fn check_end(&self, is_over: bool, position: &Position) {
        let has_unread_shard = self.shards.iter().any(|(_, after)| *after == AfterFailure::EndsForEpoch);
        assert_ne!(is_over, has_unread_shard, "the position at the end is {position:?} after {self:?}");
        if let Position::Shards(position) = position {
            let saved = position.shards.iter().map(|shard| (shard.position.items, shard.ended));
            let received = self.shards.iter().map(|&(next, after)| (next, after == AfterFailure::Ends));
            assert!(saved.eq(received), "the position is {position:?} after {self:?}");
        }
        if self.dataset.shards == 0 {
            let numbers = self.batches.keys().copied();
            assert!(numbers.eq(0..self.dataset.batches), "a batch is missing: {self:?}");
        }
        for (shard, &(next, after)) in self.shards.iter().enumerate() {
            let len = self.dataset.shard_len(shard as u32);
            assert!(
                after != AfterFailure::Continues || next == len,
                "the end of shard {shard} is missing: {self:?}"
            );
        }
    }
}
