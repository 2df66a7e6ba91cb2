//! Page-locked batches. With the feature `cuda` against a stub of the CUDA driver, which real processes load as they load the real one.

use std::process::{Command, Output};

use loader_tests::Watchdog;
use serde::Deserialize;

/// What `test-pinning` prints.
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

/// What a host prints that ends well and complains of nothing.
fn seen(Output { status, stdout, stderr }: Output) -> Seen {
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    serde_json::from_slice(&stdout).unwrap()
}

fn assert_ordinary(seen: &Seen, reason: &str) {
    assert_eq!((seen.batches, seen.pinned, seen.registered), (20, 0, 0), "{seen:?}");
    let [warning] = &seen.warnings[..] else { panic!("{seen:?}") };
    assert!(warning.contains(reason) && warning.contains("or leave pin_memory out"), "{warning}");
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

    /// A folder with the stub as `libcuda.so.1`, and its log.
    struct Driver(TempDir);

    impl Driver {
        fn install() -> Self {
            let folder = tempfile::tempdir().unwrap();
            // Beside the test program: it is a dependency like others.
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
            let everybody = fs::read_to_string(self.log()).unwrap_or_default();
            let of_main = everybody.lines().filter(|line| line.starts_with(&format!("{} ", seen.pid)));
            assert_eq!(of_main.count(), everybody.lines().count(), "only main calls the driver: {everybody}");
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

    /// Nothing is left, and slots were registered once, not for each batch.
    fn assert_even(log: &DriverLog, most: usize) {
        assert!((1..=most).contains(&log.registered), "{log:?}");
        assert_eq!((log.registered, log.ranges.len()), (log.unregistered, 0), "{log:?}");
        assert_eq!(log.retained, log.released);
        assert_eq!(log.retained.len(), 1);
    }

    // PyTorch: 38, 74, 99, 101, 110, A08, 2.4.3, U24
    #[test]
    fn batches_of_workers_lie_in_registered_slots() {
        let _watchdog = Watchdog::start();
        for (way, most) in [("strings", 8), ("nested", 8), ("custom", 8), ("large", 16), ("stream", 8)] {
            let (seen, log) = run(way, 2, &[]);
            assert_pinned(&seen, 20);
            assert_even(&log, most);
            assert_eq!(log.retained, [0]);
        }
    }

    // PyTorch: 38, 109, A08, 2.4.3
    #[test]
    fn so_do_those_that_are_loaded_without_workers() {
        let _watchdog = Watchdog::start();
        for (way, most) in [("strings", 8), ("nested", 8), ("custom", 8), ("large", 4), ("stream", 4)] {
            let (seen, log) = run(way, 0, &[]);
            assert_pinned(&seen, 20);
            assert_even(&log, most);
        }
    }

    #[test]
    fn the_last_tensor_may_be_dropped_anywhere() {
        let _watchdog = Watchdog::start();
        for workers in [0, 2] {
            let (seen, log) = run("threads", workers, &[]);
            assert_pinned(&seen, 10);
            assert_even(&log, 24);
        }
    }

    #[test]
    fn the_program_may_end_in_mid_epoch() {
        let _watchdog = Watchdog::start();
        for workers in [0, 2] {
            let (seen, log) = run("early", workers, &[]);
            assert_pinned(&seen, 1);
            assert_even(&log, 8);
        }
    }

    #[test]
    fn a_forked_child_leaves_the_driver_alone() {
        let _watchdog = Watchdog::start();
        for workers in [0, 2] {
            let (seen, log) = run("fork", workers, &[]);
            assert_pinned(&seen, 1);
            assert_even(&log, 8);
        }
    }

    #[test]
    fn the_device_is_the_one_that_the_program_uses() {
        let _watchdog = Watchdog::start();
        for setting in ["DRIVER_STUB_CURRENT", "DRIVER_STUB_IN_USE"] {
            let (seen, log) = run("strings", 2, &[(setting, "1")]);
            assert_pinned(&seen, 20);
            assert_eq!((log.retained, log.released), (vec![1], vec![1]));
        }
    }

    #[test]
    fn what_cannot_be_registered_is_ordinary_memory() {
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
    fn a_driver_that_is_gone_or_keeps_memory_does_no_harm() {
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
