//! Map-style datasets mixed by weight.

use rand::Rng;

use super::{Epoch, Permutations, Sampler, cut_into_batches};
use crate::data::{
    context::Shard,
    fingerprint::hash,
    mix::{Blend, Mix, MixError, Next},
    random::{Purpose, generator, key},
};

/// Indices of a [`ConcatDataset`](crate::ConcatDataset) whose members are mixed by weight: Megatron's blended
/// datasets. The module [`mix`](crate::mix) describes the weights, the rules, and what follows when a member
/// has no samples left.
///
/// The order depends only on the seed, the epoch, the lengths and the mix. In the native order and in
/// PyTorch's it is the same.
///
/// # Examples
/// ```
/// use loader_core::{mix::{Exhausted, Mix}, prelude::*, sampler::MixSampler};
///
/// let rows = |first: i64, len: usize| {
///     let numbers = Tensor::from_vec((first..first + len as i64).collect(), [len])?;
///     anyhow::Ok(TensorDataset::new(numbers)?)
/// };
/// let datasets = [rows(0, 100)?, rows(1000, 8)?]; // web text and code
/// // 75 % web text; code is read again and again, in another order each time.
/// let mix = Mix::new([0.75, 0.25])?.exhausted(Exhausted::Repeat);
/// let sampler = MixSampler::of(&datasets, mix)?.shuffle(true);
/// let loader = DataLoader::builder(ConcatDataset::new(datasets)?).sampler(sampler).batch_size(8).build()?;
/// for batch in loader.iter()?.take(12) {
///     let code = batch?.as_slice().iter().filter(|&&row| row >= 1000).count();
///     assert_eq!(code, 2);
/// }
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MixSampler {
    lens: Vec<u64>,
    mix: Mix,
    shuffle: bool,
    rank: usize,
    world_size: usize,
}

impl MixSampler {
    /// Creates a sampler for members with the lengths `lens`.
    ///
    /// # Errors
    /// Returns [`MixError::WrongCount`] if there is not one weight for each member, [`MixError::EmptyDataset`] if a
    /// member has no samples, and [`MixError::TooLong`] if the members have more than `usize::MAX` samples.
    pub fn new(lens: impl IntoIterator<Item = usize>, mix: Mix) -> Result<Self, MixError> {
        let lens: Vec<usize> = lens.into_iter().collect();
        mix.check_count(lens.len())?;
        if let Some(dataset) = lens.iter().position(|&len| len == 0) {
            return Err(MixError::EmptyDataset { dataset });
        }
        let sum = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
        sum.ok_or(MixError::TooLong)?;
        let lens = lens.into_iter().map(|len| len as u64).collect();
        Ok(Self { lens, mix, shuffle: false, rank: 0, world_size: 1 })
    }

    /// If true, each member is read in a new random order in each epoch, and each time that it begins again;
    /// if false (the default), from its beginning to its end.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    /// Gives this process every `world_size`-th sample of the mix, beginning with sample `rank`. All
    /// processes get the same number of samples; up to `world_size - 1` samples at the end are left out. All
    /// processes must have the same seed.
    ///
    /// # Errors
    /// Returns [`MixError::InvalidRank`] if `rank` is not below `world_size`, and [`MixError::NoProcesses`] if
    /// `world_size` is 0.
    pub fn distributed(self, rank: usize, world_size: usize) -> Result<Self, MixError> {
        match world_size {
            0 => Err(MixError::NoProcesses),
            _ if rank >= world_size => Err(MixError::InvalidRank { rank, world_size }),
            _ => Ok(Self { rank, world_size, ..self }),
        }
    }

    /// Begins the order of all processes.
    fn walk(&self, epoch: Epoch) -> Walk {
        let rng = generator(key(Purpose::Mix, epoch.seed, epoch.number), 0);
        let blend = Blend::new(self.mix.clone(), epoch.number, Shard::new(0, 1), rng);
        Walk { blend, lens: self.lens.clone() }
    }

    fn order(&self, epoch: Epoch) -> MixIndices {
        let members = (1..).zip(&self.lens).map(|(stream, &len)| {
            let seed = generator(key(Purpose::Mix, epoch.seed, epoch.number), stream).next_u64();
            Permutations::keyed(len as usize, seed)
        });
        let firsts =
            self.lens.iter().scan(0, |first, &len| Some(std::mem::replace(first, *first + len as usize)));
        // Without other processes, the end need not be known in advance.
        let left = if self.world_size == 1 { usize::MAX } else { self.len_of(epoch) };
        MixIndices {
            walk: self.walk(epoch),
            firsts: firsts.collect(),
            orders: self.shuffle.then(|| members.collect()),
            skip: self.rank as u64,
            others: self.world_size as u64 - 1,
            left,
        }
    }
}

impl Sampler for MixSampler {
    /// Number of indices in epoch 0. If the weights change, or are drawn at random, see
    /// [`len_of`](Sampler::len_of).
    fn len(&self) -> usize {
        self.len_of(Epoch::new(0, 0))
    }

    fn len_of(&self, epoch: Epoch) -> usize {
        let lens = self.lens.iter().map(|&len| usize::try_from(len).ok());
        let samples = self.mix.known_len(lens).unwrap_or_else(|| {
            let mut walk = self.walk(epoch);
            walk.skip(u64::MAX);
            usize::try_from(walk.blend.position()).unwrap_or(usize::MAX)
        });
        samples / self.world_size
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.order(epoch))
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut_into_batches(self.order(epoch), size)
    }

    fn fingerprint(&self) -> String {
        let Self { lens, mix, shuffle, rank, world_size } = self;
        let numbers = [u64::from(*shuffle), *rank as u64, *world_size as u64];
        let numbers = hash(lens.iter().copied().chain(numbers));
        format!("mix({}, {} members, {numbers})", mix.fingerprint(), lens.len())
    }

    fn max_index(&self) -> Option<usize> {
        self.lens.iter().sum::<u64>().checked_sub(1).map(|max| max as usize)
    }
}

/// The members of the samples of an epoch.
struct Walk {
    blend: Blend,
    lens: Vec<u64>,
}

impl Walk {
    /// Returns the member of the next sample, and the number of samples that it has given before.
    fn next(&mut self) -> Option<(usize, u64)> {
        loop {
            let member = self.blend.choose()?;
            let (taken, len) = (self.blend.taken(member), self.lens[member]);
            if taken > 0 && taken.is_multiple_of(len) {
                match self.blend.exhausted(member) {
                    Next::End => return None,
                    Next::Choose => continue,
                    Next::Again => {}
                }
            }
            self.blend.commit(member);
            return Some((member, taken));
        }
    }

    /// Skips `samples` samples, or all if there are fewer.
    fn skip(&mut self, mut samples: u64) {
        while samples > 0 {
            samples -= self.blend.jump(samples, &self.lens);
            if samples > 0 {
                if self.next().is_none() {
                    return;
                }
                samples -= 1;
            }
        }
    }
}

/// The indices of an epoch.
struct MixIndices {
    walk: Walk,
    /// For each member, the index of its first sample in the concatenation.
    firsts: Vec<usize>,
    /// The random orders of the members.
    orders: Option<Vec<Permutations>>,
    /// Number of samples of other processes before the next one.
    skip: u64,
    /// Number of other processes.
    others: u64,
    left: usize,
}

impl Iterator for MixIndices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<usize> {
        self.left = self.left.saturating_sub(skipped);
        self.left = self.left.checked_sub(1)?;
        self.walk.skip((skipped as u64).saturating_mul(self.others + 1).saturating_add(self.skip));
        let (member, taken) = self.walk.next()?;
        self.skip = self.others;
        let local = match &mut self.orders {
            Some(orders) => orders[member].at(taken as usize),
            None => (taken % self.walk.lens[member]) as usize,
        };
        Some(self.firsts[member] + local)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::mix::{Exhausted, MixRule};

    fn rules() -> impl Strategy<Value = MixRule> {
        prop_oneof![Just(MixRule::Even), Just(MixRule::ErrorDriven), Just(MixRule::Random)]
    }

    fn policies() -> impl Strategy<Value = Exhausted> {
        prop_oneof![Just(Exhausted::Stop), Just(Exhausted::Repeat), Just(Exhausted::Drop)]
    }

    fn member(firsts: &[usize], index: usize) -> usize {
        firsts.partition_point(|&first| first <= index) - 1
    }

    fn firsts(lens: &[usize]) -> Vec<usize> {
        (0..lens.len()).map(|member| lens[..member].iter().sum()).collect()
    }

    #[test]
    fn the_policies_differ_when_a_member_has_no_samples_left() {
        let order = |exhausted| {
            let mix = Mix::new([1.0, 1.0]).unwrap().exhausted(exhausted);
            MixSampler::new([2, 4], mix).unwrap().indices(Epoch::new(0, 0)).collect::<Vec<_>>()
        };
        assert_eq!(order(Exhausted::Stop), [0, 2, 1, 3]);
        assert_eq!(order(Exhausted::Drop), [0, 2, 1, 3, 4, 5]);
        assert_eq!(order(Exhausted::Repeat), [0, 2, 1, 3, 0, 4, 1, 5, 0]);
    }

    #[test]
    fn an_epoch_ends_where_a_change_leaves_no_dataset_with_a_weight() {
        let mix = Mix::new([1.0, 1.0]).unwrap().exhausted(Exhausted::Drop);
        let mix = mix.change(0, 21, [1.0, 0.0]).unwrap();
        // The first dataset has ended when only it has a weight.
        let sampler = MixSampler::new([10, 1000], mix).unwrap();
        assert_eq!((sampler.len_of(Epoch::new(0, 0)), sampler.indices(Epoch::new(0, 0)).count()), (21, 21));
        let share = |rank| sampler.clone().distributed(rank, 2).unwrap().indices(Epoch::new(0, 0)).count();
        assert_eq!((share(0), share(1)), (10, 10));
    }

    #[test]
    fn the_order_never_changes_between_releases() {
        let sampler =
            MixSampler::new([10, 10, 10], Mix::new([0.5, 0.3, 0.2]).unwrap()).unwrap().shuffle(true);
        assert!(sampler.indices(Epoch::new(7, 1)).take(12).eq(GOLDEN));
    }

    const GOLDEN: [usize; 12] = [1, 16, 6, 25, 0, 18, 9, 24, 4, 15, 2, 11];

    /// The expected numbers come from Megatron's rule in Python, see `golden/blend.py`.
    #[test]
    fn the_error_driven_rule_is_that_of_megatron() {
        #[derive(serde::Deserialize)]
        struct Case {
            weights: Vec<f64>,
            datasets: Vec<usize>,
            samples: Vec<u64>,
        }
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../../tests/golden/blend.json")).unwrap();
        assert!(cases.len() >= 5);
        for Case { weights, datasets, samples } in cases {
            let lens = vec![1_000_000; weights.len()];
            let sampler =
                MixSampler::new(lens, Mix::new(weights).unwrap().rule(MixRule::ErrorDriven)).unwrap();
            let mut walk = sampler.walk(Epoch::new(0, 0));
            for (dataset, sample) in datasets.into_iter().zip(samples) {
                assert_eq!(walk.next(), Some((dataset, sample)));
            }
        }
    }

    #[test]
    fn a_long_epoch_resumes_without_repeating_its_choices() {
        let mix = Mix::new([0.61, 0.3, 0.09]).unwrap().exhausted(Exhausted::Drop);
        let lens = [4_000_000_000_000, 3_000_000_000_000, 5_000_000_000];
        let sampler = MixSampler::new(lens, mix).unwrap().shuffle(true);
        assert_eq!(Sampler::len(&sampler), 7_005_000_000_000);
        let mut order = sampler.indices(Epoch::new(1, 0));
        assert!(order.nth(7_004_999_999_998).is_some());
        assert!(order.next().is_some() && order.next().is_none());
    }

    #[test]
    fn invalid_members_are_refused() {
        let mix = || Mix::new([1.0, 1.0]).unwrap();
        assert_eq!(MixSampler::new([1], mix()), Err(MixError::WrongCount { weights: 2, datasets: 1 }));
        assert_eq!(MixSampler::new([3, 0], mix()), Err(MixError::EmptyDataset { dataset: 1 }));
        assert_eq!(MixSampler::new([usize::MAX, 1], mix()), Err(MixError::TooLong));
        let error = MixSampler::new([3, 1], mix()).unwrap().distributed(2, 2).unwrap_err();
        assert_eq!(error, MixError::InvalidRank { rank: 2, world_size: 2 });
    }

    proptest! {
        #[test]
        fn the_shares_hold_at_every_sample(
            weights in prop::collection::vec(prop_oneof![1u32..60, Just(1), Just(1000)], 1..12),
            rule in prop_oneof![Just(MixRule::Even), Just(MixRule::ErrorDriven)],
        ) {
            let sum = f64::from(weights.iter().sum::<u32>());
            let shares: Vec<f64> = weights.iter().map(|&weight| f64::from(weight) / sum).collect();
            let mix = Mix::new(weights.iter().map(|&weight| f64::from(weight))).unwrap().rule(rule);
            let sampler = MixSampler::new(vec![10_000; weights.len()], mix).unwrap();
            let bound = match (rule, weights.len()) {
                (MixRule::Even, ..=2) => 0.5,
                (MixRule::Even, 3) => 1.0,
                (MixRule::Even, _) => 2.0,
                (_, datasets) => (1..datasets).map(|number| 1.0 / number as f64).sum(),
            };
            let mut counts = vec![0.0; weights.len()];
            for (number, index) in (1..=500).zip(sampler.indices(Epoch::new(0, 0))) {
                counts[index / 10_000] += 1.0;
                for (count, share) in counts.iter().zip(&shares) {
                    prop_assert!((count - share * f64::from(number)).abs() <= bound + 1e-9);
                }
            }
        }

        #[test]
        fn an_order_resumes_anywhere_and_is_dealt_to_ranks(
            members in prop::collection::vec((1usize..30, 1u32..10), 1..5),
            (rule, exhausted) in (rules(), policies()),
            (samples, at) in (prop::option::of(1u64..80), 0u64..60),
            (epoch, shuffle, world_size, skipped) in (0u64..3, any::<bool>(), 1usize..4, 0usize..50),
            only in prop::option::of(0usize..5),
        ) {
            let (lens, weights): (Vec<usize>, Vec<u32>) = members.into_iter().unzip();
            let only = only.filter(|&only| only < lens.len());
            let changed = weights.iter().rev().enumerate().map(|(position, &weight)| match only {
                Some(only) if only != position => 0.0,
                _ => f64::from(weight) * (position % 2 + 1) as f64 / 7.0,
            });
            let mut mix = Mix::new(weights.iter().map(|&weight| weight.into())).unwrap().rule(rule).exhausted(exhausted);
            mix = mix.change(1, at, changed).unwrap();
            if let Some(samples) = samples {
                mix = mix.num_samples(samples).unwrap();
            }
            let sampler = MixSampler::new(lens, mix).unwrap().shuffle(shuffle);
            let epoch = Epoch::new(5, epoch);
            let whole: Vec<usize> = sampler.indices(epoch).collect();
            prop_assert_eq!(whole.len(), sampler.len_of(epoch));

            let mut rest = sampler.indices(epoch);
            prop_assert_eq!(rest.nth(skipped), whole.get(skipped).copied());
            prop_assert!(rest.eq(whole.iter().copied().skip(skipped + 1)));

            for rank in 0..world_size {
                let share = sampler.clone().distributed(rank, world_size).unwrap();
                let dealt = whole.iter().copied().skip(rank).step_by(world_size).take(whole.len() / world_size);
                prop_assert!(share.indices(epoch).eq(dealt));
                prop_assert_eq!(share.len_of(epoch), whole.len() / world_size);
                let rest: Vec<_> = share.indices(epoch).skip(skipped).collect();
                let mut jumped = share.indices(epoch);
                prop_assert_eq!(jumped.nth(skipped), rest.first().copied());
                prop_assert!(jumped.eq(rest.into_iter().skip(1)));
            }
        }

        #[test]
        fn each_sample_comes_as_often_as_the_policy_says(
            members in prop::collection::vec((1usize..30, 1u32..10), 1..5),
            (rule, exhausted, shuffle) in (rules(), policies(), any::<bool>()),
        ) {
            let (lens, weights): (Vec<usize>, Vec<u32>) = members.into_iter().unzip();
            let mix = Mix::new(weights.iter().map(|&weight| weight.into())).unwrap().rule(rule).exhausted(exhausted);
            let sampler = MixSampler::new(lens.clone(), mix).unwrap().shuffle(shuffle);
            let mut counts = vec![0; lens.iter().sum()];
            sampler.indices(Epoch::new(3, 0)).for_each(|index| counts[index] += 1);
            let firsts = firsts(&lens);
            let of_member = |wanted: usize| {
                let indices = (0..counts.len()).filter(|&index| member(&firsts, index) == wanted);
                indices.map(|index| counts[index]).collect::<Vec<usize>>()
            };
            match exhausted {
                Exhausted::Drop => prop_assert!(counts.iter().all(|&count| count == 1)),
                Exhausted::Stop => {
                    prop_assert!(counts.iter().all(|&count| count <= 1));
                    prop_assert!((0..lens.len()).any(|member| of_member(member).iter().all(|&count| count == 1)));
                }
                Exhausted::Repeat => {
                    prop_assert!(counts.iter().all(|&count| count >= 1));
                    prop_assert!((0..lens.len()).any(|member| of_member(member).iter().all(|&count| count == 1)));
                    for member in 0..lens.len() {
                        let (min, max) = (of_member(member).into_iter().min(), of_member(member).into_iter().max());
                        prop_assert!(max.unwrap() - min.unwrap() <= 1, "a pass begins after the previous one has ended");
                    }
                }
            }
        }
    }
}
