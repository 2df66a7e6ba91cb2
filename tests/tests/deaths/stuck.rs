//! Workers that do not go on: stopped, or stuck in a sample in every way. They are named, the others go on, and a drop ends them.

use std::{
    env,
    fs::{self, File},
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{self, Command},
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use loader_core::{
    Builder, Error, ExitCause, Warning,
    collate::Collate,
    kind::{MapStyle, WorkerInit},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{Fault, Faulty, Slow},
    processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::{SigSet, Signal, raise};
use serde::{Deserialize, Serialize};

/// What a drop may take when a worker needs SIGTERM or SIGKILL: 5 s, 1 s and 1 s are what it waits.
const DROP: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_millis(300);

/// 40 batches of two, and the worker stops itself in the middle of batch 10.
fn stops(in_order: bool) -> DataLoader<Tensor<u64>> {
    let dataset = Faulty { count: 80, at: 21, fault: Fault::Stop };
    let builder = DataLoader::builder(dataset).batch_size(2).num_workers(2).in_order(in_order);
    builder.timeout(TIMEOUT).build().unwrap()
}

#[test]
fn a_stopped_worker_is_named_the_other_goes_on_and_nothing_is_lost() {
    alone(|| {
        let before = Before::take();
        let loader = stops(true);
        let mut batches = loader.iter().unwrap();
        let mut numbers: Vec<u64> = Vec::new();
        let (error, took) = loop {
            match timed(|| batches.next().unwrap()) {
                (Ok(batch), _) => numbers.extend(batch.as_slice()),
                (Err(error), took) => break (error, took),
            }
        };
        assert!((TIMEOUT..10 * TIMEOUT).contains(&took), "{took:?}");
        let Error::TimedOut { waiting_for: doing, .. } = &error else { panic!("{error:?}") };
        assert_eq!((doing.batch, doing.index, numbers.len()), (10, 21, 20), "{error}");
        assert_eq!(doing.pid, batches.worker_pids()[doing.worker]);
        // The other has loaded all that may be ahead, the tasks that waited behind the stopped one too.
        let loaded: u64 = batches.report().workers.iter().map(|worker| worker.batches).sum();
        assert_eq!(loaded, 10 + 3);
        assert!(matches!(batches.next(), Some(Err(Error::TimedOut { .. }))), "it can be asked again");
        processes::signal(doing.pid, Signal::SIGCONT);
        numbers.extend(batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()));
        assert!(numbers.into_iter().eq(0..80));
        drop((batches, loader));
        before.assert_nothing_left();
    });
}

#[test]
fn batches_as_they_arrive_flow_past_a_stopped_worker() {
    alone(|| {
        let before = Before::take();
        let loader = stops(false);
        let mut batches = loader.iter().unwrap();
        let mut numbers: Vec<u64> = Vec::new();
        let error = loop {
            match batches.next().unwrap() {
                Ok(batch) => numbers.extend(batch.as_slice()),
                Err(error) => break error,
            }
        };
        let Error::TimedOut { waiting_for: doing, .. } = &error else { panic!("{error:?}") };
        assert_eq!((doing.batch, numbers.len()), (10, 78), "all but one");
        processes::signal(doing.pid, Signal::SIGCONT);
        numbers.extend(batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()));
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..80));
        drop((batches, loader));
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_stopped_from_outside_and_continued_again_and_again() {
    alone(|| {
        let before = Before::take();
        let dataset = Faulty { count: 2000, at: usize::MAX, fault: Fault::Hang };
        let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        let mut numbers = Vec::new();
        for round in 0..20 {
            // Whatever it is in: a sample, a report, asleep.
            processes::signal(pids[round % 2], Signal::SIGSTOP);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    processes::signal(pids[round % 2], Signal::SIGCONT);
                });
                numbers.extend(batches.by_ref().take(50).map(|batch| batch.unwrap().as_slice()[0]));
            });
        }
        numbers.extend(batches.by_ref().map(|batch| batch.unwrap().as_slice()[0]));
        assert!(numbers.into_iter().eq(0..2000));
        drop((batches, loader));
        before.assert_nothing_left();
    });
}

#[test]
fn main_and_its_workers_stopped_and_continued_together() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 1500, delay: Duration::from_millis(1) };
        // No sample is late that was not loaded meanwhile, however long the wait for its batch is.
        let builder = DataLoader::builder(dataset).batch_size(250).num_workers(2);
        let loader = builder.sample_timeout(Duration::from_millis(100)).build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert!(batches.next().unwrap().unwrap().as_slice().iter().copied().eq(0..250));
        let mut all = batches.worker_pids();
        all.push(process::id());
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        // As by Ctrl-Z and `fg`.
        let script = "kill -STOP \"$@\"; sleep 0.5; kill -CONT \"$@\"";
        let mut shell = Command::new("sh").args(["-c", script, "sh"]).args(all).spawn().unwrap();
        let rest =
            || batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect::<Vec<_>>();
        let (numbers, took) = timed(rest);
        assert!(numbers.into_iter().eq(250..1500));
        assert_eq!(batches.report().restarts, 0);
        drop(batches);
        assert!(took > Duration::from_millis(450), "they were stopped: {took:?}");
        assert!(shell.wait().unwrap().success());
        drop(loader);
        before.assert_nothing_left();
    });
}

fn forty() -> Slow {
    Slow { count: 40, delay: Duration::from_millis(1) }
}

/// Halts the workers that collate certain samples first, each in another way.
fn halt_once(samples: Vec<u64>) -> anyhow::Result<Tensor<u64>> {
    let halts: [fn() -> nix::Result<()>; 3] =
        [|| raise(Signal::SIGSTOP), processes::stop_as_traced, processes::end_this_thread];
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

/// Loads an epoch of 40 samples in which some workers do not go on, and are replaced after `patience`.
/// Returns why main has ended them.
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
    let (said, heard) = mpsc::channel();
    let hear = move |warning: &Warning| {
        if let Warning::WorkerReplaced { exit, .. } = warning {
            said.send(exit.cause.clone().expect("main has ended it")).unwrap();
        }
    };
    let loader = builder.on_warning(hear).build().unwrap();
    let mut batches = loader.iter().unwrap();
    stop(&batches.worker_pids());
    let (numbers, took) =
        timed(|| batches.by_ref().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect::<Vec<_>>());
    println!("the epoch took {took:?}");
    assert!(numbers.into_iter().eq(0..40));
    assert!((patience..patience + Duration::from_secs(5)).contains(&took), "{took:?}");
    assert_eq!(batches.report().restarts, workers as u64);
    drop((batches, loader));
    before.assert_nothing_left();
    heard.iter().take(workers).collect()
}

fn is_10_s(elapsed: &Duration) -> bool {
    (10..20).contains(&elapsed.as_secs())
}

#[test]
fn workers_that_cannot_go_on_are_replaced() {
    alone(|| {
        let builder = DataLoader::builder(forty()).collate(halt_once).num_workers(3);
        let causes = assert_replaced(builder, Duration::from_secs(10), 3, |_| ());
        let one = |is_it: fn(&ExitCause) -> bool| causes.iter().filter(|cause| is_it(cause)).count() == 1;
        assert!(
            one(|cause| matches!(cause, ExitCause::Stopped { elapsed } if is_10_s(elapsed))),
            "{causes:?}"
        );
        assert!(
            one(|cause| matches!(cause, ExitCause::Traced { elapsed } if is_10_s(elapsed))),
            "{causes:?}"
        );
        assert!(
            one(|cause| matches!(cause, ExitCause::MainThreadEnded { elapsed } if is_10_s(elapsed))),
            "{causes:?}"
        );
    });
}

#[test]
fn a_worker_that_does_not_move_outside_of_samples_is_replaced() {
    alone(|| {
        let builder = DataLoader::builder(forty()).collate(halt_once).sample_timeout(TIMEOUT).num_workers(3);
        for cause in assert_replaced(builder, Duration::from_secs(5), 3, |_| ()) {
            assert!(
                matches!(cause, ExitCause::NoProgress { elapsed } if elapsed.as_secs() == 5),
                "{cause:?}"
            );
        }
    });
}

#[test]
fn a_worker_stopped_while_it_has_nothing_to_do_is_replaced() {
    alone(|| {
        let builder = DataLoader::builder(forty()).sample_timeout(TIMEOUT).num_workers(2);
        let causes = assert_replaced(builder, Duration::from_secs(5), 1, |pids| {
            // All that may be ahead is loaded by then.
            thread::sleep(Duration::from_millis(300));
            processes::signal(pids[1], Signal::SIGSTOP);
        });
        assert!(
            matches!(causes[..], [ExitCause::NoProgress { elapsed }] if elapsed.as_secs() == 5),
            "{causes:?}"
        );
    });
}

/// Each wait is shorter than the time that a sample may take.
#[test]
fn a_stuck_sample_is_found_in_many_short_waits() {
    alone(|| {
        let builder = DataLoader::builder(Stuck(Where::Spins)).num_workers(1).on_warning(|_| {});
        let builder = builder.timeout(TIMEOUT / 3).sample_timeout(2 * TIMEOUT);
        let mut batches = builder.build().unwrap().iter().unwrap();
        let (outcomes, took) = timed(|| batches.by_ref().take(100).collect::<Vec<_>>());
        let timed_out = |outcome: &Result<_, Error>| matches!(outcome, Err(Error::TimedOut { .. }));
        let (waits, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(timed_out);
        println!("{} waits in {took:?}", waits.len());
        assert!(waits.len() > 3);
        let [Ok(_), Ok(_), Err(Error::DatasetFailed { index: Some(2), .. }), Ok(_)] = &others[..] else {
            panic!("{others:?}");
        };
    });
}

/// What main sees of the worker is the same for the whole batch, but for the age.
#[test]
fn a_sample_that_comes_again_and_again_is_not_still() {
    alone(|| {
        let dataset = Slow { count: 40, delay: Duration::from_millis(200) };
        let builder = DataLoader::builder(dataset).sampler(vec![7; 30]).batch_size(30).num_workers(1);
        let mut batches = builder.sample_timeout(Duration::from_secs(1)).build().unwrap().iter().unwrap();
        let batch = batches.next().unwrap().unwrap();
        assert_eq!((batch.as_slice(), batches.report().restarts), ([7; 30].as_slice(), 0));
    });
}

// PyTorch: U04
#[test]
fn a_drop_continues_workers_that_are_stopped() {
    alone(|| {
        let before = Before::take();
        let loader =
            DataLoader::builder(Slow { count: 1000, delay: Duration::from_millis(1) }).num_workers(2);
        let mut batches = loader.build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGSTOP));
        let ((), took) = timed(|| drop(batches));
        println!("dropped in {took:?}");
        assert!(took < Duration::from_secs(4), "they were killed: {took:?}");
        before.assert_nothing_left();
    });
}

/// Where a worker is stuck.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Where {
    /// Stopped.
    Stopped,
    /// Stopped while it opens the dataset.
    StoppedInSetup,
    /// Asleep, with a handler for SIGTERM that does nothing.
    HandlesSigterm,
    /// Asleep, with every signal blocked in this thread and all that it has made.
    BlocksSignals,
    /// Computing.
    Spins,
    /// Reading what nobody writes.
    Reads,
    /// It is another program now, with the same process id.
    OtherProgram,
    /// In the destructor of the dataset, at the end of the epoch.
    Destructor,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stuck(Where);

impl Stuck {
    fn hang(&self) -> anyhow::Result<()> {
        match self.0 {
            Where::Stopped | Where::StoppedInSetup => raise(Signal::SIGSTOP)?,
            Where::HandlesSigterm => {
                for signal in [Signal::SIGTERM, Signal::SIGINT] {
                    signal_hook::flag::register(signal as i32, Arc::<AtomicBool>::default())?;
                }
            }
            Where::BlocksSignals => SigSet::all().thread_set_mask()?,
            Where::Spins => loop {
                std::hint::spin_loop();
            },
            Where::Reads => {
                let (mut reader, _writer) = io::pipe()?;
                reader.read_exact(&mut [0])?;
            }
            Where::OtherProgram => return Err(Command::new("sleep").arg("1000").exec().into()),
            Where::Destructor => return Ok(()),
        }
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Dataset for Stuck {
    type Sample = u64;

    fn len(&self) -> usize {
        4
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        if let Where::StoppedInSetup = self.0 { self.hang() } else { Ok(()) }
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        if index == 2 {
            self.hang()?;
        }
        Ok(index as u64)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // In main there is nothing to be stuck in: it has sent its dataset away.
        if let Where::Destructor = self.0
            && loader_ipc::process::is_worker()
        {
            thread::sleep(Duration::from_secs(1000));
        }
    }
}

/// All at once, each dropped by a thread of its own: this takes as long as the slowest.
#[test]
fn a_drop_ends_a_worker_wherever_it_is_stuck() {
    alone(|| {
        let before = Before::take();
        let all = [
            Where::Stopped,
            Where::StoppedInSetup,
            Where::HandlesSigterm,
            Where::BlocksSignals,
            Where::Spins,
            Where::Reads,
            Where::OtherProgram,
            Where::Destructor,
        ];
        thread::scope(|scope| {
            for stuck in all {
                scope.spawn(move || {
                    let builder = DataLoader::builder(Stuck(stuck)).num_workers(1).timeout(TIMEOUT);
                    let mut batches = builder.build().unwrap().iter().unwrap();
                    let pid = batches.worker_pids()[0];
                    // All four, where the worker is stuck only behind them.
                    let error = batches.by_ref().take(4).find_map(Result::err);
                    match stuck {
                        Where::Destructor => assert!(error.is_none(), "{error:?}"),
                        _ => assert!(matches!(error, Some(Error::TimedOut { .. })), "{stuck:?}: {error:?}"),
                    }
                    let ((), took) = timed(|| drop(batches));
                    println!("{stuck:?}: dropped in {took:?}");
                    assert!(took < DROP && !processes::exists(pid), "{stuck:?}: {took:?}");
                });
            }
        });
        before.assert_nothing_left();
    });
}

/// With a longest time for a sample, the worker is replaced, and only that sample's batch is lost.
// PyTorch: U23
#[test]
fn a_worker_that_is_stuck_in_a_sample_is_replaced() {
    alone(|| {
        let before = Before::take();
        let all = [
            Where::Stopped,
            Where::HandlesSigterm,
            Where::BlocksSignals,
            Where::Spins,
            Where::Reads,
            Where::OtherProgram,
        ];
        for stuck in all {
            let builder = DataLoader::builder(Stuck(stuck)).num_workers(2).sample_timeout(TIMEOUT);
            let batches = builder.on_warning(|_| {}).build().unwrap().iter().unwrap();
            let (batches, took) = timed(|| batches.collect::<Vec<_>>());
            println!("{stuck:?}: the epoch took {took:?}");
            assert_soon(took);
            for (index, batch) in batches.into_iter().enumerate() {
                match batch {
                    Ok(batch) => assert_eq!(batch.as_slice(), [index as u64]),
                    Err(error) => {
                        let is_it = matches!(error, Error::DatasetFailed { index: Some(2), .. });
                        assert!(is_it && index == 2, "{stuck:?}: {error:?}");
                    }
                }
            }
        }
        before.assert_nothing_left();
    });
}

/// A worker program that never answers. Takes the 30 s that a start may: `cargo test -p loader-tests --test deaths -- --ignored`.
#[test]
#[ignore = "takes 30 seconds"]
fn a_program_that_never_answers() {
    let _watchdog = Watchdog::start();
    let before = fs::read_dir("/proc/self/fd").unwrap().count();
    // It reads the bootstrap, prints it, and waits for more.
    let builder = DataLoader::builder(Faulty { count: 1, at: 1, fault: Fault::Hang }).num_workers(2);
    let loader = builder.worker_program("/bin/cat").build().unwrap();
    let (started, took) = timed(|| loader.iter());
    let error = started.unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
    assert!((25..45).contains(&took.as_secs()), "{took:?}");
    drop(loader);
    assert!(fs::read_dir("/proc/self/fd").unwrap().count() <= before);
}
