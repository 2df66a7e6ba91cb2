//! Whole epochs: every sample comes once, the batches do not depend on what loads them, and iterators are
//! independent of each other.

use std::{collections::BTreeSet, thread, time::Duration};

use loader_core::{Error, Iter, Verdict, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise, Shards, Slow},
    digest, processes,
    ways::{WAYS, Way, all, numbers, one_epoch, two_epochs},
};

type NoiseBatch = (Tensor<u64>, Tensor<f32>, Vec<String>);

fn noise(workers: usize) -> DataLoader<NoiseBatch> {
    let builder = DataLoader::builder(Noise { count: 103 }).batch_size(8).shuffle(true).seed(5);
    builder.num_workers(workers).build().unwrap()
}

// PyTorch: 48, A14, U12
#[test]
fn batches_do_not_depend_on_the_number_of_workers_and_tasks() {
    let _watchdog = Watchdog::start();
    let reference = noise(0);
    let expected: Vec<_> = (0..3).map(|epoch| digest(reference.epoch(epoch).unwrap()).unwrap()).collect();
    assert_ne!(expected[0], expected[1], "each epoch has its own order and noise");
    for workers in [1, 2, 4, 7] {
        let loader = noise(workers);
        for (epoch, expected) in expected.iter().enumerate() {
            let batches = loader.iter().unwrap();
            assert_eq!(batches.epoch(), epoch as u64);
            assert_eq!(digest(batches).unwrap(), *expected, "{workers} workers, epoch {epoch}");
        }
    }
    for prefetch in [1, 2, 9] {
        let builder = DataLoader::builder(Noise { count: 103 }).batch_size(8).shuffle(true).seed(5);
        let loader = builder.num_workers(2).prefetch_factor(prefetch).build().unwrap();
        assert_eq!(digest(loader.iter().unwrap()).unwrap(), expected[0], "prefetch_factor {prefetch}");
    }
}

/// The dataset of PyTorch's tests: 100 images of shape `[2, 3, 5]` with labels.
fn images() -> TensorDataset<(Tensor<f32>, Tensor<i64>)> {
    let pixels = (0..3000).map(|pixel| (pixel as f32).sin()).collect();
    let labels = (0..100).map(|index| index * 7 % 100).collect();
    let tensors =
        (Tensor::from_vec(pixels, [100, 2, 3, 5]).unwrap(), Tensor::from_vec(labels, [100]).unwrap());
    TensorDataset::new(tensors).unwrap()
}

/// Checks that each image comes with its label, and returns the indices of the samples in order. The items
/// may be batches or single samples.
fn order(items: &[(Tensor<f32>, Tensor<i64>)]) -> Vec<usize> {
    let (images, labels) = images().tensors();
    let mut order = Vec::new();
    for (pixels, found) in items {
        assert_eq!(pixels.shape(), [found.shape(), &[2, 3, 5]].concat());
        for (image, label) in pixels.as_slice().chunks(30).zip(found.as_slice()) {
            let index = labels.as_slice().iter().position(|known| known == label).unwrap();
            assert_eq!(image, images.row(index), "the image of label {label}");
            order.push(index);
        }
    }
    order
}

// PyTorch: 34, 35, 56, 57, 58, 60, 61, 62, 63, 64, 65, A02, A03, F02
#[test]
fn every_image_comes_once_with_its_label() {
    let _watchdog = Watchdog::start();
    for shuffle in [false, true] {
        let builder = || DataLoader::builder(images()).shuffle(shuffle);
        let check = |items: &[_], len: usize| {
            assert_eq!(items.len(), len);
            let order = order(items);
            assert_eq!(order.is_sorted(), !shuffle);
            assert!(order.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..100));
            assert_eq!(order.len(), 100);
            order
        };
        for batch_size in [1, 2] {
            let epochs = two_epochs(|way| way.apply(builder().batch_size(batch_size)).build());
            let orders = epochs.map(|batches| check(&batches, 100 / batch_size));
            assert_eq!(orders[0] != orders[1], shuffle, "each shuffled epoch has its own order");
        }
        let single = one_epoch(|way| way.apply(builder().unbatched()).build());
        assert!(single.iter().all(|(_, label)| label.rank() == 0));
        check(&single, 100);
        for prefetch in [1, 3, 50] {
            let loader = builder().batch_size(2).num_workers(4).prefetch_factor(prefetch).build().unwrap();
            check(&all(loader.iter().unwrap()), 50);
        }
    }
}

// PyTorch: 59, A13
#[test]
fn the_seed_determines_the_order() {
    let _watchdog = Watchdog::start();
    let epochs = |seed| {
        two_epochs(|way| {
            way.apply(DataLoader::builder(Count(100)).batch_size(10).shuffle(true).seed(seed)).build()
        })
        .map(|batches| numbers(&batches))
    };
    assert_eq!(epochs(42), epochs(42));
    assert_ne!(epochs(42), epochs(43));
}

// PyTorch: 45
#[test]
fn an_epoch_can_be_collected() {
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

/// Two iterators are of one loader, the third is of another one.
// PyTorch: 39, A06, A30, X22
#[test]
fn iterators_that_live_at_once_have_their_own_workers() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build = |seed| {
            let builder = DataLoader::builder(Noise { count: 100 }).batch_size(3).shuffle(true).seed(seed);
            way.apply(builder).build().unwrap()
        };
        let (loader, other) = (build(1), build(2));
        let (one, two, three) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap(), other.iter().unwrap());
        let pids = [one.worker_pids(), two.worker_pids(), three.worker_pids()].concat();
        assert_eq!(pids.iter().collect::<BTreeSet<_>>().len(), 3 * way.workers);
        let mut samples = 0;
        for ((one, two), three) in one.zip(two).zip(three) {
            let one = one.unwrap();
            assert_eq!(one, two.unwrap());
            samples += one.0.len();
            assert!(three.is_ok());
        }
        assert_eq!(samples, 100);
        drop((loader, other));
        assert!(pids.iter().all(|&pid| !processes::exists(pid)), "{way:?}");
    }
}

/// In PyTorch, nested loops over one loader with persistent workers disturb each other, because both use one
/// iterator.
// PyTorch: A31
#[test]
fn nested_loops_over_one_loader_are_independent() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.apply(DataLoader::builder(Count(4)).batch_size(2)).build().unwrap();
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

// PyTorch: A34, U29
#[test]
fn validation_does_not_change_training() {
    let _watchdog = Watchdog::start();
    let build = |way: Way| {
        way.apply(DataLoader::builder(Noise { count: 20 }).batch_size(4).shuffle(true).seed(1))
            .build()
            .unwrap()
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

// PyTorch: A32
#[test]
fn after_its_end_an_iterator_returns_none_again() {
    let _watchdog = Watchdog::start();
    fn check<B: Batch>(mut batches: Iter<B>) {
        batches.by_ref().for_each(drop);
        assert!((0..3).all(|_| batches.next().is_none()));
    }
    for way in WAYS {
        let map = way.apply(DataLoader::builder(Count(4))).build().unwrap();
        let stream = way.apply(DataLoader::stream(Shards::of(&[4, 1])).shards(2)).build().unwrap();
        for _ in 0..2 {
            check(map.iter().unwrap());
            check(stream.iter().unwrap());
        }
    }
}

// PyTorch: X01
#[test]
fn workers_are_reaped_before_the_iterator_returns_none() {
    let _watchdog = Watchdog::start();
    let loader = noise(3);
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(pids.len(), 3);
    batches.by_ref().for_each(drop);
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}

// PyTorch: A06, 3.10g, N17
#[test]
fn there_may_be_more_workers_than_batches() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        for prefetch in [1, 2, 5] {
            let builder = DataLoader::builder(Count(3)).num_workers(5).prefetch_factor(prefetch);
            let loader = builder.persistent_workers(persistent).build().unwrap();
            for _ in 0..2 {
                let batches = loader.iter().unwrap();
                assert_eq!(batches.worker_pids().len(), 5);
                assert_eq!(numbers(&all(batches)).concat(), [0, 1, 2]);
            }
        }
    }
}

/// Linux can bind a child to the thread that started it; the workers must not be.
// PyTorch: P-28
#[test]
fn an_iterator_outlives_its_thread_and_can_be_moved() {
    let _watchdog = Watchdog::start();
    let batches = thread::spawn(|| noise(2).epoch(0).unwrap()).join().unwrap();
    // By now the kernel would have killed workers that were bound to the thread.
    thread::sleep(Duration::from_millis(100));
    let there = thread::spawn(move || digest(batches).unwrap()).join().unwrap();
    assert_eq!(there, digest(noise(0).epoch(0).unwrap()).unwrap());
}

// PyTorch: U25
#[test]
fn the_report_tells_whether_loading_or_the_step_is_the_bottleneck() {
    let _watchdog = Watchdog::start();
    let run = |load: u64, step: u64| {
        let dataset = Slow { count: 10, delay: Duration::from_millis(load) };
        let loader = DataLoader::builder(dataset).num_workers(1).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().for_each(|_| thread::sleep(Duration::from_millis(step)));
        batches.report().verdict()
    };
    assert_eq!(run(10, 0), Verdict::LoaderBound);
    assert_eq!(run(0, 60), Verdict::StepBound);
}
