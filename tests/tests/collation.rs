//! Samples without batches, and every kind of sample: the same with any number of workers.

use std::collections::BTreeSet;

use anyhow::ensure;
use loader_core::{
    Convert, Error,
    collate::{Keep, List, Padded, Padding, Ragged, Side},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Noise, NoiseSample, many},
    everywhere,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

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

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Kind> {
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
    let named = |(number, noise, name): NoiseSample, _: &mut Context| {
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

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Self::Sample> {
        let list = match index {
            2 => vec![vec![0; 3]; 3],
            5 => vec![vec![0; 3], vec![0; 4]],
            _ => vec![vec![0; 3]; 2],
        };
        Ok((0, List(list)))
    }
}

#[test]
fn what_does_not_fit_is_named_by_index_field_and_shapes() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = DataLoader::builder(Misfit).batch_size(4).num_workers(workers).build().unwrap();
        let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
        let Error::CollateFailed { index: Some(2), .. } = &errors[0] else { panic!("{:?}", errors[0]) };
        assert!(
            errors[0].to_string().contains("field `1`: a list of 3 differs from the batch's first, of 2")
        );
        let Error::CollateFailed { index: Some(5), .. } = &errors[1] else { panic!("{:?}", errors[1]) };
        assert!(
            errors[1]
                .to_string()
                .contains("field `1.1`: shape [4] differs from the batch's first sample, [3]")
        );
    }
}
