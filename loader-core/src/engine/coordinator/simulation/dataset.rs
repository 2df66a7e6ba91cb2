//! The simulated dataset: its batches, their sizes, and the samples that fail, hang or crash.

use loader_ipc::frame::Indices;

use crate::{
    data::{fetch::ShardLayout, random::Epoch, sampler::BatchSampler},
    options::{OnBadSample, Order},
    state::{Batching, Origin, Pipeline, Share, SharePolicy},
};

/// What a worker has loaded for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// The samples of a batch: the index of the first sample, and a bit for each sample that was left out.
    Samples { first: u64, left_out: u32 },
    /// Items of a shard.
    Items { shard: u32, from: u64, to: u64 },
}

/// What user code does with a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// User code returns an error.
    Fails,
    /// User code crashes the process.
    Crashes,
    /// User code never returns.
    Hangs,
    /// User code never returns in the first worker that loads the sample.
    HangsOnce,
}

/// Which faults the samples of a dataset have. One sample in `every` has a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleFaults {
    pub(super) kinds: &'static [Fault],
    pub(super) every: u64,
}

/// What the user must get for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// The batch without these samples.
    Batch {
        left_out: u32,
    },
    /// No batch, because every sample is left out.
    Nothing,
    Error,
    /// Any of these: the result depends on which worker is first, or on how much memory is free.
    Any,
}

/// A simulated dataset, and this training process's share of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimulatedDataset {
    pub(super) seed: u64,
    pub(super) rank: u64,
    pub(super) world_size: u64,
    /// Number of batches in the process's share.
    pub(super) batches: u64,
    pub(super) batch_size: u64,
    /// Number of shards in the process's share; 0 for a map-style dataset.
    pub(super) shards: u32,
    /// Maximum size of a batch, in bytes.
    pub(super) max_size: u64,
    /// Size of the largest batch that fits into shared memory whatever else is being loaded, in bytes.
    pub(super) max_sure_size: u64,
    /// The limit on shared memory, in bytes.
    pub(super) limit: u64,
    pub(super) faults: SampleFaults,
    pub(super) on_bad_sample: OnBadSample,
    /// True if workers load the samples of a batch with one call.
    pub(super) loads_many: bool,
    /// True if samples depend on what their worker has loaded before. A process may then load a batch only once.
    pub(super) depends_on_worker: bool,
}

impl SimulatedDataset {
    /// Returns a number that depends on the seed and on `values`. The last value is different in each method
    /// below, so that their results are independent.
    fn hash(&self, values: [u64; 3]) -> u64 {
        let [a, b, c] = values;
        let mut bytes = [0; 32];
        for (position, value) in [a, b, c, self.seed].into_iter().enumerate() {
            bytes[8 * position..8 * (position + 1)].copy_from_slice(&value.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Returns the size of a batch, in bytes. One batch in five may have the maximum size; the others are
    /// small.
    pub(super) fn size(&self, content: Content) -> u64 {
        let hash = match content {
            Content::Samples { first, .. } => self.hash([first, 0, 1]),
            Content::Items { shard, from, .. } => self.hash([u64::from(shard), from, 4]),
        };
        let max = if hash.is_multiple_of(5) { self.max_size } else { self.max_size.min(60_000) };
        1 + hash / 5 % max
    }

    /// Number of steps that a worker needs for a sample.
    pub(super) fn steps(&self, sample: u64) -> u32 {
        let hash = self.hash([sample, 0, 2]);
        if hash.is_multiple_of(32) { 40 } else { (hash / 32 % 3) as u32 }
    }

    /// Number of items of a shard.
    pub(super) fn shard_len(&self, shard: u32) -> u64 {
        self.hash([u64::from(shard), 0, 3]) % (self.batches / u64::from(self.shards) * self.batch_size + 1)
    }

    /// Returns the index of the sample at `position` in a batch.
    fn index(&self, batch: u64, position: u64) -> u64 {
        (batch * self.batch_size + position) * self.world_size + self.rank
    }

    /// Returns the samples that a task of a map-style dataset lists.
    pub(super) fn samples(indices: &Indices) -> Vec<u64> {
        match indices {
            Indices::Range { start, len } => (*start..*start + *len).collect(),
            Indices::List(list) => list.clone(),
            other => panic!("the simulation has no tasks of {other:?}"),
        }
    }

    /// Returns what user code does with a sample of a map-style dataset.
    pub(super) fn fault(&self, index: u64) -> Fault {
        self.fault_by(self.hash([index, 0, 5]))
    }

    /// Returns what user code does with an item of a shard.
    pub(super) fn fault_of_item(&self, shard: u32, position: u64) -> Fault {
        self.fault_by(self.hash([u64::from(shard), position, 6]))
    }

    fn fault_by(&self, hash: u64) -> Fault {
        let SampleFaults { kinds, every } = self.faults;
        if kinds.is_empty() || !hash.is_multiple_of(every) {
            return Fault::None;
        }
        kinds[(hash / every) as usize % kinds.len()]
    }

    /// Returns what the user must get for a batch of a map-style dataset.
    pub(super) fn expected(&self, batch: u64) -> Expected {
        let faults = || (0..self.batch_size).map(|position| self.fault(self.index(batch, position)));
        let always_fails = |fault: &Fault| !matches!(fault, Fault::None | Fault::HangsOnce);
        let size = self.size(Content::Samples { first: self.index(batch, 0), left_out: 0 });
        match self.on_bad_sample {
            OnBadSample::Error if faults().any(|fault| always_fails(&fault)) => return Expected::Error,
            _ if faults().any(|fault| fault == Fault::HangsOnce) => return Expected::Any,
            _ => {}
        }
        let bits = faults().enumerate().map(|(position, fault)| u32::from(always_fails(&fault)) << position);
        let left_out = bits.sum();
        let all_left_out = left_out == (1 << self.batch_size) - 1;
        if size > self.limit && !all_left_out {
            Expected::Error
        } else if size > self.max_sure_size {
            Expected::Any
        } else if all_left_out {
            Expected::Nothing
        } else {
            Expected::Batch { left_out }
        }
    }

    /// True if `content` belongs to batch number `batch`, whichever samples were left out.
    pub(super) fn belongs_to(&self, content: Content, batch: u64) -> bool {
        matches!(content, Content::Samples { first, .. } if first == self.index(batch, 0))
    }

    pub(super) fn layout(&self) -> ShardLayout {
        ShardLayout {
            shards: self.shards as usize,
            first_shard: self.rank as usize,
            all_shards: (u64::from(self.shards) * self.world_size) as usize,
            batch_size: self.batch_size as usize,
            drop_last: false,
        }
    }

    /// Number of samples in the dataset.
    pub(super) fn dataset_len(&self) -> usize {
        (self.batches * self.batch_size * self.world_size) as usize
    }

    /// Returns the properties that a loader and a state must have in common.
    pub(super) fn origin(&self) -> Origin {
        let Self { seed, rank, world_size, batch_size, .. } = *self;
        let batching = match self.shards {
            0 => Batching::Sampler(format!("{batch_size} samples, rank {rank} of {world_size}")),
            _ => Batching::Shards(self.layout()),
        };
        let pipeline = Pipeline::new("simulated".to_owned(), batching, None).into();
        let (rank, world_size) = (rank as usize, world_size as usize);
        let share = Share { rank, world_size, policy: SharePolicy::Repeat };
        Origin { seed, order: Order::Native, samples: Some(self.dataset_len()), share, pipeline }
    }
}

/// A sampler that yields every batch of the process's share, in order.
#[derive(Debug)]
pub(super) struct Batches(pub(super) SimulatedDataset);

impl BatchSampler for Batches {
    fn len(&self, _epoch: Epoch) -> usize {
        self.0.batches as usize
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let dataset = self.0;
        let batch =
            move |batch| (0..dataset.batch_size).map(move |position| dataset.index(batch, position) as usize);
        Box::new((0..dataset.batches).map(move |number| batch(number).collect()))
    }
}
