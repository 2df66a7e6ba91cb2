#![doc = include_str!("../README.md")]

mod dataset;
mod error;
mod from_burn;
mod loader;
mod to_burn;

pub use dataset::BurnDataset;
pub use error::Error;
pub use from_burn::FromBurn;
pub use loader::BurnLoader;
pub use to_burn::{BurnElement, ToBurn, ToBurnAs};
