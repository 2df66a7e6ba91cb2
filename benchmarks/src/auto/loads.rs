//! The loads: datasets whose samples take processor time or sleep, and programs with a step.

use std::{
    thread,
    time::{Duration, Instant},
};

use loader_core::prelude::*;
use serde::{Deserialize, Serialize};

/// A dataset, and a program that trains on it.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) batch_size: usize,
}

pub(crate) const LOADS: [Load; 5] = [
    Load { name: "decode-bound: 4 ms of processor time per sample", kind: Kind::Decode, batch_size: 4 },
    Load { name: "I/O-bound: 10 ms of waiting per sample, step of 8 ms", kind: Kind::Latency, batch_size: 8 },
    Load { name: "cheap samples", kind: Kind::Cheap, batch_size: 64 },
    Load {
        name: "stragglers: 2 ms of waiting, one in 100 samples 100 ms",
        kind: Kind::Stragglers,
        batch_size: 8,
    },
    Load {
        name: "slow consumer: 1 ms of processor time, step of 20 ms",
        kind: Kind::SlowStep,
        batch_size: 4,
    },
];

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Kind {
    Decode,
    Latency,
    Cheap,
    Stragglers,
    SlowStep,
}

impl Kind {
    /// Does the program's step.
    pub(crate) fn step(self) {
        match self {
            Self::Latency => thread::sleep(Duration::from_millis(8)),
            Self::SlowStep => thread::sleep(Duration::from_millis(20)),
            Self::Decode | Self::Cheap | Self::Stragglers => {}
        }
    }
}

/// A dataset that is too long for a measurement to reach its end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Samples(pub(crate) Kind);

impl Dataset for Samples {
    type Sample = i64;

    fn len(&self) -> usize {
        1 << 40
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        match self.0 {
            Kind::Decode => compute(Duration::from_millis(4)),
            Kind::Latency => thread::sleep(Duration::from_millis(10)),
            Kind::Cheap => {}
            // A hash spreads the slow samples.
            Kind::Stragglers if (index as u32).wrapping_mul(2_654_435_761) % 100 == 7 => {
                thread::sleep(Duration::from_millis(100));
            }
            Kind::Stragglers => thread::sleep(Duration::from_millis(2)),
            Kind::SlowStep => compute(Duration::from_millis(1)),
        }
        Ok(index as i64)
    }
}

/// Computes for about `time` on a CPU that nothing else uses.
fn compute(time: Duration) {
    /// Number of iterations that take about a microsecond.
    const ITERATIONS: u32 = 500;
    let mut value = Instant::now().elapsed().subsec_nanos();
    for _ in 0..time.as_micros() {
        for iteration in 0..ITERATIONS {
            value = std::hint::black_box(value.wrapping_mul(1_664_525).wrapping_add(iteration));
        }
    }
    std::hint::black_box(value);
}
