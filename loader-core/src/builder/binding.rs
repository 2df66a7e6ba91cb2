//! Notices a launcher that binds each of its processes to a few CPUs, which all workers of the process then
//! share.

use loader_ipc::cpu_set::CpuSet;

use crate::{launch::ranks::LaunchedRank, report::warning::Warning};

/// Returns a warning if this process, and so its workers, may use at most half of the CPUs that it would have
/// if the launcher's processes on this machine divided them equally.
pub(super) fn warning(launched: &LaunchedRank, workers: usize) -> Option<Warning> {
    let LaunchedRank { launcher, local_size, .. } = *launched;
    let processes = local_size?;
    let (cpus, all_cpus) = (CpuSet::of_this_thread().ok()?.len(), CpuSet::allowed().ok()?.len());
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
}
