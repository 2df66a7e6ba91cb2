//! Datasets for tests, some of which fail on purpose.

mod failing;
mod fault;
mod map_style;
mod snapshots;
mod streams;
mod tokens;

pub use failing::{Faulty, Flaky, Many, ManyFault, many};
pub use fault::Fault;
pub use map_style::{Count, Given, Large, Noise, NoiseSample, Slow, SlowFirst};
pub use snapshots::{Hoard, ShardNumbers, Squares};
pub use streams::{AsStream, Counting, Shards, Uneven};
pub use tokens::{put_tokens, take_token};
