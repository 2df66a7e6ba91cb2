//! Notices a launcher that binds each of its processes to a few CPUs, which all workers of the process then
//! share.

use std::{fs, path::Path};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use crate::{memory, ranks::LaunchedRank, warning::Warning};

/// Returns a warning if this process, and so its workers, may use at most half of the CPUs that it would have
/// if the launcher's processes on this machine divided them equally.
pub(super) fn warning(launched: &LaunchedRank, workers: usize) -> Option<Warning> {
    let LaunchedRank { launcher, local_size, .. } = *launched;
    let (cpus, all_cpus, processes) = (in_mask()?, of_machine()?, local_size?);
    (workers > 0 && is_narrow(cpus, all_cpus, processes)).then_some(Warning::BoundToFewCpus {
        launcher,
        workers,
        cpus,
        all_cpus,
        processes,
    })
}

fn is_narrow(cpus: usize, all_cpus: usize, processes: usize) -> bool {
    cpus.saturating_mul(2) <= all_cpus / processes.max(1)
}

/// Number of CPUs in the affinity mask of this thread, which workers inherit.
fn in_mask() -> Option<usize> {
    let mask = sched_getaffinity(Pid::from_raw(0)).ok()?;
    Some((0..CpuSet::count()).filter(|&cpu| mask.is_set(cpu).unwrap_or(false)).count())
}

/// Number of CPUs that the process may use if nothing binds it: those of its control group (version 2 or 1),
/// or else of the machine.
fn of_machine() -> Option<usize> {
    let read = |path: &Path| count(&fs::read_to_string(path).ok()?);
    let group = memory::control_group();
    let of_group = group.iter().flat_map(|group| group.ancestors());
    of_group
        .map(|group| group.join("cpuset.cpus.effective"))
        .chain([
            "/sys/fs/cgroup/cpuset/cpuset.effective_cpus".into(),
            "/sys/devices/system/cpu/online".into(),
        ])
        .find_map(|path| read(&path))
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    list.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_half_of_an_equal_part_is_narrow() {
        // `mpirun -n 1` and `-n 2` on two CPUs: each process has one.
        assert!(is_narrow(1, 2, 1) && !is_narrow(1, 2, 2));
        assert!(is_narrow(1, 64, 8) && is_narrow(4, 64, 8) && !is_narrow(5, 64, 8));
        assert!(!is_narrow(64, 64, 1) && !is_narrow(1, 4, 8) && !is_narrow(1, 1, 0));
    }

    #[test]
    fn cpus_are_counted() {
        assert_eq!([count("0\n"), count("0-3,8"), count("2-2,4-7\n")], [Some(1), Some(5), Some(5)]);
        assert_eq!([count(""), count("3-1"), count("a")], [None; 3]);
        assert!(in_mask().unwrap() <= of_machine().unwrap());
    }
}
