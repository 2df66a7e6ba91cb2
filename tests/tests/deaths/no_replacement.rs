//! Workers that die and cannot be replaced: they die at each start, or a resource that a start needs is gone.

use std::{fs, process, time::Duration};

use loader_core::{Error, WorkerState, prelude::*};
use loader_tests::{
    alone::{alone, become_user},
    datasets::Slow,
    processes, skipped,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{Signal, raise},
};
use serde::{Deserialize, Serialize};

use crate::kills::kill;

#[test]
fn a_worker_that_dies_at_each_start_ends_the_iterator() {
    fn check(
        max_deaths: Option<u32>,
        init: fn(&WorkerInfo) -> anyhow::Result<()>,
        is_expected: impl Fn(usize, u32) -> bool,
    ) {
        let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
        let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {}).worker_init(init);
        let builder = match max_deaths {
            Some(max) => builder.max_worker_deaths(max),
            None => builder,
        };
        let mut batches = builder.build().unwrap().iter().unwrap();
        let error = batches.by_ref().find_map(Result::err).unwrap();
        assert!(error.ends_iteration() && batches.next().is_none(), "{error:?}");
        let Error::WorkerExited { worker, deaths, doing, .. } = error else { panic!("{error:?}") };
        assert!(is_expected(worker, deaths), "{deaths} deaths of worker {worker}, at most {max_deaths:?}");
        assert_eq!(doing.state, WorkerState::Starting);
    }

    alone(|| {
        let before = Before::take();
        check(None, |_| process::abort(), |_, deaths| deaths == 11);
        check(Some(2), |_| process::abort(), |_, deaths| deaths == 3);
        // Worker 0 loads batches all the time, which resets only its own count.
        let kill_worker_1 =
            |worker: &WorkerInfo| if worker.id() == 1 { Ok(raise(Signal::SIGKILL)?) } else { Ok(()) };
        check(Some(4), kill_worker_1, |worker, deaths| (worker, deaths) == (1, 5));
        before.assert_nothing_left();
    });
}

/// Calls `exhaust`, after which no worker can start, and kills a worker. The error must contain `advice`.
fn assert_start_fails(exhaust: impl FnOnce(), advice: &str) {
    let before = Before::take();
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
    let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {});
    let mut batches = builder.build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    exhaust();
    kill(batches.worker_pids()[0]);
    let (error, took) = timed(|| batches.by_ref().find_map(Result::err).unwrap());
    println!("{error} after {took:?}");
    assert_soon(took);
    assert!(error.ends_iteration() && batches.next().is_none());
    assert!(error.to_string().contains(advice), "{error}");
    drop(batches);
    before.assert_nothing_left();
}

// PyTorch: P-24
#[test]
fn without_a_free_descriptor_the_error_names_the_limit() {
    alone(|| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let exhaust = || {
            let used = processes::open_descriptors() as u64;
            setrlimit(Resource::RLIMIT_NOFILE, used, hard).unwrap();
        };
        assert_start_fails(exhaust, "`ulimit -n`");
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    });
}

#[test]
fn without_a_free_process_the_error_names_the_limit() {
    alone(|| {
        if !become_user(54_322) {
            return skipped("only root can become another user, who has no other processes");
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
        let exhaust = || setrlimit(Resource::RLIMIT_NPROC, 0, hard).unwrap();
        assert_start_fails(exhaust, "`ulimit -u`");
    });
}

#[test]
fn without_the_temporary_folder_a_worker_starts_with_another_one() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 500, delay: Duration::from_millis(1) };
        let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        fs::remove_dir(std::env::temp_dir()).unwrap();
        kill(batches.worker_pids()[0]);
        assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 499);
        assert_eq!(batches.report().restarts, 1);
        drop(batches);
        before.assert_nothing_left();
    });
}

/// A dataset whose `setup` lowers the limit of descriptors to 3, so that a worker can open no further file.
#[derive(Debug, Serialize, Deserialize)]
struct FewFiles;

impl Dataset for FewFiles {
    type Sample = u64;

    fn len(&self) -> usize {
        100
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        Ok(setrlimit(Resource::RLIMIT_NOFILE, 3, 3)?)
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

#[test]
fn a_worker_without_a_descriptor_for_its_slots_ends_the_iterator() {
    alone(|| {
        let before = Before::take();
        let loader = DataLoader::builder(FewFiles).num_workers(2).on_warning(|_| {}).build().unwrap();
        let (errors, took) = timed(|| loader.iter().unwrap().filter_map(Result::err).collect::<Vec<_>>());
        println!("{errors:?} after {took:?}");
        assert_soon(took);
        assert!(matches!(errors[..], [Error::WorkerExited { .. }]), "{errors:?}");
        drop(loader);
        before.assert_nothing_left();
    });
}
