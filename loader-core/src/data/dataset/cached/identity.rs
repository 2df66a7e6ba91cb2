//! The header of a cache's index.

use std::{
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::FileExt,
};

use bytemuck::{cast_slice, cast_slice_mut};
use loader_ipc::codec;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CachePart, store::ENTRY};

const MAGIC: u64 = u64::from_le_bytes(*b"LDRCACHE");
const FORMAT: u64 = 1;

/// Number of words before the encoded identity: magic, format, random number, length of the identity,
/// checksum.
const WORDS: usize = 5;
/// Maximum length of an encoded identity, in bytes: a damaged length must not allocate much memory.
const MAX_LEN: u64 = 1 << 20;

/// What must be the same for a program to use a cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) version: String,
    /// Name of the type of a sample.
    pub(super) sample: String,
    pub(super) len: u64,
    /// Fingerprint of the dataset.
    pub(super) dataset: String,
}

/// A header that was read.
pub(super) enum Header {
    /// An identity, the random number of the cache, and the offset of the first entry.
    Valid(Identity, u64, u64),
    OtherFormat(u64),
    Damaged,
}

impl Identity {
    /// Returns the header of a new cache.
    pub(super) fn header(&self) -> Result<Vec<u8>, codec::CodecError> {
        let identity = codec::encode(self)?;
        // Each `RandomState` has new random keys. Entries of a cache that was removed cannot be valid in this
        // one.
        let mut words = [MAGIC, FORMAT, RandomState::new().build_hasher().finish(), identity.len() as u64, 0];
        words[4] = checksum(&words, &identity);
        let mut header = [cast_slice(&words), &identity].concat();
        header.resize(header.len().next_multiple_of(ENTRY), 0);
        Ok(header)
    }

    /// Returns the first property in which `self` differs from that of a cache, with both values.
    pub(super) fn difference(&self, cached: &Self) -> Option<(CachePart, String, String)> {
        let quoted = |text: &str| format!("`{text}`");
        let parts = [
            (CachePart::Version, quoted(&cached.version), quoted(&self.version)),
            (CachePart::SampleType, quoted(&cached.sample), quoted(&self.sample)),
            (CachePart::Len, cached.len.to_string(), self.len.to_string()),
            (CachePart::Fingerprint, quoted(&cached.dataset), quoted(&self.dataset)),
        ];
        parts.into_iter().find(|(_, cached, own)| cached != own)
    }
}

impl Header {
    /// The format of the headers that this version of the crate writes.
    pub(super) const FORMAT: u64 = FORMAT;

    pub(super) fn read(index: &File) -> io::Result<Self> {
        let mut words = [0; WORDS];
        if !read_all(index, cast_slice_mut(&mut words), 0)? || words[0] != MAGIC {
            return Ok(Self::Damaged);
        }
        let [_, format, id, len, sum] = words;
        if format != FORMAT {
            return Ok(Self::OtherFormat(format));
        }
        if len > MAX_LEN {
            return Ok(Self::Damaged);
        }
        let mut identity = vec![0; len as usize];
        let start = size_of_val(&words);
        if !read_all(index, &mut identity, start as u64)? || sum != checksum(&words, &identity) {
            return Ok(Self::Damaged);
        }
        let entries = (start + identity.len()).next_multiple_of(ENTRY) as u64;
        Ok(codec::decode(&identity).map_or(Self::Damaged, |identity| Self::Valid(identity, id, entries)))
    }
}

fn checksum(words: &[u64; WORDS], identity: &[u8]) -> u64 {
    let [_, format, id, len, _] = words;
    xxh3_64_with_seed(identity, format ^ id.rotate_left(1) ^ len.rotate_left(2))
}

/// Fills `bytes` from `offset` on. Returns false if the file is too short.
pub(super) fn read_all(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| true),
    }
}
