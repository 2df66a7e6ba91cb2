//! Workers that a signal, a debugger or a bug stops: main names them, the others continue, and a worker that
//! stays stopped is replaced.

use std::{
    env,
    fs::{self, File},
    hint,
    io::{BufRead, BufReader},
    process::{self, Command, Stdio},
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

use loader_core::{
    Builder, Error, ExitCause, ExitStatus, Warning, WorkerExit,
    collate::Collate,
    kind::{MapStyle, WorkerInit},
    prelude::*,
};
use loader_tests::{
    alone::alone,
    datasets::{Fault, Faulty, Slow},
    processes,
    timing::timed,
    traces::Before,
    ways::{all, numbers},
};
use nix::sys::signal::{Signal, raise};

use crate::with_warnings;

const TRACER: &str = env!("CARGO_BIN_EXE_test-tracer");
const TIMEOUT: Duration = Duration::from_millis(300);

#[test]
fn a_stopped_worker_is_named_and_the_others_continue() {
    alone(|| {
        let before = Before::take();
        for in_order in [true, false] {
            let dataset = Faulty { count: 80, at: 21, fault: Fault::Stop };
            let builder = DataLoader::builder(dataset).batch_size(2).num_workers(2).in_order(in_order);
            let mut batches = builder.timeout(TIMEOUT).build().unwrap().iter().unwrap();
            let mut seen: Vec<u64> = Vec::new();
            let (error, took) = loop {
                match timed(|| batches.next().unwrap()) {
                    (Ok(batch), _) => seen.extend(batch.as_slice()),
                    (Err(error), took) => break (error, took),
                }
            };
            assert!((TIMEOUT..10 * TIMEOUT).contains(&took), "{took:?}");
            let Error::TimedOut { waiting_for: doing, .. } = &error else { panic!("{error:?}") };
            assert_eq!((doing.batch, doing.index), (10, 21), "{error}");
            assert_eq!(doing.pid, batches.worker_pids()[doing.worker]);
            // In order, the other worker has loaded the rest of the window, also the tasks of the stopped
            // worker that it had not begun. Out of order, every other batch has arrived.
            let loaded: u64 = batches.report().workers.iter().map(|worker| worker.batches).sum();
            assert_eq!((seen.len(), loaded), if in_order { (20, 10 + 3) } else { (78, 39) });
            assert!(matches!(batches.next(), Some(Err(Error::TimedOut { .. }))), "the iterator continues");
            processes::signal(doing.pid, Signal::SIGCONT);
            seen.extend(batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()));
            if !in_order {
                seen.sort_unstable();
            }
            assert!(seen.into_iter().eq(0..80));
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_may_be_stopped_and_continued_at_any_moment() {
    alone(|| {
        let before = Before::take();
        let dataset = Faulty { count: 2000, at: usize::MAX, fault: Fault::Hang };
        let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        let mut seen = Vec::new();
        for round in 0..20 {
            processes::signal(pids[round % 2], Signal::SIGSTOP);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    processes::signal(pids[round % 2], Signal::SIGCONT);
                });
                seen.extend(batches.by_ref().take(50).map(|batch| batch.unwrap().as_slice()[0]));
            });
        }
        seen.extend(batches.by_ref().map(|batch| batch.unwrap().as_slice()[0]));
        assert!(seen.into_iter().eq(0..2000));
        drop((batches, loader));
        before.assert_nothing_left();
    });
}

#[test]
fn no_sample_is_late_after_main_and_its_workers_were_stopped_together() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 1500, delay: Duration::from_millis(1) };
        // `sample_timeout` bounds the time of a sample, not of a batch.
        let builder = DataLoader::builder(dataset).batch_size(250).num_workers(2);
        let loader = builder.sample_timeout(Duration::from_millis(100)).build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert!(batches.next().unwrap().unwrap().as_slice().iter().copied().eq(0..250));
        let mut pids = batches.worker_pids();
        pids.push(process::id());
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        // As a shell does for Ctrl-Z and `fg`.
        let script = "kill -STOP \"$@\"; sleep 0.5; kill -CONT \"$@\"";
        let mut shell = Command::new("sh").args(["-c", script, "sh"]).args(pids).spawn().unwrap();
        let (rest, took) = timed(|| all(batches));
        assert!(numbers(&rest).concat().into_iter().eq(250..1500));
        assert!(took > Duration::from_millis(450), "they were not stopped: {took:?}");
        assert!(shell.wait().unwrap().success());
        drop((rest, loader));
        before.assert_nothing_left();
    });
}

// PyTorch: U04
#[test]
fn a_drop_continues_workers_that_are_stopped() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 1000, delay: Duration::from_millis(1) };
        let mut batches = DataLoader::builder(dataset).num_workers(2).build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGSTOP));
        let ((), took) = timed(|| drop(batches));
        println!("dropped in {took:?}");
        assert!(took < Duration::from_secs(4), "they were killed: {took:?}");
        before.assert_nothing_left();
    });
}

fn forty() -> Builder<MapStyle<Slow>> {
    DataLoader::builder(Slow { count: 40, delay: Duration::from_millis(1) })
}

/// A collate function that halts three workers, each in another way, when it first gets sample 3, 4 or 5.
fn halt_once(samples: Vec<u64>) -> anyhow::Result<Tensor<u64>> {
    let stop_this_thread = || {
        // Another thread uses more processor time than a clock tick, 10 ms, between two checks of main.
        thread::spawn(|| {
            loop {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(30) {
                    hint::spin_loop();
                }
                thread::sleep(Duration::from_millis(300));
            }
        });
        processes::stop_as_traced()
    };
    let halts: [fn() -> nix::Result<()>; 3] =
        [|| raise(Signal::SIGSTOP), stop_this_thread, processes::end_this_thread];
    for (halt, sample) in halts.into_iter().zip(3..) {
        let mark = env::temp_dir().join(format!("halted-{sample}"));
        if samples.contains(&sample) {
            match File::create_new(&mark) {
                Ok(_) => halt()?,
                Err(_) => fs::remove_file(mark)?,
            }
        }
    }
    Ok(Tensor::from_slice(&samples, [samples.len()])?)
}

/// Loads an epoch of 40 samples in which main replaces `workers` workers after `patience`. Returns why it
/// killed them.
fn assert_replaced<C, W>(
    builder: Builder<MapStyle<Slow>, C, W>,
    patience: Duration,
    workers: usize,
    stop: impl FnOnce(&[u32]),
) -> Vec<ExitCause>
where
    C: Collate<u64, Batch = Tensor<u64>>,
    W: WorkerInit,
{
    let before = Before::take();
    let (builder, warnings) = with_warnings(builder);
    let mut batches = builder.build().unwrap().iter().unwrap();
    stop(&batches.worker_pids());
    let (epoch, took) = timed(|| batches.by_ref().map(Result::unwrap).collect::<Vec<_>>());
    println!("the epoch took {took:?}");
    assert!(numbers(&epoch).concat().into_iter().eq(0..40));
    assert!((patience..patience + Duration::from_secs(5)).contains(&took), "{took:?}");
    assert_eq!(batches.report().restarts, workers as u64);
    drop((batches, epoch));
    before.assert_nothing_left();
    let cause = |warning| match warning {
        Warning::WorkerReplaced { exit, .. } => exit.cause.expect("main killed the worker"),
        other => panic!("{other:?}"),
    };
    warnings.iter().map(cause).collect()
}

#[test]
fn workers_that_stay_halted_are_replaced_after_10_s() {
    alone(|| {
        let builder = forty().collate(halt_once).num_workers(3);
        let causes = assert_replaced(builder, Duration::from_secs(10), 3, |_| ());
        let is_10_s = |elapsed: &Duration| (10..20).contains(&elapsed.as_secs());
        let count = |is_it: &dyn Fn(&ExitCause) -> bool| causes.iter().filter(|cause| is_it(cause)).count();
        let counts = [
            count(&|cause| matches!(cause, ExitCause::Stopped { elapsed } if is_10_s(elapsed))),
            count(&|cause| matches!(cause, ExitCause::Traced { elapsed } if is_10_s(elapsed))),
            count(&|cause| matches!(cause, ExitCause::MainThreadEnded { elapsed } if is_10_s(elapsed))),
        ];
        assert_eq!(counts, [1; 3], "{causes:?}");
    });
}

#[test]
fn with_sample_timeout_workers_that_halt_outside_of_samples_are_replaced_after_5_s() {
    alone(|| {
        let builder = forty().collate(halt_once).sample_timeout(TIMEOUT).num_workers(3);
        let causes = assert_replaced(builder, Duration::from_secs(5), 3, |_| ());
        assert!(causes.iter().all(is_no_progress_for_5_s), "{causes:?}");
    });
}

#[test]
fn with_sample_timeout_an_idle_worker_that_is_stopped_is_replaced_after_5_s() {
    alone(|| {
        let builder = forty().sample_timeout(TIMEOUT).num_workers(2);
        let causes = assert_replaced(builder, Duration::from_secs(5), 1, |pids| {
            // Time to load the whole window.
            thread::sleep(Duration::from_millis(300));
            processes::signal(pids[1], Signal::SIGSTOP);
        });
        assert!(causes.len() == 1 && is_no_progress_for_5_s(&causes[0]), "{causes:?}");
    });
}

fn is_no_progress_for_5_s(cause: &ExitCause) -> bool {
    matches!(cause, ExitCause::NoProgress { elapsed } if elapsed.as_secs() == 5)
}

/// Returns how the workers ended that were replaced so far.
fn replaced(warnings: &Receiver<Warning>) -> Vec<WorkerExit> {
    let exit = |warning| match warning {
        Warning::WorkerReplaced { exit, .. } => Some(exit),
        _ => None,
    };
    warnings.try_iter().filter_map(exit).collect()
}

/// Two crashes on a sample make it bad, and each is noticed long before the program ends.
#[test]
fn a_worker_that_executes_another_program_counts_as_dead() {
    alone(|| {
        let before = Before::take();
        let faulty =
            || DataLoader::builder(Faulty { count: 40, at: 12, fault: Fault::Execute }).num_workers(2);
        let (builder, warnings) = with_warnings(faulty().on_bad_sample(OnBadSample::Skip));
        let mut batches = builder.build().unwrap().iter().unwrap();
        let (epoch, took) = timed(|| batches.by_ref().map(Result::unwrap).collect::<Vec<_>>());
        println!("the epoch took {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(numbers(&epoch).concat().into_iter().eq((0..40).filter(|&sample| sample != 12)));
        drop((batches, epoch));
        let is_closed = |exit: &WorkerExit| exit.cause == Some(ExitCause::LifelineClosed);
        let replaced = replaced(&warnings);
        assert!(replaced.len() == 2 && replaced.iter().all(is_closed), "{replaced:?}");
        let builder = faulty().on_worker_death(OnWorkerDeath::Fail);
        let (error, took) = timed(|| builder.build().unwrap().iter().unwrap().find_map(Result::err).unwrap());
        assert!(matches!(&error, Error::WorkerExited { exit, .. } if is_closed(exit)), "{error:?}");
        assert!(took < Duration::from_secs(15), "{took:?}");
        before.assert_nothing_left();
    });
}

/// The debugger keeps the exit status of a worker from main.
#[test]
fn a_worker_that_another_process_traces_is_replaced_when_main_has_killed_it() {
    alone(|| {
        let dataset = Faulty { count: 40, at: 12, fault: Fault::Hang };
        let builder = DataLoader::builder(dataset).num_workers(2).sample_timeout(TIMEOUT);
        let (builder, warnings) = with_warnings(builder.on_bad_sample(OnBadSample::Skip));
        let mut batches = builder.build().unwrap().iter().unwrap();
        let pids: Vec<String> = batches.worker_pids().iter().map(u32::to_string).collect();
        let mut tracer = Command::new(TRACER).args(pids).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "traces\n");
        let (epoch, took) = timed(|| batches.by_ref().map(Result::unwrap).collect::<Vec<_>>());
        println!("the epoch took {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(numbers(&epoch).concat().into_iter().eq((0..40).filter(|&sample| sample != 12)));
        let replaced = replaced(&warnings);
        let [exit] = &replaced[..] else { panic!("{replaced:?}") };
        assert_eq!(exit.cause, Some(ExitCause::SampleTimedOut));
        assert_eq!(exit.status, ExitStatus::Signal { signal: 9, core_dumped: false });
        tracer.kill().unwrap();
        tracer.wait().unwrap();
        drop(batches);
    });
}
