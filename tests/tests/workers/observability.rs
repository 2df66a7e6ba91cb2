//! What the report, the trace, the statistics and the metrics say about loading.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    thread::{self, sleep},
    time::Duration,
};

use loader_core::{Builder, Error, Iter, LoadTimes, Phase, kind::MapStyle, prelude::*};
use loader_tests::{Watchdog, alone::alone, processes};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const TICK: Duration = Duration::from_millis(1);
const SAMPLES: usize = 60;
const BATCH_SIZE: usize = 5;
/// Index of the slowest sample.
const SLOWEST: usize = 33;
/// Index of the sample on which the dataset aborts the worker's process.
const FATAL: usize = 47;

/// A dataset that takes one tick to read a sample and three to decode it. To read sample [`SLOWEST`] takes 21.
#[derive(Serialize, Deserialize)]
struct Marked {
    is_deadly: bool,
}

impl Dataset for Marked {
    type Sample = u64;

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        if self.is_deadly && index == FATAL {
            std::process::abort();
        }
        let ticks = if index == SLOWEST { 21 } else { 1 };
        Phase::Read.measure(|| sleep(TICK * ticks));
        Phase::Decode.measure(|| sleep(3 * TICK));
        Ok(index as u64)
    }
}

fn loader(workers: usize) -> Builder<MapStyle<impl Dataset<Sample = u64>>> {
    let transformed = Marked { is_deadly: false }.map(|sample, _cx| {
        sleep(TICK);
        Ok(sample)
    });
    DataLoader::builder(transformed).batch_size(BATCH_SIZE).num_workers(workers).on_warning(|_| {})
}

fn check(times: &LoadTimes, least_samples: u64) {
    let LoadTimes { phases, .. } = *times;
    let samples = times.sample.unwrap();
    assert!((least_samples..=SAMPLES as u64).contains(&samples.count), "{times:?}");
    // Whatever the load of the machine, a sleep is not shorter than asked for.
    let measured = u32::try_from(samples.count).unwrap();
    assert!(phases.read >= TICK * measured && phases.decode >= 3 * TICK * measured, "{times:?}");
    assert!(phases.transform >= TICK * measured, "{times:?}");
    assert!(samples.p50 >= 4 * TICK && samples.p99 >= samples.p50);
    let batches = times.batch.unwrap();
    assert!(batches.p50 >= 20 * TICK && batches.count >= (SAMPLES / BATCH_SIZE) as u64 - 1, "{times:?}");
    assert_eq!(phases.shares().len(), Phase::ALL.len());
    assert!(times.slowest.is_sorted_by_key(|sample| std::cmp::Reverse(sample.time)));
    let found = times.slowest.iter().find(|sample| sample.index == SLOWEST).unwrap();
    assert!(found.time >= 25 * TICK && found.batch == Some((SLOWEST / BATCH_SIZE) as u64), "{times:?}");
}

#[test]
fn the_report_says_where_the_time_went() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = loader(workers).build().unwrap();
        for _epoch in 0..2 {
            let mut batches = loader.iter().unwrap();
            batches.by_ref().for_each(|batch| drop(batch.unwrap()));
            let report = batches.report();
            check(&report.times, SAMPLES as u64);
            assert_eq!(report.workers.len(), workers);
            assert_eq!(workers > 0, report.workers.iter().any(|worker| worker.phases.decode >= 3 * TICK));
            assert_eq!(report.main_decode.is_some(), workers > 0);
            assert_eq!(report.ready.mean().is_some(), workers > 0);
            let text = report.to_string();
            assert!(text.contains(" % decode"), "{text}");
        }
    }
}

#[test]
fn times_start_at_zero_in_each_epoch_and_survive_a_kill() {
    let _watchdog = Watchdog::start();
    let loader = loader(2).persistent_workers(true).build().unwrap();
    for epoch in 0..3 {
        let mut batches = loader.iter().unwrap();
        let mut returned = 0;
        while let Some(batch) = batches.next() {
            batch.unwrap();
            returned += 1;
            if epoch == 1 && returned == 4 {
                processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
            }
        }
        let report = batches.report();
        // A batch on which a worker was killed is not counted by that worker, but it may have measured
        // samples of it, and the samples are then loaded again.
        let most = if epoch == 1 { SAMPLES + BATCH_SIZE } else { SAMPLES };
        let measured = report.times.sample.unwrap().count;
        assert!((SAMPLES as u64 - 5..=most as u64).contains(&measured), "{measured}");
        assert!(report.times.slowest.iter().any(|sample| sample.index == SLOWEST));
    }
}

#[test]
fn any_thread_can_read_the_statistics_and_the_metrics() {
    let _watchdog = Watchdog::start();
    let loader = loader(2).metrics(([127, 0, 0, 1], 0).into()).build().unwrap();
    let address = loader.metrics_address().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
    let rest = batches.by_ref().map(Result::unwrap).count();
    let (stats, text) = thread::scope(|scope| {
        let stats = scope.spawn(|| loader.stats());
        let metrics = scope.spawn(|| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            text
        });
        (stats.join().unwrap(), metrics.join().unwrap())
    });
    assert_eq!((stats.epochs, stats.errors), (1, 0));
    assert_eq!((stats.batches, stats.samples), (rest as u64 + 1, SAMPLES as u64));
    assert_eq!(stats.restarts, 1);
    assert!(stats.waiting >= 20 * TICK);
    assert_eq!(stats.bytes, batches.report().bytes);
    assert!(stats.bytes >= 8 * SAMPLES as u64, "a sample has 8 bytes: {}", stats.bytes);
    let lines = [
        format!("loader_batches_total {}", stats.batches),
        format!("loader_restarts_total {}", stats.restarts),
        format!("loader_samples_total {SAMPLES}"),
    ];
    assert!(lines.iter().all(|line| text.lines().any(|found| found == line)), "{text}");
    let error = DataLoader::builder(Marked { is_deadly: false }).metrics(address).build().unwrap_err();
    assert!(matches!(error, Error::InvalidOption { option: "metrics", .. }), "{error}");
    // The workers of a new epoch are shown from its beginning on.
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    let stats = loader.stats();
    assert_eq!(stats.workers.len(), 2);
    // The next batches may have been loaded too.
    let times = stats.times.batch.expect("a batch was loaded");
    assert!(times.count >= 1 && times.p50 >= TICK, "{times:?}");
    assert!(stats.workers.iter().map(|worker| worker.phases.read).sum::<Duration>() >= TICK, "{stats:?}");
    assert!(!stats.times.slowest.is_empty());
}

/// Takes batches until `least` batches are ready, of all iterators.
fn wait_until_ready(loader: &DataLoader<Tensor<u64>>, batches: &mut Iter<Tensor<u64>>, least: u64) {
    while loader.stats().ready_batches < least {
        // The call counts the batches that are loaded meanwhile.
        sleep(50 * TICK);
        batches.next().expect("there are enough batches").unwrap();
    }
}

#[test]
fn the_statistics_have_all_iterators_that_load() {
    let _watchdog = Watchdog::start();
    let numbers = TensorDataset::new(Tensor::from_vec((0..10_000u64).collect(), [10_000]).unwrap()).unwrap();
    let loader = DataLoader::builder(numbers).batch_size(2).num_workers(1).build().unwrap();
    let (mut first, mut second) = (loader.iter().unwrap(), loader.iter().unwrap());
    wait_until_ready(&loader, &mut first, 1);
    let of_first = loader.stats().ready_batches;
    wait_until_ready(&loader, &mut second, of_first + 1);
    let last_count = |batches: &Iter<Tensor<u64>>| batches.report().ready.counts.last().unwrap().1;
    assert_eq!(last_count(&first), of_first);
    assert_eq!(loader.stats().ready_batches, of_first + last_count(&second));
    assert!(second.by_ref().all(|batch| batch.is_ok()));
    let stats = loader.stats();
    assert_eq!(stats.ready_batches, of_first, "those of the iterator that still loads");
    assert!(stats.shared_memory_bytes > 0, "{stats:?}");
    drop(first);
    assert_eq!((loader.stats().ready_batches, loader.stats().shared_memory_bytes), (0, 0));
}

#[test]
fn a_subscriber_of_tracing_gets_warnings_and_epochs() {
    // In a process of its own: tracing caches for each call site whether a subscriber wants its events, and
    // tests on other threads have none.
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let file = Arc::new(File::create(&path).unwrap());
        tracing_subscriber::fmt().with_ansi(false).with_writer(file).init();
        let loader = loader(1).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.next().unwrap().unwrap();
        processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
        assert_eq!(batches.by_ref().map(Result::unwrap).count(), SAMPLES / BATCH_SIZE - 1);
        assert!(batches.next().is_none());
        let log = fs::read_to_string(path).unwrap();
        let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(lines(" INFO loader: epoch 0 begins"), 1, "{log}");
        assert_eq!(lines(" INFO loader: epoch 0: 12 batches"), 1, "{log}");
        assert_eq!(lines(" WARN loader: worker 0"), 1, "{log}");
    });
}

fn entries(file: &Path) -> Vec<Value> {
    let mut trace: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    serde_json::from_value(trace["traceEvents"].take()).unwrap()
}

fn count(entries: &[Value], name: &str, ph: &str) -> usize {
    entries.iter().filter(|entry| entry["name"] == name && entry["ph"] == ph).count()
}

#[test]
fn the_trace_has_all_batches_of_all_epochs() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    for workers in [0, 2] {
        let loader = loader(workers).trace(&file).build().unwrap();
        for epoch in 1..=2 {
            for batch in loader.iter().unwrap() {
                batch.unwrap();
            }
            let entries = entries(&file);
            let batches = epoch * SAMPLES / BATCH_SIZE;
            assert_eq!(count(&entries, "batch", "X"), batches);
            assert_eq!(count(&entries, "sample", "X"), epoch * SAMPLES);
            assert_eq!(count(&entries, "next", "X"), batches);
            assert_eq!((count(&entries, "batch", "s"), count(&entries, "batch", "f")), (batches, batches));
            assert!(count(&entries, "process_name", "M") <= workers + 1);
            assert_eq!(entries.last().unwrap()["args"]["lost"], 0);
            // Each batch ends before the call of `next` that returned it, on the same clock.
            let ends = |ph: &str| {
                let arrows = entries.iter().filter(|entry| entry["name"] == "batch" && entry["ph"] == ph);
                let mut ends: Vec<_> = arrows
                    .map(|entry| (entry["id"].as_u64().unwrap(), entry["ts"].as_f64().unwrap()))
                    .collect();
                ends.sort_by_key(|(id, _)| *id);
                ends
            };
            for ((from, loaded), (to, returned)) in ends("s").into_iter().zip(ends("f")) {
                assert!(from == to && loaded <= returned, "{from} at {loaded}, {to} at {returned}");
            }
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn a_failure_leaves_the_last_events_of_each_worker() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("failed-{rank}.json");
    let loader = DataLoader::builder(Marked { is_deadly: true })
        .batch_size(BATCH_SIZE)
        .num_workers(2)
        .on_worker_death(OnWorkerDeath::Fail)
        .trace_on_failure(file)
        .build()
        .unwrap();
    let error = loader.iter().unwrap().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::WorkerExited { .. }), "{error}");
    let entries = entries(&folder.path().join("failed-0.json"));
    let failed = entries.iter().find(|entry| entry["name"] == "epoch failed").unwrap();
    assert_eq!(failed["args"]["text"].as_str(), Some(&*error.to_string()));
    // The worker that died had loaded samples of the batch before the fatal one.
    let sample = |index: usize| entries.iter().any(|entry| entry["args"]["sample"] == index);
    assert!(sample(FATAL - 1) && sample(0) && !sample(FATAL));
}

#[test]
fn a_replaced_worker_leaves_its_last_events() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("replaced.json");
    let loader = DataLoader::builder(Marked { is_deadly: true })
        .batch_size(BATCH_SIZE)
        .num_workers(2)
        .on_bad_sample(OnBadSample::Skip)
        .trace_on_failure(&file)
        .build()
        .unwrap();
    assert!(loader.iter().unwrap().all(|batch| batch.is_ok()));
    let entries = entries(&file);
    let named = |name: &str| entries.iter().filter(|entry| entry["name"] == name).count();
    assert!(named("worker replaced") > 0 && named("next") > 0);
    assert_eq!(named("epoch failed"), 0);
    let sample = |index: usize| entries.iter().any(|entry| entry["args"]["sample"] == index);
    assert!(sample(FATAL - 1) && !sample(FATAL));
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error_before_workers_start() {
    let invalid = |builder: Builder<MapStyle<Marked>>| match builder.build() {
        Err(Error::InvalidOption { option, problem, .. }) => (option, problem),
        other => panic!("{other:?}"),
    };
    let marked = || DataLoader::builder(Marked { is_deadly: false });
    let (option, problem) = invalid(marked().trace("/nowhere/trace.json"));
    assert_eq!(option, "trace");
    assert!(problem.starts_with("`/nowhere/trace.json` cannot be written: "), "{problem}");
    assert_eq!(invalid(marked().trace_on_failure("/")).0, "trace_on_failure");
    let (_, problem) = invalid(marked().distributed(0, 2).trace("trace.json"));
    assert!(problem.contains("`trace-{rank}.json`"), "{problem}");
}
