//! Checks that a loader leaves nothing in its process.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use loader_core::prelude::*;

use crate::{datasets::Noise, processes};

/// Maximum time for threads and other things that end asynchronously.
const SETTLE: Duration = Duration::from_secs(3);

/// What a process had before a test. No other test may run in the process.
#[derive(Debug)]
pub struct Before(Traces);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Traces {
    /// Each open descriptor as `NUMBER -> TARGET`.
    descriptors: BTreeSet<String>,
    /// Number of mappings of memory files, those in `/dev/shm` too.
    mappings: usize,
    threads: usize,
    /// Child processes, zombies too.
    children: Vec<u32>,
    /// The files in this process's folder for temporary files.
    temporary: BTreeSet<String>,
}

impl Before {
    /// Records what there is after a first epoch, because some things are made once and kept for the life of
    /// the process.
    ///
    /// # Panics
    /// Panics if that epoch fails.
    pub fn take() -> Self {
        let loader = DataLoader::builder(Noise { count: 2 }).num_workers(1).build().expect("good options");
        assert_eq!(loader.iter().expect("workers start").filter(Result::is_ok).count(), 2);
        drop(loader);
        Self::now()
    }

    /// Records what there is, without a first epoch.
    pub fn now() -> Self {
        Self(Traces::take())
    }

    /// Waits until there is no more than there was.
    ///
    /// # Panics
    /// Panics if there still is after 3 s.
    pub fn assert_nothing_left(&self) {
        let deadline = Instant::now() + SETTLE;
        loop {
            let after = Traces::take();
            if after.is_within(&self.0) {
                return;
            }
            if Instant::now() >= deadline {
                let new: Vec<_> = after.descriptors.difference(&self.0.descriptors).collect();
                panic!("something is left: descriptors {new:?}\nbefore {:?}\nafter  {after:?}", self.0);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Traces {
    fn take() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        let is_shared = |line: &&str| line.contains("/memfd:") || line.contains("/dev/shm/");
        Self {
            descriptors: links("/proc/self/fd"),
            mappings: maps.lines().filter(is_shared).count(),
            threads: names("/proc/self/task").len(),
            children: processes::children(std::process::id()),
            temporary: files(&std::env::temp_dir()),
        }
    }

    fn is_within(&self, before: &Self) -> bool {
        self.descriptors.len() <= before.descriptors.len()
            && self.mappings <= before.mappings
            && self.threads <= before.threads
            && self.children.iter().all(|child| before.children.contains(child))
            && self.temporary.is_subset(&before.temporary)
    }
}

/// Returns the names of the files in a folder.
pub fn files(folder: &Path) -> BTreeSet<String> {
    names(folder)
}

fn names(folder: impl AsRef<Path>) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn links(folder: &str) -> BTreeSet<String> {
    let target = |number: &String| fs::read_link(format!("{folder}/{number}")).unwrap_or_default();
    names(folder).into_iter().map(|number| format!("{number} -> {}", target(&number).display())).collect()
}
