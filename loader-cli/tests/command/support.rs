//! Starts the command, kills it if it takes too long, and reads its output.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use serde_json::Value;

/// Maximum time that a command may take.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The folder of the 9 sample photographs.
pub(crate) const PHOTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../loader-data/photos");

/// Variables from which the command would take its rank.
const RANK_VARIABLES: [&str; 12] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_STEP_ID",
    "JAX_PROCESS_ID",
    "JAX_NUM_PROCESSES",
    "PET_NODE_RANK",
    "JOB_COMPLETION_INDEX",
];

/// Returns the command, without the `LOADER_` variables and the launcher's variables of the environment in
/// which the tests run.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loader"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("LOADER_") || RANK_VARIABLES.contains(&&*text) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the command to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    Running::start(command(arguments)).finish()
}

/// The status and the output of a command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None` if a signal killed the command.
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Parses standard output as events.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.stdout.lines().map(event).collect()
    }

    /// Returns the events with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == name).collect()
    }

    #[track_caller]
    pub(crate) fn assert_status(&self, status: i32) -> &Self {
        assert_eq!(self.status, Some(status), "{self:#?}");
        self
    }
}

/// A running command. It is killed if the test ends before it, or if it takes longer than [`MAX_TIME`].
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<JoinHandle<String>>,
    watchdog: Option<Sender<()>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let stderr = child.stderr.take().map(|stderr| thread::spawn(|| read_all(stderr)));
        let watchdog = Some(watchdog(child.id()));
        Self { child, stdout, stderr, watchdog }
    }

    /// Waits for the next event and returns it.
    pub(crate) fn next_event(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        event(&line)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(pid(self.child.id()), signal).unwrap();
    }

    /// Signals all processes of the group that the command leads.
    pub(crate) fn signal_group(&self, signal: Signal) {
        killpg(pid(self.child.id()), signal).unwrap();
    }

    /// Closes the pipe from standard output.
    pub(crate) fn close_stdout(&mut self) {
        drop(self.stdout.take());
    }

    /// Waits until the command ends.
    pub(crate) fn finish(mut self) -> Finished {
        let mut stdout = String::new();
        if let Some(mut rest) = self.stdout.take() {
            rest.read_to_string(&mut stdout).unwrap();
        }
        let status = self.child.wait().unwrap().code();
        drop(self.watchdog.take());
        let stderr = self.stderr.take().map(|stderr| stderr.join().unwrap()).unwrap_or_default();
        Finished { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the process ids of the workers in a `start` event.
pub(crate) fn worker_pids(start: &Value) -> Vec<u32> {
    let workers = start["workers"].as_array().unwrap();
    workers.iter().map(|worker| u32::try_from(worker["pid"].as_u64().unwrap()).unwrap()).collect()
}

/// Waits until the processes have ended; panics after 10 seconds.
#[track_caller]
pub(crate) fn assert_gone(pids: &[u32]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|&pid| runs(pid)) {
        assert!(Instant::now() < deadline, "some of {pids:?} are still running");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap())
}

/// Returns a copy of the sample photographs, for tests that change them.
pub(crate) fn copy_of_photos() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    copy(Path::new(PHOTOS), &photos);
    (folder, photos)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn event(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in `{line}`"))
}

/// True if the process is running. A zombie is not.
fn runs(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may contain anything; the state comes after it.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

fn read_all(mut stderr: ChildStderr) -> String {
    let mut text = Vec::new();
    stderr.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// Kills the process after [`MAX_TIME`], unless the returned sender is dropped before.
fn watchdog(number: u32) -> Sender<()> {
    let (alive, ended) = mpsc::channel();
    thread::spawn(move || {
        if ended.recv_timeout(MAX_TIME) == Err(RecvTimeoutError::Timeout) {
            kill(pid(number), Signal::SIGKILL).unwrap();
        }
    });
    alive
}
