//! Batches of samples of similar length.
//!
//! The samples are sorted by length, with samples of equal length in the order of the epoch, and cut into
//! batches as by fairseq's `batch_by_size`, except that a batch with the rest of another one keeps the budget
//! too; then the batches are shuffled. The cuts depend only on the sorted
//! lengths, so every epoch has the same number of batches, and steps in which all ranks load batches of
//! similar length. Alternative considered: buckets that collect samples in the order of the epoch, as
//! tf.data's. Rejected because each ends with a batch that is not full, and because the number of batches of
//! an epoch, and of a rank, is not known in advance.

use std::sync::Arc;

use super::{BatchSampler, Epoch, SamplerError, TokenBudget};
use crate::data::{
    fingerprint::hash,
    random::{Purpose, generator, key, shuffle},
};

/// Error returned when samples cannot be put into batches by their lengths.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LengthError {
    /// There are no samples.
    #[error("there are no samples to put into batches")]
    NoSamples,
    /// `max_tokens`, `max_samples`, the factor of `multiple_of`, or `look_ahead` is 0.
    #[error("{option} is 0; it must be at least 1")]
    Zero {
        /// Name of the option.
        option: &'static str,
    },
    /// A sample is longer than `max_tokens`.
    #[error(
        "sample {index} has {tokens} tokens, but a batch has at most {max_tokens}; raise max_tokens, or cut the sample"
    )]
    TooLong {
        /// Index of the sample; in a stream, its position in the shard.
        index: usize,
        /// Its length.
        tokens: usize,
        /// Maximum number of tokens of a batch.
        max_tokens: usize,
    },
    /// The boundaries of the buckets are not ascending.
    #[error("the boundaries of the buckets must be ascending")]
    UnorderedBoundaries,
    /// The rank or the number of processes is invalid.
    #[error(transparent)]
    Rank(#[from] SamplerError),
}

/// Batches of samples of similar length with at most `max_tokens` tokens, padding included: fairseq's
/// `max_tokens`. The order of the batches, and which samples of equal length share a batch, is new in each
/// epoch.
///
/// # Examples
/// ```
/// use loader_core::{collate::Ragged, prelude::*, sampler::LengthBatches};
///
/// let lens = [3, 9, 4, 2, 8, 3];
/// let rows = TensorDataset::new(Tensor::<i64>::from_vec((0..6).collect(), [6])?)?;
/// let documents = rows.map(|row, _cx| Ok(Ragged::new(vec![row[0]; [3, 9, 4, 2, 8, 3][row[0] as usize]])));
/// let loader = DataLoader::builder(documents).batch_sampler(LengthBatches::new(lens, 18)?).build()?;
/// let shapes = loader.iter()?.map(|batch| Ok(batch?.values.shape().to_vec()));
/// let mut shapes = shapes.collect::<anyhow::Result<Vec<_>>>()?;
/// shapes.sort();
/// assert_eq!(shapes, [[2, 9], [4, 4]]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct LengthBatches {
    lens: Arc<[usize]>,
    budget: TokenBudget,
    shuffle: bool,
    rank: usize,
    world_size: usize,
}

impl LengthBatches {
    /// Creates batches of samples with the lengths `lens`, each within `budget`: a [`TokenBudget`], or the
    /// maximum number of tokens of a batch.
    ///
    /// # Errors
    /// Returns [`LengthError::NoSamples`] if `lens` is empty, [`LengthError::TooLong`] if a sample is longer
    /// than the budget allows, and [`LengthError::Zero`] or [`LengthError::UnorderedBoundaries`] if the
    /// budget is invalid.
    pub fn new(
        lens: impl IntoIterator<Item = usize>,
        budget: impl Into<TokenBudget>,
    ) -> Result<Self, LengthError> {
        let (lens, budget): (Arc<[usize]>, _) = (lens.into_iter().collect(), budget.into());
        if lens.is_empty() {
            return Err(LengthError::NoSamples);
        }
        budget.check()?;
        lens.iter().enumerate().try_for_each(|(index, &len)| budget.check_len(index, len))?;
        Ok(Self { lens, budget, shuffle: true, rank: 0, world_size: 1 })
    }

    /// If true (the default), each epoch has another order of batches and of samples of equal length; if
    /// false, the batches come from the shortest to the longest samples.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    /// Gives this process one of `world_size` batches of similar length in each step. All processes get the
    /// same number of batches; up to `world_size - 1` batches of the longest samples are left out. All
    /// processes must have the same seed.
    ///
    /// # Errors
    /// Returns [`LengthError::Rank`] if `rank` is not below `world_size`.
    pub fn distributed(self, rank: usize, world_size: usize) -> Result<Self, LengthError> {
        match world_size {
            0 => Err(SamplerError::NoProcesses.into()),
            _ if rank >= world_size => Err(SamplerError::InvalidRank { rank, world_size }.into()),
            _ => Ok(Self { rank, world_size, ..self }),
        }
    }

    /// Returns the batches of all processes in ascending order of length.
    fn cut(&self, order: Vec<usize>) -> Vec<Vec<usize>> {
        self.budget.cut(order, |index| self.lens[index])
    }
}

impl BatchSampler for LengthBatches {
    /// The same in each epoch, because the batches depend on the sorted lengths alone.
    fn len(&self, _epoch: Epoch) -> usize {
        self.cut((0..self.lens.len()).collect()).len() / self.world_size
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let mut order: Vec<usize> = (0..self.lens.len()).collect();
        let mut rng = generator(key(Purpose::Order, epoch.seed, epoch.number), 0);
        if self.shuffle {
            shuffle(&mut rng, &mut order);
        }
        let mut batches = self.cut(order);
        let mut steps: Vec<usize> = (0..batches.len() / self.world_size).collect();
        if self.shuffle {
            shuffle(&mut rng, &mut steps);
        }
        let (rank, world_size) = (self.rank, self.world_size);
        Box::new(steps.into_iter().map(move |step| std::mem::take(&mut batches[step * world_size + rank])))
    }

    fn fingerprint(&self) -> String {
        let Self { lens, budget, shuffle, rank, world_size } = self;
        let options = [usize::from(*shuffle), *rank, *world_size];
        let numbers = budget.numbers().chain(options).chain(lens.iter().copied());
        format!("lengths({}, {})", lens.len(), hash(numbers.map(|number| number as u64)))
    }

    fn max_index(&self) -> Option<usize> {
        Some(self.lens.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The expected batches come from fairseq's rule in Python, see `golden/batch_by_size.py`.
    #[test]
    fn the_cuts_are_those_of_fairseq() {
        #[derive(serde::Deserialize)]
        struct Case {
            lens: Vec<usize>,
            max_tokens: usize,
            max_samples: usize,
            multiple_of: usize,
            batches: Vec<Vec<usize>>,
        }
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../../tests/golden/batch_by_size.json")).unwrap();
        assert!(cases.len() >= 5);
        for case in cases {
            let budget = TokenBudget::new(case.max_tokens);
            let budget = budget.max_samples(case.max_samples).multiple_of(case.multiple_of);
            let sampler = LengthBatches::new(case.lens, budget).unwrap().shuffle(false);
            assert!(sampler.batches(Epoch::new(0, 0)).eq(case.batches));
        }
    }

    #[test]
    fn a_batch_with_the_rest_of_another_keeps_the_budget() {
        let lens = [vec![10; 7], vec![24]].concat();
        let sampler = LengthBatches::new(lens, TokenBudget::new(70).multiple_of(4)).unwrap().shuffle(false);
        // Of 7 samples, 4 are a batch. With the other 3, the last sample would need 96 tokens.
        assert!(sampler.batches(Epoch::new(0, 0)).eq([vec![0, 1, 2, 3], vec![4, 5, 6], vec![7]]));
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let new = |lens: &[usize], budget: TokenBudget| LengthBatches::new(lens.to_vec(), budget);
        let budget = || TokenBudget::new(5);
        assert_eq!(new(&[], budget()).unwrap_err(), LengthError::NoSamples);
        assert_eq!(
            new(&[5, 6], budget()).unwrap_err(),
            LengthError::TooLong { index: 1, tokens: 6, max_tokens: 5 }
        );
        for (budget, option) in [
            (TokenBudget::new(0), "max_tokens"),
            (budget().max_samples(0), "max_samples"),
            (budget().multiple_of(0), "multiple_of"),
        ] {
            assert_eq!(new(&[0], budget).unwrap_err(), LengthError::Zero { option });
        }
        assert_eq!(new(&[1], budget().boundaries([4, 4])).unwrap_err(), LengthError::UnorderedBoundaries);
        assert!(matches!(new(&[1], budget()).unwrap().distributed(3, 3).unwrap_err(), LengthError::Rank(_)));
    }

    proptest! {
        #[test]
        fn each_sample_comes_once_and_within_the_budget(
            lens in prop::collection::vec(0usize..40, 1..120), max_tokens in 40usize..200,
            (max_samples, multiple_of, world_size) in (1usize..20, 1usize..5, 1usize..4),
            (number, shuffle) in (0u64..3, any::<bool>()),
        ) {
            let budget = TokenBudget::new(max_tokens).max_samples(max_samples).multiple_of(multiple_of);
            let sampler = LengthBatches::new(lens.clone(), budget.boundaries([10, 25])).unwrap().shuffle(shuffle);
            let epoch = Epoch::new(4, number);
            let batches: Vec<_> = sampler.batches(epoch).collect();
            prop_assert_eq!(batches.len(), sampler.len(epoch));
            for batch in &batches {
                let of_batch = || batch.iter().map(|&index| lens[index]);
                prop_assert!(!batch.is_empty() && batch.len() <= max_samples);
                prop_assert!(batch.len() * of_batch().max().unwrap() <= max_tokens);
                let mut buckets: Vec<usize> = of_batch().map(|len| usize::from(len >= 10) + usize::from(len >= 25)).collect();
                buckets.dedup();
                prop_assert_eq!(buckets.len(), 1);
            }
            let mut all = batches.concat();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..lens.len()));

            let of_rank = |rank| sampler.clone().distributed(rank, world_size).unwrap().batches(epoch).collect::<Vec<_>>();
            let ranks: Vec<_> = (0..world_size).map(of_rank).collect();
            let mut dealt = ranks.concat().concat();
            dealt.sort_unstable();
            let count = dealt.len();
            dealt.dedup();
            prop_assert_eq!(dealt.len(), count, "no two ranks load the same sample");
            prop_assert!(ranks.iter().all(|rank| rank.len() == batches.len() / world_size));
        }
    }
}
