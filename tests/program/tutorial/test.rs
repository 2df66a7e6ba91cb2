//! Runs every command of docs/tutorial.md and compares what it prints with what the tutorial says.

use std::{env, fs, os::unix::fs::PermissionsExt, process::Command};

/// A command of the tutorial.
struct Run {
    /// Line of the tutorial at which its block begins.
    line: usize,
    /// Number of the program that `cargo run` runs.
    program: usize,
    /// Content of `run.toml`.
    options: &'static str,
    command: &'static str,
    /// Lines that it prints; `...` stands for any text.
    output: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/runs.rs"));

/// Takes the place of `cargo run -q -- arguments`, since cargo has built the program already.
const CARGO: &str = concat!(
    "#!/bin/sh\n[ \"$1 $2\" = 'run -q' ] || exit 2\nshift 2\n[ \"$1\" != -- ] || shift\nexec '",
    env!("CARGO_BIN_EXE_tutorial"),
    "' \"$@\"\n"
);

#[test]
fn each_command_prints_what_the_tutorial_says() {
    let project = tempfile::tempdir().unwrap();
    let cargo = project.path().join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", project.path().display(), env::var("PATH").unwrap());

    assert!(RUNS.len() >= 10, "{} commands", RUNS.len());
    let mut wrong = String::new();
    for Run { line, program, options, command, output } in RUNS {
        fs::write(project.path().join("run.toml"), options).unwrap();
        let mut run = Command::new("timeout"); // a command that hangs fails
        let changes_output = |name: &String| name.starts_with("LOADER_") || name == "RUST_BACKTRACE";
        env::vars().map(|(name, _)| name).filter(changes_output).for_each(|name| {
            run.env_remove(name);
        });
        let run = run
            .args(["--kill-after=1", "60", "sh", "-c", &format!("{command} 2>&1")])
            .current_dir(&project)
            .env("PATH", &path)
            .env("TUTORIAL_PROGRAM", program.to_string())
            .output()
            .unwrap();
        let printed = String::from_utf8(run.stdout).unwrap();
        // The machine decides whether this warning comes.
        let printed: Vec<&str> =
            printed.lines().filter(|line| !line.contains("warning: num_workers is")).collect();
        let expected: Vec<&str> = output.lines().collect();
        let same = printed.len() == expected.len()
            && expected.iter().zip(&printed).all(|(pattern, line)| matches(pattern, line));
        if !same {
            wrong += &format!("line {line}: $ {command}\n{}\n\n", printed.join("\n"));
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/tutorial.md shows other output than what these commands printed:\n\n{wrong}"
    );
}

/// True if `line` is `pattern`, in which each `...` stands for any text.
fn matches(pattern: &str, line: &str) -> bool {
    let Some((head, tail)) = pattern.split_once("...") else { return pattern == line };
    let Some(rest) = line.strip_prefix(head) else { return false };
    (0..=rest.len()).filter(|&start| rest.is_char_boundary(start)).any(|start| matches(tail, &rest[start..]))
}

#[test]
fn the_manifest_names_what_the_programs_were_built_with() {
    let read = |text: &str| text.parse::<toml::Table>().unwrap();
    let shown = read(MANIFEST);
    let own = read(include_str!("../Cargo.toml"));
    let workspace = &read(include_str!("../../../Cargo.toml"))["workspace"];
    let features = |dependency: &toml::Value| -> Vec<String> {
        let features = dependency.get("features").and_then(|features| features.as_array());
        features.into_iter().flatten().map(|feature| feature.as_str().unwrap().to_owned()).collect()
    };
    let version = |dependency: &toml::Value| -> String {
        let version = dependency.get("version").unwrap_or(dependency).as_str().unwrap();
        version.trim_start_matches('=').to_owned()
    };
    let shown = shown["dependencies"].as_table().unwrap();
    let own = own["dependencies"].as_table().unwrap();
    assert_eq!(shown.len(), own.len(), "{shown:?}");
    for (name, own) in own {
        let shared = &workspace["dependencies"][name];
        let package = shared.get("package").map_or(name.as_str(), |package| package.as_str().unwrap());
        let shown = &shown[package];
        assert_eq!(features(shown), [features(shared), features(own)].concat(), "features of {package}");
        assert!(version(shared).starts_with(&version(shown)), "version of {package}");
    }
}
