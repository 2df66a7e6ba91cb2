//! Samples that consist of parts: tuples and maps.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    marker::PhantomData,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{CollateError, CollateProblem, ContentHash, Sample, Stack};
use crate::data::tuples::each_tuple;

macro_rules! tuples {
    ($($name:ident $position:tt),*) => {
        impl<$($name: Stack),*> Stack for ($($name,)*) {
            type Sample = ($($name::Sample,)*);
            type Batch = ($($name::Batch,)*);

            fn push(&mut self, sample: Self::Sample) -> Result<(), CollateError> {
                $(self.$position.push(sample.$position).map_err(|error| error.in_field(stringify!($position)))?;)*
                Ok(())
            }

            fn makes_tensors(&self) -> bool {
                $(self.$position.makes_tensors())||*
            }

            fn finish(self) -> Result<Self::Batch, CollateError> {
                Ok(($(self.$position.finish().map_err(|error| error.in_field(stringify!($position)))?,)*))
            }
        }

        impl<$($name: Sample),*> Sample for ($($name,)*) {
            type Batch = ($($name::Batch,)*);
            type Stack = ($($name::Stack,)*);

            fn stack(samples: usize) -> Self::Stack {
                ($($name::stack(samples),)*)
            }

            fn hash_content(&self, hash: &mut ContentHash) {
                $(self.$position.hash_content(hash);)*
            }
        }
    };
}

each_tuple!(tuples);

/// The [`Stack`] of `HashMap` and `BTreeMap`: holds one stack for each key. All samples must have the keys of
/// the first sample.
pub struct MapStack<M, K, S: Sample> {
    capacity: usize,
    stacks: Option<Vec<(K, S::Stack)>>,
    map: PhantomData<fn() -> M>,
}

impl<M, K, S: Sample> fmt::Debug for MapStack<M, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStack").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

macro_rules! maps {
    ($map:ident, $($bound:ident),*) => {
        impl<K: $($bound +)* fmt::Debug, S: Sample> Stack for MapStack<$map<K, S>, K, S> {
            type Sample = $map<K, S>;
            type Batch = $map<K, S::Batch>;

            fn push(&mut self, mut sample: Self::Sample) -> Result<(), CollateError> {
                let Some(stacks) = &mut self.stacks else {
                    let mut stacks = Vec::with_capacity(sample.len());
                    for (key, value) in sample {
                        let mut stack = S::stack(self.capacity);
                        stack.push(value).map_err(|error| error.in_field(format!("{key:?}")))?;
                        stacks.push((key, stack));
                    }
                    self.stacks = Some(stacks);
                    return Ok(());
                };
                for (key, stack) in stacks {
                    let missing = || CollateProblem::MissingKey { key: format!("{key:?}") };
                    let value = sample.remove(key).ok_or_else(missing)?;
                    stack.push(value).map_err(|error| error.in_field(format!("{key:?}")))?;
                }
                match sample.into_keys().next() {
                    Some(key) => Err(CollateProblem::NewKey { key: format!("{key:?}") }.into()),
                    None => Ok(()),
                }
            }

            fn makes_tensors(&self) -> bool {
                self.stacks.as_ref().is_none_or(|stacks| stacks.iter().any(|(_, stack)| stack.makes_tensors()))
            }

            fn finish(self) -> Result<Self::Batch, CollateError> {
                let stacks = self.stacks.unwrap_or_default().into_iter();
                stacks.map(|(key, stack)| Ok((key, stack.finish()?))).collect()
            }
        }

        impl<K, S> Sample for $map<K, S>
        where
            K: $($bound +)* fmt::Debug + Serialize + DeserializeOwned + Send + 'static,
            S: Sample,
        {
            type Batch = $map<K, S::Batch>;
            type Stack = MapStack<Self, K, S>;

            fn stack(samples: usize) -> Self::Stack {
                MapStack { capacity: samples, stacks: None, map: PhantomData }
            }

            fn hash_content(&self, hash: &mut ContentHash) {
                hash.unordered(self.iter(), |(key, sample), hash| {
                    hash.value(key);
                    sample.hash_content(hash);
                });
            }
        }
    };
}

maps!(HashMap, Eq, Hash);
maps!(BTreeMap, Ord);

#[cfg(test)]
mod tests {
    use super::{super::testing::stack, *};
    use crate::Tensor;

    #[test]
    fn numbers_arrays_and_strings() {
        let (numbers, (arrays, names)) =
            stack([(1u8, ([1.0f32, 2.0], "a".to_owned())), (2, ([3.0, 4.0], "b".to_owned()))]).unwrap();
        assert_eq!(numbers, Tensor::from_slice(&[1u8, 2], [2]).unwrap());
        assert_eq!(arrays, Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap());
        assert_eq!(names, ["a", "b"]);
        assert_eq!(stack([[[1u8, 2, 3], [4, 5, 6]]]).unwrap().shape(), [1, 2, 3]);
        assert_eq!(stack([[[[1u8; 4]; 3]; 2]]).unwrap().shape(), [1, 2, 3, 4]);
        assert_eq!(stack([vec![[1u8; 4]; 3]]).unwrap().shape(), [1, 3, 4]);
        assert_eq!(stack([vec![1.5f64].into_boxed_slice()]).unwrap().as_slice(), [1.5]);
        assert_eq!(stack([(vec![true, false], vec![3usize])]).unwrap().0.as_slice(), [true, false]);
        assert_eq!(stack([("a", 'b', ())]).unwrap(), (vec!["a".to_owned()], vec!['b'], ()));
        assert_eq!(stack([true, false]).unwrap().as_slice(), [true, false]);
        assert_eq!(stack([3usize]).unwrap().as_slice(), [3u64]);
        assert_eq!(stack::<(f32,)>([]).unwrap().0.len(), 0);
    }

    #[test]
    fn errors_about_shapes_name_the_field_and_both_shapes() {
        let error = stack([(0u8, (vec![1i32, 2], 0u8)), (1, (vec![3], 1))]).unwrap_err();
        assert_eq!(error.field, ["1", "0"]);
        let text = error.to_string();
        assert!(
            text.starts_with("field `1.0`: shape [1] differs from the batch's first sample, [2]"),
            "{text}"
        );
    }

    #[test]
    fn maps_need_the_same_keys() {
        let sample = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), key.len() as u32)).collect();
        let batch: BTreeMap<String, Tensor<u32>> =
            stack::<BTreeMap<_, _>>([sample(&["a", "bc"]), sample(&["bc", "a"])]).unwrap();
        assert_eq!(batch["bc"].as_slice(), [2, 2]);
        let missing = stack::<BTreeMap<_, _>>([sample(&["a", "b"]), sample(&["a"])]).unwrap_err().problem;
        assert!(matches!(&missing, CollateProblem::MissingKey { key } if key == "\"b\""), "{missing}");
        let new = stack::<BTreeMap<_, _>>([sample(&["a"]), sample(&["a", "b"])]).unwrap_err().problem;
        assert!(matches!(&new, CollateProblem::NewKey { key } if key == "\"b\""), "{new}");
    }
}
