//! Removes blocks when the folder is full.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io,
    sync::PoisonError,
};

use loader_core::internal::own_files;
use rustix::fs::{FlockOperation, flock};

use super::{Cache, try_lock};

impl Cache {
    /// Makes room for `len` more bytes. A process looks into the folder only after it has written 1/64 of
    /// what the folder may hold, so that each process may exceed the limit by this much for a short time.
    pub(super) fn make_room(&self, len: u64) -> io::Result<()> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if *room < len {
            let Some(_lock) = try_lock(&self.folder.join("locks/room"))? else {
                // Another process makes room.
                return Ok(());
            };
            self.remove_blocks(len)?;
            *room = self.max_bytes / 64;
        }
        *room = room.saturating_sub(len);
        Ok(())
    }

    /// Removes the blocks that were not read for the longest time, if there is no room for `len` more bytes,
    /// and what processes that have died were writing.
    fn remove_blocks(&self, len: u64) -> io::Result<()> {
        let mut blocks = Vec::new();
        let mut bytes = len;
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            match path.extension().and_then(OsStr::to_str) {
                Some("block") => {
                    // An entry may have been replaced or removed in the meantime.
                    let Ok(metadata) = fs::metadata(&path) else { continue };
                    bytes += metadata.len();
                    blocks.push((metadata.modified()?, path, metadata.len()));
                }
                Some("tmp") => {
                    let opened = own_files::open(&path, OpenOptions::new().read(true), None);
                    let Ok(file) = opened else { continue };
                    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                        drop(fs::remove_file(&path));
                    }
                }
                _ => {}
            }
        }
        if bytes + self.max_bytes / 64 <= self.max_bytes {
            return Ok(());
        }
        blocks.sort();
        for (_, path, len) in blocks {
            if bytes <= self.max_bytes - self.max_bytes / 8 {
                break;
            }
            drop(fs::remove_file(&path));
            bytes -= len;
        }
        Ok(())
    }
}
