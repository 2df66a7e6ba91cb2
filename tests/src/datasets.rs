//! Datasets for tests, some of which fail on purpose.

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use anyhow::{Context, bail};
use loader_core::prelude::*;
use nix::sys::{
    resource::{Resource, setrlimit},
    signal::{Signal, raise},
};
use rand::RngExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// `(index, three random numbers)`: content that depends on seed, epoch and index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noise {
    /// Number of samples.
    pub count: usize,
}

impl Dataset for Noise {
    type Sample = (u64, [f32; 3], String);

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let noise = [(); 3].map(|()| cx.rng().random_range(0.0f32..1.0));
        Ok((index as u64, noise, format!("sample {index}")))
    }
}

/// A sample of [`Noise`].
pub type NoiseSample = (u64, [f32; 3], String);

/// [`Noise`] that only `get_many` loads. Sample 5 may fail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Many {
    /// Number of samples.
    pub count: usize,
    /// What `get_many` does when it is asked for sample 5.
    pub fault: ManyFault,
}

/// A fault of `get_many`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum ManyFault {
    /// No fault.
    None,
    /// Returns a sample more than it was asked for.
    Surplus,
    /// Returns a sample less than it was asked for.
    Missing,
    /// A fault that [`Faulty`] has too.
    Sample(Fault),
}

/// Makes a [`Many`] without a fault.
pub fn many(count: usize) -> Many {
    Many { count, fault: ManyFault::None }
}

impl Dataset for Many {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        bail!("the loader must call get_many")
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<NoiseSample>> {
        let load = |&index| {
            cx.set_index(index);
            Noise { count: self.count }.get(index, cx)
        };
        let mut samples: Vec<_> = indices.iter().map(load).collect::<Result<_, _>>()?;
        if indices.contains(&5) {
            match self.fault {
                ManyFault::None => {}
                ManyFault::Surplus => samples.push(samples[0].clone()),
                ManyFault::Missing => drop(samples.pop()),
                ManyFault::Sample(fault) => fault.happen(5)?,
            }
        }
        Ok(samples)
    }
}

/// Samples of `bytes` bytes, each byte the sample's index.
#[derive(Debug, Serialize, Deserialize)]
pub struct Large {
    /// Number of samples.
    pub count: usize,
    /// Bytes per sample.
    pub bytes: usize,
}

impl Dataset for Large {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        Ok(vec![index as u8; self.bytes])
    }
}

/// Numbers that are slow to load.
#[derive(Debug, Serialize, Deserialize)]
pub struct Slow {
    /// Number of samples.
    pub count: usize,
    /// Time per sample.
    pub delay: Duration,
}

impl Dataset for Slow {
    type Sample = u64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        thread::sleep(self.delay);
        Ok(index as u64)
    }
}

/// Samples of which the first is slow to load.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlowFirst {
    /// Number of samples.
    pub count: usize,
    /// Time for the first sample.
    pub delay: Duration,
    /// Length of a sample; each of its numbers is its index.
    pub numbers: usize,
}

impl Dataset for SlowFirst {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        if index == 0 {
            thread::sleep(self.delay);
        }
        Ok(vec![index as u64; self.numbers])
    }
}

/// Numbers in shards: sample `n` is in shard `n` modulo the number of shards, with noise from the shard's
/// generator.
#[derive(Debug, Serialize, Deserialize)]
pub struct Counting {
    /// Number of samples.
    pub count: u64,
}

impl IterableDataset for Counting {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        Ok(shard.of(0..self.count).map(|number| Ok((number, cx.rng().random()))))
    }

    fn len(&self) -> Option<usize> {
        usize::try_from(self.count).ok()
    }
}

/// Samples `(number, length of the hoard)` in one shard. The iterator hoards bytes, and its snapshot contains
/// them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hoard {
    /// Number of samples.
    pub count: u64,
    /// Bytes that each sample adds.
    pub bytes: usize,
    /// Every sample whose number plus one is a multiple of this empties the hoard instead.
    pub emptied_every: u64,
}

struct HoardIter {
    dataset: Hoard,
    next: u64,
    bytes: Vec<u8>,
}

impl Iterator for HoardIter {
    type Item = anyhow::Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        self.next += 1;
        if self.next.is_multiple_of(self.dataset.emptied_every) {
            self.bytes.clear();
        } else {
            self.bytes.resize(self.bytes.len() + self.dataset.bytes, number as u8);
        }
        (number < self.dataset.count).then_some(Ok((number, self.bytes.len() as u64)))
    }
}

impl SnapshotIterator for HoardIter {
    type Snapshot = (u64, Vec<u8>);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.next, self.bytes.clone()))
    }
}

impl IterableDataset for Hoard {
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Hoard {
    type Snapshot = (u64, Vec<u8>);

    fn iter_from(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = Self::Snapshot> + Send,
    > {
        let (next, bytes) = snapshot.unwrap_or_default();
        Ok(HoardIter { dataset: self.clone(), next, bytes })
    }
}

/// A map-style dataset as an iterable dataset: shard `n` has every sample whose index is `n` modulo the
/// number of shards.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AsStream<D>(pub D);

impl<D: Dataset> IterableDataset for AsStream<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(shard.of(0..self.0.len() as u64).map(|index| self.0.get(index as usize, cx)))
    }
}

/// Shards of given sizes. Sample `p` of shard `s` is the number `100 * s + p`. One sample may fail, or shard
/// 1 cannot be opened.
#[derive(Debug, Serialize, Deserialize)]
pub struct Uneven {
    /// Samples in each shard.
    pub sizes: Vec<u64>,
    /// The number of the sample that fails. For `u64::MAX`, shard 1 cannot be opened.
    pub at: Option<u64>,
    /// How the sample fails.
    pub fault: Fault,
}

impl IterableDataset for Uneven {
    type Sample = Vec<u64>;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Vec<u64>>> + Send> {
        if self.at == Some(u64::MAX) && shard.index() == 1 {
            bail_with_cause(shard.index())?;
        }
        let first = 100 * shard.index() as u64;
        Ok((first..first + self.sizes[shard.index()]).map(move |number| {
            if self.at == Some(number) {
                self.fault.happen(number as usize)?;
                if let Fault::Ragged = self.fault {
                    return Ok(vec![0, 0]);
                }
            }
            Ok(vec![number])
        }))
    }
}

/// Squares, with snapshots. Each iterator counts the samples that it has read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Squares {
    /// Number of samples.
    pub count: u64,
}

/// Iterator of [`Squares`].
#[derive(Debug)]
pub struct SquaresIter {
    next: u64,
    end: u64,
    step: u64,
    read: u64,
}

impl Iterator for SquaresIter {
    type Item = anyhow::Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        if number >= self.end {
            return None;
        }
        self.next += self.step;
        self.read += 1;
        Some(Ok((number * number, self.read)))
    }
}

impl SnapshotIterator for SquaresIter {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.next)
    }
}

impl IterableDataset for Squares {
    /// The square, and the number of samples that its iterator has read.
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Squares {
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = u64> + Send> {
        let next = snapshot.unwrap_or(shard.index() as u64);
        Ok(SquaresIter { next, end: self.count, step: shard.count() as u64, read: 0 })
    }
}

/// How a sample fails.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Fault {
    /// An error with a cause.
    Error,
    /// A panic.
    Panic,
    /// A sample of another shape.
    Ragged,
    /// The process aborts.
    Abort,
    /// The process exits with this code.
    Exit(i32),
    /// The process sends SIGKILL to itself.
    Kill,
    /// The process sends this signal to itself, which ends it.
    Signal(i32),
    /// The stack overflows.
    StackOverflow,
    /// A destructor panics while a panic unwinds.
    PanicTwice,
    /// An `extern "C"` function panics.
    PanicInC,
    /// The process closes descriptors 3 to 255, some of which are the loader's.
    CloseDescriptors,
    /// The process uses 1 GiB of memory.
    UseMemory,
    /// The process limits its address space, and an allocation fails.
    FailToAllocate,
    /// Loading never ends.
    Hang,
    /// Loading never ends, and every signal is blocked.
    HangHard,
    /// The process stops (SIGSTOP).
    Stop,
    /// The process prints lines to standard error and never ends.
    PrintForever,
}

/// Samples of which one fails.
#[derive(Debug, Serialize, Deserialize)]
pub struct Faulty {
    /// Number of samples.
    pub count: usize,
    /// Index of the sample that fails.
    pub at: usize,
    /// How it fails.
    pub fault: Fault,
}

impl Dataset for Faulty {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        let good = vec![index as u64];
        if index != self.at {
            return Ok(good);
        }
        match self.fault {
            Fault::Ragged => return Ok(vec![0, 0]),
            fault => fault.happen(index)?,
        }
        Ok(good)
    }
}

/// [`Noise`], but a sample fails as often as it has files in the folder `lives`. Each failure removes a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mortal {
    /// Number of samples.
    pub count: usize,
    /// How samples fail.
    pub fault: Fault,
    /// The folder; see [`put_lives`].
    pub lives: PathBuf,
}

/// Makes each sample fail the given number of times, by files in the folder `lives`.
///
/// # Panics
/// Panics if a file cannot be written.
pub fn put_lives(lives: &Path, samples: &[(usize, u32)]) {
    for &(index, times) in samples {
        (0..times).for_each(|life| fs::write(lives.join(format!("{index}-{life}")), "").expect("a folder"));
    }
}

/// Removes a file of sample `index`, and returns false if there is none.
pub fn take_life(lives: &Path, index: usize) -> bool {
    let file = |life| lives.join(format!("{index}-{life}"));
    let left = (0..).take_while(|&life| file(life).exists()).count();
    // Of several processes, only one removes a file.
    (0..left).rev().any(|life| fs::remove_file(file(life)).is_ok())
}

impl Dataset for Mortal {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        if take_life(&self.lives, index) {
            self.fault.happen(index)?;
        }
        Noise { count: self.count }.get(index, cx)
    }
}

impl IterableDataset for Mortal {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Mortal {
    type Snapshot = usize;

    fn iter_from(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<usize>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = usize> + Send> {
        let (next, step) = (snapshot.unwrap_or(shard.index()), shard.count());
        Ok(MortalShard { dataset: self, next, step })
    }
}

/// Iterator of a shard of [`Mortal`].
struct MortalShard<'a> {
    dataset: &'a Mortal,
    next: usize,
    step: usize,
}

impl Iterator for MortalShard<'_> {
    type Item = anyhow::Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index >= self.dataset.count {
            return None;
        }
        self.next += self.step;
        if take_life(&self.dataset.lives, index)
            && let Err(error) = self.dataset.fault.happen(index)
        {
            return Some(Err(error));
        }
        Some(Ok(index as u64))
    }
}

impl SnapshotIterator for MortalShard<'_> {
    type Snapshot = usize;

    fn snapshot(&self) -> anyhow::Result<usize> {
        Ok(self.next)
    }
}

impl Fault {
    /// Makes it happen to sample `index`.
    ///
    /// # Errors
    /// Returns an error with a cause for `Error`.
    ///
    /// # Panics
    /// Panics for `Panic`.
    pub fn happen(self, index: usize) -> anyhow::Result<()> {
        match self {
            Self::Ragged => {}
            Self::Error => bail_with_cause(index)?,
            Self::Panic => panic!("sample {index} panics"),
            Self::Abort => process::abort(),
            Self::Exit(code) => process::exit(code),
            Self::Kill => drop(raise(Signal::SIGKILL)),
            // Rust's handler ignores the first SIGSEGV.
            Self::Signal(signal) => (0..2).for_each(|_| _ = raise(Signal::try_from(signal).unwrap())),
            Self::StackOverflow => drop(black_box(overflow(0))),
            Self::PanicTwice => {
                let _second = PanicsWhenDropped;
                panic!("the first panic");
            }
            Self::PanicInC => panic_in_c(),
            Self::CloseDescriptors => (3..256).for_each(|number: i32| _ = nix::unistd::close(number)),
            Self::UseMemory => drop(black_box(vec![1u8; 1 << 30])),
            Self::FailToAllocate => {
                setrlimit(Resource::RLIMIT_AS, 1 << 28, 1 << 28)?;
                drop(black_box(vec![1u8; 1 << 30]));
            }
            Self::Hang => loop {
                thread::sleep(Duration::from_secs(1));
            },
            Self::HangHard => {
                nix::sys::signal::SigSet::all().thread_block()?;
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            }
            Self::Stop => drop(raise(Signal::SIGSTOP)),
            Self::PrintForever => loop {
                eprintln!("{}", "on and on ".repeat(20));
            },
        }
        Ok(())
    }
}

fn bail_with_cause(index: usize) -> anyhow::Result<()> {
    Err(anyhow::anyhow!("the disk is on fire")).with_context(|| format!("reading record {index}"))
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the panic in a destructor");
    }
}

extern "C" fn panic_in_c() {
    panic!("the panic in a C function");
}

#[expect(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let space = black_box([depth; 64]);
    overflow(depth + 1) + space[0]
}

/// The numbers below the field's value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Count(pub usize);

impl Dataset for Count {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

/// Shards of given sizes. Sample `n` of the shards, one after the other, is the number `n`. PyTorch's tests
/// call it `WorkerSpecificIterableDataset`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shards {
    /// Number of samples of each shard.
    pub sizes: Vec<u64>,
    /// Length that the dataset states, which may be wrong.
    pub stated_len: Option<usize>,
}

impl Shards {
    /// Makes one shard for each size; the dataset states no length.
    pub fn of(sizes: &[u64]) -> Self {
        Self { sizes: sizes.to_vec(), stated_len: None }
    }
}

impl IterableDataset for Shards {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        let first: u64 = self.sizes[..shard.index()].iter().sum();
        Ok((first..first + self.sizes[shard.index()]).map(Ok))
    }

    fn len(&self) -> Option<usize> {
        self.stated_len
    }
}

/// Returns the samples that it is given.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Given<S: Serialize + DeserializeOwned>(pub Vec<S>);

impl<S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Dataset for Given<S> {
    type Sample = S;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<S> {
        Ok(self.0[index].clone())
    }
}
