//! The share of one process in distributed training.

use super::{
    Epoch, Sampler, SamplerError, by_position::ByPosition, cut_into_batches, permutation::Permutations,
    source::Source,
};

/// The share of one process if several processes train together: every `world_size`-th index of an order that
/// is the same in all processes. PyTorch's `DistributedSampler`, except that the loader passes the epoch, so
/// no call of `set_epoch` is needed.
///
/// All processes must have the same seed. All get the same number of indices. If the length is not a multiple
/// of `world_size`, indices from the front of the order are repeated at its end; with
/// [`drop_last`](Self::drop_last), the end of the order is left out instead.
///
/// # Examples
/// ```
/// use loader_core::sampler::{DistributedSampler, Epoch, Sampler};
///
/// let sampler = DistributedSampler::new(10, 4, 2)?.shuffle(false);
/// assert!(sampler.indices(Epoch::new(0, 0)).eq([2, 6, 0]));
/// assert!(sampler.drop_last(true).indices(Epoch::new(0, 0)).eq([2, 6]));
/// # Ok::<(), loader_core::sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistributedSampler {
    len: usize,
    world_size: usize,
    rank: usize,
    shuffle: bool,
    drop_last: bool,
}

impl DistributedSampler {
    /// Creates the sampler of process `rank` (from 0) of `world_size` processes over the indices below `len`.
    ///
    /// # Errors
    /// Returns [`SamplerError::InvalidRank`] if `rank` is not below `world_size`, and
    /// [`SamplerError::NoProcesses`] if `world_size` is 0.
    pub fn new(len: usize, world_size: usize, rank: usize) -> Result<Self, SamplerError> {
        match world_size {
            0 => Err(SamplerError::NoProcesses),
            _ if rank >= world_size => Err(SamplerError::InvalidRank { rank, world_size }),
            _ => Ok(Self { len, world_size, rank, shuffle: true, drop_last: false }),
        }
    }

    /// If true (the default), the order is a new permutation in each epoch; otherwise it is `0, 1, 2, ...`.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    /// If true, indices at the end of the order are left out until the length is a multiple of `world_size`;
    /// if false (the default), indices are repeated instead.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        Self { drop_last, ..self }
    }
}

impl Sampler for DistributedSampler {
    fn len(&self) -> usize {
        if self.drop_last { self.len / self.world_size } else { self.len.div_ceil(self.world_size) }
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        match self.permutation(epoch) {
            Some(mut order) => Box::new(self.share(move |position| order.at(position))),
            None => Box::new(self.share(|position| position)),
        }
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        match self.permutation(epoch) {
            Some(mut order) => cut_into_batches(self.share(move |position| order.at(position)), size),
            None => cut_into_batches(self.share(|position| position), size),
        }
    }

    fn repeated(&self, _epoch: Epoch) -> usize {
        let positions = Sampler::len(self) * self.world_size;
        // All ranks together repeat fewer indices than there are ranks, so each rank repeats at most one.
        usize::from(positions > self.len && positions - self.world_size + self.rank >= self.len)
    }

    fn fingerprint(&self) -> String {
        let Self { len, world_size, rank, shuffle, drop_last } = *self;
        let (shuffle, drop_last) =
            (if shuffle { ", shuffle" } else { "" }, if drop_last { ", drop_last" } else { "" });
        format!("distributed({rank} of {world_size}, {len}{shuffle}{drop_last})")
    }
}

impl DistributedSampler {
    /// Number of samples of all processes.
    pub(super) fn samples(&self) -> usize {
        self.len
    }

    pub(super) fn shuffles(&self) -> bool {
        self.shuffle
    }

    /// Returns the order of all processes; `None` if it is `0, 1, 2, ...`.
    pub(super) fn permutation(&self, epoch: Epoch) -> Option<Permutations> {
        self.shuffle.then(|| Permutations::new(self.len, epoch, || Source::of_epoch(epoch)))
    }

    /// Returns the position in the order of all processes that is at `position` of this process's share. The
    /// last one may be behind the end of the order.
    pub(super) fn position(&self, position: usize) -> usize {
        position * self.world_size + self.rank
    }

    /// Returns this process's share of the order that has the index `at(position)` at each position.
    fn share(self, mut at: impl FnMut(usize) -> usize + Send) -> impl Iterator<Item = usize> + Send {
        let len = self.len;
        // After its end the order is repeated: at most once, unless there are more processes than indices.
        ByPosition::new(Sampler::len(&self), move |position| {
            let position = self.position(position);
            at(if position < len { position } else { position % len })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::options::Order;

    fn shares(
        len: usize,
        world_size: usize,
        with: impl Fn(DistributedSampler) -> DistributedSampler,
        epoch: Epoch,
    ) -> Vec<Vec<usize>> {
        let share =
            |rank| with(DistributedSampler::new(len, world_size, rank).unwrap()).indices(epoch).collect();
        (0..world_size).map(share).collect()
    }

    // PyTorch: S07, 2.2.1
    #[test]
    fn shares_without_shuffling() {
        let shares = |len, world_size, drop_last| {
            shares(len, world_size, |sampler| sampler.shuffle(false).drop_last(drop_last), Epoch::new(0, 0))
        };
        assert_eq!(shares(10, 4, false), [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]);
        assert_eq!(shares(10, 4, true), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(shares(2, 5, false), [[0], [1], [0], [1], [0]]);
        assert_eq!(shares(2, 4, true), [[]; 4] as [[usize; 0]; 4]);
        assert_eq!(shares(0, 3, false), [[]; 3] as [[usize; 0]; 3]);
    }

    #[test]
    fn shuffled_shares_equal_pytorch_s() {
        let shares = |number, drop_last| {
            shares(10, 3, |sampler| sampler.drop_last(drop_last), Epoch::new(0, number).order(Order::Torch))
        };
        assert_eq!(shares(0, false), [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]);
        assert_eq!(shares(1, false), [[5, 2, 9, 4], [6, 0, 3, 5], [1, 8, 7, 6]]);
        assert_eq!(shares(0, true), [[4, 5, 0], [1, 3, 8], [7, 9, 6]]);
    }

    // PyTorch: 69, 272, S07
    #[test]
    fn the_length_is_rounded_up_or_down_with_drop_last() {
        let sampler = DistributedSampler::new(100, 3, 0).unwrap();
        assert_eq!((Sampler::len(&sampler), Sampler::len(&sampler.drop_last(true))), (34, 33));
    }

    // PyTorch: 69, S07
    #[test]
    fn an_invalid_rank_is_refused() {
        for rank in [3, usize::MAX] {
            let error = DistributedSampler::new(10, 3, rank).unwrap_err();
            assert_eq!(error, SamplerError::InvalidRank { rank, world_size: 3 });
            assert_eq!(
                error.to_string(),
                format!("invalid rank {rank}, rank should be in the interval [0, 2]")
            );
        }
        assert_eq!(DistributedSampler::new(10, 0, 0), Err(SamplerError::NoProcesses));
    }

    proptest! {
        // PyTorch: 70, U30
        #[test]
        fn all_ranks_together_cover_the_indices(
            (len, world_size) in (0usize..80, 1usize..12),
            (shuffle, drop_last, torch) in any::<(bool, bool, bool)>(),
            seed: u64,
        ) {
            let epoch = Epoch::new(seed, 3).order(if torch { Order::Torch } else { Order::Native });
            let shares = shares(len, world_size, |sampler| sampler.shuffle(shuffle).drop_last(drop_last), epoch);
            let each = if drop_last { len / world_size } else { len.div_ceil(world_size) };
            prop_assert!(shares.iter().all(|share| share.len() == each));
            let mut seen = vec![0; len];
            shares.iter().flatten().for_each(|&index| seen[index] += 1);
            let (min, max) = (seen.iter().min().copied().unwrap_or(0), seen.iter().max().copied().unwrap_or(0));
            if drop_last {
                prop_assert!(max <= 1 && seen.iter().filter(|&&times| times == 0).count() < world_size.max(1));
            } else {
                prop_assert!(len == 0 || min >= 1);
                prop_assert!(max - min <= 1);
            }
        }
    }
}
