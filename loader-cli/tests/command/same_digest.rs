//! `examples/same-digest.sh`, which README shows, and `examples/slow-run.sh`.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::support::Running;

#[test]
fn the_example_prints_the_same_digest_four_times() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/same-digest.sh");
    // 7 copies of the 9 photographs, and a kill every half second. `timeout` ends a run that hangs.
    let output = Command::new("timeout")
        .args(["120", script, "7", "0.5"])
        .env("LOADER", env!("CARGO_BIN_EXE_loader"))
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let digests: Vec<_> =
        text.lines().filter_map(|line| line.split_once(": ")).map(|(_, digest)| digest.trim()).collect();
    assert_eq!(digests.len(), 4, "{text}");
    assert!(
        digests[0].ends_with("(63 samples)") && digests.iter().all(|digest| *digest == digests[0]),
        "{text}"
    );
    assert!(!text.contains("killed 0 times"), "no worker was killed: {text}");
}

#[test]
fn the_examples_leave_no_folder_after_a_signal() {
    for (script, copies) in [("same-digest.sh", "300"), ("slow-run.sh", "300")] {
        for (signal, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
            let folder = tempfile::tempdir().unwrap();
            let files = || fs::read_dir(folder.path()).unwrap().count();
            // A shell cannot handle a signal that its parent ignores, as that of a job in the background may.
            let mut command = Command::new("env");
            command.args([
                "--default-signal=INT",
                &format!("{}/../examples/{script}", env!("CARGO_MANIFEST_DIR")),
            ]);
            command.arg(copies).env("LOADER", env!("CARGO_BIN_EXE_loader")).env("TMPDIR", folder.path());
            // A terminal sends the signal of Ctrl-C to all processes of a group.
            command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
            let running = Running::start(command);
            while files() == 0 {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(Duration::from_millis(300));
            running.signal_group(signal);
            running.finish().assert_status(status);
            assert_eq!(files(), 0, "{script} after {signal}");
        }
    }
}
