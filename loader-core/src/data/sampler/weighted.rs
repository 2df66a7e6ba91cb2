//! Random draws by weight.

use std::{fmt, sync::Arc};

use super::{Epoch, Sampler, SamplerError, by_position::ByPosition, cut_into_batches, source::Source};
use crate::data::fingerprint::hash;

/// Draws indices with probabilities proportional to weights, anew for each epoch: PyTorch's
/// `WeightedRandomSampler`, without its limit of 2^24 weights.
///
/// # Examples
/// ```
/// use loader_core::sampler::{Epoch, Sampler, WeightedRandomSampler};
///
/// let sampler = WeightedRandomSampler::new([0.0, 1.0, 3.0], 1000, true)?;
/// let drawn: Vec<usize> = sampler.indices(Epoch::new(7, 0)).collect();
/// let often = |index| drawn.iter().filter(|&&other| other == index).count();
/// assert_eq!(often(0), 0);
/// assert!((200..300).contains(&often(1)));
/// # Ok::<(), loader_core::sampler::SamplerError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct WeightedRandomSampler {
    table: Table,
    num_samples: usize,
}

/// The weights, prepared for drawing.
#[derive(Clone, PartialEq)]
enum Table {
    /// For draws with replacement: for each index, the sum of the probabilities up to and including it.
    Cumulative(Arc<[f64]>),
    /// For draws without replacement: the weights.
    Once(Arc<[f64]>),
}

impl WeightedRandomSampler {
    /// Creates a sampler that draws `num_samples` indices per epoch, index `i` with a probability
    /// proportional to `weights[i]`. Without replacement, an index is drawn at most once per epoch.
    ///
    /// The weights need not sum to 1. They take 8 bytes each, and clones share them. With replacement, a draw
    /// takes time proportional to the logarithm of the number of weights. Without replacement, each epoch
    /// first computes a value for every weight.
    ///
    /// # Errors
    /// Returns a [`SamplerError`] if
    /// - `num_samples` is 0,
    /// - there are no weights, or no weight is above 0,
    /// - a weight is negative or not finite,
    /// - the sum of the weights is not finite,
    /// - without replacement, fewer than `num_samples` weights are above 0.
    pub fn new(
        weights: impl IntoIterator<Item = f64>,
        num_samples: usize,
        replacement: bool,
    ) -> Result<Self, SamplerError> {
        let weights: Vec<f64> = weights.into_iter().collect();
        let positive = check(&weights, num_samples)?;
        if !replacement && positive < num_samples {
            return Err(SamplerError::TooFewWeights { num_samples, positive });
        }
        // As in PyTorch, a single draw uses the method without replacement.
        let table = if replacement && num_samples > 1 {
            Table::Cumulative(cumulative(weights)?.into())
        } else {
            Table::Once(weights.into())
        };
        Ok(Self { table, num_samples })
    }
}

impl Sampler for WeightedRandomSampler {
    fn len(&self) -> usize {
        self.num_samples
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let source = self.source(epoch);
        match &self.table {
            Table::Cumulative(table) => Box::new(draws(Arc::clone(table), self.num_samples, source)),
            Table::Once(weights) => Box::new(race(weights, self.num_samples, source)),
        }
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let source = self.source(epoch);
        match &self.table {
            Table::Cumulative(table) => {
                cut_into_batches(draws(Arc::clone(table), self.num_samples, source), size)
            }
            Table::Once(weights) => cut_into_batches(race(weights, self.num_samples, source), size),
        }
    }

    fn fingerprint(&self) -> String {
        let (kind, table) = match &self.table {
            Table::Cumulative(table) => ("replacement", table),
            Table::Once(weights) => ("no replacement", weights),
        };
        format!("weighted({}, {kind})", hash(table.iter().map(|weight| weight.to_bits())))
    }
}

impl WeightedRandomSampler {
    fn source(&self, epoch: Epoch) -> Source {
        let numbers = match &self.table {
            Table::Cumulative(_) => self.num_samples,
            Table::Once(weights) => weights.len(),
        };
        // Each number takes two draws of 32 bits.
        Source::of_sampler(epoch, (numbers as u64).saturating_mul(2))
    }
}

impl fmt::Debug for WeightedRandomSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Table::Cumulative(table) | Table::Once(table)) = &self.table;
        f.debug_struct("WeightedRandomSampler")
            .field("weights", &table.len())
            .field("num_samples", &self.num_samples)
            .finish_non_exhaustive()
    }
}

/// Checks the arguments, and returns the number of weights above 0.
fn check(weights: &[f64], num_samples: usize) -> Result<usize, SamplerError> {
    if num_samples == 0 {
        return Err(SamplerError::NoSamples);
    }
    if weights.is_empty() {
        return Err(SamplerError::NothingToDrawFrom { num_samples });
    }
    let invalid = (0..).zip(weights).find(|(_, weight)| !(weight.is_finite() && **weight >= 0.0));
    if let Some((index, &weight)) = invalid {
        return Err(SamplerError::InvalidWeight { index, weight });
    }
    match weights.iter().filter(|&&weight| weight > 0.0).count() {
        0 => Err(SamplerError::NoWeightAboveZero),
        positive => Ok(positive),
    }
}

/// Returns the cumulative probabilities of the weights.
fn cumulative(mut weights: Vec<f64>) -> Result<Vec<f64>, SamplerError> {
    // PyTorch also adds the weights one after the other and divides last. The rounding affects the order.
    let mut sum = 0.0;
    for weight in &mut weights {
        sum += *weight;
        *weight = sum;
    }
    if !f64::is_finite(sum) {
        return Err(SamplerError::WeightsTooLarge);
    }
    weights.iter_mut().for_each(|weight| *weight /= sum);
    Ok(weights)
}

/// Draws with replacement.
fn draws(table: Arc<[f64]>, num_samples: usize, mut source: Source) -> impl Iterator<Item = usize> + Send {
    (0..num_samples).map(move |_| {
        let drawn = source.uniform();
        // In bounds: `drawn` is at most 1, and the entry of the last weight above 0 is the sum divided by
        // itself: 1.
        table.partition_point(|&below| below < drawn)
    })
}

/// Draws without replacement. Each index gets an exponentially distributed waiting time with its weight as
/// the rate, and the indices with the shortest times are drawn, in that order. The distribution has no
/// memory, so after each draw the probabilities of the remaining indices are still proportional to their
/// weights.
fn race(
    weights: &[f64],
    num_samples: usize,
    mut source: Source,
) -> impl Iterator<Item = usize> + Send + use<> {
    // PyTorch also compares the inverse of the waiting time. The rounding affects the order.
    let mut racers: Vec<(f64, usize)> = (0..)
        .zip(weights)
        .map(|(index, &weight)| {
            let time = source.exponential();
            (if weight == 0.0 { -1.0 } else { weight / time }, index)
        })
        .collect();
    let faster =
        |one: &(f64, usize), other: &(f64, usize)| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1));
    if num_samples < racers.len() {
        racers.select_nth_unstable_by(num_samples, faster);
        racers.truncate(num_samples);
    }
    racers.sort_unstable_by(faster);
    ByPosition::new(num_samples, move |position| racers[position].1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::options::Order;

    fn error(weights: &[f64], num_samples: usize, replacement: bool) -> SamplerError {
        WeightedRandomSampler::new(weights.iter().copied(), num_samples, replacement).unwrap_err()
    }

    // PyTorch: S05
    #[test]
    fn invalid_arguments_are_refused() {
        assert_eq!(error(&[1.0], 0, true), SamplerError::NoSamples);
        assert_eq!(error(&[], 1, true), SamplerError::NothingToDrawFrom { num_samples: 1 });
        assert_eq!(error(&[0.0, 0.0], 1, true), SamplerError::NoWeightAboveZero);
        assert_eq!(error(&[1.0, -0.5], 1, true), SamplerError::InvalidWeight { index: 1, weight: -0.5 });
        assert_eq!(
            error(&[f64::INFINITY], 1, true),
            SamplerError::InvalidWeight { index: 0, weight: f64::INFINITY }
        );
        assert!(matches!(
            error(&[1.0, 1.0, f64::NAN], 1, false),
            SamplerError::InvalidWeight { index: 2, .. }
        ));
        assert_eq!(error(&[f64::MAX, f64::MAX], 2, true), SamplerError::WeightsTooLarge);
        let too_few = error(&[1.0, 0.0, 2.0], 3, false);
        assert_eq!(too_few, SamplerError::TooFewWeights { num_samples: 3, positive: 2 });
        let message = "cannot draw 3 samples without replacement: only 2 weights are above 0; draw fewer samples, or draw with \
                       replacement";
        assert_eq!(too_few.to_string(), message);
    }

    /// Share of 20,000 epochs in which each index is drawn first, and average number of times that it is
    /// drawn.
    fn shares(weights: &[f64], num_samples: usize, replacement: bool, order: Order) -> (Vec<f64>, Vec<f64>) {
        const EPOCHS: u64 = 20_000;
        let sampler = WeightedRandomSampler::new(weights.iter().copied(), num_samples, replacement).unwrap();
        let (mut first, mut any) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
        for seed in 0..EPOCHS {
            let drawn: Vec<usize> = sampler.indices(Epoch::new(seed, 0).order(order)).collect();
            first[drawn[0]] += 1.0 / EPOCHS as f64;
            drawn.iter().for_each(|&index| any[index] += 1.0 / EPOCHS as f64);
        }
        (first, any)
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.015);
        assert!(near && found.len() == expected.len(), "{found:?}, expected {expected:?}");
    }

    // PyTorch: S05, U31
    #[test]
    fn indices_are_drawn_in_proportion_to_their_weights() {
        let weights = [2.0, 0.0, 1.0, 5.0, 0.0];
        let probabilities = weights.map(|weight| weight / 8.0);
        // Probability that an index is one of two drawn without replacement: it is drawn first, or second
        // after one of the others.
        let [a, _, b, c, _] = probabilities;
        let second = |p: f64, q: f64, r: f64| p + q * p / (1.0 - q) + r * p / (1.0 - r);
        let pairs = [second(a, b, c), 0.0, second(b, a, c), second(c, a, b), 0.0];
        for order in [Order::Native, Order::Torch] {
            let (first, any) = shares(&weights, 2, true, order);
            assert_near(&first, &probabilities);
            assert_near(&any, &probabilities.map(|probability| 2.0 * probability));
            let (first, any) = shares(&weights, 2, false, order);
            assert_near(&first, &probabilities);
            assert_near(&any, &pairs);
            assert_near(&shares(&weights, 1, true, order).0, &probabilities);
        }
    }

    // PyTorch: U31
    #[test]
    fn more_than_2_to_the_24_weights_are_allowed() {
        let count = (1 << 24) + 1;
        let weights = (0..count).map(|index| if index == count - 1 { 1.0 } else { 0.0 });
        let sampler = WeightedRandomSampler::new(weights, 2, true).unwrap();
        assert!(sampler.indices(Epoch::new(0, 0)).eq([count - 1; 2]));
    }

    proptest! {
        // PyTorch: S05
        #[test]
        fn indices_of_weight_0_are_not_drawn_and_none_twice_without_replacement(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300..1e300f64, 0.5..1.0f64], 1..60),
            part in 0.0..1.0f64,
            seed: u64,
        ) {
            let positive = weights.iter().filter(|&&weight| weight > 0.0).count();
            prop_assume!(positive > 0);
            let count = 1 + ((positive - 1) as f64 * part) as usize;
            for replacement in [true, false] {
                let sampler = WeightedRandomSampler::new(weights.clone(), count, replacement).unwrap();
                let mut drawn: Vec<usize> = sampler.indices(Epoch::new(seed, 0)).collect();
                prop_assert_eq!(drawn.len(), count);
                prop_assert!(drawn.iter().all(|&index| weights[index] > 0.0));
                drawn.sort_unstable();
                drawn.dedup();
                prop_assert!(replacement || drawn.len() == count);
            }
        }
    }
}
