//! CPUs, NUMA nodes, and the launcher.

use std::{fs, thread};

use loader_core::{AutoWorkers, CpuSet, LaunchedRank, LauncherMode, RankError, internal::Topology};

use super::{
    Plan,
    report::{Check, Status},
};

pub(super) fn checks(plan: &Plan) -> Vec<Check> {
    let mut checks = cpus(plan);
    checks.extend(launcher(plan));
    checks
}

fn cpus(plan: &Plan) -> Vec<Check> {
    const NAME: &str = "cpus";
    let (own, allowed) = match (CpuSet::of_this_thread(), CpuSet::allowed()) {
        (Ok(own), Ok(allowed)) => (own, allowed),
        (Err(error), _) | (_, Err(error)) => {
            let meaning = "worker_affinity has only the value \"inherit\" here";
            let found = format!("the affinity cannot be read or changed: {error}");
            return vec![Check::new(NAME, Status::Note, found, meaning)];
        }
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online");
    let online: CpuSet = online.ok().and_then(|list| list.parse().ok()).unwrap_or_else(|| allowed.clone());
    let count = thread::available_parallelism().map_or(own.len(), usize::from);
    let found = format!(
        "this process may use {}, its control group {}, and the machine has {}",
        numbered(&own),
        numbered(&allowed),
        online.len()
    );
    let check = |status, meaning: String| Check::new(NAME, status, found.clone(), meaning);
    let mut checks = vec![if own.len() < allowed.len() {
        check(Status::Note, "workers have the affinity of this process by default".to_owned())
            .advice("set worker_affinity to \"share\" if a launcher has bound the process")
    } else if count < own.len() {
        let meaning = format!(
            "the control group's quota is about {count}: threads beyond this number wait for processor time"
        );
        check(Status::Note, meaning).advice("set num_workers to at most the quota")
    } else {
        let auto = plan.options.clone().num_workers(AutoWorkers::default());
        check(Status::Ok, format!("`--num-workers auto` begins with {}", auto.first_workers()))
    }];
    let nodes = Topology::of(&allowed).nodes();
    let texts: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    checks.push(match &texts[..] {
        [] | [_] => Check::new("numa", Status::Ok, "one NUMA node", "all memory is equally near"),
        _ => {
            let found = format!("{} NUMA nodes, with the CPUs {}", nodes.len(), texts.join(" and "));
            Check::new("numa", Status::Note, found, "memory of another node is slower").advice(
                "see worker_affinity: \"share\" under a launcher, \"pack\" or \"spread\" for one process",
            )
        }
    });
    checks
}

fn numbered(cpus: &CpuSet) -> String {
    format!("{} CPU{} ({cpus})", cpus.len(), if cpus.len() == 1 { "" } else { "s" })
}

/// One line for each launcher whose variables are set, and one for what `loader run` makes of them.
fn launcher(plan: &Plan) -> Vec<Check> {
    const NAME: &str = "launcher";
    let candidates = LaunchedRank::candidates();
    let mut checks: Vec<_> = candidates
        .iter()
        .map(|(launcher, read)| match read {
            Ok(rank) => {
                let local = match (rank.local_rank, rank.local_size) {
                    (Some(rank), Some(size)) => format!("; rank {rank} of {size} on this machine"),
                    (Some(rank), None) => format!("; rank {rank} on this machine"),
                    (None, Some(size)) => format!("; one of {size} ranks on this machine"),
                    (None, None) => String::new(),
                };
                let found = format!("{rank}{local}");
                Check::new("candidate", Status::Ok, found, format!("the variables of {launcher} are set"))
            }
            Err(error) => Check::new("candidate", Status::Note, error.to_string(), ""),
        })
        .collect();
    if plan.options.rank.is_some() || plan.options.launcher == Some(LauncherMode::Off) {
        let meaning = "`loader run` does not look for a launcher";
        checks.push(Check::new(NAME, Status::Ok, "rank is set, or launcher is \"off\"", meaning));
        return checks;
    }
    let options = plan.options.clone().launcher(LauncherMode::Auto).with_launched_rank();
    checks.push(match options {
        Ok((_, Some(rank))) => {
            let meaning = match (rank.local_rank, rank.local_size) {
                _ if rank.world_size == 1 => "`loader run` loads the share of this rank",
                (Some(_), Some(_)) => "`loader run` loads the share of this rank",
                (None, Some(_)) => {
                    "`loader run` loads the share of this rank; the launcher sets no local rank, so with \
                     `worker_affinity` the loader does not divide the CPUs"
                }
                (_, None) => {
                    "`loader run` loads the share of this rank; the launcher sets no local size, so the loader does \
                     not divide the CPUs, neither with `worker_affinity` nor with `--num-workers auto`"
                }
            };
            Check::new(NAME, Status::Ok, rank.to_string(), meaning)
        }
        Ok((_, None)) => Check::new(NAME, Status::Ok, "none", "`loader run` loads the whole dataset in this process"),
        // The message says what to do.
        Err(error) => refused(NAME, &error),
    });
    checks
}

fn refused(name: &'static str, error: &RankError) -> Check {
    Check::new(name, Status::Error, error.to_string(), "`loader run` refuses to start")
}
