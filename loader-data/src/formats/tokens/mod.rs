//! Token files: windows of tokens and documents, for language models.

mod dataset;
mod documents;
mod element;
mod index;
mod options;
mod records;
mod segments;
mod windows;

pub use dataset::Tokens;
pub use documents::TokenDocuments;
pub use element::Token;
pub use options::{TokenFormat, TokensOptions};
pub use records::TokenRecords;
pub use segments::{SegmentedTokens, TokenWindow, TokenWindowBatch, TokenWindowStack};
