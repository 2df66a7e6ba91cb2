//! The surroundings in which the program of a try runs: a control group, a PID namespace, another user.

use std::{
    env, fs, io,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use nix::unistd::{geteuid, getpid};

use crate::{
    artefacts::FILES,
    list::{Outside, User},
};

/// Name of a copy of this program in the folder of a try.
pub(crate) const PROGRAM: &str = "program";
/// User that runs main, and another one that owns its folder.
const USERS: [u32; 2] = [65_534, 65_533];
/// Memory limit of the control group. Main and two workers fit, and a sample that fills 1 GiB does not.
const GROUP_BYTES: u64 = 256 << 20;

/// Surroundings, which are removed when they are dropped.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    group: Option<Group>,
}

impl Surroundings {
    /// Returns the command that starts this program in the surroundings of a fault.
    ///
    /// # Errors
    /// Returns an error that says what is missing if this machine, or this user, cannot make them.
    pub(crate) fn of(what: Outside, number: usize, folder: &Path) -> anyhow::Result<(Self, Command)> {
        let program = env::current_exe()?;
        let mut made = Self::default();
        let mut command = Command::new(&program);
        match what {
            Outside::MemoryGroup => {
                let group = Group::new(GROUP_BYTES).context("no control group can limit memory")?;
                command = Command::new("sh");
                command
                    .args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""])
                    .arg(&group.0)
                    .arg(program);
                made.group = Some(group);
            }
            Outside::PidNamespace => {
                command = Command::new("unshare");
                // With main's own /proc, or that of the machine, whose numbers of processes are others.
                command
                    .args(["--pid", "--fork", "--kill-child"])
                    .args(number.is_multiple_of(2).then_some("--mount-proc"));
                let mut test = Command::new("unshare");
                test.args(command.get_args()).arg("true").stderr(Stdio::null());
                ensure!(test.status().is_ok_and(|status| status.success()), "no PID namespace can be made");
                command.arg(program);
            }
            Outside::Deny(_) => {
                let status = fs::read_to_string("/proc/self/status")?;
                ensure!(status.contains("Seccomp:"), "the kernel has no seccomp filters");
            }
            Outside::OtherUser(user) => {
                ensure!(geteuid().is_root(), "only root can run a program as another user");
                let files = folder.join(FILES);
                fs::create_dir(&files)?;
                chown(&files, Some(USERS[1]), None)?;
                if user == User::Ordinary {
                    fs::set_permissions(&files, fs::Permissions::from_mode(0o777))?;
                    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
                    // The user may not be allowed to enter the folder of the program.
                    let copy = folder.join(PROGRAM);
                    fs::copy(program, &copy)?;
                    command = Command::new(copy);
                    command.uid(USERS[0]).gid(USERS[0]).current_dir("/");
                }
            }
            _ => {}
        }
        Ok((made, command))
    }
}

/// A control group with a limit on memory.
#[derive(Debug)]
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> anyhow::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let name = format!("loader-faults-{}", getpid());
        let group_of = |controllers: &str| {
            let lines = groups.lines().filter_map(|line| line.split_once(':'));
            let mut lines = lines.filter_map(|(_, rest)| rest.split_once(':'));
            lines.find(|(found, _)| found.split(',').any(|one| one == controllers)).map(|(_, path)| path)
        };
        let (folder, limit) = match group_of("memory") {
            // Version 1.
            Some(path) => (format!("/sys/fs/cgroup/memory{path}/{name}"), "memory.limit_in_bytes"),
            // Version 2: beside the group of this process, because a group with processes may have no groups in it.
            None => {
                let path = group_of("").context("this process is in no control group")?;
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                (format!("/sys/fs/cgroup{parent}/{name}"), "memory.max")
            }
        };
        let group = Self(PathBuf::from(folder));
        fs::create_dir(&group.0).with_context(|| group.0.display().to_string())?;
        let limit = group.0.join(limit);
        if !limit.exists() {
            bail!("{} has no limit on memory", group.0.display());
        }
        fs::write(&limit, bytes.to_string()).with_context(|| limit.display().to_string())?;
        // The files of the two versions that limit swap exist only where the kernel counts it.
        for (file, limit) in [("memory.memsw.limit_in_bytes", bytes), ("memory.swap.max", 0)] {
            let path = group.0.join(file);
            if path.exists() {
                fs::write(path, limit.to_string())?;
            }
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
