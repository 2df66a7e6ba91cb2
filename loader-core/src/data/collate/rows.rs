//! Samples that become one row of a tensor: numbers, arrays, vectors, tensors.

use half::{bf16, f16};

use super::{CollateError, CollateProblem, ContentHash, Sample, Stack};
use crate::data::tensor::{Bool, Element, Rows, Tensor};

/// A sample that becomes one row of a tensor.
pub trait Row: Send + 'static {
    /// Type of the numbers.
    type Element: Element;

    /// Returns the shape; empty for a single number.
    fn shape(&self) -> Vec<usize>;

    /// True if the shape is `shape`. Does not allocate.
    fn has_shape(&self, shape: &[usize]) -> bool;

    /// Writes the numbers to `row`, row-major. The length of `row` is the product of the shape.
    fn write(&self, row: &mut [Self::Element]);

    /// Returns the tensor that this row is. A tensor that a dataset has written into memory of the batch is not copied.
    #[doc(hidden)]
    fn as_tensor(&self) -> Option<&Tensor<Self::Element>> {
        None
    }
}

/// Adds a row to `hash`, as the tensor of its numbers.
pub(super) fn hash_row<R: Row>(row: &R, hash: &mut ContentHash) {
    let shape = row.shape();
    let mut elements = vec![R::Element::default(); shape.iter().product()];
    row.write(&mut elements);
    hash.tensor(R::Element::DTYPE, &shape, bytemuck::cast_slice(&elements));
}

/// Stacks rows along a new first dimension.
#[derive(Debug)]
pub struct RowStack<R: Row> {
    capacity: usize,
    /// Created with the first sample, whose shape it has.
    rows: Option<Rows<R::Element>>,
}

impl<R: Row> RowStack<R> {
    /// Creates a stack without rows that has room for `samples` rows.
    pub fn new(samples: usize) -> Self {
        Self { capacity: samples, rows: None }
    }
}

impl<R: Row> Stack for RowStack<R> {
    type Sample = R;
    type Batch = Tensor<R::Element>;

    // The loader calls this function for each sample. A call that is not inlined takes 6 instructions more.
    #[inline(always)]
    fn push(&mut self, sample: R) -> Result<(), CollateError> {
        let rows = match &mut self.rows {
            Some(rows) => rows,
            rows @ None => start(rows, self.capacity, &sample)?,
        };
        if !sample.has_shape(rows.shape()) {
            return Err(ragged(rows.shape(), &sample));
        }
        if !sample.as_tensor().is_some_and(|tensor| rows.add_in_place(tensor.buffer())) {
            rows.reserve(1).map_err(CollateProblem::from)?;
            sample.write(rows.next_row());
        }
        Ok(())
    }

    #[inline]
    fn makes_tensors(&self) -> bool {
        self.rows.is_none()
    }

    fn finish(self) -> Result<Tensor<R::Element>, CollateError> {
        match self.rows {
            Some(rows) => Ok(rows.finish()),
            None => Ok(Tensor::zeros([0]).map_err(CollateProblem::from)?),
        }
    }
}

/// Starts a tensor of at most `capacity` rows with the shape of `sample`.
#[cold]
fn start<'a, R: Row>(
    rows: &'a mut Option<Rows<R::Element>>,
    capacity: usize,
    sample: &R,
) -> Result<&'a mut Rows<R::Element>, CollateError> {
    let shape = sample.shape();
    let in_batch = sample.as_tensor().and_then(|tensor| Rows::of_batch(capacity, &shape, tensor.buffer()));
    Ok(rows.insert(match in_batch {
        Some(rows) => rows,
        None => Rows::at_most(capacity, &shape).map_err(CollateProblem::from)?,
    }))
}

#[cold]
fn ragged<R: Row>(expected: &[usize], sample: &R) -> CollateError {
    CollateProblem::Ragged { expected: expected.to_vec(), found: sample.shape() }.into()
}

macro_rules! rows {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $row:ty { $element:ty, $rank:literal, $shape:expr, $write:expr })*) => {
        $(
            impl<$($generics)*> Row for $row {
                type Element = $element;

                fn shape(&self) -> Vec<usize> {
                    let shape: fn(&Self) -> [usize; $rank] = $shape;
                    shape(self).to_vec()
                }

                fn has_shape(&self, expected: &[usize]) -> bool {
                    let shape: fn(&Self) -> [usize; $rank] = $shape;
                    shape(self) == expected
                }

                fn write(&self, row: &mut [$element]) {
                    let write: fn(&Self, &mut [$element]) = $write;
                    write(self, row);
                }
            }

            impl<$($generics)*> Sample for $row {
                type Batch = Tensor<$element>;
                type Stack = RowStack<Self>;

                fn stack(samples: usize) -> RowStack<Self> {
                    RowStack::new(samples)
                }

                fn hash_content(&self, hash: &mut ContentHash) {
                    hash_row(self, hash);
                }
            }
        )*
    };
}

macro_rules! numbers {
    ($($number:ty),*) => {
        rows! { $([] $number { $number, 0, |_| [], |number, row| row[0] = *number })* }
    };
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64);

rows! {
    [] usize { u64, 0, |_| [], |number, row| row[0] = *number as u64 }
    [] isize { i64, 0, |_| [], |number, row| row[0] = *number as i64 }
    [] bool { Bool, 0, |_| [], |flag, row| row[0] = Bool::new(*flag) }
    [T: Element, const N: usize] [T; N] { T, 1, |_| [N], |array, row| row.copy_from_slice(array) }
    [T: Element, const N: usize, const M: usize] [[T; M]; N] {
        T, 2, |_| [N, M], |array, row| row.copy_from_slice(array.as_flattened())
    }
    [T: Element, const N: usize, const M: usize, const K: usize] [[[T; K]; M]; N] {
        T, 3, |_| [N, M, K], |array, row| row.copy_from_slice(array.as_flattened().as_flattened())
    }
    [T: Element] Vec<T> { T, 1, |vec| [vec.len()], |vec, row| row.copy_from_slice(vec) }
    [T: Element] Box<[T]> { T, 1, |boxed| [boxed.len()], |boxed, row| row.copy_from_slice(boxed) }
    [T: Element, const N: usize] Vec<[T; N]> {
        T, 2, |vec| [vec.len(), N], |vec, row| row.copy_from_slice(vec.as_flattened())
    }
    [] Vec<bool> { Bool, 1, |vec| [vec.len()], |vec, row| {
        row.iter_mut().zip(vec).for_each(|(element, &flag)| *element = Bool::new(flag));
    } }
    [] Vec<usize> { u64, 1, |vec| [vec.len()], |vec, row| {
        row.iter_mut().zip(vec).for_each(|(element, &number)| *element = number as u64);
    } }
}

impl<T: Element> Row for Tensor<T> {
    type Element = T;

    fn shape(&self) -> Vec<usize> {
        self.shape().to_vec()
    }

    fn has_shape(&self, expected: &[usize]) -> bool {
        self.shape() == expected
    }

    fn write(&self, row: &mut [T]) {
        row.copy_from_slice(self.as_slice());
    }

    #[inline]
    fn as_tensor(&self) -> Option<&Self> {
        Some(self)
    }
}

impl<T: Element> Sample for Tensor<T> {
    type Batch = Self;
    type Stack = RowStack<Self>;

    fn stack(samples: usize) -> RowStack<Self> {
        RowStack::new(samples)
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.tensor(T::DTYPE, self.shape(), self.as_bytes());
    }
}
