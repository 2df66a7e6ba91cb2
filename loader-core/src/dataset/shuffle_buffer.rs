//! A stream, mixed.

use std::mem;

use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard};
use crate::{context::Context, random::below};

/// An iterable dataset whose samples are mixed within a buffer; made by [`IterableDataset::shuffle_buffer`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShuffleBuffer<D> {
    dataset: D,
    size: usize,
}

impl<D> ShuffleBuffer<D> {
    pub(super) fn new(dataset: D, size: usize) -> Self {
        assert!(size > 0, "a buffer holds at least one sample");
        Self { dataset, size }
    }
}

impl<D: IterableDataset> IterableDataset for ShuffleBuffer<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut Context,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        let rng = cx.buffer_rng(self.layers());
        let items = self.dataset.iter(shard, cx)?.fuse();
        Ok(Mixed { items, held: Vec::new(), size: self.size, rng })
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.dataset.setup(cx)
    }

    fn layers(&self) -> u8 {
        self.dataset.layers().wrapping_add(1)
    }
}

struct Mixed<I, S> {
    items: std::iter::Fuse<I>,
    held: Vec<S>,
    size: usize,
    rng: ChaCha8Rng,
}

impl<S, I: Iterator<Item = anyhow::Result<S>>> Iterator for Mixed<I, S> {
    type Item = anyhow::Result<S>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = match self.items.next() {
                // At once: it is of no use to hold an error back.
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(item)) => Some(item),
                None => None,
            };
            let len = self.held.len();
            match item {
                Some(item) if len < self.size => self.held.push(item),
                Some(item) => {
                    let place = below(&mut self.rng, len as u64) as usize;
                    return Some(Ok(mem::replace(&mut self.held[place], item)));
                }
                None if len == 0 => return None,
                None => return Some(Ok(self.held.swap_remove(below(&mut self.rng, len as u64) as usize))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_comes_too_early(count in 0usize..100, size in 1usize..20, seed: u64) {
            let items = (0..count).map(anyhow::Ok).fuse();
            let rng = ChaCha8Rng::seed_from_u64(seed);
            let mixed: Vec<usize> = Mixed { items, held: Vec::new(), size, rng }.map(Result::unwrap).collect();
            prop_assert!(mixed.iter().enumerate().all(|(place, &item)| item <= place + size));
            let mut sorted = mixed;
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..count));
        }
    }
}
