//! Subsets of a dataset.

use serde::{Deserialize, Serialize};

use super::{Dataset, hash, many, with_len};
use crate::data::{context::SampleContext, tensor::Tensor};

/// The samples of a dataset that a list of indices selects: PyTorch's `Subset`. Sample `i` of the subset is
/// sample `indices[i]` of the inner dataset, which may be a subset too.
///
/// Workers share the list. The inner dataset loads a sample as it does without the subset:
/// [`SampleContext::index`] and the generator are those of the index `indices[i]`. Batches and errors have
/// the index `i`.
///
/// # Examples
/// ```
/// use loader_core::{Subset, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Tens;
/// # impl Dataset for Tens {
/// #     type Sample = u32;
/// #     fn len(&self) -> usize {
/// #         5
/// #     }
/// #     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u32> {
/// #         Ok(10 * index as u32)
/// #     }
/// # }
/// // `Tens` has the samples 0, 10, 20, 30, 40.
/// let loader = DataLoader::builder(Subset::new(Tens, [4, 0, 2])?).batch_size(3).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [40, 0, 20]);
/// assert!(Subset::new(Tens, [4, 5]).is_err());
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct Subset<D> {
    dataset: D,
    indices: Tensor<u64>,
}

/// Error returned by [`Subset::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubsetError {
    /// An index is not below the length of the dataset.
    #[error(
        "the subset's index {index} at position {position} is out of range: the dataset has {len} samples"
    )]
    IndexOutOfRange {
        /// The index.
        index: usize,
        /// Position of the index in the list, from 0.
        position: usize,
        /// Number of samples of the dataset.
        len: usize,
    },
}

impl<D: Dataset> Subset<D> {
    /// Creates a subset of the samples `indices` of `dataset`, in that order. An index may occur more than
    /// once.
    ///
    /// # Errors
    /// Returns [`SubsetError::IndexOutOfRange`] if an index is not below the length of `dataset`.
    pub fn new(dataset: D, indices: impl IntoIterator<Item = usize>) -> Result<Self, SubsetError> {
        let len = dataset.len();
        let checked = (0..).zip(indices).map(|(position, index)| {
            if index < len {
                Ok(index as u64)
            } else {
                Err(SubsetError::IndexOutOfRange { index, position, len })
            }
        });
        let indices: Vec<u64> = checked.collect::<Result<_, _>>()?;
        let count = indices.len();
        let indices = Tensor::from_vec(indices, [count]).expect("the shape has the length of the vector");
        Ok(Self { dataset, indices })
    }

    /// Returns the inner dataset.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Returns the index in the inner dataset of sample `index` of the subset.
    ///
    /// # Panics
    /// Panics if `index` is not below the length of the subset.
    pub fn index_of(&self, index: usize) -> usize {
        self.indices.as_slice()[index] as usize
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<D::Sample> {
        let inner = self.index_of(index);
        cx.pass_collated::<Self, D>();
        cx.set_index(inner);
        let sample = self.dataset.get(inner, cx)?;
        // A function around the subset sees the subset's index, as it does after `get_many`.
        cx.set_index(index);
        Ok(sample)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<D::Sample>> {
        let inner: Vec<usize> = indices.iter().map(|&index| self.index_of(index)).collect();
        cx.pass_collated::<Self, D>();
        let loaded = many::try_get_many(&self.dataset, &inner, cx).map_err(|mut error| {
            let outermost = |index| cx.outermost_index(index);
            many::move_failed(&mut error, |failed| {
                inner.iter().position(|&index| outermost(index) == failed).map(|at| outermost(indices[at]))
            });
            error
        });
        match loaded? {
            Some(samples) => Ok(samples),
            None => many::decline(self, indices, cx),
        }
    }

    fn fingerprint(&self) -> String {
        let indices = hash(self.indices.as_slice().iter().copied());
        format!("subset({indices}, {})", with_len(&self.dataset.fingerprint(), Some(self.dataset.len())))
    }

    pass_on_to_inner!(adds_layers: 0);
}

/// Creates a subset for each list of indices. All indices must be below the length of `dataset`.
pub(super) fn parts<D: Dataset + Clone>(dataset: &D, parts: Vec<Vec<usize>>) -> Vec<Subset<D>> {
    let subset = |indices| {
        Subset::new(dataset.clone(), indices).expect("a split contains only indices of the dataset")
    };
    parts.into_iter().map(subset).collect()
}

#[cfg(test)]
mod tests {
    use loader_ipc::attach;
    use rand::Rng;

    use super::*;
    use crate::{Order, StackDataset, data::sampler::SplitError};

    /// Sample `i` consists of `i`, a draw from its generator, and whether `get_many` loaded it.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Noise {
        len: usize,
        many: bool,
    }

    impl Dataset for Noise {
        type Sample = (usize, u64, bool);

        fn len(&self) -> usize {
            self.len
        }

        fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
            assert_eq!(cx.index(), index);
            Ok((index, cx.rng().next_u64(), false))
        }

        fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Self::Sample>> {
            let load = |&index| {
                cx.set_index(index);
                Ok((index, cx.rng().next_u64(), self.many))
            };
            indices.iter().map(load).collect()
        }
    }

    fn subset(indices: &[usize]) -> Subset<Noise> {
        Subset::new(Noise { len: 10, many: true }, indices.iter().copied()).unwrap()
    }

    #[test]
    fn samples_equal_those_of_the_inner_dataset() {
        let (whole, part) = (Noise { len: 10, many: true }, subset(&[7, 2, 2]));
        let mut cx = SampleContext::new(3);
        let expected = whole.get_many(&[2, 7], &mut cx).unwrap();
        assert_eq!(part.len(), 3);
        assert_eq!(part.get_many(&[2, 0], &mut cx).unwrap(), expected);
        let one_by_one = [2, 0].map(|index| {
            cx.set_index(index);
            let (sample, noise, _) = part.get(index, &mut cx).unwrap();
            assert_eq!(cx.index(), index);
            (sample, noise, true)
        });
        assert_eq!(one_by_one.as_slice(), expected);
    }

    /// Fails at sample 3, and has no `get_many`.
    #[derive(Serialize, Deserialize)]
    struct Failing;

    impl Dataset for Failing {
        type Sample = (usize, u64, bool);

        fn len(&self) -> usize {
            10
        }

        fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
            anyhow::ensure!(index != 3, "no sample");
            Ok((index, 0, false))
        }
    }

    #[test]
    fn an_error_has_the_index_of_the_outermost_dataset() {
        fn failed<D: Dataset>(dataset: &D, indices: &[usize]) -> Option<usize> {
            let error = dataset.get_many(indices, &mut SampleContext::new(0)).err();
            many::failed_index(&error.expect("a sample fails"))
        }

        let noise = || Noise { len: 10, many: true };
        let reversed = || Subset::new(Failing, (0..10).rev()).unwrap();
        let inside = StackDataset::new((noise(), reversed())).unwrap();
        assert_eq!(failed(&inside, &[2, 6, 1]), Some(6));
        let outside = Subset::new(StackDataset::new((noise(), Failing)).unwrap(), (0..10).rev()).unwrap();
        assert_eq!(failed(&outside, &[2, 6, 1]), Some(6));
        // The first dataset has the first 10 samples. The bad sample is 10 + 6 of the inner ones, and 19 - 16 reversed.
        let member = noise().concat(Subset::new(noise().concat(reversed()), (0..20).rev()).unwrap());
        assert_eq!(failed(&member, &[2, 13, 29]), Some(13));
    }

    // PyTorch: 8, 9, D08
    #[test]
    fn subsets_nest() {
        let nested = Subset::new(subset(&[7, 2, 5]), [2, 0]).unwrap();
        let samples = nested.get_many(&[0, 1], &mut SampleContext::new(0)).unwrap();
        assert!(samples.iter().map(|sample| sample.0).eq([5, 7]));
        assert_eq!(nested.get(1, &mut SampleContext::new(0)).unwrap().0, 7);
        assert_eq!((nested.index_of(0), nested.dataset().index_of(2)), (2, 5));
    }

    // PyTorch: D08
    #[test]
    fn an_index_out_of_range_is_refused() {
        let error = Subset::new(Noise { len: 10, many: false }, [3, 10]).unwrap_err();
        assert_eq!(error, SubsetError::IndexOutOfRange { index: 10, position: 1, len: 10 });
        assert_eq!(
            error.to_string(),
            "the subset's index 10 at position 1 is out of range: the dataset has 10 samples"
        );
        assert!(Subset::new(Noise { len: 0, many: false }, []).unwrap().is_empty());
    }

    #[test]
    fn workers_share_the_indices() {
        let part = Subset::new(Noise { len: 10_000, many: false }, (0..10_000).rev()).unwrap();
        let (bytes, attached) = attach::encode(&part).unwrap();
        assert!(bytes.len() < 100 && attached.memories.len() == 1);
        let back: Subset<Noise> = attach::decode(&bytes, attached).unwrap();
        assert_eq!((back.len(), back.index_of(1)), (10_000, 9_998));
    }

    // PyTorch: 5, D09
    #[test]
    fn random_splits_return_subsets() {
        let data = Noise { len: 10, many: false };
        let parts = data.clone().random_split_by_counts(&[3, 7], 1, Order::Torch).unwrap();
        let indices =
            |part: &Subset<Noise>| (0..part.len()).map(|index| part.index_of(index)).collect::<Vec<_>>();
        assert_eq!(parts.iter().map(indices).collect::<Vec<_>>(), [vec![5, 6, 1], vec![2, 0, 8, 9, 3, 7, 4]]);
        let halves = data.clone().random_split_by_fractions(&[0.5, 0.5], 1, Order::Native).unwrap();
        assert_eq!(halves.iter().map(Dataset::len).collect::<Vec<_>>(), [5, 5]);
        let error = data.random_split_by_counts(&[1, 2], 0, Order::Native).unwrap_err();
        assert_eq!(error, SplitError::WrongSum { sum: 3, len: 10 });
    }
}
