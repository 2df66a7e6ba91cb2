//! Workers that are stuck in a sample, in every way: with `sample_timeout` main replaces them, and a drop
//! ends them.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use loader_core::{Error, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Count, Slow},
    processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::{SigSet, Signal, raise};
use serde::{Deserialize, Serialize};

/// Maximum time of a drop that needs SIGTERM and SIGKILL, for which it waits 5 s, 1 s and 1 s.
const DROP: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_millis(300);

/// Where a worker is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Where {
    Stopped,
    StoppedInSetup,
    /// Asleep, with a handler for SIGTERM that does nothing.
    HandlesSigterm,
    /// Asleep, with every signal blocked in this thread and in those that it starts.
    BlocksSignals,
    /// In a loop without system calls.
    Spins,
    /// In a read from a pipe to which no process writes.
    Reads,
    /// In another program with the same process id.
    OtherProgram,
    /// In the destructor of the dataset, at the end of the epoch.
    Destructor,
}

/// Four samples; the worker is stuck in sample 2, unless it is stuck elsewhere.
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
        // Main drops its own dataset too.
        if let Where::Destructor = self.0
            && loader_ipc::process::is_worker()
        {
            thread::sleep(Duration::from_secs(1000));
        }
    }
}

#[test]
fn a_drop_ends_a_worker_wherever_it_is_stuck() {
    alone(|| {
        let before = Before::take();
        let cases = [
            Where::Stopped,
            Where::StoppedInSetup,
            Where::HandlesSigterm,
            Where::BlocksSignals,
            Where::Spins,
            Where::Reads,
            Where::OtherProgram,
            Where::Destructor,
        ];
        // In parallel, because most of these drops wait for several seconds.
        thread::scope(|scope| {
            for how in cases {
                scope.spawn(move || {
                    let builder = DataLoader::builder(Stuck(how)).num_workers(1).timeout(TIMEOUT);
                    let mut batches = builder.build().unwrap().iter().unwrap();
                    let pid = batches.worker_pids()[0];
                    if how == Where::StoppedInSetup {
                        // The timeout does not count yet.
                        batches.interrupt_when(5 * TIMEOUT, || true);
                    }
                    let error = batches.by_ref().take(4).find_map(Result::err);
                    match how {
                        Where::Destructor => assert!(error.is_none(), "{error:?}"),
                        Where::StoppedInSetup => assert!(matches!(error, Some(Error::Interrupted))),
                        _ => {
                            assert!(matches!(error, Some(Error::TimedOut { .. })), "{how:?}: {error:?}")
                        }
                    }
                    let ((), took) = timed(|| drop(batches));
                    println!("{how:?}: dropped in {took:?}");
                    assert!(took < DROP && !processes::exists(pid), "{how:?}: {took:?}");
                });
            }
        });
        before.assert_nothing_left();
    });
}

// PyTorch: U23
#[test]
fn with_sample_timeout_a_stuck_worker_is_replaced_and_one_batch_is_lost() {
    alone(|| {
        let before = Before::take();
        let cases = [
            Where::Stopped,
            Where::HandlesSigterm,
            Where::BlocksSignals,
            Where::Spins,
            Where::Reads,
            Where::OtherProgram,
        ];
        for how in cases {
            let builder = DataLoader::builder(Stuck(how)).num_workers(2).sample_timeout(TIMEOUT);
            let batches = builder.on_warning(|_| {}).build().unwrap().iter().unwrap();
            let (batches, took) = timed(|| batches.collect::<Vec<_>>());
            println!("{how:?}: the epoch took {took:?}");
            assert_soon(took);
            let [Ok(zero), Ok(one), Err(Error::DatasetFailed { index: Some(2), .. }), Ok(three)] =
                &batches[..]
            else {
                panic!("{how:?}: {batches:?}");
            };
            assert_eq!([zero, one, three].map(|batch| batch.as_slice()[0]), [0, 1, 3], "{how:?}");
        }
        before.assert_nothing_left();
    });
}

/// Each wait of the user is shorter than `sample_timeout`.
#[test]
fn short_waits_find_a_stuck_sample_too() {
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

/// Main sees the same batch and sample for 2 s, longer than `sample_timeout`; only the sample's age shows the
/// progress.
#[test]
fn a_batch_of_one_sample_many_times_is_not_stuck() {
    alone(|| {
        let dataset = Slow { count: 40, delay: Duration::from_millis(100) };
        let builder = DataLoader::builder(dataset).sampler(vec![7; 20]).batch_size(20).num_workers(1);
        let mut batches = builder.sample_timeout(Duration::from_secs(1)).build().unwrap().iter().unwrap();
        let batch = batches.next().unwrap().unwrap();
        assert_eq!((batch.as_slice(), batches.report().restarts), ([7; 20].as_slice(), 0));
    });
}

/// Run it with `cargo test -p loader-tests --test deaths a_program_that_never_answers -- --ignored`.
#[test]
#[ignore = "takes 30 seconds, which is how long main waits for a worker to start"]
fn a_program_that_never_answers_is_an_error() {
    alone(|| {
        let before = Before::take();
        // It reads the bootstrap, prints it, and waits for more input.
        let loader = DataLoader::builder(Count(1)).num_workers(2).worker_program("/bin/cat").build().unwrap();
        let (started, took) = timed(|| loader.iter());
        let error = started.unwrap_err();
        assert!(matches!(error, Error::WorkerNotStarted { .. }), "{error:?}");
        assert!((25..45).contains(&took.as_secs()), "{took:?}");
        drop(loader);
        before.assert_nothing_left();
    });
}
