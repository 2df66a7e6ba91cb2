//! What a worker would inherit from main if main had started it, and a template must be told.

use std::fs;

use nix::sys::stat::{Mode, umask};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// The umask and the resource limits of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// `None` if it cannot be read.
    umask: Option<u32>,
    /// The soft and the hard limit of each of [`RESOURCES`].
    resources: Vec<(Option<u64>, Option<u64>)>,
}

impl Limits {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        // No system call reads the umask without changing it, which other threads would notice.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
        let resources = RESOURCES.map(getrlimit).map(|limit| (limit.current, limit.maximum)).to_vec();
        Self { umask, resources }
    }

    /// Gives them to this process. A limit that the system refuses to change stays as it is.
    pub fn apply(&self) {
        if let Some(mask) = self.umask {
            umask(Mode::from_bits_truncate(mask));
        }
        for (resource, &(current, maximum)) in RESOURCES.into_iter().zip(&self.resources) {
            let _ = setrlimit(resource, Rlimit { current, maximum });
        }
    }
}
