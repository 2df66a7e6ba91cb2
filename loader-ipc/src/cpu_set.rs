//! Sets of CPUs, as affinity masks of threads.

use std::{collections::BTreeSet, fmt, io, panic, str::FromStr, thread};

use nix::{
    sched::{CpuSet as Mask, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::advice::permitted;

/// A set of CPUs by their numbers, from 0 to 1023. Its text is the kernel's list format, such as `0-3,8`.
///
/// # Examples
/// ```
/// use loader_ipc::cpu_set::CpuSet;
///
/// let cpus: CpuSet = "0-3,8".parse()?;
/// assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
/// assert_eq!(CpuSet::from_iter([5, 1, 0]).to_string(), "0-1,5");
/// # Ok::<(), loader_ipc::cpu_set::ParseCpuSetError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// The CPUs in the affinity mask of the calling thread.
    ///
    /// # Errors
    /// The error of `sched_getaffinity`, for example on a machine with more than 1024 CPUs.
    pub fn of_this_thread() -> io::Result<Self> {
        Self::of(THIS_THREAD)
    }

    /// The CPUs in the affinity mask of the parent process.
    ///
    /// # Errors
    /// The error of `sched_getaffinity`, for example because the parent is in another PID namespace.
    pub fn of_parent() -> io::Result<Self> {
        match Pid::parent() {
            // To the system call, 0 is the calling thread.
            parent if parent == THIS_THREAD => Err(io::ErrorKind::NotFound.into()),
            parent => Self::of(parent),
        }
    }

    fn of(process: Pid) -> io::Result<Self> {
        let mask = sched_getaffinity(process)?;
        Ok((0..Mask::count()).filter(|&cpu| mask.is_set(cpu).unwrap_or(false)).collect())
    }

    /// The CPUs that this process may have in its mask: those of its control group that are online.
    /// The mask itself may be smaller, if a launcher or `taskset` has bound the process.
    ///
    /// # Errors
    /// If a thread cannot be started, or the system refuses to change its mask.
    ///
    /// # Implementation notes
    /// A thread asks for all CPUs and reads what the kernel made of it. Files of the control group would
    /// differ between its versions, and are missing in some containers.
    pub fn allowed() -> io::Result<Self> {
        (0..Mask::count()).collect::<Self>().run(Self::of_this_thread)?
    }

    /// Calls `work` on a new thread that is bound to these CPUs, so that processes that `work` starts are
    /// bound to them too. The mask of the calling thread stays as it is.
    ///
    /// # Errors
    /// If the thread cannot be started, or may use none of the CPUs. The second error names the CPUs.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let bound = || {
            self.bind_this_thread()?;
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("loader-affinity".to_owned());
            let joined = thread.spawn_scoped(scope, bound)?.join();
            joined.unwrap_or_else(|payload| panic::resume_unwind(payload))
        })
    }

    /// Binds the calling thread to these CPUs, and with it the threads and processes that it starts later.
    ///
    /// # Errors
    /// If the thread may use none of the CPUs, or a sandbox forbids the system call. The error names the CPUs, and the
    /// call.
    pub fn bind_this_thread(&self) -> io::Result<()> {
        let mut mask = Mask::new();
        self.iter().try_for_each(|cpu| mask.set(cpu))?;
        permitted("sched_setaffinity", sched_setaffinity(THIS_THREAD, &mask)).map_err(|error| {
            io::Error::new(error.kind(), format!("no thread can be bound to the CPUs {self}: {error}"))
        })
    }

    /// The numbers of the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no CPU in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }
}

/// What the system calls name as the calling thread.
const THIS_THREAD: Pid = Pid::from_raw(0);

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        let cpu = |text: &str| text.parse().ok().filter(|&cpu: &usize| cpu < Mask::count());
        let range = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (cpu(first)?, cpu(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
        let ranges = ranges.ok_or_else(|| ParseCpuSetError { text: text.to_owned() })?;
        Ok(ranges.into_iter().flatten().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<_> = self.iter().collect();
        for (number, run) in cpus.chunk_by(|cpu, next| cpu + 1 == *next).enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                _ => write!(f, "{comma}{}", run[0])?,
            }
        }
        Ok(())
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> Self {
        cpus.to_string()
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseCpuSetError;

    fn try_from(text: String) -> Result<Self, ParseCpuSetError> {
        text.parse()
    }
}

/// A text that is not a set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a set of CPUs, such as 0-3,8, with numbers from 0 to {max}", max = Mask::count() - 1)]
pub struct ParseCpuSetError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_kernels_text() {
        for (text, cpus) in [("0", &[0][..]), ("0-3,8", &[0, 1, 2, 3, 8]), ("2,4-5,1023", &[2, 4, 5, 1023])] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!(set, cpus.iter().copied().collect());
            assert_eq!(set.to_string(), text);
        }
        assert_eq!("3,0-2,1\n".parse::<CpuSet>().unwrap().to_string(), "0-3");
        for text in ["", "3-1", "a", "1,", "-1", "0-", "1024", "0 1"] {
            assert_eq!(text.parse::<CpuSet>(), Err(ParseCpuSetError { text: text.to_owned() }));
        }
    }

    #[test]
    fn a_bound_thread_has_its_mask_and_the_caller_keeps_its_own() {
        let (own, allowed) = (CpuSet::of_this_thread().unwrap(), CpuSet::allowed().unwrap());
        assert!(own.iter().all(|cpu| allowed.contains(cpu)), "{own} is within {allowed}");
        for cpu in allowed.iter() {
            let one = CpuSet::from_iter([cpu]);
            assert_eq!(one.run(CpuSet::of_this_thread).unwrap().unwrap(), one);
            // The mask can be widened again.
            assert_eq!(one.run(CpuSet::allowed).unwrap().unwrap(), allowed);
        }
        assert_eq!(CpuSet::of_this_thread().unwrap(), own);
        let none = CpuSet::default().run(|| ()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::InvalidInput);
    }
}
