//! Samples that workers must not try again in this epoch.

use std::collections::{BTreeMap, BTreeSet};

use loader_ipc::frame::{BadSampleRecord, MAX_KNOWN_BAD, ONE_BY_ONE};

use crate::data::fetch::BatchRequest;

#[derive(Debug, Default)]
pub(super) struct KnownBad {
    /// By index of the sample, what is wrong with it.
    reasons: BTreeMap<usize, String>,
    /// Tasks whose samples are not loaded many at once, because one of them has ended a worker.
    one_by_one: BTreeSet<u64>,
}

impl KnownBad {
    /// Notes that a sample is bad. The first reason counts.
    pub(super) fn note(&mut self, sample: usize, reason: String) {
        self.reasons.entry(sample).or_insert(reason);
    }

    pub(super) fn contains(&self, sample: usize) -> bool {
        self.reasons.contains_key(&sample)
    }

    /// Has the samples of a task loaded one by one. False if they are already.
    pub(super) fn load_one_by_one(&mut self, task: u64) -> bool {
        self.one_by_one.insert(task)
    }

    /// Returns the samples that a task must not try: its own first, and then others that may replace one of
    /// its own. At most [`MAX_KNOWN_BAD`].
    pub(super) fn for_task(&self, task: u64, wanted: &BatchRequest) -> Vec<u64> {
        let one_by_one = self.one_by_one.contains(&task).then_some(ONE_BY_ONE);
        let BatchRequest::Samples(indices) = wanted else { return Vec::new() };
        if self.reasons.is_empty() {
            return Vec::from_iter(one_by_one);
        }
        let (own, others): (Vec<usize>, Vec<usize>) =
            self.reasons.keys().partition(|index| indices.contains(index));
        let samples = own.into_iter().chain(others).map(|index| index as u64);
        one_by_one.into_iter().chain(samples).take(MAX_KNOWN_BAD).collect()
    }

    /// Adds the reasons of samples that a worker left out because main had said that they are bad.
    pub(super) fn give_reasons(&self, bad: &mut [BadSampleRecord]) {
        for sample in bad.iter_mut().filter(|sample| sample.reason.is_empty()) {
            let known = usize::try_from(sample.index).ok().and_then(|index| self.reasons.get(&index));
            sample.reason = known.cloned().unwrap_or_default();
        }
    }
}
