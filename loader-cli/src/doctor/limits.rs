//! Limits on descriptors, processes and memory.

use std::{fs, os::unix::fs::MetadataExt};

use loader_core::internal::{available, default_limit, left_in_control_group, of_control_group, of_machine};
use nix::{
    sys::resource::{RLIM_INFINITY, Resource, getrlimit},
    unistd::Uid,
};

use super::{
    Plan,
    report::{Check, Status, bytes},
};

/// Descriptors of main for each worker, and for the loader and one iterator; see docs/platform.md.
const PER_WORKER: u64 = 5;
const PER_LOADER: u64 = 8;

pub(super) fn checks(plan: &Plan) -> Vec<Check> {
    let mut checks = vec![descriptors(plan), processes(plan)];
    checks.extend(memory_limits());
    checks.push(locked_memory(plan));
    checks.push(memory(plan));
    checks
}

fn descriptors(plan: &Plan) -> Check {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    let open = fs::read_dir("/proc/self/fd").map_or(3, |fds| fds.count() as u64);
    let needed = open + PER_LOADER + PER_WORKER * plan.workers;
    // At most one for each batch that is loaded ahead, and some that the program holds.
    let with_batches = needed + plan.workers * (plan.prefetch_factor + 1) + 8;
    let wanted = needed_by(plan.workers, with_batches);
    let found = format!("the limit on open files is {}, and {wanted}", limit(soft));
    let check = |status, meaning| Check::new("descriptors", status, found.clone(), meaning);
    let advice = if hard > soft {
        format!("raise it with `ulimit -n {}`, or use fewer workers", limit(hard.min(1 << 20)))
    } else {
        "have the administrator raise the hard limit, or use fewer workers".to_owned()
    };
    if soft < needed {
        check(Status::Error, "the workers cannot start").advice(advice)
    } else if soft < with_batches {
        check(Status::Warning, "batches of 1 MiB or more may fail because no descriptor is left")
            .advice(advice)
    } else {
        check(Status::Ok, "the rest is for datasets and for batches that the program holds")
    }
}

fn processes(plan: &Plan) -> Check {
    const NAME: &str = "processes";
    // Each worker has two threads of its own; main has one for each worker that starts, and two more.
    let needed = 3 * plan.workers + 2;
    let (soft, _) = getrlimit(Resource::RLIMIT_NPROC).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    // The kernel does not apply this limit to root.
    let left_to_user = match soft {
        RLIM_INFINITY => None,
        _ if Uid::current().is_root() => None,
        limit => Some(limit.saturating_sub(threads_of_user())),
    };
    let left_in_group = left_in_control_group("pids");
    let Some((left, name)) = [
        left_to_user.map(|left| (left, "`ulimit -u`")),
        left_in_group.map(|left| (left, "the control group (pids.max)")),
    ]
    .into_iter()
    .flatten()
    .min() else {
        return Check::new(NAME, Status::Ok, "no limit on processes and threads", "");
    };
    let found = format!("{name} allows {left} more processes and threads");
    if left < needed {
        let meaning = format!("{}, and more if the dataset has threads", needed_by(plan.workers, needed));
        Check::new(NAME, Status::Error, found, meaning).advice("raise the limit, or use fewer workers")
    } else {
        Check::new(NAME, Status::Ok, found, needed_by(plan.workers, needed))
    }
}

/// Number of processes and threads of this user.
fn threads_of_user() -> u64 {
    let own = Uid::current().as_raw();
    let is_own = |entry: &fs::DirEntry| {
        entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)
            && entry.metadata().is_ok_and(|metadata| metadata.uid() == own)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_own);
    processes
        .map(|entry| fs::read_dir(entry.path().join("task")).map_or(0, |tasks| tasks.count() as u64))
        .sum()
}

/// Limits that are usually not set.
fn memory_limits() -> Vec<Check> {
    let limits = [
        (
            Resource::RLIMIT_AS,
            "address space (`ulimit -v`)",
            "it counts shared memory once in each process, and ends a run that maps more",
        ),
        (
            Resource::RLIMIT_DATA,
            "private memory (`ulimit -d`)",
            "a worker that needs more ends with an error of its allocator",
        ),
        (
            Resource::RLIMIT_FSIZE,
            "size of files (`ulimit -f`)",
            "it also applies to shared memory: larger batches, or 32 MiB of small ones, fail",
        ),
    ];
    let set = |(resource, name, meaning): (Resource, &str, &str)| {
        let (soft, _) = getrlimit(resource).ok().filter(|(soft, _)| *soft != RLIM_INFINITY)?;
        let found = format!("the limit on {name} is {}", bytes(soft));
        Some(
            Check::new("memory limits", Status::Warning, found, meaning)
                .advice("remove the limit, or set memory_limit below it"),
        )
    };
    let checks: Vec<_> = limits.into_iter().filter_map(set).collect();
    if checks.is_empty() {
        vec![Check::new(
            "memory limits",
            Status::Ok,
            "no limit on address space, private memory and size of files",
            "",
        )]
    } else {
        checks
    }
}

fn locked_memory(plan: &Plan) -> Check {
    const NAME: &str = "locked memory";
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    let found = match soft {
        RLIM_INFINITY => "no limit".to_owned(),
        soft => format!("the limit (`ulimit -l`) is {}", bytes(soft)),
    };
    if plan.options.pin_memory == Some(true) && soft != RLIM_INFINITY {
        Check::new(NAME, Status::Note, found, "some drivers count page-locked batches")
            .advice("raise it if the driver refuses memory")
    } else {
        Check::new(NAME, Status::Ok, found, "only pin_memory locks memory")
    }
}

fn memory(plan: &Plan) -> Check {
    const NAME: &str = "memory";
    let size = |size: Option<u64>| size.map_or("unknown".to_owned(), bytes);
    let group = of_control_group().map(|limit| format!(", {} in the control group", bytes(limit)));
    let found = format!(
        "{} in the machine{}, {} available now",
        size(of_machine()),
        group.unwrap_or_default(),
        size(available())
    );
    let processes = plan.options.count_local_processes();
    let limit = plan.options.memory_limit.unwrap_or_else(|| default_limit(processes));
    let each = if processes > 1 { format!(" in each of {processes} processes") } else { String::new() };
    let meaning = format!("batches and what datasets keep may use {}{each} (memory_limit)", bytes(limit));
    match available().map(|available| available / processes as u64) {
        Some(available) if available < limit => Check::new(NAME, Status::Warning, found, meaning)
            .advice(format!("end other programs, or set memory_limit to less than {}", bytes(available))),
        _ => Check::new(NAME, Status::Ok, found, meaning),
    }
}

fn limit(limit: u64) -> String {
    if limit == RLIM_INFINITY { "unlimited".to_owned() } else { limit.to_string() }
}

fn needed_by(workers: u64, number: u64) -> String {
    match workers {
        1 => format!("1 worker needs about {number}"),
        _ => format!("{workers} workers need about {number}"),
    }
}
