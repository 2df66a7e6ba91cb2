//! The limits of the process's control group and its ancestors, in version 1 and in version 2.

use std::{
    fs, iter,
    path::{Path, PathBuf},
};

/// Version 1 shows a number near 2^63 if there is no limit.
const NO_LIMIT: u64 = 1 << 62;

/// The lowest memory limit, in bytes, of the process's control group and its ancestors.
pub fn of_control_group() -> Option<u64> {
    Groups::of_this_process("memory")?.limit()
}

/// The least number that is left below a limit of the process's control group or its ancestors: bytes of
/// `memory`, or processes and threads (`pids`). Returns `None` if no group has a limit.
pub fn left_in_control_group(resource: &str) -> Option<u64> {
    Groups::of_this_process(resource)?.left()
}

/// The control groups that limit a process in the use of a resource.
#[derive(Debug, PartialEq)]
struct Groups<'a> {
    /// As in the names of the files: `memory` or `pids`.
    resource: &'a str,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// The folder of the process's own group, in `mount`.
    own: PathBuf,
}

impl<'a> Groups<'a> {
    fn of_this_process(resource: &'a str) -> Option<Self> {
        let read = |file| fs::read_to_string(Path::new("/proc/self").join(file)).ok();
        Self::find(resource, &read("cgroup")?, &read("mountinfo")?)
    }

    /// Finds the groups by the process's `cgroup` and `mountinfo` in `/proc`. A resource is in a hierarchy of version
    /// 1, or in the only one of version 2, even where both versions are mounted.
    fn find(resource: &'a str, groups: &str, mounts: &str) -> Option<Self> {
        let path_in = |has_resource: &dyn Fn(&str, &str) -> bool| {
            groups.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                has_resource(hierarchy, controllers).then_some(path)
            })
        };
        let has_resource = |names: &str| names.split(',').any(|name| name == resource);
        let (path, (root, mount)) = match path_in(&|_, controllers| has_resource(controllers)) {
            Some(path) => {
                (path, mount_of(mounts, path, |kind, options| kind == "cgroup" && has_resource(options))?)
            }
            None => {
                let path = path_in(&|hierarchy, controllers| hierarchy == "0" && controllers.is_empty())?;
                (path, mount_of(mounts, path, |kind, _| kind == "cgroup2")?)
            }
        };
        // In a container, the mount begins at the container's group, and `path` may begin above or at that group.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        Some(Self { resource, mount: mount.into(), own: Path::new(mount).join(below) })
    }

    fn limit(&self) -> Option<u64> {
        self.levels().filter_map(|level| self.limit_of(level)).min()
    }

    fn left(&self) -> Option<u64> {
        let left = |level: &Path| {
            let limit = self.limit_of(level)?;
            let used = self.in_files(level, &["current", "usage_in_bytes"])?;
            // The kernel frees these pages of files when the group needs memory. Version 1 has the sum of all levels
            // under the first name.
            let names = ["total_inactive_file", "inactive_file"];
            let cached = names.into_iter().find_map(|name| self.statistic(level, name)).unwrap_or(0);
            Some(limit.saturating_sub(used.saturating_sub(cached)))
        };
        self.levels().filter_map(left).min()
    }

    /// The folders of the process's own group and of the ancestors whose limits apply to it.
    fn levels(&self) -> impl Iterator<Item = &Path> {
        let ancestors = self.own.ancestors().skip(1).take_while(|level| level.starts_with(&self.mount));
        // In version 1, the kernel may count the memory of a group without that of the groups in it. Then the group's
        // limit does not apply to these.
        let applies = |level: &&Path| self.in_files(level, &["use_hierarchy"]) != Some(0);
        iter::once(&*self.own).chain(ancestors.take_while(applies))
    }

    fn limit_of(&self, level: &Path) -> Option<u64> {
        let own = self.in_files(level, &["max", "limit_in_bytes"]);
        // Version 1 shows the limits of ancestors that are not mounted too.
        let inherited = self.statistic(level, "hierarchical_memory_limit");
        [own, inherited].into_iter().flatten().min().filter(|&limit| limit < NO_LIMIT)
    }

    /// Returns a number of the statistics of this resource.
    fn statistic(&self, level: &Path, name: &str) -> Option<u64> {
        let statistics = fs::read_to_string(level.join(format!("{}.stat", self.resource))).ok()?;
        let mut values = statistics.lines().filter_map(|line| line.split_once(' '));
        values.find(|(found, _)| *found == name)?.1.trim().parse().ok()
    }

    /// Returns the number in the first of these files of this resource that the group has.
    fn in_files(&self, level: &Path, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| {
            fs::read_to_string(level.join(format!("{}.{name}", self.resource))).ok()?.trim().parse().ok()
        })
    }
}

/// Finds a mount, and returns the folder of its file system that is its root, and the path at which it is mounted.
/// `is_wanted` gets the type of the file system and its options. A hierarchy may be mounted several times, also with a
/// root that is not above the group `path`. Of the mounts that have this group, returns the one with the most groups
/// above it.
fn mount_of<'m>(
    mounts: &'m str,
    path: &str,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Option<(&'m str, &'m str)> {
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let mut mount = mount.split(' ').skip(3);
        // The source is between the type and the options.
        let is_wanted = is_wanted(system.next()?, system.nth(1)?);
        is_wanted.then_some((mount.next()?, mount.next()?))
    });
    // `min_by_key` returns the first of equal ones.
    mounts.min_by_key(|(root, _)| if Path::new(path).starts_with(root) { root.len() } else { usize::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files of groups.
    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn the_lowest_limit_of_version_2_counts() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("memory.current", "900\n"),
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "700\n"),
            ("a/memory.stat", "anon 5\ninactive_file 50\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.current", "600\n"),
            ("a/b/memory.stat", "anon 5\n"),
            ("a/b/pids.max", "30\n"),
            ("a/b/pids.current", "31\n"),
        ];
        write(folder.path(), &files);
        let mounts =
            format!("30 23 0:26 / {} rw,nosuid shared:4 - cgroup2 cgroup2 rw", folder.path().display());
        let groups = |resource| Groups::find(resource, "0::/a/b\n", &mounts).unwrap();
        assert_eq!((groups("memory").limit(), groups("memory").left()), (Some(1000), Some(350)));
        assert_eq!((groups("pids").limit(), groups("pids").left()), (Some(30), Some(0)));
        assert_eq!(Groups::find("memory", "0::/\n", &mounts).unwrap().limit(), None);
    }

    #[test]
    fn the_lowest_limit_of_version_1_counts() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("memory/a/memory.limit_in_bytes", "5000\n"),
            ("memory/a/memory.usage_in_bytes", "4900\n"),
            ("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 20\n"),
            ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/b/memory.usage_in_bytes", "100\n"),
            ("memory/a/b/memory.stat", "cache 3\nhierarchical_memory_limit 4950\n"),
            ("memory/none/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/none/memory.usage_in_bytes", "100\n"),
            ("memory/none/memory.stat", "hierarchical_memory_limit 9223372036854771712\n"),
            ("pids/a/pids.max", "20\n"),
            ("pids/a/pids.current", "8\n"),
            ("pids/a/b/pids.max", "max\n"),
        ];
        write(folder.path(), &files);
        let at = folder.path().display();
        let mounts = format!(
            "24 1 0:20 / / rw - overlay overlay rw\n30 24 0:26 / {at}/unified rw - cgroup2 cgroup2 rw\n\
             31 24 0:27 / {at}/memory rw shared:9 - cgroup cgroup rw,memory\n\
             32 24 0:28 / {at}/pids rw - cgroup cgroup rw,pids\n"
        );
        let own = "12:pids:/a/b\n11:cpu,memory:/a/b\n1:name=systemd:/a\n0::/a\n";
        let groups = |resource| Groups::find(resource, own, &mounts).unwrap();
        assert_eq!((groups("memory").limit(), groups("memory").left()), (Some(4950), Some(120)));
        assert_eq!((groups("pids").limit(), groups("pids").left()), (Some(20), Some(12)));
        let none = Groups::find("memory", "4:memory:/none\n", &mounts).unwrap();
        assert_eq!((none.limit(), none.left()), (None, None));
        // In a container, the mount begins at the container's group.
        let mounts = format!("31 24 0:27 /docker/4f {at}/memory/a ro - cgroup memory rw,memory");
        for (path, own) in [("/docker/4f/b", "memory/a/b"), ("/", "memory/a"), ("/docker/4f", "memory/a")] {
            let found = Groups::find("memory", &format!("9:memory:{path}"), &mounts).unwrap();
            assert_eq!((found.own, found.mount), (folder.path().join(own), folder.path().join("memory/a")));
        }
    }

    /// For example the groups of a container, which a program on the host has mounted elsewhere.
    #[test]
    fn the_mount_that_has_the_group_of_the_process_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let files =
            [("all/a/memory.max", "1000\n"), ("all/a/b/memory.max", "max\n"), ("c/memory.max", "5\n")];
        write(folder.path(), &files);
        let mounts = format!(
            "31 24 0:26 /c {at}/c rw - cgroup2 cgroup2 rw\n32 24 0:26 /a/b {at}/all/a/b rw - cgroup2 cgroup2 rw\n\
             33 24 0:26 / {at}/all rw - cgroup2 cgroup2 rw\n"
        );
        for path in ["/a/b", "/a"] {
            let groups = Groups::find("memory", &format!("0::{path}\n"), &mounts).unwrap();
            assert_eq!((&groups.mount, groups.limit()), (&folder.path().join("all"), Some(1000)), "{path}");
        }
        let groups = Groups::find("memory", "0::/cc\n", &mounts).unwrap();
        assert_eq!(groups.limit(), None, "`/c` is not above `/cc`");
    }

    #[test]
    fn limits_of_ancestors_apply_only_if_version_1_counts_memory_in_hierarchies() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("memory.use_hierarchy", "1\n"),
            ("memory.limit_in_bytes", "1000\n"),
            ("a/memory.use_hierarchy", "0\n"),
            ("a/memory.limit_in_bytes", "2000\n"),
            ("a/b/memory.use_hierarchy", "0\n"),
            ("a/b/memory.limit_in_bytes", "3000\n"),
        ];
        write(folder.path(), &files);
        let mounts = format!("31 24 0:27 / {} rw - cgroup memory rw,memory", folder.path().display());
        let limit = || Groups::find("memory", "9:memory:/a/b", &mounts).unwrap().limit();
        assert_eq!(limit(), Some(3000));
        write(folder.path(), &[("a/memory.use_hierarchy", "1\n")]);
        assert_eq!(limit(), Some(1000));
    }

    #[test]
    fn a_hierarchy_that_is_not_mounted_has_no_limit() {
        assert_eq!(Groups::find("memory", "0::/a\n", "30 23 0:26 / /sys rw - sysfs sysfs rw"), None);
        assert_eq!(Groups::find("memory", "", "30 23 0:26 / /x rw - cgroup2 cgroup2 rw"), None);
        assert_eq!(
            Groups::find("memory", "3:memory:/a\n0::/a", "30 23 0:26 / /x rw - cgroup2 cgroup2 rw"),
            None
        );
    }
}
