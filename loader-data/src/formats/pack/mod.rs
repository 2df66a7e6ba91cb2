//! Packs files into tar archives in WebDataset's layout, or into Parquet files.
//!
//! `plan` decides which file becomes a `member` of which archive, `write` writes the archives, `rows` writes Parquet, and
//! `manifest` records what is finished.

mod error;
mod format;
mod manifest;
mod member;
mod plan;
mod rows;
#[cfg(test)]
mod tests;
mod write;

pub use error::PackError;
pub use format::PackFormat;
pub use plan::{PackOptions, PackPlan};
pub use write::{PackSummary, check_packed};
