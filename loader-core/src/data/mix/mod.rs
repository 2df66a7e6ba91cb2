//! Mixing datasets by weight, as for the training of language models: which dataset gives the next sample.
//!
//! [`MixSampler`](crate::sampler::MixSampler) mixes map-style datasets that are the members of a
//! [`ConcatDataset`](crate::ConcatDataset). [`MixDataset`](crate::MixDataset) mixes iterable datasets. To mix
//! both kinds, make streams of the map-style datasets
//! ([`into_stream`](crate::Dataset::into_stream)). Both types take a [`Mix`]: weights, a [`MixRule`], and
//! what happens when a dataset has no samples left ([`Exhausted`]).
//!
//! # Design
//! The choice of the dataset is a function of the position in the epoch (`MixRule::Even`), or of the position
//! and of the number of samples that each dataset has given before (the other rules). It never depends on the
//! workers. So a sampler resumes from its position, and a stream from its position and one number for each
//! dataset.
//!
//! [`MixRule::Even`] is a tree whose leaves are the datasets. Of the first `k` samples of a node, the left child
//! gives `k * left / (left + right)`, rounded to the nearest integer, where `left` and `right` are the sums
//! of the children's weights. The tree is a Huffman tree, so the errors of the roundings nearly halve on each
//! level. Alternatives considered:
//! - Grain's rule splits one dataset after the other from the rest and rounds down. It needs no state either,
//!   but its error grows with the number of datasets, because each split rounds the rest of the ones before.
//! - Megatron's rule computes arrays with the dataset of each sample before training. It is available as
//!   [`MixRule::ErrorDriven`] and gives Megatron's order, but has to be repeated from the beginning of the epoch
//!   to reach a position.
//! - A random choice with a fixed seed, [`MixRule::Random`], has an error that grows with the square root of
//!   the number of samples.
//! - Weights that the program changes by a call would be a state beside the loader's. [`Mix::change`] plans a
//!   change instead, so that the order of an epoch stays a function of its number.

mod blend;
mod tree;

use serde::{Deserialize, Serialize};

use crate::data::fingerprint::hash;

pub(crate) use blend::{Blend, Next, Progress};

/// Error returned when datasets cannot be mixed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MixError {
    /// There are no weights.
    #[error("a mix needs at least one dataset")]
    NoDatasets,
    /// The sum of the weights is not finite.
    #[error("the sum of the weights is not finite; divide all weights by the same number")]
    WeightsTooLarge,
    /// A weight is not a positive number.
    #[error(
        "weight {weight} of dataset {dataset} is not a positive number; to leave a dataset out, remove it"
    )]
    InvalidWeight {
        /// Number of the dataset, from 0.
        dataset: usize,
        /// The weight.
        weight: f64,
    },
    /// All weights of a change are 0.
    #[error("all weights are 0; at least one weight must be above 0")]
    NoWeightAboveZero,
    /// The number of weights differs from the number of datasets.
    #[error("there are {weights} weights for {datasets} datasets; give one weight for each dataset")]
    WrongCount {
        /// Number of weights.
        weights: usize,
        /// Number of datasets.
        datasets: usize,
    },
    /// A dataset has no samples.
    #[error("dataset {dataset} has no samples; check its path, or remove it")]
    EmptyDataset {
        /// Number of the dataset, from 0.
        dataset: usize,
    },
    /// A change is not after the change before it.
    #[error(
        "the change at sample {sample} of epoch {epoch} is not after the change before it; add changes in order"
    )]
    UnorderedChange {
        /// Epoch of the change.
        epoch: u64,
        /// Sample of the change.
        sample: u64,
    },
    /// The number of samples of an epoch is 0.
    #[error("num_samples is 0; it must be at least 1")]
    NoSamples,
    /// The datasets have more than `usize::MAX` samples together.
    #[error("the datasets together have more than {} samples", usize::MAX)]
    TooLong,
    /// The rank is not below the number of processes.
    #[error("invalid rank {rank}, rank should be in the interval [0, {}]", .world_size - 1)]
    InvalidRank {
        /// The rank.
        rank: usize,
        /// Number of processes.
        world_size: usize,
    },
    /// The number of processes is 0.
    #[error("the number of processes is 0; it includes this process and must be at least 1")]
    NoProcesses,
}

/// Rule that chooses the dataset of each sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MixRule {
    /// The samples of each dataset are spread evenly. After `n` samples, a dataset with the share `w` of the
    /// weights has given `n * w` samples, with an error of at most 0.5 for two datasets, less than 1 for
    /// three, and less than 2 for more in all tests. Reaching a position takes no longer than choosing one
    /// sample.
    #[default]
    Even,
    /// The dataset that is furthest behind its share; among equals the first. It is the order of Megatron's
    /// `build_blending_indices`. The error for `k` datasets is at most `1 + 1/2 + … + 1/(k - 1)`: 1 for two,
    /// below 3 for eleven. Resuming a sampler repeats the choices of the epoch up to the position, at about
    /// 10 ns for each sample and dataset.
    ErrorDriven,
    /// Drawn at random with probabilities proportional to the weights, anew in each epoch. Resuming a sampler
    /// repeats the draws of the epoch up to the position.
    Random,
}

/// What happens when a dataset is chosen and has no samples left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Exhausted {
    /// The epoch ends. No sample comes twice, and the weights hold to the end.
    #[default]
    Stop,
    /// The dataset begins again, in another order if it is shuffled. The epoch ends when each dataset whose
    /// weight is above 0 has been read to its end, or after [`Mix::num_samples`].
    Repeat,
    /// The other datasets go on with their weights. The epoch ends when no dataset with a weight above 0 is
    /// left, so each sample comes exactly once.
    Drop,
}

/// How datasets are mixed: their weights, a [`MixRule`], and [`Exhausted`].
///
/// Weights need not sum to 1. With [`MixRule::Even`], weights that are multiples of `1e-9` count exactly;
/// others are rounded to multiples of `2^-40` of their sum.
///
/// # Examples
/// Three samples of web text for one sample of code, and equal parts from sample 6 of epoch 1 on:
/// ```
/// use loader_core::{mix::{Exhausted, Mix}, sampler::{Epoch, MixSampler, Sampler}};
///
/// let mix = Mix::new([3.0, 1.0])?.exhausted(Exhausted::Repeat).num_samples(10)?.change(1, 6, [1.0, 1.0])?;
/// let sampler = MixSampler::new([100, 50], mix)?;
/// let order = |epoch| sampler.indices(Epoch::new(0, epoch)).collect::<Vec<_>>();
/// assert_eq!(order(0), [0, 100, 1, 2, 3, 101, 4, 5, 6, 102]);
/// assert_eq!(order(1), [0, 100, 1, 2, 3, 101, 4, 102, 5, 103]);
/// # Ok::<(), loader_core::mix::MixError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    weights: Vec<f64>,
    rule: MixRule,
    exhausted: Exhausted,
    num_samples: Option<u64>,
    /// The planned changes, ordered by epoch and sample.
    changes: Vec<Change>,
}

/// The weights from sample `sample` of epoch `epoch` on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Change {
    epoch: u64,
    sample: u64,
    weights: Vec<f64>,
}

impl Mix {
    /// Creates a mix with one weight for each dataset.
    ///
    /// # Errors
    /// Returns [`MixError::NoDatasets`] if there are no weights, and [`MixError::InvalidWeight`] if a weight
    /// is 0, negative, infinite or not a number.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Result<Self, MixError> {
        let weights: Vec<f64> = weights.into_iter().collect();
        if weights.is_empty() {
            return Err(MixError::NoDatasets);
        }
        check(&weights, |weight| weight > 0.0)?;
        let (rule, exhausted) = Default::default();
        Ok(Self { weights, rule, exhausted, num_samples: None, changes: Vec::new() })
    }

    /// Sets the rule; [`MixRule::Even`] by default.
    #[must_use]
    pub fn rule(self, rule: MixRule) -> Self {
        Self { rule, ..self }
    }

    /// Sets what happens when a dataset has no samples left; [`Exhausted::Stop`] by default.
    #[must_use]
    pub fn exhausted(self, exhausted: Exhausted) -> Self {
        Self { exhausted, ..self }
    }

    /// Sets the maximum number of samples of an epoch. With [`Exhausted::Repeat`] an epoch has exactly this
    /// number. For iterable datasets, each shard has an equal share of it.
    ///
    /// # Errors
    /// Returns [`MixError::NoSamples`] if `samples` is 0.
    pub fn num_samples(self, samples: u64) -> Result<Self, MixError> {
        match samples {
            0 => Err(MixError::NoSamples),
            _ => Ok(Self { num_samples: Some(samples), ..self }),
        }
    }

    /// Changes the weights from sample `sample` of epoch `epoch` on, for that epoch and all later ones. A
    /// weight of 0 switches a dataset off. Samples are counted from 0 over all ranks; with batches of 32
    /// samples on each of 4 ranks, step `s` begins at sample `128 * s`. For iterable datasets, each shard
    /// changes after an equal share of the samples. If an epoch or a shard ends before the change, the change has no
    /// effect on it.
    ///
    /// # Errors
    /// Returns [`MixError::UnorderedChange`] if it does not come after the previous change, and errors for
    /// invalid weights as [`new`](Self::new) does.
    pub fn change(
        mut self,
        epoch: u64,
        sample: u64,
        weights: impl IntoIterator<Item = f64>,
    ) -> Result<Self, MixError> {
        let weights: Vec<f64> = weights.into_iter().collect();
        check_count(weights.len(), self.weights.len())?;
        check(&weights, |weight| weight >= 0.0)?;
        if weights.iter().all(|&weight| weight == 0.0) {
            return Err(MixError::NoWeightAboveZero);
        }
        if self.changes.last().is_some_and(|last| (last.epoch, last.sample) >= (epoch, sample)) {
            return Err(MixError::UnorderedChange { epoch, sample });
        }
        self.changes.push(Change { epoch, sample, weights });
        Ok(self)
    }

    /// Checks that there is one weight for each of `datasets` datasets.
    pub(crate) fn check_count(&self, datasets: usize) -> Result<(), MixError> {
        check_count(self.weights.len(), datasets)
    }

    /// Number of samples of an epoch of datasets with the given lengths, if it follows from the options.
    pub(crate) fn known_len(&self, lens: impl Iterator<Item = Option<usize>>) -> Option<usize> {
        match (self.exhausted, self.num_samples) {
            (Exhausted::Repeat, Some(samples)) => usize::try_from(samples).ok(),
            (Exhausted::Drop, None) if self.changes.is_empty() => {
                lens.into_iter().try_fold(0usize, |sum, len| sum.checked_add(len?))
            }
            _ => None,
        }
    }

    pub(crate) fn fingerprint(&self) -> String {
        let Self { weights, rule, exhausted, num_samples, changes } = self;
        let bits = |weights: &[f64]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        let numbers = changes
            .iter()
            .flat_map(|change| [vec![change.epoch, change.sample], bits(&change.weights)].concat());
        let numbers = hash(bits(weights).into_iter().chain(*num_samples).chain(numbers));
        format!("{rule:?}, {exhausted:?}, {numbers}")
    }
}

fn check(weights: &[f64], is_valid: impl Fn(f64) -> bool) -> Result<(), MixError> {
    match weights.iter().position(|&weight| !(is_valid(weight) && weight.is_finite())) {
        Some(dataset) => Err(MixError::InvalidWeight { dataset, weight: weights[dataset] }),
        None if weights.iter().sum::<f64>().is_infinite() => Err(MixError::WeightsTooLarge),
        None => Ok(()),
    }
}

fn check_count(weights: usize, datasets: usize) -> Result<(), MixError> {
    if weights == datasets { Ok(()) } else { Err(MixError::WrongCount { weights, datasets }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_weights_and_changes_are_refused() {
        assert_eq!(Mix::new([]), Err(MixError::NoDatasets));
        for weight in [0.0, -1.0, f64::INFINITY] {
            assert_eq!(Mix::new([1.0, weight]), Err(MixError::InvalidWeight { dataset: 1, weight }));
        }
        assert!(matches!(Mix::new([f64::NAN]), Err(MixError::InvalidWeight { dataset: 0, .. })));
        let mix = || Mix::new([1.0, 2.0]).unwrap();
        assert_eq!(mix().change(0, 0, [1.0]), Err(MixError::WrongCount { weights: 1, datasets: 2 }));
        assert_eq!(mix().change(0, 0, [0.0, 0.0]), Err(MixError::NoWeightAboveZero));
        assert!(matches!(mix().change(0, 0, [1.0, -0.5]), Err(MixError::InvalidWeight { dataset: 1, .. })));
        let changed = mix().change(1, 5, [1.0, 0.0]).unwrap();
        assert!(changed.clone().change(1, 6, [1.0, 1.0]).is_ok());
        assert_eq!(changed.change(1, 5, [1.0, 1.0]), Err(MixError::UnorderedChange { epoch: 1, sample: 5 }));
        assert_eq!(mix().num_samples(0), Err(MixError::NoSamples));
    }
}
