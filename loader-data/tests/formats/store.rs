//! Files on a server, with and without the cache, read by real workers.

use std::{cell::Cell, path::Path, time::Duration};

use loader_core::{DType, DataLoader, Dataset, Tensor};
use loader_data::{CacheOptions, StoreOptions, Tokens};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    everywhere::same_everywhere,
    server::{Fault, Server},
};

const BLOCK: usize = 8 << 20;

fn options(cache: Option<&Path>) -> StoreOptions {
    let cache = cache.map(|folder| CacheOptions { folder: folder.to_owned(), max_bytes: 1 << 30 });
    StoreOptions { allow_http: true, timeout: Duration::from_secs(20), cache, ..StoreOptions::default() }
}

fn content(tokens: usize) -> Vec<u8> {
    (0..tokens as u32).flat_map(|token| (token.wrapping_mul(2_654_435_761) >> 16).to_le_bytes()).collect()
}

fn loader(
    server: &Server,
    options: &StoreOptions,
    window: usize,
    batch: usize,
    workers: usize,
) -> DataLoader<Tensor<i64>> {
    let open = || Tokens::<i64>::open(server.url("{a,b}.bin"), DType::U32, window).unwrap();
    let tokens = options.scope(open);
    assert!(tokens.len() >= 64);
    DataLoader::builder(tokens).batch_size(batch).shuffle(true).seed(7).num_workers(workers).build().unwrap()
}

fn values(batches: &[Tensor<i64>]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.as_slice().to_vec()).collect()
}

#[test]
fn every_worker_reads_the_same_from_a_server_that_fails() {
    let server = Server::start();
    server.put("a.bin", content(3000));
    server.put("b.bin", content(1500));
    let faults = [Fault::Status(500), Fault::Cut(100), Fault::Slow(3), Fault::Status(503)];
    let turn = Cell::new(0);
    let build = |workers| {
        // Two of them in each epoch: each retry waits.
        server.fail(faults.iter().cycle().copied().skip(turn.replace(turn.get() + 2)).take(2));
        loader(&server, &options(None), 65, 3, workers)
    };
    let batches = same_everywhere(build);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.bin"), content(3000)).unwrap();
    std::fs::write(folder.path().join("b.bin"), content(1500)).unwrap();
    let local = Tokens::<i64>::open(folder.path(), DType::U32, 65).unwrap();
    let local = DataLoader::builder(local).batch_size(3).shuffle(true).seed(7).build().unwrap();
    let local: Vec<_> = local.epoch(0).unwrap().map(Result::unwrap).collect();
    assert!(values(&batches) == values(&local), "the server's files give what local files give");
}

#[test]
fn the_windows_of_a_batch_are_fetched_together() {
    let server = Server::start();
    server.put("a.bin", content(3000));
    server.put("b.bin", content(1500));
    let loader = loader(&server, &options(None), 65, 16, 0);
    server.requests();
    let batches: Vec<_> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
    assert_eq!(batches.len(), 5);
    // The first window of a file also looks whether the file begins with a header.
    let requests = server.requests().len();
    assert!(
        requests <= 2 * batches.len() + 2 + 1,
        "{requests} requests for two files and {} batches",
        batches.len()
    );
}

#[test]
fn killed_workers_share_a_cache_and_fetch_each_block_once() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("a.bin", content(3 * BLOCK / 4));
    server.put("b.bin", content(BLOCK / 4 + 5000));
    server.set_latency(Duration::from_millis(30));
    let options = options(Some(folder.path()));
    // The workers fill the cache, and one dies meanwhile.
    let filling = loader(&server, &options, 16_385, 16, 3);
    let mut batches = filling.epoch(0).unwrap();
    kill(Pid::from_raw(batches.worker_pids()[0].cast_signed()), Signal::SIGKILL).unwrap();
    let filled: Vec<_> = batches.by_ref().map(Result::unwrap).collect();
    drop(batches);
    let read = same_everywhere(|workers| loader(&server, &options, 16_385, 16, workers));
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
