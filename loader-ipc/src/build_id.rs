//! Identifies a build of a program or shared library. Main sends addresses of functions only to processes of
//! the same build.

use std::{fmt, os::unix::fs::MetadataExt, sync::OnceLock};

use serde::{Deserialize, Serialize};

use crate::sys::LoadedObject;

/// Identity of a build of a program or shared library. Equal ids mean the same machine code at the same
/// offsets, unless two builds were linked with the same fixed build id and have segments of the same sizes.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// Returns the id of the loaded object that contains this crate's code: the linker's build id and the
    /// layout of the segments, because a build id can be set by hand. For a program without build id, returns
    /// the identity of its file (device, inode, size, modification time). For a library without build id,
    /// returns `None`, because its file may have been replaced since it was loaded.
    pub fn of_this_code() -> Option<&'static Self> {
        static ID: OnceLock<Option<BuildId>> = OnceLock::new();
        let find = || match LoadedObject::containing(anchor_address()) {
            Some(object) => match object.build_id() {
                Some(id) => Some([id, &object.layout().to_le_bytes()].concat()),
                None if object.is_program() => identity_of_program(),
                None => None,
            },
            None => None,
        };
        ID.get_or_init(|| find().map(Self)).as_ref()
    }
}

/// Returns the anchor: an address in the loaded object that contains this crate's code.
pub(crate) fn anchor_address() -> usize {
    anchor as fn() as usize
}

#[inline(never)]
fn anchor() {
    std::hint::black_box(());
}

/// Reads `/proc/self/exe`, which is the running file even after it was replaced on disk.
fn identity_of_program() -> Option<Vec<u8>> {
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
    fn a_program_has_a_build_id() {
        let id = BuildId::of_this_code().unwrap();
        assert!(!id.0.is_empty());
        assert_eq!(id.to_string().len(), 2 * id.0.len());
    }
}
