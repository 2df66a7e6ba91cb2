//! Instructions a batch of 64 integers takes, in the loader's own code and what it calls, in user space: the same number whatever
//! else the machine does, so that a step back shows. Counted by valgrind.
//!
//! `loader-instructions` prints them; with `--write` they become the recorded ones, with `--check` it fails where one is far above.
//!
//! The count is the difference of a long and a short epoch, so that start and end cancel out. Main and its worker are counted in turn,
//! the other one running free: main is then so slow that it never waits, and a counted worker always has the next task already.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, ErrorKind},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, bail, ensure};

const SHORT: u64 = 1_000;
const LONG: u64 = 3_000;
/// How far above the recorded count one may be: compilers and C libraries differ.
const MOST_GROWTH: f64 = 1.3;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/instructions.json");
/// Set by the loader in its workers.
const IS_WORKER: &str = "LOADER_WORKER_LIFELINE";
const PROGRAM: &str = "LOADER_WORKER";
/// The file that a counted worker writes.
const OUT: &str = "LOADER_INSTRUCTIONS_OUT";

/// Instructions a batch, by process.
type Counts = BTreeMap<String, f64>;

fn main() -> anyhow::Result<ExitCode> {
    if env::var_os(IS_WORKER).is_some() {
        // Started in a worker's place: become the worker, counted.
        let out = env::var_os(OUT).context("not started by loader-instructions")?;
        return Err(counted(Path::new(&out))?.args(env::args_os().skip(1)).exec().into());
    }
    let mode = env::args().nth(1);
    if Command::new("valgrind")
        .arg("--version")
        .output()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        bail!("valgrind is not there: install it, on Debian with `apt-get install valgrind`");
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
        Some(other) => bail!("{other}? There are --write and --check"),
    }
}

fn check(counts: &Counts) -> anyhow::Result<ExitCode> {
    let recorded: Counts = serde_json::from_str(&fs::read_to_string(RECORDED).context(RECORDED)?)?;
    let mut worse = false;
    for (process, before) in &recorded {
        let now = *counts.get(process).with_context(|| format!("nothing was counted for {process}"))?;
        if now > before * MOST_GROWTH {
            eprintln!(
                "{process}: {now:.0} instructions a batch, {before:.0} are recorded; find out why, or record the new ones with --write"
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
            let mut command = if process == "worker" { Command::new(bench()?) } else { counted(&out)? };
            command.args([
                "overhead",
                "--workers",
                workers,
                "--epochs",
                "1",
                "--batches",
                &batches.to_string(),
            ]);
            // Under valgrind a program cannot start itself again by /proc/self/exe: it is named.
            command
                .env(PROGRAM, if process == "worker" { env::current_exe()? } else { bench()? })
                .env(OUT, &out);
            let done = command.stdout(Stdio::null()).output()?;
            ensure!(done.status.success(), "{process}: {}", String::from_utf8_lossy(&done.stderr));
            *total = total_of(&out)?;
        }
        let [short, long] = totals;
        counts.insert(process.to_owned(), (long as f64 - short as f64) / (LONG - SHORT) as f64);
    }
    Ok(counts)
}

/// `loader-bench` under valgrind, which writes its counts to `out`.
fn counted(out: &Path) -> io::Result<Command> {
    let mut command = Command::new("valgrind");
    let file = format!("--callgrind-out-file={}", out.display());
    // Not to standard error: there it would be the worker's last words.
    command.args(["--quiet", "--tool=callgrind", "--log-file=/dev/null", &file]).arg(bench()?);
    Ok(command)
}

/// `loader-bench`, which is built beside this program.
fn bench() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("loader-bench"))
}

fn total_of(out: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(out).with_context(|| format!("valgrind wrote no {}", out.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.context("valgrind's counts have no total")?.trim().parse()?)
}
