//! Samples that a batch lists unchanged: strings, and samples wrapped in [`Keep`].

use serde::{Deserialize, Serialize};

use super::{Batch, CollateError, ContentHash, MAX_RESERVED, Sample, Stack};

/// A sample that is not collated: a batch of `Keep<S>` is a `Vec<S>`. Use it for samples without another
/// collation, such as the boxes of an image, whose number differs between images.
///
/// # Examples
/// ```
/// use loader_core::collate::{Keep, Sample, Stack};
///
/// let mut stack = <(Keep<Vec<[f32; 4]>>, u8)>::stack(2);
/// stack.push((Keep(vec![[0.0, 0.0, 1.0, 1.0]]), 1))?;
/// stack.push((Keep(vec![]), 2))?;
/// let (boxes, labels) = stack.finish()?;
/// assert_eq!(boxes, [vec![[0.0, 0.0, 1.0, 1.0]], vec![]]);
/// assert_eq!(labels.as_slice(), [1, 2]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Keep<S>(pub S);

/// The [`Stack`] of `String` and `char`: collects the samples of a batch in a `Vec`.
#[derive(Debug)]
pub struct ListBatchBuilder<S>(Vec<S>);

impl<S> Stack for ListBatchBuilder<S> {
    type Sample = S;
    type Batch = Vec<S>;

    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        self.0.push(sample);
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<Vec<S>, CollateError> {
        Ok(self.0)
    }
}

macro_rules! listed {
    ($($sample:ty),*) => {
        $(
            impl Sample for $sample {
                type Batch = Vec<Self>;
                type Stack = ListBatchBuilder<Self>;

                fn stack(samples: usize) -> ListBatchBuilder<Self> {
                    ListBatchBuilder(Vec::with_capacity(samples.min(MAX_RESERVED)))
                }

                fn hash_content(&self, hash: &mut ContentHash) {
                    hash.value(self);
                }
            }
        )*
    };
}

listed!(String, char);

/// The [`Stack`] of [`Keep`] and `&'static str`: converts each sample, and collects the results in a `Vec`.
#[derive(Debug)]
pub struct MappedListBuilder<S, B> {
    list: Vec<B>,
    into: fn(S) -> B,
}

impl<S, B> Stack for MappedListBuilder<S, B> {
    type Sample = S;
    type Batch = Vec<B>;

    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        self.list.push((self.into)(sample));
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<Vec<B>, CollateError> {
        Ok(self.list)
    }
}

impl<S: Batch> Sample for Keep<S> {
    type Batch = Vec<S>;
    type Stack = MappedListBuilder<Self, S>;

    fn stack(samples: usize) -> Self::Stack {
        MappedListBuilder { list: Vec::with_capacity(samples.min(MAX_RESERVED)), into: |Self(sample)| sample }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.value(&self.0);
    }
}

impl Sample for &'static str {
    type Batch = Vec<String>;
    type Stack = MappedListBuilder<Self, String>;

    fn stack(samples: usize) -> Self::Stack {
        MappedListBuilder { list: Vec::with_capacity(samples.min(MAX_RESERVED)), into: str::to_owned }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.value(self);
    }
}

/// A batch of units is a unit.
impl Sample for () {
    type Batch = ();
    type Stack = UnitStack;

    fn stack(_samples: usize) -> UnitStack {
        UnitStack
    }

    fn hash_content(&self, _hash: &mut ContentHash) {}
}

/// The [`Stack`] of units.
#[derive(Debug)]
pub struct UnitStack;

impl Stack for UnitStack {
    type Sample = ();
    type Batch = ();

    fn push(&mut self, (): ()) -> Result<(), CollateError> {
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<(), CollateError> {
        Ok(())
    }
}
