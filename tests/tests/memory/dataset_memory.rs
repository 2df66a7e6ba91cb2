//! The part of `memory_limit` that a dataset may keep.

use std::sync::Mutex;

use loader_core::{Bool, MemoryReservation, prelude::*};
use loader_tests::{Watchdog, datasets::AsStream};
use serde::{Deserialize, Serialize};

const SAMPLE: u64 = 10 << 10;
const LIMIT: u64 = 1 << 20;

/// Reserves 10 KiB for each sample that it loads, until its limit is reached. A sample is the limit in bytes,
/// and true if the reservation succeeded.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Keeper {
    #[serde(skip)]
    kept: Mutex<Vec<MemoryReservation>>,
}

impl Dataset for Keeper {
    type Sample = (u64, bool);

    fn len(&self) -> usize {
        200
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, bool)> {
        let reserved = cx.memory().reserve(SAMPLE);
        let is_kept = reserved.is_ok();
        self.kept.lock().unwrap().extend(reserved);
        Ok((cx.memory().limit().unwrap(), is_kept))
    }
}

/// Returns the limit, which must be equal in all samples, and the number of successful reservations.
fn load(loader: &DataLoader<(Tensor<u64>, Tensor<Bool>)>) -> (u64, usize) {
    let (mut limits, mut kept) = (Vec::new(), 0);
    for batch in loader.iter().unwrap() {
        let (limit, is_kept) = batch.unwrap();
        limits.extend_from_slice(limit.as_slice());
        kept += is_kept.as_slice().iter().filter(|is_kept| is_kept.get()).count();
    }
    assert_eq!(limits.len(), 200);
    assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
    (limits[0], kept)
}

#[test]
fn each_worker_has_an_equal_part() {
    let _watchdog = Watchdog::start();
    for (workers, limit) in [(0, LIMIT / 2), (1, LIMIT / 2), (2, LIMIT / 4)] {
        let builder = DataLoader::builder(Keeper::default()).memory_limit(LIMIT).num_workers(workers);
        let (found, kept) = load(&builder.batch_size(10).build().unwrap());
        assert_eq!(found, limit, "{workers} workers");
        // A slow second worker may load too few samples to reach its limit.
        let max = (limit / SAMPLE) as usize;
        let range = max..=max * workers.max(1);
        assert!(range.contains(&kept), "{kept} samples were kept with {workers} workers, not {range:?}");
    }
}

#[test]
fn each_shard_has_an_equal_part_whatever_the_number_of_workers() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 3] {
        let builder = DataLoader::stream(AsStream(Keeper::default())).num_workers(workers).shards(4);
        let builder = builder.memory_limit(LIMIT).shared_memory_limit(LIMIT / 4);
        let (limit, kept) = load(&builder.batch_size(10).build().unwrap());
        assert_eq!((limit, kept), (LIMIT * 3 / 16, 4 * (LIMIT * 3 / 16 / SAMPLE) as usize));
    }
}
