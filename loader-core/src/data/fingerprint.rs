//! Helpers that compose fingerprints.

use xxhash_rust::xxh3::Xxh3;

/// Appends the length, if it is known, to the fingerprint of a part: `stream[90]`.
pub(crate) fn with_len(fingerprint: &str, len: Option<usize>) -> String {
    len.map_or_else(|| fingerprint.to_owned(), |len| format!("{fingerprint}[{len}]"))
}

/// Hashes a list of numbers that determines an order. Returns `#` and 16 hexadecimal digits.
pub(crate) fn hash(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut hash = Xxh3::new();
    numbers.into_iter().for_each(|number| hash.update(&number.to_le_bytes()));
    format!("#{:016x}", hash.digest())
}
