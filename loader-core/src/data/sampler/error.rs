//! Errors of samplers.

/// Error returned when a sampler is created with invalid arguments.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// `num_samples` is 0.
    #[error("num_samples is 0; it must be at least 1")]
    NoSamples,
    /// The number of indices or weights to draw from is 0.
    #[error("cannot draw {num_samples} samples: there are no indices to draw from")]
    NothingToDrawFrom {
        /// Number of samples to draw.
        num_samples: usize,
    },
    /// A weight is negative, infinite or not a number.
    #[error(
        "weight {weight} at index {index} is negative or not finite; use 0 for an index that must not be drawn"
    )]
    InvalidWeight {
        /// Index of the weight.
        index: usize,
        /// The weight.
        weight: f64,
    },
    /// No weight is above 0.
    #[error("all weights are 0; at least one weight must be above 0")]
    NoWeightAboveZero,
    /// The sum of the weights is not finite.
    #[error("the sum of the weights is not finite; divide all weights by the same number")]
    WeightsTooLarge,
    /// Without replacement, `num_samples` exceeds the number of weights above 0.
    #[error(
        "cannot draw {num_samples} samples without replacement: only {positive} weights are above 0; draw fewer samples, or \
         draw with replacement"
    )]
    TooFewWeights {
        /// Number of samples to draw.
        num_samples: usize,
        /// Number of weights above 0.
        positive: usize,
    },
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
