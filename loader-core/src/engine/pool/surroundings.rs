//! What a worker inherits from its template although main may have changed it since.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::{Gid, Uid, getegid, geteuid};

/// The folder of the calling thread, whose privileges a new process gets.
const THREAD: &str = "/proc/thread-self";
/// The namespaces of a process. That of the process numbers of its children is left out: the first template in a new one
/// would be its first process, whose end kills all others in it.
const NAMESPACES: [&str; 6] = ["cgroup", "ipc", "mnt", "net", "user", "uts"];
/// The beginnings of the lines of `status` that tell the privileges of a thread.
const PRIVILEGES: [&str; 6] = ["Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp"];

/// The environment, user, privileges, root and namespaces of this process. A worker has those of its template, so main
/// starts a template only once for equal ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Surroundings {
    environment: BTreeMap<OsString, OsString>,
    user: (Uid, Gid),
    /// Empty if there is no `/proc`.
    privileges: Vec<String>,
    /// Device and inode.
    root: Option<(u64, u64)>,
    namespaces: Vec<Option<PathBuf>>,
}

impl Surroundings {
    pub(super) fn now() -> Self {
        let thread = Path::new(THREAD);
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let is_privilege = |line: &&str| PRIVILEGES.iter().any(|name| line.starts_with(name));
        Self {
            // pytest changes its variable for each test; a template that is started again takes seconds.
            environment: env::vars_os().filter(|(name, _)| name != "PYTEST_CURRENT_TEST").collect(),
            user: (geteuid(), getegid()),
            privileges: status.lines().filter(is_privilege).map(str::to_owned).collect(),
            root: fs::metadata("/").ok().map(|root| (root.dev(), root.ino())),
            namespaces: NAMESPACES.map(|name| fs::read_link(thread.join("ns").join(name)).ok()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::{
        sched::{CloneFlags, unshare},
        sys::prctl::set_no_new_privs,
        unistd::chroot,
    };

    use super::*;

    /// Returns the surroundings of a thread before and after `change`, which does not change other threads.
    fn around(change: fn() -> nix::Result<()>) -> (Surroundings, Surroundings) {
        let changed = move || {
            let before = Surroundings::now();
            assert_eq!(before, Surroundings::now());
            change().unwrap();
            (before, Surroundings::now())
        };
        thread::spawn(changed).join().unwrap()
    }

    #[test]
    fn privileges_are_compared() {
        let (before, after) = around(set_no_new_privs);
        let different: Vec<_> =
            after.privileges.iter().filter(|line| !before.privileges.contains(line)).collect();
        assert_eq!(different, ["NoNewPrivs:\t1"]);
        assert_eq!(before, Surroundings { privileges: before.privileges.clone(), ..after });
    }

    #[test]
    fn roots_and_namespaces_are_compared() {
        if !geteuid().is_root() {
            println!("SKIPPED: another root and another namespace: only root can make them");
            return;
        }
        let (before, after) = around(|| unshare(CloneFlags::CLONE_NEWUTS));
        let changed = before.namespaces.iter().zip(&after.namespaces).map(|(before, after)| before != after);
        let changed: Vec<_> = NAMESPACES.iter().zip(changed).filter(|(_, changed)| *changed).collect();
        assert_eq!(changed, [(&"uts", true)]);
        let (before, after) = around(|| {
            unshare(CloneFlags::CLONE_FS)?;
            chroot("/usr")
        });
        assert!(before.root.is_some() && after.root.is_some());
        assert_ne!(before.root, after.root);
    }
}
