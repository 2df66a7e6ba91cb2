//! Which build of which program this is: the guard on sending addresses of functions to another process.

use std::{fmt, fs::File, os::unix::fs::MetadataExt, sync::OnceLock};

use object::{Object, read::ReadCache};
use serde::{Deserialize, Serialize};

/// The identity of a program's build. Equal ids mean the same machine code at the same offsets.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// This program's: the linker's build id, or the file's identity (device, inode, size, time of change) where the linker
    /// wrote none.
    pub fn of_this_program() -> &'static Self {
        static ID: OnceLock<BuildId> = OnceLock::new();
        ID.get_or_init(|| Self(linkers_id().or_else(files_identity).unwrap_or_default()))
    }
}

/// `/proc/self/exe` names the running file even after it was replaced on disk.
fn linkers_id() -> Option<Vec<u8>> {
    let file = File::open("/proc/self/exe").ok()?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).ok()?;
    elf.build_id().ok()?.map(<[u8]>::to_vec)
}

fn files_identity() -> Option<Vec<u8>> {
    let file = std::fs::metadata("/proc/self/exe").ok()?;
    let words = [
        file.dev(),
        file.ino(),
        file.size(),
        file.mtime().cast_unsigned(),
        file.mtime_nsec().cast_unsigned(),
    ];
    Some(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_knows_its_build() {
        let id = BuildId::of_this_program();
        assert!(!id.0.is_empty());
        assert_eq!(id.to_string().len(), 2 * id.0.len());
    }
}
