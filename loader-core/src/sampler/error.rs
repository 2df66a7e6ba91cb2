//! What is wrong with a sampler.

/// A sampler that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// An epoch of no samples.
    #[error("num_samples is 0; draw at least 1 sample an epoch")]
    NoSamples,
    /// Samples are to be drawn from nothing.
    #[error("there is nothing to draw {num_samples} samples from: the length is 0")]
    NothingToDrawFrom {
        /// Samples asked for.
        num_samples: usize,
    },
    /// A weight is negative, infinite or not a number.
    #[error(
        "weight {weight} at index {index} is not a finite number from 0; correct it, or use 0 for what is never to be drawn"
    )]
    InvalidWeight {
        /// Its index.
        index: usize,
        /// The weight.
        weight: f64,
    },
    /// No weight is above 0.
    #[error("all weights are 0: nothing could be drawn; give at least one sample a weight above 0")]
    NoWeightAboveZero,
    /// The weights' sum is not finite.
    #[error("the sum of the weights is too large for 64 bits; divide all of them by the same number")]
    WeightsTooLarge,
    /// Fewer samples can be drawn than are wanted.
    #[error(
        "{num_samples} samples without replacement need as many weights above 0, there are {positive}; draw fewer, or with \
         replacement"
    )]
    TooFewWeights {
        /// Samples asked for.
        num_samples: usize,
        /// Weights above 0.
        positive: usize,
    },
    /// There is no such rank.
    #[error("invalid rank {rank}, rank should be in the interval [0, {}]", .world_size - 1)]
    InvalidRank {
        /// The rank.
        rank: usize,
        /// Number of processes.
        world_size: usize,
    },
    /// A world of no processes.
    #[error("a world of 0 processes has no rank; count this process too, and use 1 or more")]
    NoProcesses,
}
