//! The same rows with any number of workers, with workers that die, and after a resume.

use loader_core::{DataLoader, Dataset, SampleContext};
use loader_data::{Parquet, ParquetStream};
use serde::{Deserialize, Serialize};

use super::open;
use crate::everywhere::same_everywhere;

fn train() -> Parquet {
    open("train-*.parquet")
}

fn blocks(open: usize) -> ParquetStream {
    train().stream().shuffle_blocks(open).unwrap()
}

#[test]
fn random_access_is_the_same_everywhere() {
    let batches = same_everywhere(|workers| {
        DataLoader::builder(train()).batch_size(7).shuffle(true).num_workers(workers).build().unwrap()
    });
    let mut labels: Vec<i64> =
        batches.iter().flat_map(|batch| batch.tensor::<i64>("label").unwrap().as_slice().to_vec()).collect();
    assert!(!labels.is_sorted());
    labels.sort_unstable();
    assert!(labels.into_iter().eq(0..60));
}

#[test]
fn a_stream_is_the_same_everywhere() {
    // Fewer and more shards than workers, and more than some of them have row groups.
    for shards in [2, 5] {
        let build = |workers: usize| {
            DataLoader::stream(train().stream()).shards(shards).batch_size(4).num_workers(workers)
        };
        let batches = same_everywhere(|workers| build(workers).build().unwrap());
        let rows: usize = batches.iter().map(|batch| batch["text"].texts().unwrap().len()).sum();
        assert_eq!(rows, 60);
        same_everywhere(|workers| build(workers).snapshots().build().unwrap());
    }
}

#[test]
fn a_shuffled_stream_is_the_same_everywhere() {
    for shards in [2, 5] {
        let build =
            |workers: usize| DataLoader::stream(blocks(2)).shards(shards).batch_size(4).num_workers(workers);
        let batches = same_everywhere(|workers| build(workers).build().unwrap());
        let mut labels: Vec<i64> = batches
            .iter()
            .flat_map(|batch| batch.tensor::<i64>("label").unwrap().as_slice().to_vec())
            .collect();
        labels.sort_unstable();
        assert!(labels.into_iter().eq(0..60));
        same_everywhere(|workers| build(workers).snapshots().build().unwrap());
    }
}

/// Loads with a dataset that may keep `kept` bytes. Returns the errors, and the number of rows.
fn load_within(kept: u64, open: usize) -> (Vec<String>, usize) {
    const SLOTS: u64 = 1 << 20;
    let builder = DataLoader::stream(blocks(open)).shards(1).batch_size(1);
    let loader = builder.memory_limit(SLOTS + kept).shared_memory_limit(SLOTS).build().unwrap();
    let (batches, errors): (Vec<_>, Vec<_>) = loader.iter().unwrap().partition(Result::is_ok);
    (errors.into_iter().map(|error| error.unwrap_err().to_string()).collect(), batches.len())
}

#[test]
fn open_row_groups_stay_within_memory_limit() {
    assert_eq!(load_within(1 << 16, 2), (Vec::new(), 60));
    let (errors, rows) = load_within(500, 2);
    assert_eq!((errors.len(), rows), (1, 0), "the shard is not opened");
    assert!(errors[0].contains("2 open row groups: the dataset may not keep"), "{}", errors[0]);
    // The sizes in the footer fit, but the decoded rows do not.
    let (errors, rows) = load_within(1200, 2);
    assert!(!errors.is_empty() && errors.len() + rows == 60, "{} errors, {rows} rows", errors.len());
    assert!(errors[0].contains("raise memory_limit"), "{}", errors[0]);
}

#[test]
fn rows_are_read_without_a_cache_if_memory_limit_leaves_no_room() {
    let load = |kept: u64| -> Vec<Vec<i64>> {
        let builder = DataLoader::builder(train()).batch_size(7).shuffle(true);
        let loader = builder.memory_limit((1 << 20) + kept).shared_memory_limit(1 << 20).build().unwrap();
        let labels = loader.iter().unwrap().map(|batch| batch.unwrap().tensor::<i64>("label").unwrap());
        labels.map(|labels| labels.as_slice().to_vec()).collect()
    };
    assert_eq!(load(1), load(1 << 20));
}

/// Reads a row. The sample is the number of bytes that the dataset keeps then.
#[derive(Serialize, Deserialize)]
struct Kept {
    rows: Parquet,
    order: Vec<usize>,
}

impl Dataset for Kept {
    type Sample = u64;

    fn len(&self) -> usize {
        self.order.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<u64> {
        self.rows.get(self.order[index], cx)?;
        Ok(cx.memory().reserve(u64::MAX).unwrap_err().reserved)
    }
}

#[test]
fn a_row_group_that_memory_limit_refuses_replaces_others() {
    let load = |kept: u64| -> Vec<u64> {
        // Rows of the first and of the last row group.
        let builder =
            DataLoader::builder(Kept { rows: train(), order: vec![0, 0, 59, 59, 59] }).batch_size(1);
        let loader = builder.memory_limit((1 << 20) + kept).shared_memory_limit(1 << 20).build().unwrap();
        loader.iter().unwrap().map(|batch| batch.unwrap().as_slice()[0]).collect()
    };
    let unlimited = load(1 << 20);
    let (first, both) = (unlimited[1], unlimited[4]);
    assert!(first > 0 && both > first && both != 2 * first, "{unlimited:?}");
    // The sizes in the footer fit beside each other, but the decoded rows do not.
    let limited = load(both - 1);
    assert_eq!((limited[1], limited[4]), (first, both - first), "{limited:?}");
}
