//! Workers that grow: replaced between two batches, and stopped before the machine is short of memory.

use std::sync::Mutex;

use loader_core::{Error, ExitStatus, WorkerState, prelude::*};
use loader_tests::{Watchdog, processes};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

const MEGABYTE: usize = 1 << 20;

/// Each sample leaves some megabytes behind; sample `greedy` wants very many at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Leaky {
    greedy: Option<usize>,
}

static LEAKED: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

impl Dataset for Leaky {
    type Sample = u64;

    fn len(&self) -> usize {
        80
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let bytes = if self.greedy == Some(index) { 1000 * MEGABYTE } else { 4 * MEGABYTE };
        LEAKED.lock().unwrap().push(vec![1; bytes]);
        Ok(index as u64)
    }
}

impl IterableDataset for Leaky {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        let mut cx = SampleContext::new(cx.epoch());
        Ok(shard.of(0..80).map(move |index| self.get(index as usize, &mut cx)))
    }
}

// PyTorch: U37
#[test]
fn a_worker_that_grows_is_replaced_in_time() {
    let _watchdog = Watchdog::start();
    for workers in 1..=2 {
        let builder = DataLoader::builder(Leaky { greedy: None }).batch_size(2).num_workers(workers);
        // Death is no option: nothing here may count as one.
        let builder = builder.worker_memory_limit(64 << 20).max_worker_deaths(0);
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut seen = Vec::new();
        let mut most = 0;
        while let Some(batch) = batches.next() {
            seen.extend_from_slice(batch.unwrap_or_else(|error| panic!("{error}")).as_slice());
            let largest = batches.worker_pids().into_iter().filter_map(processes::own_memory).max();
            most = most.max(largest.unwrap_or(0));
        }
        assert!(seen.into_iter().eq(0..80));
        // 320 megabytes were left behind, in parts of at most 64 and a batch.
        let restarts = batches.report().restarts;
        assert!((3..=8).contains(&restarts), "{restarts} restarts with {workers} workers");
        assert!(most < 100 << 20, "a worker had {most} bytes");
    }
}

#[test]
fn a_stream_goes_on_in_the_next_worker() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::stream(Leaky { greedy: None }).batch_size(2).num_workers(1);
    let loader = builder.worker_memory_limit(200 << 20).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let seen: Vec<u64> = batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect();
    assert!(seen.into_iter().eq(0..80));
    assert!(batches.report().restarts > 0);
}

#[test]
fn a_batch_that_wants_too_much_is_given_up() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Leaky { greedy: Some(41) }).batch_size(2).num_workers(2);
    let loader = builder.worker_memory_limit(64 << 20).build().unwrap();
    let outcomes: Vec<_> = loader.iter().unwrap().collect();
    assert_eq!(outcomes.len(), 40);
    let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    let [Error::BatchGivenUp { batch: 20, exit, doing, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert!(matches!(exit.status, ExitStatus::Signal { signal: 6, .. }), "{exit:?}");
    assert_eq!((doing.state, doing.index), (WorkerState::Fetching, 41));
}

/// Each sample is the soft limit on the data of the process that loads it.
#[derive(Debug, Serialize, Deserialize)]
struct SoftLimit;

impl Dataset for SoftLimit {
    type Sample = u64;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(getrlimit(Resource::RLIMIT_DATA)?.0)
    }
}

#[test]
fn a_lower_soft_limit_of_the_program_stays() {
    const LIMIT: u64 = 8 << 30;
    let _watchdog = Watchdog::start();
    let (soft, hard) = getrlimit(Resource::RLIMIT_DATA).unwrap();
    // High enough for the other tests of this program.
    setrlimit(Resource::RLIMIT_DATA, LIMIT.min(soft), hard).unwrap();
    let builder = DataLoader::builder(SoftLimit).num_workers(1).worker_memory_limit(LIMIT);
    let batch = builder.build().unwrap().iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.as_slice(), [LIMIT.min(soft)]);
}
