//! The kernel's OOM killer: makes it prefer workers to main, and detects whether it has ended a process, to distinguish its
//! SIGKILL from that of a process.

use std::{fs, sync::OnceLock};

/// File with the kernel's count of processes that its OOM killer has ended, including those ended at the
/// limit of a control group.
const COUNTERS: &str = "/proc/vmstat";

/// File with the number from -1000 to 1000 that the OOM killer adds to the size of this process, in thousandths of the
/// memory.
const ADJUSTMENT: &str = "/proc/self/oom_score_adj";
/// What a worker adds to the number of main.
const MORE_THAN_MAIN: i32 = 500;
/// The number of main. This process has set it when it raised its own number, or has inherited it from the template
/// that forked it and had raised its own. It is never that of another main: neither a worker nor a process that it forks
/// can start workers, so no process that inherits the number raises its own.
static OF_MAIN: OnceLock<i32> = OnceLock::new();

/// Makes the OOM killer end this process rather than main, which is usually the larger one and cannot be replaced. Processes
/// that it starts inherit the number. Does nothing if the kernel has no such file.
pub fn prefer_this_process() {
    let Some(of_main) = fs::read_to_string(ADJUSTMENT).ok().and_then(|text| text.trim().parse::<i32>().ok())
    else {
        return;
    };
    OF_MAIN.get_or_init(|| of_main);
    // Raising the number needs no privilege. If it fails, the OOM killer chooses as without this call.
    drop(fs::write(ADJUSTMENT, (of_main + MORE_THAN_MAIN).min(1000).to_string()));
}

/// Undoes [`prefer_this_process`], for this process alone.
pub fn take_number_of_main() {
    if let Some(of_main) = OF_MAIN.get() {
        // A process may lower its number to the one with which it was started.
        drop(fs::write(ADJUSTMENT, of_main.to_string()));
    }
}

/// Watches the kernel's count of processes that its OOM killer has ended.
#[derive(Debug)]
pub struct OomWatch {
    /// The count when it was read last; `None` if the kernel shows none.
    kills: Option<u64>,
}

impl OomWatch {
    /// Reads the count. If the kernel shows no count, [`has_acted`](Self::has_acted) is always false.
    pub fn start() -> Self {
        Self { kills: read() }
    }

    /// True if the OOM killer has ended a process, anywhere on this machine, since the last call. The kernel
    /// counts before it kills.
    pub fn has_acted(&mut self) -> bool {
        let before = std::mem::replace(&mut self.kills, read());
        matches!((before, self.kills), (Some(before), Some(now)) if now > before)
    }
}

fn read() -> Option<u64> {
    count(&fs::read_to_string(COUNTERS).ok()?)
}

fn count(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_acted_only_if_the_count_rises() {
        assert_eq!(count("nr_free_pages 12\noom_kill 3\noom_kill_x 4\n"), Some(3));
        assert_eq!(count("nr_free_pages 12\n"), None);
        let mut watch = OomWatch { kills: read().map(|kills| kills + 1) };
        assert!(!watch.has_acted(), "a count that has fallen");
        watch.kills = Some(0);
        assert_eq!(watch.has_acted(), read().is_some_and(|kills| kills > 0));
        assert!(!watch.has_acted(), "the same count again");
    }
}
