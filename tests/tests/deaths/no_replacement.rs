//! Workers that die and cannot be replaced: too often, or since something that a start needs is gone.

use std::{fs, time::Duration};

use loader_core::{Error, prelude::*};
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

use crate::hunted::shoot;

#[test]
fn the_same_one_dies_too_often() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
        let builder = DataLoader::builder(dataset).num_workers(2).max_worker_deaths(4).on_warning(|_| {});
        let builder = builder.worker_init(|worker| match worker.id() {
            1 => Ok(raise(Signal::SIGKILL)?),
            _ => Ok(()),
        });
        let mut batches = builder.build().unwrap().iter().unwrap();
        let error = batches.by_ref().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::WorkerExited { worker: 1, deaths: 5, .. }), "{error:?}");
        assert!(error.ends_iteration() && batches.next().is_none());
        drop(batches);
        before.assert_nothing_left();
    });
}

/// Lets a worker die after `spoil`, which makes it impossible to start another one.
fn assert_told_that_none_can_be_started(spoil: impl FnOnce(), way_out: &str) {
    let before = Before::take();
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(1) };
    let mut batches =
        DataLoader::builder(dataset).num_workers(2).on_warning(|_| {}).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    spoil();
    shoot(batches.worker_pids()[0]);
    let (error, took) = timed(|| batches.by_ref().find_map(Result::err).unwrap());
    println!("{error} after {took:?}");
    assert_soon(took);
    assert!(error.ends_iteration() && batches.next().is_none());
    assert!(error.to_string().contains(way_out), "{error}");
    drop(batches);
    before.assert_nothing_left();
}

// PyTorch: P-24
#[test]
fn no_descriptor_is_left_for_another() {
    alone(|| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let spoil = || {
            let used = processes::open_descriptors() as u64;
            setrlimit(Resource::RLIMIT_NOFILE, used, hard).unwrap();
        };
        assert_told_that_none_can_be_started(spoil, "`ulimit -n`");
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    });
}

#[test]
fn no_thread_is_left_to_start_another() {
    alone(|| {
        if !become_user(54_322) {
            return skipped("only root can become a user who has no other processes");
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
        let spoil = || setrlimit(Resource::RLIMIT_NPROC, 0, hard).unwrap();
        assert_told_that_none_can_be_started(spoil, "`ulimit -u`");
    });
}

#[test]
fn the_folder_for_temporary_files_is_gone() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 500, delay: Duration::from_millis(1) };
        let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        fs::remove_dir(std::env::temp_dir()).unwrap();
        shoot(batches.worker_pids()[0]);
        // Another folder is used.
        assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 499);
        assert_eq!(batches.report().restarts, 1);
        drop(batches);
        before.assert_nothing_left();
    });
}

/// Opens the dataset in workers that may have few files open.
#[derive(Debug, Serialize, Deserialize)]
struct FewFiles;

impl Dataset for FewFiles {
    type Sample = u64;

    fn len(&self) -> usize {
        100
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        // All that there are have higher numbers.
        Ok(setrlimit(Resource::RLIMIT_NOFILE, 3, 3)?)
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

#[test]
fn a_worker_has_no_descriptor_for_its_slots() {
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
