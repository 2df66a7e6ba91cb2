//! Runs a test in a separate process, where it may change signals, limits and descriptors without disturbing
//! other tests, and where everything that is left can be counted.

use std::{
    any::type_name,
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, setuid},
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities,
};

use crate::{SKIPPED, Watchdog, processes, show, traces};

/// Variable of the process of the scenario: the file that it creates when its scenario begins.
const ALONE: &str = "LOADER_FAULTS_ALONE";
/// Variable of all descendants of one scenario.
const TAG: &str = "LOADER_FAULTS_TAG";

/// Maximum time of a scenario. It is less than that of its watchdog, so that all processes of the scenario
/// are killed.
const DEADLINE: Duration = Duration::from_secs(50);
/// Maximum time for the processes of a scenario to end after its main process. The loader promises 1 s.
const GONE: Duration = Duration::from_secs(5);

/// Runs the calling test again in a separate process, which runs `scenario`. The closure must be written in
/// the test's own function, because the test's name is taken from the closure's type.
///
/// # Panics
/// Panics if the scenario fails or takes 50 s, or if it leaves a process, a socket or a file.
pub fn alone<F: FnOnce()>(scenario: F) {
    alone_under(&[], scenario);
}

/// As [`alone`]; `starter` is the program, with its arguments, that starts the separate process.
///
/// # Panics
/// As [`alone`].
pub fn alone_under<F: FnOnce()>(starter: &[&str], scenario: F) {
    let _watchdog = Watchdog::start();
    if let Some(marker) = std::env::var_os(ALONE) {
        File::create(marker).unwrap();
        return scenario();
    }
    let this = std::env::current_exe().unwrap();
    let words = starter.iter().map(OsStr::new).chain([this.as_os_str()]);
    let words: Vec<&OsStr> = words.collect();
    let mut command = Command::new(words[0]);
    let test = test_of::<F>();
    command.args(&words[1..]).args([test, "--exact", "--include-ignored", "--nocapture"]);
    let family = Family::empty();
    let marker = family.folder.path().join("ran");
    command.env(ALONE, &marker);
    let status = family.watch(&mut command);
    assert!(status.success(), "the scenario failed: {status}");
    // The test harness exits with 0 too when no test has the name.
    assert!(marker.exists(), "the process ran no test: {test} is not a test's name");
}

/// Makes user `uid`, who has no other processes, the user of the scenario, because root ignores limits on the
/// number of processes. The scenario keeps access to every file, because this program, the worker program and
/// the temporary folder may lie in folders of root. Returns `false`, and changes nothing, if this process is
/// not root.
///
/// # Panics
/// Panics if the system refuses.
pub fn become_user(uid: u32) -> bool {
    let files = CapabilitySet::DAC_OVERRIDE;
    if !capabilities(None).unwrap().permitted.contains(files | CapabilitySet::SETUID) {
        return false;
    }
    set_keep_capabilities(true).unwrap();
    setuid(Uid::from_raw(uid)).unwrap();
    set_capabilities(None, CapabilitySets { effective: files, permitted: files, inheritable: files })
        .unwrap();
    // Workers inherit it.
    configure_capability_in_ambient_set(files, true).unwrap();
    true
}

/// Returns the name of the test whose body is a closure of type `F`. The compiler names such a type
/// `program::module::test::{{closure}}`, and the test harness names the test `module::test`.
fn test_of<F>() -> &'static str {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    path.split_once("::").expect("the closure is in a module").1
}

/// Returns the running descendants of this scenario's process, without that process itself.
///
/// # Panics
/// Panics if no scenario runs.
pub fn descendants() -> Vec<u32> {
    let tag = std::env::var(TAG).expect("a scenario runs");
    let mut pids = processes::with_variable(&format!("{TAG}={tag}"));
    pids.retain(|&pid| pid != std::process::id());
    pids
}

/// A process and its descendants, which have their own folder for temporary files.
#[derive(Debug)]
pub struct Family {
    folder: tempfile::TempDir,
    variable: String,
    /// Names in `/dev/shm` that others have made before.
    foreign: BTreeSet<String>,
}

impl Family {
    /// Makes a family without processes.
    ///
    /// # Panics
    /// Panics if there can be no temporary folder.
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let temporary = folder.path().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let variable = format!("{TAG}={}", folder.path().display());
        Self { folder, variable, foreign: shared_memory_names() }
    }

    /// Makes the process that `command` will start the first of the family.
    pub fn adopt(&self, command: &mut Command) {
        command.env(TAG, self.folder.path()).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        command.env("TMPDIR", self.folder.path().join("tmp"));
    }

    /// Returns the processes that run.
    pub fn running(&self) -> Vec<u32> {
        processes::with_variable(&self.variable)
    }

    /// Runs `command` to its end, and prints its output.
    ///
    /// # Panics
    /// Panics if it takes 50 s, or if it leaves a process, a socket or a file.
    pub fn watch(&self, command: &mut Command) -> ExitStatus {
        self.adopt(command);
        // A file, because a process that is left would keep a pipe open.
        let path = self.folder.path().join("output");
        let output = File::create(&path).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut first = command.spawn().unwrap();
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = first.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= deadline {
                self.kill();
                break first.wait().map(|_| None).unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        };
        let output = fs::read(path).unwrap();
        let output = String::from_utf8_lossy(&output);
        print!("{output}");
        // The line of a skipped test must bypass the test harness of this process too.
        output.lines().filter(|line| line.starts_with(SKIPPED)).for_each(show);
        let status = status.expect("it ends in time");
        self.assert_gone();
        status
    }

    /// Waits until all processes have ended; returns how long that took.
    ///
    /// # Panics
    /// Panics if one runs on, or if they left a file or a socket.
    pub fn assert_gone(&self) -> Duration {
        let started = Instant::now();
        while !self.running().is_empty() {
            if started.elapsed() >= GONE {
                let left = self.running();
                let lines: Vec<_> = left.iter().map(|&pid| processes::command_line(pid)).collect();
                self.kill();
                panic!("processes are left: {left:?} {lines:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        let took = started.elapsed();
        let files = traces::files(&self.folder.path().join("tmp"));
        assert!(files.is_empty(), "files are left: {files:?}");
        // Other tests may have such files for a short time.
        let deadline = Instant::now() + GONE;
        let mut named: Vec<_> = shared_memory_names().difference(&self.foreign).cloned().collect();
        while !named.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
            named.retain(|name| Path::new("/dev/shm").join(name).exists());
        }
        assert!(named.is_empty(), "files are left in /dev/shm: {named:?}");
        took
    }

    /// Kills all processes.
    pub fn kill(&self) {
        for pid in self.running() {
            // An error means that it has ended.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// Returns the names in `/dev/shm` that the loader may have made.
fn shared_memory_names() -> BTreeSet<String> {
    let mut names = traces::files(Path::new("/dev/shm"));
    names.retain(|name| name.contains("loader"));
    names
}

/// A test that fails leaves no process.
impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}
