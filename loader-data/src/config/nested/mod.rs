//! Datasets of records that have other datasets inside.

mod cached;
mod mix;
mod packed;

pub use cached::{CachedOptions, RecordCache};
pub use mix::{MixOptions, RecordMix};
pub use packed::{PackedOptions, RecordWindows};
