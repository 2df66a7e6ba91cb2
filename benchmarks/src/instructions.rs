//! Counts with valgrind how many instructions a batch of 64 integers takes in user space. The number does not
//! depend on what else the machine does, so it shows when the loader becomes slower.
//!
//! `loader-instructions` prints the counts. With `--write` it records them, and with `--check` it fails if a
//! count is far above the recorded one.
//!
//! A count is the difference between a long and a short epoch, so that start and end cancel out. Main and its
//! worker are counted in separate runs; only the counted process runs under valgrind. It is then so slow that
//! main never waits for a batch, and the worker never waits for a task.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, ErrorKind},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};

/// Number of batches of a short epoch.
const SHORT: u64 = 1_000;
/// Number of batches of a long epoch.
const LONG: u64 = 3_000;
/// Maximum ratio of a count to the recorded one. It is generous, because compilers and C libraries differ.
const MAX_GROWTH: f64 = 1.3;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/instructions.json");
/// Environment variable that the loader sets in its workers.
const IS_WORKER: &str = "LOADER_WORKER_LIFELINE";
/// Environment variable that names the worker program.
const WORKER_PROGRAM: &str = "LOADER_WORKER";
/// Environment variable that names the file to which valgrind writes the counts of a worker.
const OUT: &str = "LOADER_INSTRUCTIONS_OUT";

/// Instructions per batch, by process.
type Counts = BTreeMap<String, f64>;

fn main() -> anyhow::Result<ExitCode> {
    if env::var_os(IS_WORKER).is_some() {
        // The loader has started this program as its worker program; it becomes a worker under valgrind.
        let out = env::var_os(OUT).context("this worker was not started by loader-instructions")?;
        return Err(under_valgrind(Path::new(&out))?.args(env::args_os().skip(1)).exec().into());
    }
    let mode = env::args().nth(1);
    if Command::new("valgrind")
        .arg("--version")
        .output()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        bail!("valgrind is not installed; install it, on Debian with `apt-get install valgrind`");
    }
    let counts = count_all()?;
    println!("{}", serde_json::to_string(&counts)?);
    match mode.as_deref() {
        None => Ok(ExitCode::SUCCESS),
        Some("--write") => {
            fs::write(RECORDED, serde_json::to_string_pretty(&counts)? + "\n")?;
            Ok(ExitCode::SUCCESS)
        }
        Some("--check") => check(&counts),
        Some(other) => bail!("unknown option {other}; the options are --write and --check"),
    }
}

fn check(counts: &Counts) -> anyhow::Result<ExitCode> {
    let recorded: Counts = serde_json::from_str(&fs::read_to_string(RECORDED).context(RECORDED)?)?;
    let mut worse = false;
    for (process, before) in &recorded {
        let now =
            *counts.get(process).with_context(|| format!("no instructions were counted for {process}"))?;
        if now > before * MAX_GROWTH {
            eprintln!(
                "{process}: {now:.0} instructions per batch, {before:.0} are recorded; find out why, \
                 or record the new counts with --write"
            );
            worse = true;
        }
    }
    Ok(if worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn count_all() -> anyhow::Result<Counts> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let mut counts = Counts::new();
    for (process, workers) in [("in process", "0"), ("main", "1"), ("worker", "1")] {
        let mut totals = [0; 2];
        for (total, batches) in totals.iter_mut().zip([SHORT, LONG]) {
            let mut command =
                if process == "worker" { Command::new(bench()?) } else { under_valgrind(&out)? };
            command.args([
                "overhead",
                "--workers",
                workers,
                "--epochs",
                "1",
                "--batches",
                &batches.to_string(),
            ]);
            // The worker program must be named, because under valgrind /proc/self/exe is valgrind.
            command
                .env(WORKER_PROGRAM, if process == "worker" { env::current_exe()? } else { bench()? })
                .env(OUT, &out);
            let output = command.stdout(Stdio::null()).output()?;
            ensure!(output.status.success(), "{process}: {}", String::from_utf8_lossy(&output.stderr));
            *total = total_of(&out)?;
        }
        let [short, long] = totals;
        counts.insert(process.to_owned(), (long as f64 - short as f64) / (LONG - SHORT) as f64);
    }
    Ok(counts)
}

/// Returns the command for `loader-bench` under valgrind, which writes its counts to `out`.
fn under_valgrind(out: &Path) -> io::Result<Command> {
    let mut command = Command::new("valgrind");
    let file = format!("--callgrind-out-file={}", out.display());
    // Valgrind must not log to standard error, which the loader reads as the output of the worker.
    command.args(["--quiet", "--tool=callgrind", "--log-file=/dev/null", &file]).arg(bench()?);
    Ok(command)
}

/// Returns the path of `loader-bench`, which is built into the same folder as this program.
fn bench() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("loader-bench"))
}

fn total_of(out: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(out).with_context(|| format!("valgrind wrote no {}", out.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.context("the counts of valgrind have no total")?.trim().parse()?)
}
