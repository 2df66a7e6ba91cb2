//! Records with fields that are encoded images or audio: `decoder` decodes one value, and `dataset` decodes
//! the fields of the records of any dataset.

mod dataset;
mod decoder;

pub use dataset::DecodedRecords;
pub use decoder::FieldDecoder;
pub(crate) use decoder::encoded_file;
