//! Which deaths of workers a task has caused.
//!
//! A worker may die because of the sample that it loads, or because some other process killed it. How it died tells the two apart, as
//! far as they can be told apart:
//!
//! - A crash (SIGSEGV, SIGABRT, an exit, ...) comes from inside the worker.
//! - The kernel counts the processes that its OOM killer ends.
//! - Main itself ends a worker that stays still.
//! - Any other signal, SIGKILL above all, can come from anywhere. Only a sample in which very many workers in a row are killed counts as
//!   the cause: a worker that is killed in a sample by chance is most likely not killed in the same sample again, and a sample that one
//!   worker has got past has not killed the worker before it.
//!
//! Alternative considered: to compare, after each kill, the attempt with a worker that waits for as long without the sample, which works
//! for any rate of kills. Rejected because each retry would take twice as long, and because kills at a fixed interval defeat it.

use loader_ipc::control::WorkerState;

/// Number of crashes after which their cause is given up.
const MAX_CRASHES: u32 = 2;
/// Number of workers that may be ended for want of memory, or because they stayed still, before the cause is given up. A worker can be
/// short of memory because of another process.
const MAX_LOSSES: u32 = 3;
/// Number of workers in a row that may be killed in the same sample before it is given up.
const MAX_KILLS: u32 = 32;
/// Number of workers that may die on one task before the batch is given up. It bounds the attempts at a batch whose workers are killed at
/// another sample each time.
const MAX_DEATHS: u32 = 100;

/// How a worker died, as evidence against the task that it was on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It ended by itself, or by a signal for what it did.
    Crash,
    /// The OOM killer ended it, or main, because it stayed still.
    Loss,
    /// By a signal that any process can send.
    Kill,
}

/// Where in a task a worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// In the dataset, in collation, or sending.
    pub(super) state: WorkerState,
    /// Index of the sample that it was on, if it was on one.
    pub(super) sample: Option<usize>,
    /// The sample came before in its shard, and is read again on the way to the batch. A kill there says nothing about the batch.
    pub(super) is_read_again: bool,
}

/// What is to blame for deaths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The sample at which the last worker died: it has ended so many workers in a row.
    Sample { deaths: u32 },
    /// The task: so many workers have died on it.
    Task { deaths: u32 },
}

/// The tasks on which workers have died and that have not been answered since.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

#[derive(Debug)]
struct Suspect {
    task: u64,
    place: Place,
    /// Deaths at the place since a worker last died elsewhere in the task.
    here: Counts,
    /// Deaths in the task.
    total: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    crashes: u32,
    losses: u32,
    kills: u32,
}

impl Counts {
    fn add(&mut self, evidence: Evidence) {
        *match evidence {
            Evidence::Crash => &mut self.crashes,
            Evidence::Loss => &mut self.losses,
            Evidence::Kill => &mut self.kills,
        } += 1;
    }

    fn deaths(self) -> u32 {
        self.crashes + self.losses + self.kills
    }

    /// True when enough workers have died of causes that lie in the task.
    fn is_proven(self) -> bool {
        self.crashes >= MAX_CRASHES || self.losses >= MAX_LOSSES
    }
}

impl Suspects {
    /// Notes that a worker died on `task`. Says what is to blame for the deaths there once that is known; the task's count then begins anew.
    ///
    /// `by_sample`: a sample can be given up without its batch.
    pub(super) fn note(
        &mut self,
        task: u64,
        place: Place,
        evidence: Evidence,
        by_sample: bool,
    ) -> Option<Blame> {
        let position = self.0.iter().position(|suspect| suspect.task == task).unwrap_or_else(|| {
            let (here, total) = (Counts::default(), Counts::default());
            self.0.push(Suspect { task, place, here, total });
            self.0.len() - 1
        });
        let suspect = &mut self.0[position];
        if suspect.place != place {
            (suspect.place, suspect.here) = (place, Counts::default());
        }
        suspect.here.add(evidence);
        if evidence != Evidence::Kill || !place.is_read_again {
            suspect.total.add(evidence);
        }
        let blame = suspect.blame(by_sample)?;
        self.0.swap_remove(position);
        Some(blame)
    }

    /// Forgets the deaths on a task: a worker has answered it.
    pub(super) fn acquit(&mut self, task: u64) {
        self.0.retain(|suspect| suspect.task != task);
    }
}

impl Suspect {
    fn blame(&self, by_sample: bool) -> Option<Blame> {
        let is_killed_here = self.here.kills >= MAX_KILLS;
        let (here, total) = (self.here.deaths(), self.total.deaths());
        // All of those here may be on samples that are read again.
        let deaths = total.max(here);
        let is_task = total >= MAX_DEATHS || (!by_sample && (is_killed_here || self.total.is_proven()));
        match by_sample && (is_killed_here || self.here.is_proven()) {
            true => Some(Blame::Sample { deaths: here }),
            false => is_task.then_some(Blame::Task { deaths }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sample: usize) -> Place {
        Place { state: WorkerState::Fetching, sample: Some(sample), is_read_again: false }
    }

    /// Notes deaths of `evidence` at `samples` on task 7.
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
