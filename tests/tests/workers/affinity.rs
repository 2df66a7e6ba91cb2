//! The CPUs to which workers are bound: `worker_affinity`.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use loader_core::{CpuSet, Error, Iter, Warning, WorkerAffinity, prelude::*};
use loader_ipc::process;
use loader_tests::{
    Watchdog,
    processes::{signal, wait_until_gone},
    skipped,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Samples that tell the affinity masks of all threads of the worker that loads them.
#[derive(Debug, Serialize, Deserialize)]
struct Masks;

impl Dataset for Masks {
    /// The worker's number, its process, and the masks of its threads, with a space between them.
    type Sample = (u64, u32, String);

    fn len(&self) -> usize {
        1_000_000
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let worker = cx.worker().map_or(u64::MAX, |worker| worker.id() as u64);
        let threads = fs::read_dir("/proc/self/task")?;
        let statuses = threads.map(|thread| fs::read_to_string(thread?.path().join("status")));
        let statuses = statuses.collect::<Result<Vec<_>, _>>()?;
        let mask = |status: &String| {
            status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(|mask| mask.trim().to_owned()))
        };
        Ok((worker, std::process::id(), statuses.iter().filter_map(mask).collect::<Vec<_>>().join(" ")))
    }
}

type MaskBatch = <<Masks as Dataset>::Sample as Sample>::Batch;

/// Returns the mask of each of the running workers, of which there are `workers`. All threads of a worker
/// must have the same.
fn masks(batches: &mut Iter<MaskBatch>, workers: usize) -> Vec<String> {
    let mut found = BTreeMap::new();
    while found.len() < workers {
        let (ids, pids, masks) = batches.next().expect("each worker loads a batch").unwrap();
        let is_running = |pid| batches.worker_pids().contains(pid);
        let samples = ids.as_slice().iter().zip(pids.as_slice()).zip(masks);
        for ((id, _), masks) in samples.filter(|((_, pid), _)| is_running(pid)) {
            let (first, others) = masks.split_once(' ').expect("a worker has several threads");
            assert!(others.split(' ').all(|mask| mask == first), "{masks}");
            found.insert(*id, first.to_owned());
        }
    }
    found.into_values().collect()
}

/// Returns the masks of two workers, and the number of CPUs in the report.
fn masks_with(affinity: WorkerAffinity) -> (Vec<String>, usize) {
    let loader = DataLoader::builder(Masks).num_workers(2).worker_affinity(affinity).build().unwrap();
    let mut batches = loader.iter().unwrap();
    (masks(&mut batches, 2), batches.report().cpus)
}

fn texts(sets: &[&CpuSet]) -> Vec<String> {
    sets.iter().map(ToString::to_string).collect()
}

#[test]
fn workers_and_their_replacements_are_bound_to_their_cpus() {
    let _watchdog = Watchdog::start();
    let allowed = CpuSet::allowed().unwrap();
    if allowed.len() < 2 {
        return skipped("with one CPU, all masks are the same");
    }
    let single: Vec<_> = allowed.iter().take(2).map(|cpu| CpuSet::from_iter([cpu])).collect();
    let own = CpuSet::of_this_thread().unwrap();
    let builder =
        DataLoader::builder(Masks).num_workers(2).worker_affinity(WorkerAffinity::Sets(single.clone()));
    let loader = builder.on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let expected = texts(&[&single[0], &single[1]]);
    assert_eq!(masks(&mut batches, 2), expected);
    // A worker that is killed, one that is added, and one that comes back.
    let killed = batches.worker_pids()[1];
    signal(killed, Signal::SIGKILL);
    wait_until_gone(&[killed], Duration::from_secs(5)).unwrap();
    while batches.worker_pids()[1] == killed {
        batches.next().expect("there are more batches than the dead worker has loaded").unwrap();
    }
    assert_eq!(masks(&mut batches, 2), expected);
    assert_eq!(batches.report().restarts, 1);
    batches.set_num_workers(3).unwrap();
    assert_eq!(masks(&mut batches, 3), texts(&[&single[0], &single[1], &single[0]]));
    assert_eq!(CpuSet::of_this_thread().unwrap(), own, "main keeps its own mask");
}

#[test]
fn workers_of_a_bound_process_may_use_more_cpus() {
    let _watchdog = Watchdog::start();
    let allowed = CpuSet::allowed().unwrap();
    let Some(last) = allowed.iter().last().filter(|_| allowed.len() >= 2) else {
        return skipped("with one CPU, all masks are the same");
    };
    // The calling thread stands for main, as a launcher has bound it.
    let one = CpuSet::from_iter([last]);
    one.run(|| {
        assert_eq!(masks_with(WorkerAffinity::Inherit), (texts(&[&one, &one]), 1));
        assert_eq!(masks_with(WorkerAffinity::Share), (texts(&[&allowed, &allowed]), allowed.len()));
        // Without a launcher, the user has bound the process on purpose.
        assert_eq!(masks_with(WorkerAffinity::Spread), (texts(&[&one, &one]), 1));
    })
    .unwrap();
    let (mut spread, cpus) = masks_with(WorkerAffinity::Spread);
    spread.dedup();
    assert_eq!((spread.len(), cpus), (2, allowed.len()));
}

#[test]
fn the_number_of_workers_counts_the_cpus_that_they_may_use() {
    let allowed = CpuSet::allowed().unwrap();
    let first = CpuSet::from_iter(allowed.iter().next());
    let affinity = WorkerAffinity::Sets(vec![first]);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let builder = DataLoader::builder(Masks).num_workers(2).worker_affinity(affinity.clone());
    drop(builder.on_warning(move |warning| collected.lock().unwrap().push(warning.clone())).build().unwrap());
    assert_eq!(
        *warnings.lock().unwrap(),
        [Warning::MoreWorkersThanCpus { workers: 2, cpus: 1, processes: 1 }]
    );
    let auto = LoaderOptions::default().num_workers(NumWorkers::auto()).worker_affinity(affinity).resolved();
    assert_eq!(auto.num_workers, Some(AutoWorkers::default().max(16).into()));
}

#[test]
fn a_cpu_that_does_not_exist_is_refused() {
    let build = |affinity, workers| {
        DataLoader::builder(Masks)
            .num_workers(workers)
            .worker_affinity(WorkerAffinity::Sets(affinity))
            .build()
    };
    let sets = || vec!["0".parse().unwrap(), "1023".parse().unwrap()];
    let Err(Error::CpuNotAllowed { cpu: 1023, allowed }) = build(sets(), 1) else { panic!("it is refused") };
    assert_eq!(allowed, CpuSet::allowed().unwrap());
    assert!(matches!(build(Vec::new(), 1), Err(Error::InvalidOption { option: "worker_affinity", .. })));
    assert!(build(sets(), 0).is_ok(), "without workers it has no effect");
}

/// Samples that take two milliseconds of processor time.
#[derive(Serialize, Deserialize)]
struct Computed;

impl Dataset for Computed {
    type Sample = u64;

    fn len(&self) -> usize {
        200
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        compute(index)
    }
}

fn compute(index: usize) -> anyhow::Result<u64> {
    let before = process::cpu_time(std::process::id()).context("no clock")?;
    while process::cpu_time(std::process::id()).context("no clock")? < before + Duration::from_millis(2) {}
    Ok(index as u64)
}

#[test]
fn the_report_says_how_long_workers_have_waited_for_a_cpu() {
    let _watchdog = Watchdog::start();
    if process::cpu_wait(std::process::id()).is_none() {
        return skipped("the kernel does not measure how long a thread waits for a CPU");
    }
    let one = CpuSet::allowed().unwrap().iter().take(1).collect();
    let loader = DataLoader::builder(Computed).batch_size(5).num_workers(2);
    let loader = loader.worker_affinity(WorkerAffinity::Sets(vec![one])).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    // The workers have ended. Each of the two had the CPU for at most half of the time.
    let figures = batches.report().figures.unwrap();
    assert!(figures.on_cpu_share < 0.6 && figures.cpu_wait_share > 0.3, "{figures:?}");
    assert!(figures.on_cpu_share + figures.cpu_wait_share < 1.1, "{figures:?}");
}

/// Samples that a thread of the dataset computes while the worker's main thread sleeps.
#[derive(Serialize, Deserialize)]
struct ComputedOnThread {
    #[serde(skip)]
    thread: OnceLock<Computer>,
}

/// A thread that computes the samples of the indices that it receives.
struct Computer {
    indices: SyncSender<usize>,
    samples: Mutex<Receiver<anyhow::Result<u64>>>,
}

impl Computer {
    fn start() -> Self {
        let ((indices, asked), (answer, samples)) = (sync_channel::<usize>(0), sync_channel(0));
        // The channels close when the worker ends.
        thread::spawn(move || asked.iter().try_for_each(|index| answer.send(compute(index))));
        Self { indices, samples: Mutex::new(samples) }
    }
}

impl Dataset for ComputedOnThread {
    type Sample = u64;

    fn len(&self) -> usize {
        Computed.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let Computer { indices, samples } = self.thread.get_or_init(Computer::start);
        indices.send(index)?;
        samples.lock().unwrap().recv()?
    }
}

#[test]
fn the_wait_of_the_threads_of_a_dataset_counts() {
    let _watchdog = Watchdog::start();
    if process::cpu_wait(std::process::id()).is_none() {
        return skipped("the kernel does not measure how long a thread waits for a CPU");
    }
    let one: CpuSet = CpuSet::allowed().unwrap().iter().take(1).collect();
    let loader =
        DataLoader::builder(ComputedOnThread { thread: OnceLock::new() }).batch_size(5).num_workers(2);
    let loader = loader.worker_affinity(WorkerAffinity::Sets(vec![one])).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    let figures = batches.report().figures.unwrap();
    // Half of the time, if no other program runs. The main threads of the workers alone wait for next to nothing.
    assert!(figures.cpu_wait_share > 0.1, "{figures:?}");
}
