//! The variables of launchers that workers do not inherit.

/// Names of variables that launchers set for each of their processes. A name that ends in `_` is a prefix.
const LAUNCHER_VARIABLES: &[&str] = &[
    // torchrun, and what sets its variables
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    // MPI
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "PMI_",
    "HYDRA_",
    "HYDI_",
    "I_MPI_HYDRA_",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_",
    "JSM_NAMESPACE_",
    // Slurm; those of the job, such as SLURM_JOB_ID, are left
    "SLURM_STEP_",
    "SLURM_STEPID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_TASK_PID",
    "SLURM_GTIDS",
    "SLURM_SRUN_",
    // others
    "JAX_PROCESS_ID",
    "JAX_NUM_PROCESSES",
    "JAX_COORDINATOR_",
    "JOB_COMPLETION_INDEX",
];

/// True if a launcher sets the environment variable `name` for each of its processes. Workers do not inherit
/// such variables: a dataset that uses an MPI library would join the job with the rank of main, and one that
/// uses `torch.distributed` would wait for the other processes.
pub(crate) fn belongs_to_launcher(name: &str) -> bool {
    let is_named = |entry: &&str| if entry.ends_with('_') { name.starts_with(entry) } else { name == *entry };
    LAUNCHER_VARIABLES.iter().any(is_named)
}
