#![doc = include_str!("../README.md")]

mod batch;
mod convert;
mod error;
mod import;
mod tensor;

// The code that `#[sample(candle)]` generates names them.
pub use candle_core::{self, Device};

pub use batch::{PackedCandle, PaddedCandle};
pub use convert::ToCandleAs;
pub use error::{Error, Problem};
pub use import::from_candle;
pub use tensor::ToCandle;
