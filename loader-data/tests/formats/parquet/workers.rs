//! The same rows with any number of workers, with workers that die, and after a resume.

use loader_core::DataLoader;
use loader_data::ParquetStream;

use super::open;
use crate::everywhere::same_everywhere;

fn train() -> loader_data::Parquet {
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
