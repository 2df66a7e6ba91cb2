//! The plan of an epoch of a map-style dataset: its batches of indices, numbered and checked.

use std::{
    any::Any,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

use loader_ipc::frame::Stage;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    data::{
        panic::to_failure,
        random::Epoch,
        sampler::{BatchSampler, Taken},
    },
    error::Error,
    state::{BATCHES, BatchesPosition, Position, must_agree},
};

type Batches = Box<dyn Iterator<Item = Vec<usize>> + Send>;

/// The batches of one epoch that have not been given out yet. It takes each batch from the sampler when it is asked for
/// it: a sampler may draw from a generator that the program uses too. Once it has given as many batches as the sampler
/// has announced, if that is a number above 0, it takes one in advance, so that it knows whether it is over.
pub(crate) struct Plan {
    batches: Batches,
    epoch: u64,
    upcoming: Upcoming,
    /// Number of the next batch.
    next: u64,
    /// Hash of the indices of the epoch's first batch; 0 if there is none, and `None` if the sampler was not asked for
    /// it, or has panicked then.
    fingerprint: Option<u64>,
    /// Number of batches that the sampler's `len` returned. 0 may mean that it does not know.
    announced: usize,
    /// Number of samples at the end of the last batch that another rank loads too.
    repeated: usize,
    /// Number of samples of the dataset.
    samples: usize,
    /// What earlier runs have returned of the epoch; the plan is of a share of the rest.
    taken: Vec<Taken>,
    /// Number of the batch for which the sampler panicked.
    failed_at: Option<u64>,
}

/// The next batch of a plan.
#[derive(Debug)]
enum Upcoming {
    /// The sampler has not been asked for it.
    NotDrawn,
    Drawn(Result<Vec<usize>, Error>),
    /// There are no more batches.
    End,
}

/// One batch to load.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) number: u64,
    pub(crate) indices: Vec<usize>,
    /// Set if the batch cannot be loaded, because an index is out of range or the sampler panicked.
    pub(crate) error: Option<Error>,
}

impl Plan {
    pub(crate) fn new(sampler: &dyn BatchSampler, epoch: Epoch, samples: usize) -> Self {
        let begun = catch_unwind(AssertUnwindSafe(|| {
            (sampler.len(epoch), sampler.repeated(epoch), sampler.batches(epoch))
        }));
        let (announced, repeated, batches, panicked) = match begun {
            Ok((announced, repeated, batches)) => (announced, repeated, batches, None),
            Err(payload) => (1, 0, no_batches(), Some(sampler_panicked(&*payload, 0))),
        };
        let (epoch, next, taken) = (epoch.number, 0, Vec::new());
        let failed_at = panicked.is_some().then_some(0);
        let upcoming = panicked.map_or(Upcoming::NotDrawn, |error| Upcoming::Drawn(Err(error)));
        let fingerprint = None;
        Self { batches, epoch, upcoming, next, fingerprint, announced, repeated, samples, taken, failed_at }
    }

    /// Takes the first batch from the sampler, if that has not been done.
    pub(crate) fn draw_first(&mut self) {
        if self.fingerprint.is_none() && !self.has_failed() {
            self.upcoming = self.draw(0, 0);
        }
    }

    /// Notes that the sampler gives a share of what `taken` leaves of the epoch.
    pub(crate) fn after(self, taken: Vec<Taken>) -> Self {
        Self { taken, ..self }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes the position for a state. `next` is the first batch that was not returned, `ahead` the later
    /// batches that were. A resumed epoch asks the sampler again for a batch for which it has panicked.
    pub(crate) fn position(&self, next: u64, ahead: Vec<u64>) -> Position {
        let (batches, taken) = (self.announced as u64, self.taken.clone());
        let next = self.failed_at.map_or(next, |failed| next.min(failed));
        let is_end = self.is_over() && next == self.next;
        match self.fingerprint {
            Some(fingerprint) if next > 0 || !ahead.is_empty() => {
                Position::Batches(BatchesPosition { next, ahead, batches, is_end, fingerprint, taken })
            }
            _ if taken.is_empty() => Position::Start,
            _ => Position::Remaining(taken),
        }
    }

    /// True if the sampler has panicked, and so the rest of the epoch is unknown.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    /// Checks that a state was taken from an equal plan, and skips the batches before its position.
    pub(crate) fn continue_from(&mut self, position: &BatchesPosition) -> Result<(), Error> {
        position.check()?;
        self.draw_first();
        must_agree(BATCHES, position.batches, self.announced as u64)?;
        // A user's own sampler may give another order although its fingerprint is the same. In that case, the
        // first batch of the epoch nearly always differs.
        let hex = |hash: u64| format!("{hash:016x}");
        must_agree(
            "first batch of the epoch (hash of its indices)",
            hex(position.fingerprint),
            hex(self.fingerprint.unwrap_or(0)),
        )?;
        if !self.skip_to(position.next) {
            let (returned, ours) = (format!("at least {}", position.next), "smaller".to_owned());
            return must_agree(BATCHES, returned, ours);
        }
        Ok(())
    }

    /// Number of the next batch.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Skips the batches before number `next`. Returns false if the sampler ends before.
    pub(crate) fn skip_to(&mut self, next: u64) -> bool {
        let Some(ahead) = next.checked_sub(self.next).filter(|&ahead| ahead > 0) else { return true };
        self.draw_first();
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        let last = match mem::replace(&mut self.upcoming, Upcoming::End) {
            Upcoming::NotDrawn => self.draw(ahead - 1, next),
            Upcoming::Drawn(_) if ahead > 1 => self.draw(ahead - 2, next),
            first => first,
        };
        let is_there = !matches!(last, Upcoming::End);
        self.upcoming = match last {
            Upcoming::Drawn(Ok(_)) => self.draw(0, next),
            end_or_panic => end_or_panic,
        };
        self.next = next;
        is_there
    }

    /// True if it is known that the epoch has no more batches.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.upcoming, Upcoming::End) && !self.has_failed()
    }

    /// Returns the number of samples at the end of batch `number` that another rank loads too: 0 for all
    /// batches but the last. The batch must have been taken before.
    pub(crate) fn repeated_of(&self, number: u64) -> usize {
        if self.is_over() && number + 1 == self.next { self.repeated } else { 0 }
    }

    /// Once the sampler's number of batches is known to differ from its `len`: returns its `len`, and the
    /// number of batches that it has given so far.
    pub(crate) fn miscount(&self) -> Option<(usize, u64)> {
        let given = self.next + u64::from(matches!(self.upcoming, Upcoming::Drawn(_)));
        let is_wrong = given > self.announced as u64 || (self.is_over() && given < self.announced as u64);
        (is_wrong && !self.has_failed()).then_some((self.announced, given))
    }

    /// Takes a batch from the sampler, after skipping `ahead` batches. The sampler is user code, so it may
    /// panic.
    fn draw(&mut self, ahead: usize, number: u64) -> Upcoming {
        let batches = &mut self.batches;
        let drawn = match catch_unwind(AssertUnwindSafe(|| batches.nth(ahead))) {
            Ok(Some(indices)) => Upcoming::Drawn(Ok(indices)),
            Ok(None) => Upcoming::End,
            Err(payload) => {
                // The iterator is dropped: after a panic it may return anything.
                self.batches = no_batches();
                self.failed_at = Some(number);
                Upcoming::Drawn(Err(sampler_panicked(&*payload, number)))
            }
        };
        if self.fingerprint.is_none() && !self.has_failed() {
            self.fingerprint =
                Some(if let Upcoming::Drawn(Ok(indices)) = &drawn { hashed(indices) } else { 0 });
        }
        drawn
    }
}

fn hashed(indices: &[usize]) -> u64 {
    let mut hash = Xxh3::new();
    indices.iter().for_each(|&index| hash.update(&(index as u64).to_le_bytes()));
    hash.digest()
}

fn no_batches() -> Batches {
    Box::new(std::iter::empty())
}

fn sampler_panicked(payload: &(dyn Any + Send), batch: u64) -> Error {
    let message = to_failure(payload, Stage::Fetch, None).chain.concat();
    Error::SamplerPanicked { batch, message }
}

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let number = self.next;
        let mut upcoming = mem::replace(&mut self.upcoming, Upcoming::NotDrawn);
        if let Upcoming::NotDrawn = upcoming {
            upcoming = self.draw(0, number);
        }
        let Upcoming::Drawn(drawn) = upcoming else {
            self.upcoming = Upcoming::End;
            return None;
        };
        self.next += 1;
        if self.announced > 0 && self.next >= self.announced as u64 {
            self.upcoming = self.draw(0, self.next);
        }
        Some(match drawn {
            Err(error) => Planned { number, indices: Vec::new(), error: Some(error) },
            Ok(indices) => {
                let wrong = indices.iter().copied().find(|&index| index >= self.samples);
                let out_of_range = |index| Error::IndexOutOfRange { index, batch: number, len: self.samples };
                Planned { number, error: wrong.map(out_of_range), indices }
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.announced.saturating_sub(usize::try_from(self.next).unwrap_or(usize::MAX));
        (left, Some(left))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("epoch", &self.epoch).field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sampler::{FixedBatches, RandomSampler};

    fn plan(samples: usize) -> Plan {
        Plan::new(&FixedBatches::new(RandomSampler::new(samples), 64, false), Epoch::new(3, 0), samples)
    }

    fn position_after(mut plan: Plan, batches: u64) -> BatchesPosition {
        plan.by_ref().take(batches as usize).for_each(drop);
        let Position::Batches(position) = plan.position(batches, Vec::new()) else { panic!("no position") };
        position
    }

    /// A list of the indices would take 8 GB.
    #[test]
    fn a_plan_continues_far_ahead_in_a_thousand_million_samples() {
        const SAMPLES: usize = 1_000_000_000;
        let position = BatchesPosition { next: 3_000_000, ..position_after(plan(SAMPLES), 1) };
        let mut rest = plan(SAMPLES);
        rest.continue_from(&position).unwrap();
        assert_eq!(rest.next().map(|batch| (batch.number, batch.indices.len())), Some((3_000_000, 64)));
    }

    #[test]
    fn a_position_after_each_batch_is_continued_and_one_behind_the_end_is_refused() {
        let whole: Vec<_> = plan(640).map(|batch| batch.indices).collect();
        for batches in 1..=10 {
            let mut rest = plan(640);
            rest.continue_from(&position_after(plan(640), batches)).unwrap();
            assert!(rest.map(|batch| batch.indices).eq(whole[batches as usize..].iter().cloned()));
        }
        let refused = |change: &dyn Fn(&mut BatchesPosition)| {
            let mut position = position_after(plan(640), 4);
            change(&mut position);
            plan(640).continue_from(&position).unwrap_err().to_string()
        };
        let behind = refused(&|position| position.next = 11);
        assert!(behind.contains("its number of batches is at least 11, the loader's is smaller"), "{behind}");
        for ahead in [vec![4], vec![7, 6], vec![6, 6]] {
            let message = refused(&|position| position.ahead = ahead.clone());
            assert!(message.contains("its batch that was returned before its turn is"), "{message}");
        }
    }
}
