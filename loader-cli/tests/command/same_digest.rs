//! `examples/same-digest.sh`, which README shows.

use std::process::Command;

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
