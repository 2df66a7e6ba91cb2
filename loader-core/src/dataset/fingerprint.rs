//! Parts of fingerprints.

use xxhash_rust::xxh3::Xxh3;

/// A part of a pipeline with its length, if it is known: `stream[90]`.
pub(crate) fn with_len(fingerprint: &str, len: Option<usize>) -> String {
    len.map_or_else(|| fingerprint.to_owned(), |len| format!("{fingerprint}[{len}]"))
}

/// A list of numbers that decide an order: `#` and 16 hexadecimal digits.
pub(crate) fn hash(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut hash = Xxh3::new();
    numbers.into_iter().for_each(|number| hash.update(&number.to_le_bytes()));
    format!("#{:016x}", hash.digest())
}
