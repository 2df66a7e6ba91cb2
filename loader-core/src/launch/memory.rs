//! How much memory the machine has, and how much of it a loader may use.

use std::fs;

use crate::launch::control_group::{left_in_control_group, of_control_group};

/// Returns the default of `memory_limit` in bytes for one of `processes` processes: half of the memory that they
/// may use, as in the kernel's default for a tmpfs, divided by their number. They may use the machine's memory, or
/// the limit of their control group if that is lower.
pub fn default_limit(processes: usize) -> u64 {
    /// In bytes, if neither is known.
    const FALLBACK: u64 = 1 << 32;
    let memory = [of_machine(), of_control_group()].into_iter().flatten().min();
    memory.map_or(FALLBACK, |memory| memory / 2) / processes.max(1) as u64
}

/// The machine's memory in bytes, or `None` if the kernel does not tell it.
pub fn of_machine() -> Option<u64> {
    in_meminfo("MemTotal:")
}

/// Returns how many bytes this process can still allocate: on the machine without swapping, and in its
/// control group.
pub fn available() -> Option<u64> {
    [in_meminfo("MemAvailable:"), left_in_control_group("memory")].into_iter().flatten().min()
}

fn in_meminfo(field: &str) -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = info.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB"))?;
    Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
}
