//! Information about processes from `/proc`, and signals to them.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Sends a signal to a process that must exist.
///
/// # Panics
/// Panics if it does not exist.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("the process exists");
}

/// Stops the calling process as a debugger does, with the parent as tracer.
///
/// # Errors
/// Fails if the system refuses.
#[allow(unsafe_code)] // nix has no safe name for it without another feature
pub fn stop_as_traced() -> nix::Result<()> {
    use nix::{errno::Errno, libc, sys::signal::raise};
    // SAFETY: PTRACE_TRACEME reads none of the other arguments.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })?;
    raise(Signal::SIGSTOP)
}

/// Begins to trace a process, which goes on.
///
/// # Errors
/// Fails if the system refuses: where Yama restricts tracing to descendants, only root may trace it.
#[allow(unsafe_code)] // nix has no safe name for it without another feature
pub fn trace(pid: u32) -> nix::Result<()> {
    use nix::{errno::Errno, libc};
    // SAFETY: PTRACE_SEIZE reads the process id, and options that are none here.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.cast_signed(), 0, 0) })?;
    Ok(())
}

/// Ends the calling thread without any cleanup.
///
/// # Errors
/// It never returns.
#[allow(unsafe_code)] // Rust has no safe name for it
pub fn end_this_thread() -> nix::Result<()> {
    // SAFETY: what the thread has borrowed or locked persistent so, and its memory is not freed.
    unsafe { nix::libc::syscall(nix::libc::SYS_exit, 0) };
    Ok(())
}

/// Sends a signal to a process that may have ended. Returns true if it existed.
pub fn try_signal(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid.cast_signed()), signal).is_ok()
}

/// True if the process runs. A zombie does not.
pub fn is_running(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// True if the process exists in any form, as a zombie too.
pub fn exists(pid: u32) -> bool {
    state(pid).is_some()
}

/// True if [`exists`] is true for one of the processes.
pub fn any_exists(pids: &[u32]) -> bool {
    pids.iter().any(|&pid| exists(pid))
}

/// Waits until none of `pids` runs. Returns how long that took.
///
/// # Errors
/// Returns the processes that still run after `deadline`.
pub fn wait_until_gone(pids: &[u32], deadline: Duration) -> Result<Duration, Vec<u32>> {
    let started = Instant::now();
    loop {
        let left: Vec<u32> = pids.iter().copied().filter(|&pid| is_running(pid)).collect();
        if left.is_empty() {
            return Ok(started.elapsed());
        }
        if started.elapsed() >= deadline {
            return Err(left);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the children of `parent`, zombies too.
pub fn children(parent: u32) -> Vec<u32> {
    let field = |pid: &u32| stat(*pid)?.split(' ').nth(1)?.parse::<u32>().ok();
    all().filter(|pid| field(pid) == Some(parent)).collect()
}

/// Returns the running processes whose environment contains `variable`, as `NAME=value`.
pub fn with_variable(variable: &str) -> Vec<u32> {
    let has_it = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
    };
    all().filter(has_it).collect()
}

/// Returns the command line of a process for messages.
pub fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// Returns the number of open descriptors of this process.
///
/// # Panics
/// Panics if `/proc` is not mounted.
pub fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// Returns the number of mappings of the loader's memory files in this process.
///
/// # Panics
/// Panics if `/proc` is not mounted.
pub fn mapped_memory() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    maps.lines().filter(|line| line.contains("memfd:loader-")).count()
}

/// Returns the private resident memory of a process in bytes, or `None` if it has ended.
pub fn own_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?;
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))?;
    Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
}

/// Returns every process of the machine.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the letter of a process's state, or `None` if there is no such process.
pub fn state(pid: u32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// Returns `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name in parentheses may contain anything. The state follows the last parenthesis.
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
