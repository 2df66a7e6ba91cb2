//! A worker program that was built from older source (`src/bin/older`). The name of a type contains that of its crate,
//! so this crate has the name of the worker program's.

#[path = "../src/bin/older/datasets.rs"]
mod datasets;

use datasets::{Equal, Readings};
use loader_core::{Builder, Error, collate::Batch, kind::DatasetKind, prelude::*};
use loader_tests::Watchdog;
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

const OLDER: &str = env!("CARGO_BIN_EXE_test-older");

#[derive(Serialize, Deserialize)]
struct Spans {
    starts: Vec<u64>,
    ends: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
enum Step {
    Add(u64),
    Subtract(u64),
}

#[derive(Serialize, Deserialize)]
struct Steps {
    steps: Vec<Option<Step>>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    start: u64,
    end: u64,
}

#[derive(Serialize, Deserialize)]
struct Rows {
    rows: SharedVec<Row>,
}

#[derive(Sample)]
struct Reading {
    low: u64,
    high: u64,
}

#[derive(Serialize, Deserialize)]
struct Longer {
    len: usize,
}

#[derive(Serialize, Deserialize)]
struct Label {
    path: String,
}

fn spans() -> Spans {
    Spans { starts: (0..20).collect(), ends: (20..40).collect() }
}

/// Makes workers of the older program, where the dataset has the name `name`.
fn older<K: DatasetKind>(builder: Builder<K>, name: &str) -> Builder<K> {
    builder.batch_size(4).num_workers(2).worker_program(OLDER).registered(name)
}

/// Returns the samples of the first epoch.
fn samples(loader: &DataLoader<Tensor<u64>>) -> Vec<u64> {
    loader.iter().unwrap().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect()
}

/// Returns what differs. The first batch must fail and end the iterator, and a resumed run must begin with it.
fn difference<B: Batch>(loader: DataLoader<B>) -> String {
    let mut batches = loader.iter().unwrap();
    let before = batches.state();
    let error = batches.next().unwrap().err().unwrap();
    assert_eq!(batches.state(), before);
    assert!(error.ends_iteration() && batches.next().is_none(), "{error}");
    assert_eq!(batches.state(), before);
    assert!(error.to_string().contains("build both programs from the same source"), "{error}");
    let Error::ProgramsDiffer { batch: 0, difference, .. } = error else { panic!("{error:?}") };
    difference
}

#[test]
fn a_type_of_equal_source_is_loaded() {
    let _watchdog = Watchdog::start();
    let equal = Equal { starts: (0..20).collect(), step: 100 };
    let loader = older(DataLoader::builder(equal), "equal").build().unwrap();
    assert_eq!(samples(&loader), (100..120).collect::<Vec<_>>());
}

#[test]
fn exchanged_fields_are_refused() {
    let _watchdog = Watchdog::start();
    let (ours, theirs) = ("`Spans { starts: [u64], ends: [u64] }`", "`Spans { ends: [u64], starts: [u64] }`");
    let loaders = [
        older(DataLoader::builder(spans()), "spans").build(),
        older(DataLoader::stream(spans()), "stream").build(),
    ];
    for loader in loaders {
        let difference = difference(loader.unwrap());
        assert!(difference.contains(&format!("the main program has {ours}")), "{difference}");
        assert!(difference.contains(&format!("the worker program has {theirs}")), "{difference}");
    }
}

#[test]
fn exchanged_variants_are_refused() {
    let _watchdog = Watchdog::start();
    let steps = vec![None, None, None, Some(Step::Subtract(3)), Some(Step::Add(4))];
    let difference = difference(older(DataLoader::builder(Steps { steps }), "steps").build().unwrap());
    assert!(difference.contains("`Step::Add(u64) (variant 0)`"), "{difference}");
    assert!(difference.contains("`Step::Add(u64) (variant 1)`"), "{difference}");
}

#[test]
fn exchanged_fields_of_rows_in_shared_memory_are_refused() {
    let _watchdog = Watchdog::start();
    let rows = SharedVec::new((0..100).map(|start| Row { start, end: start + 1 })).unwrap();
    let difference = difference(older(DataLoader::builder(Rows { rows }), "rows").build().unwrap());
    assert!(difference.contains("`Row { start: u64, end: u64 }`"), "{difference}");
    assert!(difference.contains("`Row { end: u64, start: u64 }`"), "{difference}");
}

/// Returns the cause. Each of the batches must fail.
fn cause_of_open_failure(loader: DataLoader<Tensor<u64>>, batches: usize) -> String {
    let errors: Vec<_> = loader.iter().unwrap().map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), batches);
    let Error::OpenFailed { failure, .. } = &errors[0] else { panic!("{:?}", errors[0]) };
    let cause = failure.chain.concat();
    assert!(cause.contains("may be built from other source than the main program"), "{cause}");
    cause
}

#[test]
fn a_type_with_another_field_is_not_opened() {
    let _watchdog = Watchdog::start();
    cause_of_open_failure(older(DataLoader::builder(Longer { len: 4 }), "longer").build().unwrap(), 1);
}

#[test]
fn a_type_that_fails_to_decode_for_a_reason_of_its_own_is_not_opened() {
    let _watchdog = Watchdog::start();
    let label = Label { path: "/missing".to_owned() };
    let cause = cause_of_open_failure(older(DataLoader::builder(label), "label").build().unwrap(), 2);
    assert!(cause.contains("No such file"), "{cause}");
}

#[test]
fn exchanged_fields_of_batches_are_refused() {
    let _watchdog = Watchdog::start();
    let readings = || DataLoader::builder(Readings { len: 20 });
    let stream = || DataLoader::stream(Readings { len: 20 });
    let loaders = [
        older(readings(), "readings").build(),
        older(readings(), "readings").digest(true).build(),
        older(stream(), "readings-stream").build(),
        older(stream(), "readings-stream").digest(true).build(),
    ];
    for loader in loaders {
        let difference = difference(loader.unwrap());
        assert!(difference.contains("`ReadingBatch { low: Tensor, high: Tensor }`"), "{difference}");
        assert!(difference.contains("`ReadingBatch { high: Tensor, low: Tensor }`"), "{difference}");
    }
}
