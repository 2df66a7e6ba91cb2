//! User code in a worker may keep a tensor of a batch, whether or not the batch is sent. The slot is then not
//! reused, and neither process sees what the other one changes in the tensor.

use std::{
    sync::{Mutex, OnceLock},
    thread,
    time::Duration,
};

use anyhow::ensure;
use loader_core::{
    Error, TensorError,
    collate::{CollateError, CollateProblem, ContentHash, Stack},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise, NoiseSample},
    digest_rest,
};
use serde::{Deserialize, Serialize};

#[test]
fn a_tensor_that_a_worker_keeps_is_never_overwritten() {
    static KEPT: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 40 }).batch_size(2).num_workers(1);
    let loader = builder.collate(|samples| {
        let mut kept = KEPT.lock().map_err(|_| anyhow::anyhow!("the mutex is poisoned"))?;
        for (number, tensor) in kept.iter().enumerate() {
            ensure!(
                tensor.as_slice() == [2 * number as u64, 2 * number as u64 + 1],
                "tensor {number} changed"
            );
        }
        let numbers: Vec<u64> = samples.iter().map(|sample| sample.0).collect();
        let tensor = Tensor::from_vec(numbers, [2])?;
        kept.push(tensor.clone());
        Ok(tensor)
    });
    let batches = loader.build().unwrap().iter().unwrap();
    assert!(batches.flat_map(|batch| batch.unwrap().as_slice().to_vec()).eq(0..40));
}

#[test]
fn changing_a_kept_tensor_changes_a_copy() {
    static KEPT: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 20 }).batch_size(1).num_workers(1);
    let loader = builder.collate(|samples| {
        let mut kept = KEPT.lock().map_err(|_| anyhow::anyhow!("the mutex is poisoned"))?;
        for sent in kept.iter_mut() {
            sent.as_mut_slice()?.fill(0);
        }
        let mut tensor = Tensor::from_vec(vec![samples[0].0], [1])?;
        tensor.as_mut_slice()?[0] += 1;
        kept.push(tensor.clone());
        Ok(tensor)
    });
    // The program holds all batches while the worker changes the tensors that it kept.
    let batches: Vec<Tensor<u64>> = loader.build().unwrap().iter().unwrap().map(Result::unwrap).collect();
    assert!(batches.iter().flat_map(Tensor::as_slice).copied().eq(1..21));
}

#[test]
fn a_tensor_of_a_batch_that_is_too_large_can_be_kept() {
    static KEPT: Mutex<Vec<Tensor<u8>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let dataset = Large { count: 6, bytes: 8 };
    let loader = DataLoader::builder(dataset).num_workers(1).shared_memory_limit(1 << 19).collate(|_| {
        let small = Tensor::<u8>::zeros([8])?;
        KEPT.lock().map_err(|_| anyhow::anyhow!("the mutex is poisoned"))?.push(small.clone());
        Ok((small, Tensor::<u8>::zeros([1 << 20])?))
    });
    let batches = loader.build().unwrap().iter().unwrap();
    let errors: Vec<_> = batches.map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), 6);
    assert!(errors.iter().all(|error| matches!(error, Error::SendFailed { .. })), "{errors:?}");
}

/// Collates numbers, with a mask that the process creates once and adds to every batch.
fn with_mask(samples: Vec<NoiseSample>) -> anyhow::Result<(Tensor<u64>, Tensor<f32>)> {
    static MASK: OnceLock<Tensor<f32>> = OnceLock::new();
    let mask = MASK.get_or_init(|| Tensor::from_slice(&[1.0; 8], [8]).expect("eight ones"));
    let numbers: Vec<u64> = samples.iter().map(|(number, ..)| *number).collect();
    Ok((Tensor::from_slice(&numbers, [numbers.len()])?, mask.clone()))
}

#[test]
fn changing_a_batch_does_not_change_a_tensor_that_the_worker_keeps() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 2] {
        let loader =
            DataLoader::builder(Noise { count: 60 }).batch_size(4).num_workers(workers).collate(with_mask);
        for (number, batch) in loader.build().unwrap().iter().unwrap().enumerate() {
            let (mut numbers, mut mask) = batch.unwrap();
            assert_eq!(mask.as_slice(), [1.0; 8], "{workers} workers, batch {number}");
            assert_eq!(numbers.as_slice()[0], 4 * number as u64);
            // Only the program has a handle on `numbers`.
            numbers.as_mut_slice().unwrap().fill(0);
            match mask.as_mut_slice() {
                Ok(mask) => mask.fill(-1.0),
                // Without workers, the static `MASK` of this process has another handle.
                Err(error) => assert_eq!((error, workers), (TensorError::Shared, 0)),
            }
        }
    }
}

/// A number. Its stack keeps a tensor in [`KEPT_BY_STACKS`], even if the batch is never finished.
#[derive(Debug, Clone, Copy)]
struct Kept(u64);

/// A batch that is being stacked.
#[derive(Default)]
struct KeptStack {
    numbers: Vec<u64>,
    has_kept: bool,
}

/// The tensors that the stacks of this process have kept.
static KEPT_BY_STACKS: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());

impl Sample for Kept {
    type Batch = Tensor<u64>;
    type Stack = KeptStack;

    fn stack(_samples: usize) -> KeptStack {
        KeptStack::default()
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        self.0.hash_content(hash);
    }
}

impl Stack for KeptStack {
    type Sample = Kept;
    type Batch = Tensor<u64>;

    fn push(&mut self, Kept(number): Kept) -> Result<(), CollateError> {
        self.numbers.push(number);
        let mut kept = KEPT_BY_STACKS.lock().unwrap();
        if !self.has_kept {
            kept.push(Tensor::from_slice(&[number; 8], [8]).map_err(CollateProblem::Tensor)?);
            self.has_kept = true;
        }
        for tensor in &*kept {
            let elements = tensor.as_slice();
            assert!(elements.iter().all(|element| element == &elements[0]), "a kept tensor was overwritten");
        }
        Ok(())
    }

    fn finish(self) -> Result<Tensor<u64>, CollateError> {
        Ok(Tensor::from_slice(&self.numbers, [self.numbers.len()]).map_err(CollateProblem::Tensor)?)
    }
}

/// Shards of [`Kept`] numbers. Numbers from `bad_from` on are errors.
#[derive(Debug, Serialize, Deserialize)]
struct KeptShards {
    sizes: Vec<u64>,
    bad_from: u64,
}

impl IterableDataset for KeptShards {
    type Sample = Kept;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Kept>> + Send> {
        let bad_from = self.bad_from;
        Ok((0..self.sizes[shard.index()]).map(move |number| {
            ensure!(number < bad_from, "item {number} is bad");
            Ok(Kept(number))
        }))
    }
}

#[test]
fn a_tensor_of_a_batch_that_is_not_sent_can_be_kept() {
    let _watchdog = Watchdog::start();
    // In the first case the last batches of the shards are dropped. In the second case a batch is left out
    // because too many of its samples are bad.
    let shards = [(vec![6, 14, 22, 30], u64::MAX), (vec![302, 10, 303, 12], 14)];
    let digests = [0, 1, 2].map(|workers| {
        shards.clone().map(|(sizes, bad_from)| {
            let loader = DataLoader::stream(KeptShards { sizes, bad_from }).shards(4).drop_last(true);
            let loader = loader.on_bad_sample(OnBadSample::Skip).max_bad_samples(10_000).on_warning(|_| {});
            let loader = loader.batch_size(4).num_workers(workers).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let digest = digest_rest(&mut batches).unwrap();
            assert_eq!(batches.report().restarts, 0, "{workers} workers");
            digest
        })
    });
    assert_eq!(digests, [digests[0]; 3]);
}

/// [`Kept`] numbers, of which three in four are slow to load.
#[derive(Debug, Serialize, Deserialize)]
struct SlowKept;

impl Dataset for SlowKept {
    type Sample = Kept;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Kept> {
        thread::sleep(Duration::from_millis(20 * (index as u64 % 4)));
        Ok(Kept(index as u64))
    }
}

#[test]
fn a_tensor_of_an_abandoned_epoch_can_be_kept() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(SlowKept).batch_size(4).num_workers(2).persistent_workers(true);
    let loader = loader.on_warning(|warning| eprintln!("{warning}")).build().unwrap();
    let mut pids = None;
    for epoch in 0..4 {
        let mut batches = loader.epoch(epoch).unwrap();
        batches.next().unwrap().unwrap();
        // Meanwhile both workers begin another batch.
        thread::sleep(Duration::from_millis(40));
        let now = batches.worker_pids();
        assert_eq!(pids.get_or_insert_with(|| now.clone()), &now, "epoch {epoch}");
        assert_eq!(batches.report().restarts, 0, "epoch {epoch}");
    }
}
