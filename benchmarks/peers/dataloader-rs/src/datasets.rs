//! The datasets, written as a user of the library would write them, and the collators that copy their samples
//! into one contiguous batch.

use std::{fs::File, marker::PhantomData, path::Path, sync::Arc, thread, time::Duration};

use anyhow::Context;
use dataloader_rs::{Collator, Dataset, error::Result};
use memmap2::Mmap;

/// Number of tokens in a sample.
pub(crate) const TOKENS: usize = 2048;
const TABLE_ROWS: usize = 262_144;
const TABLE_COLUMNS: usize = 1024;

/// Each sample is its index.
pub(crate) struct Integers(pub(crate) usize);

impl Dataset for Integers {
    type Item = i64;

    fn get(&self, index: usize) -> Result<i64> {
        Ok(index as i64)
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Returns the same sample for every index, so that loading costs only the copy into the batch.
pub(crate) struct Repeated<T> {
    pub(crate) count: usize,
    pub(crate) sample: Arc<[T]>,
}

impl<T: Send + Sync + 'static> Dataset for Repeated<T> {
    type Item = Arc<[T]>;

    fn get(&self, _index: usize) -> Result<Arc<[T]>> {
        Ok(Arc::clone(&self.sample))
    }

    fn len(&self) -> usize {
        self.count
    }
}

/// A list of file names. A sample is the length of a name.
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn new(count: usize) -> Self {
        let name = |number| format!("train/class-{:04}/image-{number:08}.jpeg", number % 1000);
        Self((0..count).map(name).collect())
    }
}

impl Dataset for Names {
    type Item = i64;

    fn get(&self, index: usize) -> Result<i64> {
        Ok(self.0[index].len() as i64)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The rows of one large table in memory.
pub(crate) struct Rows(Arc<[f32]>);

impl Rows {
    pub(crate) fn new() -> Self {
        Self((0..TABLE_ROWS * TABLE_COLUMNS).map(|position| (position % (1 << 20)) as f32).collect())
    }
}

/// A view of one row.
pub(crate) struct Row {
    table: Arc<[f32]>,
    index: usize,
}

impl AsRef<[f32]> for Row {
    fn as_ref(&self) -> &[f32] {
        &self.table[self.index * TABLE_COLUMNS..][..TABLE_COLUMNS]
    }
}

impl Dataset for Rows {
    type Item = Row;

    fn get(&self, index: usize) -> Result<Row> {
        Ok(Row { table: Arc::clone(&self.0), index })
    }

    fn len(&self) -> usize {
        TABLE_ROWS
    }
}

/// Sequences of tokens in a file of `u16` that is mapped into memory.
#[derive(Clone)]
pub(crate) struct Tokens {
    tokens: Arc<Mmap>,
    count: usize,
}

impl Tokens {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        // SAFETY: no process writes to the benchmark's file while it is mapped.
        let tokens = Arc::new(unsafe { Mmap::map(&file) }?);
        let count = tokens.len() / 2 / TOKENS;
        Ok(Self { tokens, count })
    }

    /// Returns the first `count` samples.
    pub(crate) fn first(&self, count: usize) -> anyhow::Result<Self> {
        anyhow::ensure!(count <= self.count, "the file has {} samples, and {count} are needed", self.count);
        Ok(Self { tokens: Arc::clone(&self.tokens), count })
    }
}

impl Dataset for Tokens {
    type Item = Vec<i64>;

    fn get(&self, index: usize) -> Result<Vec<i64>> {
        let bytes = &self.tokens[index * TOKENS * 2..][..TOKENS * 2];
        Ok(bytes.as_chunks().0.iter().map(|&token| i64::from(u16::from_le_bytes(token))).collect())
    }

    fn len(&self) -> usize {
        self.count
    }
}

/// Each sample is its index. It takes 4 ms; about one in a hundred takes 200 ms.
pub(crate) struct Stragglers(pub(crate) usize);

impl Stragglers {
    pub(crate) fn delay(index: usize) -> Duration {
        let slow = (index as u32).wrapping_mul(2_654_435_761) % 100 == 7;
        Duration::from_millis(if slow { 200 } else { 4 })
    }
}

impl Dataset for Stragglers {
    type Item = i64;

    fn get(&self, index: usize) -> Result<i64> {
        thread::sleep(Self::delay(index));
        Ok(index as i64)
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Copies samples one after the other into one contiguous batch. Of the library's own collators, only the one
/// for `ndarray` makes a contiguous batch, and it needs an owned array per sample, so that it copies
/// everything twice.
pub(crate) struct Concatenate<T>(PhantomData<fn() -> T>);

impl<T> Default for Concatenate<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Copy + Send + 'static, I: AsRef<[T]>> Collator<I> for Concatenate<T> {
    type Batch = Vec<T>;

    fn collate(&self, items: Vec<I>) -> Result<Vec<T>> {
        let mut batch = Vec::with_capacity(items.iter().map(|item| item.as_ref().len()).sum());
        for item in &items {
            batch.extend_from_slice(item.as_ref());
        }
        Ok(batch)
    }
}

/// [`Concatenate`] for pictures with labels.
pub(crate) struct ConcatenateLabelled;

impl Collator<(Vec<f32>, i64)> for ConcatenateLabelled {
    type Batch = (Vec<f32>, Vec<i64>);

    fn collate(&self, items: Vec<(Vec<f32>, i64)>) -> Result<(Vec<f32>, Vec<i64>)> {
        let (pictures, labels): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        Ok((Concatenate::default().collate(pictures)?, labels))
    }
}
