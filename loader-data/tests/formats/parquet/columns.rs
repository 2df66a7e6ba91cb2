//! Batches whose columns are copied together are those that are stacked row by row.

use std::fs;

use loader_core::{DataLoader, Dataset, IterableDataset, Subset};
use loader_data::{Columns, FieldOptions, Parquet};

use super::{fixture, open};

/// Returns the batches of an epoch, or the first error.
fn epoch(loader: &DataLoader<Columns>) -> Result<Vec<Columns>, String> {
    loader.epoch(1).unwrap().map(|batch| batch.map_err(|error| error.to_string())).collect()
}

/// Checks random access, streams and shuffled streams. An adaptor that changes nothing makes the loader stack
/// rows. Returns whether a batch failed.
fn check(rows: &Parquet, batch_size: usize) -> bool {
    let subset = || Subset::new(rows.clone(), 0..rows.len()).unwrap();
    for shuffle in [false, true] {
        let columns =
            DataLoader::builder(rows.clone()).batch_size(batch_size).shuffle(shuffle).build().unwrap();
        let stacked = DataLoader::builder(subset()).batch_size(batch_size).shuffle(shuffle).build().unwrap();
        assert_eq!(epoch(&columns), epoch(&stacked), "random access, batches of {batch_size}");
    }
    let in_order = rows.clone().stream();
    let mut has_failed = false;
    for stream in
        [in_order.clone(), in_order.clone().shuffle_blocks(1).unwrap(), in_order.shuffle_blocks(3).unwrap()]
    {
        let columns = DataLoader::stream(stream.clone()).shards(2).batch_size(batch_size).build().unwrap();
        // More than there are, because each shard takes an equal share of the number.
        let stacked = stream.take(2 * rows.len());
        let stacked = DataLoader::stream(stacked).shards(2).batch_size(batch_size).build().unwrap();
        let batches = epoch(&columns);
        assert_eq!(batches, epoch(&stacked), "batches of {batch_size}");
        has_failed |= batches.is_err();
    }
    has_failed
}

#[test]
fn columns_of_each_type_are_those_of_stacked_rows() {
    let types = open("types.parquet");
    let names: Vec<String> = types.columns().into_iter().map(|(name, _)| name).collect();
    let mut failed = Vec::new();
    for name in &names {
        let column = types.clone().fields(FieldOptions::new().select([name])).unwrap();
        for batch_size in [3, 16] {
            if check(&column, batch_size) {
                failed.push(name.as_str());
            }
        }
    }
    failed.dedup();
    let has_failed = |name: &&str| failed.contains(name);
    assert!(
        ["i16", "text", "list"].iter().all(has_failed),
        "nulls, and lists of different lengths: {failed:?}"
    );
    assert!(!["i8", "large_text", "large_list"].iter().any(has_failed), "{failed:?}");
    let without_nulls = names.iter().filter(|name| !has_failed(&name.as_str()));
    assert!(!check(&types.fields(FieldOptions::new().select(without_nulls)).unwrap(), 7));
}

#[test]
fn columns_of_folders_are_those_of_stacked_rows() {
    let folder = tempfile::tempdir().unwrap();
    for (file, partition) in
        [("train-00000-of-00002.parquet", "y=1/z=a"), ("train-00001-of-00002.parquet", "y=2/z=b")]
    {
        let path = folder.path().join(partition);
        fs::create_dir_all(&path).unwrap();
        fs::copy(fixture(file), path.join("part.parquet")).unwrap();
    }
    let rows = Parquet::open(folder.path()).unwrap();
    for batch_size in [1, 7, 60] {
        assert!(!check(&rows, batch_size));
    }
}

#[test]
fn columns_of_several_files_are_those_of_stacked_rows() {
    // The second file has its columns in another order.
    for batch_size in [1, 7, 60] {
        assert!(!check(&open("train-*.parquet"), batch_size));
    }
}
