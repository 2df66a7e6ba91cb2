//! Watches whether the kernel's OOM killer has ended a process, to distinguish its SIGKILL from one that a
//! process sent.

use std::fs;

/// File with the kernel's count of processes that its OOM killer has ended, including those ended at the
/// limit of a control group.
const COUNTERS: &str = "/proc/vmstat";

/// The kernel's count when it was read last.
#[derive(Debug)]
pub struct OomWatch {
    kills: Option<u64>,
}

impl OomWatch {
    /// Reads the count. If the kernel shows no count, [`has_acted`](Self::has_acted) is always false.
    pub fn start() -> Self {
        Self { kills: read() }
    }

    /// True when the OOM killer has ended a process, anywhere on this machine, since the last call. The kernel counts before it kills.
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
    fn only_a_count_that_rises_means_that_it_has_acted() {
        assert_eq!(count("nr_free_pages 12\noom_kill 3\noom_kill_x 4\n"), Some(3));
        assert_eq!(count("nr_free_pages 12\n"), None);
        let mut watch = OomWatch { kills: read().map(|kills| kills + 1) };
        assert!(!watch.has_acted(), "it counts from another machine");
        watch.kills = Some(0);
        assert_eq!(watch.has_acted(), read().is_some_and(|kills| kills > 0));
        assert!(!watch.has_acted(), "nothing happened since");
    }
}
