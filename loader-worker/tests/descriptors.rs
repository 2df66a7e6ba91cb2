//! Which descriptors cross an exec: into workers, and from there and from the host into other programs. Alone in its process, since it
//! counts what the process has.

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

/// Sample 0: what its process has open. Sample 1: what a program that it starts has. The others: nothing.
#[derive(Serialize, Deserialize)]
struct Listing;

impl Dataset for Listing {
    type Sample = String;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, index: usize, _: &mut Context) -> anyhow::Result<String> {
        Ok(match index {
            0 => own().values().map(|open| format!("{open:?}\n")).collect(),
            1 => of_a_program().concat(),
            _ => String::new(),
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Open {
    target: String,
    close_on_exec: bool,
}

/// The descriptors of this process, but for the standard streams.
fn own() -> BTreeMap<i32, Open> {
    let listing = fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<i32> =
        listing.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let look = |fd: i32| {
        // That of the listing is closed by now.
        let target = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?.display().to_string();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let close_on_exec = i32::from_str_radix(flags.trim(), 8).unwrap() & O_CLOEXEC != 0;
        Some((fd, Open { target, close_on_exec }))
    };
    numbers.into_iter().filter(|&fd| fd > 2).filter_map(look).collect()
}

/// What a program that this process starts finds open, but for the standard streams and its own listing.
fn of_a_program() -> Vec<String> {
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
fn nothing_of_the_loader_crosses_an_exec_and_nothing_of_the_host_reaches_a_worker() {
    // As a C library leaves it.
    let (_reader, leaked) = std::io::pipe().unwrap();
    fcntl(leaked.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let (before, program_before) = (own(), of_a_program());
    let name = before[&leaked.as_raw_fd()].target.clone();
    assert!(program_before.contains(&name), "the leak is none: {program_before:?}");

    let loader = DataLoader::builder(Listing).batch_size(1).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut next = || -> String { batches.next().unwrap().unwrap().concat() };
    let (in_worker, in_its_program) = (next(), next());
    // Queues, slots, processes and the reaper are open now; a program may be started from any thread.
    let (meanwhile, program) = std::thread::spawn(|| (own(), of_a_program())).join().unwrap();

    assert!(!in_worker.is_empty() && !in_worker.contains(&name), "a worker has the host's: {in_worker}");
    assert!(!in_worker.contains("close_on_exec: false"), "{in_worker}");
    assert_eq!(in_its_program, "", "a program of the dataset has these of its worker");
    let ours: Vec<_> = meanwhile.iter().filter(|(fd, open)| before.get(fd) != Some(open)).collect();
    assert!(ours.len() > 10, "the loader is open: {ours:?}");
    assert!(ours.iter().all(|(_, open)| open.close_on_exec), "{ours:?}");
    assert_eq!(program, program_before, "a program of the host has these of the loader");
    drop(batches);
}

#[test]
fn nothing_secret_is_in_arguments_or_environment() {
    #[derive(Serialize, Deserialize)]
    struct Told;
    impl Dataset for Told {
        type Sample = Vec<String>;
        fn len(&self) -> usize {
            1
        }
        fn get(&self, _: usize, _: &mut Context) -> anyhow::Result<Vec<String>> {
            let arguments = std::env::args().collect::<Vec<_>>().join(" ");
            let variables = std::env::vars().filter(|(name, _)| name.starts_with("LOADER"));
            Ok(vec![arguments, variables.map(|(name, value)| format!("{name}={value};")).collect()])
        }
    }
    let loader = DataLoader::builder(Told).num_workers(1).build().unwrap();
    let told: Vec<String> = loader.iter().unwrap().next().unwrap().unwrap().into_iter().flatten().collect();
    assert_eq!(told[0], "loader-worker-0");
    // The inode of its standard input, which everybody can see.
    let marker = told[1].strip_prefix("LOADER_WORKER_LIFELINE=").unwrap();
    assert!(marker.trim_end_matches(';').chars().all(|digit| digit.is_ascii_digit()), "{marker}");
}
