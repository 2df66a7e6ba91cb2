//! Workers that a template forks. A process has one template for all of its loaders, so each test has a process
//! of its own.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use loader_core::{
    Builder, CpuSet, Error, ExitStatus, Warning, WorkerAffinity, WorkerProgram, WorkerStartError,
    kind::MapStyle, prelude::*,
};
use loader_ipc::process::signals_for_main;
use loader_tests::{
    Watchdog,
    alone::{Family, alone},
    datasets::{AsStream, Fault, Faulty, Noise, Slow},
    digest, digest_rest,
    processes::{self, children, signal, wait_until_gone},
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::{
    errno::Errno,
    sys::{
        prctl::set_no_new_privs,
        resource::{Resource, setrlimit},
        signal::Signal,
        stat::{Mode, umask},
    },
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-template");
/// Maximum time for processes to end.
const GONE: Duration = Duration::from_secs(5);

fn program(fault: &str) -> WorkerProgram {
    WorkerProgram::new(PROGRAM).args(["serve", fault]).template()
}

fn noise(fault: &str) -> Builder<MapStyle<Noise>> {
    let builder = DataLoader::builder(Noise { count: 60 }).batch_size(4).shuffle(true).num_workers(2);
    builder.registered("noise").worker_program(program(fault))
}

/// The digest of an epoch of [`noise`].
fn undisturbed() -> (u64, u64) {
    digest(noise("").num_workers(0).build().unwrap().iter().unwrap()).unwrap()
}

/// Returns the only child of this process.
fn template() -> u32 {
    let children = children(std::process::id());
    let [template] = children[..] else { panic!("{children:?}") };
    assert_eq!(name(template), "loader-template");
    template
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

fn kill(pid: u32) {
    signal(pid, Signal::SIGKILL);
    wait_until_gone(&[pid], GONE).unwrap();
}

/// Returns a builder whose loader sends the statuses of workers that it replaces to the receiver.
fn with_statuses(builder: Builder<MapStyle<Noise>>) -> (Builder<MapStyle<Noise>>, Receiver<ExitStatus>) {
    let (sender, statuses) = mpsc::channel();
    let builder = builder.on_warning(move |warning| {
        if let Warning::WorkerReplaced { exit, .. } = warning {
            sender.send(exit.status).unwrap();
        }
    });
    (builder, statuses)
}

#[test]
fn all_loaders_share_one_template() {
    alone(|| {
        let (first, second) = (noise("").build().unwrap(), noise("").build().unwrap());
        assert_eq!(digest(first.iter().unwrap()).unwrap(), undisturbed());
        let template = template();
        let before = Before::now();
        for loader in [&first, &second] {
            let mut batches = loader.epoch(0).unwrap();
            let mut workers = batches.worker_pids();
            for (number, &pid) in workers.iter().enumerate() {
                assert_eq!(name(pid), format!("loader-wkr-{number}"));
            }
            workers.sort_unstable();
            assert_eq!(children(template), workers);
            assert_eq!(digest_rest(&mut batches).unwrap(), undisturbed());
        }
        let stream = || DataLoader::stream(AsStream(Noise { count: 60 })).batch_size(4).shards(2);
        let forked =
            stream().num_workers(2).registered("stream").worker_program(program("")).build().unwrap();
        let here = stream().build().unwrap();
        assert_eq!(digest(forked.iter().unwrap()).unwrap(), digest(here.iter().unwrap()).unwrap());
        drop((first, second, forked, here));
        before.assert_nothing_left();
        assert_eq!((self::template(), children(template)), (template, vec![]));
    });
}

#[test]
fn threads_start_workers_from_one_template_at_the_same_time() {
    alone(|| {
        let expected = undisturbed();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let loader = noise("").build().unwrap();
                        assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
                    }
                });
            }
        });
        assert!(children(template()).is_empty());
    });
}

/// The program's arguments and main's environment decide; working directory, CPUs, umask and limits are those of the
/// moment.
#[test]
fn a_worker_has_mains_surroundings() {
    alone(|| {
        let cpus: Vec<_> = CpuSet::allowed().unwrap().iter().map(|cpu| CpuSet::from_iter([cpu])).collect();
        drop(noise("").build().unwrap().iter().unwrap());
        let first = template();
        env::set_current_dir("/usr").unwrap();
        umask(Mode::from_bits_truncate(0o027));
        setrlimit(Resource::RLIMIT_NOFILE, 700, 800).unwrap();
        for cpu in &cpus {
            let bound = noise("").worker_affinity(WorkerAffinity::Sets(vec![cpu.clone()])).build().unwrap();
            let batches = bound.iter().unwrap();
            // All workers have answered, and before that closed what belongs to the template.
            for pid in batches.worker_pids() {
                assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/usr"));
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{cpu}: {status}");
                assert!(status.contains("Umask:\t0027\n"), "{status}");
                let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
                let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
                assert!(
                    files.split_whitespace().any(|word| word == "700") && files.contains("800"),
                    "{limits}"
                );
                let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
                let targets: Vec<_> =
                    descriptors.map(|fd| fs::read_link(fd.unwrap().path()).unwrap_or_default()).collect();
                let pidfds = targets.iter().filter(|target| target.ends_with("anon_inode:[pidfd]")).count();
                assert_eq!(pidfds, 1, "only main's pidfd: {targets:?}");
            }
        }
        assert_eq!(template(), first);
        let batches = noise("").build().unwrap().iter().unwrap();
        // SAFETY: no other thread of this process uses the environment.
        #[allow(unsafe_code)]
        unsafe {
            env::set_var("LOADER_TEST_VARIABLE", "1");
        }
        drop(noise("").build().unwrap().iter().unwrap());
        assert!(processes::is_running(first), "it ends after its last worker");
        drop(batches);
        let dropped = Instant::now();
        while processes::exists(first) {
            assert!(
                dropped.elapsed() < GONE,
                "a replaced template ends after its last worker, and is reaped"
            );
            thread::sleep(Duration::from_millis(2));
        }
        assert_ne!(template(), first);
    });
}

#[test]
fn a_template_with_other_privileges_is_replaced() {
    alone(|| {
        let loader = noise("").build().unwrap();
        let start = || {
            assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), undisturbed());
            template()
        };
        let first = start();
        assert_eq!(start(), first);
        set_no_new_privs().unwrap();
        assert_ne!(start(), first);
    });
}

#[test]
fn a_template_that_dies_is_replaced_at_the_next_start() {
    alone(|| {
        let (builder, statuses) = with_statuses(noise(""));
        let loader = builder.build().unwrap();
        assert_eq!(digest(loader.iter().unwrap()).unwrap(), undisturbed());
        let first = template();
        kill(first);
        let mut batches = loader.epoch(0).unwrap();
        let second = template();
        assert_ne!(second, first);
        // Its workers go on.
        kill(second);
        batches.next().unwrap().unwrap();
        assert!(batches.worker_pids().iter().all(|&pid| processes::is_running(pid)));
        assert_eq!(statuses.try_recv().ok(), None);
        drop(batches);
        // One that dies later gets a replacement from another template. Its status is lost.
        let slow = DataLoader::builder(Slow { count: 200, delay: Duration::from_millis(2) });
        let (sender, warnings) = mpsc::channel();
        let slow = slow.num_workers(2).registered("slow").worker_program(program(""));
        let slow = slow.on_warning(move |warning| sender.send(warning.clone()).unwrap()).build().unwrap();
        let mut batches = slow.iter().unwrap();
        kill(template());
        signal(batches.worker_pids()[0], Signal::SIGKILL);
        assert_eq!(batches.by_ref().map(Result::unwrap).count(), 200);
        drop(batches);
        let replaced = |warning| match warning {
            Warning::WorkerReplaced { exit, .. } => Some(exit.status),
            _ => None,
        };
        assert_eq!(warnings.try_iter().find_map(replaced), Some(ExitStatus::Unknown));
        assert!(children(template()).is_empty());
    });
}

#[test]
fn a_template_that_dies_at_a_request_is_replaced() {
    alone(|| {
        for fault in ["killed-before-the-second-fork", "killed-after-the-second-fork"] {
            let loader = noise(fault).build().unwrap();
            for _ in 0..3 {
                assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), undisturbed(), "{fault}");
            }
        }
        let templates = children(std::process::id());
        assert!(templates.iter().all(|&template| children(template).is_empty()), "{templates:?}");
    });
}

#[test]
fn a_template_that_cannot_fork_says_why() {
    alone(|| {
        let error = noise("no-fork").build().unwrap().iter().unwrap_err();
        let Error::WorkerNotStarted { worker: 1, source } = error else { panic!("{error:?}") };
        let WorkerStartError::NotSpawned { program, source } = source else { panic!("{source:?}") };
        assert_eq!((program.as_str(), source.raw_os_error()), (PROGRAM, Some(Errno::EAGAIN as i32)));
        assert!(children(template()).is_empty());
    });
}

/// SIGCONT comes too late: main has killed it.
#[test]
fn a_template_that_hangs_is_killed_and_replaced() {
    alone(|| {
        let loader = noise("").build().unwrap();
        assert_eq!(digest(loader.iter().unwrap()).unwrap(), undisturbed());
        let first = template();
        signal(first, Signal::SIGSTOP);
        let (digest, took) = timed(|| digest(loader.epoch(0).unwrap()).unwrap());
        assert_eq!(digest, undisturbed());
        assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(20), "{took:?}");
        assert_ne!(template(), first);
    });
}

/// It is replaced after 10 s. Ctrl-C, a warning and `timeout` need not wait for that.
#[test]
fn a_template_that_stops_while_it_loads_its_libraries_is_noticed() {
    alone(|| {
        let token = env::temp_dir().join("token");
        let fault = format!("stops-while-it-loads-if-it-can-remove {}", token.display());
        fs::write(&token, "").unwrap();
        let second = Duration::from_secs(1);
        let began = Instant::now();
        let interrupted = noise(&fault).interrupt_start_when(second / 20, move || began.elapsed() >= second);
        let (error, took) = timed(|| interrupted.build().unwrap().iter().unwrap_err());
        assert!(matches!(error, Error::Interrupted), "{error:?}");
        assert!(took >= second && took < 5 * second, "{took:?}");
        // The template was left alone. It has not set its name yet.
        let [first] = children(std::process::id())[..] else { panic!("one template") };
        let (sender, warnings) = mpsc::channel();
        let builder = noise(&fault).warn_after(second).timeout(second);
        let loader =
            builder.on_warning(move |warning| sender.send(warning.clone()).unwrap()).build().unwrap();
        let (digest, took) = timed(|| digest(loader.iter().unwrap()).unwrap());
        assert_eq!(digest, undisturbed());
        assert!(took >= 8 * second && took < 25 * second, "{took:?}");
        let warned = warnings.try_iter().find_map(|warning| match warning {
            Warning::LongWait { waiting_for, .. } => Some(waiting_for.pid),
            _ => None,
        });
        assert_eq!(warned, Some(first));
        assert_ne!(template(), first);
    });
}

#[test]
fn a_template_that_has_died_is_reaped_at_the_next_start_of_any_workers() {
    alone(|| {
        drop(noise("").build().unwrap().iter().unwrap());
        let first = template();
        kill(first);
        assert!(processes::exists(first), "it is a zombie");
        drop(noise("other").build().unwrap().iter().unwrap());
        assert!(!processes::exists(first));
    });
}

#[test]
fn the_template_reports_how_a_worker_ends() {
    alone(|| {
        for (fault, expected) in [
            (Fault::Kill, ExitStatus::Signal { signal: 9, core_dumped: false }),
            (Fault::Exit(3), ExitStatus::Code(3)),
        ] {
            let dataset = Faulty { count: 40, at: 12, fault };
            let builder = DataLoader::builder(dataset).num_workers(2).on_worker_death(OnWorkerDeath::Fail);
            let loader = builder.registered("faulty").worker_program(program("")).build().unwrap();
            let (error, took) = timed(|| loader.iter().unwrap().find_map(Result::err).unwrap());
            let Error::WorkerExited { exit, .. } = error else { panic!("{error:?}") };
            assert_eq!(exit.status, expected);
            assert_soon(took);
        }
        let (builder, statuses) = with_statuses(noise(""));
        let mut batches = builder.build().unwrap().iter().unwrap();
        signal(batches.worker_pids()[1], Signal::SIGTERM);
        assert_eq!(digest_rest(&mut batches).unwrap(), undisturbed());
        drop(batches);
        if let Ok(status) = statuses.try_recv() {
            assert_eq!(status, ExitStatus::Signal { signal: 15, core_dumped: false });
        }
    });
}

#[test]
fn signals_for_main_end_neither_template_nor_workers() {
    alone(|| {
        let loader = noise("").build().unwrap();
        let mut batches = loader.iter().unwrap();
        let (first, workers) = (template(), batches.worker_pids());
        for &pid in workers.iter().chain([&first]) {
            // `nix` cannot send real-time signals.
            let kill: String = signals_for_main().map(|which| format!("kill -{which} {pid};")).collect();
            assert!(Command::new("sh").args(["-ec", &kill]).status().unwrap().success());
        }
        assert_eq!(digest_rest(&mut batches).unwrap(), undisturbed());
        assert_eq!((batches.report().restarts, template()), (0, first));
    });
}

/// Main drops the iterator while a stopped template should replace a worker.
#[test]
fn a_loader_dropped_during_a_start_leaves_nothing() {
    alone(|| {
        let slow =
            DataLoader::builder(Slow { count: 100_000, delay: Duration::from_millis(1) }).num_workers(2);
        let (sender, warnings) = mpsc::channel();
        let slow = slow.registered("slow").worker_program(program(""));
        let slow = slow.on_warning(move |warning| sender.send(warning.clone()).unwrap()).build().unwrap();
        let mut batches = slow.iter().unwrap();
        let template = template();
        signal(template, Signal::SIGSTOP);
        signal(batches.worker_pids()[0], Signal::SIGKILL);
        let is_replaced = |warning| matches!(warning, Warning::WorkerReplaced { .. });
        while !warnings.try_iter().any(is_replaced) {
            batches.next().unwrap().unwrap();
        }
        let ((), took) = timed(|| drop(batches));
        assert!(took < Duration::from_secs(20), "{took:?}");
        // If the attempt was still waiting for the template, the worker that is forked now ends by itself.
        if processes::try_signal(template, Signal::SIGCONT) {
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(slow.iter().unwrap().take(10).map(Result::unwrap).count(), 10);
        let template = self::template();
        let workers = children(template);
        wait_until_gone(&workers, GONE).expect("no worker is left");
    });
}

#[test]
fn a_template_that_loads_its_libraries_ends_with_main() {
    let _watchdog = Watchdog::start();
    let family = Family::empty();
    let mut command = Command::new(PROGRAM);
    family.adopt(command.args(["host", "slow-to-load"]).stdout(Stdio::null()).stderr(Stdio::null()));
    let mut main = command.spawn().unwrap();
    // Main waits for the template, which has taken its name after it began to watch main.
    let until = Instant::now() + GONE;
    while children(main.id()).iter().all(|&pid| name(pid) != "loader-template") {
        assert!(Instant::now() < until, "the template has not started");
        thread::sleep(Duration::from_millis(5));
    }
    main.kill().unwrap();
    main.wait().unwrap();
    assert_soon(family.assert_gone());
}

/// Main is killed, or exits without dropping anything.
#[test]
fn a_template_and_its_workers_end_with_main() {
    let _watchdog = Watchdog::start();
    for delay in [None, Some(0), Some(20)] {
        let family = Family::empty();
        let mut command = Command::new(PROGRAM);
        family.adopt(command.arg("host").stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut main = command.spawn().unwrap();
        if let Some(delay) = delay {
            let mut line = String::new();
            BufReader::new(main.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            let workers: Vec<u32> = serde_json::from_str(&line).unwrap();
            assert_eq!(children(children(main.id())[0]).len(), workers.len());
            thread::sleep(Duration::from_millis(delay));
        }
        main.kill().unwrap();
        main.wait().unwrap();
        assert_soon(family.assert_gone());
    }
}
