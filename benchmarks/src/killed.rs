//! A worker is killed in the middle of an epoch: what the program notices of it, and whether the epoch is still the same.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use loader_core::{DataLoader, Tensor};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use crate::{
    datasets::Paced,
    options::Options,
    system::{self, Checksum, Spread},
    throughput::{self, Check, WARM_UP_DIVISOR},
};

const BATCHES: usize = 200;
/// The kill comes within so long after the epoch's middle, at a time of its own each time.
const SPREAD_OVER: Duration = Duration::from_millis(10);
/// Gaps between two batches count that begin within so long after the kill.
const WATCHED: Duration = Duration::from_millis(50);
/// Multiples of it lie evenly between whole numbers.
const GOLDEN: f64 = 0.618_033_988_749_895;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// How much longer than usual the program waits for a batch around a kill.
    recovery_ms: Spread,
    /// The same figure of epochs in which nobody is killed, in turn with the others: what the machine does.
    undisturbed_ms: Spread,
    /// What is usual.
    usual_gap_ms: Spread,
    /// An epoch with a kill, compared with the one before it without.
    epoch_longer_ms: Spread,
    /// Batches of an epoch that its iterator does not return.
    lost_batches: Spread,
    /// Of each epoch, with a kill or without.
    check: Check,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.workers > 0, "without a worker none can be killed");
    let batches = options.batches.unwrap_or(BATCHES);
    let count = batches * options.batch_size();
    let check = throughput::check(options, Paced { count }, i64::cast_unsigned)?;
    let loader = DataLoader::builder(Paced { count }).options(options.loader()).on_warning(|_| {}).build()?;
    let (mut recovery, mut undisturbed, mut usual) = (Vec::new(), Vec::new(), Vec::new());
    let (mut longer, mut lost) = (Vec::new(), Vec::new());
    for number in 0..options.epochs() {
        let fault = |signal| Fault {
            after: batches / 2,
            delay: SPREAD_OVER.mul_f64((number as f64 * GOLDEN).fract()),
            victim: number % options.workers,
            signal,
        };
        let [quiet, killed] =
            [None, Some(Signal::SIGKILL)].map(|signal| Epoch::read(&loader, &fault(signal)));
        let (quiet, killed) = (quiet?, killed?);
        ensure!(quiet.restarts == 0 && killed.restarts == 1, "{} workers died, not one", killed.restarts);
        for epoch in [&quiet, &killed] {
            ensure!(epoch.checksum == check.checksum, "an epoch is another one, kill {number}");
        }
        usual.push(killed.usual_gap(options.workers)?);
        recovery.push(killed.longest_gap()? - killed.usual_gap(options.workers)?);
        undisturbed.push(quiet.longest_gap()? - quiet.usual_gap(options.workers)?);
        longer.push((killed.seconds - quiet.seconds) * 1e3);
        lost.push((batches - killed.arrivals.len()) as f64);
    }
    system::print(&Line {
        loader: "ours",
        options,
        batches,
        recovery_ms: Spread::of(recovery),
        undisturbed_ms: Spread::of(undisturbed),
        usual_gap_ms: Spread::of(usual),
        epoch_longer_ms: Spread::of(longer),
        lost_batches: Spread::of(lost),
        check,
    })
}

/// What happens to a worker, and when.
struct Fault {
    /// This many batches,
    after: usize,
    /// and so long.
    delay: Duration,
    victim: usize,
    /// `None`: nothing happens then.
    signal: Option<Signal>,
}

/// An epoch that was read to its end.
struct Epoch {
    seconds: f64,
    arrivals: Vec<Instant>,
    /// When the fault happened.
    moment: Instant,
    restarts: u64,
    checksum: String,
}

impl Epoch {
    fn read(loader: &DataLoader<Tensor<i64>>, fault: &Fault) -> anyhow::Result<Self> {
        let (called, mut arrivals, mut checksum) = (Instant::now(), Vec::new(), Checksum::default());
        let mut killer = None;
        let mut iter = loader.iter()?;
        while let Some(batch) = iter.next() {
            let batch = batch?;
            arrivals.push(Instant::now());
            checksum.batch(batch.as_slice().iter().map(|&element| element.cast_unsigned()));
            if arrivals.len() == fault.after {
                let pid = Pid::from_raw(iter.worker_pids()[fault.victim].cast_signed());
                let (delay, signal) = (fault.delay, fault.signal);
                killer = Some(thread::spawn(move || {
                    thread::sleep(delay);
                    let moment = Instant::now();
                    kill(pid, signal).map(|()| moment)
                }));
            }
        }
        let (seconds, restarts) = (called.elapsed().as_secs_f64(), iter.report().restarts);
        let killer = killer.context("the epoch is too short")?;
        let moment = killer.join().expect("it does not panic").context("the worker is not there")?;
        Ok(Self { seconds, arrivals, moment, restarts, checksum: checksum.text() })
    }

    /// Longest time between two batches of which the second came after the moment, and the first not long after it, in milliseconds.
    fn longest_gap(&self) -> anyhow::Result<f64> {
        let until = self.moment + WATCHED;
        let around = self.arrivals.windows(2).filter(|pair| pair[1] > self.moment && pair[0] < until);
        around.map(millis).max_by(f64::total_cmp).context("nothing came after the kill")
    }

    /// The longest of as many successive times as there are workers, since those may answer all at once; its median over the
    /// batches from the epoch's first fifth to the moment.
    fn usual_gap(&self, workers: usize) -> anyhow::Result<f64> {
        let before = self.arrivals.partition_point(|&arrival| arrival < self.moment);
        let warm_up = self.arrivals.len() / WARM_UP_DIVISOR;
        let gaps: Vec<f64> = self.arrivals[warm_up..before].windows(2).map(millis).collect();
        ensure!(gaps.len() >= workers, "the epoch is too short");
        let longest = gaps.windows(workers).map(|gaps| gaps.iter().copied().fold(0.0, f64::max));
        Ok(Spread::of(longest.collect()).median)
    }
}

fn millis(pair: &[Instant]) -> f64 {
    (pair[1] - pair[0]).as_secs_f64() * 1e3
}
