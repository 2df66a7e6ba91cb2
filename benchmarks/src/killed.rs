//! `killed`: a worker is killed in the middle of an epoch. Measures how long the program waits, and checks
//! that the batches are the same as without a kill.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
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
/// Maximum time between the middle of the epoch and a kill. Each kill comes after another delay.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Maximum time between a kill and the beginning of a gap that counts as recovery.
const MAX_BEFORE_GAP: Duration = Duration::from_millis(50);
/// The golden ratio. The fractional parts of its multiples are evenly distributed.
const GOLDEN: f64 = 0.618_033_988_749_895;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// Longest gap between two batches around a kill, minus the usual gap.
    recovery_ms: Spread,
    /// The same figure for epochs without a kill, which alternate with the others: the noise of the machine.
    undisturbed_ms: Spread,
    /// The usual gap between two batches.
    usual_gap_ms: Spread,
    /// Time of an epoch with a kill, minus the time of the epoch without a kill before it.
    epoch_longer_ms: Spread,
    /// Number of batches that the iterator of an epoch does not return.
    lost_batches: Spread,
    /// The same for each epoch, with and without a kill.
    check: Check,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.workers > 0, "`killed` needs at least one worker");
    let batches = options.batches.unwrap_or(BATCHES);
    let count = batches * options.batch_size();
    let check = throughput::check(options, Paced { count }, i64::cast_unsigned)?;
    let loader = DataLoader::builder(Paced { count }).options(options.loader()).on_warning(|_| {}).build()?;
    let (mut recovery, mut undisturbed, mut usual) = (Vec::new(), Vec::new(), Vec::new());
    let (mut longer, mut lost) = (Vec::new(), Vec::new());
    for number in 0..options.epochs() {
        let fault = |signal| Fault {
            after: batches / 2,
            delay: MAX_DELAY.mul_f64((number as f64 * GOLDEN).fract()),
            victim: number % options.workers,
            signal,
        };
        let [undisturbed_epoch, killed_epoch] =
            [None, Some(Signal::SIGKILL)].map(|signal| Epoch::read(&loader, &fault(signal)));
        let (undisturbed_epoch, killed_epoch) = (undisturbed_epoch?, killed_epoch?);
        let restarts = (undisturbed_epoch.restarts, killed_epoch.restarts);
        ensure!(restarts == (0, 1), "{restarts:?} workers died, not (0, 1)");
        for epoch in [&undisturbed_epoch, &killed_epoch] {
            ensure!(epoch.checksum == check.checksum, "kill {number}: an epoch has other batches");
        }
        usual.push(killed_epoch.usual_gap(options.workers)?);
        recovery.push(killed_epoch.longest_gap()? - killed_epoch.usual_gap(options.workers)?);
        undisturbed.push(undisturbed_epoch.longest_gap()? - undisturbed_epoch.usual_gap(options.workers)?);
        longer.push((killed_epoch.seconds - undisturbed_epoch.seconds) * 1e3);
        lost.push((batches - killed_epoch.arrivals.len()) as f64);
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

/// A signal that is sent to a worker.
struct Fault {
    /// Number of batches before the signal.
    after: usize,
    /// Time from the last of these batches to the signal.
    delay: Duration,
    /// Number of the worker.
    victim: usize,
    /// The signal, or `None` to send none.
    signal: Option<Signal>,
}

/// An epoch that was read to its end.
struct Epoch {
    seconds: f64,
    arrivals: Vec<Instant>,
    /// Time of the fault.
    fault_at: Instant,
    restarts: u64,
    checksum: String,
}

impl Epoch {
    fn read(loader: &DataLoader<Tensor<i64>>, fault: &Fault) -> anyhow::Result<Self> {
        let (started, mut arrivals, mut checksum) = (Instant::now(), Vec::new(), Checksum::default());
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
                    let fault_at = Instant::now();
                    kill(pid, signal).map(|()| fault_at)
                }));
            }
        }
        let (seconds, restarts) = (started.elapsed().as_secs_f64(), iter.report().restarts);
        let killer = killer.context("the epoch is too short")?;
        let fault_at = killer.join().expect("the thread does not panic").context("the worker has ended")?;
        Ok(Self { seconds, arrivals, fault_at, restarts, checksum: checksum.text() })
    }

    /// Returns the longest gap between two batches in milliseconds. A gap counts if its second batch arrived
    /// after the fault, and its first batch at most [`MAX_BEFORE_GAP`] after the fault.
    fn longest_gap(&self) -> anyhow::Result<f64> {
        let until = self.fault_at + MAX_BEFORE_GAP;
        let around = self.arrivals.windows(2).filter(|pair| pair[1] > self.fault_at && pair[0] < until);
        around.map(millis).max_by(f64::total_cmp).context("no batch came after the kill")
    }

    /// Returns the usual gap between two batches in milliseconds, between the epoch's first fifth and the
    /// fault. All workers may answer at the same time, so this is the median of the longest gaps of each
    /// `workers` successive gaps.
    fn usual_gap(&self, workers: usize) -> anyhow::Result<f64> {
        let before = self.arrivals.partition_point(|&arrival| arrival < self.fault_at);
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
