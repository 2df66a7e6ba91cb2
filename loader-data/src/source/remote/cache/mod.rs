//! A folder with blocks of remote files, which all processes of a machine share.
//!
//! | file | content |
//! |---|---|
//! | `<hash>.block` | a block: see `entry.rs`. It appears whole, by a rename, and is never changed |
//! | `<hash>.<process>-<number>.tmp` | a block while it is written. Its writer holds a lock on it |
//! | `locks/<00..ff>` | its lock is held while a block whose hash begins so is fetched |
//! | `locks/room` | its lock is held while blocks are removed to make room |
//!
//! All locks are `flock`s, which the kernel releases when a process ends. A block that is removed while
//! another process reads it stays readable for that process. If the folder cannot be used, reads go to the
//! server.

mod entry;
mod room;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    ops::Range,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use loader_core::internal::own_files::{self, NotOwn};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::Xxh3;

use self::entry::Key;
use super::{
    object::{Object, PARALLEL},
    ranges::PIECE as BLOCK,
};
use crate::{error::DataProblem, source::CacheOptions};

/// A block that is read marks itself as used if it was not so for this long.
const USED_AFTER: Duration = Duration::from_secs(1);

/// The folder.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    max_bytes: u64,
    /// Number of bytes that this process may write before it looks how full the folder is.
    room: Mutex<u64>,
    /// True once it was said that the folder cannot be used.
    warned: AtomicBool,
}

/// Parts of one block, each with the number of the range that it is a part of.
type Parts = Vec<(usize, Range<u64>)>;

/// The parts of ranges that were read, by range and block.
type FoundBlocks = BTreeMap<(usize, u64), Bytes>;

/// The lock of a block.
enum Lock {
    /// Held until it is dropped. Without a file, the folder cannot be locked.
    Held(#[allow(dead_code, reason = "dropping the file releases the lock")] Option<File>),
    /// Another process, or another thread, holds it.
    Busy,
}

impl Cache {
    pub(super) fn new(options: &CacheOptions) -> Result<Self, DataProblem> {
        if options.max_bytes < BLOCK {
            let text =
                format!("the cache's `max_bytes` is {}, below one block of {BLOCK} bytes", options.max_bytes);
            return Err(DataProblem::Store(text));
        }
        let cache = Self {
            folder: options.folder.clone(),
            max_bytes: options.max_bytes,
            room: Mutex::new(0),
            warned: AtomicBool::new(false),
        };
        match cache.make_folders() {
            Err(error) if NotOwn::is_in(&error) => {
                return Err(DataProblem::Store(format!("the cache cannot be used: {error}")));
            }
            made => made.unwrap_or_else(|error| cache.warn(&error)),
        }
        Ok(cache)
    }

    /// Makes the folders, and checks that no other user can change what is in them.
    fn make_folders(&self) -> io::Result<()> {
        for folder in [self.folder.clone(), self.folder.join("locks")] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
            own_files::check_folder(&folder)?;
        }
        Ok(())
    }

    /// True if the folder has all blocks of the ranges of `object`. They may still be damaged, or be removed before they
    /// are read.
    pub(super) fn has(&self, object: &Object, wanted: &[Range<u64>]) -> bool {
        let wanted = wanted.iter().filter(|range| range.start < range.end);
        let blocks = wanted.flat_map(|range| range.start / BLOCK..range.end.div_ceil(BLOCK));
        let blocks: BTreeSet<_> = blocks.collect();
        blocks.into_iter().all(|block| self.path(self.key(object, block)).exists())
    }

    /// Returns the bytes of each range of `object`.
    pub(super) fn read(&self, object: &Object, wanted: &[Range<u64>]) -> Result<Vec<Bytes>, DataProblem> {
        let mut missing: BTreeMap<u64, Parts> = BTreeMap::new();
        for (number, range) in wanted.iter().enumerate().filter(|(_, range)| range.start < range.end) {
            for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
                let start = block * BLOCK;
                let part = range.start.max(start) - start..range.end.min(start + BLOCK) - start;
                missing.entry(block).or_default().push((number, part));
            }
        }
        let mut found = FoundBlocks::new();
        missing.retain(|block, parts| !self.look_up(object, *block, parts, &mut found));
        let mut deadline = Instant::now() + object.limits.timeout;
        while !missing.is_empty() {
            let asked = Instant::now();
            // This comes before it locks blocks, which others may need.
            let turn = object.turn(missing.len().min(PARALLEL))?;
            // Only the time that others need to fetch the blocks counts.
            deadline += asked.elapsed();
            let wait = Instant::now() < deadline;
            let any = self.fetch_some(object, &mut missing, &mut found, turn.requests, wait)?;
            drop(turn);
            if !any {
                // Other processes fetch all of them.
                thread::sleep(Duration::from_millis(5));
                missing.retain(|block, parts| !self.look_up(object, *block, parts, &mut found));
            }
        }
        Ok((0..wanted.len()).map(|number| joined(&found, number)).collect())
    }

    /// Fetches up to `max` missing blocks that no other process fetches. Without `wait`, it also fetches these.
    /// Returns false if there are none.
    fn fetch_some(
        &self,
        object: &Object,
        missing: &mut BTreeMap<u64, Parts>,
        found: &mut FoundBlocks,
        max: usize,
        wait: bool,
    ) -> Result<bool, DataProblem> {
        let mut locks: BTreeMap<u8, Lock> = BTreeMap::new();
        let mut chosen = Vec::new();
        for block in missing.keys().copied() {
            if chosen.len() == max {
                break;
            }
            let first = self.key(object, block).lock();
            let lock = locks.entry(first).or_insert_with(|| self.lock(first));
            if matches!(lock, Lock::Held(_)) || !wait {
                chosen.push(block);
            }
        }
        let any = !chosen.is_empty();
        // Another process may have fetched them before this one got the locks.
        chosen.retain(|block| {
            let arrived = self.look_up(object, *block, &missing[block], found);
            if arrived {
                missing.remove(block);
            }
            !arrived
        });
        let ranges = chosen.iter().map(|block| block_range(object, *block)).collect();
        for (block, content) in chosen.iter().zip(object.fetch(ranges)?) {
            self.store(self.key(object, *block), &content);
            for (number, part) in missing.remove(block).into_iter().flatten() {
                // A copy, so that a few bytes do not keep the whole block in memory.
                let part = Bytes::copy_from_slice(&content[part.start as usize..part.end as usize]);
                found.insert((number, *block), part);
            }
        }
        Ok(any)
    }

    /// Adds the parts of a block to `found`. Returns false if the block is not there or is damaged.
    fn look_up(&self, object: &Object, block: u64, parts: &Parts, found: &mut FoundBlocks) -> bool {
        let key = self.key(object, block);
        let opened = own_files::open(&self.path(key), OpenOptions::new().read(true), None);
        let Ok(file) = opened else { return false };
        let ranges: Vec<_> = parts.iter().map(|(_, part)| part.clone()).collect();
        let range = block_range(object, block);
        let Ok(Some(read)) = entry::read(&file, key, range.end - range.start, &ranges) else { return false };
        let now = SystemTime::now();
        let used = file.metadata().and_then(|metadata| metadata.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|passed| passed > USED_AFTER)) {
            // In a read-only folder the order of use is not known.
            drop(file.set_modified(now));
        }
        found.extend(parts.iter().zip(read).map(|((number, _), bytes)| ((*number, block), bytes)));
        true
    }

    fn key(&self, object: &Object, block: u64) -> Key {
        let mut hash = Xxh3::new();
        for text in [&*object.identity, &object.file.version] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&object.file.len.to_le_bytes());
        hash.update(&block.to_le_bytes());
        Key(hash.digest128())
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{:032x}.block", key.0))
    }

    fn lock(&self, first: u8) -> Lock {
        let path = self.folder.join("locks").join(format!("{first:02x}"));
        let locked = try_lock(&path);
        match locked {
            Ok(Some(file)) => Lock::Held(Some(file)),
            Ok(None) => Lock::Busy,
            Err(error) => {
                self.warn(&error);
                Lock::Held(None)
            }
        }
    }

    /// Keeps a block. A block that cannot be kept is only fetched again.
    fn store(&self, key: Key, content: &[u8]) {
        if let Err(error) = self.make_room(content.len() as u64).and_then(|()| self.write(key, content)) {
            self.warn(&error);
        }
    }

    fn write(&self, key: Key, content: &[u8]) -> io::Result<()> {
        // Ordering: only the numbers matter, which differ in any order.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("{:032x}.{}-{number}.tmp", key.0, std::process::id());
        let path = self.folder.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = (|| {
            // A file whose lock is free is removed: its writer has died.
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.write_all(content)?;
            file.write_all(&entry::trailer(key, content))?;
            fs::rename(&path, self.path(key))
        })();
        if written.is_err() {
            drop(fs::remove_file(&path));
        }
        written
    }

    /// Says once per process that the folder cannot be used.
    fn warn(&self, error: &io::Error) {
        // Ordering: it protects no other data.
        if !self.warned.swap(true, Ordering::Relaxed) {
            let folder = self.folder.display();
            tracing::warn!(
                "the cache {folder} cannot be used ({error}); what it lacks is read from the server"
            );
        }
    }
}

impl Key {
    /// Number of the block's lock.
    fn lock(self) -> u8 {
        (self.0 >> 120) as u8
    }
}

/// Opens and locks a file. Returns `None` if another process holds the lock.
fn try_lock(path: &std::path::Path) -> io::Result<Option<File>> {
    let file = own_files::open(path, OpenOptions::new().write(true).create(true), None)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn block_range(object: &Object, block: u64) -> Range<u64> {
    block * BLOCK..object.file.len.min((block + 1) * BLOCK)
}

/// Puts the parts of a range together.
fn joined(found: &FoundBlocks, number: usize) -> Bytes {
    let mut parts = found.range((number, 0)..=(number, u64::MAX)).map(|(_, part)| part);
    match (parts.next(), parts.next()) {
        (None, _) => Bytes::new(),
        (Some(part), None) => part.clone(),
        (Some(first), Some(second)) => {
            let mut whole = BytesMut::from(&first[..]);
            [second].into_iter().chain(parts).for_each(|part| whole.extend_from_slice(part));
            whole.freeze()
        }
    }
}
