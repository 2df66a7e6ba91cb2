//! The limits of a batch of samples of similar length.

use serde::{Deserialize, Serialize};

use super::LengthError;

/// Limits of batches of samples of similar length: a batch has at most `max_tokens` tokens, padding included,
/// which is the number of samples times the length of the longest. [`LengthBatches`](super::LengthBatches)
/// and [`IterableDataset::length_batches`](crate::IterableDataset::length_batches) take it, or a number for a
/// budget without other limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBudget {
    pub(super) max_tokens: usize,
    max_samples: usize,
    multiple_of: usize,
    boundaries: Vec<usize>,
}

impl From<usize> for TokenBudget {
    fn from(max_tokens: usize) -> Self {
        Self::new(max_tokens)
    }
}

impl TokenBudget {
    /// Allows at most `max_tokens` tokens in a batch: fairseq's `max_tokens`.
    pub fn new(max_tokens: usize) -> Self {
        Self { max_tokens, max_samples: usize::MAX, multiple_of: 1, boundaries: Vec::new() }
    }

    /// Sets the maximum number of samples of a batch; no maximum by default.
    #[must_use]
    pub fn max_samples(self, samples: usize) -> Self {
        Self { max_samples: samples, ..self }
    }

    /// Prefers batches whose number of samples is a multiple of `samples`, which makes some kernels faster:
    /// fairseq's `required_batch_size_multiple`. 1 by default. Batches with fewer samples than `samples`
    /// remain possible.
    #[must_use]
    pub fn multiple_of(self, samples: usize) -> Self {
        Self { multiple_of: samples, ..self }
    }

    /// Puts only samples of one bucket into a batch. Bucket `j` has the lengths from `boundaries[j - 1]` to
    /// below `boundaries[j]`, which must be ascending, as in tf.data's `bucket_by_sequence_length`. One
    /// bucket by default.
    #[must_use]
    pub fn boundaries(self, boundaries: impl IntoIterator<Item = usize>) -> Self {
        Self { boundaries: boundaries.into_iter().collect(), ..self }
    }

    /// Returns an error if the limits allow no batch.
    pub(crate) fn check(&self) -> Result<(), LengthError> {
        let numbers = [
            ("max_tokens", self.max_tokens),
            ("max_samples", self.max_samples),
            ("multiple_of", self.multiple_of),
        ];
        if let Some((option, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(LengthError::Zero { option });
        }
        if self.boundaries.is_sorted_by(|one, other| one < other) {
            Ok(())
        } else {
            Err(LengthError::UnorderedBoundaries)
        }
    }

    /// Returns an error if sample `index` is too long for any batch.
    pub(crate) fn check_len(&self, index: usize, tokens: usize) -> Result<(), LengthError> {
        if tokens > self.max_tokens {
            Err(LengthError::TooLong { index, tokens, max_tokens: self.max_tokens })
        } else {
            Ok(())
        }
    }

    /// Cuts samples into batches, in ascending order of length. Samples of equal length keep the order of
    /// `order`.
    pub(crate) fn cut(&self, mut order: Vec<usize>, len: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
        order.sort_by_key(|&index| len(index));
        let bucket = |index: usize| self.boundaries.partition_point(|&end| end <= len(index));
        let mut batches = Vec::new();
        let mut batch: Vec<usize> = Vec::new();
        for index in order {
            if batch.last().is_some_and(|&last| bucket(last) != bucket(index)) {
                batches.push(std::mem::take(&mut batch));
            }
            // The sample is the longest so far. It may be too long for the rest of a batch too.
            let is_full = |samples: usize| {
                samples == self.max_samples || (samples + 1).saturating_mul(len(index)) > self.max_tokens
            };
            while !batch.is_empty() && is_full(batch.len()) {
                let (whole, rest) =
                    (batch.len() / self.multiple_of * self.multiple_of, batch.len() % self.multiple_of);
                let next = batch.split_off(whole.max(rest));
                batches.push(std::mem::replace(&mut batch, next));
            }
            batch.push(index);
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }

    /// The limits as numbers, for a fingerprint.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        let Self { max_tokens, max_samples, multiple_of, boundaries } = self;
        [*max_tokens, *max_samples, *multiple_of, boundaries.len()]
            .into_iter()
            .chain(boundaries.iter().copied())
    }
}
