//! Random splits of a dataset.

use crate::{
    data::{
        random::{self, Purpose},
        torch,
    },
    options::Order,
};

/// Error returned by a random split.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The counts do not sum to the length of the dataset.
    #[error(
        "the parts together have {sum} samples, but the dataset has {len}; the counts must sum to the dataset's length"
    )]
    WrongSum {
        /// Sum of the counts.
        sum: u128,
        /// Length of the dataset.
        len: usize,
    },
    /// A fraction is not between 0 and 1.
    #[error("fraction {fraction} at index {index} is not between 0 and 1")]
    InvalidFraction {
        /// Index of the fraction.
        index: usize,
        /// The fraction.
        fraction: f64,
    },
    /// The fractions do not sum to 1.
    #[error("the fractions sum to {sum}; they must sum to 1 (within 1e-9)")]
    WrongFractionSum {
        /// Sum of the fractions.
        sum: f64,
    },
}

/// Splits the indices below `len` at random into parts of `counts[0]`, `counts[1]`, ... indices: PyTorch's
/// `random_split` with lengths. Each index is in exactly one part.
///
/// # Errors
/// Returns [`SplitError::WrongSum`] if the counts do not sum to `len`.
///
/// # Examples
/// ```
/// use loader_core::{Order, sampler::random_split_by_counts};
///
/// let parts = random_split_by_counts(10, &[3, 7], 1, Order::Torch)?;
/// assert_eq!(parts, [vec![5, 6, 1], vec![2, 0, 8, 9, 3, 7, 4]]);
/// # Ok::<(), loader_core::sampler::SplitError>(())
/// ```
pub fn random_split_by_counts(
    len: usize,
    counts: &[usize],
    seed: u64,
    order: Order,
) -> Result<Vec<Vec<usize>>, SplitError> {
    let sum = counts.iter().map(|&count| count as u128).sum();
    if sum != len as u128 {
        return Err(SplitError::WrongSum { sum, len });
    }
    let mut indices = permutation(len, seed, order).into_iter();
    Ok(counts.iter().map(|&count| indices.by_ref().take(count).collect()).collect())
}

/// Splits the indices below `len` at random into parts of `fractions[0] * len`, `fractions[1] * len`, ...
/// indices, rounded down: PyTorch's `random_split` with fractions. The indices that remain are added to the
/// parts one by one, beginning with the first part.
///
/// # Errors
/// Returns [`SplitError::InvalidFraction`] if a fraction is not between 0 and 1, and
/// [`SplitError::WrongFractionSum`] if the fractions do not sum to 1 (within 1e-9).
///
/// # Examples
/// ```
/// use loader_core::{Order, sampler::random_split_by_fractions};
///
/// let parts = random_split_by_fractions(106, &[0.1, 0.2, 0.3, 0.4], 7, Order::Native)?;
/// assert!(parts.iter().map(Vec::len).eq([11, 22, 31, 42]));
/// # Ok::<(), loader_core::sampler::SplitError>(())
/// ```
pub fn random_split_by_fractions(
    len: usize,
    fractions: &[f64],
    seed: u64,
    order: Order,
) -> Result<Vec<Vec<usize>>, SplitError> {
    random_split_by_counts(len, &counts(len, fractions)?, seed, order)
}

/// Returns the number of indices of each part.
fn counts(len: usize, fractions: &[f64]) -> Result<Vec<usize>, SplitError> {
    const TOLERANCE: f64 = 1e-9;
    let invalid = (0..).zip(fractions).find(|(_, fraction)| !(0.0..=1.0).contains(*fraction));
    if let Some((index, &fraction)) = invalid {
        return Err(SplitError::InvalidFraction { index, fraction });
    }
    let sum: f64 = fractions.iter().sum();
    let mut counts: Vec<usize> = fractions.iter().map(|fraction| (len as f64 * fraction) as usize).collect();
    // If the sum exceeds 1 by less than the tolerance, the counts exceed `len` only for a very large `len`.
    let rest = counts.iter().try_fold(len, |rest, &count| rest.checked_sub(count));
    let Some(rest) = rest.filter(|_| (sum - 1.0).abs() <= TOLERANCE) else {
        return Err(SplitError::WrongFractionSum { sum });
    };
    let parts = counts.len();
    for (part, count) in counts.iter_mut().enumerate() {
        *count += rest / parts + usize::from(part < rest % parts);
    }
    Ok(counts)
}

fn permutation(len: usize, seed: u64, order: Order) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..len).collect();
    match order {
        Order::Native => {
            let mut generator = random::generator(random::key(Purpose::Split, seed, 0), 0);
            random::shuffle(&mut generator, &mut indices);
        }
        Order::Torch | Order::TorchPersistent => torch::Generator::new(seed).shuffle(&mut indices),
    }
    indices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PyTorch: 2, 2.1.1
    #[test]
    fn fractions_are_rounded_down_and_the_rest_goes_to_the_first_parts() {
        assert_eq!(counts(106, &[0.1, 0.2, 0.3, 0.4]), Ok(vec![11, 22, 31, 42]));
        assert_eq!(counts(7, &[0.5, 0.5]), Ok(vec![4, 3]));
        assert_eq!(counts(3, &[0.25; 4]), Ok(vec![1, 1, 1, 0]));
        assert_eq!(counts(5, &[1.0, 0.0]), Ok(vec![5, 0]));
        assert_eq!(counts(0, &[0.5, 0.5]), Ok(vec![0, 0]));
        // In floating point, these fractions sum to 1.0000000000000002 and 0.9999999999999999.
        assert_eq!(counts(10, &[0.1, 0.2, 0.7, 0.0, f64::EPSILON]), Ok(vec![1, 2, 7, 0, 0]));
        assert_eq!(counts(10, &[0.7, 0.2, 0.1]).unwrap().len(), 3);
    }

    // PyTorch: 1, 6, 2.1.1
    #[test]
    fn invalid_counts_and_fractions_are_refused() {
        let by_counts = |counts: &[usize]| random_split_by_counts(4, counts, 0, Order::Native).unwrap_err();
        assert_eq!(by_counts(&[1, 2]), SplitError::WrongSum { sum: 3, len: 4 });
        assert_eq!(by_counts(&[]), SplitError::WrongSum { sum: 0, len: 4 });
        assert!(matches!(by_counts(&[usize::MAX, 5]), SplitError::WrongSum { .. }));
        let by_fractions = |parts: &[f64]| random_split_by_fractions(4, parts, 0, Order::Native).unwrap_err();
        assert_eq!(by_fractions(&[0.1]), SplitError::WrongFractionSum { sum: 0.1 });
        assert_eq!(by_fractions(&[1.1]), SplitError::InvalidFraction { index: 0, fraction: 1.1 });
        assert_eq!(by_fractions(&[0.5, 1.0]), SplitError::WrongFractionSum { sum: 1.5 });
        assert_eq!(by_fractions(&[1.5, -0.5]).to_string(), "fraction 1.5 at index 0 is not between 0 and 1");
        assert_eq!(by_fractions(&[0.5, -0.5, 1.0]), SplitError::InvalidFraction { index: 1, fraction: -0.5 });
        assert!(matches!(by_fractions(&[f64::NAN]), SplitError::InvalidFraction { index: 0, .. }));
        assert_eq!(by_fractions(&[]), SplitError::WrongFractionSum { sum: 0.0 });
    }

    #[test]
    fn a_split_never_changes_between_releases() {
        let parts = random_split_by_counts(10, &[3, 7], 7, Order::Native).unwrap();
        assert_eq!(parts, [vec![8, 1, 5], vec![0, 2, 9, 3, 6, 4, 7]]);
    }

    // PyTorch: 5, 7, D09
    #[test]
    fn the_seed_and_the_counts_determine_a_split() {
        for order in [Order::Native, Order::Torch] {
            let split = |seed| random_split_by_counts(100, &[40, 60], seed, order).unwrap();
            assert_eq!(split(1), split(1));
            assert_ne!(split(1), split(2));
            assert_eq!(random_split_by_fractions(100, &[0.4, 0.6], 1, order).unwrap(), split(1));
        }
    }

    proptest! {
        // PyTorch: 2, 3, 4
        #[test]
        fn each_index_is_in_exactly_one_part(shares in prop::collection::vec(0usize..20, 1..8), seed: u64, torch: bool) {
            let order = if torch { Order::Torch } else { Order::Native };
            let len: usize = shares.iter().sum();
            let by_counts = random_split_by_counts(len, &shares, seed, order).unwrap();
            prop_assert!(by_counts.iter().map(Vec::len).eq(shares.iter().copied()));
            let mut all = by_counts.concat();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..len));

            prop_assume!(len > 0);
            let fractions: Vec<f64> = shares.iter().map(|&share| share as f64 / len as f64).collect();
            let by_fractions = random_split_by_fractions(len + 3, &fractions, seed, order).unwrap();
            let mut all = by_fractions.concat();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..len + 3));
        }
    }
}
