//! Conversion of single samples, for a loader without batches.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
};

use half::{bf16, f16};
use serde::{Serialize, de::DeserializeOwned};

use super::{Batch, CollateError, CollateProblem, Keep, List, Ragged, Row, TensorRow};
use crate::data::{
    tensor::{AnyTensor, Element, Rows, Tensor},
    tuples::each_tuple,
};

/// A sample type with a default conversion for a loader without batches, like those that PyTorch's
/// `default_convert` supports:
///
/// | sample | item |
/// |---|---|
/// | a number, `bool`, `char`, `String`, `()`, `Tensor<T>` | unchanged |
/// | `[T; N]`, `[[T; M]; N]`, `Vec<T>`, `Box<[T]>`, ... | `Tensor<T>`, shape `[N]`, `[N, M]`, `[len]` |
/// | [`TensorRow<T>`](crate::TensorRow) | `Tensor<T>` of the row's shape |
/// | [`Ragged<R>`](Ragged) | the tensor of `R`, not padded |
/// | `&'static str` | `String` |
/// | a tuple (up to 8), `HashMap<K, S>`, `BTreeMap<K, S>`, `Option<S>` | the same type, of items |
/// | [`List<S>`](List) | a `Vec` of items |
/// | [`Keep<S>`](Keep), `Vec<String>` | unchanged |
/// | a struct with `#[derive(Convert)]` | a struct of items, with `Item` appended to its name |
///
/// `.convert(|sample| Ok(sample))` returns samples of any serde type unchanged; their tensors are then in
/// shared memory.
#[diagnostic::on_unimplemented(
    message = "samples of type `{Self}` have no default conversion for a loader without batches",
    label = "it does not implement `Convert`",
    note = "put `#[derive(Convert)]` on a struct of numbers, arrays, tensors or strings; for any other type give the loader a function with `.convert(...)`: `.convert(|sample| Ok(sample))` returns samples unchanged"
)]
pub trait Convert: Sized + Send + 'static {
    /// The converted sample.
    type Item: Batch;

    /// Converts the sample, in the process that loads it. Tensors that it creates in a worker are allocated
    /// in shared memory.
    ///
    /// # Errors
    /// Returns an error if a tensor cannot be allocated.
    fn convert(self) -> Result<Self::Item, CollateError>;
}

macro_rules! unchanged {
    ($([$($generics:tt)*] $sample:ty),* $(,)?) => {
        $(
            impl<$($generics)*> Convert for $sample {
                type Item = Self;

                fn convert(self) -> Result<Self, CollateError> {
                    Ok(self)
                }
            }
        )*
    };
}

unchanged!(
    [] u8, [] i8, [] u16, [] i16, [] u32, [] i32, [] u64, [] i64, [] f16, [] bf16, [] f32, [] f64, [] usize, [] isize,
    [] bool, [] char, [] (), [] String, [] Vec<String>, [T: Element] Tensor<T>, [] AnyTensor, [S: Batch] Keep<S>,
);

impl Convert for &'static str {
    type Item = String;

    fn convert(self) -> Result<String, CollateError> {
        Ok(self.to_owned())
    }
}

macro_rules! rows {
    ($([$($generics:tt)*] $row:ty),* $(,)?) => {
        $(
            impl<$($generics)*> Convert for $row {
                type Item = Tensor<<Self as Row>::Element>;

                fn convert(self) -> Result<Self::Item, CollateError> {
                    tensor(&self)
                }
            }
        )*
    };
}

rows!(
    [T: Element] Vec<T>, [T: Element] Box<[T]>, [T: Element] TensorRow<T>, [] Vec<bool>, [] Vec<usize>,
    [T: Element, const N: usize] Vec<[T; N]>, [T: Element, const N: usize] [T; N],
    [T: Element, const N: usize, const M: usize] [[T; M]; N],
    [T: Element, const N: usize, const M: usize, const K: usize] [[[T; K]; M]; N],
);

impl<R: Row> Convert for Ragged<R> {
    type Item = Tensor<R::Element>;

    fn convert(self) -> Result<Self::Item, CollateError> {
        tensor(self.row())
    }
}

/// Copies a row to a new tensor.
fn tensor<R: Row>(row: &R) -> Result<Tensor<R::Element>, CollateError> {
    let shape = row.shape();
    let mut rows = Rows::new(1, &shape).map_err(CollateProblem::from)?;
    row.write(rows.next_row());
    Ok(rows.finish().reshape(shape).map_err(CollateProblem::from)?)
}

macro_rules! tuples {
    ($($name:ident $position:tt),*) => {
        impl<$($name: Convert),*> Convert for ($($name,)*) {
            type Item = ($($name::Item,)*);

            fn convert(self) -> Result<Self::Item, CollateError> {
                Ok(($(self.$position.convert().map_err(|error| error.in_field(stringify!($position)))?,)*))
            }
        }
    };
}

each_tuple!(tuples);

macro_rules! maps {
    ($map:ident, $($bound:ident),*) => {
        impl<K, S> Convert for $map<K, S>
        where
            K: $($bound +)* fmt::Debug + Serialize + DeserializeOwned + Send + 'static,
            S: Convert,
        {
            type Item = $map<K, S::Item>;

            fn convert(self) -> Result<Self::Item, CollateError> {
                let convert = |(key, value): (K, S)| match value.convert() {
                    Ok(value) => Ok((key, value)),
                    Err(error) => Err(error.in_field(format!("{key:?}"))),
                };
                self.into_iter().map(convert).collect()
            }
        }
    };
}

maps!(HashMap, Eq, Hash);
maps!(BTreeMap, Ord);

impl<S: Convert> Convert for Option<S> {
    type Item = Option<S::Item>;

    fn convert(self) -> Result<Self::Item, CollateError> {
        self.map(S::convert).transpose()
    }
}

impl<S: Convert> Convert for List<S> {
    type Item = Vec<S::Item>;

    fn convert(self) -> Result<Self::Item, CollateError> {
        let convert =
            |(field, sample): (usize, S)| sample.convert().map_err(|error| error.in_field(field.to_string()));
        self.0.into_iter().enumerate().map(convert).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PyTorch: 2.4.2
    #[test]
    fn numbers_strings_and_tensors_are_unchanged() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
        let sample = (7u8, 2usize, true, "text".to_owned(), tensor.clone(), ());
        let (number, size, flag, text, same, ()) = sample.convert().unwrap();
        assert_eq!((number, size, flag, text.as_str()), (7, 2, true, "text"));
        assert_eq!(same.as_bytes().as_ptr(), tensor.as_bytes().as_ptr());
    }

    // PyTorch: 2.4.2
    #[test]
    fn arrays_and_vectors_become_tensors_at_any_depth() {
        let inner = BTreeMap::from(
            [("a", Some(vec![1u8, 2])), ("b", None)].map(|(key, value)| (key.to_owned(), value)),
        );
        let (array, map, list) =
            ([[1i32, 2], [3, 4], [5, 6]], inner, List(vec![vec![[1.0f32; 2]; 3]])).convert().unwrap();
        assert_eq!((array.shape(), array.as_slice()), ([3, 2].as_slice(), [1, 2, 3, 4, 5, 6].as_slice()));
        assert_eq!(map["a"].as_ref().unwrap().as_slice(), [1, 2]);
        assert!(map["b"].is_none());
        assert_eq!(list[0].shape(), [3, 2]);
        let row = TensorRow::new(std::sync::Arc::new(array), 1);
        assert_eq!(
            (row.clone().convert().unwrap().as_slice(), row.shape()),
            ([3, 4].as_slice(), [2].as_slice())
        );
        assert_eq!(Ragged::new(vec![1u8, 2, 3]).convert().unwrap().shape(), [3]);
        assert_eq!(Vec::<f32>::new().convert().unwrap().shape(), [0]);
    }
}
