//! Records with encoded fields, such as images and audio: `decoder` decodes one value, and `dataset` applies that to
//! the records of any dataset.

mod dataset;
mod decoder;

pub use dataset::DecodedRecords;
pub use decoder::FieldDecoder;
