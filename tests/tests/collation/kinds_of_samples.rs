//! Samples without batches, and every kind of sample: the same with any number of workers.

use std::{
    collections::BTreeSet,
    sync::{Mutex, OnceLock},
    thread,
    time::Duration,
};

use anyhow::ensure;
use loader_core::{
    Convert, Error, TensorError,
    collate::{CollateError, CollateProblem, Keep, List, Padded, Padding, Ragged, Side, Stack},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Noise, NoiseSample, many},
    everywhere,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

fn noise(count: usize) -> Noise {
    Noise { count }
}

fn numbers(len: usize) -> Tensor<i64> {
    Tensor::from_vec((0..len as i64).collect(), [len]).unwrap()
}

#[test]
fn without_batches() {
    let _watchdog = Watchdog::start();
    let items = everywhere(|workers| {
        let loader = DataLoader::builder(noise(11)).unbatched().shuffle(true).num_workers(workers).build()?;
        assert_eq!(loader.len(), Some(11));
        Ok(loader)
    });
    assert!(items.iter().all(|(_, noise, _)| noise.shape() == [3] && noise.is_shared_memory()));
    let seen: BTreeSet<u64> = items.iter().map(|(number, ..)| *number).collect();
    assert!(seen.into_iter().eq(0..11));
    assert!(items.iter().all(|(number, _, name)| *name == format!("sample {number}")));

    let rows = everywhere(|workers| {
        let dataset =
            TensorDataset::new((numbers(5), Tensor::from_slice(&[1.5f32; 10], [5, 2]).unwrap())).unwrap();
        DataLoader::builder(dataset).unbatched().num_workers(workers).build()
    });
    assert!(rows.iter().map(|(number, _)| number.as_slice()[0]).eq(0..5), "in order");
    assert!(rows.iter().all(|(number, row)| number.rank() == 0 && row.shape() == [2]));

    let tensors = everywhere(|workers| {
        let builder = DataLoader::builder(many(7)).num_workers(workers);
        builder.convert(|(number, noise, _)| Ok((number, Tensor::from_slice(&noise, [1, 3])?))).build()
    });
    assert!(tensors.iter().all(|(_, noise)| noise.shape() == [1, 3] && noise.is_shared_memory()));
}

#[test]
fn a_conversion_that_fails_names_the_sample() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = DataLoader::builder(noise(4)).num_workers(workers).convert(|(number, ..)| {
            ensure!(number != 2, "two is one too many");
            Ok(number)
        });
        let items: Vec<_> = builder.build().unwrap().iter().unwrap().collect();
        assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 3);
        let error = items[2].as_ref().unwrap_err();
        let Error::CollateFailed { index: Some(2), batch: 2, .. } = error else { panic!("{error:?}") };
    }
}

#[test]
fn options_about_batches_exclude_having_none() {
    let batches = || loader_core::sampler::FixedBatches::new(SequentialSampler::new(10), 2, false);
    let builder = || DataLoader::builder(noise(10));
    let cases = [
        (builder().batch_size(2).unbatched().build().map(drop), "batch_size"),
        (builder().unbatched().batch_size(0).build().map(drop), ""),
        (builder().unbatched().drop_last(true).build().map(drop), "drop_last"),
        (builder().batch_sampler(batches()).unbatched().build().map(drop), "batch_sampler"),
        (builder().convert(|sample| Ok(sample.0)).batch_size(2).build().map(drop), "batch_size"),
    ];
    for (built, with) in cases {
        match built.unwrap_err() {
            Error::ConflictingOptions { first: "unbatched", second, .. } => assert_eq!(second, with),
            error => assert!(with.is_empty() && error.kind() == "InvalidOption", "{error:?}"),
        }
    }
    assert!(
        builder()
            .unbatched()
            .sampler(SequentialSampler::new(3))
            .build()
            .is_ok_and(|loader| loader.len() == Some(3))
    );
    let batched = builder().unbatched().batch_size(5).collate(|samples| Ok(samples.len())).build().unwrap();
    assert_eq!(batched.len(), Some(2), "the last word counts");
}

/// Sentences of as many words as the index says, and such.
#[derive(Serialize, Deserialize)]
struct Kinds;

type Kind = (Ragged<Vec<u32>>, List<(u8, &'static str)>, Option<Box<[f64]>>, Keep<Vec<u8>>, ());

impl Dataset for Kinds {
    type Sample = Kind;

    fn len(&self) -> usize {
        9
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Kind> {
        let word = cx.rng().random_range(1..9);
        let sentence = Ragged::new(vec![word; index]).pad_with(100);
        let list = List(vec![(index as u8, "one"), (index as u8 + 1, "two")]);
        Ok((sentence, list, Some(Box::from([index as f64])), Keep(vec![7; index]), ()))
    }
}

#[test]
fn every_kind_of_sample() {
    let _watchdog = Watchdog::start();
    let batches = everywhere(|workers| DataLoader::builder(Kinds).batch_size(3).num_workers(workers).build());
    let (sentences, list, option, kept, ()) = &batches[1];
    assert_eq!(
        (sentences.values.shape(), sentences.lengths.as_slice()),
        ([3, 5].as_slice(), [3, 4, 5].as_slice())
    );
    assert_eq!(sentences.values.row(0)[3..], [100, 100]);
    assert!(sentences.values.is_shared_memory() && sentences.lengths.is_shared_memory());
    assert_eq!((list.len(), list[1].0.as_slice(), list[1].1[2].as_str()), (2, [4, 5, 6].as_slice(), "two"));
    assert_eq!(option.as_ref().unwrap().shape(), [3, 1]);
    assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [3, 4, 5]);

    let items = everywhere(|workers| DataLoader::builder(Kinds).unbatched().num_workers(workers).build());
    assert_eq!(items[4].0.shape(), [4]);

    let padded: Vec<Padded<u32>> = everywhere(|workers| {
        let builder = DataLoader::builder(Kinds).batch_size(4).shuffle(true).num_workers(workers);
        let collate = |samples: Vec<Kind>| {
            let sentences: Vec<Tensor<u32>> =
                samples.into_iter().map(|sample| sample.0.convert()).collect::<Result<_, _>>()?;
            Ok(Padding::new(0).side(Side::Left).multiple_of(8).pad(&sentences)?)
        };
        builder.collate(collate).build()
    });
    assert!(padded.iter().all(|batch| batch.values.shape()[1] % 8 == 0 && batch.values.is_shared_memory()));
}

#[derive(Sample, Convert)]
#[sample(derive(Debug))]
struct Named {
    number: u64,
    inner: Inner,
}

#[derive(Sample, Convert)]
#[sample(derive(Debug))]
struct Inner(Vec<f32>, String);

#[test]
fn structs_keep_their_names_in_batches_and_alone() {
    let _watchdog = Watchdog::start();
    let named = |(number, noise, name): NoiseSample, _: &mut SampleContext| {
        Ok(Named { number, inner: Inner(noise.to_vec(), name) })
    };
    let batches: Vec<NamedBatch> = everywhere(|workers| {
        DataLoader::builder(noise(8).map(named)).batch_size(4).num_workers(workers).build()
    });
    assert_eq!(
        (batches[1].number.as_slice(), batches[1].inner.0.shape()),
        ([4, 5, 6, 7].as_slice(), [4, 3].as_slice())
    );
    let items: Vec<NamedItem> = everywhere(|workers| {
        DataLoader::builder(noise(8).map(named)).unbatched().num_workers(workers).build()
    });
    assert_eq!(
        (items[7].number, items[7].inner.0.shape(), items[7].inner.1.as_str()),
        (7, [3].as_slice(), "sample 7")
    );
    assert_eq!(items[7].inner.0.as_slice(), batches[1].inner.0.row(3));
}

#[derive(Serialize, Deserialize)]
struct Misfit;

impl Dataset for Misfit {
    type Sample = (u8, List<Vec<u8>>);

    fn len(&self) -> usize {
        8
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let list = match index {
            2 => vec![vec![0; 3]; 3],
            5 => vec![vec![0; 3], vec![0; 4]],
            _ => vec![vec![0; 3]; 2],
        };
        Ok((0, List(list)))
    }
}

// PyTorch: U36
#[test]
fn what_does_not_fit_is_named_by_index_field_and_shapes() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = DataLoader::builder(Misfit).batch_size(4).num_workers(workers).build().unwrap();
        let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
        let Error::CollateFailed { index: Some(2), .. } = &errors[0] else { panic!("{:?}", errors[0]) };
        assert!(
            errors[0]
                .to_string()
                .contains("field `1`: the list has 3 items, but that of the batch's first sample has 2")
        );
        let Error::CollateFailed { index: Some(5), .. } = &errors[1] else { panic!("{:?}", errors[1]) };
        assert!(
            errors[1]
                .to_string()
                .contains("field `1.1`: shape [4] differs from the batch's first sample, [3]")
        );
    }
}

/// A mask that is made with the first batch of a process, and is part of every batch.
fn with_mask(samples: Vec<NoiseSample>) -> anyhow::Result<(Tensor<u64>, Tensor<f32>)> {
    static MASK: OnceLock<Tensor<f32>> = OnceLock::new();
    let mask = MASK.get_or_init(|| Tensor::from_slice(&[1.0; 8], [8]).expect("eight ones"));
    let numbers: Vec<u64> = samples.iter().map(|(number, ..)| *number).collect();
    Ok((Tensor::from_slice(&numbers, [numbers.len()])?, mask.clone()))
}

#[test]
fn a_batch_can_be_changed_without_changing_what_a_worker_kept() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 2] {
        let loader = DataLoader::builder(noise(60)).batch_size(4).num_workers(workers).collate(with_mask);
        for (place, batch) in loader.build().unwrap().iter().unwrap().enumerate() {
            let (mut numbers, mut mask) = batch.unwrap();
            assert_eq!(mask.as_slice(), [1.0; 8], "{workers} workers, batch {place}");
            assert_eq!(numbers.as_slice()[0], 4 * place as u64);
            // The tensor beside the mask belongs to the program alone.
            numbers.as_mut_slice().unwrap().fill(0);
            match mask.as_mut_slice() {
                Ok(mask) => mask.fill(-1.0),
                // Without workers the other handle is in this process.
                Err(error) => assert_eq!((error, workers), (TensorError::Shared, 0)),
            }
        }
    }
}

/// A number whose batches keep a handle on their tensor, even if the batch is never finished.
#[derive(Debug, Clone, Copy)]
struct Kept(u64);

/// A batch of [`Kept`].
struct KeptStack(Option<Tensor<u64>>, Vec<u64>);

/// The tensors that this process made last.
static KEPT: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());

impl Sample for Kept {
    type Batch = Tensor<u64>;
    type Stack = KeptStack;

    fn stack(_samples: usize) -> KeptStack {
        KeptStack(None, Vec::new())
    }
}

impl Stack for KeptStack {
    type Sample = Kept;
    type Batch = Tensor<u64>;

    fn push(&mut self, Kept(number): Kept) -> Result<(), CollateError> {
        self.1.push(number);
        if self.0.is_none() {
            let tensor = Tensor::from_slice(&[number; 8], [8]).map_err(CollateProblem::Tensor)?;
            KEPT.lock().unwrap().push(tensor.clone());
            self.0 = Some(tensor);
        }
        for tensor in &*KEPT.lock().unwrap() {
            // Each element is still the number that it was made of.
            assert!(tensor.as_slice().iter().all(|&element| element == tensor.as_slice()[0]));
        }
        Ok(())
    }

    fn finish(self) -> Result<Tensor<u64>, CollateError> {
        Ok(Tensor::from_slice(&self.1, [self.1.len()]).map_err(CollateProblem::Tensor)?)
    }
}

/// Shards that end in the middle of a batch; numbers from `bad_from` on cannot be loaded.
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
fn a_worker_may_keep_a_tensor_of_a_batch_that_is_not_sent() {
    let _watchdog = Watchdog::start();
    // Either the last batches of the shards are dropped, or a batch is left out because too many of its
    // samples are bad.
    let shards = [(vec![6, 14, 22, 30], u64::MAX), (vec![302, 10, 303, 12], 14)];
    let digests = [0, 1, 2].map(|workers| {
        shards.clone().map(|(sizes, bad_from)| {
            let loader = DataLoader::stream(KeptShards { sizes, bad_from }).shards(4).drop_last(true);
            let loader = loader.on_bad_sample(OnBadSample::Skip).max_bad_samples(10_000).on_warning(|_| {});
            let loader = loader.batch_size(4).num_workers(workers).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let digest = loader_tests::digest_rest(&mut batches).unwrap();
            assert_eq!(batches.report().restarts, 0, "{workers} workers");
            digest
        })
    });
    assert_eq!((&digests[0], &digests[0]), (&digests[1], &digests[2]));
}

/// [`Kept`] numbers, of which all but the first take a while to load.
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
fn a_worker_may_keep_a_tensor_of_a_batch_of_an_abandoned_epoch() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(SlowKept).batch_size(4).num_workers(2).persistent_workers(true);
    let loader = loader.on_warning(|warning| eprintln!("{warning}")).build().unwrap();
    let mut pids = None;
    for epoch in 0..4 {
        let mut batches = loader.epoch(epoch).unwrap();
        batches.next().unwrap().unwrap();
        // Time for the workers to be in the middle of a batch.
        thread::sleep(Duration::from_millis(40));
        let now = batches.worker_pids();
        assert_eq!(pids.get_or_insert_with(|| now.clone()), &now, "epoch {epoch}");
        assert_eq!(batches.report().restarts, 0, "epoch {epoch}");
    }
}
