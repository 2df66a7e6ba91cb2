//! What a worker has of main's settings: the table in `docs/workers.md`.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use loader_tests::{Watchdog, alone::Family};

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-world");

/// When main changes its settings.
const MOMENTS: [&str; 4] = ["never", "before init", "after init", "after iter"];

/// Whether a worker has a setting, if main changes it before `init()`, after it, and after `iter()`, before another
/// worker takes the place of the first.
const ROWS: [(&str, [bool; 3]); 21] = [
    // The code before `init()` runs in a worker too.
    ("static", [true, false, false]),
    ("thread-local variable", [true, false, false]),
    ("subscriber", [true, false, false]),
    ("thread", [true, false, false]),
    ("panic hook", [true, false, false]),
    ("locale", [true, false, false]),
    ("option of the allocator", [true, false, false]),
    ("close-on-exec descriptor", [true, false, false]),
    ("handler of SIGTERM", [true, false, false]),
    ("handler of SIGINT", [true, false, false]),
    // A process has them from its parent.
    ("environment variable", [true, true, true]),
    ("working directory", [true, true, true]),
    ("umask", [true, true, true]),
    ("limit", [true, true, true]),
    ("priority", [true, true, true]),
    ("CPUs", [true, true, true]),
    ("ignored signal", [true, true, true]),
    // `init()` removes them from a worker.
    ("handler of SIGCHLD", [false, false, false]),
    ("handler of SIGPIPE", [false, false, false]),
    ("blocked signal", [false, false, false]),
    ("inheritable descriptor", [false, false, false]),
];

/// What a process has.
#[derive(serde::Deserialize)]
struct ProcessSettings(BTreeMap<String, bool>, BTreeMap<String, String>);

/// What the program has printed and written.
struct Outcome {
    main: ProcessSettings,
    worker: ProcessSettings,
    errors: String,
    /// The number of processes that have written to each file.
    notes: BTreeMap<&'static str, usize>,
}

fn run(moment: &str) -> Outcome {
    let family = Family::empty();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    family.adopt(&mut command);
    command
        .arg("argument")
        .env("MOMENT", moment)
        .env("FOLDER", folder.path().canonicalize().unwrap())
        .env("RANK", "0");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    program.stdin.take().unwrap().write_all(b"text").unwrap();
    let ended = program.wait_with_output().unwrap();
    family.assert_gone();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{}: {errors}", ended.status);
    let text = String::from_utf8(ended.stdout).unwrap();
    let line = text.strip_prefix("printed").unwrap_or(&text);
    let (main, worker) = serde_json::from_str(line).unwrap();
    let notes = ["made", "dropped", "exited"].map(|name| (name, lines(&folder.path().join(name))));
    Outcome { main, worker, errors, notes: BTreeMap::from(notes) }
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn a_worker_sees_what_the_document_says() {
    let _watchdog = Watchdog::start();
    let [never, before, after, replaced] = MOMENTS.map(run);
    let has_cpus = std::thread::available_parallelism().unwrap().get() > 1;
    for (name, expected) in ROWS.into_iter().filter(|(name, _)| has_cpus || *name != "CPUs") {
        // The loader has a handler of SIGCHLD in main, which calls the program's.
        if name != "handler of SIGCHLD" {
            let found = [&never, &before, &after, &replaced].map(|found| found.main.0[name]);
            assert_eq!(found, [false, true, true, true], "main: {name}");
        }
        let found = [&never, &before, &after, &replaced].map(|found| found.worker.0[name]);
        assert_eq!(found[1..], expected, "worker: {name}");
        assert!(!found[0], "worker, without the setting: {name}");
    }
    assert_eq!(never.main.0.len(), ROWS.len());
    let (main, worker) = (&never.main.1, &never.worker.1);
    for name in ["program", "group", "session", "user", "control group", "namespaces", "thread"] {
        assert_eq!(worker[name], main[name], "{name}");
    }
    for (name, of_main, of_worker) in [
        ("arguments", r#"["argument"]"#, "[]"),
        ("rank", "0", ""),
        ("name", "test-world", "loader-wkr-0"),
        ("input", "text", ""),
        ("maps a block of 1 MiB", "true", "false"),
    ] {
        assert_eq!((main[name].as_str(), worker[name].as_str()), (of_main, of_worker), "{name}");
    }
    assert_ne!(worker["hash"], main["hash"]);
    let adjustments = [main, worker].map(|found| found["adjustment"].parse::<i32>().unwrap());
    assert_eq!(adjustments[1], (adjustments[0] + 500).min(1000));
    assert!(never.errors.contains("[worker 0] printed"), "{}", never.errors);
    // Only main drops what the code before `init()` has made.
    assert_eq!(never.notes, BTreeMap::from([("made", 2), ("dropped", 1), ("exited", 0)]));
    assert_eq!((before.notes["exited"], after.notes["exited"]), (2, 1));
}
