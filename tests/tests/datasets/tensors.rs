//! Datasets of tensors, which all processes share.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::Duration,
};

use anyhow::Context;
use loader_core::prelude::*;
use loader_tests::{Watchdog, everywhere};

fn numbers(len: usize) -> Tensor<i64> {
    Tensor::from_vec((0..len as i64).collect(), [len]).unwrap()
}

// PyTorch: 92, U27
#[test]
fn rows_become_batches_in_shared_memory() {
    let _watchdog = Watchdog::start();
    let images = Tensor::from_vec((0..60).map(|pixel| pixel as f32).collect(), [10, 2, 3]).unwrap();
    let batches = everywhere(|workers| {
        let dataset = TensorDataset::new((images.clone(), numbers(10))).unwrap();
        DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(workers).build()
    });
    assert_eq!(batches.len(), 3);
    for (images, numbers) in batches {
        assert_eq!((images.shape(), numbers.rank()), ([numbers.len(), 2, 3].as_slice(), 1));
        assert!(images.is_shared_memory() && numbers.is_shared_memory());
        for (row, &number) in numbers.as_slice().iter().enumerate() {
            assert_eq!(images.row(row)[0], 6.0 * number as f32);
        }
    }
}

/// Returns the permissions, device, inode and path of the mapping that contains `address`.
fn mapping_of(address: usize) -> anyhow::Result<String> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let contains = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap_or_default().0.split_once('-').unwrap_or_default();
        let parse = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (parse(start)..parse(end)).contains(&address)
    };
    let line = maps.lines().find(contains).context("the memory is not mapped")?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    Ok(format!("{} {} {} {}", fields[1], fields[3], fields[4], fields.get(5).unwrap_or(&"")))
}

fn is_shared_and_read_only(mapping: &str) -> bool {
    mapping.starts_with("r--s") && mapping.contains("memfd")
}

// PyTorch: U01, U11
#[test]
fn all_workers_map_the_same_copy() {
    let _watchdog = Watchdog::start();
    let dataset = TensorDataset::new((Tensor::<u8>::zeros([24, 1 << 20]).unwrap(), numbers(24))).unwrap();
    let dataset = dataset.map(|(bytes, _), cx| {
        thread::sleep(Duration::from_millis(20));
        let worker = cx.worker().context("this is not a worker")?.id();
        Ok((worker, mapping_of(bytes.as_ptr().addr())?))
    });
    let loader = DataLoader::builder(dataset).num_workers(3).build().unwrap();
    let seen: BTreeMap<u64, String> = loader
        .iter()
        .unwrap()
        .map(|batch| batch.unwrap())
        .map(|(workers, mut mappings)| (workers.as_slice()[0], mappings.remove(0)))
        .collect();
    assert!(seen.len() > 1, "only one worker loaded batches");
    let mappings: BTreeSet<_> = seen.values().collect();
    assert_eq!(mappings.len(), 1, "{seen:?}");
    assert!(mappings.iter().all(|mapping| is_shared_and_read_only(mapping)), "{seen:?}");
}

/// Main reads the copy too, so that the tensors are not in memory twice.
// PyTorch: U01
#[test]
fn without_workers_main_maps_the_copy() {
    let bytes = Tensor::<u8>::zeros([4, 1 << 20]).unwrap();
    let dataset = TensorDataset::new(bytes).unwrap().map(|bytes, _| mapping_of(bytes.as_ptr().addr()));
    let loader = DataLoader::builder(dataset).batch_size(4).build().unwrap();
    let mappings = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(mappings.len(), 4);
    assert!(mappings.iter().all(|mapping| is_shared_and_read_only(mapping)), "{mappings:?}");
}
