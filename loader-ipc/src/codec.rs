//! Encodes frames, datasets and batches with bincode; no other file uses bincode.
//!
//! Integers have a fixed width, trailing bytes are refused, and lengths are bounded by the input. The format
//! is not self-describing: both sides must use the same type, which the handshake ensures. Types that need a
//! self-describing format (`#[serde(untagged)]`, `#[serde(flatten)]`, `serde_json::Value`) cannot be decoded.

use std::io::Write;

use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

/// Initial capacity for an encoding, in bytes. Most batches need no more besides their tensors, so that the
/// vector need not grow.
const INITIAL_CAPACITY: usize = 128;

/// An error of encoding or decoding.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(#[from] bincode::Error);

/// Encodes `value` to bytes.
///
/// # Errors
/// If the value's `Serialize` implementation fails, or if the value has a sequence or map of unknown length.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    // bincode's `serialize` is not used: it serialises the value twice, the first time only to compute the
    // size.
    let mut bytes = Vec::with_capacity(INITIAL_CAPACITY);
    encode_into(&mut bytes, value)?;
    Ok(bytes)
}

/// Encodes `value` into `writer`.
///
/// # Errors
/// As [`encode`], or if `writer` fails.
pub fn encode_into<T: Serialize + ?Sized>(writer: impl Write, value: &T) -> Result<(), CodecError> {
    Ok(options().serialize_into(writer, value)?)
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
/// If `bytes` do not encode a `T`, or if bytes are missing or left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    // No part of a value is longer than the whole. The limit turns a false length into an error instead of an
    // allocation.
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
    fn a_false_length_is_an_error() {
        assert!(decode::<Vec<u64>>(&u64::MAX.to_le_bytes()).is_err());
    }
}
