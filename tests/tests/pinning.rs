//! Page-locked batches (`pin_memory`). With the feature `cuda`, real processes load a stub of the CUDA driver
//! as they would load the driver.

use std::process::{Command, Output};

use loader_tests::Watchdog;
use serde::Deserialize;

/// What `test-pinning` prints; see there.
#[derive(Debug, Deserialize)]
struct Seen {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pid: u32,
    batches: usize,
    pinned: usize,
    registered: usize,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    content: u64,
    warnings: Vec<String>,
}

fn host(way: &str, workers: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-pinning"));
    command.args([way, &workers.to_string()]);
    command
}

/// Returns what a host printed. It must have succeeded and have written nothing to standard error.
fn seen(Output { status, stdout, stderr }: Output) -> Seen {
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    serde_json::from_slice(&stdout).unwrap()
}

/// Checks that no batch was page-locked, and that one warning names the reason.
fn assert_ordinary(seen: &Seen, reason: &str) {
    assert_eq!((seen.batches, seen.pinned, seen.registered), (20, 0, 0), "{seen:?}");
    let [warning] = &seen.warnings[..] else { panic!("{seen:?}") };
    assert!(warning.contains(reason), "{warning}");
}

// PyTorch: 102
#[cfg(not(feature = "cuda"))]
#[test]
fn without_the_feature_there_is_a_warning_and_ordinary_memory() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        assert_ordinary(&seen(host("strings", workers).output().unwrap()), "without the feature `cuda`");
    }
}

#[cfg(feature = "cuda")]
mod with_the_stub {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use loader_tests::driver_log::DriverLog;
    use tempfile::TempDir;

    use super::*;

    /// A folder that contains the stub as `libcuda.so.1`, and its log.
    struct Driver(TempDir);

    impl Driver {
        fn install() -> Self {
            let folder = tempfile::tempdir().unwrap();
            // Cargo builds it into the folder of the test program, because it is a dependency.
            let stub = std::env::current_exe().unwrap().with_file_name("libloader_driver_stub.so");
            assert!(stub.exists(), "{} was not built", stub.display());
            symlink(stub, folder.path().join("libcuda.so.1")).unwrap();
            Self(folder)
        }

        fn log(&self) -> PathBuf {
            self.0.path().join("log")
        }

        fn run(&self, way: &str, workers: usize, settings: &[(&str, &str)]) -> (Seen, DriverLog) {
            let mut command = host(way, workers);
            command.env("LD_LIBRARY_PATH", self.0.path()).env("DRIVER_STUB_LOG", self.log());
            let seen = seen(command.envs(settings.iter().copied()).output().unwrap());
            let log = DriverLog::read(self.log(), seen.pid);
            let lines = fs::read_to_string(self.log()).unwrap_or_default();
            let of_main = lines.lines().filter(|line| line.starts_with(&format!("{} ", seen.pid)));
            assert_eq!(of_main.count(), lines.lines().count(), "only main calls the driver: {lines}");
            assert!(log.wrong.is_empty(), "{log:?}");
            (seen, log)
        }
    }

    fn run(way: &str, workers: usize, settings: &[(&str, &str)]) -> (Seen, DriverLog) {
        Driver::install().run(way, workers, settings)
    }

    fn assert_pinned(seen: &Seen, batches: usize) {
        assert_eq!((seen.batches, seen.pinned, seen.registered), (batches, batches, batches), "{seen:?}");
        assert!(seen.warnings.is_empty(), "{seen:?}");
    }

    /// Checks that all registrations were ended and that slots were registered once, not for each batch.
    fn assert_balanced(log: &DriverLog, max: usize) {
        assert!((1..=max).contains(&log.registered), "{log:?}");
        assert_eq!((log.registered, log.ranges.len()), (log.unregistered, 0), "{log:?}");
        assert_eq!(log.retained, log.released);
        assert_eq!(log.retained.len(), 1);
    }

    /// Also if another thread drops the last tensor, if the program ends in the middle of an epoch, and if it
    /// forks a child that loads: the child must not call the driver.
    // PyTorch: 38, 74, 99, 101, 109, 110, A08, 2.4.3, U24
    #[test]
    fn batches_are_in_registered_memory() {
        let _watchdog = Watchdog::start();
        // The maximum number of registrations with two workers and without workers.
        let ways = [
            ("strings", 20, [8, 8]),
            ("nested", 20, [8, 8]),
            ("custom", 20, [8, 8]),
            ("large", 20, [16, 4]),
            ("stream", 20, [8, 4]),
            ("threads", 10, [24, 24]),
            ("early", 1, [8, 8]),
            ("fork", 1, [8, 8]),
        ];
        for (way, batches, max) in ways {
            for (workers, max) in [2, 0].into_iter().zip(max) {
                let (seen, log) = run(way, workers, &[]);
                assert_pinned(&seen, batches);
                assert_balanced(&log, max);
                assert_eq!(log.retained, [0]);
            }
        }
    }

    /// A device may read page-locked memory after the deleter of a DLPack tensor has freed it. So the safe export
    /// copies, and the other one holds the slot: the program checks both.
    #[test]
    fn a_dlpack_tensor_of_a_page_locked_batch_is_a_copy_unless_the_caller_keeps_the_slot() {
        let _watchdog = Watchdog::start();
        for workers in [2, 0] {
            let (seen, _) = run("dlpack", workers, &[]);
            assert_pinned(&seen, 2);
        }
    }

    #[test]
    fn the_loader_uses_the_device_of_the_program() {
        let _watchdog = Watchdog::start();
        for setting in ["DRIVER_STUB_CURRENT", "DRIVER_STUB_IN_USE"] {
            let (seen, log) = run("strings", 2, &[(setting, "1")]);
            assert_pinned(&seen, 20);
            assert_eq!((log.retained, log.released), (vec![1], vec![1]));
        }
    }

    #[test]
    fn without_registration_batches_are_in_ordinary_memory() {
        let _watchdog = Watchdog::start();
        for workers in [0, 2] {
            let (pinned, _) = run("large", workers, &[]);
            let (seen, log) = run("large", workers, &[("DRIVER_STUB_MODE", "refuse")]);
            assert_ordinary(&seen, "cuMemHostRegister failed: CUDA_ERROR_OUT_OF_MEMORY; raise the limit");
            assert_eq!((log.registered, seen.content), (0, pinned.content));

            let (seen, log) = run("large", workers, &[("DRIVER_STUB_MODE", "refuse-later")]);
            assert_eq!((seen.batches, seen.pinned), (20, seen.registered), "{seen:?}");
            assert_eq!(seen.warnings.len(), 1, "{seen:?}");
            assert_eq!((log.registered, log.unregistered, seen.content), (2, 2, pinned.content));
        }
    }

    // PyTorch: 102
    #[test]
    fn without_a_driver_or_a_device_there_is_a_warning() {
        let _watchdog = Watchdog::start();
        for workers in [0, 2] {
            let (seen, log) = run("strings", workers, &[("DRIVER_STUB_MODE", "no-device")]);
            assert_ordinary(&seen, "the CUDA driver sees no device");
            assert!(log.retained.is_empty());
        }
        // A library that is not the driver.
        let driver = Driver::install();
        fs::remove_file(driver.0.path().join("libcuda.so.1")).unwrap();
        fs::write(driver.0.path().join("libcuda.so.1"), "not a library").unwrap();
        for workers in [0, 2] {
            let (seen, _) = driver.run("strings", workers, &[]);
            assert_ordinary(&seen, "there is no CUDA driver");
        }
    }

    #[test]
    fn a_driver_that_shuts_down_or_keeps_memory_does_no_harm() {
        let _watchdog = Watchdog::start();
        for mode in ["shut-down", "keep"] {
            for (way, workers) in [("large", 2), ("threads", 0)] {
                let (seen, log) = run(way, workers, &[("DRIVER_STUB_MODE", mode)]);
                assert_eq!(seen.batches, if way == "large" { 20 } else { 10 });
                assert!(log.unregistered == 0 && log.released.is_empty(), "{log:?}");
            }
        }
    }
}
