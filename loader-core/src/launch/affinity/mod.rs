//! The CPUs to which workers are bound.
//!
//! `topology` reads the NUMA nodes and cores of the machine and divides them, `gpus` reads which CPUs are near a GPU;
//! this file decides which CPUs a process may use, and gives each worker its set. `loader-ipc` binds the process when
//! it starts it.

mod gpus;
mod topology;

use std::{env, io, num::NonZeroUsize, path::Path, thread};

use loader_ipc::cpu_set::CpuSet;

pub use topology::Topology;

use super::ranks::LocalRanks;
use crate::options::WorkerAffinity;

/// Why workers cannot have the CPUs that the option `worker_affinity` gives them.
#[derive(Debug)]
pub(crate) enum AffinityError {
    /// A listed set has no CPUs, or no set is listed.
    NoCpus,
    /// The process may not use a listed CPU.
    NotAllowed { cpu: usize, allowed: CpuSet },
    /// The system does not tell which CPUs the process may use.
    System(io::Error),
}

/// The CPUs of a loader's workers.
#[derive(Debug, Clone)]
pub(crate) struct WorkerCpus {
    /// Worker `i` has set `i` modulo their number. Empty if workers inherit main's mask.
    sets: Vec<CpuSet>,
    count: usize,
    /// Number of processes by which `count` was divided; 1 if it was not.
    processes: usize,
}

impl WorkerCpus {
    /// The mask of the thread that starts the workers. If the launcher has not bound its processes, all of them
    /// have the same mask, so each has only an equal part of the CPUs for its workers.
    pub(crate) fn inherited(local: LocalRanks) -> Self {
        let (own, ranks) = (cpus(), local.processes());
        let (count, processes) = match ranks {
            1 => (own, 1),
            _ => {
                let all = CpuSet::allowed().and_then(|allowed| allowed.run(cpus)).unwrap_or(own);
                divided(own, all, ranks, local.share_mask())
            }
        };
        Self { sets: Vec::new(), count, processes }
    }

    /// Finds the CPUs of workers with `affinity`, in a process that is one of `local`.
    ///
    /// # Errors
    /// Any [`AffinityError`].
    pub(crate) fn find(affinity: &WorkerAffinity, local: LocalRanks) -> Result<Self, AffinityError> {
        if *affinity == WorkerAffinity::Inherit {
            return Ok(Self::inherited(local));
        }
        let allowed = CpuSet::allowed().map_err(AffinityError::System)?;
        let own = || CpuSet::of_this_thread().map_err(AffinityError::System);
        let share = || match local.rank_and_size() {
            Some((rank, ranks)) => part(&allowed, rank, ranks),
            None => allowed.clone(),
        };
        let single = |order: fn(&Topology) -> Vec<usize>| -> Result<Vec<CpuSet>, AffinityError> {
            let cpus = if local.rank_and_size().is_some() { share() } else { own()? };
            Ok(order(&Topology::of(&cpus)).into_iter().map(|cpu| CpuSet::from_iter([cpu])).collect())
        };
        let sets = match affinity {
            WorkerAffinity::Inherit => Vec::new(),
            WorkerAffinity::Share => vec![share()],
            WorkerAffinity::Spread => single(Topology::spread)?,
            WorkerAffinity::Pack => single(Topology::pack)?,
            WorkerAffinity::Sets(sets) => {
                check(sets, &allowed)?;
                sets.clone()
            }
        };
        let all: CpuSet = sets.iter().flat_map(CpuSet::iter).collect();
        // On a thread with this mask, the standard library counts its CPUs, and knows the control group's quota.
        let count = all.run(cpus).map_err(AffinityError::System)?;
        let quota = allowed.run(cpus).map_err(AffinityError::System)?;
        let ranks = local.processes();
        // All processes together have the quota.
        let is_limited = quota < allowed.len() && count > (quota / ranks).max(1);
        let count = if is_limited { (quota / ranks).max(1) } else { count };
        let is_divided =
            is_limited || (!matches!(affinity, WorkerAffinity::Sets(_)) && local.rank_and_size().is_some());
        Ok(Self { sets, count, processes: if is_divided { ranks } else { 1 } })
    }

    /// Returns the CPUs of a worker; `None` if it inherits main's.
    pub(crate) fn of(&self, worker: usize) -> Option<&CpuSet> {
        self.sets.get(worker.checked_rem(self.sets.len())?)
    }

    /// True if workers inherit main's mask.
    pub(crate) fn are_inherited(&self) -> bool {
        self.sets.is_empty()
    }

    /// Number of processes by which [`count`](Self::count) was divided; 1 if it was not.
    pub(crate) fn processes(&self) -> usize {
        self.processes
    }

    /// Number of CPUs for the workers together, at most the control group's quota.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

/// Returns the number of CPUs that this thread may use, by its affinity mask and the control group's quota.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns the CPUs of process `rank` of `ranks` on this machine, near its GPU if the system tells where that is.
fn part(allowed: &CpuSet, rank: usize, ranks: usize) -> CpuSet {
    let shared = || gpus::shared_cpus(Path::new(gpus::DEVICES), allowed, rank, ranks);
    match gpus::have_ranks(ranks, |name| env::var(name).ok()).then(shared).flatten() {
        Some(shared) => Topology::of(&shared.cpus).part(shared.position, shared.processes),
        None => Topology::of(allowed).part(rank, ranks),
    }
}

/// Returns the number of CPUs for the workers of one of `processes` processes, and by how many processes the
/// CPUs were divided. The process has `own` of `all` CPUs in its mask, which all processes share if
/// `is_shared` is true.
fn divided(own: usize, all: usize, processes: usize, is_shared: bool) -> (usize, usize) {
    let part = |cpus: usize| (cpus / processes).max(1);
    let count = if is_shared { part(own) } else { own.min(part(all)) };
    (count, if count < own { processes } else { 1 })
}

fn check(sets: &[CpuSet], allowed: &CpuSet) -> Result<(), AffinityError> {
    if sets.is_empty() || sets.iter().any(CpuSet::is_empty) {
        return Err(AffinityError::NoCpus);
    }
    match sets.iter().flat_map(CpuSet::iter).find(|&cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(AffinityError::NotAllowed { cpu, allowed: allowed.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_affinity_determines_the_set_of_each_worker() {
        let (own, allowed) = (CpuSet::of_this_thread().unwrap(), CpuSet::allowed().unwrap());
        let find = |affinity, local: Option<(usize, usize)>| {
            let (rank, size) = local.unzip();
            WorkerCpus::find(&affinity, LocalRanks::new(rank, size)).unwrap()
        };
        let inherited = find(WorkerAffinity::Inherit, None);
        assert_eq!((inherited.of(3), inherited.count()), (None, cpus()));
        assert_eq!(find(WorkerAffinity::Share, None).of(3), Some(&allowed));
        // The parts of all ranks are all CPUs.
        let ranks = allowed.len();
        let parts = (0..ranks).map(|rank| find(WorkerAffinity::Share, Some((rank, ranks))));
        let union: CpuSet = parts.flat_map(|cpus| cpus.of(0).unwrap().iter().collect::<Vec<_>>()).collect();
        assert_eq!(union, allowed);
        for affinity in [WorkerAffinity::Spread, WorkerAffinity::Pack] {
            let cpus = find(affinity, None);
            let sets: Vec<_> = (0..own.len()).map(|worker| cpus.of(worker).unwrap()).collect();
            assert!(sets.iter().all(|set| set.len() == 1));
            assert_eq!(sets.iter().flat_map(|set| set.iter()).collect::<CpuSet>(), own);
            assert_eq!(cpus.of(own.len()), cpus.of(0));
        }
    }

    /// `torchrun` starts as many ranks as a machine has GPUs, and binds none of them.
    #[test]
    fn ranks_that_inherit_one_mask_count_on_equal_parts() {
        let all = CpuSet::allowed().unwrap().run(cpus).unwrap();
        let count = |rank, size| WorkerCpus::inherited(LocalRanks::new(rank, size)).count();
        for processes in [1, 2, 3, all, 2 * all] {
            let part = cpus().min((all / processes).max(1));
            assert_eq!(count(Some(0), Some(processes)), part, "{processes} processes");
            assert_eq!(count(None, Some(processes)), part, "{processes} processes");
        }
        assert_eq!((count(Some(0), Some(all)), count(Some(0), None)), (1, cpus()));
        // A launcher that has bound its processes has divided the CPUs.
        let first: CpuSet = CpuSet::allowed().unwrap().iter().take(1).collect();
        assert_eq!(first.run(|| count(Some(0), Some(1))).unwrap(), 1);
    }

    #[test]
    fn a_mask_that_all_ranks_share_is_divided() {
        // Two of eight CPUs and four processes: `taskset` has bound the launcher, or a launcher each process.
        assert_eq!(divided(2, 8, 4, true), (1, 4));
        assert_eq!(divided(2, 8, 4, false), (2, 1));
        // No process is bound.
        assert_eq!(divided(8, 8, 4, true), (2, 4));
        assert_eq!(divided(8, 8, 4, false), (2, 4));
        // The launcher has bound its processes to overlapping sets.
        assert_eq!(divided(4, 8, 4, false), (2, 4));
        assert_eq!(divided(4, 8, 1, true), (4, 1));
    }

    #[test]
    fn a_cpu_that_is_not_allowed_is_refused() {
        let allowed: CpuSet = "0-3".parse().unwrap();
        let check = |sets: &[&str]| {
            let sets: Vec<CpuSet> = sets.iter().map(|set| set.parse().unwrap()).collect();
            check(&sets, &allowed).map_err(|error| Error::from(error).to_string())
        };
        assert_eq!(check(&["0-1", "2,3", "1"]), Ok(()));
        let refused = "worker_affinity: CPU 4 does not exist, or this process may not use it: it may use the CPUs 0-3; \
                       name only these, or use \"share\" or \"spread\"";
        assert_eq!(check(&["0-1", "3-5"]), Err(refused.to_owned()));
        assert!(check(&[]).unwrap_err().starts_with("worker_affinity: a set without CPUs"));
    }
}
