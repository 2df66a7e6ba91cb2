//! Samples into batches.

use std::collections::BTreeMap;

use half::f16;
use loader_core::{
    Convert, DType, Error,
    collate::{Batch, Keep, List},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::Count,
    ways::{Way, all, one_epoch},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Samples that are given.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
struct These<S: Serialize + DeserializeOwned>(Vec<S>);

impl<S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Dataset for These<S> {
    type Sample = S;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<S> {
        Ok(self.0[index].clone())
    }
}

/// The one batch of all samples, the same without workers and with one.
fn batch<S>(samples: &[S]) -> S::Batch
where
    S: Sample + Serialize + DeserializeOwned + Clone + Sync,
    S::Batch: PartialEq + std::fmt::Debug,
{
    let load = |workers| {
        let builder = DataLoader::builder(These(samples.to_vec())).batch_size(samples.len());
        let loader = builder.num_workers(workers).build().unwrap();
        loader.iter().unwrap().next().unwrap().unwrap()
    };
    let (here, there) = (load(0), load(1));
    assert_eq!(here, there);
    there
}

/// Why there is no batch of these samples, without workers and with one.
fn refused<S>(samples: Vec<S>) -> [Error; 2]
where
    S: Sample + Serialize + DeserializeOwned + Clone + Sync,
{
    [0, 1].map(|workers| {
        let builder = DataLoader::builder(These(samples.clone())).batch_size(samples.len());
        let batch = builder.num_workers(workers).build().unwrap().iter().unwrap().next().unwrap();
        batch.map(drop).unwrap_err()
    })
}

// PyTorch: 83, 87, C05, C06, C07, C08
#[test]
fn numbers_keep_their_type() {
    let _watchdog = Watchdog::start();
    assert_eq!(batch(&[1i64, 2]).dtype(), DType::I64);
    assert_eq!(batch(&[1i32, 2]).dtype(), DType::I32);
    assert_eq!(batch(&[1i16, 2]).dtype(), DType::I16);
    assert_eq!(batch(&[1i8, 2]).dtype(), DType::I8);
    assert_eq!(batch(&[1u8, 2]).dtype(), DType::U8);
    assert_eq!(batch(&[1.5f64, 2.5]).dtype(), DType::F64);
    assert_eq!(batch(&[1.5f32, 2.5]).dtype(), DType::F32);
    assert_eq!(batch(&[f16::from_f32(1.5)]).dtype(), DType::F16);
    assert_eq!(batch(&[true, false]).as_slice(), [1u8, 0], "as bytes");
    assert_eq!(batch(&["a".to_owned(), "b".to_owned()]), ["a", "b"], "strings are left alone");
}

/// PyTorch's `ndarray` of shape `[2, 3, 4]` and type `float64`.
// PyTorch: 75, C01, C04
#[test]
fn arrays_are_stacked() {
    let _watchdog = Watchdog::start();
    let arrays: Vec<Tensor<f64>> =
        (0..12).map(|n| Tensor::from_vec(vec![f64::from(n); 24], [2, 3, 4]).unwrap()).collect();
    let whole = batch(&arrays);
    assert_eq!((whole.dtype(), whole.shape()), (DType::F64, [12, 2, 3, 4].as_slice()));
    assert!((0..12).all(|n| whole.row(n) == arrays[n].as_slice()));
    assert_eq!(batch(&[[[1u8, 2], [3, 4]]; 3]).shape(), [3, 2, 2]);
}

#[derive(Clone, Serialize, Deserialize, Sample, Convert)]
#[sample(derive(Debug, PartialEq))]
struct Point {
    x: f32,
    label: String,
    nested: Nested,
}

#[derive(Clone, Serialize, Deserialize, Sample, Convert)]
#[sample(derive(Debug, PartialEq))]
struct Nested {
    pixels: Vec<u8>,
}

fn points() -> Vec<Point> {
    let nested = |n: u8| Nested { pixels: vec![n; 4] };
    (0..6).map(|n| Point { x: f32::from(n), label: n.to_string(), nested: nested(n) }).collect()
}

/// A dictionary of PyTorch's is a struct here, or a map.
// PyTorch: 88, 100, 108, C10
#[test]
fn structs_keep_their_fields() {
    let _watchdog = Watchdog::start();
    let batches = one_epoch(|way| way.of(DataLoader::builder(These(points())).batch_size(2)).build());
    let PointBatch { x, label, nested } = &batches[1];
    assert_eq!(
        (x.as_slice(), label.as_slice()),
        ([2.0, 3.0].as_slice(), ["2".into(), "3".into()].as_slice())
    );
    assert_eq!(nested.pixels.shape(), [2, 4]);
    let items = one_epoch(|way| way.of(DataLoader::builder(These(points())).unbatched()).build());
    let PointItem { x, label, nested } = &items[5];
    assert_eq!((*x, label.as_str(), nested.pixels.as_slice()), (5.0, "5", [5; 4].as_slice()));

    let map = |n: u64| BTreeMap::from([("one".to_owned(), n), ("two".to_owned(), 10 * n)]);
    let batch = batch(&[map(1), map(2)]);
    assert_eq!(batch["two"].as_slice(), [10, 20]);
}

// PyTorch: C09
#[test]
fn maps_need_the_same_keys() {
    let _watchdog = Watchdog::start();
    let map = |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), 1u8)).collect::<BTreeMap<_, _>>();
    for (samples, key) in
        [([map(&["a"]), map(&["a", "b"])], "new"), ([map(&["a", "b"]), map(&["a"])], "missing")]
    {
        for error in refused(samples.to_vec()) {
            let text = error.to_string();
            assert!(text.contains(&format!("key \"b\" is {key}")) && text.contains("sample 1"), "{text}");
        }
    }
}

// PyTorch: 89, C11
#[test]
fn lists_are_stacked_place_by_place() {
    let _watchdog = Watchdog::start();
    let batches = one_epoch(|way| {
        let lists = These(vec![vec![1u8, 2, 3], vec![4, 5, 6]]).map(|list, _| Ok(List(list)));
        way.of(DataLoader::builder(lists).batch_size(2)).build()
    });
    let places: Vec<&[u8]> = batches[0].iter().map(Tensor::as_slice).collect();
    assert_eq!(places, [[1, 4], [2, 5], [3, 6]]);
}

/// `[["X"], ["X", "X"]]` and the other way round.
// PyTorch: 93, C11, U36
#[test]
fn lists_of_different_lengths() {
    let _watchdog = Watchdog::start();
    let list = |len: usize| vec!["X".to_owned(); len];
    for (first, second) in [(1, 2), (2, 1)] {
        for error in refused(vec![list(first), list(second)]) {
            let Error::CollateFailed { index: Some(1), .. } = &error else { panic!("{error:?}") };
            let expected =
                format!("the list has {second} items, but that of the batch's first sample has {first}");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

// PyTorch: C13
#[test]
fn tensors_of_different_shapes_name_the_sample() {
    let _watchdog = Watchdog::start();
    for error in refused(vec![vec![0u8; 3], vec![0; 3], vec![0; 4]]) {
        let Error::CollateFailed { index: Some(2), batch: 0, .. } = &error else { panic!("{error:?}") };
        assert!(
            error.to_string().contains("shape [4] differs from the batch's first sample, [3]"),
            "{error}"
        );
    }
}

/// PyTorch refuses an object array; a type without a collation does not compile here, unless it says that it wants none.
// PyTorch: 91, C12
#[test]
fn samples_of_any_type() {
    let _watchdog = Watchdog::start();
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Odd {
        Number(u8),
        Text(String),
    }
    let kept = batch(&[Keep(Odd::Number(1)), Keep(Odd::Text("two".into()))]);
    assert_eq!(kept, [Odd::Number(1), Odd::Text("two".into())]);
}

/// A batch is written into shared memory by the worker, and main looks at it there.
// PyTorch: 94, C01
#[test]
fn batches_lie_in_shared_memory() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let rows = TensorDataset::new((Tensor::<f32>::zeros([6, 1000]).unwrap(),)).unwrap();
        let loader = DataLoader::builder(rows).batch_size(2).num_workers(workers).build().unwrap();
        for (batch,) in all(loader.iter().unwrap()) {
            assert_eq!(batch.is_shared_memory(), workers > 0);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let address = batch.as_bytes().as_ptr().addr();
            let memfd =
                maps.lines().any(|line| line.contains("memfd:loader-") && range(line).contains(&address));
            assert_eq!(memfd, workers > 0);
        }
    }
}

/// The addresses of a line of `/proc/self/maps`.
fn range(line: &str) -> std::ops::Range<usize> {
    let (addresses, _) = line.split_once(' ').unwrap();
    let (start, end) = addresses.split_once('-').unwrap();
    usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
}

// PyTorch: A07
#[test]
fn a_function_collates_in_the_worker() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let builder = DataLoader::builder(Count(5)).batch_size(2).num_workers(workers);
        let loader = builder.collate(|samples| Ok((samples.len(), std::process::id()))).build().unwrap();
        let batches = all(loader.iter().unwrap());
        assert_eq!(batches.iter().map(|(len, _)| *len).collect::<Vec<_>>(), [2, 2, 1]);
        assert!(batches.iter().all(|&(_, pid)| (pid == std::process::id()) == (workers == 0)));
        let builder = DataLoader::builder(Count(5)).num_workers(workers);
        let loader = builder.convert(|sample| Ok((sample, std::process::id()))).build().unwrap();
        let items = all(loader.iter().unwrap());
        assert!(items.iter().map(|(sample, _)| *sample).eq(0..5));
        assert!(items.iter().all(|&(_, pid)| (pid == std::process::id()) == (workers == 0)));
    }
}

/// PyTorch's `default_collate` fails on an empty batch; a batch sampler may make one here.
// PyTorch: C14
#[test]
fn an_empty_batch() {
    let _watchdog = Watchdog::start();
    #[derive(Debug)]
    struct OneEmpty;
    impl BatchSampler for OneEmpty {
        fn len(&self, _epoch: loader_core::sampler::Epoch) -> usize {
            2
        }

        fn batches(
            &self,
            _epoch: loader_core::sampler::Epoch,
        ) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
            Box::new([vec![], vec![1]].into_iter())
        }
    }
    fn check<B: Batch>(build: impl Fn(Way) -> Result<DataLoader<B>, Error>, len: fn(&B) -> usize) {
        for way in loader_tests::ways::WAYS {
            let batches = all(build(way).unwrap().iter().unwrap());
            assert_eq!(batches.iter().map(len).collect::<Vec<_>>(), [0, 1], "{way:?}");
        }
    }
    check(|way| way.of(DataLoader::builder(Count(2)).batch_sampler(OneEmpty)).build(), |batch| batch.len());
    check(
        |way| way.of(DataLoader::builder(These(points())).batch_sampler(OneEmpty)).build(),
        |batch| batch.label.len(),
    );
}
