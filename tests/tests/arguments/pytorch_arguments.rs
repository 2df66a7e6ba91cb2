//! The arguments: defaults, what is refused and in which order, what an option takes effect on.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use loader_core::{
    Builder, Error, LoaderOptions, Warning,
    kind::{Iterable, MapStyle, Plain},
    prelude::*,
    sampler::FixedBatches,
};
use loader_tests::{
    Watchdog,
    datasets::{Count, Shards},
    ways::{Way, all, numbers, one_epoch},
};

fn map() -> Builder<MapStyle<Count>> {
    DataLoader::builder(Count(10))
}

fn stream() -> Builder<Iterable<Plain<Shards>>> {
    DataLoader::stream(Shards { sizes: vec![10], says: Some(10) }).shards(1)
}

fn sampler() -> SequentialSampler {
    SequentialSampler::new(10)
}

fn batches() -> FixedBatches<SequentialSampler> {
    FixedBatches::new(sampler(), 2, false)
}

/// Names of the options that an error of `build()` is about.
fn blamed<B>(built: Result<DataLoader<B>, Error>) -> Vec<&'static str> {
    match built.map(drop).expect_err("it must be refused") {
        Error::InvalidOption { option, .. } => vec![option],
        Error::ConflictingOptions { first, second, .. } => vec![first, second],
        error => panic!("{error:?}"),
    }
}

// PyTorch: A02
#[test]
fn batch_size_is_1_by_default_and_positive() {
    let loader = map().build().unwrap();
    assert_eq!(loader.len(), Some(10));
    assert_eq!(all(loader.iter().unwrap())[9].shape(), [1]);
    assert_eq!(blamed(map().batch_size(0).build()), ["batch_size"]);
    assert_eq!(blamed(stream().batch_size(0).build()), ["batch_size"]);
}

/// What PyTorch lets through the constructor and refuses in `iter()` is refused by `build()`, too.
// PyTorch: A10, A14, A15
#[test]
fn what_needs_workers_is_refused_without() {
    assert_eq!(blamed(map().prefetch_factor(2).build()), ["prefetch_factor"]);
    assert_eq!(blamed(map().prefetch_factor(0).build()), ["prefetch_factor"]);
    assert_eq!(blamed(map().num_workers(1).prefetch_factor(0).build()), ["prefetch_factor"]);
    assert_eq!(blamed(map().persistent_workers(true).build()), ["persistent_workers"]);
    assert_eq!(blamed(map().timeout(Duration::from_secs(1)).build()), ["timeout"]);
    assert_eq!(blamed(stream().prefetch_factor(2).build()), ["prefetch_factor"]);
    assert_eq!(blamed(stream().persistent_workers(true).build()), ["persistent_workers"]);
    assert_eq!(blamed(stream().timeout(Duration::from_secs(1)).build()), ["timeout"]);
    // What says nothing is no mistake.
    assert!(map().persistent_workers(false).timeout(Duration::ZERO).build().is_ok());
    assert!(map().in_order(false).build().is_ok());
}

// PyTorch: A10
#[test]
fn a_negative_timeout_is_refused() {
    let mut options = LoaderOptions::default();
    options.timeout = Some(-1.0);
    assert_eq!(blamed(map().num_workers(1).options(options).build()), ["timeout"]);
}

/// The combinations that PyTorch refuses, all of those that can be written down here: `sampler`, `batch_sampler` and `shuffle` are no
/// methods of an iterable dataset's builder.
// PyTorch: 44, A03, A04, A05, 1.3
#[test]
fn invalid_combinations() {
    let cases = [
        (map().sampler(sampler()).shuffle(true), ["sampler", "shuffle"]),
        (map().sampler(sampler()).batch_sampler(batches()), ["batch_sampler", "sampler"]),
        (map().shuffle(true).batch_sampler(batches()), ["batch_sampler", "shuffle"]),
        (map().drop_last(true).batch_sampler(batches()), ["batch_sampler", "drop_last"]),
        (map().batch_size(2).batch_sampler(batches()), ["batch_sampler", "batch_size"]),
        // With all three, it is the two that exclude each other whatever else there is.
        (map().sampler(sampler()).shuffle(true).batch_sampler(batches()), ["sampler", "shuffle"]),
    ];
    for (builder, expected) in cases {
        assert_eq!(blamed(builder.build()), expected);
    }
    // Without batches.
    let unbatched = ["unbatched", "batch_size"];
    assert_eq!(blamed(map().batch_size(2).unbatched().build()), unbatched);
    assert_eq!(blamed(stream().batch_size(2).unbatched().build()), unbatched);
    assert_eq!(blamed(map().unbatched().drop_last(true).build()), ["unbatched", "drop_last"]);
    assert_eq!(blamed(stream().unbatched().drop_last(true).build()), ["unbatched", "drop_last"]);
    assert_eq!(blamed(map().unbatched().batch_sampler(batches()).build()), ["unbatched", "batch_sampler"]);
    // The one option of order that an iterable dataset can be given: through a config.
    let mut options = LoaderOptions::default();
    options.shuffle = Some(true);
    assert_eq!(blamed(stream().options(options).build()), ["shuffle"]);
}

/// The exclusion matrix, the cells that are allowed.
// PyTorch: A01, 1.3
#[test]
fn what_goes_together() {
    let good = [
        map().batch_sampler(batches()).batch_size(1),
        map().batch_sampler(batches()).shuffle(false).drop_last(false),
        map().batch_sampler(batches()).num_workers(1).prefetch_factor(3).persistent_workers(true),
        map().sampler(sampler()).batch_size(3).drop_last(true),
        map().sampler(sampler()).shuffle(false),
        map().shuffle(true).batch_size(3).drop_last(true),
        map().num_workers(1).timeout(Duration::from_secs(1)).in_order(false),
    ];
    for builder in good {
        let text = format!("{builder:?}");
        assert!(builder.build().is_ok(), "{text}");
    }
    assert!(map().unbatched().shuffle(true).build().is_ok());
    assert!(map().unbatched().sampler(sampler()).build().is_ok());
    assert!(map().unbatched().num_workers(1).prefetch_factor(1).build().is_ok());
    assert!(stream().unbatched().build().is_ok());
    assert!(stream().batch_size(3).drop_last(true).num_workers(1).persistent_workers(true).build().is_ok());
    let mut options = LoaderOptions::default();
    options.shuffle = Some(false);
    assert!(stream().options(options).build().is_ok());
}

/// When two things are wrong, the first of PyTorch's order is named: workers' options, then those of the order, then batches.
// PyTorch: 1.2
#[test]
fn order_of_validation() {
    let second = Duration::from_secs(1);
    let mut options = LoaderOptions::default();
    (options.timeout, options.prefetch_factor) = (Some(-1.0), Some(2));
    assert_eq!(blamed(map().options(options).build()), ["timeout"], "before prefetch_factor");
    let both = map().prefetch_factor(2).persistent_workers(true);
    assert_eq!(blamed(both.build()), ["prefetch_factor"], "before persistent_workers");
    let both = map().persistent_workers(true).sampler(sampler()).shuffle(true);
    assert_eq!(blamed(both.build()), ["persistent_workers"], "before the order");
    let both = map().sampler(sampler()).shuffle(true).batch_size(0);
    assert_eq!(blamed(both.build()), ["sampler", "shuffle"], "before batch_size");
    let both = map().batch_sampler(batches()).batch_size(0);
    assert_eq!(blamed(both.build()), ["batch_sampler", "batch_size"]);
    let mut options = LoaderOptions::default();
    (options.shuffle, options.batch_size) = (Some(true), Some(0));
    assert_eq!(blamed(stream().options(options).build()), ["shuffle"], "before batch_size");
    // PyTorch finds this in `iter()` alone, and so last.
    assert_eq!(blamed(map().timeout(second).prefetch_factor(2).build()), ["prefetch_factor"]);
}

// PyTorch: 81
#[test]
fn len_of_a_map_style_dataset() {
    let _watchdog = Watchdog::start();
    for (batch_size, drop_last, expected) in
        [(1, false, 100), (2, false, 50), (3, false, 34), (3, true, 33), (100, false, 1), (101, true, 0)]
    {
        let batches = one_epoch(|way| {
            let builder = DataLoader::builder(Count(100)).batch_size(batch_size).drop_last(drop_last);
            let loader = way.of(builder).build()?;
            assert_eq!(loader.len(), Some(expected));
            Ok(loader)
        });
        assert_eq!(batches.len(), expected, "the length is that of the epoch");
    }
    // Of an iterator: what is left.
    let loader = DataLoader::builder(Count(10)).batch_size(3).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    assert_eq!(batches.size_hint(), (3, Some(3)));
}

// PyTorch: 1.5
#[test]
fn len_is_that_of_the_sampler_or_the_user_s_batches() {
    assert_eq!(map().sampler(SequentialSampler::new(7)).batch_size(2).build().unwrap().len(), Some(4));
    assert_eq!(map().sampler(SequentialSampler::new(7)).unbatched().build().unwrap().len(), Some(7));
    assert_eq!(map().batch_sampler(batches()).build().unwrap().len(), Some(5));
    // Of an iterable dataset an estimate from its samples, which knows nothing of workers and shards.
    let stream = |workers| stream().batch_size(3).num_workers(workers);
    assert_eq!(stream(0).build().unwrap().len(), Some(4));
    assert_eq!(stream(3).shards(3).build().unwrap().len(), Some(4));
    assert_eq!(stream(3).drop_last(true).build().unwrap().len(), Some(3));
    let unknown = DataLoader::stream(Shards::of(&[10])).shards(1).build().unwrap();
    assert_eq!((unknown.len(), unknown.samples(), unknown.is_empty()), (None, None, false));
    assert_eq!(unknown.iter().unwrap().size_hint(), (0, None), "an iterator does not know either");
}

// PyTorch: 82, 1.5
#[test]
fn len_of_an_iterable_dataset() {
    for (batch_size, drop_last, expected) in
        [(1, false, 10), (1, true, 10), (2, false, 5), (2, true, 5), (3, false, 4), (3, true, 3)]
    {
        let loader = stream().batch_size(batch_size).drop_last(drop_last).build().unwrap();
        assert_eq!(loader.len(), Some(expected));
        assert_eq!(loader.iter().unwrap().count(), expected);
    }
    assert_eq!(stream().unbatched().build().unwrap().len(), Some(10));
}

/// A thousand workers are warned of when the loader is built, before one is started; no number is too small for a warning.
// PyTorch: 95, 1.6
#[test]
fn more_workers_than_processors() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let build = |workers| {
        let noted = Arc::clone(&warnings);
        let builder = map().num_workers(workers);
        builder.on_warning(move |warning| noted.lock().unwrap().push(warning.clone())).build().unwrap()
    };
    drop(build(1));
    assert!(warnings.lock().unwrap().is_empty());
    let cpus = std::thread::available_parallelism().unwrap().get();
    drop(build(cpus));
    assert!(warnings.lock().unwrap().is_empty(), "as many as there are is not too many");
    drop(build(1000));
    let warnings = warnings.lock().unwrap();
    assert_eq!(*warnings, [Warning::MoreWorkersThanCpus { workers: 1000, cpus }]);
    let text = warnings[0].to_string();
    assert!(
        text.contains("num_workers is 1000") && text.contains(&format!("use {cpus} processors")),
        "{text}"
    );
}

// PyTorch: A09, F03, N20, U21
#[test]
fn drop_last_drops_the_tail_of_the_sampler_and_of_each_shard() {
    let _watchdog = Watchdog::start();
    let kept = one_epoch(|way| {
        let builder = DataLoader::builder(Count(10)).sampler(SequentialSampler::new(8));
        way.of(builder.batch_size(3).drop_last(true)).build()
    });
    assert_eq!(numbers(&kept), [[0, 1, 2], [3, 4, 5]]);
    let kept = one_epoch(|way| {
        let builder = DataLoader::stream(Shards::of(&[4, 5, 2])).shards(3);
        way.of(builder.batch_size(3).drop_last(true)).build()
    });
    assert_eq!(numbers(&kept), [[0, 1, 2], [4, 5, 6]]);
    // A batch that is larger than the dataset.
    let none = one_epoch(|way: Way| way.of(map().batch_size(11).drop_last(true)).build());
    assert!(none.is_empty());
    let some = one_epoch(|way: Way| way.of(map().batch_size(11)).build());
    assert_eq!(some[0].len(), 10);
}
