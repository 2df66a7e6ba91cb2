//! Finds rank and world size in the environment variables of the launcher: the program that started the
//! processes of a distributed run, such as torchrun or mpirun.
//!
//! All numbers come from one launcher, so that a rank is never combined with the world size of another
//! launcher. The launcher that started this process comes before the launcher that started it: torchrun under
//! Slurm leaves Slurm's variables in place.
//!
//! Alternative considered: finding them in every loader, without being asked. Rejected because a program that
//! loads the whole dataset in each process on purpose (a validation set, a share that its own sampler takes)
//! would silently lose samples. Ignoring the variables would silently load each sample in every process, so
//! `build` warns, unless the program says which of the two it wants. `loader run` is not a library: it finds
//! them by default, and says so.

mod error;
mod sources;
mod variables;

use std::{collections::BTreeMap, env, fmt, io};

use loader_ipc::cpu_set::CpuSet;
use serde::Serialize;

use crate::options::{LauncherMode, LoaderOptions};

pub use error::RankError;
use sources::GROUPS;
pub use sources::Launcher;
pub(crate) use variables::belongs_to_launcher;

/// Environment variables by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// What a launcher tells of its processes on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LocalRanks {
    rank: Option<usize>,
    size: Option<usize>,
    /// True if the launcher does not bind its processes.
    binds_none: bool,
}

impl LocalRanks {
    /// Returns what the launcher of this process tells; nothing if `mode` says to ignore it.
    pub(crate) fn find(mode: Option<LauncherMode>, variables: &Variables) -> Self {
        if mode == Some(LauncherMode::Off) {
            return Self::default();
        }
        // An invalid rank is an error of `launcher`, if that is on.
        let launched = LaunchedRank::find(variables, None).ok().flatten();
        launched.map_or_else(Self::default, |launched| launched.local())
    }

    #[cfg(test)]
    pub(crate) fn new(rank: Option<usize>, size: Option<usize>) -> Self {
        Self { rank, size, binds_none: false }
    }

    /// True if this process has the mask of its parent, the launcher, which does not bind its processes: all of them
    /// then share that mask. Of other launchers the parent may be a script, which the launcher has bound too.
    pub(crate) fn share_mask(self) -> bool {
        let is_of_parent = || Ok::<_, io::Error>(CpuSet::of_this_thread()? == CpuSet::of_parent()?);
        self.binds_none && is_of_parent().unwrap_or(false)
    }

    /// Returns the number of this process among those of the launcher on this machine, and their number, if the
    /// launcher tells both.
    pub(crate) fn rank_and_size(self) -> Option<(usize, usize)> {
        self.rank.zip(self.size)
    }

    /// Number of processes that share the machine, as far as the launcher tells it.
    pub(crate) fn processes(self) -> usize {
        self.size.unwrap_or(1).max(1)
    }
}

/// Rank and world size that a launcher gave this process in environment variables. `Display` describes them
/// in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LaunchedRank {
    /// The launcher that set the variables.
    pub launcher: Launcher,
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of processes, more than `rank`.
    pub world_size: usize,
    /// Number of this process among those on this machine, from 0, if the launcher tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<usize>,
    /// Number of processes on this machine, if the launcher tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_size: Option<usize>,
}

impl LaunchedRank {
    /// Finds rank and world size in the environment of this process. Returns `None` if no launcher has set
    /// its variables.
    ///
    /// # Errors
    /// [`RankError`] if a launcher's variables are incomplete, are not numbers, or contradict those of another
    /// launcher.
    ///
    /// # Examples
    /// ```
    /// use loader_core::LaunchedRank;
    ///
    /// match LaunchedRank::from_env()? {
    ///     Some(launched) => println!("{launched}"), // such as "rank 1 of 4 (torchrun: RANK, WORLD_SIZE)"
    ///     None => println!("the only process"),
    /// }
    /// # Ok::<(), loader_core::RankError>(())
    /// ```
    pub fn from_env() -> Result<Option<Self>, RankError> {
        Self::find(&environment(), None)
    }

    /// Returns what the variables of each launcher say, for each that has set some, in the order in which
    /// [`from_env`](Self::from_env) looks at them. The first decides, unless another one of equal standing
    /// contradicts it.
    pub fn candidates() -> Vec<(Launcher, Result<Self, RankError>)> {
        Self::candidates_in(&environment())
    }

    fn candidates_in(variables: &Variables) -> Vec<(Launcher, Result<Self, RankError>)> {
        let sources = GROUPS.iter().copied().flatten();
        let read =
            |source: &sources::Source| Some((source.launcher, source.read(variables, None).transpose()?));
        sources.filter_map(read).collect()
    }

    fn local(&self) -> LocalRanks {
        let binds_none = self.launcher == Launcher::Torchrun;
        LocalRanks { rank: self.local_rank, size: self.local_size, binds_none }
    }

    /// Returns the variable that the launcher should have set too, if it tells only one of local rank and local
    /// size; empty if it has no such variable.
    pub(crate) fn missing_local_variable(&self) -> Option<&'static str> {
        let [rank, size] = self.launcher.local_variables();
        match (self.local_rank, self.local_size) {
            (Some(_), None) => Some(size),
            (None, Some(_)) => Some(rank),
            _ => None,
        }
    }

    /// Finds rank and world size in `variables`. If the user gave a world size, takes only the rank.
    pub(crate) fn find(variables: &Variables, world_size: Option<usize>) -> Result<Option<Self>, RankError> {
        for group in GROUPS {
            let mut found: Option<Self> = None;
            for source in *group {
                let Some(next) = source.read(variables, world_size)? else { continue };
                match &found {
                    Some(first) if (first.rank, first.world_size) != (next.rank, next.world_size) => {
                        let (first, second) = (Box::new(first.clone()), Box::new(next));
                        return Err(RankError::Contradiction { first, second });
                    }
                    Some(_) => {}
                    None => found = Some(next),
                }
            }
            if let Some(found) = found {
                return match world_size {
                    Some(given) if given != found.world_size => {
                        Err(RankError::OtherWorldSize { given, found })
                    }
                    _ => Ok(Some(found)),
                };
            }
        }
        Ok(None)
    }
}

impl fmt::Display for LaunchedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launcher, rank, world_size, .. } = self;
        let (first, second) = launcher.variables();
        write!(f, "rank {rank} of {world_size} ({launcher}: {first}, {second})")
    }
}

impl LoaderOptions {
    /// Replaces [`launcher`](Self::launcher), if it is [`LauncherMode::Auto`], by the rank and the world size
    /// that it finds in the environment, and returns what it found. [`build`](crate::Builder::build) does the
    /// same.
    ///
    /// It looks for nothing if `rank` is set. If only `world_size` is set, the launcher's must be equal, or
    /// missing as in an indexed Job of Kubernetes.
    ///
    /// # Errors
    /// The errors of [`LaunchedRank::from_env`].
    pub fn with_launched_rank(self) -> Result<(Self, Option<LaunchedRank>), RankError> {
        self.with_rank_in(&environment())
    }

    pub(crate) fn with_rank_in(
        mut self,
        variables: &Variables,
    ) -> Result<(Self, Option<LaunchedRank>), RankError> {
        if self.launcher != Some(LauncherMode::Auto) {
            return Ok((self, None));
        }
        self.launcher = None;
        if self.rank.is_some() {
            return Ok((self, None));
        }
        let found = LaunchedRank::find(variables, self.world_size)?;
        if let Some(LaunchedRank { rank, world_size, .. }) = found {
            (self.rank, self.world_size) = (Some(rank), Some(world_size));
        }
        Ok((self, found))
    }
}

/// The variables of this process.
pub(crate) fn environment() -> Variables {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads variables from a text such as `RANK=1 WORLD_SIZE=4`.
    fn variables(text: &str) -> Variables {
        let pairs = text.split_whitespace().map(|variable| variable.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn find(text: &str) -> Result<Option<LaunchedRank>, RankError> {
        LaunchedRank::find(&variables(text), None)
    }

    /// Rank, world size, local rank and local size.
    type Numbers = (usize, usize, Option<usize>, Option<usize>);

    #[track_caller]
    fn assert_finds(text: &str, launcher: Launcher, numbers: Numbers) {
        let found = find(text).unwrap().expect("a launcher has set these variables");
        let LaunchedRank { rank, world_size, local_rank, local_size, .. } = found;
        assert_eq!(
            (found.launcher, (rank, world_size, local_rank, local_size)),
            (launcher, numbers),
            "{text}"
        );
    }

    #[track_caller]
    fn assert_refused(text: &str, message: &str) {
        let error = find(text).unwrap_err().to_string();
        let advice = "set rank and world_size, or set launcher to \"off\" to load the whole dataset";
        assert!(error.starts_with(message) && error.ends_with(advice), "{text}: {error}");
    }

    const SBATCH: &str = "SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0";
    const STEP: &str =
        "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NTASKS=7";

    #[test]
    fn each_launcher_is_recognized() {
        use Launcher::*;
        assert_finds(
            "TORCHELASTIC_RUN_ID=none RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1",
            Torchrun,
            (5, 8, Some(1), Some(4)),
        );
        assert_finds("RANK=0 WORLD_SIZE=1", Torchrun, (0, 1, None, None));
        let open_mpi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=3";
        assert_finds(open_mpi, OpenMpi, (3, 4, Some(1), Some(2)));
        assert_finds(
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
            Pmi,
            (1, 2, Some(0), Some(1)),
        );
        let mvapich2 = "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 \
                        MV2_COMM_WORLD_LOCAL_SIZE=2";
        assert_finds(mvapich2, Mvapich2, (1, 2, Some(1), Some(2)));
        let jsrun = "JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=1 LSB_JOBID=3";
        assert_finds(jsrun, Jsrun, (1, 2, Some(1), None));
        assert_finds("JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2", Jax, (1, 2, None, None));
        assert_finds("PET_NODE_RANK=1 PET_NNODES=2", Kubeflow, (1, 2, None, None));
        assert_finds("PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=1", Kubeflow, (1, 2, None, None));
        let hosts = r#"SM_CURRENT_HOST=algo-2 SM_HOSTS=["algo-1","algo-2","algo-3"]"#;
        assert_finds(hosts, SageMaker, (1, 3, None, None));
        assert_eq!(find("HOME=/ PMIX_RANK=1 KUBERNETES_SERVICE_HOST=10.0.0.1"), Ok(None), "PMIX has no size");
    }

    #[test]
    fn the_variables_of_slurm_count_in_a_step_only() {
        // The script of `sbatch`, the shell of `salloc`, and the shell that Slurm starts as an interactive
        // step.
        let shells = [
            SBATCH.to_owned(),
            "SLURM_NTASKS=2 SLURM_JOB_NAME=interactive".to_owned(),
            format!("{SBATCH} SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1"),
        ];
        assert!(shells.iter().all(|shell| find(shell) == Ok(None)));
        // The last of seven tasks on four nodes, and the first of the second node.
        let task = |ids: &str| format!("{STEP} {ids}");
        let last = task("SLURM_PROCID=6 SLURM_LOCALID=0 SLURM_NODEID=3");
        assert_finds(&last, Launcher::Slurm, (6, 7, Some(0), Some(1)));
        let third = task("SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1");
        assert_finds(&third, Launcher::Slurm, (2, 7, Some(0), Some(2)));
        // The size of a step is not that of its job.
        let small = "SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=2 SLURM_PROCID=0";
        assert_finds(small, Launcher::Slurm, (0, 1, None, None));
        let no_list = task("SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=9");
        assert_finds(&no_list, Launcher::Slurm, (2, 7, Some(0), None));
    }

    #[test]
    fn an_inner_launcher_comes_before_the_one_that_started_it() {
        // `mpiexec.hydra -n 2` in a job starts its proxy as a step of one task.
        let step = "SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=2 SLURM_LOCALID=0";
        assert_finds(&format!("{step} PMI_RANK=1 PMI_SIZE=2"), Launcher::Pmi, (1, 2, None, None));
        let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1";
        assert_finds(&format!("{SBATCH} {mpirun}"), Launcher::OpenMpi, (1, 2, None, None));
        // `srun` starts torchrun once on each node.
        let task = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0";
        let torchrun = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4";
        assert_finds(&format!("{task} {torchrun}"), Launcher::Torchrun, (5, 8, Some(1), Some(4)));
        // In pods, torchrun leaves the variables of its own settings and of the Job.
        let pod = "PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=4 JOB_COMPLETION_INDEX=1";
        assert_finds(&format!("{pod} {torchrun}"), Launcher::Torchrun, (5, 8, Some(1), Some(4)));
    }

    #[test]
    fn every_launcher_that_has_set_variables_is_a_candidate() {
        let both = format!("{STEP} SLURM_PROCID=6 SLURM_LOCALID=0 SLURM_NODEID=3 RANK=1 WORLD_SIZE=x");
        let found = LaunchedRank::candidates_in(&variables(&both));
        let [(Launcher::Torchrun, Err(RankError::NotANumber { .. })), (Launcher::Slurm, Ok(slurm))] =
            &found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((slurm.rank, slurm.world_size), (6, 7));
        assert_eq!(LaunchedRank::candidates_in(&variables(SBATCH)), []);
    }

    #[test]
    fn launchers_of_equal_standing_must_agree() {
        let agreeing = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=2";
        assert_finds(agreeing, Launcher::OpenMpi, (1, 2, None, None));
        assert_refused(
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=4",
            "the environment says rank 1 of 2 (Open MPI: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), and it says \
             rank 0 of 4 (PMI: PMI_RANK, PMI_SIZE); remove",
        );
        assert_refused(
            "JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 PET_NODE_RANK=0 PET_NNODES=2",
            "the environment says",
        );
    }

    #[test]
    fn variables_that_do_not_tell_the_rank_are_refused() {
        assert_refused("RANK=1", "the environment has RANK (torchrun), but not WORLD_SIZE; set both or none");
        assert_refused(
            "WORLD_SIZE=2 LOCAL_RANK=1",
            "the environment has WORLD_SIZE (torchrun), but not RANK",
        );
        // The world size never comes from another launcher.
        assert_refused(
            "PMI_RANK=1 WORLD_SIZE=2 RANK=",
            "the environment variable RANK (torchrun) is ``; expected",
        );
        assert_refused(
            "PMI_RANK=1 OMPI_COMM_WORLD_SIZE=2",
            "the environment has OMPI_COMM_WORLD_SIZE (Open MPI)",
        );
        assert_refused(
            "SLURM_STEP_ID=0 SLURM_PROCID=0",
            "the environment has SLURM_PROCID (Slurm), but not SLURM",
        );
        assert_refused(
            "RANK=-1 WORLD_SIZE=2",
            "the environment variable RANK (torchrun) is `-1`; expected a whole",
        );
        let local = "the environment variable LOCAL_RANK (torchrun) is `x`";
        assert_refused("RANK=1 WORLD_SIZE=2 LOCAL_RANK=x", local);
        let above = "the environment says rank 2 of 2 (torchrun: RANK, WORLD_SIZE), but ranks count from 0";
        assert_refused("RANK=2 WORLD_SIZE=2", above);
        assert_refused("RANK=0 WORLD_SIZE=0", "the environment says rank 0 of 0");
        assert_refused(
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
            "the environment says rank 1 of 4 (torchrun: RANK, WORLD_SIZE), and rank 2 of 2 on this machine, but",
        );
        for processes in ["4", "auto"] {
            let several = format!("PET_NPROC_PER_NODE (Kubeflow) is `{processes}`, and only torchrun tells");
            assert_refused(&format!("PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE={processes}"), &several);
        }
        let elastic = "the environment variable PET_NNODES (Kubeflow) is `1:4`";
        assert_refused("PET_NODE_RANK=1 PET_NNODES=1:4", elastic);
        let unknown = r#"SM_CURRENT_HOST (SageMaker) is `b`, which is not in SM_HOSTS, `["a"]`"#;
        assert_refused(r#"SM_CURRENT_HOST=b SM_HOSTS=["a"]"#, unknown);
        assert_refused("SM_CURRENT_HOST= SM_HOSTS=[]", "SM_CURRENT_HOST (SageMaker) is ``");
    }

    #[test]
    fn options_come_before_the_environment() {
        let take = |options: LoaderOptions, text: &str| {
            let (options, found) =
                options.with_rank_in(&variables(text)).map_err(|error| error.to_string())?;
            Ok::<_, String>((options.rank, options.world_size, found.map(|found| found.launcher)))
        };
        let auto = || LoaderOptions::default().launcher(LauncherMode::Auto);
        let torchrun = "RANK=1 WORLD_SIZE=4";
        assert_eq!(take(auto(), torchrun), Ok((Some(1), Some(4), Some(Launcher::Torchrun))));
        assert_eq!(take(auto(), ""), Ok((None, None, None)));
        assert_eq!(take(auto().rank(0).world_size(2), torchrun), Ok((Some(0), Some(2), None)));
        assert_eq!(take(auto().rank(0).world_size(2), "RANK=x"), Ok((Some(0), Some(2), None)));
        for options in [LoaderOptions::default(), LoaderOptions::default().launcher(LauncherMode::Off)] {
            assert_eq!(take(options.clone(), torchrun), Ok((None, None, None)));
            assert_eq!(options.clone().with_rank_in(&variables("RANK=x")), Ok((options, None)));
        }
        assert_eq!(auto().with_rank_in(&variables("")).unwrap().0, LoaderOptions::default());

        // An indexed Job has no variable for its size, so the user gives it.
        let index = "JOB_COMPLETION_INDEX=2 KUBERNETES_SERVICE_HOST=10.0.0.1";
        let job = (Some(2), Some(4), Some(Launcher::KubernetesJob));
        assert_eq!(take(auto().world_size(4), index), Ok(job));
        assert!(
            take(auto(), index)
                .unwrap_err()
                .contains("set world_size (LOADER_WORLD_SIZE) to the Job's `completions`")
        );
        let small = take(auto().world_size(2), index).unwrap_err();
        assert!(small.contains("rank 2 of 2 (Kubernetes Job: JOB_COMPLETION_INDEX, world_size)"), "{small}");
        // Elsewhere it must be the launcher's.
        assert_eq!(take(auto().world_size(4), torchrun).unwrap().1, Some(4));
        let other = take(auto().world_size(8), torchrun).unwrap_err();
        assert!(
            other.starts_with("world_size is 8, but the environment says rank 1 of 4 (torchrun"),
            "{other}"
        );
    }

    #[test]
    fn workers_do_not_inherit_what_tells_the_rank() {
        for source in GROUPS.iter().copied().flatten() {
            let names = source.variables().filter(|name| !name.starts_with("SM_"));
            for name in names {
                assert!(belongs_to_launcher(name), "{name}");
            }
        }
        let others =
            ["PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "PRTE_LAUNCHED", "SLURM_STEP_NODELIST"];
        assert!(others.into_iter().all(belongs_to_launcher));
        let kept = [
            "HOME",
            "PATH",
            "RANKING",
            "SLURM_JOB_ID",
            "PET_DATASET",
            "KUBERNETES_SERVICE_HOST",
            "LOADER_RANK",
        ];
        assert!(!kept.into_iter().any(belongs_to_launcher));
    }
}
