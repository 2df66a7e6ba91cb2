//! The file of a cached block: its content, a checksum of each page, and a trailer.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Number of bytes that a checksum is for: a read of a few bytes checks this many.
const PAGE: u64 = 64 << 10;

const MAGIC: &[u8; 8] = b"LDBLOCK1";

/// Number of bytes of the trailer: magic, key, length, and the checksum of these and of the checksums of the
/// pages.
const TRAILER: u64 = 8 + 16 + 8 + 8;

/// The identity of a block: hash of its file's URL, version and length, and of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) u128);

impl Key {
    /// Checksum of page `number`. A page of another block, or at another position in the block, has another.
    fn checksum(self, number: u64, page: &[u8]) -> u64 {
        xxh3_64_with_seed(page, (self.0 as u64).wrapping_add(number))
    }
}

/// Returns what follows the content in the file.
pub(super) fn trailer(key: Key, content: &[u8]) -> Vec<u8> {
    let pages = content.chunks(PAGE as usize).zip(0..);
    let mut bytes: Vec<u8> =
        pages.flat_map(|(page, number)| key.checksum(number, page).to_le_bytes()).collect();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads parts of the block `key`, whose content has `len` bytes. Returns `None` if the file is damaged.
///
/// # Errors
/// Returns an error if the system cannot read the file.
pub(super) fn read(file: &File, key: Key, len: u64, parts: &[Range<u64>]) -> io::Result<Option<Vec<Bytes>>> {
    let sums_len = len.div_ceil(PAGE) * 8;
    if file.metadata()?.len() != len + sums_len + TRAILER {
        return Ok(None);
    }
    let mut end = vec![0; (sums_len + TRAILER) as usize];
    file.read_exact_at(&mut end, len)?;
    let (sums, trailer) = end.split_at(sums_len as usize);
    let checked = &end[..end.len() - 8];
    let expected =
        [MAGIC.as_slice(), &key.0.to_le_bytes(), &len.to_le_bytes(), &xxh3_64(checked).to_le_bytes()];
    if trailer != expected.concat() {
        return Ok(None);
    }
    let mut read = Vec::with_capacity(parts.len());
    for part in parts {
        let pages = part.start / PAGE..part.end.div_ceil(PAGE);
        let start = pages.start * PAGE;
        let mut bytes = vec![0; (len.min(pages.end * PAGE) - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        for (page, number) in bytes.chunks(PAGE as usize).zip(pages) {
            let sum = &sums[number as usize * 8..][..8];
            if key.checksum(number, page).to_le_bytes() != sum {
                return Ok(None);
            }
        }
        read.push(Bytes::from(bytes).slice((part.start - start) as usize..(part.end - start) as usize));
    }
    Ok(Some(read))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn entry(key: Key, content: &[u8]) -> Vec<u8> {
        [content, &trailer(key, content)].concat()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_and_a_flipped_bit_is_found(
            len in 1..200_000_usize, seed: u8, start in 0.0..1.0_f64, flipped in 0.0..1.0_f64, bit in 0..8_u32,
        ) {
            let content: Vec<u8> = (0..len).map(|index| (index * 31 % 251) as u8 ^ seed).collect();
            let key = Key(u128::from(seed) << 64 | 77);
            let mut bytes = entry(key, &content);
            let start = (start * len as f64) as u64;
            let parts = [start..len as u64, 0..start, start..start];
            let read = read(&file(&bytes), key, len as u64, &parts).unwrap().unwrap();
            prop_assert!(parts.iter().zip(&read).all(|(part, read)| content[part.start as usize..part.end as usize] == read[..]));

            let at = (flipped * bytes.len() as f64) as usize;
            bytes[at] ^= 1 << bit;
            let whole = std::slice::from_ref(&(0..len as u64)).to_vec();
            prop_assert!(super::read(&file(&bytes), key, len as u64, &whole).unwrap().is_none());
        }

        #[test]
        fn arbitrary_bytes_are_not_an_entry(bytes in prop::collection::vec(any::<u8>(), 0..200), len in 0..100_u64) {
            let parts = std::slice::from_ref(&(0..len)).to_vec();
            prop_assert!(read(&file(&bytes), Key(5), len, &parts).unwrap().is_none());
        }
    }

    #[test]
    fn another_block_and_a_part_of_a_file_are_refused() {
        let bytes = entry(Key(1), &[7; 1000]);
        let whole = std::slice::from_ref(&(0..1000)).to_vec();
        let ask = |bytes: &[u8], key| read(&file(bytes), key, 1000, &whole).unwrap();
        assert!(ask(&bytes, Key(1)).is_some());
        assert!(ask(&bytes, Key(2)).is_none());
        assert!(ask(&bytes[..bytes.len() - 1], Key(1)).is_none());
        assert!(ask(&[], Key(1)).is_none());
    }
}
