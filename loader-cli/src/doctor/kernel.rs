//! What the loader uses of the kernel.

use std::{env::consts::ARCH, fs};

use loader_core::internal::{SealedMemory, SocketFolder};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::report::{Check, Status};

pub(super) fn checks() -> Vec<Check> {
    [
        Some(kernel()),
        Some(shared_memory()),
        Some(pidfd()),
        Some(socket_folder()),
        sandbox(),
        debugger(),
        huge_pages(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let found = format!("Linux {} on {ARCH}", release.trim());
    match ARCH {
        "x86_64" => Check::new("kernel", Status::Ok, found, "the loader is tested on this architecture"),
        _ => Check::new(
            "kernel",
            Status::Note,
            found,
            "the loader is tested on x86_64 only, and should work here",
        ),
    }
}

fn shared_memory() -> Check {
    const NAME: &str = "shared memory";
    match SealedMemory::new(&[1; 4096]) {
        Ok(_) => Check::new(
            NAME,
            Status::Ok,
            "memfd_create, seals and fallocate work",
            "batches need no /dev/shm and no --shm-size",
        ),
        Err(error) => {
            let found = format!("an anonymous memory file cannot be made: {error}");
            Check::new(NAME, Status::Error, found, "no loader with workers can be built").advice(
                "use Linux 3.17 or newer, and a sandbox that permits memfd_create, fcntl and fallocate",
            )
        }
    }
}

fn pidfd() -> Check {
    const NAME: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::NONBLOCK) {
        Ok(_) => {
            Check::new(NAME, Status::Ok, "pidfd_open works", "main notices at once that a worker has died")
        }
        Err(error) => {
            let found = format!("pidfd_open fails: {error}");
            Check::new(NAME, Status::Warning, found, "main checks every 50 ms whether a worker has died")
                .advice("use Linux 5.3 or newer, and a sandbox that permits pidfd_open")
        }
    }
}

fn socket_folder() -> Check {
    const NAME: &str = "socket folder";
    match SocketFolder::choose(u64::from(std::process::id())) {
        Ok(folder) => {
            let folder = folder.path().parent().unwrap_or(folder.path()).display().to_string();
            let meaning = "a worker makes a socket there for about a millisecond when it starts";
            Check::new(NAME, Status::Ok, folder, meaning)
        }
        Err(problem) => Check::new(NAME, Status::Error, problem, "no worker can start"),
    }
}

/// Describes a seccomp filter. Only the other checks show which calls it forbids.
fn sandbox() -> Option<Check> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim();
    let (found, meaning) = match mode {
        "0" => ("no seccomp filter", ""),
        _ => (
            "a seccomp filter, as in most containers",
            "the other checks show whether it forbids what the loader needs",
        ),
    };
    Some(Check::new("sandbox", Status::Ok, found, meaning))
}

fn debugger() -> Option<Check> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    let check = |status, meaning: &str| {
        Check::new("debugger", status, format!("Yama's ptrace_scope is {}", scope.trim()), meaning)
    };
    Some(match scope.trim() {
        "0" => check(Status::Ok, "debuggers can attach to workers"),
        "1" | "2" => check(
            Status::Note,
            "the loader works, but gdb and py-spy can attach to a running worker only as root",
        ),
        _ => check(Status::Note, "the loader works, but no debugger can attach to a worker"),
    })
}

fn huge_pages() -> Option<Check> {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    let mode = modes.split_once('[')?.1.split_once(']')?.0;
    let meaning = match mode {
        "always" | "within_size" | "force" => "the kernel may use huge pages for batches",
        _ => {
            "batches are in ordinary pages; the loader reuses them, so this costs time only for the first batches"
        }
    };
    Some(Check::new("huge pages", Status::Ok, format!("shmem_enabled is `{mode}`"), meaning))
}
