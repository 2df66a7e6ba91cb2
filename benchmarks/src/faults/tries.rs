//! Runs one try of a fault in a separate process, and watches it.

use std::{
    env, fmt, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    artefacts::FILES,
    host::{ARMED, BATCHES, COPY, FAULT_BATCH, Report},
    list::{Action, Fault, Outside, Promise},
    surroundings::{PROGRAM, Surroundings},
    template,
};

/// Time after which a try without an outcome counts as hung.
const DEADLINE: Duration = Duration::from_secs(20);
/// The same for a fault from outside, where main may wait 10 s for a process that is stopped, more than once.
const OUTSIDE_DEADLINE: Duration = Duration::from_secs(60);
/// Time for which all processes are stopped: more than `timeout`.
const PAUSE: Duration = Duration::from_secs(4);
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
    /// Batches were wrong, or missing without an error; or a copy of a worker loaded samples. After a fault from
    /// outside, also an error that does not say what is wrong, or a main process that ended without an error.
    Wrong,
    /// After a fault from outside: there was an error, and no batch was wrong.
    Refused,
}

/// All outcomes, in the order of the table that the command prints.
pub(crate) const OUTCOMES: [Outcome; 6] =
    [Outcome::Survived, Outcome::LostOne, Outcome::Lost, Outcome::Hung, Outcome::Wrong, Outcome::Refused];

impl Outcome {
    /// True if it keeps the promise.
    pub(crate) fn keeps(self, promise: Promise) -> bool {
        match promise {
            Promise::Survives => self == Self::Survived,
            Promise::SurvivesOrError => matches!(self, Self::Survived | Self::Refused),
            Promise::Error => self == Self::Refused,
        }
    }
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

    /// True if no batch was wrong or missing without an error, and a fault from outside kept its promise.
    pub(crate) fn is_right(&self) -> bool {
        match Fault::find(&self.fault).map(|fault| fault.action) {
            Ok(Action::Outside(what)) => self.outcome.keeps(what.promise()) && !self.left_over,
            _ => self.outcome != Outcome::Wrong,
        }
    }
}

/// The context of an error that says why a fault cannot be tried on this machine or by this user.
#[derive(Debug)]
pub(crate) struct Impossible;

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it cannot be tried here")
    }
}

/// Runs try `number` of a fault. Returns an error with [`Impossible`] if it cannot be tried here.
pub(crate) fn run(fault: &Fault, number: usize) -> anyhow::Result<Try> {
    let folder = tempfile::tempdir()?;
    let (_surroundings, mut command) = match fault.action {
        Action::SigchldIgnored => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(env::current_exe()?);
            (Surroundings::default(), shell)
        }
        Action::Outside(what) => Surroundings::of(what, number, folder.path()).context(Impossible)?,
        _ => (Surroundings::default(), Command::new(env::current_exe()?)),
    };
    let mut host = command
        .args(["--host", fault.name, "--number", &number.to_string()])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let lines = lines(&mut host)?;
    let (mut done, mut workers) = match fault.action {
        Action::Outside(what) => {
            let mut workers = Vec::new();
            let done = outside_ends(fault, what, &lines, (host.id(), &mut workers), number)?;
            (done, workers)
        }
        action => {
            let workers: Vec<u32> = serde_json::from_str(&lines.recv_timeout(DEADLINE)?)?;
            let is_main = matches!(action, Action::Main(..));
            let done = if is_main { main_ends(fault, &lines, &workers)? } else { epoch_ends(fault, &lines)? };
            (done, workers)
        }
    };
    if done.outcome == Outcome::Hung {
        host.kill()?;
    }
    host.wait()?;
    match fault.action {
        // The numbers of its processes are those of another namespace.
        Action::Outside(Outside::PidNamespace) => workers.clear(),
        _ => workers.extend(template::pids(folder.path())?),
    }
    let ended = Instant::now();
    while workers.iter().any(|&pid| is_running(pid)) && ended.elapsed() < LEFT_OVER {
        thread::sleep(Duration::from_millis(1));
    }
    if folder.path().join(COPY).exists() {
        done.outcome = Outcome::Wrong;
    }
    let name = folder.path().display().to_string();
    done.text = done.text.map(|text| text.replace(&name, "FOLDER"));
    let left: Vec<u32> = workers.into_iter().filter(|&pid| is_running(pid)).collect();
    done.left_over = !left.is_empty() || has_files(folder.path())?;
    // A worker that the fault has stopped cannot notice that main is gone.
    for pid in left {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    Ok(done)
}

/// True if the loader has left files in the folder of a try. The benchmark itself has made some.
fn has_files(folder: &Path) -> anyhow::Result<bool> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<anyhow::Result<Vec<_>>>()?;
    let is_ours = |name: &str| [ARMED, FILES, PROGRAM].contains(&name) || name.starts_with(template::PID);
    Ok(!names.iter().all(|name| name.to_str().is_some_and(is_ours)))
}

/// Watches the program to which something happens from outside. Notes its workers.
fn outside_ends(
    fault: &Fault,
    what: Outside,
    lines: &mpsc::Receiver<String>,
    (main, workers): (u32, &mut Vec<u32>),
    number: usize,
) -> anyhow::Result<Try> {
    let since = Instant::now();
    let mut watch = || -> anyhow::Result<Report> {
        *workers = serde_json::from_str(&lines.recv_timeout(OUTSIDE_DEADLINE)?)?;
        if what == Outside::Pause {
            ensure!(lines.recv_timeout(OUTSIDE_DEADLINE)? == "\"now\"", "the program printed another line");
            thread::sleep(PAUSE);
            // Main first, or its workers first.
            let mut all: Vec<u32> = workers.iter().copied().chain([main]).collect();
            if number.is_multiple_of(2) {
                all.reverse();
            }
            all.iter().try_for_each(|&pid| kill(Pid::from_raw(pid.cast_signed()), Signal::SIGCONT))?;
        }
        Ok(serde_json::from_str(&lines.recv_timeout(OUTSIDE_DEADLINE)?)?)
    };
    let (outcome, text) = match watch() {
        Ok(Report { wrong: true, error, .. }) => (Outcome::Wrong, error),
        Ok(Report { error: Some(error), .. }) => (Outcome::Refused, Some(error)),
        Ok(Report { right, .. }) if right == BATCHES => (Outcome::Survived, None),
        Ok(_) => (Outcome::Wrong, Some("batches were missing without an error".to_owned())),
        Err(error) => match error.downcast::<mpsc::RecvTimeoutError>()? {
            mpsc::RecvTimeoutError::Timeout => (Outcome::Hung, None),
            mpsc::RecvTimeoutError::Disconnected => {
                (Outcome::Wrong, Some("main ended without an error".to_owned()))
            }
        },
    };
    Ok(Try::of(fault, outcome, since.elapsed().as_secs_f64() * 1e3, text))
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
