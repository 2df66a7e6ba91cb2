//! Workers that grow: main replaces them between two batches, and a batch that needs too much is given up.

use std::{fs, sync::Mutex, time::Duration};

use loader_core::{Error, ExitStatus, Iter, WorkerState, prelude::*};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{AsStream, Slow},
    processes,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use serde::{Deserialize, Serialize};

const MEGABYTE: usize = 1 << 20;

/// Each sample leaks 4 MiB; sample `greedy` needs 1000 MiB.
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

// PyTorch: U37
#[test]
fn a_worker_that_grows_is_replaced_between_two_batches() {
    let _watchdog = Watchdog::start();
    for workers in 1..=2 {
        let builder = DataLoader::builder(Leaky { greedy: None }).batch_size(2).num_workers(workers);
        // A replacement is not a death.
        let builder = builder.worker_memory_limit(64 << 20).max_worker_deaths(0);
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let mut seen = Vec::new();
        let mut max = 0;
        while let Some(batch) = batches.next() {
            seen.extend_from_slice(batch.unwrap_or_else(|error| panic!("{error}")).as_slice());
            let largest = batches.worker_pids().into_iter().filter_map(processes::own_memory).max();
            max = max.max(largest.unwrap_or(0));
        }
        assert!(seen.into_iter().eq(0..80));
        // 320 MiB were leaked, at most 64 MiB and a batch by each process.
        let restarts = batches.report().restarts;
        assert!((3..=8).contains(&restarts), "{restarts} restarts with {workers} workers");
        assert!(max < 100 << 20, "a worker had {max} bytes");
    }
}

#[test]
fn a_stream_continues_in_the_new_worker() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::stream(AsStream(Leaky { greedy: None })).batch_size(2).num_workers(1);
    let loader = builder.worker_memory_limit(200 << 20).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let seen: Vec<u64> = batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect();
    assert!(seen.into_iter().eq(0..80));
    assert!(batches.report().restarts > 0);
}

#[test]
fn a_batch_that_needs_too_much_is_given_up() {
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

/// Its sample is the soft limit of its process on data.
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
fn a_worker_keeps_a_lower_soft_limit_of_the_program() {
    const LIMIT: u64 = 8 << 30;
    alone(|| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_DATA).unwrap();
        setrlimit(Resource::RLIMIT_DATA, LIMIT.min(soft), hard).unwrap();
        // Without a lower soft limit of the program, the worker's would be twice this.
        let builder = DataLoader::builder(SoftLimit).num_workers(1).worker_memory_limit(LIMIT);
        let batch = builder.build().unwrap().iter().unwrap().next().unwrap().unwrap();
        assert_eq!(batch.as_slice(), [LIMIT.min(soft)]);
    });
}

#[test]
fn the_oom_killer_prefers_workers_and_their_replacements_to_main() {
    alone(|| {
        let adjustment = |process: &str| -> i32 {
            fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap().trim().parse().unwrap()
        };
        let dataset = Slow { count: 40, delay: Duration::from_millis(5) };
        let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let expected = (adjustment("self") + 500).min(1000);
        let of_workers = |batches: &Iter<Tensor<u64>>| -> Vec<i32> {
            batches.worker_pids().iter().map(|pid| adjustment(&pid.to_string())).collect()
        };
        batches.next().unwrap().unwrap();
        assert_eq!(of_workers(&batches), [expected; 2]);
        processes::signal(batches.worker_pids()[1], Signal::SIGKILL);
        assert_eq!(batches.by_ref().take(30).map(Result::unwrap).count(), 30);
        assert_eq!((of_workers(&batches), batches.report().restarts), (vec![expected; 2], 1));
        drop(batches);
        let builder = DataLoader::builder(Slow { count: 40, delay: Duration::from_millis(5) });
        let loader = builder.num_workers(2).raise_oom_score_adj(false).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.next().unwrap().unwrap();
        assert_eq!(of_workers(&batches), [adjustment("self"); 2]);
    });
}
