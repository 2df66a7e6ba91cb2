//! Files on a server, with and without the cache, read by real workers.

use std::{path::Path, time::Duration};

use loader_core::{DType, DataLoader, Dataset, Tensor};
use loader_data::{CacheOptions, StoreOptions, Tokens};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{everywhere::same_everywhere, server::Server};

const BLOCK: usize = 8 << 20;

fn options(cache: Option<&Path>) -> StoreOptions {
    let cache = cache.map(|folder| CacheOptions { folder: folder.to_owned(), max_bytes: 1 << 30 });
    StoreOptions { allow_http: true, timeout: Duration::from_secs(20), cache, ..StoreOptions::default() }
}

fn content(tokens: usize) -> Vec<u8> {
    (0..tokens as u32).flat_map(|token| (token.wrapping_mul(2_654_435_761) >> 16).to_le_bytes()).collect()
}

fn loader(server: &Server, options: &StoreOptions, window: usize, workers: usize) -> DataLoader<Tensor<i64>> {
    let open = || Tokens::<i64>::open(server.url("{a,b}.bin"), DType::U32, window).unwrap();
    let tokens = options.scope(open);
    assert!(tokens.len() > 100);
    DataLoader::builder(tokens).batch_size(16).shuffle(true).seed(7).num_workers(workers).build().unwrap()
}

fn values(batches: &[Tensor<i64>]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.as_slice().to_vec()).collect()
}

#[test]
fn killed_workers_share_a_cache_and_fetch_each_block_once() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("a.bin", content(3 * BLOCK / 4));
    server.put("b.bin", content(BLOCK / 4 + 5000));
    server.set_latency(Duration::from_millis(30));
    let options = options(Some(folder.path()));
    // The workers fill the cache, and one dies meanwhile.
    let filling = loader(&server, &options, 16_385, 3);
    let mut batches = filling.epoch(0).unwrap();
    kill(Pid::from_raw(batches.worker_pids()[0].cast_signed()), Signal::SIGKILL).unwrap();
    let filled: Vec<_> = batches.by_ref().map(Result::unwrap).collect();
    drop(batches);
    let read = same_everywhere(|workers| loader(&server, &options, 16_385, workers));
    assert!(values(&filled) == values(&read), "the worker that died changed nothing");

    let mut fetched = std::collections::BTreeMap::<_, usize>::new();
    for request in server.requests() {
        // Listing a file asks for one byte.
        if let Some(range) = request.range.filter(|range| *range != (0..1)) {
            *fetched.entry((request.target, range.start / BLOCK)).or_default() += 1;
        }
    }
    assert_eq!(fetched.len(), 5, "the files have five blocks");
    let again: usize = fetched.values().map(|count| count - 1).sum();
    assert!(again <= 1, "only the block that the dead worker was fetching is fetched again: {fetched:?}");
}
