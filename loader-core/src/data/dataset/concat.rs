//! Map-style datasets, one after the other.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::{ComposeError, Dataset, many, with_len};
use crate::data::context::SampleContext;

/// Datasets of one type, one after the other: PyTorch's `ConcatDataset`. For two datasets of different types
/// see [`Dataset::concat`].
///
/// The lengths of the members are read once, by [`new`](Self::new). A sample's generator is that of its index
/// in the concatenation, so two members with the same content are augmented differently. If the members
/// override [`get_many`](Dataset::get_many), each loads all its samples of a batch with one call.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// let one = TensorDataset::new(Tensor::from_slice(&[1u32, 2, 3], [3])?)?;
/// let two = TensorDataset::new(Tensor::from_slice(&[4u32, 5], [2])?)?;
/// let parts = ConcatDataset::new([one, two])?;
/// assert_eq!(parts.len(), 5);
/// let loader = DataLoader::builder(parts).batch_size(5).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [1, 2, 3, 4, 5]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct ConcatDataset<D> {
    members: Vec<D>,
    /// For each member, the index in the concatenation after its last sample.
    ends: Vec<usize>,
}

impl<D: Dataset> ConcatDataset<D> {
    /// Concatenates `members`. Members without samples are allowed.
    ///
    /// # Errors
    /// Returns [`ComposeError::NoParts`] if there are no members, and [`ComposeError::TooLong`] if the total
    /// number of samples exceeds `usize::MAX`.
    pub fn new(members: impl IntoIterator<Item = D>) -> Result<Self, ComposeError> {
        let members: Vec<D> = members.into_iter().collect();
        if members.is_empty() {
            return Err(ComposeError::NoParts { whole: "a concatenation" });
        }
        let mut ends = Vec::with_capacity(members.len());
        let mut end = 0usize;
        for member in &members {
            end = end.checked_add(member.len()).ok_or(ComposeError::TooLong)?;
            ends.push(end);
        }
        Ok(Self { members, ends })
    }

    /// The members, in order.
    pub fn members(&self) -> &[D] {
        &self.members
    }

    /// Returns the number of the member that has sample `index`, and the sample's index in that member;
    /// `None` if `index` is out of range.
    pub fn locate(&self, index: usize) -> Option<(usize, usize)> {
        // The first member that ends after `index`. A member without samples has the end of its predecessor,
        // so it is never found.
        let member = self.ends.partition_point(|&end| end <= index);
        (member < self.members.len()).then(|| (member, index - self.start(member)))
    }

    /// Returns the index in the concatenation of the member's first sample.
    fn start(&self, member: usize) -> usize {
        member.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    fn located(&self, index: usize) -> anyhow::Result<(usize, usize)> {
        self.locate(index)
            .with_context(|| format!("index {index} is out of range: the dataset has {} samples", self.len()))
    }
}

impl<D: Dataset> Dataset for ConcatDataset<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<D::Sample> {
        let (member, local) = self.located(index)?;
        let loaded = cx.with_offset(self.start(member), |cx| self.members[member].get(local, cx));
        loaded.with_context(|| format!("sample {local} of dataset {member} of {}", self.members.len()))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<D::Sample>> {
        let mut gathered = Gathered::new(indices.len());
        let mut by_member = Vec::with_capacity(indices.len());
        for (position, &index) in indices.iter().enumerate() {
            by_member.push((self.located(index)?.0, position));
        }
        by_member.sort_unstable();
        for run in by_member.chunk_by(|(one, _), (other, _)| one == other) {
            let (member, start) = (run[0].0, self.start(run[0].0));
            let local: Vec<usize> = run.iter().map(|&(_, position)| indices[position] - start).collect();
            let asked = cx.with_offset(start, |cx| many::try_get_many(&self.members[member], &local, cx));
            let asked = asked.with_context(|| format!("dataset {member} of {}", self.members.len()))?;
            // All members have one type, so either all of them have a `get_many` or none has.
            let Some(samples) = asked else { return many::decline(self, indices, cx) };
            gathered.put(run.iter().map(|&(_, position)| position), samples);
        }
        Ok(gathered.finish())
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        let of = self.members.len();
        for (number, member) in self.members.iter_mut().enumerate() {
            member.setup(cx).with_context(|| format!("dataset {number} of {of}"))?;
        }
        Ok(())
    }

    fn fingerprint(&self) -> String {
        let members = self.members.iter().map(|member| with_len(&member.fingerprint(), Some(member.len())));
        format!("concat({})", members.collect::<Vec<_>>().join(", "))
    }

    fn layers(&self) -> u8 {
        self.members.iter().map(Dataset::layers).max().unwrap_or(0)
    }
}

/// Two datasets with the same sample type, one after the other. Created by [`Dataset::concat`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(
    serialize = "A: Serialize, B: Serialize",
    deserialize = "A: Deserialize<'de>, B: Deserialize<'de>"
))]
pub struct Concat<A, B> {
    first: A,
    second: B,
    /// Length of the first dataset.
    middle: usize,
    len: usize,
}

impl<A: Dataset, B: Dataset> Concat<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let middle = first.len();
        let len = middle.saturating_add(second.len());
        Self { first, second, middle, len }
    }
}

impl<A, B> Dataset for Concat<A, B>
where
    A: Dataset,
    B: Dataset<Sample = A::Sample>,
{
    type Sample = A::Sample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<A::Sample> {
        ensure!(index < self.len, "index {index} is out of range: the dataset has {} samples", self.len);
        match index.checked_sub(self.middle) {
            None => self.first.get(index, cx),
            Some(local) => {
                let loaded = cx.with_offset(self.middle, |cx| self.second.get(local, cx));
                loaded.with_context(|| format!("sample {local} of the second dataset"))
            }
        }
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<A::Sample>> {
        let (in_first, in_second): (Vec<usize>, Vec<usize>) =
            (0..indices.len()).partition(|&position| indices[position] < self.middle);
        let of_first: Vec<usize> = in_first.iter().map(|&at| indices[at]).collect();
        let of_second: Vec<usize> = in_second.iter().map(|&at| indices[at] - self.middle).collect();
        // A dataset without a sample in this batch is not asked. The concatenation declines only if it has
        // asked both: the caller would not call `get_many` again, and the dataset that was not asked may have
        // one. Otherwise it loads samples one by one here, which does not change them.
        let ask_first = |cx: &mut SampleContext| {
            if of_first.is_empty() { Ok(None) } else { many::try_get_many(&self.first, &of_first, cx) }
        };
        let ask_second = |cx: &mut SampleContext| {
            if of_second.is_empty() {
                Ok(None)
            } else {
                many::try_get_many(&self.second, &of_second, cx).context("the second dataset")
            }
        };
        let first = ask_first(cx)?;
        let second = cx.with_offset(self.middle, ask_second)?;
        if first.is_none() && second.is_none() && !of_first.is_empty() && !of_second.is_empty() {
            return many::decline(self, indices, cx);
        }
        let first = first.map_or_else(|| many::one_by_one(&self.first, &of_first, cx), Ok)?;
        let one_by_one = |cx: &mut SampleContext| many::one_by_one(&self.second, &of_second, cx);
        let second = second.map_or_else(|| cx.with_offset(self.middle, one_by_one), Ok)?;
        let mut gathered = Gathered::new(indices.len());
        gathered.put(in_first, first);
        gathered.put(in_second, second);
        Ok(gathered.finish())
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.first.setup(cx)?;
        self.second.setup(cx).context("the second dataset")
    }

    fn fingerprint(&self) -> String {
        let (first, second) = (self.first.fingerprint(), self.second.fingerprint());
        let second_len = self.len - self.middle;
        format!("concat({}, {})", with_len(&first, Some(self.middle)), with_len(&second, Some(second_len)))
    }

    fn layers(&self) -> u8 {
        self.first.layers().max(self.second.layers())
    }
}

/// Collects samples that are loaded in a different order than requested.
struct Gathered<S>(Vec<Option<S>>);

impl<S> Gathered<S> {
    fn new(samples: usize) -> Self {
        Self((0..samples).map(|_| None).collect())
    }

    fn put(&mut self, positions: impl IntoIterator<Item = usize>, samples: Vec<S>) {
        positions.into_iter().zip(samples).for_each(|(position, sample)| self.0[position] = Some(sample));
    }

    fn finish(self) -> Vec<S> {
        self.0.into_iter().map(|sample| sample.expect("a member has loaded each sample")).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::dataset::testing::{Counted, Plain, draw};

    fn plain(len: usize) -> Plain {
        Plain { first: 0, len }
    }

    // PyTorch: 24, 25, 26, 27, D06
    #[test]
    fn empty_members_are_skipped_and_a_concatenation_needs_members() {
        let whole = ConcatDataset::new([
            plain(0),
            Plain { first: 10, len: 2 },
            plain(0),
            Plain { first: 20, len: 1 },
        ])
        .unwrap();
        let mut cx = SampleContext::new(0);
        let samples: Vec<u64> = (0..3).map(|index| whole.get(index, &mut cx).unwrap().0).collect();
        assert_eq!(samples, [10, 11, 20]);
        let error = whole.get(3, &mut cx).unwrap_err();
        assert_eq!(error.to_string(), "index 3 is out of range: the dataset has 3 samples");
        let error = ConcatDataset::<Plain>::new([]).unwrap_err();
        assert!(error.to_string().starts_with("a concatenation needs at least one dataset"), "{error}");
        assert_eq!(ConcatDataset::new([plain(usize::MAX), plain(1)]).unwrap_err(), ComposeError::TooLong);
    }

    // PyTorch: 28, D01
    #[test]
    fn datasets_of_different_types_can_be_concatenated() {
        let whole = Plain { first: 0, len: 2 }
            .concat(Counted { first: 100, len: 3, surplus: 0 })
            .concat(Plain { first: 200, len: 1 });
        let mut cx = SampleContext::new(0);
        let samples: Vec<u64> = (0..6).map(|index| whole.get(index, &mut cx).unwrap().0).collect();
        assert_eq!(samples, [0, 1, 100, 101, 102, 200]);
        assert!(whole.get(6, &mut cx).is_err());
    }

    #[test]
    fn the_generator_of_a_sample_is_that_of_its_index_in_the_concatenation() {
        let mut cx = SampleContext::new(7);
        let expected: Vec<u64> = (0..8).map(|index| draw(&mut cx, index)).collect();
        let indices = [7, 0, 5, 2, 6, 1];
        let expected: Vec<u64> = indices.iter().map(|&index| expected[index]).collect();
        let drawn =
            |samples: Vec<(u64, u64)>| -> Vec<u64> { samples.into_iter().map(|(_, drawn)| drawn).collect() };

        let whole = plain(2).concat(ConcatDataset::new([plain(3), plain(3)]).unwrap());
        assert_eq!(drawn(whole.get_many(&indices, &mut cx).unwrap()), expected);
        let counted = |len| Counted { first: 0, len, surplus: 0 };
        let mixed = plain(2).concat(ConcatDataset::new([counted(3), counted(3)]).unwrap());
        assert_eq!(drawn(mixed.get_many(&indices, &mut cx).unwrap()), expected);
        let mapped = mixed.map(|(number, _), cx| Ok((number, draw(cx, cx.index()))));
        let mapped_many = drawn(mapped.get_many(&indices, &mut cx).unwrap());
        assert_eq!(mapped_many, drawn(many::one_by_one(&mapped, &indices, &mut cx).unwrap()));
        assert!(
            mapped_many.iter().zip(&expected).all(|(mapped, own)| mapped != own),
            "the function draws from a generator of its own"
        );
    }

    #[test]
    fn a_concatenation_has_get_many_if_a_member_has() {
        let mut cx = SampleContext::new(0);
        let plains = ConcatDataset::new([plain(3), plain(3)]).unwrap();
        assert!(many::try_get_many(&plains, &[0, 4], &mut cx).unwrap().is_none());
        assert!(many::try_get_many(&plains.concat(plain(1)), &[0, 6], &mut cx).unwrap().is_none());

        let counted = |len| Counted { first: 10, len, surplus: 0 };
        let whole = plain(2).concat(counted(2));
        // A batch with samples of the first member only must not decline, because the second has a
        // `get_many`.
        for indices in [vec![1, 0], vec![3, 0, 2, 1], vec![2]] {
            let samples = many::try_get_many(&whole, &indices, &mut cx).unwrap().unwrap();
            let wanted = indices.iter().map(|&index| if index < 2 { index as u64 } else { index as u64 + 8 });
            assert!(samples.into_iter().map(|(number, _)| number).eq(wanted), "{indices:?}");
        }
        let faulty = ConcatDataset::new([counted(2), Counted { first: 0, len: 2, surplus: 1 }]).unwrap();
        let error = faulty.get_many(&[0, 2, 3], &mut cx).unwrap_err();
        assert_eq!(format!("{error:#}"), "dataset 1 of 2: get_many was asked for 2 samples and returned 3");
    }

    proptest! {
        // PyTorch: 26, D06
        #[test]
        fn locate_agrees_with_counting(lens in prop::collection::vec(0usize..5, 1..12)) {
            let whole = ConcatDataset::new(lens.iter().map(|&len| plain(len))).unwrap();
            let counted: Vec<_> =
                lens.iter().enumerate().flat_map(|(member, &len)| (0..len).map(move |local| (member, local))).collect();
            prop_assert_eq!(whole.len(), counted.len());
            let located: Vec<_> = (0..=counted.len()).map_while(|index| whole.locate(index)).collect();
            prop_assert_eq!(located, counted);
            prop_assert_eq!(whole.locate(usize::MAX), None);
        }

        #[test]
        fn get_many_returns_the_samples_of_get(
            lens in prop::collection::vec(0usize..5, 1..8),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let members = lens.iter().enumerate().map(|(member, &len)| Counted { first: 100 * member as u64, len, surplus: 0 });
            let whole = ConcatDataset::new(members).unwrap();
            prop_assume!(!whole.is_empty());
            let indices: Vec<usize> = picks.iter().map(|pick| pick.index(whole.len())).collect();
            let mut cx = SampleContext::new(3);
            let many = whole.get_many(&indices, &mut cx).unwrap();
            prop_assert_eq!(many, many::one_by_one(&whole, &indices, &mut cx).unwrap());
        }
    }
}
