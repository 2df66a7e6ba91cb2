//! The launchers, and the variables by which each tells a process its rank.

use std::fmt;

use serde::Serialize;

use super::{LaunchedRank, RankError, Variables};

/// A program that starts the processes of a distributed run. `Display` is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Launcher {
    /// `torchrun`, and others that set `RANK` and `WORLD_SIZE`: Ray Train, Azure ML, PyTorchJob.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI, or `srun --mpi=pmi2`.
    Pmi,
    /// `mpirun` of MVAPICH2.
    Mvapich2,
    /// LSF's `jsrun`.
    Jsrun,
    /// Slurm's `srun`.
    Slurm,
    /// The JAX trainer of Kubeflow, and others that set JAX's variables.
    Jax,
    /// The PyTorch trainer of Kubeflow without torchrun, with one process in each pod.
    Kubeflow,
    /// SageMaker without torchrun and mpirun, with one process on each host.
    SageMaker,
    /// An indexed Job of Kubernetes, which tells the rank only.
    KubernetesJob,
}

/// Names of a launcher's variables.
pub(super) struct Source {
    pub(super) launcher: Launcher,
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    /// Local rank and local size; empty if there is no such variable.
    local: [&'static str; 2],
}

const fn source(
    launcher: Launcher,
    name: &'static str,
    [rank, world_size, local_rank, local_size]: [&'static str; 4],
) -> Source {
    Source { launcher, name, rank, world_size, local: [local_rank, local_size] }
}

/// The launchers in the order in which they are looked for. Those of one group have equal standing: at most
/// one of them starts a process, so if their variables differ, it is unknown which are those of this process.
/// A launcher of a later group may have started the launcher of an earlier group.
pub(super) const GROUPS: &[&[Source]] = &[
    &[source(Launcher::Torchrun, "torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])],
    &[
        source(
            Launcher::OpenMpi,
            "Open MPI",
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
        ),
        // Not PMIX_RANK, because there is no variable for the world size beside it.
        source(Launcher::Pmi, "PMI", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
        source(
            Launcher::Mvapich2,
            "MVAPICH2",
            [
                "MV2_COMM_WORLD_RANK",
                "MV2_COMM_WORLD_SIZE",
                "MV2_COMM_WORLD_LOCAL_RANK",
                "MV2_COMM_WORLD_LOCAL_SIZE",
            ],
        ),
        source(
            Launcher::Jsrun,
            "jsrun",
            ["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", ""],
        ),
    ],
    // Not SLURM_NTASKS, which in a step may be that of the whole job.
    &[source(
        Launcher::Slurm,
        "Slurm",
        ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    )],
    &[
        source(Launcher::Jax, "JAX", ["JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "", ""]),
        source(Launcher::Kubeflow, "Kubeflow", ["PET_NODE_RANK", "PET_NNODES", "", ""]),
        source(Launcher::SageMaker, "SageMaker", ["SM_CURRENT_HOST", "SM_HOSTS", "", ""]),
    ],
    &[source(Launcher::KubernetesJob, "Kubernetes Job", ["JOB_COMPLETION_INDEX", "", "", ""])],
];

impl Source {
    /// Returns the names of all variables.
    #[cfg(test)]
    pub(super) fn variables(&self) -> impl Iterator<Item = &'static str> {
        [self.rank, self.world_size, self.local[0], self.local[1]].into_iter().filter(|name| !name.is_empty())
    }

    /// Returns what the launcher's variables say, or `None` if it did not start this process. `given` is the
    /// world size that the user gave.
    pub(super) fn read(
        &self,
        variables: &Variables,
        given: Option<usize>,
    ) -> Result<Option<LaunchedRank>, RankError> {
        let value = |name| variables.get(name).map(String::as_str);
        if self.launcher == Launcher::Slurm && !is_in_slurm_step(value("SLURM_STEP_ID")) {
            return Ok(None);
        }
        let (rank, world_size) = match (value(self.rank), value(self.world_size)) {
            (None, None) => return Ok(None),
            (Some(rank), None) if self.launcher == Launcher::KubernetesJob => {
                (self.number(self.rank, rank)?, given.ok_or(RankError::WorldSizeUnknown)?)
            }
            (Some(_), None) => return Err(self.incomplete(self.rank, self.world_size)),
            (None, Some(_)) => return Err(self.incomplete(self.world_size, self.rank)),
            (Some(host), Some(hosts)) if self.launcher == Launcher::SageMaker => position(host, hosts)?,
            (Some(rank), Some(size)) => (self.number(self.rank, rank)?, self.number(self.world_size, size)?),
        };
        if self.launcher == Launcher::Kubeflow {
            check_processes_per_pod(value("PET_NPROC_PER_NODE"))?;
        }
        let [local_rank, local_size] = self.local.map(|name| (name, value(name)));
        let local = |(name, text): (_, Option<&str>)| text.map(|text| self.number(name, text)).transpose();
        let local_size = match (self.launcher, local_size) {
            (Launcher::Slurm, (_, list)) => list.zip(value("SLURM_NODEID")).and_then(tasks_on_node),
            (_, local_size) => local(local_size)?,
        };
        let found = LaunchedRank {
            launcher: self.launcher,
            rank,
            world_size,
            local_rank: local(local_rank)?,
            local_size,
        };
        let is_local_too_large = found.local_rank.zip(local_size).is_some_and(|(rank, size)| rank >= size);
        if rank >= world_size || is_local_too_large {
            Err(RankError::NotBelowSize { found })
        } else {
            Ok(Some(found))
        }
    }

    fn number(&self, name: &'static str, value: &str) -> Result<usize, RankError> {
        value.parse().map_err(|_| RankError::NotANumber {
            launcher: self.launcher,
            name,
            value: value.to_owned(),
        })
    }

    fn incomplete(&self, set: &'static str, missing: &'static str) -> RankError {
        RankError::Incomplete { launcher: self.launcher, set, missing }
    }
}

impl Launcher {
    /// Returns the variables of local rank and local size; empty if there is no such variable.
    pub(super) fn local_variables(self) -> [&'static str; 2] {
        self.source().local
    }

    fn source(self) -> &'static Source {
        let mut sources = GROUPS.iter().copied().flatten();
        sources.find(|source| source.launcher == self).expect("each launcher is in the list")
    }

    /// Returns the names of the variables of rank and world size.
    pub(super) fn variables(self) -> (&'static str, &'static str) {
        let Source { rank, world_size, .. } = self.source();
        (rank, if world_size.is_empty() { "world_size" } else { world_size })
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.source().name)
    }
}

/// True in a process that `srun` started. In the script of a job, and in the shell of `salloc`, SLURM_PROCID
/// is 0 in the only process, or not set, and SLURM_STEP_ID is not set or one of the highest numbers.
fn is_in_slurm_step(step_id: Option<&str>) -> bool {
    /// The batch script, the interactive shell and others have this number or a higher one.
    const FIRST_SPECIAL: u32 = 0xffff_fff0;
    step_id.and_then(|id| id.parse::<u32>().ok()).is_some_and(|id| id < FIRST_SPECIAL)
}

/// Returns the number of tasks on a node, given Slurm's list, such as `2(x3),1`, and the number of the node.
fn tasks_on_node((list, node): (&str, &str)) -> Option<usize> {
    let node: usize = node.parse().ok()?;
    let mut nodes: usize = 0;
    for part in list.split(',') {
        let repeated = part.strip_suffix(')').and_then(|part| part.split_once("(x"));
        let (tasks, times) = repeated.unwrap_or((part, "1"));
        nodes = nodes.checked_add(times.parse().ok()?)?;
        if node < nodes {
            return tasks.parse().ok();
        }
    }
    None
}

/// Checks that Kubeflow starts one process in each pod. With more, only torchrun tells each its rank.
fn check_processes_per_pod(processes: Option<&str>) -> Result<(), RankError> {
    match processes {
        None | Some("1") => Ok(()),
        Some(processes) => Err(RankError::SeveralPerPod { processes: processes.to_owned() }),
    }
}

/// Returns the position of `host` in `hosts`, a list such as `["algo-1","algo-2"]`, and the length of the
/// list.
fn position(host: &str, hosts: &str) -> Result<(usize, usize), RankError> {
    let listed = hosts.trim().strip_prefix('[').and_then(|hosts| hosts.strip_suffix(']')).unwrap_or_default();
    let names: Vec<_> = listed.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let rank = names.iter().position(|&name| name == host && !name.is_empty());
    let unknown = || RankError::UnknownHost { host: host.to_owned(), hosts: hosts.to_owned() };
    Ok((rank.ok_or_else(unknown)?, names.len()))
}
