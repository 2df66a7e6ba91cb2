//! The lines of files, read from the beginning to the end.

use std::{
    io::{self, BufReader},
    marker::PhantomData,
    sync::Arc,
};

use anyhow::ensure;
use loader_core::{DatasetMemory, Shard, SnapshotIterator};
use serde::{Deserialize, Serialize};

use super::{
    BYTE_ORDER_MARK, LineRules,
    blocks::{Block, Blocks},
    index::LineIndex,
    reader::LineReader,
    scan::first_byte,
    too_long,
};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    shard_items::{ItemError, ShardItems, too_short},
    source::{Blob, BlobReader, Compression, Files, NextPart, problem},
};

/// Number of bytes that are decompressed at a time.
const CHUNK: usize = 64 << 10;

/// The lines of files in shards of blocks: block `i` belongs to shard `i % n`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LineStream {
    files: Files,
    blocks: Blocks,
    rules: LineRules,
    max_line_bytes: u64,
    /// The lines of all files, if they have been counted.
    index: Option<LineIndex>,
}

/// True if each file is one block: without an index, only reading a file of CSV from its beginning tells where a record
/// begins.
fn is_one_block_per_file(rules: LineRules, index: Option<&LineIndex>) -> bool {
    rules.csv.is_some() && index.is_none()
}

/// Where a shard of a stream of lines continues: a block, and an offset in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineSnapshot {
    /// The block that is read, or is read next.
    block: u64,
    /// Offset of the next line in the file, after decompression; `None` at the beginning of the block.
    offset: Option<u64>,
}

impl LineStream {
    /// Divides `files` into blocks. Reads none of them.
    pub(crate) fn open(
        files: Files,
        rules: LineRules,
        block_bytes: Option<u64>,
        max_line_bytes: u64,
    ) -> Result<Self> {
        Self::divide(files, None, rules, block_bytes, max_line_bytes)
    }

    /// Divides files into blocks.
    pub(super) fn divide(
        files: Files,
        index: Option<LineIndex>,
        rules: LineRules,
        block_bytes: Option<u64>,
        max_line_bytes: u64,
    ) -> Result<Self> {
        let is_one = is_one_block_per_file(rules, index.as_ref());
        let is_whole = |file: usize| is_one || Compression::of(&files.get(file).location).is_some();
        let blocks = Blocks::new(&files, block_bytes, is_whole)
            .map_err(|error| DataError::new("the list of blocks", DataProblem::Memory(error.to_string())))?;
        Ok(Self { files, blocks, rules, max_line_bytes, index })
    }

    pub(crate) fn set_max_line_bytes(&mut self, bytes: u64) {
        self.max_line_bytes = bytes;
    }

    /// Number of lines, if it is known.
    pub(crate) fn len(&self) -> Option<usize> {
        self.index.as_ref().map(LineIndex::len)
    }

    /// Text that identifies the files and how they are divided.
    pub(crate) fn fingerprint(&self) -> String {
        // A block is then a file, so a position of the one is not that of the other.
        let is_one = is_one_block_per_file(self.rules, self.index.as_ref());
        let whole = if is_one { "whole files, " } else { "" };
        format!("{} in {whole}blocks of {}", self.files.fingerprint(), self.blocks.block_bytes())
    }

    /// Returns what `parse` makes of the lines of `shard` after `snapshot`. What is read ahead is part of `memory`.
    ///
    /// # Errors
    /// Returns an error if the snapshot is not of this shard, or its file cannot be read.
    pub(crate) fn samples<T, F: Fn(&[u8]) -> Result<T, DataProblem>>(
        &self,
        shard: Shard,
        snapshot: Option<LineSnapshot>,
        memory: &DatasetMemory,
        parse: F,
    ) -> anyhow::Result<ShardItems<Samples<'_, T, F>>> {
        let lines = self.lines(shard, snapshot, memory)?;
        Ok(ShardItems::new(Samples { lines, parse, sample: PhantomData }))
    }

    /// Returns what `parse` makes of the lines of `shard` after the first `count` lines, which are not parsed.
    /// Lines that are too long are counted, too.
    ///
    /// # Errors
    /// Returns an error if one of these lines cannot be read, or if there are fewer lines.
    pub(crate) fn samples_after<T, F: Fn(&[u8]) -> Result<T, DataProblem>>(
        &self,
        shard: Shard,
        count: u64,
        memory: &DatasetMemory,
        parse: F,
    ) -> anyhow::Result<ShardItems<Samples<'_, T, F>>> {
        let mut lines = self.lines(shard, None, memory)?;
        for found in 0..count {
            match lines.next_with(|_| Ok(())) {
                None => return Err(too_short(count, found).into()),
                Some(Err(ItemError::Rest(error))) => return Err(error.into()),
                Some(_) => {}
            }
        }
        Ok(ShardItems::new(Samples { lines, parse, sample: PhantomData }))
    }

    fn lines(
        &self,
        shard: Shard,
        snapshot: Option<LineSnapshot>,
        memory: &DatasetMemory,
    ) -> anyhow::Result<LineIter<'_>> {
        let (index, count) = (shard.index() as u64, shard.count() as u64);
        let start = snapshot.unwrap_or(LineSnapshot { block: index, offset: None });
        ensure!(
            start.block % count == index,
            "the snapshot is at block {}, which is not in shard {index} of {count}",
            start.block
        );
        let mut lines = LineIter {
            stream: self,
            step: count,
            block: start.block,
            open: None,
            ahead: NextPart::default(),
            memory: memory.clone(),
            line: Vec::new(),
        };
        if let Some(offset) = start.offset {
            lines.open = Some(self.open_block(start.block, Some(offset), None, memory)?);
        }
        Ok(lines)
    }

    /// Opens a block at its first line, or at `offset`. `ahead` may be what [`begin_block`](Self::begin_block) returned
    /// for the block.
    fn open_block(
        &self,
        number: u64,
        offset: Option<u64>,
        ahead: Option<BlobReader>,
        memory: &DatasetMemory,
    ) -> Result<OpenBlock> {
        let Some(block) = self.blocks.get(number, &self.files) else {
            let reason = format!("there is no block {number}");
            return Err(DataError::new(
                "the files",
                DataProblem::Malformed { format: "a snapshot of them", reason },
            ));
        };
        let blob = self.files.open(block.file)?;
        let has_header = offset.is_none() && self.rules.csv.is_some_and(|csv| csv.has_header);
        let input = || ahead.unwrap_or_else(|| self.reader_of(&block, offset, &blob, memory));
        if let Some(compression) = Compression::of(&blob.file().location) {
            let mut reader = decompressed(compression, input(), self.rules);
            reader.skip_to(offset.unwrap_or(0)).map_err(|error| read_error(&blob, 0, error))?;
            return Ok(OpenBlock { block, reader, end: u64::MAX, has_header });
        }
        let (start, is_known) = self.start_of(&block, offset);
        if start > blob.len() {
            return Err(blob.error(start, DataProblem::Truncated));
        }
        let mut reader = LineReader::new(input(), start, self.rules.quotes());
        if !is_known && block.bytes.start > 0 {
            // The rest of the line that begins before the block, or the line break before the block.
            reader.skip_line(block.bytes.end).map_err(|error| read_error(&blob, start, error))?;
        }
        Ok(OpenBlock { end: block.bytes.end, block, reader, has_header: has_header && !is_known })
    }

    /// Starts to read block `number` if its file lies on a server.
    fn begin_block(&self, number: u64, memory: &DatasetMemory) -> Option<BlobReader> {
        let block = self.blocks.get(number, &self.files)?;
        self.files.begin(block.file, |blob| self.reader_of(&block, None, blob, memory))
    }

    /// Returns where reading a block starts, and true if that is known to be the beginning of a line.
    fn start_of(&self, block: &Block, offset: Option<u64>) -> (u64, bool) {
        let end = block.bytes.end;
        match (offset, &self.index) {
            (Some(offset), _) => (offset, true),
            (None, Some(index)) if self.rules.csv.is_some() => {
                (index.first_at(block.file, block.bytes.start).map_or(end, |start| start.min(end)), true)
            }
            (None, _) => (first_byte(block.bytes.start), false),
        }
    }

    /// Returns a reader of the bytes of a block, or of those from `offset` on. A compressed file is read from its
    /// beginning.
    fn reader_of(
        &self,
        block: &Block,
        offset: Option<u64>,
        blob: &Arc<Blob>,
        memory: &DatasetMemory,
    ) -> BlobReader {
        if Compression::of(&blob.file().location).is_some() {
            return blob.reader(0..blob.len()).with_memory(memory);
        }
        let reader = blob.reader(self.start_of(block, offset).0..blob.len());
        reader.expect_end(block.bytes.end).with_memory(memory)
    }
}

/// A block that is being read.
struct OpenBlock {
    block: Block,
    reader: LineReader,
    /// Lines that begin here or later belong to another block.
    end: u64,
    /// True if the next record is a header.
    has_header: bool,
}

/// What a function makes of the lines of a shard.
pub(crate) struct Samples<'a, T, F> {
    lines: LineIter<'a>,
    parse: F,
    sample: PhantomData<fn() -> T>,
}

impl<T, F: Fn(&[u8]) -> Result<T, DataProblem>> Iterator for Samples<'_, T, F> {
    type Item = Result<T, ItemError>;

    fn next(&mut self) -> Option<Result<T, ItemError>> {
        self.lines.next_with(&self.parse)
    }
}

impl<T, F: Fn(&[u8]) -> Result<T, DataProblem>> SnapshotIterator for Samples<'_, T, F> {
    type Snapshot = LineSnapshot;

    fn snapshot(&self) -> anyhow::Result<LineSnapshot> {
        let offset = self.lines.open.as_ref().map(|open| open.reader.position());
        Ok(LineSnapshot { block: self.lines.block, offset })
    }
}

/// The lines of a shard.
struct LineIter<'a> {
    stream: &'a LineStream,
    /// Number of shards.
    step: u64,
    /// The block that is open, or is opened next.
    block: u64,
    open: Option<OpenBlock>,
    /// The beginning of the block after the open one, which is being fetched if it lies on a server.
    ahead: NextPart<BlobReader>,
    /// The account of what is read ahead.
    memory: DatasetMemory,
    line: Vec<u8>,
}

impl LineIter<'_> {
    /// Reads the next line, with its line break, and returns what `parse` makes of it.
    ///
    /// A line that is too long or cannot be parsed is an error, and the line after it follows. After an error that
    /// keeps the rest of the block from being read, the next block follows.
    fn next_with<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, DataProblem>,
    ) -> Option<Result<T, ItemError>> {
        let found = self.read_line().map_err(ItemError::Rest).transpose()?;
        Some(found.and_then(|line| {
            let max = self.stream.max_line_bytes;
            let parsed =
                if line.len > max { Err(too_long(line.len, max)) } else { parse(&self.line[line.skipped..]) };
            parsed.map_err(|problem| {
                let location = self.stream.files.get(line.file).location;
                ItemError::Sample(DataError::new(location, problem).at(Position::Offset(line.start)))
            })
        }))
    }

    /// Reads the next line that is a sample into `self.line`.
    fn read_line(&mut self) -> Result<Option<FoundLine>> {
        loop {
            let Some(open) = &mut self.open else {
                if self.block >= self.stream.blocks.len() {
                    return Ok(None);
                }
                let ahead = self.ahead.take(self.block);
                let opened = self.stream.open_block(self.block, None, ahead, &self.memory);
                self.open = Some(opened.inspect_err(|_| self.block += self.step)?);
                continue;
            };
            let start = open.reader.position();
            // The byte order mark does not count.
            let (max, mark) = (self.stream.max_line_bytes, BYTE_ORDER_MARK.len() as u64);
            let max = if start == 0 { max.saturating_add(mark) } else { max };
            let read = if start < open.end { open.reader.read_line(&mut self.line, max) } else { Ok(0) };
            let (file, has_header) = (open.block.file, open.has_header);
            if matches!(read, Ok(1..)) {
                // After the request for the first line of the open block.
                let next = self.block + self.step;
                self.ahead.begin(next, || self.stream.begin_block(next, &self.memory));
            } else {
                self.open = None;
                self.block += self.step;
            }
            let len = match read {
                Ok(0) => continue,
                Ok(len) => len,
                Err(error) => return Err(read_error(&*self.stream.files.open(file)?, start, error)),
            };
            let skipped = if start == 0 && self.line.starts_with(BYTE_ORDER_MARK) { mark } else { 0 };
            let is_only_mark = len == skipped;
            let is_blank = len <= max && self.stream.rules.is_skipped(&self.line[skipped as usize..]);
            if is_only_mark || is_blank {
                continue;
            }
            match &mut self.open {
                Some(open) if has_header => open.has_header = false,
                _ => {
                    return Ok(Some(FoundLine {
                        file,
                        start,
                        len: len - skipped,
                        skipped: skipped as usize,
                    }));
                }
            }
        }
    }
}

/// Reads the first line of file `file` that is not skipped; `None` if there is none.
///
/// # Errors
/// Returns an error if the file cannot be read, or the line has more than `max` bytes.
pub(crate) fn first_line(files: &Files, file: usize, rules: LineRules, max: u64) -> Result<Option<Vec<u8>>> {
    let blob = files.open(file)?;
    let input = blob.reader(0..blob.len());
    let mut reader = match Compression::of(&blob.file().location) {
        Some(compression) => decompressed(compression, input, rules),
        None => LineReader::new(input, 0, rules.quotes()),
    };
    let mut line = Vec::new();
    loop {
        let start = reader.position();
        let len = reader.read_line(&mut line, max).map_err(|error| read_error(&blob, start, error))?;
        if len > max {
            return Err(blob.error(start, too_long(len, max)));
        }
        let mark = if start == 0 && line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        match &line[mark..] {
            _ if len == 0 => return Ok(None),
            [] => {}
            found if rules.is_skipped(found) => {}
            found => return Ok(Some(found.to_vec())),
        }
    }
}

/// Returns a reader of the lines of a compressed file, which `input` reads.
fn decompressed(compression: Compression, input: BlobReader, rules: LineRules) -> LineReader {
    LineReader::new(BufReader::with_capacity(CHUNK, compression.reader(input)), 0, rules.quotes())
}

/// A line that was read.
struct FoundLine {
    file: usize,
    /// Offset in the file.
    start: u64,
    /// Number of bytes, with the line break.
    len: u64,
    /// Number of bytes of the byte order mark before it.
    skipped: usize,
}

/// Returns the error of reading at `position`, which is counted after decompression.
fn read_error(blob: &Blob, position: u64, error: io::Error) -> DataError {
    match Compression::of(&blob.file().location) {
        Some(compression) => blob.error(position, problem(compression.name(), error)),
        None => blob.read_error(position, error),
    }
}
