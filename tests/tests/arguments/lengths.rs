//! Lengths of loaders and iterators, and `drop_last`.

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting, Noise, Shards},
    ways::{all, numbers, one_epoch},
};

// PyTorch: 81, A02
#[test]
fn a_map_style_loader_has_the_length_of_its_epoch() {
    let _watchdog = Watchdog::start();
    for (batch_size, drop_last, expected) in [
        (1, false, 100),
        (2, false, 50),
        (3, false, 34),
        (3, true, 33),
        (100, false, 1),
        (101, false, 1),
        (101, true, 0),
    ] {
        let batches = one_epoch(|way| {
            let builder = DataLoader::builder(Count(100)).batch_size(batch_size).drop_last(drop_last);
            let loader = way.apply(builder).build()?;
            assert_eq!(loader.len(), Some(expected));
            Ok(loader)
        });
        assert_eq!(batches.len(), expected, "batch_size {batch_size}, drop_last {drop_last}");
        if !drop_last {
            assert_eq!(numbers(&batches).concat().len(), 100);
        }
    }
    let by_default = DataLoader::builder(Count(10)).build().unwrap();
    assert_eq!(by_default.len(), Some(10));
    assert_eq!(all(by_default.iter().unwrap())[9].shape(), [1], "batch_size is 1 by default");
}

// PyTorch: 81
#[test]
fn an_iterator_knows_how_many_batches_remain() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        for (drop_last, batches, samples) in [(false, 13, 103), (true, 12, 96)] {
            let builder = DataLoader::builder(Noise { count: 103 }).batch_size(8).drop_last(drop_last);
            let mut iter = builder.num_workers(workers).build().unwrap().iter().unwrap();
            assert_eq!(iter.size_hint(), (batches, Some(batches)));
            let first = iter.next().unwrap().unwrap().0.len();
            assert_eq!(iter.size_hint(), (batches - 1, Some(batches - 1)));
            let rest: usize = iter.by_ref().map(|batch| batch.unwrap().0.len()).sum();
            assert_eq!(first + rest, samples);
            assert_eq!(iter.size_hint(), (0, Some(0)));
            let report = iter.report();
            assert_eq!((report.batches, report.samples), (batches as u64, samples as u64));
        }
    }
}

// PyTorch: 67, 68, 1.5
#[test]
fn a_sampler_determines_the_length() {
    let map = || DataLoader::builder(Count(10));
    assert_eq!(map().sampler(SequentialSampler::new(7)).batch_size(2).build().unwrap().len(), Some(4));
    assert_eq!(map().sampler(SequentialSampler::new(7)).unbatched().build().unwrap().len(), Some(7));
    for (replacement, batch_size, expected) in
        [(true, 1, 105), (true, 6, 18), (false, 1, 105), (false, 6, 18)]
    {
        let sampler = RandomSampler::new(10).replacement(replacement).num_samples(105).unwrap();
        let loader = map().sampler(sampler).batch_size(batch_size).build().unwrap();
        assert_eq!((loader.len(), loader.iter().unwrap().count()), (Some(expected), expected));
    }
    let batches = loader_core::sampler::FixedBatches::new(SequentialSampler::new(10), 2, false);
    assert_eq!(map().batch_sampler(batches).build().unwrap().len(), Some(5));
}

/// The length of an iterable dataset's loader is computed from the number of samples, whatever the shards
/// are.
// PyTorch: 82, 1.5
#[test]
fn a_stream_s_length_is_computed_from_its_samples() {
    let stream = || DataLoader::stream(Shards { sizes: vec![10], stated_len: Some(10) });
    for (batch_size, drop_last, expected) in
        [(1, false, 10), (1, true, 10), (2, false, 5), (2, true, 5), (3, false, 4), (3, true, 3)]
    {
        let builder = || stream().batch_size(batch_size).drop_last(drop_last);
        let loader = builder().shards(1).build().unwrap();
        assert_eq!(loader.len(), Some(expected));
        assert_eq!(loader.iter().unwrap().count(), expected);
        assert_eq!(builder().num_workers(3).shards(3).build().unwrap().len(), Some(expected));
        assert_eq!(builder().num_workers(3).build().unwrap().len(), Some(expected));
    }
    assert_eq!(stream().unbatched().build().unwrap().len(), Some(10));
    let unknown = DataLoader::stream(Shards::of(&[10])).shards(1).build().unwrap();
    assert_eq!((unknown.len(), unknown.samples(), unknown.is_empty()), (None, None, false));
    assert_eq!(unknown.iter().unwrap().size_hint(), (0, None));
}

// PyTorch: 1.5
#[test]
fn the_length_of_a_rank_of_a_stream_is_that_of_its_share() {
    for world in [1, 2, 4] {
        let builder = DataLoader::stream(Counting { count: 48 }).distributed(0, world).batch_size(3);
        let loader = builder.build().unwrap();
        assert_eq!(loader.len(), Some(16 / world), "{world} ranks");
        assert_eq!(loader.iter().unwrap().count(), 16 / world);
    }
}

// PyTorch: A09, F03, N20, U21
#[test]
fn drop_last_drops_the_incomplete_batch_of_the_sampler_or_of_each_shard() {
    let _watchdog = Watchdog::start();
    let kept = one_epoch(|way| {
        let builder = DataLoader::builder(Count(10)).sampler(SequentialSampler::new(8));
        way.apply(builder.batch_size(3).drop_last(true)).build()
    });
    assert_eq!(numbers(&kept), [[0, 1, 2], [3, 4, 5]]);
    let kept = one_epoch(|way| {
        let builder = DataLoader::stream(Shards::of(&[4, 5, 2])).shards(3);
        way.apply(builder.batch_size(3).drop_last(true)).build()
    });
    assert_eq!(numbers(&kept), [[0, 1, 2], [4, 5, 6]]);
}
