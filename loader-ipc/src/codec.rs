//! Bytes of frames, datasets and batches. The only file that names bincode.
//!
//! Fixed-width integers, trailing bytes refused, lengths bounded by the input. Not self-describing: what one side writes, the
//! other must read as the same type, which the handshake makes sure of. Types that need a self-describing format
//! (`#[serde(untagged)]`, `#[serde(flatten)]`, `serde_json::Value`) do not survive it.

use std::io::Write;

use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

/// Enough for most batches without what lies in tensors, so that the bytes are not moved while they grow.
const USUAL: usize = 128;

/// What went wrong with encoding or decoding, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(#[from] bincode::Error);

/// Encodes `value` to bytes.
///
/// # Errors
/// When the value's own `Serialize` fails, or it has a part of unknown length.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    // Not `serialize`: it runs the value's `Serialize` twice, the first time only to learn the size.
    let mut bytes = Vec::with_capacity(USUAL);
    encode_into(&mut bytes, value)?;
    Ok(bytes)
}

/// Encodes `value` into `writer`.
///
/// # Errors
/// As [`encode`], or when the writer fails.
pub fn encode_into<T: Serialize + ?Sized>(writer: impl Write, value: &T) -> Result<(), CodecError> {
    Ok(options().serialize_into(writer, value)?)
}

/// Decodes a value that fills all of `bytes`.
///
/// # Errors
/// When the bytes are too few, too many, or not such a value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    // The limit makes a length that lies an error, not an allocation: no part of a value is longer than the whole.
    Ok(options().with_limit(bytes.len() as u64).deserialize(bytes)?)
}

fn options() -> impl Options {
    bincode::DefaultOptions::new().with_fixint_encoding().reject_trailing_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_and_missing_bytes_are_refused() {
        let mut bytes = encode(&(1u32, "two")).unwrap();
        assert_eq!(decode::<(u32, String)>(&bytes).unwrap(), (1, "two".to_owned()));
        assert!(decode::<(u32, String)>(&bytes[..bytes.len() - 1]).is_err());
        bytes.push(0);
        assert!(decode::<(u32, String)>(&bytes).is_err());
    }

    #[test]
    fn a_length_that_lies_is_an_error() {
        assert!(decode::<Vec<u64>>(&u64::MAX.to_le_bytes()).is_err());
    }
}
