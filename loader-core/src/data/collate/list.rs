//! Samples that are lists of samples, and optional samples.

use std::fmt;

use super::{CollateError, CollateProblem, ContentHash, Sample, Stack};
use crate::data::tensor::{Element, Tensor};

/// A list of samples as one sample. As in PyTorch, a batch of lists is a list of batches, one for each
/// position. All lists of a batch must have the same length.
///
/// A `Vec<T>` of numbers is one row of a tensor. Rust's trait rules do not allow another implementation for a
/// `Vec` of samples, so wrap such a `Vec` in a `List`. `Vec<String>` and `Vec<Tensor<T>>` need no wrapper.
///
/// # Examples
/// ```
/// use loader_core::collate::{List, Sample, Stack};
///
/// let mut stack = List::stack(2);
/// stack.push(List(vec![(1u8, "a"), (2, "b"), (3, "c")]))?;
/// stack.push(List(vec![(4, "d"), (5, "e"), (6, "f")]))?;
/// let batches = stack.finish()?;
/// assert_eq!(batches.len(), 3);
/// assert_eq!(batches[2].0.as_slice(), [3, 6]);
/// assert_eq!(batches[2].1, ["c", "f"]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct List<S>(pub Vec<S>);

/// Stacks lists position by position. All lists must have the length of the first.
struct PositionStacks<S: Sample> {
    capacity: usize,
    stacks: Option<Vec<S::Stack>>,
}

impl<S: Sample> PositionStacks<S> {
    fn push_list(&mut self, list: Vec<S>) -> Result<(), CollateError> {
        let capacity = self.capacity;
        let stacks = self.stacks.get_or_insert_with(|| list.iter().map(|_| S::stack(capacity)).collect());
        if stacks.len() != list.len() {
            return Err(CollateProblem::ListLength { expected: stacks.len(), found: list.len() }.into());
        }
        for (position, (stack, sample)) in stacks.iter_mut().zip(list).enumerate() {
            stack.push(sample).map_err(|error| error.in_field(position.to_string()))?;
        }
        Ok(())
    }

    fn finish_lists(self) -> Result<Vec<S::Batch>, CollateError> {
        let stacks = self.stacks.unwrap_or_default().into_iter().enumerate();
        stacks
            .map(|(position, stack)| stack.finish().map_err(|error| error.in_field(position.to_string())))
            .collect()
    }

    fn lists_make_tensors(&self) -> bool {
        self.stacks.as_ref().is_none_or(|stacks| stacks.iter().any(Stack::makes_tensors))
    }
}

macro_rules! lists {
    ($([$($generics:tt)*] $list:ty, $stack:ident, $sample:ty, $list_of:expr, $items_of:expr;)*) => {
        $(
            impl<$($generics)*> Stack for $stack<$sample> {
                type Sample = $list;
                type Batch = Vec<<$sample as Sample>::Batch>;

                fn push(&mut self, sample: $list) -> Result<(), CollateError> {
                    let list: fn($list) -> Vec<$sample> = $list_of;
                    self.0.push_list(list(sample))
                }

                fn makes_tensors(&self) -> bool {
                    self.0.lists_make_tensors()
                }

                fn finish(self) -> Result<Self::Batch, CollateError> {
                    self.0.finish_lists()
                }
            }

            impl<$($generics)*> Sample for $list {
                type Batch = Vec<<$sample as Sample>::Batch>;
                type Stack = $stack<$sample>;

                fn stack(samples: usize) -> Self::Stack {
                    $stack(PositionStacks { capacity: samples, stacks: None })
                }

                fn hash_content(&self, hash: &mut ContentHash) {
                    let items: fn(&$list) -> &[$sample] = $items_of;
                    hash_list(items(self), hash);
                }
            }
        )*
    };
}

/// The [`Stack`] of [`List`]: holds one stack for each position of the lists.
#[derive(Debug)]
pub struct ListStack<S: Sample>(PositionStacks<S>);

/// The [`Stack`] of `Vec<String>` and `Vec<Tensor<T>>`: holds one stack for each position of the lists.
#[derive(Debug)]
pub struct VecStack<S: Sample>(PositionStacks<S>);

lists! {
    [S: Sample] List<S>, ListStack, S, |list| list.0, |list| &list.0;
    [] Vec<String>, VecStack, String, |list| list, |list| list;
    [T: Element] Vec<Tensor<T>>, VecStack, Tensor<T>, |list| list, |list| list;
}

fn hash_list<S: Sample>(list: &[S], hash: &mut ContentHash) {
    hash.value(&list.len());
    list.iter().for_each(|sample| sample.hash_content(hash));
}

/// The [`Stack`] of `Option`: stacks the values of samples that are all `Some`, or all `None`.
pub struct OptionStack<S: Sample> {
    capacity: usize,
    /// `None` before the first sample, `Some(None)` if the first sample is `None`.
    stack: Option<Option<S::Stack>>,
}

impl<S: Sample> Stack for OptionStack<S> {
    type Sample = Option<S>;
    type Batch = Option<S::Batch>;

    fn push(&mut self, sample: Option<S>) -> Result<(), CollateError> {
        let capacity = self.capacity;
        let stack = self.stack.get_or_insert_with(|| sample.as_ref().map(|_| S::stack(capacity)));
        match (stack, sample) {
            (Some(stack), Some(sample)) => stack.push(sample),
            (None, None) => Ok(()),
            (_, sample) => Err(CollateProblem::MixedOptions { here: sample.is_none() }.into()),
        }
    }

    fn makes_tensors(&self) -> bool {
        self.stack.as_ref().is_none_or(|stack| stack.as_ref().is_some_and(Stack::makes_tensors))
    }

    fn finish(self) -> Result<Self::Batch, CollateError> {
        self.stack.flatten().map(S::Stack::finish).transpose()
    }
}

impl<S: Sample> Sample for Option<S> {
    type Batch = Option<S::Batch>;
    type Stack = OptionStack<S>;

    fn stack(samples: usize) -> OptionStack<S> {
        OptionStack { capacity: samples, stack: None }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash_list(self.as_slice(), hash);
    }
}

impl<S: Sample> fmt::Debug for PositionStacks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PositionStacks")
            .field("stacks", &self.stacks.as_ref().map(Vec::len))
            .finish_non_exhaustive()
    }
}

impl<S: Sample> fmt::Debug for OptionStack<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_some = self.stack.as_ref().map(Option::is_some);
        f.debug_struct("OptionStack").field("is_some", &is_some).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::stack, *};

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    // PyTorch: 89, C11
    #[test]
    fn lists_are_stacked_position_by_position() {
        let batches = stack([strings(&["a", "b"]), strings(&["c", "d"]), strings(&["e", "f"])]).unwrap();
        assert_eq!(batches, [strings(&["a", "c", "e"]), strings(&["b", "d", "f"])]);
        let tensor = |number: u8| Tensor::from_slice(&[number], [1, 1]).unwrap();
        let batches = stack([vec![tensor(1), tensor(2)], vec![tensor(3), tensor(4)]]).unwrap();
        assert_eq!((batches[1].shape(), batches[1].as_slice()), ([2, 1, 1].as_slice(), [2, 4].as_slice()));
        assert!(stack::<List<u8>>([]).unwrap().is_empty());
        assert!(stack([List::<u8>(vec![]), List(vec![])]).unwrap().is_empty());
    }

    #[test]
    fn lists_of_different_lengths_are_refused_in_both_orders() {
        for (lists, expected, found) in [([&["X"][..], &["X", "X"]], 1, 2), ([&["X", "X"], &["X"]], 2, 1)] {
            let error = stack([(0u8, strings(lists[0])), (1, strings(lists[1]))]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "field `1`: the list has {found} items, but the list of the batch's first sample has \
                     {expected}; make them equally long, or wrap them in `Keep`"
                )
            );
        }
        let nested = [List(vec![List(vec![[1u8; 2].to_vec()])]), List(vec![List(vec![[1u8; 3].to_vec()])])];
        assert_eq!(stack(nested).unwrap_err().field, ["0", "0"]);
    }

    #[test]
    fn options_must_be_all_some_or_all_none() {
        assert_eq!(stack([Some(1u8), Some(2)]).unwrap().unwrap().as_slice(), [1, 2]);
        assert_eq!(stack([None::<u8>, None]).unwrap(), None);
        assert_eq!(stack::<Option<u8>>([]).unwrap(), None);
        let error = stack([(Some(1u8),), (None,)]).unwrap_err();
        assert!(error.to_string().starts_with("field `0`: it is `None`, but"), "{error}");
        let error = stack([None, Some(1u8)]).unwrap_err();
        assert!(error.to_string().starts_with("it is `Some`, but"), "{error}");
    }
}
