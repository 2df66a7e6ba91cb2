//! Datasets of equal length, whose samples are combined index by index.

use std::{collections::BTreeMap, fmt};

use anyhow::Context;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ComposeError, Dataset, error::common_length, many};
use crate::data::{context::SampleContext, tuples::each_tuple};

/// Datasets of equal length, whose samples are combined index by index: PyTorch's `StackDataset`.
///
/// A stack of a tuple of 1 to 8 datasets has tuples as samples. A stack of a `BTreeMap` of datasets of one
/// type has maps with the same keys as samples.
///
/// The sample's generator restarts for each part, so each part draws the numbers that it would draw outside
/// of the stack. An image and its mask are cropped in the same way if both parts draw in the same way.
///
/// A part that overrides [`get_many`](Dataset::get_many) loads its samples with one call, the other parts
/// load them one by one. The stack itself has a `get_many` if at least one part has.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// let numbers = TensorDataset::new(Tensor::from_slice(&[1u32, 2, 3], [3])?)?;
/// let names = TensorDataset::new(Tensor::from_slice(b"abc", [3])?)?;
/// let stack = StackDataset::new((numbers, names))?;
/// let loader = DataLoader::builder(stack).batch_size(3).build()?;
/// let (numbers, names) = loader.iter()?.next().unwrap()?;
/// assert_eq!((numbers.as_slice(), names.as_slice()), ([1, 2, 3].as_slice(), b"abc".as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "P: Serialize", deserialize = "P: Deserialize<'de>"))]
pub struct StackDataset<P> {
    parts: P,
    len: usize,
}

impl<P: Parts> StackDataset<P> {
    /// Combines `parts`. Their lengths are read once, here.
    ///
    /// # Errors
    /// Returns [`ComposeError::LengthsDiffer`] if the parts have different lengths, and
    /// [`ComposeError::NoParts`] for an empty map.
    pub fn new(parts: P) -> Result<Self, ComposeError> {
        let len = common_length(parts.lengths())?.ok_or(ComposeError::NoParts { whole: "a stack" })?;
        Ok(Self { parts, len })
    }

    /// Returns the datasets of the stack.
    pub fn parts(&self) -> &P {
        &self.parts
    }
}

impl<P: Parts> Dataset for StackDataset<P> {
    type Sample = P::Sample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<P::Sample> {
        self.parts.get(index, cx)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<P::Sample>> {
        match self.parts.get_many(indices, cx)? {
            Some(samples) => Ok(samples),
            None => many::decline(self, indices, cx),
        }
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.parts.setup(cx)
    }

    fn fingerprint(&self) -> String {
        format!("stack({})", self.parts.fingerprints().join(", "))
    }

    fn layers(&self) -> u8 {
        self.parts.layers()
    }
}

/// The parts of a [`StackDataset`]: a tuple of 1 to 8 datasets, or a `BTreeMap` of datasets of one type.
pub trait Parts: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample of each part.
    type Sample: Send + 'static;

    fn lengths(&self) -> Vec<(String, usize)>;

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample>;

    /// Returns `None` if no part has a `get_many`.
    fn get_many(
        &self,
        indices: &[usize],
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<Vec<Self::Sample>>>;

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()>;

    fn fingerprints(&self) -> Vec<String>;

    fn layers(&self) -> u8;
}

/// Loads one sample of one part.
fn get<D: Dataset>(
    part: &D,
    name: impl fmt::Display,
    index: usize,
    cx: &mut SampleContext,
) -> anyhow::Result<D::Sample> {
    cx.restart_rng();
    part.get(index, cx).with_context(|| format!("dataset {name} of the stack"))
}

/// Loads several samples of one part, if the part has a `get_many`.
fn ask<D: Dataset>(
    part: &D,
    name: impl fmt::Display,
    indices: &[usize],
    cx: &mut SampleContext,
) -> anyhow::Result<Option<Vec<D::Sample>>> {
    many::try_get_many(part, indices, cx).with_context(|| format!("dataset {name} of the stack"))
}

/// Returns the samples that `ask` returned, or loads them one by one.
fn or_one_by_one<D: Dataset>(
    asked: Option<Vec<D::Sample>>,
    part: &D,
    name: impl fmt::Display,
    indices: &[usize],
    cx: &mut SampleContext,
) -> anyhow::Result<std::vec::IntoIter<D::Sample>> {
    let samples = match asked {
        Some(samples) => samples,
        None => {
            many::one_by_one(part, indices, cx).with_context(|| format!("dataset {name} of the stack"))?
        }
    };
    Ok(samples.into_iter())
}

const ONE_PER_INDEX: &str = "each part has returned one sample per index";

macro_rules! parts {
    ($($name:ident $position:tt),*) => {
        impl<$($name: Dataset),*> Parts for ($($name,)*) {
            type Sample = ($($name::Sample,)*);

            fn lengths(&self) -> Vec<(String, usize)> {
                vec![$((format!("dataset {}", $position), self.$position.len())),*]
            }

            fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
                Ok(($(get(&self.$position, $position, index, cx)?,)*))
            }

            fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Option<Vec<Self::Sample>>> {
                let asked = ($(ask(&self.$position, $position, indices, cx)?,)*);
                if $(asked.$position.is_none())&&* {
                    return Ok(None);
                }
                let mut parts = ($(or_one_by_one(asked.$position, &self.$position, $position, indices, cx)?,)*);
                let samples = indices.iter().map(|_| ($(parts.$position.next().expect(ONE_PER_INDEX),)*));
                Ok(Some(samples.collect()))
            }

            fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
                $(self.$position.setup(cx).with_context(|| format!("dataset {} of the stack", $position))?;)*
                Ok(())
            }

            fn fingerprints(&self) -> Vec<String> {
                vec![$(self.$position.fingerprint()),*]
            }

            fn layers(&self) -> u8 {
                [$(self.$position.layers()),*].into_iter().max().unwrap_or(0)
            }
        }
    };
}

each_tuple!(parts);

impl<K, D> Parts for BTreeMap<K, D>
where
    K: Ord + Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    D: Dataset,
{
    type Sample = BTreeMap<K, D::Sample>;

    fn lengths(&self) -> Vec<(String, usize)> {
        self.iter().map(|(key, part)| (format!("dataset {key:?}"), part.len())).collect()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let load = |(key, part): (&K, &D)| Ok((key.clone(), get(part, format_args!("{key:?}"), index, cx)?));
        self.iter().map(load).collect()
    }

    fn get_many(
        &self,
        indices: &[usize],
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<Vec<Self::Sample>>> {
        let mut parts = Vec::with_capacity(self.len());
        for (key, part) in self {
            // All parts have one type, so either all of them have a `get_many` or none has.
            let Some(samples) = ask(part, format_args!("{key:?}"), indices, cx)? else { return Ok(None) };
            parts.push((key, samples.into_iter()));
        }
        let next = |(key, samples): &mut (&K, std::vec::IntoIter<_>)| {
            (key.clone(), samples.next().expect(ONE_PER_INDEX))
        };
        Ok(Some(indices.iter().map(|_| parts.iter_mut().map(next).collect()).collect()))
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.iter_mut().try_for_each(|(key, part)| {
            part.setup(cx).with_context(|| format!("dataset {key:?} of the stack"))
        })
    }

    fn fingerprints(&self) -> Vec<String> {
        self.iter().map(|(key, part)| format!("{key:?}: {}", part.fingerprint())).collect()
    }

    fn layers(&self) -> u8 {
        self.values().map(Dataset::layers).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::{
        ConcatDataset,
        testing::{Counted, Plain, draw},
    };

    fn plain(len: usize) -> Plain {
        Plain { first: 0, len }
    }

    fn counted(len: usize) -> Counted {
        Counted { first: 100, len, surplus: 0 }
    }

    // PyTorch: 15, 17, D05
    #[test]
    fn parts_must_be_equally_long() {
        let error = StackDataset::new((plain(3), counted(3), plain(4))).unwrap_err();
        assert!(error.to_string().starts_with("dataset 2 has 4 samples and dataset 0 has 3"), "{error}");
        let maps =
            BTreeMap::from([("a", plain(1)), ("b", plain(2))].map(|(key, part)| (key.to_owned(), part)));
        let error = StackDataset::new(maps).unwrap_err();
        assert!(
            error.to_string().starts_with("dataset \"b\" has 2 samples and dataset \"a\" has 1"),
            "{error}"
        );
        let error = StackDataset::new(BTreeMap::<String, Plain>::new()).unwrap_err();
        assert!(error.to_string().starts_with("a stack needs at least one dataset"), "{error}");
    }

    // PyTorch: 18, 19, 20, D05
    #[test]
    fn a_sample_combines_the_samples_of_the_parts() {
        let mut cx = SampleContext::new(1);
        let stack = StackDataset::new((plain(3), counted(3))).unwrap();
        assert_eq!(stack.len(), 3);
        cx.set_index(2);
        let (one, two) = stack.get(2, &mut cx).unwrap();
        assert_eq!((one.0, two.0), (2, 102));
        assert_eq!((one.1, two.1), (draw(&mut cx, 2), draw(&mut cx, 2)), "each part draws from the start");
        assert_eq!(StackDataset::new((plain(3),)).unwrap().get(1, &mut cx).unwrap().0.0, 1);

        let map = BTreeMap::from([("b".to_owned(), plain(2)), ("a".to_owned(), plain(2))]);
        let sample = StackDataset::new(map).unwrap().get(1, &mut cx).unwrap();
        assert_eq!(sample.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(sample["b"].0, 1);
    }

    // PyTorch: 21
    #[test]
    fn a_stack_has_get_many_if_a_part_has() {
        let mut cx = SampleContext::new(1);
        let plains = StackDataset::new((plain(3), plain(3))).unwrap();
        assert!(many::try_get_many(&plains, &[0, 1], &mut cx).unwrap().is_none());
        let plains = StackDataset::new(BTreeMap::from([(1u8, plain(3))])).unwrap();
        assert!(many::try_get_many(&plains, &[0, 1], &mut cx).unwrap().is_none());

        for _ in 0..2 {
            let mixed = StackDataset::new((plain(3), counted(3))).unwrap();
            let samples = many::try_get_many(&mixed, &[2, 0], &mut cx).unwrap().unwrap();
            assert_eq!(samples, many::one_by_one(&mixed, &[2, 0], &mut cx).unwrap());
            assert_eq!(samples[0].1.0, 102);
        }
        let maps = StackDataset::new(BTreeMap::from([(1u8, counted(3)), (2, counted(3))])).unwrap();
        let samples = many::try_get_many(&maps, &[2, 0], &mut cx).unwrap().unwrap();
        assert_eq!(samples, many::one_by_one(&maps, &[2, 0], &mut cx).unwrap());
    }

    // PyTorch: 22, 23
    #[test]
    fn an_error_of_get_many_names_the_part() {
        let stack = StackDataset::new((plain(9), Counted { surplus: 2, ..counted(9) })).unwrap();
        let error = stack.get_many(&[0, 4], &mut SampleContext::new(0)).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "dataset 1 of the stack: get_many was asked for 2 samples and returned 4"
        );
        let stack = StackDataset::new((plain(3), ConcatDataset::new([counted(3)]).unwrap())).unwrap();
        let error = stack.get_many(&[0, 3], &mut SampleContext::new(0)).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "dataset 1 of the stack: index 3 is out of range: the dataset has 3 samples"
        );
    }
}
