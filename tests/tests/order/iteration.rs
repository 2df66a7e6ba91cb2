//! Epochs in every way: order, content, what an iterator is.

use std::collections::BTreeSet;

use loader_core::{Error, Iter, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise, Shards},
    processes,
    ways::{WAYS, Way, all, numbers, one_epoch, two_epochs},
};

const SAMPLES: usize = 100;

type Images = TensorDataset<(Tensor<f32>, Tensor<i64>)>;
type ImageBatch = (Tensor<f32>, Tensor<i64>);

/// What PyTorch's tests load: images `[100, 2, 3, 5]` with labels.
fn images() -> Images {
    let pixels = (0..SAMPLES * 30).map(|pixel| (pixel as f32).sin()).collect();
    let labels = (0..SAMPLES as i64).map(|index| index * 7 % SAMPLES as i64).collect();
    let tensors =
        (Tensor::from_vec(pixels, [SAMPLES, 2, 3, 5]).unwrap(), Tensor::from_vec(labels, [SAMPLES]).unwrap());
    TensorDataset::new(tensors).unwrap()
}

/// Checks that each image comes with its label, and gives the numbers of the samples in the order of their coming.
fn order(batches: &[ImageBatch]) -> Vec<usize> {
    let (images, labels) = images().tensors();
    let mut order = Vec::new();
    for (pixels, found) in batches {
        assert_eq!(pixels.shape(), [found.len(), 2, 3, 5]);
        for (row, &label) in found.as_slice().iter().enumerate() {
            let index = labels.as_slice().iter().position(|&known| known == label).unwrap();
            assert_eq!(pixels.row(row), images.row(index), "the image of label {label}");
            order.push(index);
        }
    }
    order
}

// PyTorch: 35, 60, 61, 62
#[test]
fn in_order() {
    let _watchdog = Watchdog::start();
    for batch_size in [1, 2] {
        let epochs = two_epochs(|way| way.of(DataLoader::builder(images()).batch_size(batch_size)).build());
        for batches in epochs {
            assert_eq!(batches.len(), SAMPLES / batch_size);
            assert!(order(&batches).into_iter().eq(0..SAMPLES));
        }
    }
    for prefetch in [1, 3, 50] {
        let loader = DataLoader::builder(images()).batch_size(2).num_workers(4).prefetch_factor(prefetch);
        assert!(order(&all(loader.build().unwrap().iter().unwrap())).into_iter().eq(0..SAMPLES));
    }
}

// PyTorch: 34, A02, F02
#[test]
fn in_order_without_batches() {
    let _watchdog = Watchdog::start();
    let (images, labels) = images().tensors();
    let items = one_epoch(|way| way.of(DataLoader::builder(crate::iteration::images()).unbatched()).build());
    assert_eq!(items.len(), SAMPLES);
    for (index, (image, label)) in items.iter().enumerate() {
        assert_eq!((image.shape(), label.rank()), ([2, 3, 5].as_slice(), 0));
        assert_eq!((image.as_slice(), label.as_slice()), (images.row(index), labels.row(index)));
    }
}

// PyTorch: 56, 58, 63, 64, 65, A03
#[test]
fn shuffled() {
    let _watchdog = Watchdog::start();
    for batch_size in [1, 2] {
        let epochs = two_epochs(|way| {
            way.of(DataLoader::builder(images()).batch_size(batch_size).shuffle(true)).build()
        });
        let orders = epochs.map(|batches| order(&batches));
        for order in &orders {
            assert!(!order.is_sorted());
            assert!(order.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..SAMPLES), "each once");
        }
        assert_ne!(orders[0], orders[1], "each epoch has its own");
    }
    let loader = DataLoader::builder(images()).batch_size(2).shuffle(true).num_workers(4).prefetch_factor(3);
    assert_eq!(order(&all(loader.build().unwrap().iter().unwrap())).len(), SAMPLES);
}

// PyTorch: 57
#[test]
fn shuffled_without_batches() {
    let _watchdog = Watchdog::start();
    let items = one_epoch(|way| way.of(DataLoader::builder(images()).unbatched().shuffle(true)).build());
    let labels: BTreeSet<i64> = items.iter().map(|(_, label)| label.as_slice()[0]).collect();
    assert!(labels.into_iter().eq(0..SAMPLES as i64));
    let (images, labels) = images().tensors();
    for (image, label) in &items {
        let index = labels.as_slice().iter().position(|known| known == &label.as_slice()[0]).unwrap();
        assert_eq!(image.as_slice(), images.row(index));
    }
}

// PyTorch: 59, A13
#[test]
fn the_same_seed_is_the_same_order_whatever_the_workers() {
    let _watchdog = Watchdog::start();
    let epochs = |seed: u64| {
        two_epochs(|way| way.of(DataLoader::builder(images()).shuffle(true).seed(seed)).build())
            .map(|batches| order(&batches))
    };
    assert_eq!(epochs(42), epochs(42));
    assert_ne!(epochs(42), epochs(43));
}

// PyTorch: 45
#[test]
fn into_collections() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        let map = DataLoader::builder(Count(6)).batch_size(2).num_workers(workers).build().unwrap();
        let list: Result<Vec<Tensor<u64>>, Error> = map.iter().unwrap().collect();
        assert_eq!(numbers(&list.unwrap()), [[0, 1], [2, 3], [4, 5]]);
        let single = DataLoader::builder(Count(3)).unbatched().num_workers(workers).build().unwrap();
        assert_eq!(single.iter().unwrap().collect::<Result<BTreeSet<_>, _>>().unwrap().len(), 3);
        let stream = DataLoader::stream(Shards::of(&[5])).batch_size(2).shards(1).num_workers(workers);
        let list: Result<Box<[_]>, Error> = stream.build().unwrap().iter().unwrap().collect();
        assert_eq!(numbers(&list.unwrap()), [vec![0, 1], vec![2, 3], vec![4]]);
        let single = DataLoader::stream(Shards::of(&[3])).unbatched().shards(1).num_workers(workers);
        assert!(all(single.build().unwrap().iter().unwrap()).into_iter().eq(0..3));
    }
}

// PyTorch: 39, A06, A30, X22
#[test]
fn two_iterators_side_by_side() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(images()).batch_size(3)).build().unwrap();
        let other = way.of(DataLoader::builder(images()).batch_size(3).shuffle(true)).build().unwrap();
        let (one, two, three) = (loader.iter().unwrap(), loader.iter().unwrap(), other.iter().unwrap());
        let pids = [one.worker_pids(), two.worker_pids(), three.worker_pids()].concat();
        assert_eq!(pids.iter().collect::<BTreeSet<_>>().len(), 3 * way.workers, "each has its own workers");
        let mut batches = [Vec::new(), Vec::new()];
        for ((one, two), three) in one.zip(two).zip(three) {
            assert!(three.is_ok());
            batches[0].push(one.unwrap());
            batches[1].push(two.unwrap());
        }
        assert_eq!(batches[0], batches[1]);
        assert!(order(&batches[0]).into_iter().eq(0..SAMPLES));
        drop((loader, other));
        assert!(pids.iter().all(|&pid| !processes::exists(pid)), "{way:?}");
    }
}

/// PyTorch's nested loops over one loader with persistent workers disturb each other: both are one iterator.
// PyTorch: A31
#[test]
fn nested_loops_over_one_loader() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Count(4)).batch_size(2)).build().unwrap();
        let mut pairs = Vec::new();
        for outer in loader.iter().unwrap() {
            let outer = outer.unwrap();
            for inner in loader.iter().unwrap() {
                pairs.push((outer.as_slice()[0], inner.unwrap().as_slice()[0]));
            }
        }
        assert_eq!(pairs, [(0, 0), (0, 2), (2, 0), (2, 2)], "{way:?}");
    }
}

// PyTorch: A32
#[test]
fn the_end_stays_the_end() {
    let _watchdog = Watchdog::start();
    fn check<B: Batch>(mut batches: Iter<B>) {
        batches.by_ref().for_each(drop);
        assert!((0..3).all(|_| batches.next().is_none()));
    }
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Count(4))).build().unwrap();
        check(loader.iter().unwrap());
        check(loader.iter().unwrap());
        let loader = way.of(DataLoader::stream(Shards::of(&[4, 1])).shards(2)).build().unwrap();
        check(loader.iter().unwrap());
        check(loader.iter().unwrap());
    }
}

// PyTorch: A34, U29
#[test]
fn validation_does_not_change_training() {
    let _watchdog = Watchdog::start();
    let build = |way: Way| {
        way.of(DataLoader::builder(Noise { count: 20 }).batch_size(4).shuffle(true).seed(1)).build().unwrap()
    };
    for way in WAYS {
        let (plain, disturbed) = (build(way), build(way));
        let validation = build(WAYS[0]);
        for _ in 0..3 {
            let expected = all(plain.iter().unwrap());
            drop(validation.iter().unwrap().next());
            drop(disturbed.epoch(17).unwrap().next());
            assert_eq!(all(disturbed.iter().unwrap()), expected, "{way:?}");
        }
    }
}

// PyTorch: A06, 3.10g, N17
#[test]
fn more_workers_than_batches() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        for prefetch in [1, 2, 5] {
            let builder = DataLoader::builder(Count(3)).num_workers(5).prefetch_factor(prefetch);
            let loader = builder.persistent_workers(stays).build().unwrap();
            for _ in 0..2 {
                let batches = loader.iter().unwrap();
                assert_eq!(batches.worker_pids().len(), 5);
                assert_eq!(numbers(&all(batches)).concat(), [0, 1, 2]);
            }
        }
    }
}
