//! One stream after the other.

use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard, generator::Generator};
use crate::context::Context;

/// Two iterable datasets, one after the other in each shard: PyTorch's `ChainDataset`; made by [`IterableDataset::chain`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChainDataset<A, B> {
    first: A,
    second: B,
}

impl<A, B> ChainDataset<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A, B> IterableDataset for ChainDataset<A, B>
where
    A: IterableDataset,
    B: IterableDataset<Sample = A::Sample>,
{
    type Sample = A::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut Context,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<A::Sample>> + Send> {
        let mut own = cx.of_layer(self.first.layers().wrapping_add(1));
        let first = self.first.iter(shard, cx)?;
        // Opened when the first is over, as in PyTorch: it may hold files.
        let second = Generator::new(move |giver| async move {
            match self.second.iter(shard, &mut own) {
                Ok(items) => {
                    for item in items {
                        giver.give(item).await;
                    }
                }
                Err(error) => giver.give(Err(error)).await,
            }
        });
        Ok(first.chain(second))
    }

    fn len(&self) -> Option<usize> {
        self.first.len()?.checked_add(self.second.len()?)
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.first.setup(cx)?;
        self.second.setup(cx)
    }

    fn layers(&self) -> u8 {
        self.first.layers().wrapping_add(1).wrapping_add(self.second.layers())
    }
}
