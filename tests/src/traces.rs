//! What a process has before and after: nothing of a loader may be left.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use loader_core::prelude::*;

use crate::{datasets::Noise, processes};

/// How long what ends by itself, such as a thread that is told to, may take.
const SETTLE: Duration = Duration::from_secs(3);

/// What a process had before. Only sound where no other test runs in it.
#[derive(Debug)]
pub struct Before(Traces);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Traces {
    /// Number and target of each open descriptor.
    descriptors: BTreeSet<String>,
    /// Mapped memfds, and files of `/dev/shm`.
    mappings: usize,
    threads: usize,
    /// Zombies too.
    children: Vec<u32>,
    /// What is in this process's folder for temporary files.
    temporary: BTreeSet<String>,
}

impl Before {
    /// Notes what there is, after a first epoch: some things are made once, and stay for the life of the process.
    ///
    /// # Panics
    /// When that epoch fails.
    pub fn take() -> Self {
        let loader = DataLoader::builder(Noise { count: 2 }).num_workers(1).build().expect("good options");
        assert_eq!(loader.iter().expect("workers start").filter(Result::is_ok).count(), 2);
        drop(loader);
        Self::now()
    }

    /// Notes what there is, without an epoch.
    pub fn now() -> Self {
        Self(Traces::see())
    }

    /// # Panics
    /// When there is more now than there was.
    pub fn assert_nothing_left(&self) {
        let deadline = Instant::now() + SETTLE;
        loop {
            let after = Traces::see();
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
    fn see() -> Self {
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

/// What is in a folder.
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
