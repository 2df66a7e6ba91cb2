use super::{LaunchedRank, Launcher};

/// The variables of a launcher do not tell the rank of this process. The message says how to give it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// A launcher's variable is set, and another one that belongs to it is not.
    #[error("the environment has {set} ({launcher}), but not {missing}; set both or none, or {ADVICE}")]
    Incomplete {
        /// The launcher whose variable is set.
        launcher: Launcher,
        /// Name of the variable that is set.
        set: &'static str,
        /// Name of the variable that is not.
        missing: &'static str,
    },
    /// The value of a variable is not a whole number from 0.
    #[error(
        "the environment variable {name} ({launcher}) is `{value}`; expected a whole number from 0; or {ADVICE}"
    )]
    NotANumber {
        /// The launcher that the variable belongs to.
        launcher: Launcher,
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The rank is not below the world size, or the local rank is not below the local size.
    #[error("the environment says {found}{}, but ranks count from 0; {ADVICE}", local(found))]
    NotBelowSize {
        /// What the variables say.
        found: LaunchedRank,
    },
    /// Two launchers of which at most one can have started this process give it different ranks.
    #[error(
        "the environment says {first}, and it says {second}; remove the variables of the launcher that did not start \
         this process, or {ADVICE}"
    )]
    Contradiction {
        /// What the variables of one launcher say.
        first: Box<LaunchedRank>,
        /// What those of the other launcher say.
        second: Box<LaunchedRank>,
    },
    /// The launcher started another number of processes than the option `world_size` says.
    #[error("world_size is {given}, but the environment says {found}; leave world_size out, or {ADVICE}")]
    OtherWorldSize {
        /// The option's value.
        given: usize,
        /// What the launcher's variables say.
        found: LaunchedRank,
    },
    /// An indexed Job of Kubernetes tells the rank, but not the number of processes.
    #[error(
        "the environment has JOB_COMPLETION_INDEX (Kubernetes Job), but no variable tells the number of processes; \
         set world_size (LOADER_WORLD_SIZE) to the Job's `completions`, or {ADVICE}"
    )]
    WorldSizeUnknown,
    /// Kubeflow starts several processes in each pod, but torchrun did not start this one.
    #[error(
        "PET_NPROC_PER_NODE (Kubeflow) is `{processes}`, and only torchrun tells each process of a pod its rank; \
         start the program with torchrun, set PET_NPROC_PER_NODE to 1, or {ADVICE}"
    )]
    SeveralPerPod {
        /// Value of the variable.
        processes: String,
    },
    /// The list of SageMaker's hosts does not have this host.
    #[error("SM_CURRENT_HOST (SageMaker) is `{host}`, which is not in SM_HOSTS, `{hosts}`; {ADVICE}")]
    UnknownHost {
        /// Name of this host.
        host: String,
        /// Value of SM_HOSTS.
        hosts: String,
    },
}

const ADVICE: &str = "set rank and world_size, or set launcher to \"off\" to load the whole dataset";

fn local(found: &LaunchedRank) -> String {
    match (found.local_rank, found.local_size) {
        (Some(rank), Some(size)) => format!(", and rank {rank} of {size} on this machine"),
        _ => String::new(),
    }
}
