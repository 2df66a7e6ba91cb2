//! Decides which deaths of workers a task has caused.
//!
//! A worker may die because of the sample that it loads, or because another process killed it. How it died is
//! the evidence for one or the other:
//!
//! - A crash (SIGSEGV, SIGABRT, an exit, ...) comes from inside the worker.
//! - The kernel counts the processes that its OOM killer ends, so main can recognise such a SIGKILL.
//! - Main itself kills a worker that makes no progress, so main knows that cause.
//! - Any other signal, SIGKILL above all, can come from any process. A sample counts as the cause only if
//!   very many workers in a row are killed in it: kills from outside seldom hit the same sample again, and a
//!   sample that one worker has finished did not kill the worker before it.
//!
//! Alternative considered: after each kill, a worker waits as long as the sample took, without loading it,
//! and main compares how often workers are killed with and without the sample; that works at any rate of
//! kills. Rejected because each retry would take twice as long, and because kills at a fixed interval defeat
//! it.

use loader_ipc::control::WorkerState;

/// Number of crashes after which their cause is given up.
const MAX_CRASHES: u32 = 2;
/// Number of workers ended for lack of memory, or because they made no progress, after which their cause is
/// given up. It is larger than [`MAX_CRASHES`] because another process may have taken the memory.
const MAX_LOSSES: u32 = 3;
/// Number of workers in a row that ended in the same sample, each with an unknown exit status because the
/// host reaped it, after which the sample is given up. The deaths may have been crashes, so the number is far
/// smaller than [`MAX_KILLS`].
const MAX_UNKNOWN: u32 = 3;
/// Number of workers in a row killed in the same sample after which the sample is given up.
const MAX_KILLS: u32 = 32;
/// Number of deaths on one task after which its batch is given up. It bounds the attempts at a batch whose
/// workers are killed in a different sample each time.
const MAX_DEATHS: u32 = 100;

/// How a worker died, as evidence against the task that it was on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It ended by itself, or by a signal for something that it did.
    Crash,
    /// The OOM killer ended it, or main killed it because it made no progress.
    Loss,
    /// It ended by a signal that any process can send.
    Kill,
    /// The host reaped it, so main does not know how it ended.
    Unknown,
}

/// Where in a task a worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiedAt {
    /// What the worker was doing: loading, collating or sending.
    pub(super) state: WorkerState,
    /// Index of the sample that the worker was loading, if any.
    pub(super) sample: Option<usize>,
    /// True if the sample precedes the batch in its shard. A worker that opens the shard again reads it only
    /// to reach the batch, so a kill there says nothing about the batch.
    pub(super) is_read_again: bool,
}

/// What has caused the deaths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The sample at which the last worker died. It has ended `deaths` workers in a row.
    Sample { deaths: u32 },
    /// The task. `deaths` workers have died on it.
    Task { deaths: u32 },
}

/// The tasks on which workers have died and that no worker has answered since.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

#[derive(Debug)]
struct Suspect {
    task: u64,
    died_at: DiedAt,
    /// Deaths at `died_at` since a worker last died elsewhere in the task.
    here: Counts,
    /// Deaths on the task since one of its samples was last given up.
    total: Counts,
    /// Number of deaths on the task before those in `total`. They count only towards [`MAX_DEATHS`].
    earlier: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    crashes: u32,
    losses: u32,
    kills: u32,
    unknown: u32,
}

impl Counts {
    fn add(&mut self, evidence: Evidence) {
        *match evidence {
            Evidence::Crash => &mut self.crashes,
            Evidence::Loss => &mut self.losses,
            Evidence::Kill => &mut self.kills,
            Evidence::Unknown => &mut self.unknown,
        } += 1;
    }

    fn deaths(self) -> u32 {
        self.crashes + self.losses + self.kills + self.unknown
    }

    /// True if enough workers have died of crashes, or enough of losses.
    fn is_proven(self) -> bool {
        self.crashes >= MAX_CRASHES || self.losses >= MAX_LOSSES
    }
}

impl Suspects {
    /// Notes that a worker died on `task`. Returns the cause of the deaths on the task once it is known; the
    /// counts of the task then start again from zero, except that deaths before a sample was given up still
    /// count towards [`MAX_DEATHS`].
    ///
    /// `by_sample`: true if a sample can be given up without its batch.
    pub(super) fn note(
        &mut self,
        task: u64,
        died_at: DiedAt,
        evidence: Evidence,
        by_sample: bool,
    ) -> Option<Blame> {
        let position = self.0.iter().position(|suspect| suspect.task == task).unwrap_or_else(|| {
            let (here, total) = (Counts::default(), Counts::default());
            self.0.push(Suspect { task, died_at, here, total, earlier: 0 });
            self.0.len() - 1
        });
        let suspect = &mut self.0[position];
        if suspect.died_at != died_at {
            (suspect.died_at, suspect.here) = (died_at, Counts::default());
        }
        suspect.here.add(evidence);
        if evidence != Evidence::Kill || !died_at.is_read_again {
            suspect.total.add(evidence);
        }
        let blame = suspect.blame(by_sample)?;
        match blame {
            Blame::Sample { .. } => {
                suspect.earlier += suspect.total.deaths();
                (suspect.here, suspect.total) = (Counts::default(), Counts::default());
            }
            Blame::Task { .. } => drop(self.0.swap_remove(position)),
        }
        Some(blame)
    }

    /// Forgets the deaths on a task, because a worker has answered it or it was given up.
    pub(super) fn acquit(&mut self, task: u64) {
        self.0.retain(|suspect| suspect.task != task);
    }
}

impl Suspect {
    fn blame(&self, by_sample: bool) -> Option<Blame> {
        let is_killed_here = self.here.kills >= MAX_KILLS || self.here.unknown >= MAX_UNKNOWN;
        let (here, total) = (self.here.deaths(), self.earlier + self.total.deaths());
        // Kills in samples that are read again are in `here` but not in `total`.
        let deaths = total.max(here);
        let is_task = total >= MAX_DEATHS || (!by_sample && (is_killed_here || self.total.is_proven()));
        if by_sample && total < MAX_DEATHS && (is_killed_here || self.here.is_proven()) {
            Some(Blame::Sample { deaths: here })
        } else {
            is_task.then_some(Blame::Task { deaths })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sample: usize) -> DiedAt {
        DiedAt { state: WorkerState::Fetching, sample: Some(sample), is_read_again: false }
    }

    const COLLATION: DiedAt = DiedAt { state: WorkerState::Collating, sample: None, is_read_again: false };

    /// Notes a death with `evidence` on task 7 at each of `samples`, until one returns a cause.
    fn note(
        suspects: &mut Suspects,
        evidence: Evidence,
        samples: &[usize],
        by_sample: bool,
    ) -> Option<Blame> {
        samples.iter().find_map(|&sample| suspects.note(7, at(sample), evidence, by_sample))
    }

    #[test]
    fn crashes_and_losses_are_counted_for_the_batch_or_for_the_sample() {
        let mut suspects = Suspects::default();
        let blame = note(&mut suspects, Evidence::Crash, &[1, 2], false);
        assert_eq!(blame, Some(Blame::Task { deaths: 2 }));
        assert_eq!(note(&mut suspects, Evidence::Loss, &[1, 2], false), None, "counted anew");
        assert_eq!(note(&mut suspects, Evidence::Loss, &[3], false), Some(Blame::Task { deaths: 3 }));
        assert_eq!(note(&mut suspects, Evidence::Crash, &[1, 2, 1, 2], true), None, "two each, not in a row");
        assert_eq!(note(&mut suspects, Evidence::Crash, &[2], true), Some(Blame::Sample { deaths: 2 }));
    }

    #[test]
    fn a_sample_is_blamed_for_many_kills_in_a_row_only() {
        let mut suspects = Suspects::default();
        let most = vec![3; MAX_KILLS as usize - 1];
        assert_eq!(note(&mut suspects, Evidence::Kill, &most, false), None);
        assert_eq!(note(&mut suspects, Evidence::Kill, &[4], false), None, "a worker has got past it");
        assert_eq!(note(&mut suspects, Evidence::Kill, &most, false), None);
        let deaths = 2 * MAX_KILLS;
        assert_eq!(note(&mut suspects, Evidence::Kill, &[3], false), Some(Blame::Task { deaths }));
        assert_eq!(note(&mut suspects, Evidence::Kill, &most, true), None);
        suspects.acquit(7);
        assert_eq!(note(&mut suspects, Evidence::Kill, &most, true), None, "the batch has come meanwhile");
        assert_eq!(
            note(&mut suspects, Evidence::Kill, &[3], true),
            Some(Blame::Sample { deaths: MAX_KILLS })
        );
    }

    #[test]
    fn samples_that_are_given_up_count_towards_the_end_of_their_batch() {
        let mut suspects = Suspects::default();
        for sample in 0..MAX_DEATHS as usize / 2 - 1 {
            let blame = note(&mut suspects, Evidence::Crash, &[sample, sample], true);
            assert_eq!(blame, Some(Blame::Sample { deaths: 2 }));
        }
        assert_eq!(suspects.note(7, COLLATION, Evidence::Crash, false), None, "the first crash there");
        assert_eq!(
            note(&mut suspects, Evidence::Crash, &[99], true),
            Some(Blame::Task { deaths: MAX_DEATHS })
        );
    }

    #[test]
    fn few_deaths_of_unknown_causes_in_a_row_are_enough() {
        let mut suspects = Suspects::default();
        assert_eq!(note(&mut suspects, Evidence::Unknown, &[1, 1, 2, 2, 1], false), None, "not in a row");
        let blame = note(&mut suspects, Evidence::Unknown, &[1, 1], false);
        assert_eq!(blame, Some(Blame::Task { deaths: 7 }));
        let blame = note(&mut suspects, Evidence::Unknown, &[1, 1, 1], true);
        assert_eq!(blame, Some(Blame::Sample { deaths: 3 }));
    }

    #[test]
    fn a_batch_is_given_up_in_the_end_wherever_its_workers_die() {
        let mut suspects = Suspects::default();
        for by_sample in [false, true] {
            let samples: Vec<usize> = (0..MAX_DEATHS as usize).collect();
            let blame = note(&mut suspects, Evidence::Kill, &samples[1..], by_sample);
            assert_eq!(blame, None);
            let blame = note(&mut suspects, Evidence::Kill, &samples[..1], by_sample);
            assert_eq!(blame, Some(Blame::Task { deaths: MAX_DEATHS }));
        }
    }
}
