//! Runs that a launcher starts: the rank comes from its environment variables.
//!
//! The tests of real launchers are ignored by default, because they need `mpirun`, Slurm, or `torchrun` at
//! the path in the variable TORCHRUN. `.ci/long launchers` runs them.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use loader_core::CpuSet;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Finished, PHOTOS, Running, assert_gone, command, event, pid, run, worker_pids};

const TORCHRUN: [(&str, &str); 4] =
    [("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "3")];

/// Options of a run in which each of three ranks loads three of the nine photographs.
const OPTIONS: [&str; 8] =
    ["run", PHOTOS, "--size", "16", "--shuffle", "--json", "--digest", "--batch-size=2"];

fn with_variables(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    command
}

fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
    Running::start(with_variables(arguments, variables)).finish()
}

/// Returns the sample digest of each of a run's epochs, and the number of samples in it.
fn digests(events: &[Value]) -> Vec<(u128, u64)> {
    let epochs = events.iter().filter(|event| event["event"] == "epoch");
    let digest = |epoch: &Value| u128::from_str_radix(epoch["sample_digest"].as_str().unwrap(), 16).unwrap();
    epochs.map(|epoch| (digest(epoch), epoch["digest_samples"].as_u64().unwrap())).collect()
}

#[test]
fn a_run_takes_the_rank_of_the_launcher_and_says_so() {
    let launched = run_with(&OPTIONS, &TORCHRUN);
    let start = launched.assert_status(0).named("start").remove(0);
    let expected =
        json!({ "launcher": "torchrun", "rank": 1, "world_size": 3, "local_rank": 1, "local_size": 3 });
    assert_eq!((&start["launched"], &start["samples"]), (&expected, &json!(3)));
    let loader = &start["config"]["loader"];
    assert_eq!((&loader["rank"], &loader["world_size"]), (&json!(1), &json!(3)));
    let explicit = run(&[&OPTIONS[..], &["--rank=1", "--world-size=3"]].concat());
    assert_eq!(digests(&launched.events()), digests(&explicit.assert_status(0).events()));

    let text = run_with(&["run", PHOTOS, "--size=16"], &TORCHRUN);
    assert_eq!(text.assert_status(0).stderr, "loader: rank 1 of 3 (torchrun: RANK, WORLD_SIZE)\n");
    let plan = run_with(&["plan", "--length=9", "--batch-size=3"], &TORCHRUN);
    assert_eq!(plan.assert_status(0).stdout, "{\"epoch\":0,\"batch\":0,\"indices\":[1,4,7]}\n");
    assert_eq!(plan.stderr, text.stderr);
    // The whole dataset is inspected.
    let inspected = run_with(&["inspect", PHOTOS, "--json"], &TORCHRUN);
    assert_eq!(
        (inspected.assert_status(0).stderr.as_str(), &inspected.events()[0]["samples"]),
        ("", &json!(9))
    );
}

#[test]
fn the_user_overrides_the_launcher() {
    let samples = |arguments: &[&str], variables: &[(&str, &str)]| {
        let finished = run_with(&[&OPTIONS[..], arguments].concat(), &[&TORCHRUN[..], variables].concat());
        let start = finished.assert_status(0).named("start").remove(0);
        assert_eq!(finished.stderr, "");
        (start["launched"].is_null(), start["samples"].as_u64().unwrap())
    };
    assert_eq!(samples(&["--launcher", "off"], &[]), (true, 9));
    assert_eq!(samples(&[], &[("LOADER_LAUNCHER", "off")]), (true, 9));
    assert_eq!(samples(&["--rank=0", "--world-size=2"], &[]), (true, 5));
    assert_eq!(samples(&[], &[("LOADER_RANK", "0"), ("LOADER_WORLD_SIZE", "2")]), (true, 5));
    assert_eq!(
        samples(&["--samples=20"], &[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")]),
        (false, 20)
    );
}

/// With tensor parallelism, two ranks read the same data, and write files of their own.
#[test]
fn the_ranks_of_a_group_load_the_same_share_and_write_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let files = [
        format!("--save-state={}", path("state-{rank}")),
        format!("--trace={}", path("trace-{rank}")),
        format!("--report={}", path("report-{rank}")),
    ];
    let rank = |rank: usize, options: &[&str]| {
        let rank = rank.to_string();
        let launched = [("RANK", &*rank), ("WORLD_SIZE", "4"), ("LOADER_GROUP_SIZE", "2")];
        run_with(&[&OPTIONS[..], options].concat(), &launched)
    };
    let stopped = [0, 1, 2, 3].map(|number| {
        let options = ["--stop-after=1", &files[0], &files[1], &files[2]];
        let finished = rank(number, &options);
        let start = finished.assert_status(0).named("start").remove(0);
        // Of nine photographs, two groups load five each.
        assert_eq!((&start["launched"]["rank"], &start["samples"]), (&json!(number), &json!(5)));
        for file in ["trace", "report"] {
            assert!(folder.path().join(format!("{file}-{number}")).is_file());
        }
        fs::read(folder.path().join(format!("state-{number}"))).unwrap()
    });
    assert!(stopped[0] == stopped[1] && stopped[1] != stopped[2] && stopped[2] == stopped[3]);

    // One state of each group is enough for a single process.
    let both = ["--resume", &path("state-0"), &path("state-2")];
    let rest = run(&[&OPTIONS[..], &both].concat()).assert_status(0).events();
    let whole = run(&OPTIONS).assert_status(0).events();
    assert_eq!(digests(&rest), digests(&whole));
    let own = rank(3, &["--resume", &path("state-{rank}")]);
    assert_eq!(own.assert_status(0).named("epoch").len(), 1);

    let uneven = rank(0, &["--group-size=3", "--num-workers=1"]);
    let events = uneven.assert_status(2).events();
    let message = events[0]["message"].as_str().unwrap();
    let expected = "group_size: 4 ranks cannot be divided into groups of 3";
    assert!(events.len() == 1 && message.contains(expected), "{message}");
}

#[test]
fn a_rank_that_is_not_clear_ends_the_run_before_a_worker_starts() {
    let refused = |arguments: &[&str], variables: &[(&str, &str)], kind: &str, expected: &str| {
        let finished = run_with(&[&OPTIONS[..], arguments, &["--num-workers=1"]].concat(), variables);
        let events = finished.assert_status(2).events();
        let message = events[0]["message"].as_str().unwrap();
        assert!(
            events.len() == 1 && events[0]["kind"] == kind && message.contains(expected),
            "{finished:#?}"
        );
    };
    refused(&[], &[("RANK", "1")], "RankUnknown", "has RANK (torchrun), but not WORLD_SIZE");
    let [_, size, local_rank, local_size] = TORCHRUN;
    refused(&[], &[("RANK", "3"), size, local_rank, local_size], "RankUnknown", "rank 3 of 3");
    refused(
        &["--world-size=2"],
        &TORCHRUN,
        "RankUnknown",
        "world_size is 2, but the environment says rank 1 of 3",
    );
    refused(&["--samples=20"], &TORCHRUN, "InvalidArguments", "(rank 1 of 3 (torchrun: RANK, WORLD_SIZE))");
    let job = [("JOB_COMPLETION_INDEX", "1")];
    refused(&[], &job, "RankUnknown", "set world_size (LOADER_WORLD_SIZE)");
    let sized = [("JOB_COMPLETION_INDEX", "1"), ("LOADER_WORLD_SIZE", "3")];
    let loaded = run_with(&OPTIONS, &sized).assert_status(0).named("start").remove(0);
    assert_eq!(loaded["launched"], json!({ "launcher": "kubernetes_job", "rank": 1, "world_size": 3 }));
}

#[test]
fn workers_do_not_inherit_the_variables_of_the_launcher() {
    let others =
        [("OMPI_UNIVERSE_SIZE", "3"), ("PMIX_NAMESPACE", "1"), ("SLURM_STEP_ID", "0"), ("TEST_KEPT", "1")];
    let endless = [&OPTIONS[..], &["--num-workers=1", "--epochs=1000000"]].concat();
    let mut running = Running::start(with_variables(&endless, &[&TORCHRUN[..], &others].concat()));
    let workers = worker_pids(&running.next_event());
    let environment = fs::read(format!("/proc/{}/environ", workers[0])).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let names: BTreeMap<_, _> = environment.split('\0').filter_map(|entry| entry.split_once('=')).collect();
    drop(running);
    assert_gone(&workers);
    assert_eq!(names.get("TEST_KEPT"), Some(&"1"), "{names:?}");
    assert!(names.contains_key("LOADER_WORKER_LIFELINE"), "{names:?}");
    let removed = TORCHRUN.iter().chain(&others[..3]).map(|(name, _)| name);
    assert_eq!(removed.filter(|name| names.contains_key(**name)).count(), 0, "{names:?}");
}

#[test]
fn the_workers_of_a_rank_have_their_part_of_the_cpus() {
    let cpus = CpuSet::allowed().unwrap();
    if cpus.len() < 2 {
        println!("SKIPPED: with one CPU, there are no parts");
        return;
    }
    let endless = [
        "run",
        PHOTOS,
        "--json",
        "--size=16",
        "--epochs=100000",
        "--num-workers=2",
        "--worker-affinity=share",
    ];
    let masks = |local_rank, local_size| {
        let variables = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local_rank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", local_size),
        ];
        let mut running = Running::start(with_variables(&endless, &variables));
        let workers = worker_pids(&running.next_event());
        let mask = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            list.trim().parse::<CpuSet>().unwrap()
        };
        let masks: Vec<_> = workers.iter().map(mask).collect();
        drop(running);
        assert_gone(&workers);
        assert_eq!(masks[0], masks[1]);
        masks[0].iter().collect::<Vec<_>>()
    };
    let parts = [masks("0", "2"), masks("1", "2")];
    assert!(parts.iter().all(|part| !part.is_empty() && part.len() < cpus.len()), "{parts:?}");
    assert_eq!(parts.concat().into_iter().collect::<CpuSet>(), cpus);
    assert_eq!(masks("0", "1").into_iter().collect::<CpuSet>(), cpus);
}

/// A launcher that has started `OPTIONS` in several processes.
struct Launched {
    running: Running,
    /// The output of each process in a file of its own, because launchers mix the lines of their processes.
    outputs: TempDir,
}

impl Launched {
    fn start(launcher: &[&str], options: &[&str]) -> Self {
        let outputs = tempfile::tempdir().unwrap();
        // The name is not `$$`, which torchrun replaces by `$`.
        let script = "exec \"$@\" >\"$(mktemp -p \"$0\")\"";
        let loader = ["sh", "-c", script, outputs.path().to_str().unwrap(), env!("CARGO_BIN_EXE_loader")];
        let arguments = [&launcher[1..], &loader, &OPTIONS, options];
        let running = Running::start(command_of(launcher[0], &arguments.concat()));
        Self { running, outputs }
    }

    /// Returns the events that each process has printed so far. A process that has just begun has none.
    fn events(outputs: &TempDir) -> Vec<Vec<Value>> {
        let files = fs::read_dir(outputs.path()).unwrap().map(|entry| entry.unwrap().path());
        let texts = files.map(|file| fs::read_to_string(file).unwrap());
        // The last line may be incomplete.
        let complete = |text: String| {
            text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(event).collect()
        };
        texts.map(complete).collect()
    }

    /// Waits for the end of the launcher, which must succeed, and returns the events of each process.
    fn finish(self) -> Vec<Vec<Value>> {
        self.running.finish().assert_status(0);
        Self::events(&self.outputs)
    }
}

/// Returns the command `program` without the variables that [`command`] leaves out.
fn command_of(program: &str, arguments: &[&str]) -> Command {
    let mut launcher = Command::new(program);
    for (name, _) in command(&[]).get_envs() {
        launcher.env_remove(name);
    }
    launcher.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    launcher.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    launcher
}

/// Checks that the processes with these events are the ranks of `launcher`, and that in each epoch they
/// together load the whole dataset, each sample once.
#[track_caller]
fn assert_union(runs: &[Vec<Value>], world_size: u64, launcher: &str, epochs: u64) {
    let started: BTreeMap<_, _> =
        runs.iter().map(|run| (run[0]["launched"]["rank"].as_u64(), &run[0])).collect();
    assert!(started.keys().copied().eq((0..world_size).map(Some)), "{started:#?}");
    assert_eq!(runs.len() as u64, world_size, "{started:#?}");
    assert!(started.values().all(|start| start["launched"]["launcher"] == launcher), "{started:#?}");
    let whole = run(&[&OPTIONS[..], &["--epochs", &epochs.to_string()]].concat());
    let whole = digests(&whole.assert_status(0).events());
    assert!(whole.len() as u64 == epochs && whole.iter().all(|&(_, samples)| samples == 9), "{whole:?}");
    let parts: Vec<_> = runs.iter().map(|run| digests(run)).collect();
    for (epoch, whole) in whole.iter().enumerate() {
        let shares = parts.iter().map(|epochs| epochs[epoch]);
        let union = shares.fold((0u128, 0), |sum, part| (sum.0.wrapping_add(part.0), sum.1 + part.1));
        assert_eq!(union, *whole, "epoch {epoch}");
    }
    println!(
        "launchers: {launcher}: in {epochs} epochs, {world_size} ranks have the sample digest of one process"
    );
}

#[test]
#[ignore = "needs mpirun"]
fn ranks_under_a_real_mpirun_load_the_epoch_together() {
    let runs = Launched::start(&["mpirun", "--oversubscribe", "-n", "4"], &["--num-workers=1"]).finish();
    assert_union(&runs, 4, "open_mpi", 1);
}

#[test]
#[ignore = "needs MPICH"]
fn ranks_under_a_real_mpich_load_the_epoch_together() {
    let runs = Launched::start(&["mpiexec.hydra", "-n", "3"], &["--num-workers=1"]).finish();
    assert_union(&runs, 3, "pmi", 1);
}

#[test]
#[ignore = "needs mpirun"]
fn workers_under_a_real_mpirun_that_binds_are_noticed() {
    let started = |binding, affinity| {
        let arguments =
            ["--bind-to", binding, "-n", "1", env!("CARGO_BIN_EXE_loader"), "run", PHOTOS, "--size=16"];
        let options = ["--num-workers=2", "--worker-affinity", affinity];
        let command = command_of("mpirun", &[&arguments[..], &options].concat());
        let finished = Running::start(command).finish();
        finished.assert_status(0);
        finished.stderr
    };
    let cpus = thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        println!("SKIPPED: with one CPU, no launcher can bind a process to fewer");
        return;
    }
    let bound = started("core", "inherit");
    assert!(bound.contains("Open MPI has bound this process and its 2 workers to 1 of"), "{bound}");
    assert!(
        bound.contains("set worker_affinity to \"share\", or start it with `mpirun --bind-to none`"),
        "{bound}"
    );
    assert!(!started("none", "inherit").contains("warning"));
    assert!(!started("core", "share").contains("warning"));
}

#[test]
#[ignore = "needs Slurm"]
fn ranks_under_a_real_slurm_load_the_epoch_together() {
    let runs = Launched::start(&["srun", "--overcommit", "-n", "3"], &["--num-workers=1"]).finish();
    assert_union(&runs, 3, "slurm", 1);
}

#[test]
#[ignore = "needs Slurm"]
fn the_script_of_a_job_under_a_real_slurm_is_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("job");
    fs::write(&script, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    let job = ["sbatch", "--wait", "--overcommit", "-n", "2", "--output=/dev/null", script.to_str().unwrap()];
    let runs = Launched::start(&job, &[]).finish();
    assert_eq!((runs.len(), &runs[0][0]["launched"]), (1, &Value::Null));
    assert_eq!(digests(&runs[0]), digests(&run(&OPTIONS).assert_status(0).events()));
    println!("launchers: the script of a job of 2 tasks loads the whole dataset");
}

/// Returns the command line of torchrun for this number of ranks, which it starts again once.
fn torchrun(ranks: usize) -> [String; 5] {
    let torchrun = std::env::var("TORCHRUN").expect("the variable TORCHRUN is the path of torchrun");
    let ranks = format!("--nproc-per-node={ranks}");
    [torchrun, "--standalone".to_owned(), ranks, "--max-restarts=1".to_owned(), "--no-python".to_owned()]
}

/// Starts `options` in several ranks, kills rank 1 with SIGKILL once each rank has begun, and returns the events of the
/// ranks that torchrun then starts in place of all of them.
fn run_with_a_killed_rank(ranks: usize, options: &[&str]) -> Vec<Vec<Value>> {
    let launcher = torchrun(ranks);
    let launched = Launched::start(&launcher.each_ref().map(String::as_str), options);
    // `Running` kills a launcher that takes too long. Then no process is added, so this loop has a deadline
    // too.
    let deadline = Instant::now() + Duration::from_secs(60);
    let first = loop {
        let runs = Launched::events(&launched.outputs);
        if runs.iter().filter(|run| !run.is_empty()).count() == ranks {
            break runs;
        }
        assert!(Instant::now() < deadline, "torchrun has started only {runs:?}");
        thread::sleep(Duration::from_millis(5));
    };
    assert!(
        first.iter().flatten().all(|event| event["event"] != "end"),
        "a rank has ended before the signal"
    );
    let victim = first.iter().find(|run| run[0]["launched"]["rank"] == 1).expect("rank 1 has started");
    kill(pid(u32::try_from(victim[0]["pid"].as_u64().unwrap()).unwrap()), Signal::SIGKILL).unwrap();
    let (complete, ended): (Vec<_>, Vec<_>) =
        launched.finish().into_iter().partition(|run| run.last().is_some_and(|last| last["event"] == "end"));
    assert_eq!(ended.len(), ranks, "torchrun ends all ranks with the one that was killed");
    complete
}

#[test]
#[ignore = "needs torchrun"]
fn a_rank_killed_under_a_real_torchrun_is_started_again_with_the_others() {
    let complete = run_with_a_killed_rank(3, &["--num-workers=1", "--epochs=20"]);
    assert_union(&complete, 3, "torchrun", 20);
}

#[test]
#[ignore = "needs torchrun"]
fn a_killed_rank_and_another_number_of_ranks_under_a_real_torchrun_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let state_of = |rank: &str| folder.path().join(format!("{rank}.json")).to_str().unwrap().to_owned();
    let launcher = torchrun(3);
    let stop = ["--num-workers=1", "--stop-after=1", "--save-state", &state_of("{rank}")];
    Launched::start(&launcher.each_ref().map(String::as_str), &stop).finish();
    let states = [0, 1, 2].map(|rank| state_of(&rank.to_string()));
    let resume = ["--num-workers=2", "--epochs=20", "--resume", &states[0], &states[1], &states[2]];
    let complete = run_with_a_killed_rank(2, &resume);
    assert_union(&complete, 2, "torchrun", 20);
}
