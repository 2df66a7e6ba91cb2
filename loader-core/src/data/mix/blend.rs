//! The choice of the dataset of each sample.

use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Exhausted, Mix, MixRule,
    tree::{Tree, integers},
};
use crate::data::{context::Shard, random::below};

/// Chooses the datasets of the samples of one epoch, or of one shard of an epoch.
#[derive(Debug)]
pub(crate) struct Blend {
    mix: Mix,
    epoch: u64,
    shard: Shard,
    rng: ChaCha8Rng,
    progress: Progress,
    phase: Phase,
}

/// The position in an epoch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Number of samples given.
    position: u64,
    /// Number of samples that each dataset has given.
    taken: Vec<u64>,
    /// For each dataset, whether it has been read to its end.
    ended: Vec<bool>,
    /// `position` and `taken` at the beginning of the phase.
    start: u64,
    base: Vec<u64>,
    is_over: bool,
    /// Number of words drawn from the generator.
    drawn: u64,
}

impl Progress {
    /// True if this can be the progress of a mix of `count` datasets.
    pub(crate) fn fits(&self, count: usize) -> bool {
        let Self { position, taken, ended, start, base, .. } = self;
        [taken.len(), ended.len(), base.len()] == [count; 3]
            && start <= position
            && base.iter().zip(taken).all(|(base, taken)| base <= taken)
    }
}

/// A part of an epoch in which the weights stay the same. It is computed from the progress.
#[derive(Debug)]
struct Phase {
    /// Weights as integers; 0 for a dataset that was dropped.
    weights: Vec<u64>,
    /// Weights that sum to 1, for [`MixRule::ErrorDriven`].
    shares: Vec<f64>,
    tree: Tree,
    /// Position of the next change of the weights.
    end: u64,
}

/// What follows after a dataset has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The epoch ends.
    End,
    /// The dataset gives its first sample again.
    Again,
    /// Another dataset is to be chosen.
    Choose,
}

impl Blend {
    /// Begins an epoch, or one shard of it.
    pub(crate) fn new(mix: Mix, epoch: u64, shard: Shard, rng: ChaCha8Rng) -> Self {
        let count = mix.weights.len();
        let progress = Progress {
            position: 0,
            taken: vec![0; count],
            ended: vec![false; count],
            start: 0,
            base: vec![0; count],
            is_over: false,
            drawn: 0,
        };
        Self::resume(mix, epoch, shard, rng, progress)
    }

    /// Continues an epoch. `rng` is the generator at its beginning.
    pub(crate) fn resume(
        mix: Mix,
        epoch: u64,
        shard: Shard,
        mut rng: ChaCha8Rng,
        progress: Progress,
    ) -> Self {
        rng.set_word_pos(progress.drawn.into());
        let phase = Phase::new(&mix, epoch, shard, progress.start, &progress.ended);
        Self { mix, epoch, shard, rng, progress, phase }
    }

    /// Returns the progress, for a snapshot.
    pub(crate) fn progress(&self) -> Progress {
        let drawn = self.rng.get_word_pos() as u64;
        Progress { drawn, ..self.progress.clone() }
    }

    /// Number of samples given.
    pub(crate) fn position(&self) -> u64 {
        self.progress.position
    }

    /// Number of samples that `dataset` has given.
    pub(crate) fn taken(&self, dataset: usize) -> u64 {
        self.progress.taken[dataset]
    }

    /// Chooses the dataset of the next sample; `None` at the end of the epoch. The caller then calls
    /// [`commit`](Self::commit), or [`exhausted`](Self::exhausted) if the dataset has no sample left.
    pub(crate) fn choose(&mut self) -> Option<usize> {
        self.change_weights();
        let Progress { position, start, .. } = self.progress;
        if self.progress.is_over || self.left() == Some(0) {
            return None;
        }
        match self.mix.rule {
            MixRule::Even => self.phase.tree.dataset(position - start),
            MixRule::ErrorDriven => self.furthest_behind(),
            MixRule::Random => {
                let total: u64 = self.phase.weights.iter().sum();
                let mut drawn = if total == 0 { 0 } else { below(&mut self.rng, total) };
                self.phase.weights.iter().position(|&weight| {
                    let is_chosen = drawn < weight;
                    drawn = drawn.saturating_sub(weight);
                    is_chosen
                })
            }
        }
    }

    /// Notes that `dataset` gives the next sample.
    pub(crate) fn commit(&mut self, dataset: usize) {
        self.progress.taken[dataset] += 1;
        self.progress.position += 1;
    }

    /// Notes that `dataset`, which was chosen, has no sample left.
    pub(crate) fn exhausted(&mut self, dataset: usize) -> Next {
        self.progress.ended[dataset] = true;
        match self.mix.exhausted {
            Exhausted::Stop => self.progress.is_over = true,
            Exhausted::Repeat => {
                let mut wanted = self.phase.weights.iter().zip(&self.progress.ended);
                let all_ended = wanted.all(|(&weight, &ended)| ended || weight == 0);
                self.progress.is_over = all_ended && self.mix.num_samples.is_none();
            }
            Exhausted::Drop => {
                self.begin_phase();
                return Next::Choose;
            }
        }
        if self.progress.is_over { Next::End } else { Next::Again }
    }

    /// True if `dataset` has a weight now, or after a later change in this epoch, and has not been read to its end.
    pub(crate) fn is_wanted(&self, dataset: usize) -> bool {
        let end = self.mix.num_samples.map_or(u64::MAX, |samples| share(samples, self.shard));
        let mut later = self.mix.changes.iter().filter(|change| {
            let at = share(change.sample, self.shard);
            change.epoch == self.epoch && at > self.progress.position && at < end
        });
        let has_weight = self.phase.weights[dataset] > 0 || later.any(|change| change.weights[dataset] > 0.0);
        has_weight && !self.progress.ended[dataset]
    }

    /// Ends the epoch.
    pub(crate) fn end(&mut self) {
        self.progress.is_over = true;
    }

    /// Skips at most `samples` samples of datasets with the lengths `lens`, without choosing them one by one.
    /// Returns the number of skipped samples, which may be 0. Stops before each sample that
    /// [`exhausted`](Self::exhausted) may concern.
    pub(crate) fn jump(&mut self, samples: u64, lens: &[u64]) -> u64 {
        self.change_weights();
        let has_weight = self.phase.weights.iter().any(|&weight| weight > 0);
        if self.mix.rule != MixRule::Even || self.progress.is_over || !has_weight {
            return 0;
        }
        let Progress { position, start, .. } = self.progress;
        let limit = samples.min(self.phase.end - position).min(self.left().unwrap_or(u64::MAX));
        // The predicate holds for 0 samples, and if it holds for a number, it holds for all smaller numbers.
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.is_before_end(&self.counts(position - start + middle), lens) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        if low > 0 {
            self.progress.taken = self.counts(position - start + low);
            self.progress.position += low;
            if self.mix.exhausted == Exhausted::Repeat {
                let taken = self.progress.taken.iter().zip(lens);
                self.progress
                    .ended
                    .iter_mut()
                    .zip(taken)
                    .for_each(|(ended, (taken, len))| *ended |= taken > len);
            }
        }
        low
    }

    /// True if the epoch, or a phase, can reach the position at which each dataset has given `taken` samples.
    fn is_before_end(&self, taken: &[u64], lens: &[u64]) -> bool {
        let mut datasets = taken.iter().zip(lens).zip(&self.phase.weights).zip(&self.progress.ended);
        match self.mix.exhausted {
            Exhausted::Stop | Exhausted::Drop => datasets.all(|(((taken, len), _), _)| taken <= len),
            Exhausted::Repeat if self.mix.num_samples.is_some() => true,
            Exhausted::Repeat => {
                datasets.any(|(((taken, len), weight), ended)| *weight > 0 && !ended && taken <= len)
            }
        }
    }

    /// Returns how many samples each dataset has given after `samples` samples of the phase.
    fn counts(&self, samples: u64) -> Vec<u64> {
        let mut counts = self.progress.base.clone();
        self.phase.tree.count(samples, &mut counts);
        counts
    }

    /// Number of samples until [`Mix::num_samples`] is reached.
    fn left(&self) -> Option<u64> {
        self.mix.num_samples.map(|samples| share(samples, self.shard).saturating_sub(self.progress.position))
    }

    fn change_weights(&mut self) {
        if self.progress.position >= self.phase.end {
            self.begin_phase();
        }
    }

    /// Begins a phase at the current position, with the weights that hold there.
    fn begin_phase(&mut self) {
        let progress = &mut self.progress;
        (progress.start, progress.base) = (progress.position, progress.taken.clone());
        self.phase = Phase::new(&self.mix, self.epoch, self.shard, progress.start, &progress.ended);
    }

    /// Megatron's rule: the dataset whose share of the samples exceeds what it has given the most.
    ///
    /// For `k` datasets, let `H(j)` be `1 + 1/2 + … + 1/j`. After a dataset has given a sample and before the
    /// shares grow, the `j` datasets that are furthest behind are behind by at most `H(k) - H(j) - 1/k` on
    /// average. For `j = k` this is exact. Otherwise the growth of the shares adds at most 1 to the sum of any
    /// `j` datasets. If the dataset that gives a sample stays among the `j`, the sum falls by 1 again. If not,
    /// it was as far behind as any of the `j`, so the average of the `j` was at most that of these `j + 1`,
    /// and `H(k) - H(j + 1) - 1/k + 1/(j + 1)` is the bound. With `j = 1` and the growth of one share, no
    /// dataset is behind by more than `H(k - 1)`. None is ahead by 1, because the one that is furthest behind
    /// is not ahead.
    fn furthest_behind(&self) -> Option<usize> {
        let Progress { position, start, taken, base, .. } = &self.progress;
        let samples = ((position - start) as f64).max(1.0);
        let mut best: Option<(f64, usize)> = None;
        for (dataset, &share) in self.phase.shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let behind = share * samples - (taken[dataset] - base[dataset]) as f64;
            if best.is_none_or(|(most, _)| behind > most) {
                best = Some((behind, dataset));
            }
        }
        best.map(|(_, dataset)| dataset)
    }
}

impl Phase {
    /// Creates the phase that begins at position `start`, after the datasets in `ended` were read to their
    /// ends.
    fn new(mix: &Mix, epoch: u64, shard: Shard, start: u64, ended: &[bool]) -> Self {
        let begin = |at: usize| {
            let change = &mix.changes[at];
            (change.epoch, if change.epoch == epoch { share(change.sample, shard) } else { 0 })
        };
        let past = (0..mix.changes.len()).take_while(|&at| begin(at) <= (epoch, start)).count();
        let end = if past < mix.changes.len() && begin(past).0 == epoch { begin(past).1 } else { u64::MAX };
        let mut weights = past.checked_sub(1).map_or(&mix.weights, |last| &mix.changes[last].weights).clone();
        if mix.exhausted == Exhausted::Drop {
            weights.iter_mut().zip(ended).filter(|(_, ended)| **ended).for_each(|(weight, _)| *weight = 0.0);
        }
        let sum: f64 = weights.iter().sum();
        let shares = weights.iter().map(|weight| weight / sum).collect();
        let weights = integers(&weights);
        Self { tree: Tree::new(&weights), weights, shares, end }
    }
}

/// Returns the part of `samples` that `shard` has. The parts of all shards sum to `samples`.
fn share(samples: u64, shard: Shard) -> u64 {
    let (index, count) = (shard.index() as u64, shard.count() as u64);
    samples / count + u64::from(index < samples % count)
}
