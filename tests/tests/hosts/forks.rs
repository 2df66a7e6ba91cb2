//! Processes that fork. If user code forks in a worker and returns in both processes, the epoch is right and
//! the child ends.
#![allow(unsafe_code)] // for `fork`

use std::{path::PathBuf, process::Command, sync::OnceLock, thread, time::Duration};

use loader_core::{Error, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    alone::{Family, alone},
    datasets::{Noise, NoiseSample, put_tokens, take_token},
    digest_rest,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::{
    libc,
    sys::{
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// How user code forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Fork {
    /// `fork` of the C library.
    Library,
    /// The system call itself, which the C library does not notice.
    RawClone,
    /// `daemon(0, 0)`: the calling process ends, and its child returns.
    Daemon,
}

/// The user code that calls `fork`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Caller {
    Setup,
    WorkerInit,
    Get,
    GetMany,
    Collate,
    /// In the batch's `Serialize`.
    Encode,
    /// In an iterator's `next`.
    Next,
}

/// The forks that are still to be made: each file in the folder stands for one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Forks {
    how: Fork,
    caller: Caller,
    folder: PathBuf,
}

impl Forks {
    /// Makes samples `0..count` fork once each.
    fn prepare(how: Fork, caller: Caller, count: usize) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &(0..count).map(|sample| (sample, 1)).collect::<Vec<_>>());
        (Self { how, caller, folder: folder.path().to_owned() }, folder)
    }

    /// Forks if `caller` is to fork and `sample` has not forked yet. Both processes return; true in the
    /// child.
    fn fork_at(&self, caller: Caller, sample: usize) -> bool {
        caller == self.caller && take_token(&self.folder, sample) && fork(self.how, caller)
    }

    /// The same for functions that do not get the dataset; they use [`FORKS`].
    fn fork_of_process(caller: Caller) -> bool {
        FORKS.get().is_some_and(|forks| forks.fork_at(caller, 0))
    }
}

/// The forks of this process for functions that do not get the dataset.
static FORKS: OnceLock<Forks> = OnceLock::new();

/// True in the child.
fn fork(how: Fork, caller: Caller) -> bool {
    let result = match how {
        // SAFETY: unsound in general, because the process has other threads, but user code may do it.
        Fork::Library => i64::from(unsafe { libc::fork() }),
        // SAFETY: as above. The child gets no stack, and no flags except the signal of its end.
        Fork::RawClone => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) },
        // SAFETY: as above.
        Fork::Daemon => i64::from(unsafe { libc::daemon(0, 0) }),
    };
    assert!(result >= 0, "{how:?}: {}", std::io::Error::last_os_error());
    match how {
        Fork::Library if result > 0 => {
            let status = waitpid(Pid::from_raw(result as i32), None).unwrap();
            // A child that writes into the slot during collation gets SIGSEGV. Any other child exits with
            // code 1.
            let is_right = match status {
                WaitStatus::Signaled(_, Signal::SIGSEGV, _) => caller == Caller::Collate,
                WaitStatus::Exited(_, 1) => caller != Caller::Collate,
                _ => false,
            };
            assert!(is_right, "{caller:?}: {status:?}");
        }
        // Lets the child go on first.
        _ if result > 0 => thread::sleep(Duration::from_millis(20)),
        _ => {}
    }
    result == 0
}

/// [`Noise`] that forks, also as an iterable dataset.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Forking {
    noise: Noise,
    forks: Forks,
}

impl Dataset for Forking {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.noise.count
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        // Without workers this may be set already. By then all forks are done.
        drop(FORKS.set(self.forks.clone()));
        self.forks.fork_at(Caller::Setup, 0);
        Ok(())
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        self.forks.fork_at(Caller::Get, index);
        self.noise.get(index, cx)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<NoiseSample>> {
        let load = |&index| {
            cx.set_index(index);
            self.forks.fork_at(Caller::GetMany, index);
            self.get(index, cx)
        };
        indices.iter().map(load).collect()
    }
}

impl IterableDataset for Forking {
    type Sample = NoiseSample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<NoiseSample>> + Send> {
        Ok(shard.of(0..self.noise.count as u64).map(|number| {
            self.forks.fork_at(Caller::Next, number as usize);
            self.noise.get(number as usize, cx)
        }))
    }
}

/// A batch that forks when it is encoded in a worker.
#[derive(Debug, Deserialize)]
#[serde(from = "(Tensor<u64>, Tensor<f32>)")]
struct ForkingBatch(Tensor<u64>, Tensor<f32>);

impl From<(Tensor<u64>, Tensor<f32>)> for ForkingBatch {
    fn from((numbers, noise): (Tensor<u64>, Tensor<f32>)) -> Self {
        Self(numbers, noise)
    }
}

impl Serialize for ForkingBatch {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Forks::fork_of_process(Caller::Encode);
        (&self.0, &self.1).serialize(serializer)
    }
}

fn forking_collate(samples: Vec<NoiseSample>) -> anyhow::Result<ForkingBatch> {
    // A part of the batch is made before the fork, the rest after it.
    let numbers: Vec<u64> = samples.iter().map(|(number, ..)| *number).collect();
    let mut numbers = Tensor::from_slice(&numbers, [numbers.len()])?;
    if Forks::fork_of_process(Caller::Collate) {
        // The worker's batch must not contain this, although it is built in the same slot.
        numbers.as_mut_slice()?.fill(u64::MAX);
    }
    let noise: Vec<f32> = samples.iter().flat_map(|(_, noise, _)| *noise).collect();
    Ok(ForkingBatch(numbers, Tensor::from_slice(&noise, [samples.len(), 3])?))
}

fn forking_worker_init(_worker: &WorkerInfo) -> anyhow::Result<()> {
    Forks::fork_of_process(Caller::WorkerInit);
    Ok(())
}

/// Digests of order and content of an epoch, and the number of replaced workers.
type Epoch = ((u64, u64), u64);

fn load<B: Batch>(loader: Result<DataLoader<B>, Error>) -> Epoch {
    let mut batches = loader.unwrap().iter().unwrap();
    (digest_rest(&mut batches).unwrap(), batches.report().restarts)
}

fn load_by_index<D: Dataset<Sample = NoiseSample>>(dataset: D, workers: usize) -> Epoch {
    let loader = DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(workers);
    let loader = loader.worker_init(forking_worker_init).collate(forking_collate);
    load(loader.on_warning(|_| {}).build())
}

fn load_in_order(dataset: Forking, workers: usize) -> Epoch {
    let loader = DataLoader::stream(dataset).shards(3).batch_size(4).num_workers(workers);
    load(loader.on_warning(|_| {}).build())
}

/// Loads an epoch whose dataset forks `count` times. The epoch must be that of a dataset that does not fork,
/// and the forked children must have ended.
fn assert_children_end(how: Fork, caller: Caller, count: usize) {
    let before = Before::take();
    let (forks, tokens) = Forks::prepare(how, caller, count);
    let dataset = Forking { noise: Noise { count: 200 }, forks };
    let load = |workers| match caller {
        Caller::Next => load_in_order(dataset.clone(), workers),
        _ => load_by_index(dataset.clone(), workers),
    };
    let ((digest, restarts), took) = timed(|| load(2));
    println!("{how:?} in {caller:?}: {took:?}");
    assert_eq!(std::fs::read_dir(tokens.path()).unwrap().count(), 0, "all forks were made");
    assert_soon(took);
    // All forks are done, so main itself can load the epoch.
    assert_eq!(digest, load(0).0, "{how:?} in {caller:?}");
    // With `daemon` the worker itself ends, and is replaced.
    assert_eq!(restarts, if how == Fork::Daemon { count as u64 } else { 0 }, "{how:?} in {caller:?}");
    drop(tokens);
    before.assert_nothing_left();
}

#[test]
fn user_code_forks_and_both_processes_return() {
    alone(|| {
        for caller in [
            Caller::Setup,
            Caller::WorkerInit,
            Caller::Get,
            Caller::GetMany,
            Caller::Collate,
            Caller::Encode,
            Caller::Next,
        ] {
            for how in [Fork::Library, Fork::RawClone] {
                let is_per_sample = matches!(caller, Caller::Get | Caller::GetMany | Caller::Next);
                assert_children_end(how, caller, if is_per_sample { 5 } else { 1 });
            }
        }
    });
}

#[test]
fn user_code_becomes_a_daemon() {
    alone(|| {
        for caller in [Caller::Setup, Caller::Get, Caller::Collate, Caller::Next] {
            assert_children_end(Fork::Daemon, caller, 1);
        }
    });
}

// PyTorch: X21, N14, U33
#[test]
fn a_forked_child_of_main_leaves_its_parents_batches_and_workers_alone() {
    let _watchdog = Watchdog::start();
    let status =
        Family::empty().watch(Command::new(env!("CARGO_BIN_EXE_test-host")).args(["fork-load", "2"]));
    assert!(status.success(), "{status}");
}
