//! Runs that a launcher starts: the rank comes from its environment variables.
//!
//! The tests of real launchers are ignored by default, because they need `mpirun`, or `torchrun` at the path
//! in the variable TORCHRUN. `.ci/long launchers` runs them.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::support::{Finished, PHOTOS, Running, assert_gone, command, run, worker_pids};

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

/// Returns the sample digest of a run's epoch, and the number of samples in it.
fn digest(events: &[Value]) -> (u128, u64) {
    let epoch = events.iter().find(|event| event["event"] == "epoch").expect("the epoch was loaded");
    let digest = u128::from_str_radix(epoch["sample_digest"].as_str().unwrap(), 16).unwrap();
    (digest, epoch["digest_samples"].as_u64().unwrap())
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
    assert_eq!(digest(&launched.events()), digest(&explicit.assert_status(0).events()));

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
    refused(&[], &job, "RankUnknown", "set LOADER_WORLD_SIZE");
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

/// Starts `OPTIONS` by `launcher` in as many processes as it makes, and returns the start and the digest of
/// each.
fn launch(launcher: &[&str], options: &[&str]) -> Vec<(Value, (u128, u64))> {
    let folder = tempfile::tempdir().unwrap();
    // Each process writes a file of its own, because launchers mix the lines of their processes. The name is
    // not `$$`, which torchrun replaces by `$`.
    let script = "exec \"$@\" >\"$(mktemp -p \"$0\")\"";
    let folder_name = folder.path().to_str().unwrap();
    let arguments =
        [&launcher[1..], &["sh", "-c", script, folder_name, env!("CARGO_BIN_EXE_loader")], &OPTIONS, options];
    let mut command = command_of(launcher[0], &arguments.concat());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let finished = Running::start(command).finish();
    finished.assert_status(0);
    let outputs =
        fs::read_dir(folder.path()).unwrap().map(|entry| output(&entry.unwrap().path(), &finished.stderr));
    outputs.collect()
}

fn output(path: &Path, stderr: &str) -> (Value, (u128, u64)) {
    let text = fs::read_to_string(path).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [start, .., _] = &events[..] else { panic!("{text}{stderr}") };
    (start.clone(), digest(&events))
}

/// Returns the command `program` with the environment and the pipes of [`command`].
fn command_of(program: &str, arguments: &[&str]) -> Command {
    let template = command(&[]);
    let mut command = Command::new(program);
    for (name, value) in template.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(arguments).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

/// Checks that the ranks that `launcher` starts load the whole dataset together, each sample once.
fn assert_union(launcher: &[&str], world_size: u64, name: &str) {
    let whole = digest(&run(&OPTIONS).assert_status(0).events());
    assert_eq!(whole.1, 9);
    let runs = launch(launcher, &["--num-workers=1"]);
    let ranks: BTreeMap<_, _> =
        runs.iter().map(|(start, _)| (start["launched"]["rank"].as_u64(), start)).collect();
    assert!(ranks.keys().copied().eq((0..world_size).map(Some)), "{ranks:#?}");
    assert!(ranks.values().all(|start| start["launched"]["launcher"] == name), "{ranks:#?}");
    let union = runs.iter().fold((0u128, 0), |sum, (_, part)| (sum.0.wrapping_add(part.0), sum.1 + part.1));
    assert_eq!(union, whole);
    println!("launchers: {name}: {world_size} ranks together have the sample digest of one process");
}

#[test]
#[ignore = "needs mpirun"]
fn ranks_under_a_real_mpirun_load_the_epoch_together() {
    assert_union(&["mpirun", "--oversubscribe", "-n", "4"], 4, "open_mpi");
}

#[test]
#[ignore = "needs mpirun"]
fn workers_under_a_real_mpirun_that_binds_are_noticed() {
    let started = |binding| {
        let arguments =
            ["--bind-to", binding, "-n", "1", env!("CARGO_BIN_EXE_loader"), "run", PHOTOS, "--size=16"];
        let mut command = command_of("mpirun", &[&arguments[..], &["--num-workers=2"]].concat());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let finished = Running::start(command).finish();
        finished.assert_status(0);
        finished.stderr
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        println!("SKIPPED: with one CPU, no launcher can bind a process to fewer");
        return;
    }
    let bound = started("core");
    assert!(bound.contains("Open MPI has bound this process and its 2 workers to 1 of"), "{bound}");
    assert!(bound.contains("start it with `mpirun --bind-to none`"), "{bound}");
    assert!(!started("none").contains("warning"));
}

#[test]
#[ignore = "needs torchrun"]
fn ranks_under_a_real_torchrun_load_the_epoch_together() {
    let torchrun = std::env::var("TORCHRUN").expect("the variable TORCHRUN is the path of torchrun");
    assert_union(&[&torchrun, "--standalone", "--nproc-per-node=3", "--no-python"], 3, "torchrun");
}
