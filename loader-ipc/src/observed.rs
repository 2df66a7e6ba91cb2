//! What the system tells about any process: whether it can continue, its processor time, its memory.

use std::{fmt, fs, ops::Add, path::Path, time::Duration};

use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// Why a process cannot continue by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// A signal (SIGSTOP, or one from a terminal) stopped it.
    Stopped {
        /// Processor time that the process has used, in clock ticks.
        ticks: u64,
    },
    /// A debugger stopped its main thread, and perhaps no other thread.
    Traced {
        /// Processor time that the main thread has used, in clock ticks.
        ticks: u64,
    },
    /// Its main thread has ended, and other threads keep the process alive.
    MainThreadEnded,
    /// It has closed its lifeline, as a process does that executes another program.
    LifelineClosed,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped { .. } => "a signal has stopped it",
            Self::Traced { .. } => "a debugger has stopped it",
            Self::MainThreadEnded => "its main thread has ended",
            Self::LifelineClosed => "it has closed its connection to main",
        })
    }
}

/// Since when a process is halted.
#[derive(Debug, Clone, Copy, Default)]
pub struct HaltWatch(Option<(Duration, Halt)>);

impl HaltWatch {
    /// Notes at the time `now` whether the process is halted, and returns for how long it has been halted in the same
    /// way. The time starts again from zero if the process has used processor time since the last call, for example
    /// because a program stops and continues it to slow it down.
    pub fn note(&mut self, now: Duration, halt: Option<Halt>) -> Duration {
        self.0 = self.0.filter(|&(_, before)| Some(before) == halt).or_else(|| Some((now, halt?)));
        self.0.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(since))
    }
}

/// Returns the reason for which the process `pid` of `/proc` is halted; `None` if it is not halted, or does not exist.
pub(crate) fn halt(pid: u32) -> Option<Halt> {
    let read = |path: String| parse_halt(&fs::read(path).ok()?);
    match read(format!("/proc/{pid}/stat"))? {
        Halt::Traced { .. } => read(format!("/proc/{pid}/task/{pid}/stat")),
        halt => Some(halt),
    }
}

/// Parses `/proc/PID/stat`, or that of a thread (see proc_pid_stat(5)).
fn parse_halt(stat: &[u8]) -> Option<Halt> {
    // The state follows the program's name, which may contain any character, including parentheses. User and
    // system time are 11 and 12 words after the state.
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut words = str::from_utf8(&stat[behind_name..]).ok()?.split_ascii_whitespace();
    let state = words.next()?;
    let mut times = words.skip(10).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    match state {
        "T" => Some(Halt::Stopped { ticks }),
        "t" => Some(Halt::Traced { ticks }),
        // The state is that of the main thread. A process that is ending also has it for a moment.
        "Z" => Some(Halt::MainThreadEnded),
        _ => None,
    }
}

/// Returns the processor time of a process, summed over its threads; `None` if the process does not exist.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).ok()?;
    Some(clock_gettime(clock).ok()?.into())
}

/// For how long a process has used CPUs, and has waited for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Processor time of all threads.
    pub time: Duration,
    /// Time for which its threads, all of them together, were ready to run while other threads had the CPUs, see
    /// [`cpu_wait`]; zero if the kernel does not measure it.
    pub wait: Duration,
}

impl Add for CpuUse {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { time: self.time + other.time, wait: self.wait + other.wait }
    }
}

/// Reads for how long a process has used CPUs, and for how long it has waited for them. Returns the time of `before`
/// where the kernel does not tell one, for example because the process was reaped. The wait is never less than that of
/// `before`, although threads may have ended meanwhile. `in_proc` is the number of the process `pid` in `/proc`.
pub(crate) fn cpu_use(pid: u32, in_proc: u32, before: CpuUse) -> CpuUse {
    let wait = cpu_wait(in_proc).unwrap_or_default().max(before.wait);
    CpuUse { time: cpu_time(pid).unwrap_or(before.time), wait }
}

/// Returns for how long the present threads of a process of `/proc`, all of them together, were ready to run while
/// other threads had the CPUs; `None` if the process does not exist, or if the kernel does not measure it. The kernel
/// forgets the wait of a thread that ends.
///
/// Alternative considered: the kernel's `taskstats`, which have the sum with the threads that have ended. Rejected
/// because only root may read them.
pub fn cpu_wait(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread may end while this reads its directory.
    let waits = threads.filter_map(|thread| thread_wait(&thread.ok()?.path()));
    waits.reduce(|all, wait| all + wait)
}

/// Returns for how long the thread with this directory in /proc has waited for a CPU.
fn thread_wait(directory: &Path) -> Option<Duration> {
    let text = fs::read_to_string(directory.join("schedstat")).ok()?;
    // Time on a CPU, time in a run queue, and the number of times on a CPU.
    let nanos = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// Returns the private memory of this process in bytes. It includes neither shared memory, such as slots, nor
/// code.
pub fn private_memory() -> Option<u64> {
    private_memory_of("self")
}

/// As [`private_memory`], of the process with this name in `/proc`.
pub(crate) fn private_memory_of(process: &str) -> Option<u64> {
    // `shared` counts pages of files and of shared memory. It does not count pages that a fork shares until
    // one of the two processes writes to them, so these count as private.
    let [_, resident, shared, ..] = memory_fields(process)?;
    Some(resident.saturating_sub(shared))
}

/// Returns the bytes that this process may write and shares with no other, whether it has used them or not: what
/// `RLIMIT_DATA` limits, and the stacks.
pub fn data_memory() -> Option<u64> {
    let [.., data] = memory_fields("self")?;
    Some(data)
}

/// Returns the fields of `/proc/PID/statm` in bytes: all, resident, resident and shared, code, an unused field, and
/// data.
fn memory_fields(process: &str) -> Option<[u64; 6]> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let mut fields = [0; 6];
    let mut pages = text.split_whitespace().map(str::parse::<u64>);
    for field in &mut fields {
        *field = pages.next()?.ok()?.checked_mul(rustix::param::page_size() as u64)?;
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_cannot_go_on_is_recognised() {
        let stat = |state: &str| {
            format!(
                "4242 (a) T (b c) {state} 1 4242 4242 0 -1 4194560 150 0 0 0 17 25 3 4 20 0 1 0 900 1000 80\n"
            )
        };
        assert_eq!(parse_halt(stat("T").as_bytes()), Some(Halt::Stopped { ticks: 42 }));
        assert_eq!(parse_halt(stat("t").as_bytes()), Some(Halt::Traced { ticks: 42 }));
        assert_eq!(parse_halt(stat("Z").as_bytes()), Some(Halt::MainThreadEnded));
        assert_eq!(parse_halt(stat("S").as_bytes()), None);
        assert_eq!(parse_halt(b"4242 (cut) T 1"), None);
        let own = fs::read("/proc/self/stat").unwrap();
        assert_eq!(parse_halt(&own), None);
    }
}
