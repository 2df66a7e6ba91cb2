//! Datasets and what is made of several.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use loader_core::{ComposeError, TensorRow, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::Count,
    ways::{numbers, one_epoch},
};
use serde::{Deserialize, Serialize};

fn cx() -> SampleContext {
    SampleContext::new(0)
}

/// `15` rows of `[10, 2, 3]`, each number in them its place.
fn rows() -> Tensor<f32> {
    Tensor::from_vec((0..900).map(|n| n as f32).collect(), [15, 10, 2, 3]).unwrap()
}

fn labels() -> Tensor<i64> {
    Tensor::from_vec((0..15).map(|n| n * n).collect(), [15]).unwrap()
}

// PyTorch: 10, 11, 12, 13, 14, D04
#[test]
fn rows_of_tensors() {
    let dataset = TensorDataset::new((rows(), labels())).unwrap();
    assert_eq!(dataset.len(), 15);
    for index in 0..15 {
        let (row, label) = dataset.get(index, &mut cx()).unwrap();
        assert_eq!((row.shape(), row.as_slice()), ([10, 2, 3].as_slice(), rows().row(index)));
        // Of a tensor of one dimension a row is a number.
        assert_eq!((label.shape(), label.as_slice()), ([].as_slice(), [(index * index) as i64].as_slice()));
    }
    assert!(dataset.get(15, &mut cx()).is_err());
    let (one,): (TensorRow<i64>,) = TensorDataset::new((labels(),)).unwrap().get(3, &mut cx()).unwrap();
    assert_eq!(one.as_slice(), [9]);
    assert_eq!(
        TensorDataset::new(labels()).unwrap().get(3, &mut cx()).unwrap().as_slice(),
        [9],
        "or without the tuple"
    );
    let four = TensorDataset::new((rows(), labels(), labels(), rows())).unwrap();
    let (a, b, c, d) = four.get(7, &mut cx()).unwrap();
    assert!(a == d && b == c);
    let short = Tensor::<u8>::zeros([14]).unwrap();
    let error = TensorDataset::new((rows(), short)).unwrap_err();
    assert!(matches!(error, ComposeError::LengthsDiffer { expected: 15, found: 14, .. }), "{error:?}");
}

// PyTorch: 15, 17, 18, 19, 20, D05
#[test]
fn side_by_side() {
    let tensors = || TensorDataset::new(labels()).unwrap();
    let stack = StackDataset::new((tensors(), Count(15))).unwrap();
    assert_eq!(stack.len(), 15);
    let (label, number) = stack.get(4, &mut cx()).unwrap();
    assert_eq!((label.as_slice(), number), ([16].as_slice(), 4));
    let single = StackDataset::new((Count(15),)).unwrap();
    assert_eq!((single.len(), single.get(14, &mut cx()).unwrap()), (15, (14,)));
    let named = |a: usize, b: usize| BTreeMap::from([("a".to_owned(), Count(a)), ("b".to_owned(), Count(b))]);
    let map = StackDataset::new(named(15, 15)).unwrap();
    assert_eq!((map.len(), map.get(2, &mut cx()).unwrap()["b"]), (15, 2));
    let error = StackDataset::new((tensors(), Count(14))).unwrap_err();
    assert!(matches!(error, ComposeError::LengthsDiffer { expected: 15, found: 14, .. }), "{error:?}");
    assert!(matches!(StackDataset::new(named(15, 16)), Err(ComposeError::LengthsDiffer { .. })));
    let nothing = StackDataset::new(BTreeMap::<String, Count>::new()).unwrap_err();
    assert!(matches!(nothing, ComposeError::NoParts { .. }), "{nothing:?}");
}

/// Loads many at once, and sometimes one too few.
#[derive(Default, Serialize, Deserialize)]
struct Many {
    forgets: bool,
    #[serde(skip)]
    asked: AtomicUsize,
}

impl Dataset for Many {
    type Sample = u64;

    fn len(&self) -> usize {
        4
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        anyhow::ensure!(indices.iter().all(|&index| index < 4), "no such index");
        let kept = indices.len() - usize::from(self.forgets);
        Ok(indices[..kept].iter().map(|&index| index as u64).collect())
    }
}

// PyTorch: 21, 22, 23
#[test]
fn many_at_once() {
    let stack = StackDataset::new((Many::default(), Count(4))).unwrap();
    let many = stack.get_many(&[0, 1, 3, 2], &mut cx()).unwrap();
    assert_eq!(many, [(0, 0), (1, 1), (3, 3), (2, 2)]);
    assert_eq!(stack.parts().0.asked.load(Ordering::SeqCst), 1, "for all of them");
    let error = stack.get_many(&[0, 4], &mut cx()).unwrap_err();
    assert_eq!(format!("{error:#}"), "dataset 0 of the stack: no such index");
    let forgetful = StackDataset::new((Count(4), Many { forgets: true, ..Many::default() })).unwrap();
    let error = forgetful.get_many(&[0, 1, 2, 3], &mut cx()).unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "dataset 1 of the stack: get_many was asked for 4 samples and returned 3"
    );
}

/// A dataset without `get_many`, and with one, by itself and within others: the same batches.
// PyTorch: D02, F01, U27
#[test]
fn get_many_is_asked_where_there_is_one() {
    let _watchdog = Watchdog::start();
    let expected = numbers(&one_epoch(|way| way.of(DataLoader::builder(Count(4)).batch_size(3)).build()));
    let batches = one_epoch(|way| way.of(DataLoader::builder(Many::default()).batch_size(3)).build());
    assert_eq!(numbers(&batches), expected);
    let batches = one_epoch(|way| {
        let whole =
            ConcatDataset::new([Many::default(), Many::default()]).unwrap().map(|number, _| Ok(number % 4));
        way.of(DataLoader::builder(whole).batch_size(3)).build()
    });
    assert_eq!(numbers(&batches).concat(), [0, 1, 2, 3, 0, 1, 2, 3]);
}

/// `lens` datasets one after the other, whose samples are numbered through.
fn concat(lens: &[usize]) -> ConcatDataset<TensorDataset<Tensor<u64>>> {
    let mut next = 0;
    let members = lens.iter().map(|&len| {
        let first = next;
        next += len as u64;
        TensorDataset::new(Tensor::from_vec((first..next).collect(), [len]).unwrap()).unwrap()
    });
    ConcatDataset::new(members).unwrap()
}

// PyTorch: 24, 25, 26, 27, D06
#[test]
fn one_after_the_other() {
    for lens in [vec![1, 1], vec![5, 5], vec![5, 0, 5], vec![0, 3, 0]] {
        let whole = concat(&lens);
        assert_eq!(whole.len(), lens.iter().sum::<usize>());
        for index in 0..whole.len() {
            assert_eq!(whole.get(index, &mut cx()).unwrap().as_slice(), [index as u64], "{lens:?}");
        }
        let error = whole.get(whole.len() + 1, &mut cx()).unwrap_err();
        assert!(error.to_string().contains("samples"), "{error}");
        assert_eq!(whole.locate(whole.len()), None);
    }
    assert_eq!(concat(&[5, 0, 5]).locate(5), Some((2, 0)), "not the empty one");
    let nothing = ConcatDataset::<Count>::new([]).unwrap_err();
    assert!(matches!(nothing, ComposeError::NoParts { .. }), "{nothing:?}");
}

// PyTorch: 28, D01
#[test]
fn plus_concatenates() {
    let _watchdog = Watchdog::start();
    let batches = one_epoch(|way| {
        let whole = Count(7)
            .concat(Count(7).map(|number, _| Ok(number + 7)))
            .concat(Count(7).map(|number, _| Ok(number + 14)));
        assert_eq!(whole.len(), 21);
        way.of(DataLoader::builder(whole).batch_size(4)).build()
    });
    assert!(numbers(&batches).concat().into_iter().eq(0..21));
}

/// A transform is a function of the sample, and may draw: what it draws is the sample's.
// PyTorch: D03
#[test]
fn map_for_both_kinds() {
    let _watchdog = Watchdog::start();
    let map =
        one_epoch(|way| way.of(DataLoader::builder(Count(5).map(|n, _| Ok(n * 10))).batch_size(5)).build());
    assert_eq!(map[0].as_slice(), [0, 10, 20, 30, 40]);
    let stream = one_epoch(|way| {
        let dataset = loader_tests::datasets::Shards::of(&[5]).map(|n, _| Ok(n * 10));
        way.of(DataLoader::stream(dataset).shards(1).batch_size(5)).build()
    });
    assert_eq!(stream[0].as_slice(), [0, 10, 20, 30, 40]);
}
