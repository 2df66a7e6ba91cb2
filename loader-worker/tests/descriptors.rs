//! Tests which descriptors are inherited across `exec`: by workers, and by other programs that the host or a
//! worker starts. The tests count the descriptors of their process, so they have a process of their own.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, AsRawFd},
    process::Command,
};

use loader_core::prelude::*;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc::O_CLOEXEC,
};
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

/// Sample 0 lists the descriptors of the worker, and sample 1 those of a program that the worker starts. The
/// other samples are empty.
#[derive(Serialize, Deserialize)]
struct Listing;

impl Dataset for Listing {
    type Sample = String;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, index: usize, _: &mut SampleContext) -> anyhow::Result<String> {
        Ok(match index {
            0 => descriptors_of_this_process().values().map(|open| format!("{open:?}\n")).collect(),
            1 => descriptors_of_new_program().concat(),
            _ => String::new(),
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Descriptor {
    target: String,
    close_on_exec: bool,
}

/// Returns the descriptors of this process except the standard streams.
fn descriptors_of_this_process() -> BTreeMap<i32, Descriptor> {
    let listing = fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<i32> =
        listing.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let descriptor = |fd: i32| {
        // `listing` is closed by now, so its own descriptor is skipped.
        let target = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?.display().to_string();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let close_on_exec = i32::from_str_radix(flags.trim(), 8).unwrap() & O_CLOEXEC != 0;
        Some((fd, Descriptor { target, close_on_exec }))
    };
    numbers.into_iter().filter(|&fd| fd > 2).filter_map(descriptor).collect()
}

/// Starts a program, and returns what the program has open, except the standard streams and the folder that
/// it lists.
fn descriptors_of_new_program() -> Vec<String> {
    let listing = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let targets = listing.lines().filter_map(|line| {
        let (left, target) = line.split_once(" -> ")?;
        let fd: i32 = left.rsplit(' ').next()?.parse().ok()?;
        (fd > 2 && !target.starts_with("/proc/")).then(|| target.to_owned())
    });
    targets.collect()
}

#[test]
fn programs_inherit_no_descriptor_of_the_loader_and_workers_none_of_the_host() {
    // A C library may open a descriptor without close-on-exec.
    let (_reader, leaked) = std::io::pipe().unwrap();
    fcntl(leaked.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let (before, program_before) = (descriptors_of_this_process(), descriptors_of_new_program());
    let name = before[&leaked.as_raw_fd()].target.clone();
    assert!(program_before.contains(&name), "a program does not inherit the pipe: {program_before:?}");

    let loader = DataLoader::builder(Listing).batch_size(1).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut next = || -> String { batches.next().unwrap().unwrap().concat() };
    let (in_worker, in_its_program) = (next(), next());
    // The loader has now opened its queues, slots and pidfds. Another thread lists them and starts a program,
    // as any thread of the host may do.
    let (meanwhile, program) =
        std::thread::spawn(|| (descriptors_of_this_process(), descriptors_of_new_program())).join().unwrap();

    assert!(
        !in_worker.is_empty() && !in_worker.contains(&name),
        "a worker has inherited from the host: {in_worker}"
    );
    assert!(!in_worker.contains("close_on_exec: false"), "{in_worker}");
    assert_eq!(in_its_program, "", "a program that the worker starts has inherited from it");
    let ours: Vec<_> = meanwhile.iter().filter(|(fd, open)| before.get(fd) != Some(open)).collect();
    assert!(ours.len() > 10, "the loader has opened too few descriptors: {ours:?}");
    assert!(ours.iter().all(|(_, open)| open.close_on_exec), "{ours:?}");
    assert_eq!(program, program_before, "a program that the host starts has inherited from the loader");
    drop(batches);
}

#[test]
fn arguments_and_environment_of_a_worker_contain_no_secret() {
    #[derive(Serialize, Deserialize)]
    struct Environment;
    impl Dataset for Environment {
        type Sample = Vec<String>;
        fn len(&self) -> usize {
            1
        }
        fn get(&self, _: usize, _: &mut SampleContext) -> anyhow::Result<Vec<String>> {
            let arguments = std::env::args().collect::<Vec<_>>().join(" ");
            let variables = std::env::vars().filter(|(name, _)| name.starts_with("LOADER"));
            Ok(vec![arguments, variables.map(|(name, value)| format!("{name}={value};")).collect()])
        }
    }
    let loader = DataLoader::builder(Environment).num_workers(1).build().unwrap();
    let seen: Vec<String> = loader.iter().unwrap().next().unwrap().unwrap().into_iter().flatten().collect();
    assert_eq!(seen[0], "loader-worker-0");
    // The value is the inode of the worker's standard input, which is not secret.
    let marker = seen[1].strip_prefix("LOADER_WORKER_LIFELINE=").unwrap();
    assert!(marker.trim_end_matches(';').chars().all(|digit| digit.is_ascii_digit()), "{marker}");
}
