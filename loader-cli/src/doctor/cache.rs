//! The space in the folder of a cache.

use std::path::Path;

use loader_core::internal::own_files::{self, NotOwn};
use nix::sys::statvfs::statvfs;

use super::report::{Check, Status, bytes};

/// A cache with less space is worth a warning.
const LITTLE_SPACE: u64 = 1 << 30;

pub(super) fn check(folder: &Path) -> Check {
    const NAME: &str = "cache";
    // The cache makes the folder.
    if let Err(error) = own_files::check_folder(folder)
        && NotOwn::is_in(&error)
    {
        return Check::new(NAME, Status::Error, error.to_string(), "the cache cannot be used");
    }
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    match statvfs(existing) {
        Ok(system) => {
            #[allow(clippy::useless_conversion, reason = "the types depend on the architecture")]
            let free = u64::from(system.blocks_available()) * u64::from(system.fragment_size());
            let found = format!("{} are free in {}", bytes(free), folder.display());
            if free < LITTLE_SPACE {
                Check::new(NAME, Status::Warning, found, "a full cache keeps no more samples")
                    .advice("use a folder on a larger disk, or free space")
            } else {
                Check::new(NAME, Status::Ok, found, "the cache fills it up to its own limit")
            }
        }
        Err(error) => {
            let found = format!("{}: {error}", folder.display());
            Check::new(NAME, Status::Error, found, "the cache cannot be used").advice("name another folder")
        }
    }
}
