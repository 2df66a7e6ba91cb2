//! Runs one try of a fault in a separate process, and watches it.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    host::{ARMED, BATCHES, COPY, FAULT_BATCH, Report},
    list::{Action, Fault},
};

/// Time after which a try without an outcome counts as hung.
const DEADLINE: Duration = Duration::from_secs(20);
/// Time that workers and files may outlive the program. Those that exist longer are left over.
const LEFT_OVER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Every batch arrived; or the drop returned; or no worker was left after main.
    Survived,
    /// An error took the place of one batch, and all other batches arrived.
    LostOne,
    /// There was an error, and more than one batch did not arrive.
    Lost,
    /// The program had reported no outcome at the deadline.
    Hung,
    /// Batches were wrong, or missing without an error; or a copy of a worker loaded samples.
    Wrong,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Try {
    /// Name of the fault.
    pub(crate) fault: String,
    pub(crate) outcome: Outcome,
    /// Time from the fault to the outcome.
    pub(crate) milliseconds: f64,
    /// True if a worker or a file of the loader still existed 2 s after the end of the program.
    pub(crate) left_over: bool,
    /// The error that the user sees.
    pub(crate) text: Option<String>,
}

impl Try {
    fn of(fault: &Fault, outcome: Outcome, milliseconds: f64, text: Option<String>) -> Self {
        Self { fault: fault.name.to_owned(), outcome, milliseconds, left_over: false, text }
    }
}

pub(crate) fn run(fault: &Fault) -> anyhow::Result<Try> {
    let folder = tempfile::tempdir()?;
    let mut command = match fault.action {
        Action::SigchldIgnored => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(env::current_exe()?);
            shell
        }
        _ => Command::new(env::current_exe()?),
    };
    let mut host = command
        .args(["--host", fault.name])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let lines = lines(&mut host)?;
    let workers: Vec<u32> = serde_json::from_str(&lines.recv_timeout(DEADLINE)?)?;
    let mut done = match fault.action {
        Action::Main(..) => main_ends(fault, &lines, &workers)?,
        _ => epoch_ends(fault, &lines)?,
    };
    if done.outcome == Outcome::Hung {
        host.kill()?;
    }
    host.wait()?;
    let ended = Instant::now();
    while workers.iter().any(|&pid| is_running(pid)) && ended.elapsed() < LEFT_OVER {
        thread::sleep(Duration::from_millis(1));
    }
    if folder.path().join(COPY).exists() {
        done.outcome = Outcome::Wrong;
    }
    // The benchmark made the file ARMED, not the loader.
    let files = fs::read_dir(folder.path())?.filter_map(Result::ok).filter(|file| file.file_name() != ARMED);
    let left: Vec<u32> = workers.into_iter().filter(|&pid| is_running(pid)).collect();
    done.left_over = !left.is_empty() || files.count() > 0;
    // A worker that the fault has stopped cannot notice that main is gone.
    for pid in left {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    Ok(done)
}

fn epoch_ends(fault: &Fault, lines: &mpsc::Receiver<String>) -> anyhow::Result<Try> {
    let line = match lines.recv_timeout(DEADLINE) {
        Ok(line) => line,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let milliseconds = DEADLINE.as_secs_f64() * 1e3;
            return Ok(Try::of(fault, Outcome::Hung, milliseconds, None));
        }
        Err(error) => return Err(error).context("the program ended without a report"),
    };
    let Report { milliseconds, right, error, wrong, .. } = serde_json::from_str(&line)?;
    let is_drop = right < BATCHES && error.is_none() && milliseconds > 0.0 && !wrong && right == FAULT_BATCH;
    let outcome = match (&error, wrong) {
        (_, true) => Outcome::Wrong,
        (Some(_), _) if right + 1 == BATCHES => Outcome::LostOne,
        (Some(_), _) => Outcome::Lost,
        (None, _) if right == BATCHES || is_drop => Outcome::Survived,
        (None, _) => Outcome::Wrong,
    };
    Ok(Try::of(fault, outcome, milliseconds, error))
}

fn main_ends(fault: &Fault, lines: &mpsc::Receiver<String>, workers: &[u32]) -> anyhow::Result<Try> {
    if lines.recv_timeout(DEADLINE)? != "now" {
        bail!("the program printed another line instead of `now`");
    }
    let since = Instant::now();
    while workers.iter().any(|&pid| is_running(pid)) && since.elapsed() < DEADLINE {
        thread::sleep(Duration::from_micros(200));
    }
    let outcome = if since.elapsed() < DEADLINE { Outcome::Survived } else { Outcome::Hung };
    Ok(Try::of(fault, outcome, since.elapsed().as_secs_f64() * 1e3, None))
}

fn lines(host: &mut Child) -> anyhow::Result<mpsc::Receiver<String>> {
    let output = BufReader::new(host.stdout.take().context("standard output is a pipe")?);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    Ok(receiver)
}

/// True if the process is running. A zombie is not.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
