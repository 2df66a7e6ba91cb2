#![doc = include_str!("../README.md")]

mod batch;
mod dataset;
mod epoch;
mod error;
mod from_burn;
mod loader;
mod to_burn;

pub use batch::{FixedRank, PackedBurn, PaddedBurn};
/// The version of burn that this crate works with.
pub use burn_core;
pub use burn_core::tensor::Device;
pub use dataset::BurnDataset;
pub use error::Error;
pub use from_burn::FromBurn;
pub use loader::BurnLoader;
pub use to_burn::{BurnElement, ToBurn, ToBurnAs};
