//! `loader config`.

use std::{env, fs};

use serde_json::Value;

use crate::support::{Running, command, run};

#[test]
fn every_setting_is_printed_with_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    let (base, config) = (folder.path().join("base.toml"), folder.path().join("run.toml"));
    fs::write(&base, "[dataset]\nkind = \"image-folder\"\npath = \"photos\"\nsize = 64\n").unwrap();
    let text =
        "extends = \"base.toml\"\n[loader]\nnum_workers = \"auto\"\nbatch_size = 5\ntimeout = \"5 min\"\n";
    fs::write(&config, text).unwrap();
    let print = |arguments: &[&str]| {
        let mut command = command(&["config", "--print", config.to_str().unwrap()]);
        command.args(arguments).env("LOADER_SEED", "4");
        let finished = Running::start(command).finish();
        finished.assert_status(0);
        finished.stdout.replace(&format!("{}/", folder.path().display()), "")
    };
    let printed = print(&["--batch-size", "3", "--pixels", "u8"]);
    let lines: Vec<(&str, &str)> = printed
        .lines()
        .filter_map(|line| line.split_once("  # "))
        .map(|(setting, origin)| (setting.trim_end(), origin))
        .collect();
    for line in [
        ("kind = \"image-folder\"", "base.toml, line 2"),
        ("path = \"photos\"", "base.toml, line 3"),
        ("size = 64", "base.toml, line 4"),
        ("pixels = \"u8\"", "command line"),
        ("transform = \"train\"", "default"),
        ("batch_size = 3", "command line"),
        ("seed = 4", "environment variable LOADER_SEED"),
        ("num_workers = \"auto\"", "run.toml, line 3"),
        ("timeout = 300.0", "run.toml, line 5"),
        ("prefetch_factor = 2", "default"),
        ("# rank", "not set"),
        (
            "# memory_limit",
            "default: half of the memory that this process may use, divided by the number of the launcher's processes on the machine",
        ),
    ] {
        assert!(lines.contains(&line), "{line:?}\n{printed}");
    }

    // What is printed is a config with the same settings.
    let copy = folder.path().join("copy.toml");
    fs::write(&copy, &printed).unwrap();
    let printed_again = run(&["config", "--print", copy.to_str().unwrap()]);
    let settings = |text: &str| {
        let lines =
            text.lines().map(|line| line.split("  # ").next().unwrap_or_default().trim_end().to_owned());
        lines.collect::<Vec<_>>()
    };
    let stdout = printed_again.assert_status(0).stdout.replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(settings(&stdout), settings(&printed));

    let without = print(&["--num-workers", "0"]);
    assert!(
        without
            .lines()
            .any(|line| line.starts_with("# timeout ") && line.ends_with("# no effect without workers")),
        "{without}"
    );
}

/// To update the file after a change of the options, run this test with `UPDATE_DOCS=1` and the feature
/// `formats`.
#[test]
fn the_committed_schema_is_the_printed_one() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/loader.schema.json");
    let printed = run(&["config", "--schema"]).assert_status(0).stdout.clone();
    if env::var_os("UPDATE_DOCS").is_some() && cfg!(feature = "formats") {
        return fs::write(FILE, printed).unwrap();
    }
    let mut committed: Value = serde_json::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    if !cfg!(feature = "formats") {
        // Without the feature, the command has the first kind only, and reads no files on servers.
        let kinds = committed["properties"]["dataset"]["anyOf"].as_array_mut().unwrap();
        kinds.truncate(1);
        // With other crates of the workspace, it may have been built with servers.
        if printed["properties"]["dataset"]["anyOf"][0]["properties"].get("store").is_none() {
            kinds[0]["properties"].as_object_mut().unwrap().remove("store");
        }
        let has = |name: &String| printed["definitions"].get(name).is_some();
        committed["definitions"].as_object_mut().unwrap().retain(|name, _| has(name));
    }
    assert_eq!(printed, committed, "run this test with UPDATE_DOCS=1 and `--features formats`");
}
