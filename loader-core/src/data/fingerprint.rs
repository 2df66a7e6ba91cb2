//! Helpers that compose and shorten fingerprints.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Maximum length of a fingerprint, in bytes. In a longer fingerprint, a hash replaces the end.
const MAX_FINGERPRINT: usize = 200;

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

/// Shortens a fingerprint to at most [`MAX_FINGERPRINT`] bytes.
pub(crate) fn shorten(mut fingerprint: String) -> String {
    if fingerprint.len() > MAX_FINGERPRINT {
        let hash = format!("...#{:016x}", xxh3_64(fingerprint.as_bytes()));
        let room = MAX_FINGERPRINT - hash.len();
        let end = (0..=room).rev().find(|&end| fingerprint.is_char_boundary(end)).unwrap_or(0);
        fingerprint.truncate(end);
        fingerprint.push_str(&hash);
    }
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_long_fingerprints_differ_after_shortening() {
        let long = |last: char| shorten("é".repeat(300) + &last.to_string());
        assert!(long('a').len() <= MAX_FINGERPRINT && long('a') != long('b'));
        assert_eq!(shorten("stream".to_owned()), "stream");
    }
}
