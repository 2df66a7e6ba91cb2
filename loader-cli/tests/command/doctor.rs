//! `loader doctor`: the checks of this machine.

use std::{
    fs,
    process::{Command, Stdio},
};

use loader_core::CpuSet;
use serde_json::Value;

use crate::support::{Finished, PHOTOS, Running, command, run};

/// Returns the checks with this name.
fn named<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().filter(|check| check["name"] == name).collect()
}

/// Returns status and text of the only check with this name.
#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> (&'a str, String) {
    let [check] = named(report, name)[..] else { panic!("one check of {name} in {report:#}") };
    let text = ["found", "meaning", "advice"].map(|key| check[key].as_str().unwrap_or_default());
    (check["status"].as_str().unwrap(), text.join("; "))
}

fn report(finished: &Finished) -> Value {
    let report = &finished.events()[0];
    let count = |status| {
        report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == status).count() as u64
    };
    assert_eq!(report["errors"], count("error"));
    assert_eq!(report["warnings"], count("warning"));
    finished.assert_status(i32::from(report["errors"] != 0));
    report.clone()
}

#[test]
fn a_machine_that_can_load_has_no_errors() {
    let report = report(&run(&["doctor", "--json", "--num-workers=2", PHOTOS]));
    assert_eq!(report["errors"], 0, "{report:#}");
    for name in ["settings", "shared memory", "pidfd", "socket folder", "processes", "launcher", "dataset"] {
        assert_eq!(check(&report, name).0, "ok", "{report:#}");
    }
    for name in ["kernel", "descriptors", "memory limits", "locked memory", "memory", "cpus", "numa", "gpu"] {
        assert!(!named(&report, name).is_empty(), "{name}");
    }
    let workers = check(&report, "workers").1;
    assert!(workers.starts_with("2 started and answered in "), "{workers}");
    assert!(check(&report, "dataset").1.starts_with("9 samples, opened in "));
    let storage = check(&report, "storage").1;
    let bytes = |folder: &str| -> u64 {
        let files = fs::read_dir(folder)
            .unwrap()
            .flatten()
            .filter_map(|class| fs::read_dir(class.path()).ok())
            .flatten();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let expected = format!("9 of 9 files ({:.1} KiB) read in ", bytes(PHOTOS) as f64 / 1024.0);
    assert!(storage.starts_with(&expected), "{storage} begins with {expected}");
    assert!(check(&report, "worker program").1.contains(env!("CARGO_BIN_EXE_loader")));
}

#[test]
fn the_text_has_a_line_for_each_check() {
    let finished = run(&["doctor", "--num-workers=0"]);
    finished.assert_status(0);
    let lines: Vec<_> = finished.stdout.lines().collect();
    let (last, checks) = lines.split_last().unwrap();
    assert!(last.starts_with(&format!("{} checks: 0 errors, ", checks.len())), "{last}");
    let statuses = ["ok      ", "note    ", "warning "];
    assert!(checks.iter().all(|line| statuses.iter().any(|status| line.starts_with(status))), "{checks:#?}");
    assert!(checks.contains(&"ok      workers: num_workers is 0; this process loads the batches itself"));
}

#[test]
fn a_limit_that_is_too_low_is_an_error_with_advice() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 24; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_loader"));
    limited.args(["doctor", "--json", "--num-workers=3"]);
    for (name, _) in command(&[]).get_envs() {
        limited.env_remove(name);
    }
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let report = report(&Running::start(limited).finish());
    let (status, text) = check(&report, "descriptors");
    assert_eq!(status, "error", "{text}");
    assert!(text.starts_with("the limit on open files is 24, and 3 workers need about "), "{text}");
    assert!(text.ends_with(
        "the workers cannot start; have the administrator raise the hard limit, or use fewer workers"
    ));
    let (status, text) = check(&report, "workers");
    assert_eq!(status, "error", "{text}");
    assert!(text.contains("raise the limit on open files (`ulimit -n`)"), "{text}");
}

#[test]
fn a_config_that_cannot_be_used_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    let with = |text: &str| {
        fs::write(&config, text).unwrap();
        report(&run(&["doctor", "--json", config.to_str().unwrap()]))
    };
    let unknown = with("[dataset]\nkind = \"image-folder\"\npath = \"photos\"\n[loader]\nbatchsize = 3\n");
    let (status, text) = check(&unknown, "settings");
    assert_eq!(status, "error");
    assert!(
        text.contains("line 5: unknown key `batchsize` in [loader]; did you mean `batch_size`?"),
        "{text}"
    );
    assert!(named(&unknown, "dataset").is_empty());

    let missing = with("[dataset]\nkind = \"image-folder\"\npath = \"photos\"\n");
    assert_eq!(check(&missing, "settings").0, "ok");
    let (status, text) = check(&missing, "dataset");
    assert!(status == "error" && text.contains("photos"), "{status} {text}");

    let far = format!(
        "[dataset]\nkind = \"image-folder\"\npath = \"{PHOTOS}\"\n[loader]\nnum_workers = 1\nworker_affinity = [\"1023\"]\n"
    );
    let (status, text) = (check(&with(&far), "workers").0.to_owned(), check(&with(&far), "workers").1);
    assert!(status == "error" && text.starts_with("worker_affinity: CPU 1023 does not exist"), "{text}");
}

#[test]
fn every_candidate_for_the_launcher_is_listed() {
    let with = |variables: &[(&str, &str)]| {
        let mut doctor = command(&["doctor", "--json", "--num-workers=1"]);
        doctor.envs(variables.iter().copied());
        report(&Running::start(doctor).finish())
    };
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "3")];
    let both = with(&[&torchrun[..], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]].concat());
    let found: Vec<_> =
        named(&both, "candidate").iter().map(|check| check["found"].as_str().unwrap()).collect();
    let first = "rank 1 of 3 (torchrun: RANK, WORLD_SIZE)";
    assert_eq!(
        found,
        [&format!("{first}; rank 1 of 3 on this machine"), "rank 0 of 2 (PMI: PMI_RANK, PMI_SIZE)"]
    );
    assert!(check(&both, "launcher").1.starts_with(first));
    let wrong = with(&[("RANK", "x"), ("WORLD_SIZE", "3")]);
    let (status, text) = check(&wrong, "launcher");
    assert!(
        status == "error" && text.starts_with("the environment variable RANK (torchrun) is `x`"),
        "{text}"
    );
    assert_eq!(check(&wrong, "workers").0, "ok");
}

/// `torchrun` starts several ranks on a machine, and binds none of them.
#[test]
fn ranks_that_are_not_bound_use_their_part_of_the_machine() {
    let allowed = CpuSet::allowed().unwrap().len();
    let with = |workers: &str, local: &[(&str, &str)]| {
        let mut doctor = command(&["doctor", "--json", workers]);
        doctor.envs([("RANK", "1"), ("WORLD_SIZE", "999")]).envs(local.iter().copied());
        report(&Running::start(doctor).finish())
    };
    let size = allowed.to_string();
    let divided = with("--num-workers=auto", &[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", &size)]);
    assert!(check(&divided, "workers").1.contains("they may use 1 CPU"), "{divided}");
    assert!(named(&divided, "options").is_empty(), "{divided}");
    let each = format!(" in each of {size} processes (memory_limit)");
    assert!(allowed == 1 || check(&divided, "memory").1.contains(&each), "{divided}");

    let warnings = |report: &Value| report.to_string();
    let many = with("--num-workers=2", &[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "999")]);
    let expected =
        "num_workers is 2, but the workers may use 1 CPUs, the part of one of 999 processes on this machine";
    assert!(warnings(&many).contains(expected), "{many}");
    let unknown = with("--num-workers=auto", &[("LOCAL_RANK", "0")]);
    let expected = "counts all of them for its workers; set LOCAL_WORLD_SIZE too";
    assert!(warnings(&unknown).contains(expected), "{unknown}");
}

#[test]
fn a_process_that_a_launcher_has_bound_is_warned_of() {
    let allowed = CpuSet::allowed().unwrap();
    if allowed.len() < 2 {
        println!("SKIPPED: with one CPU, no launcher can bind a process to fewer");
        return;
    }
    let one = CpuSet::from_iter(allowed.iter().next());
    let bound = |affinity: &str| {
        let mut doctor = command(&["doctor", "--json", "--num-workers=1", affinity]);
        let ranks = ["RANK", "LOCAL_RANK"].map(|name| (format!("OMPI_COMM_WORLD_{name}"), "0"));
        let sizes = ["SIZE", "LOCAL_SIZE"].map(|name| (format!("OMPI_COMM_WORLD_{name}"), "1"));
        doctor.envs(ranks.into_iter().chain(sizes));
        report(&one.run(|| Running::start(doctor)).unwrap().finish())
    };
    let warned = bound("--worker-affinity=inherit");
    let texts = warned.to_string();
    assert!(texts.contains("Open MPI has bound this process and its 1 workers to 1 of"), "{texts}");
    assert!(texts.contains("set worker_affinity to \\\"share\\\""), "{texts}");
    assert_eq!(check(&warned, "cpus").0, "note");
    let shared = bound("--worker-affinity=share");
    let (status, text) = check(&shared, "workers");
    assert!(status == "ok" && text.contains(&format!("they may use {} CPUs", allowed.len())), "{text}");
}
