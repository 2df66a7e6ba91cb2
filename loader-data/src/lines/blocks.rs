//! Blocks: the parts of files that are dealt to shards.

use std::ops::Range;

use loader_core::{Tensor, TensorError};
use serde::{Deserialize, Serialize};

use crate::source::Files;

/// Max size of a block by default. A worker reads few bytes beyond its blocks, so they need not be larger.
const MAX_BLOCK_BYTES: u64 = 4 << 20;

/// Min size of a block by default.
const MIN_BLOCK_BYTES: u64 = 16 << 10;

/// Number of blocks of small data, so that each of a few dozen shards gets a similar share.
const MIN_BLOCKS: u64 = 256;

/// The blocks of files. A compressed file is one block, even if it is empty: then reading it fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Blocks {
    /// For each file, the number of its first block; then the number of blocks.
    first: Tensor<u64>,
    block_bytes: u64,
}

/// A part of a file. Its lines are those whose first byte is in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block {
    pub(super) file: usize,
    pub(super) bytes: Range<u64>,
}

impl Blocks {
    /// Divides `files` into blocks of `block_bytes`; `None` for a size that suits the data. `is_whole` tells
    /// which files are not divided.
    pub(super) fn new(
        files: &Files,
        block_bytes: Option<u64>,
        is_whole: impl Fn(usize) -> bool,
    ) -> Result<Self, TensorError> {
        let total = (0..files.len()).map(|file| files.get(file).len).fold(0, u64::saturating_add);
        let block_bytes = block_bytes
            .unwrap_or_else(|| (total / MIN_BLOCKS).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES))
            .max(1);
        let mut first = vec![0];
        for file in 0..files.len() {
            let count = if is_whole(file) { 1 } else { files.get(file).len.div_ceil(block_bytes) };
            first.push(first[file] + count);
        }
        Ok(Self { first: Tensor::from_slice(&first, [first.len()])?, block_bytes })
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> u64 {
        self.first.as_slice().last().copied().unwrap_or(0)
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns block `number`, or `None` if there is no such block.
    pub(super) fn get(&self, number: u64, files: &Files) -> Option<Block> {
        let first = self.first.as_slice();
        let file = first.partition_point(|&first| first <= number).checked_sub(1)?;
        let next = *first.get(file + 1)?;
        let len = files.get(file).len;
        let start = (number - first[file]) * self.block_bytes;
        // The last block of a file, which may be the only one of a compressed file, ends where the file ends.
        let end = if number + 1 == next { len } else { start + self.block_bytes };
        Some(Block { file, bytes: start..end })
    }
}
