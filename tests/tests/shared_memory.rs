//! Loaders whose `shared_memory_limit` is barely enough.

use loader_core::prelude::*;
use loader_tests::Watchdog;
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

const MEGABYTE: usize = 1 << 20;

/// Small samples but for one. Each byte is the sample's index.
#[derive(Debug, Serialize, Deserialize)]
struct OneLarge {
    count: usize,
    at: usize,
}

impl Dataset for OneLarge {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Vec<u8>> {
        Ok(vec![index as u8; if index == self.at { 8 * MEGABYTE } else { 100_000 }])
    }
}

#[test]
fn one_large_batch_costs_the_others_nothing_for_long() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(OneLarge { count: 100, at: 10 }).num_workers(2);
    let loader = loader.shared_memory_limit(12 << 20).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut large = None;
    for number in 0..100 {
        let batch = batches.next().unwrap().unwrap();
        assert_eq!(batch.as_slice()[0], number);
        if number == 10 {
            large = Some(batch);
        }
    }
    assert!(batches.next().is_none());
    drop((large, batches));
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    let bytes = batches.report().shared_memory_bytes;
    assert!(bytes < 3 << 20, "the large slot is given back: {bytes}");
}
