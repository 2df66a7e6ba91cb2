//! Token files: windows of tokens for language models.

mod dataset;
mod element;
mod windows;

pub use dataset::Tokens;
pub use element::Token;
