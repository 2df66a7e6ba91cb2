//! Which options `build()` accepts, which it refuses, and which option its error names.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use loader_core::{
    Builder, Error, LoaderOptions, Warning,
    config::Config,
    kind::{Iterable, MapStyle, Plain},
    prelude::*,
    sampler::FixedBatches,
};
use loader_tests::datasets::{Count, Shards};

const SECOND: Duration = Duration::from_secs(1);

fn map() -> Builder<MapStyle<Count>> {
    DataLoader::builder(Count(10))
}

fn stream() -> Builder<Iterable<Plain<Shards>>> {
    DataLoader::stream(Shards { sizes: vec![10], stated_len: Some(10) }).shards(1)
}

fn sampler() -> SequentialSampler {
    SequentialSampler::new(10)
}

fn batches() -> FixedBatches<SequentialSampler> {
    FixedBatches::new(sampler(), 2, false)
}

fn options() -> LoaderOptions {
    LoaderOptions::default()
}

/// Returns the names of the options that the error of `build()` is about. Its text must begin with them.
fn named<B>(built: Result<DataLoader<B>, Error>) -> Vec<&'static str> {
    let error = built.map(drop).expect_err("build() must refuse this");
    let (names, beginning) = match error {
        Error::InvalidOption { option, .. } => (vec![option], format!("{option}: ")),
        Error::ConflictingOptions { first, second, .. } => {
            (vec![first, second], format!("{first} and {second} exclude each other: "))
        }
        _ => panic!("{error:?}"),
    };
    assert!(error.to_string().starts_with(&beginning), "{error}");
    names
}

/// The error must also say what to do.
// PyTorch: A02, A10, A14
#[test]
fn invalid_values_are_refused_with_a_hint() {
    let cases = [
        (map().batch_size(0), "batch_size", "use 1 or more"),
        (map().num_workers(1_000_000), "num_workers", "more than 4096"),
        (map().num_workers(1).prefetch_factor(0), "prefetch_factor", "use 1 or more"),
        (map().num_workers(2).prefetch_factor(usize::MAX / 2 + 1), "prefetch_factor", "more than 65536"),
        (map().num_workers(1).shared_memory_limit(1000), "shared_memory_limit", "use 65536 or more"),
        (map().prefetch_factor(2), "prefetch_factor", "set num_workers"),
        (map().timeout(SECOND), "timeout", "set num_workers"),
        (map().distributed(3, 3), "rank", "should be in the interval [0, 2]"),
        (map().distributed(0, 0), "world_size", "must be at least 1"),
    ];
    for (builder, name, hint) in cases {
        match builder.build().map(drop) {
            Err(Error::InvalidOption { option, problem }) => {
                assert_eq!(option, name);
                assert!(problem.contains(hint), "{name}: {problem}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(named(map().num_workers(1).worker_memory_limit(1000).build()), ["worker_memory_limit"]);
    assert_eq!(named(map().unbatched().batch_size(0).build()), ["batch_size"]);
    assert_eq!(named(stream().batch_size(0).build()), ["batch_size"]);
    assert_eq!(named(stream().shards(0).build()), ["shards"]);
    // A `Duration` cannot be negative; the number of seconds in a config can.
    for seconds in ["-1", "nan", "inf"] {
        let error = Config::from_toml(&format!("[loader]\ntimeout = {seconds}")).unwrap_err().to_string();
        let expected = "line 2: `timeout` in [loader]: expected a number of seconds from 0, ";
        assert!(error.starts_with(expected), "{error}");
    }
}

/// `build()` also refuses what PyTorch accepts in the constructor and refuses in `iter()`.
// PyTorch: A10, A14, A15
#[test]
fn options_of_workers_are_refused_without_workers() {
    assert_eq!(named(map().prefetch_factor(2).build()), ["prefetch_factor"]);
    assert_eq!(named(map().prefetch_factor(0).build()), ["prefetch_factor"]);
    assert_eq!(named(map().persistent_workers(true).build()), ["persistent_workers"]);
    assert_eq!(named(map().timeout(SECOND).build()), ["timeout"]);
    assert_eq!(named(map().sample_timeout(SECOND).build()), ["sample_timeout"]);
    assert_eq!(named(map().worker_memory_limit(1 << 30).build()), ["worker_memory_limit"]);
    assert_eq!(named(stream().prefetch_factor(2).build()), ["prefetch_factor"]);
    assert_eq!(named(stream().persistent_workers(true).build()), ["persistent_workers"]);
    assert_eq!(named(stream().timeout(SECOND).build()), ["timeout"]);
    // Values that have no effect are accepted.
    assert!(map().persistent_workers(false).timeout(Duration::ZERO).build().is_ok());
    assert!(map().in_order(false).build().is_ok());
}

/// These are the combinations that PyTorch refuses, as far as they compile: the builder of an iterable
/// dataset has no methods `sampler`, `batch_sampler` and `shuffle`.
// PyTorch: 44, A03, A04, A05, 1.3
#[test]
fn options_that_exclude_each_other_are_refused() {
    let cases = [
        (map().sampler(sampler()).shuffle(true), ["sampler", "shuffle"]),
        (map().batch_sampler(batches()).sampler(sampler()), ["batch_sampler", "sampler"]),
        (map().sampler(sampler()).batch_sampler(batches()), ["batch_sampler", "sampler"]),
        (map().batch_sampler(batches()).shuffle(true), ["batch_sampler", "shuffle"]),
        (map().batch_sampler(batches()).drop_last(true), ["batch_sampler", "drop_last"]),
        (map().batch_sampler(batches()).batch_size(2), ["batch_sampler", "batch_size"]),
        (map().batch_sampler(batches()).distributed(0, 2), ["batch_sampler", "distributed"]),
        (map().sampler(sampler()).distributed(0, 2), ["sampler", "distributed"]),
        (map().sampler(sampler()).options(options().rank(0).world_size(2)), ["sampler", "rank"]),
        // Of three conflicting options, the error names the first pair in PyTorch's order.
        (map().sampler(sampler()).shuffle(true).batch_sampler(batches()), ["sampler", "shuffle"]),
    ];
    for (builder, expected) in cases {
        assert_eq!(named(builder.build()), expected);
    }
    // Without batches.
    assert_eq!(named(map().batch_size(2).unbatched().build()), ["unbatched", "batch_size"]);
    assert_eq!(named(map().convert(Ok).batch_size(2).build()), ["unbatched", "batch_size"]);
    assert_eq!(named(map().unbatched().drop_last(true).build()), ["unbatched", "drop_last"]);
    assert_eq!(named(map().unbatched().batch_sampler(batches()).build()), ["unbatched", "batch_sampler"]);
    assert_eq!(named(map().batch_sampler(batches()).unbatched().build()), ["unbatched", "batch_sampler"]);
    assert_eq!(named(stream().batch_size(2).unbatched().build()), ["unbatched", "batch_size"]);
    assert_eq!(named(stream().unbatched().drop_last(true).build()), ["unbatched", "drop_last"]);
    // Options that an iterable dataset cannot have.
    let shuffled = stream().options(options().shuffle(true));
    assert_eq!(named(shuffled.build()), ["shuffle"]);
    assert_eq!(named(stream().on_bad_sample(OnBadSample::Replace).build()), ["on_bad_sample"]);
}

// PyTorch: A01, 1.3
#[test]
fn all_other_combinations_are_accepted() {
    let accepted = [
        map().batch_sampler(batches()).batch_size(1),
        map().batch_sampler(batches()).shuffle(false).drop_last(false),
        map().batch_sampler(batches()).num_workers(1).prefetch_factor(3).persistent_workers(true),
        map().sampler(sampler()).batch_size(3).drop_last(true),
        map().sampler(sampler()).shuffle(false),
        map().shuffle(true).batch_size(3).drop_last(true),
        map().num_workers(1).timeout(SECOND).in_order(false),
    ];
    for builder in accepted {
        let text = format!("{builder:?}");
        assert!(builder.build().is_ok(), "{text}");
    }
    assert!(map().unbatched().shuffle(true).build().is_ok());
    assert!(map().unbatched().sampler(sampler()).build().is_ok());
    assert!(map().unbatched().num_workers(1).prefetch_factor(1).build().is_ok());
    assert!(stream().unbatched().build().is_ok());
    assert!(stream().batch_size(3).drop_last(true).num_workers(1).persistent_workers(true).build().is_ok());
    assert!(stream().options(options().shuffle(false)).build().is_ok());
    // A later `collate` replaces an earlier `unbatched`.
    let batched = map().unbatched().batch_size(5).collate(|samples| Ok(samples.len())).build().unwrap();
    assert_eq!(batched.len(), Some(2));
}

/// PyTorch checks the options of workers first, then those of the order, then those of batches.
// PyTorch: 1.2
#[test]
fn of_two_errors_the_first_in_pytorch_s_order_is_reported() {
    let invalid_timeout = Config::from_toml("[loader]\nprefetch_factor = 2\ntimeout = -1").unwrap_err();
    assert!(invalid_timeout.to_string().contains("`timeout`"), "before prefetch_factor: {invalid_timeout}");
    let both = map().prefetch_factor(2).persistent_workers(true);
    assert_eq!(named(both.build()), ["prefetch_factor"], "before persistent_workers");
    let both = map().persistent_workers(true).sampler(sampler()).shuffle(true);
    assert_eq!(named(both.build()), ["persistent_workers"], "before the order");
    let both = map().sampler(sampler()).shuffle(true).batch_size(0);
    assert_eq!(named(both.build()), ["sampler", "shuffle"], "before batch_size");
    let both = map().batch_sampler(batches()).batch_size(0);
    assert_eq!(named(both.build()), ["batch_sampler", "batch_size"]);
    let both = stream().options(options().shuffle(true).batch_size(0));
    assert_eq!(named(both.build()), ["shuffle"], "before batch_size");
    // PyTorch checks that there are workers for a valid timeout last, in `iter()`.
    assert_eq!(named(map().timeout(SECOND).prefetch_factor(2).build()), ["prefetch_factor"]);
}

/// `build()` warns before any worker starts.
// PyTorch: 95, 1.6
#[test]
fn more_workers_than_processors_are_warned_of() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let build = |workers| {
        let collected = Arc::clone(&warnings);
        let builder = map().num_workers(workers);
        builder.on_warning(move |warning| collected.lock().unwrap().push(warning.clone())).build().unwrap()
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    drop((build(1), build(cpus)));
    assert!(warnings.lock().unwrap().is_empty());
    drop(build(1000));
    let warnings = warnings.lock().unwrap();
    assert_eq!(*warnings, [Warning::MoreWorkersThanCpus { workers: 1000, cpus, processes: 1 }]);
    let text = warnings[0].to_string();
    assert!(text.contains("num_workers is 1000") && text.contains(&format!("use {cpus} CPUs")), "{text}");
}
