//! A process that has read files of a server forks, and its child reads them too. Alone in its program, because
//! other threads could hold locks when it forks.

use std::{
    process,
    thread::sleep,
    time::{Duration, Instant},
};

use loader_core::{DType, Dataset, SampleContext};
use loader_data::{StoreOptions, Tokens};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, fork},
};

#[allow(dead_code, reason = "other tests use all of it")]
#[path = "formats/server.rs"]
mod server;

#[test]
#[allow(unsafe_code)]
fn a_forked_child_connects_anew() {
    let server = server::Server::start();
    for name in ["a.bin", "b.bin"] {
        server.put(name, vec![1; 4096]);
    }
    // Much longer than the child gets.
    let timeout = Duration::from_secs(60);
    let options = StoreOptions { allow_http: true, timeout, ..StoreOptions::default() };
    let open = || Tokens::<i64>::open(server.url("{a,b}.bin"), DType::U16, 64);
    let tokens = options.scope(open).unwrap();
    let last = tokens.len() - 1;
    let read = |index| tokens.get(index, &mut SampleContext::new(0)).map(|window| window.as_slice()[0]);
    // The connection to the server stays open, and so does the first file.
    assert_eq!(read(0).unwrap(), 0x0101);

    // SAFETY: of the other threads, those of the server and of the network I/O wait for requests, and hold no
    // lock that the child needs.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let is_read = [0, last].iter().all(|&index| matches!(read(index), Ok(0x0101)));
            // SAFETY: it ends the child at once, without the destructors of the parent's values.
            unsafe { nix::libc::_exit(if is_read { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => child,
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
            WaitStatus::StillAlive if Instant::now() < deadline => sleep(Duration::from_millis(20)),
            WaitStatus::StillAlive => {
                kill(child, Signal::SIGKILL).unwrap();
                waitpid(child, None).unwrap();
                panic!("the child waits for a connection of its parent ({})", process::id());
            }
            status => break status,
        }
    };
    assert_eq!(status, WaitStatus::Exited(child, 0));
    assert_eq!(read(last).unwrap(), 0x0101, "the parent's connection still works");
}
