//! `loader tune`.

use std::{
    fs::{self, File},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::Uid};
use serde_json::Value;

use crate::support::{PHOTOS, Running, command, run};

/// Writes 120 small images, and a config with comments. Returns the folder, the path of the config and its text.
fn config(more: &str) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("photos/class");
    fs::create_dir_all(&class).unwrap();
    for number in 0..120 {
        let mut image = png::Encoder::new(File::create(class.join(format!("{number}.png"))).unwrap(), 32, 32);
        image.set_color(png::ColorType::Rgb);
        image.write_header().unwrap().write_image_data(&[number; 32 * 32 * 3]).unwrap();
    }
    let path = folder.path().join("run.toml");
    let text = format!(
        "# photos\n[dataset]\nkind = \"image-folder\"   # folders\npath = \"photos\"\nsize = 16\n\n\
         [loader]  # speed\n# found by hand\nnum_workers   =  2 # guessed\nbatch_size = 3\n{more}"
    );
    fs::write(&path, &text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path, text)
}

#[test]
fn the_winner_is_written_and_nothing_else_changes() {
    let (folder, path, before) = config("# end\n");
    let base = folder.path().join("base.toml");
    fs::write(&base, "[loader]\nprefetch_factor = 7\nshuffle = true\n").unwrap();
    let before = format!("extends = \"base.toml\"\n{before}");
    fs::write(&path, &before).unwrap();
    let finished = run(&["tune", &path, "--time", "8 s", "--step", "1 ms", "--json"]);
    finished.assert_status(0);
    let tuned = &finished.named("tuned")[0];
    let intervals = finished.named("interval");
    let measured = |workers: u64| intervals.iter().any(|interval| interval["num_workers"] == workers);
    // 1 worker is the first, and 2 are those of the config.
    assert!(measured(1) && measured(2), "{intervals:#?}");
    assert_eq!(tuned["written"], *path);
    assert!(tuned["gain"].as_f64().unwrap() > 0.0, "{tuned}");

    // The rounds are interleaved: each has the settings in the same order.
    let rounds = tuned["rounds"].as_u64().unwrap();
    assert!(rounds >= 3, "{tuned}");
    let round = |number: u64| -> Vec<&Value> {
        let of_round = intervals.iter().filter(|interval| interval["round"] == number);
        of_round.map(|interval| &interval["num_workers"]).collect()
    };
    assert!(round(3).iter().all(|workers| round(1).contains(workers)), "{intervals:#?}");

    // Only two lines differ, and the config resolves to the winner.
    let workers = tuned["num_workers"].as_u64().unwrap();
    let after = fs::read_to_string(&path).unwrap();
    let written = format!("num_workers   =  {workers} # guessed");
    let factor = tuned["prefetch_factor"].as_u64();
    let factor_line = factor.map(|factor| format!("prefetch_factor = {factor}\n")).unwrap_or_default();
    let expected = before
        .replace("num_workers   =  2 # guessed", &written)
        .replace("# end", &format!("{factor_line}# end"));
    assert_eq!(after, expected);
    let printed = run(&["config", "--print", &path]);
    let line = |name: &str| {
        let found = printed.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("num_workers"), format!("num_workers = {workers} # {path}, line 10"));
    if let Some(factor) = factor {
        assert_eq!(line("prefetch_factor"), format!("prefetch_factor = {factor} # {path}, line 12"));
    }
    assert_eq!(fs::read_to_string(&base).unwrap(), "[loader]\nprefetch_factor = 7\nshuffle = true\n");
}

#[test]
fn a_dry_run_prints_a_table_and_writes_nothing() {
    let (_folder, path, before) = config("timeout = 60\n");
    let mut command = command(&["tune", &path, "--time=8s", "--dry-run", "--batch-size=2"]);
    command.env("LOADER_NUM_WORKERS", "1");
    let finished = Running::start(command).finish();
    finished.assert_status(0);
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
    let mut lines = finished.stdout.lines();
    assert!(lines.next().unwrap().trim_start().starts_with("workers  prefetch_factor"), "{finished:#?}");
    assert!(finished.stdout.contains(" chosen\n"), "{finished:#?}");
    assert!(finished.stdout.contains("not measured: 0 workers (timeout needs workers)"), "{finished:#?}");
    assert!(!finished.stdout.contains("wrote"), "{finished:#?}");
    let overridden = format!(
        "loader: warning: a run does not use the num_workers of {path} while the environment variable \
         LOADER_NUM_WORKERS sets it"
    );
    assert!(finished.stderr.contains(&overridden), "{finished:#?}");
}

#[test]
fn ctrl_c_prints_the_table_so_far_and_writes_nothing() {
    let (_folder, path, before) = config("");
    let interrupted = |arguments: &[&str], after: Duration| {
        let running = Running::start(command(&[&["tune", &path], arguments].concat()));
        thread::sleep(after);
        let signalled = Instant::now();
        running.signal(Signal::SIGINT);
        let finished = running.finish();
        finished.assert_status(130);
        assert!(signalled.elapsed() < Duration::from_secs(10), "{finished:#?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        finished.stdout
    };
    // The step is slower than any number of workers, so no setting wins before the time is over.
    let table = interrupted(&["--time=20 s", "--step=50 ms"], Duration::from_secs(5));
    assert!(table.starts_with("workers  prefetch_factor") && table.lines().count() >= 2, "{table}");
    assert!(!table.contains("chosen"), "{table}");
    // In a step that takes longer than the command waits. No interval has ended.
    assert_eq!(interrupted(&["--time=10 min", "--step=1 h"], Duration::from_secs(1)), "");
}

#[test]
fn errors_come_before_the_first_worker() {
    let (folder, path, before) = config("");
    let refused = |arguments: &[&str], variables: &[(&str, &str)], expected: &str| {
        let mut command = command(&[&["tune"], arguments].concat());
        command.envs(variables.iter().copied());
        let finished = Running::start(command).finish();
        finished.assert_status(2);
        assert_eq!(finished.stdout, "");
        assert!(finished.stderr.contains(expected), "{expected}: {finished:#?}");
    };
    refused(&[&path, "--time", "1 s"], &[], "--time: 1s is too short");
    refused(&[&path, "--time", "1 m"], &[], "invalid value '1 m' for '--time");
    refused(&[PHOTOS], &[], "is not a config (a .toml file)");
    refused(&[&path], &[("RANK", "0"), ("WORLD_SIZE", "2")], "rank and world_size are set");
    refused(&[&path, "--rank=1", "--world-size=2"], &[], "rank and world_size are set");
    refused(&[&path, "--batch-size=0"], &[], "batch_size");
    let other = folder.path().join("other.toml");
    fs::write(&other, "[loader]\n").unwrap();
    refused(&[other.to_str().unwrap()], &[], "`kind` is missing in [dataset]");
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn a_config_that_cannot_be_written_is_refused() {
    // In a folder of the system, because another user may have no access to that of this run.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path().join("run.toml").to_str().unwrap().to_owned();
    fs::write(&path, config("").2).unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(Path::new(&path), 0o444);
    set_mode(folder.path(), 0o755);
    let mut command = command(&["tune", &path, "--time", "5 s"]);
    if Uid::effective().is_root() {
        // Root may write any file, so the command runs as another user.
        command.uid(65534).gid(65534);
    }
    let finished = match command.spawn() {
        Err(error) => return println!("SKIPPED: another user cannot start the command: {error}"),
        Ok(mut child) => {
            drop(child.kill());
            drop(child.wait());
            Running::start(command).finish()
        }
    };
    finished.assert_status(1);
    assert!(finished.stderr.contains("run.toml` cannot be written: Permission denied"), "{finished:#?}");
    assert_eq!(finished.stdout, "");
}

#[test]
#[cfg(feature = "formats")]
fn a_dataset_that_is_read_in_order_needs_shards() {
    let folder = tempfile::tempdir().unwrap();
    let (path, lines) = (folder.path().join("run.toml"), folder.path().join("a.jsonl"));
    let text: String = (0..20_000).map(|number| format!("{{\"x\": {number}}}\n")).collect();
    fs::write(&lines, text).unwrap();
    fs::write(&path, "[dataset]\nkind = \"json-lines-stream\"\npath = \"a.jsonl\"\nblock_bytes = 1000\n")
        .unwrap();
    let path = path.to_str().unwrap();
    let refused = run(&["tune", path]);
    refused.assert_status(2);
    assert!(refused.stderr.contains("set `shards` in [loader]"), "{refused:#?}");

    let arguments = ["tune", path, "--time=8s", "--shards=2", "--batch-size=10", "--step=1ms", "--json"];
    let finished = run(&arguments);
    finished.assert_status(0);
    let most =
        finished.named("interval").iter().map(|interval| interval["num_workers"].as_u64().unwrap()).max();
    assert!(most <= Some(2), "{finished:#?}");
    let written = fs::read_to_string(path).unwrap();
    let workers = &finished.named("tuned")[0]["num_workers"];
    assert!(written.contains(&format!("\n[loader]\nnum_workers = {workers}\n")), "{written}");
}
