//! Datasets for tests, good and bad.

use std::{hint::black_box, process, thread, time::Duration};

use anyhow::{Context as _, bail};
use loader_core::prelude::*;
use nix::{
    sys::signal::{Signal, raise},
    unistd::getpid,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// `(index, three random numbers)`: content that depends on seed, epoch and index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noise {
    /// Number of samples.
    pub count: usize,
}

impl Dataset for Noise {
    type Sample = (u64, [f32; 3], String);

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Self::Sample> {
        let noise = [(); 3].map(|()| cx.rng().random_range(0.0f32..1.0));
        Ok((index as u64, noise, format!("sample {index}")))
    }
}

/// Samples of `bytes` bytes, each byte the sample's index.
#[derive(Debug, Serialize, Deserialize)]
pub struct Large {
    /// Number of samples.
    pub count: usize,
    /// Bytes per sample.
    pub bytes: usize,
}

impl Dataset for Large {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Vec<u8>> {
        Ok(vec![index as u8; self.bytes])
    }
}

/// Samples that take a while.
#[derive(Debug, Serialize, Deserialize)]
pub struct Slow {
    /// Number of samples.
    pub count: usize,
    /// Time per sample.
    pub delay: Duration,
}

impl Dataset for Slow {
    type Sample = u64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<u64> {
        thread::sleep(self.delay);
        Ok(index as u64)
    }
}

/// Samples of which the first one takes long.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlowFirst {
    /// Number of samples.
    pub count: usize,
    /// Time for the first one.
    pub delay: Duration,
    /// Numbers in a sample, each of which is its index.
    pub numbers: usize,
}

impl Dataset for SlowFirst {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Vec<u64>> {
        if index == 0 {
            thread::sleep(self.delay);
        }
        Ok(vec![index as u64; self.numbers])
    }
}

/// What goes wrong with one sample.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Fault {
    /// An error with a cause.
    Error,
    /// A panic.
    Panic,
    /// A sample of another shape.
    Ragged,
    /// The process aborts.
    Abort,
    /// The process exits with this code.
    Exit(i32),
    /// SIGKILL, from within.
    Kill,
    /// The stack overflows.
    StackOverflow,
    /// The sample never comes.
    Hang,
    /// The sample never comes, and SIGTERM does not help.
    HangHard,
    /// The process stops (SIGSTOP).
    Stop,
    /// Lines on standard output and error, and an attempt to read standard input.
    Print,
    /// Lines on standard error without end.
    PrintForever,
}

/// Good samples, but for one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Faulty {
    /// Number of samples.
    pub count: usize,
    /// Index of the bad one.
    pub at: usize,
    /// What goes wrong with it.
    pub fault: Fault,
}

impl Dataset for Faulty {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Vec<u64>> {
        let good = vec![index as u64];
        if index != self.at {
            return Ok(good);
        }
        match self.fault {
            Fault::Error => bail_with_cause(index)?,
            Fault::Panic => panic!("sample {index} panics"),
            Fault::Ragged => return Ok(vec![0, 0]),
            Fault::Abort => process::abort(),
            Fault::Exit(code) => process::exit(code),
            Fault::Kill => drop(raise(Signal::SIGKILL)),
            Fault::StackOverflow => drop(black_box(overflow(0))),
            Fault::Hang => loop {
                thread::sleep(Duration::from_secs(1));
            },
            Fault::HangHard => {
                nix::sys::signal::SigSet::all().thread_block()?;
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            }
            Fault::Stop => drop(raise(Signal::SIGSTOP)),
            Fault::PrintForever => loop {
                eprintln!("{}", "on and on ".repeat(20));
            },
            Fault::Print => {
                println!("standard output of {}", getpid());
                eprintln!("standard error of {}", getpid());
                let mut text = String::new();
                std::io::stdin().read_line(&mut text)?;
                if !text.is_empty() {
                    bail!("standard input had something: {text}");
                }
            }
        }
        Ok(good)
    }
}

fn bail_with_cause(index: usize) -> anyhow::Result<()> {
    Err(anyhow::anyhow!("the disk is on fire")).with_context(|| format!("reading record {index}"))
}

#[expect(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let space = black_box([depth; 64]);
    overflow(depth + 1) + space[0]
}
