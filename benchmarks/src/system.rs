//! Reads figures of this process and of its workers from the kernel, and summarises figures.

use std::fs;

use anyhow::Context;
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::clock_getcpuclockid,
    unistd::Pid,
};
use serde::Serialize;

/// Prints one line of JSON.
pub(crate) fn print(line: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}

/// Median and range of some figures.
#[derive(Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Summarises at least one figure.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let last = figures.len() - 1;
        let median = (figures[last / 2] + figures[figures.len() / 2]) / 2.0;
        Self { median, min: figures[0], max: figures[last] }
    }
}

/// Returns the 99th percentile.
pub(crate) fn percentile_99(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() - 1) * 99 / 100]
}

/// Returns the processor time of this process and of the children that it has waited for, in microseconds.
pub(crate) fn cpu_microseconds() -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for time in [usage.user_time(), usage.system_time()] {
            sum += time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
        }
    }
    Ok(sum)
}

/// Returns the processor time of all threads of a process that has not ended, in microseconds.
pub(crate) fn cpu_microseconds_of(pid: u32) -> anyhow::Result<f64> {
    let time = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?.now()?;
    Ok(time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3)
}

/// Returns the number of page faults of this process that needed no disk.
pub(crate) fn minor_faults() -> anyhow::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.minor_page_faults())
}

/// The memory of a process, in bytes.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Memory {
    /// Pages of private maps that only this process has. This is the memory that the process costs.
    pub(crate) private: u64,
    /// Pages of shared maps that no other process has touched. The kernel counts them as private too, but a
    /// further worker would share them and not add to them.
    pub(crate) shared_map_private: u64,
    /// Proportional set size: each mapped page, divided by the number of processes that share it.
    pub(crate) pss: u64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/smaps");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let (mut memory, mut shared) = (Self::default(), false);
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            let Some(name) = name.strip_suffix(':') else {
                // This is the first line of a map: addresses, permissions, ...
                shared = value.ends_with('s');
                continue;
            };
            let bytes = value.parse::<u64>().unwrap_or(0) * 1024;
            match name {
                "Private_Clean" | "Private_Dirty" if shared => memory.shared_map_private += bytes,
                "Private_Clean" | "Private_Dirty" => memory.private += bytes,
                "Pss" => memory.pss += bytes,
                _ => {}
            }
        }
        Ok(memory)
    }
}

/// A checksum over batches that depends on each element and its position. The programs
/// of the peers compute it too, so it must be easy with NumPy. The sum of a batch adds up the bits of each
/// element times the element's position, counted from 1. The checksum is a polynomial of these sums, modulo
/// 2^64.
#[derive(Debug, Default)]
pub(crate) struct Checksum(u64);

impl Checksum {
    pub(crate) fn batch(&mut self, bits: impl Iterator<Item = u64>) {
        let sum = (1u64..)
            .zip(bits)
            .fold(0u64, |sum, (position, bits)| sum.wrapping_add(position.wrapping_mul(bits)));
        self.0 = self.0.wrapping_mul(1_000_003).wrapping_add(sum);
    }

    /// Returns the checksum as text, because a JSON parser may read a number as a float.
    pub(crate) fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}
