//! Gates: a slow sample waits at a gate until the test opens the gate.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use loader_core::prelude::*;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// A file that one process waits for and another one creates. With a gate, a test of slow samples does not
/// depend on the speed of the machine.
#[derive(Debug)]
pub struct Gate {
    folder: TempDir,
}

impl Gate {
    /// Makes a closed gate.
    ///
    /// # Panics
    /// Panics if no temporary folder can be made.
    pub fn closed() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the gate") }
    }

    /// Returns the path for [`wait_at`], which a dataset carries to a worker.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("open")
    }

    /// Opens the gate.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn open(&self) {
        fs::write(self.path(), "").expect("the gate opens");
    }
}

/// Waits until the gate at `path` is open.
pub fn wait_at(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Samples `(number, worker)`, of which one waits at a gate.
#[derive(Debug, Serialize, Deserialize)]
pub struct Gated {
    /// Number of samples.
    pub count: u64,
    /// The sample that waits.
    pub slow: u64,
    /// Path of the gate.
    pub gate: PathBuf,
}

impl Gated {
    fn sample(&self, number: u64, cx: &SampleContext) -> (u64, u64) {
        if number == self.slow {
            wait_at(&self.gate);
        }
        (number, cx.worker().map_or(u64::MAX, |worker| worker.id() as u64))
    }
}

impl Dataset for Gated {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.count as usize
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        Ok(self.sample(index as u64, cx))
    }
}

/// The same samples as an iterable dataset, whose shards are consecutive parts of equal size.
#[derive(Debug, Serialize, Deserialize)]
pub struct GatedStream(pub Gated);

impl IterableDataset for GatedStream {
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        let size = self.0.count / shard.count() as u64;
        let first = size * shard.index() as u64;
        Ok((first..first + size).map(|number| Ok(self.0.sample(number, cx))))
    }
}
