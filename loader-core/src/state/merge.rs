//! Merging the states of all ranks, so that another number of ranks can resume.
//!
//! Alternative considered: a rank resumes from its own state in the merged one if the number of ranks has not
//! changed. Rejected because ranks that stopped at different batches would have different numbers of batches
//! left. Ranks that stopped at the same batch go on with the same batches anyway.

#[cfg(test)]
mod tests;

use std::fmt;

use loader_ipc::codec;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    BatchesPosition, Batching, EpochEnd, Origin, Position, ResumedFrom, SHARDS, ShardsPosition, Share,
    SharePolicy, State, VERSION, epoch_end::ShardsAtEnd, must_agree,
};
use crate::{
    data::{
        fetch::{ShardLayout, ShardPosition},
        sample_digest::SampleDigest,
        sampler::{Remaining, Sampler, Taken, share},
    },
    error::Error,
};

/// Error returned by [`State::merge`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is no state.
    #[error("there are no states to merge; give the states of all ranks")]
    NoStates,
    /// Another version of this library wrote a state, in another format.
    #[error(
        "the state of rank {rank} has format version {version}, but this library reads {supported}; resume it with \
         the version of this library that wrote it"
    )]
    Version {
        /// Rank of the state.
        rank: usize,
        /// Version of its format.
        version: u32,
        /// Version of the format that this library reads.
        supported: u32,
    },
    /// A state was merged before.
    #[error(
        "one of the states is the merged state of {world_size} ranks; give the states that its ranks saved"
    )]
    AlreadyMerged {
        /// Number of ranks from whose states it was merged.
        world_size: usize,
    },
    /// A state has a rank that there cannot be, so it was changed.
    #[error(
        "a state has rank {rank}, which is not below its world size {world_size}; give the states that the ranks saved"
    )]
    InvalidRank {
        /// The rank.
        rank: usize,
        /// Number of ranks.
        world_size: usize,
    },
    /// Two states of the same rank differ. Equal states of a rank count as one, as the ranks of a group save them.
    #[error(
        "there are two different states of rank {rank}; give one state of each of the {world_size} ranks (with \
         group_size, one state of each group)"
    )]
    RankTwice {
        /// The rank.
        rank: usize,
        /// Number of ranks.
        world_size: usize,
    },
    /// The state of a rank is missing.
    #[error("the state of rank {rank} of {world_size} is missing; give the states of all ranks")]
    RankMissing {
        /// The rank.
        rank: usize,
        /// Number of ranks.
        world_size: usize,
    },
    /// The states are not of the same run, or not of the same epoch.
    #[error(
        "the states are not of one run: the {part} of rank {rank} is {found}, that of rank {first_rank} is {expected}; \
         {}",
        advice(part)
    )]
    Mismatch {
        /// What differs, such as "seed" or "epoch".
        part: &'static str,
        /// Rank of the state that differs.
        rank: usize,
        /// Its value.
        found: String,
        /// Rank of the state that it was compared with.
        first_rank: usize,
        /// The value of that state.
        expected: String,
    },
    /// The states are of runs that were resumed from different merged states, or one of them was not resumed from one.
    #[error(
        "the states of rank {rank} and of rank {first_rank} are not of one run: they were not resumed from the same \
         merged state; give states that all ranks saved after the last resume"
    )]
    OtherRun {
        /// Rank of the state that differs.
        rank: usize,
        /// Rank of the state that it was compared with.
        first_rank: usize,
    },
    /// Some states have the digest of the epoch, and one does not, for example because it was taken with
    /// [`DataLoader::state`](crate::DataLoader::state) after the rank had loaded its share.
    #[error(
        "the state of rank {rank} has no digest of its share of epoch {epoch}, but other states have; give the states \
         that `Iter::state` returned on each rank, or build all loaders without digest"
    )]
    DigestMissing {
        /// Rank of the state.
        rank: usize,
        /// The epoch.
        epoch: u64,
    },
    /// The option `steps_per_epoch` ended the epoch of a rank, and its state does not say where in the shards, because it
    /// was taken with [`DataLoader::state`](crate::DataLoader::state), or from an iterator of the next epoch.
    #[error(
        "the state of rank {rank} does not say where in its shards `steps_per_epoch` ended epoch {epoch}, and other ranks \
         are still in that epoch; save the state of the iterator after a batch or at the end of the epoch, not after \
         starting the next one"
    )]
    EndMissing {
        /// Rank of the state.
        rank: usize,
        /// The epoch.
        epoch: u64,
    },
    /// The order is not one that ranks share, so no other number of ranks can go on with it.
    #[error(
        "the run had the sampler `{sampler}`, which decides itself what each rank loads, so the loader cannot give what \
         remains to other ranks; resume each rank with its own state, and with the same number of ranks"
    )]
    OwnSampler {
        /// Fingerprint of the sampler.
        sampler: String,
    },
}

/// The part in which the states of ranks differ that are not in the same epoch.
const EPOCH: &str = "epoch";

/// The states of all ranks of a run, and the epoch that they are in.
struct RankStates {
    /// By rank.
    states: Vec<State>,
    epoch: u64,
}

impl State {
    /// Merges the states that the ranks of a run saved, so that any number of ranks can resume from the
    /// result, also a single process without ranks. Each rank gives the merged state to
    /// [`DataLoader::resume`](crate::DataLoader::resume). The ranks then load what remains of the epoch: each
    /// sample that no rank of the earlier run has returned comes once. Later epochs are those of a run that
    /// was never stopped.
    ///
    /// The states may come in any order, and from different positions of the epoch. A rank whose state is the
    /// start of the next epoch has returned all of its batches. If all ranks have returned theirs, nothing of the epoch
    /// is left. The state of one process without ranks can be merged too, so that several ranks resume from it.
    ///
    /// A map-style dataset may be resumed with another batch size. Samplers and batch samplers of your own cannot
    /// be merged. For an iterable dataset, `world_size * shards` must stay the same: the shards are dealt out to
    /// the ranks again. With [`steps_per_epoch`](crate::Builder::steps_per_epoch), all ranks go on after the largest
    /// number of steps that a rank had taken.
    ///
    /// # Errors
    /// [`MergeError`] names the rank and the part that does not fit: the states must be one of each rank, and of
    /// the same run and epoch. A rank's state from before an earlier merge does not fit those from after it.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let loader = |rank, world_size| {
    ///     let numbers = TensorDataset::new(Tensor::from_vec((0..100i64).collect(), [100])?)?;
    ///     let builder = DataLoader::builder(numbers).batch_size(5).shuffle(true);
    ///     anyhow::Ok(builder.distributed(rank, world_size).build()?)
    /// };
    /// let mut seen = Vec::new();
    /// let mut states = Vec::new();
    /// for rank in 0..2 {
    ///     let mut batches = loader(rank, 2)?.iter()?;
    ///     for batch in batches.by_ref().take(4) {
    ///         seen.extend_from_slice(batch?.as_slice());
    ///     }
    ///     states.push(batches.state());
    /// }
    /// let state = State::merge(states)?;
    /// for rank in 0..3 {
    ///     for batch in loader(rank, 3)?.resume(&state)? {
    ///         seen.extend_from_slice(batch?.as_slice());
    ///     }
    /// }
    /// seen.sort();
    /// assert_eq!(seen, (0..100).collect::<Vec<i64>>());
    /// # anyhow::Ok(())
    /// ```
    pub fn merge(states: impl IntoIterator<Item = Self>) -> Result<Self, MergeError> {
        let ranks = RankStates::new(states.into_iter().collect())?;
        let position = ranks.position()?;
        let first = &ranks.states[0];
        let share = Share { rank: 0, ..first.share };
        let is_start = position == Position::Start;
        let bad_samples =
            |(rank, state): (usize, &Self)| if ranks.is_done(rank) { 0 } else { state.bad_samples };
        let end_before = if is_start {
            EpochEnd::of_all_ranks(ranks.states.iter().map(|state| &state.end_before))
        } else {
            EpochEnd::default()
        };
        let steps = |(rank, state): (usize, &Self)| {
            if ranks.is_done(rank) { state.end_before.steps } else { state.steps }
        };
        Ok(Self {
            share,
            is_merged: true,
            epoch: ranks.epoch,
            // All ranks go on after the last step that any rank has taken, so that all of them end the epoch at the same
            // step.
            steps: (0..).zip(&ranks.states).map(steps).max().unwrap_or(0),
            bad_samples: (0..).zip(&ranks.states).map(bad_samples).max().unwrap_or(0),
            digest: if is_start { None } else { ranks.digest()? },
            digest_before: None,
            end_before,
            // All ranks have the same one, or none that matters.
            resumed_from: ranks.resumed_from(first),
            position,
            ..first.clone()
        })
    }

    /// Returns the state of the rank of `origin` in a merged state. Of the digest so far, rank 0 has all, so
    /// that the sum over the ranks is that of the epoch.
    ///
    /// # Errors
    /// If the state does not fit the loader.
    pub(crate) fn of_rank(&self, origin: &Origin) -> Result<Self, Error> {
        self.check_run(origin)?;
        let Share { rank, world_size, .. } = origin.share;
        let position = match (&self.pipeline.batching, &origin.pipeline.batching) {
            (Batching::Shards(theirs), Batching::Shards(ours)) => {
                if theirs.all_shards != ours.all_shards {
                    let (state, shards) = (theirs.all_shards, ours.shards);
                    return Err(Error::StateShards { state, shards, world_size });
                }
                self.position.of_shards(ours)?
            }
            _ => {
                must_agree("sampler", self.pipeline.epoch_order(), origin.pipeline.epoch_order())?;
                self.position.clone()
            }
        };
        let digest = self.digest.filter(|_| rank == 0);
        // The batches of the start of an epoch are those of a run that was never stopped.
        let is_start = self.position == Position::Start;
        let resumed_from = if is_start { self.resumed_from } else { Some(self.as_resumed_from()) };
        Ok(Self::new(origin, self.epoch, self.bad_samples, digest, position)
            .with_steps(self.steps)
            .with_end_before(self.end_before.clone())
            .with_resumed_from(resumed_from))
    }

    /// Returns what names this merged state in the states of the runs that are resumed from it.
    fn as_resumed_from(&self) -> ResumedFrom {
        let bytes =
            codec::encode(&(self.epoch, &self.position)).expect("a position consists of numbers and bytes");
        ResumedFrom { epoch: self.epoch, hash: xxh3_64(&bytes) }
    }

    /// True if no batch of its epoch was returned.
    fn is_start(&self) -> bool {
        match &self.position {
            Position::Start => true,
            Position::Batches(BatchesPosition { next: 0, ahead, taken, .. }) => {
                ahead.is_empty() && taken.is_empty()
            }
            Position::Batches(_) | Position::Remaining(_) => false,
            Position::Shards(position) => {
                position.shards.iter().all(|shard| *shard == ShardPosition::default())
            }
        }
    }
}

impl Position {
    /// Returns the position in the shards of a process.
    fn of_shards(&self, layout: &ShardLayout) -> Result<Self, Error> {
        let Self::Shards(position) = self else { return Ok(self.clone()) };
        must_agree(SHARDS, position.shards.len(), layout.all_shards)?;
        let shards = (0..layout.shards).map(|shard| position.shards[layout.number(shard)].clone());
        Ok(Self::Shards(ShardsPosition { batches: 0, turn: 0, shards: shards.collect() }))
    }
}

impl RankStates {
    fn new(mut states: Vec<State>) -> Result<Self, MergeError> {
        states.sort_by_key(|state| state.share.rank);
        let Some(first) = states.first().cloned() else { return Err(MergeError::NoStates) };
        let world_size = first.share.world_size;
        for state in &states {
            let &State { version, share: Share { rank, world_size, .. }, is_merged, .. } = state;
            if version != VERSION {
                return Err(MergeError::Version { rank, version, supported: VERSION });
            }
            if is_merged {
                return Err(MergeError::AlreadyMerged { world_size });
            }
            first.compare(state)?;
            if rank >= world_size {
                return Err(MergeError::InvalidRank { rank, world_size });
            }
        }
        states.dedup();
        if let Some(pair) = states.windows(2).find(|pair| pair[0].share.rank == pair[1].share.rank) {
            return Err(MergeError::RankTwice { rank: pair[0].share.rank, world_size });
        }
        let missing =
            (0..world_size).find(|&rank| states.get(rank).is_none_or(|state| state.share.rank != rank));
        if let Some(rank) = missing {
            return Err(MergeError::RankMissing { rank, world_size });
        }
        let epoch = states.iter().map(|state| state.epoch).min().unwrap_or_default();
        let ranks = Self { states, epoch };
        let current = ranks.states.iter().find(|state| state.epoch == epoch).unwrap_or(&first);
        for (rank, state) in ranks.states.iter().enumerate() {
            if !(state.epoch == epoch || ranks.is_done(rank)) {
                current.must_equal(EPOCH, state, |state| state.epoch)?;
            }
        }
        let has_other_origin = |state: &&State| {
            let is_same_epoch = state.epoch == current.epoch;
            ranks.resumed_from(state) != ranks.resumed_from(current)
                || (is_same_epoch && state.taken_before() != current.taken_before())
        };
        if let Some(other) = ranks.states.iter().find(has_other_origin) {
            return Err(MergeError::OtherRun { rank: other.share.rank, first_rank: current.share.rank });
        }
        Ok(ranks)
    }

    /// True if the rank has returned all of its batches: it is at the start of the next epoch.
    fn is_done(&self, rank: usize) -> bool {
        let state = &self.states[rank];
        state.epoch == self.epoch.saturating_add(1) && state.is_start()
    }

    /// True if the rank has returned all batches of its share of a map-style dataset, and its state is still in the epoch.
    fn is_at_end(&self, rank: usize) -> bool {
        matches!(self.states[rank].position, Position::Batches(BatchesPosition { next, batches, .. }) if next >= batches)
    }

    /// Returns the merged state from which the run of a rank was resumed. One of an epoch before the last one does
    /// not matter any more: all ranks have loaded what it left.
    fn resumed_from(&self, state: &State) -> Option<ResumedFrom> {
        state.resumed_from.filter(|from| from.epoch.saturating_add(1) >= self.epoch)
    }

    /// Returns the sum of the digests that all ranks have so far; `None` if no rank has one.
    fn digest(&self) -> Result<Option<SampleDigest>, MergeError> {
        let of = |(rank, state): (usize, &State)| {
            if self.is_done(rank) {
                state.digest_before
            } else {
                state.digest.or_else(|| state.is_start().then(SampleDigest::default))
            }
        };
        let has_one = |state: &State| state.digest.is_some() || state.digest_before.is_some();
        if !self.states.iter().any(has_one) {
            return Ok(None);
        }
        let with_rank =
            |(rank, state)| of((rank, state)).ok_or(MergeError::DigestMissing { rank, epoch: self.epoch });
        (0..).zip(&self.states).map(with_rank).sum::<Result<_, _>>().map(Some)
    }

    /// Returns the position of all ranks.
    fn position(&self) -> Result<Position, MergeError> {
        let first = &self.states[0];
        match &first.pipeline.batching {
            Batching::Sampler(sampler) if first.pipeline.shared.is_none() => {
                Err(MergeError::OwnSampler { sampler: sampler.clone() })
            }
            _ if self.states.iter().all(|state| state.epoch == self.epoch && state.is_start()) => {
                Ok(Position::Start)
            }
            Batching::Sampler(_) => Ok(Position::Remaining(self.taken())),
            Batching::Shards(layout) => Ok(Position::Shards(self.shards(layout.shards)?)),
        }
    }

    /// Returns the positions in the shards of all ranks. Each has `count` shards, see [`ShardLayout`].
    fn shards(&self, count: usize) -> Result<ShardsPosition, MergeError> {
        let all = |ended| vec![ShardPosition { ended, ..ShardPosition::default() }; count];
        let world_size = self.states.len();
        let mut shards = vec![ShardPosition::default(); world_size * count];
        for (rank, state) in self.states.iter().enumerate() {
            let of_rank = match (&state.position, &state.end_before.shards) {
                (Position::Shards(position), _) if !self.is_done(rank) => position.shards.clone(),
                _ if !self.is_done(rank) => all(false),
                (_, ShardsAtEnd::AllRead) => all(true),
                (_, ShardsAtEnd::At(position)) => position.shards.clone(),
                (_, ShardsAtEnd::Unknown) => return Err(MergeError::EndMissing { rank, epoch: self.epoch }),
            };
            shards.iter_mut().skip(rank).step_by(world_size).zip(of_rank).for_each(|(at, shard)| *at = shard);
        }
        Ok(ShardsPosition { batches: 0, turn: 0, shards })
    }

    /// Returns what all ranks have taken from the epoch of a map-style dataset.
    fn taken(&self) -> Vec<Taken> {
        let first = self.states.iter().find(|state| state.epoch == self.epoch).unwrap_or(&self.states[0]);
        let mut layers = first.taken_before().to_vec();
        let samples = usize::try_from(first.samples.unwrap_or_default()).unwrap_or(usize::MAX);
        let left = Remaining::new(samples, &layers).len();
        let batch_size = first.pipeline.shared.as_ref().map_or(1, |shared| shared.batch_size.max(1));
        let ranges = |(rank, state): (usize, &State)| {
            let batch = |number: u64| {
                (number.saturating_mul(batch_size), number.saturating_add(1).saturating_mul(batch_size))
            };
            match &state.position {
                _ if self.is_done(rank) => {
                    let Share { world_size, policy, .. } = state.share;
                    let drop_last = policy == SharePolicy::DropLast;
                    let share = share(left, world_size, rank, drop_last).len() as u64;
                    vec![(0, if drop_last { share - share % batch_size } else { share })]
                }
                Position::Batches(BatchesPosition { next, ahead, .. }) => {
                    std::iter::once((0, batch(*next).0))
                        .chain(ahead.iter().map(|&ahead| batch(ahead)))
                        .collect()
                }
                _ => Vec::new(),
            }
        };
        // With `drop_last`, some samples are in no batch of any rank. They do not come in this epoch.
        let ranks = if (0..self.states.len()).all(|rank| self.is_done(rank) || self.is_at_end(rank)) {
            vec![vec![(0, left as u64)]]
        } else {
            (0..).zip(&self.states).map(ranges).collect()
        };
        Taken::add(&mut layers, ranks);
        layers
    }
}

/// Returns what the user can do about states that differ in `part`.
fn advice(part: &str) -> &'static str {
    match part {
        EPOCH => {
            "give states that all ranks saved in one epoch; if errors have cut the epoch of a rank short, resume each \
             rank with its own state, and with the same number of ranks"
        }
        _ => "give states that all ranks saved at about the same time",
    }
}

impl State {
    /// Compares the properties of a run that all ranks have in common.
    fn compare(&self, other: &Self) -> Result<(), MergeError> {
        self.must_equal("kind of dataset", other, |state| state.pipeline.kind())?;
        self.must_equal("world_size", other, |state| state.share.world_size)?;
        self.must_equal("seed", other, |state| state.seed)?;
        self.must_equal("order", other, |state| state.order)?;
        self.must_equal("number of samples", other, |state| super::known(state.samples))?;
        self.must_equal("drop_last", other, |state| state.share.drops_last())?;
        self.must_equal("dataset", other, |state| state.pipeline.dataset.clone())?;
        match &self.pipeline.batching {
            Batching::Sampler(_) => {
                let shared = |state: &Self| state.pipeline.shared.clone().unwrap_or_default();
                self.must_equal("sampler", other, |state| shared(state).order)?;
                self.must_equal("batch_size", other, |state| shared(state).batch_size)
            }
            Batching::Shards(_) => {
                let layout = |state: &Self| match state.pipeline.batching {
                    Batching::Sampler(_) => ShardLayout::default(),
                    Batching::Shards(layout) => layout,
                };
                self.must_equal("batch_size", other, |state| layout(state).batch_size)?;
                self.must_equal(SHARDS, other, |state| layout(state).shards)
            }
        }
    }

    /// Fails if `value` of `other` differs from that of this state.
    fn must_equal<T: PartialEq + fmt::Display>(
        &self,
        part: &'static str,
        other: &Self,
        value: impl Fn(&Self) -> T,
    ) -> Result<(), MergeError> {
        let (expected, found) = (value(self), value(other));
        if expected == found {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(MergeError::Mismatch {
            part,
            rank: other.share.rank,
            found,
            first_rank: self.share.rank,
            expected,
        })
    }

    /// What earlier runs took from the epoch.
    fn taken_before(&self) -> &[Taken] {
        match &self.position {
            Position::Batches(position) => &position.taken,
            Position::Remaining(taken) => taken,
            Position::Start | Position::Shards(_) => &[],
        }
    }
}
