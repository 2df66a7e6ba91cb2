//! Images in records: `column` decodes one image, and `options` are the options of `column` in a config.

mod column;
mod options;

pub use column::ImageColumn;
pub use options::ImageOptions;
