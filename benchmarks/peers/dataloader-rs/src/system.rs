//! Reads the time and memory of this process from the kernel, and formats figures, as the benchmark of the
//! loader does.

use std::{fs, thread, time::Duration};

use anyhow::Context;
use serde::Serialize;

use crate::options::Options;

/// Prints one line of JSON.
pub(crate) fn print(options: &Options, figures: serde_json::Value) -> anyhow::Result<()> {
    let mut line = serde_json::json!({ "loader": "dataloader-rs", "options": options });
    let figures = figures.as_object().context("the figures are not a JSON object")?;
    line.as_object_mut().context("the line is not a JSON object")?.extend(figures.clone());
    println!("{line}");
    Ok(())
}

/// Median and range of some figures.
#[derive(Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Returns the median and range of `figures`, which must not be empty.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let last = figures.len() - 1;
        let median = (figures[last / 2] + figures[figures.len() / 2]) / 2.0;
        Self { median, min: figures[0], max: figures[last] }
    }
}

/// Returns the 99th percentile of the figures.
pub(crate) fn percentile_99(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() - 1) * 99 / 100]
}

/// Returns the processor time of this process in microseconds.
pub(crate) fn cpu_microseconds() -> f64 {
    // SAFETY: `rusage` has only numbers, for which zeros are valid, and the pointer is to a variable of that
    // type.
    let usage = unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec as f64 * 1e6 + time.tv_usec as f64).sum()
}

/// Memory of this process, in bytes.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Memory {
    private: u64,
    shared_map_private: u64,
    pub(crate) pss: u64,
}

impl Memory {
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/self/smaps").context("reading /proc/self/smaps")?;
        let (mut memory, mut shared) = (Self::default(), false);
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            let Some(name) = name.strip_suffix(':') else {
                // The first line of a map: addresses, permissions and so on.
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

/// Waits until only the first thread of this process is left.
pub(crate) fn wait_for_threads() -> anyhow::Result<()> {
    while fs::read_dir("/proc/self/task")?.count() > 1 {
        thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}
