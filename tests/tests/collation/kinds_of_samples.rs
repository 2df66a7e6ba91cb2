//! Batches and converted items of every kind of sample. They are the same with any number of workers.

use std::{collections::BTreeMap, collections::BTreeSet, process};

use half::f16;
use loader_core::{
    Convert, DType, Error,
    collate::{Batch, Keep, List, Padded, Padding, Ragged, Side},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Count, Given, Noise, many},
    everywhere,
    ways::{WAYS, Way, all},
};
use rand::RngExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Returns the one batch of all samples, which must be the same without workers and with one.
fn batch<S>(samples: &[S]) -> S::Batch
where
    S: Sample + Serialize + DeserializeOwned + Clone + Sync,
    S::Batch: PartialEq + std::fmt::Debug,
{
    let load = |workers| {
        let builder = DataLoader::builder(Given(samples.to_vec())).batch_size(samples.len());
        let loader = builder.num_workers(workers).build().unwrap();
        loader.iter().unwrap().next().unwrap().unwrap()
    };
    let in_worker = load(1);
    assert_eq!(load(0), in_worker);
    in_worker
}

// PyTorch: 75, 83, 87, 91, C01, C04, C05, C06, C07, C08, C12
#[test]
fn numbers_keep_their_type_and_arrays_are_stacked() {
    let _watchdog = Watchdog::start();
    let (integers, (f64, f32, f16, flags, strings)) = batch(&[
        ((1i64, 1i32, 1i16, 1i8, 1u8), (1.5f64, 1.5f32, f16::from_f32(1.5), true, "a".to_owned())),
        ((2, 2, 2, 2, 2), (2.5, 2.5, f16::from_f32(2.5), false, "b".to_owned())),
    ]);
    let (i64, i32, i16, i8, u8) = integers;
    let types = [i64.dtype(), i32.dtype(), i16.dtype(), i8.dtype(), u8.dtype()];
    assert_eq!(types, [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8]);
    assert_eq!([f64.dtype(), f32.dtype(), f16.dtype()], [DType::F64, DType::F32, DType::F16]);
    assert_eq!((i64.as_slice(), f64.as_slice()), ([1, 2].as_slice(), [1.5, 2.5].as_slice()));
    assert_eq!(flags.as_slice(), [true, false]);
    assert_eq!(strings, ["a", "b"]);

    let arrays: Vec<Tensor<f64>> =
        (0..12).map(|n| Tensor::from_vec(vec![f64::from(n); 24], [2, 3, 4]).unwrap()).collect();
    let stacked = batch(&arrays);
    assert_eq!((stacked.dtype(), stacked.shape()), (DType::F64, [12, 2, 3, 4].as_slice()));
    assert!((0..12).all(|n| stacked.row(n) == arrays[n].as_slice()));
    assert_eq!(batch(&[[[1u8, 2], [3, 4]]; 3]).shape(), [3, 2, 2]);

    // PyTorch refuses arrays of objects. Here, a type without collation does not compile unless it is in
    // `Keep`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Either {
        Number(u8),
        Text(String),
    }
    let kept = batch(&[Keep(Either::Number(1)), Keep(Either::Text("two".into()))]);
    assert_eq!(kept, [Either::Number(1), Either::Text("two".into())]);
}

#[derive(Clone, Serialize, Deserialize, Sample, Convert)]
#[sample(derive(Debug, PartialEq))]
struct Point {
    x: f32,
    label: String,
    nested: Nested,
    pair: Pair,
}

#[derive(Clone, Serialize, Deserialize, Sample, Convert)]
#[sample(derive(Debug, PartialEq))]
struct Nested {
    pixels: Vec<u8>,
}

#[derive(Clone, Serialize, Deserialize, Sample, Convert)]
#[sample(derive(Debug, PartialEq))]
struct Pair(Vec<f32>, String);

fn points() -> Given<Point> {
    let point = |n: u8| Point {
        x: f32::from(n),
        label: n.to_string(),
        nested: Nested { pixels: vec![n; 4] },
        pair: Pair(vec![f32::from(n); 3], format!("sample {n}")),
    };
    Given((0..6).map(point).collect())
}

/// What is a dictionary in PyTorch is a struct or a map here.
// PyTorch: 88, 100, 108, C10
#[test]
fn structs_and_maps_keep_the_names_of_their_fields() {
    let _watchdog = Watchdog::start();
    let batches: Vec<PointBatch> =
        everywhere(|workers| DataLoader::builder(points()).batch_size(2).num_workers(workers).build());
    let PointBatch { x, label, nested, pair } = &batches[1];
    assert_eq!((x.as_slice(), nested.pixels.shape()), ([2.0, 3.0].as_slice(), [2, 4].as_slice()));
    assert_eq!(*label, ["2", "3"]);
    assert_eq!((pair.0.shape(), pair.1[1].as_str()), ([2, 3].as_slice(), "sample 3"));
    let items: Vec<PointItem> =
        everywhere(|workers| DataLoader::builder(points()).unbatched().num_workers(workers).build());
    let PointItem { x, label, nested, pair } = &items[3];
    assert_eq!((*x, label.as_str(), nested.pixels.as_slice()), (3.0, "3", [3; 4].as_slice()));
    assert_eq!((pair.0.shape(), pair.1.as_str()), ([3].as_slice(), "sample 3"));
    assert_eq!(pair.0.as_slice(), batches[1].pair.0.row(1));

    let map = |n: u64| BTreeMap::from([("one".to_owned(), n), ("two".to_owned(), 10 * n)]);
    assert_eq!(batch(&[map(1), map(2)])["two"].as_slice(), [10, 20]);
}

/// Samples that contain a sequence of as many words as the index says, and other kinds.
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
fn sequences_lists_options_and_kept_values_form_batches() {
    let _watchdog = Watchdog::start();
    let batches = everywhere(|workers| DataLoader::builder(Kinds).batch_size(3).num_workers(workers).build());
    let (sentences, list, option, kept, ()) = &batches[1];
    assert_eq!(sentences.values.shape(), [3, 5]);
    assert_eq!(sentences.lengths.as_slice(), [3, 4, 5]);
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

#[test]
fn single_samples_are_converted_by_default_or_by_a_function() {
    let _watchdog = Watchdog::start();
    let items = everywhere(|workers| {
        DataLoader::builder(Noise { count: 11 }).unbatched().shuffle(true).num_workers(workers).build()
    });
    assert!(items.iter().all(|(_, noise, _)| noise.shape() == [3] && noise.is_shared_memory()));
    let seen: BTreeSet<u64> = items.iter().map(|(number, ..)| *number).collect();
    assert!(seen.into_iter().eq(0..11));
    assert!(items.iter().all(|(number, _, name)| *name == format!("sample {number}")));

    let tensors = everywhere(|workers| {
        let builder = DataLoader::builder(many(7)).num_workers(workers);
        builder.convert(|(number, noise, _)| Ok((number, Tensor::from_slice(&noise, [1, 3])?))).build()
    });
    assert_eq!(tensors.len(), 7);
    assert!(tensors.iter().all(|(_, noise)| noise.shape() == [1, 3] && noise.is_shared_memory()));
}

/// Main reads a batch in the memory in which the worker has written it.
// PyTorch: 94, C01
#[test]
fn only_batches_of_workers_are_in_shared_memory() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let rows = TensorDataset::new((Tensor::<f32>::zeros([6, 1000]).unwrap(),)).unwrap();
        let loader = DataLoader::builder(rows).batch_size(2).num_workers(workers).build().unwrap();
        for (batch,) in all(loader.iter().unwrap()) {
            assert_eq!(batch.is_shared_memory(), workers > 0);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let address = batch.as_bytes().as_ptr().addr();
            let contains = |line: &str| {
                let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
                let parse = |text| usize::from_str_radix(text, 16).unwrap();
                (parse(start)..parse(end)).contains(&address)
            };
            let is_memfd = maps.lines().any(|line| line.contains("memfd:loader-") && contains(line));
            assert_eq!(is_memfd, workers > 0);
        }
    }
}

// PyTorch: A07
#[test]
fn workers_call_the_functions_that_collate_and_convert() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let is_there = |pid: u32| (pid == process::id()) == (workers == 0);
        let builder = DataLoader::builder(Count(5)).batch_size(2).num_workers(workers);
        let loader = builder.collate(|samples| Ok((samples.len(), process::id()))).build().unwrap();
        let batches = all(loader.iter().unwrap());
        assert!(batches.iter().map(|(len, _)| *len).eq([2, 2, 1]));
        assert!(batches.iter().all(|&(_, pid)| is_there(pid)));
        let builder = DataLoader::builder(Count(5)).num_workers(workers);
        let loader = builder.convert(|sample| Ok((sample, process::id()))).build().unwrap();
        let items = all(loader.iter().unwrap());
        assert!(items.iter().map(|(sample, _)| *sample).eq(0..5));
        assert!(items.iter().all(|&(_, pid)| is_there(pid)));
    }
}

/// PyTorch's `default_collate` fails for an empty batch.
// PyTorch: C14
#[test]
fn a_batch_may_be_empty() {
    let _watchdog = Watchdog::start();
    fn check<B: Batch>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>, len: fn(&B) -> usize) {
        for way in WAYS {
            let batches = all(build(way).unwrap().iter().unwrap());
            assert_eq!(batches.iter().map(len).collect::<Vec<_>>(), [0, 1], "{way:?}");
        }
    }
    let indices = || vec![vec![], vec![1]];
    check(
        |way| way.apply(DataLoader::builder(Count(2)).batch_sampler(indices())).build(),
        |batch| batch.len(),
    );
    check(
        |way| way.apply(DataLoader::builder(points()).batch_sampler(indices())).build(),
        |batch| batch.label.len(),
    );
}
