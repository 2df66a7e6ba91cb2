//! Packs files into tar archives in WebDataset's layout.
//!
//! `plan` decides which file goes to which archive, `write` writes the archives, and `manifest` records what
//! is finished.

mod error;
mod manifest;
mod plan;
mod write;

pub use error::PackError;
pub use plan::{PackOptions, PackPlan};
pub use write::{PackSummary, check_packed};
