//! Padding of sequences to the length of the longest.

use serde::{Deserialize, Serialize};

use super::{CollateError, CollateProblem, ContentHash, MAX_RESERVED, Row, Sample, Stack, rows::hash_row};
use crate::data::{
    collate::fill::Fill,
    tensor::{Element, Rows, Tensor, TensorError},
};

/// A sequence of any length. A batch pads the sequences to the length of the longest and is a [`Padded`] with
/// their lengths. `R` is `Vec<T>`, or `Tensor<T>` of shape `[len, ..S]` with the same `S` in all samples.
///
/// Sequences may be empty. They are padded after their end, with 0 or with the value of
/// [`pad_with`](Self::pad_with). For other kinds of padding see [`Padding`].
///
/// # Examples
/// ```
/// use loader_core::{collate::Ragged, prelude::*};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Sentences(Vec<Vec<i64>>);
///
/// impl Dataset for Sentences {
///     type Sample = Ragged<Vec<i64>>;
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
///         Ok(Ragged::new(self.0[index].clone()).pad_with(-1))
///     }
/// }
///
/// let sentences = Sentences(vec![vec![1, 2, 3], vec![], vec![4]]);
/// let loader = DataLoader::builder(sentences).batch_size(3).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.values.shape(), [3, 3]);
/// assert_eq!(batch.values.as_slice(), [1, 2, 3, -1, -1, -1, 4, -1, -1]);
/// assert_eq!(batch.lengths.as_slice(), [3, 0, 1]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged<R: Row> {
    row: R,
    value: R::Element,
}

impl<R: Row> Ragged<R> {
    /// Creates a sequence that is padded with 0.
    pub fn new(row: R) -> Self {
        Self { row, value: R::Element::default() }
    }

    /// Returns the same sequence, padded with `value`.
    #[must_use]
    pub fn pad_with(mut self, value: R::Element) -> Self {
        self.value = value;
        self
    }

    /// Returns the sequence.
    pub fn row(&self) -> &R {
        &self.row
    }
}

/// A batch of padded sequences, with their lengths before padding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Padded<T: Element> {
    /// The padded sequences, shape `[B, longest, ..S]`.
    pub values: Tensor<T>,
    /// Length of each sequence before padding, shape `[B]`.
    pub lengths: Tensor<u64>,
}

/// Pads sequences after their end with `value`, to the length of the longest: PyTorch's `pad_sequence` with
/// `batch_first=True`. In a function given to [`collate`](crate::Builder::collate), it writes into shared
/// memory.
///
/// # Errors
/// Returns [`CollateProblem::Ragged`] if the sequences differ in more than their first dimension, and
/// [`CollateProblem::NotASequence`] for a sequence of rank 0. The field of the error is the index of the
/// sequence.
pub fn pad_sequences<R: Row>(sequences: &[R], value: R::Element) -> Result<Padded<R::Element>, CollateError> {
    Padding::new(value).pad(sequences)
}

/// How sequences are padded.
///
/// # Examples
/// ```
/// use loader_core::collate::{Padding, Side};
///
/// let padded = Padding::new(0.5).side(Side::Left).multiple_of(4).pad(&[vec![1.0f32], vec![2.0, 3.0]])?;
/// assert_eq!(padded.values.shape(), [2, 4]);
/// assert_eq!(padded.values.as_slice(), [0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 2.0, 3.0]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Padding<T> {
    value: T,
    side: Side,
    multiple_of: usize,
}

/// Where a sequence is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Side {
    /// Before the first item.
    Left,
    /// After the last item.
    #[default]
    Right,
}

impl<T: Element> Padding<T> {
    /// Creates a padding with `value`, on the right, to the length of the longest sequence.
    pub fn new(value: T) -> Self {
        Self { value, side: Side::Right, multiple_of: 1 }
    }

    /// Sets the side on which sequences are padded.
    #[must_use]
    pub fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Rounds the length up to a multiple of `items`, which makes some kernels faster. 1 by default; 0 counts
    /// as 1.
    #[must_use]
    pub fn multiple_of(mut self, items: usize) -> Self {
        self.multiple_of = items.max(1);
        self
    }

    /// Pads `sequences`.
    ///
    /// # Errors
    /// As for [`pad_sequences`].
    pub fn pad<R: Row<Element = T>>(&self, sequences: &[R]) -> Result<Padded<T>, CollateError> {
        let mut shapes = Shapes::default();
        for (number, sequence) in sequences.iter().enumerate() {
            shapes
                .add(&sequence.shape())
                .map_err(|problem| CollateError::from(problem).in_field(number.to_string()))?;
        }
        self.write(&shapes, sequences.iter().map(|sequence| (sequence, self.value)))
    }

    /// Pads sequences that have the given shapes, each with its own padding value.
    fn write<'a, R: Row<Element = T>>(
        &self,
        shapes: &Shapes,
        sequences: impl Iterator<Item = (&'a R, T)>,
    ) -> Result<Padded<T>, CollateError> {
        let too_large = |shape| CollateProblem::from(TensorError::TooLarge { shape });
        let longest = shapes.lengths.iter().max().map_or(0, |&longest| longest as usize);
        let longest = longest
            .checked_next_multiple_of(self.multiple_of)
            .ok_or_else(|| too_large(vec![shapes.lengths.len(), usize::MAX]))?;
        let row = [&[longest], &shapes.item[..]].concat();
        let item: usize = shapes.item.iter().product();
        let mut rows = Rows::new(shapes.lengths.len(), &row).map_err(CollateProblem::from)?;
        for ((sequence, value), &len) in sequences.zip(&shapes.lengths) {
            let (row, filled) = (rows.next_row(), len as usize * item);
            let (items, padding) = match self.side {
                Side::Right => row.split_at_mut(filled),
                Side::Left => {
                    let (padding, items) = row.split_at_mut(row.len() - filled);
                    (items, padding)
                }
            };
            sequence.write(items);
            padding.fill(value);
        }
        let lengths =
            Tensor::from_slice(&shapes.lengths, [shapes.lengths.len()]).map_err(CollateProblem::from)?;
        Ok(Padded { values: rows.finish(), lengths })
    }
}

/// The shapes of the sequences of a batch, which may differ in the first dimension only.
#[derive(Debug, Default)]
struct Shapes {
    lengths: Vec<u64>,
    /// Shape of one item of a sequence.
    item: Vec<usize>,
}

impl Shapes {
    fn add(&mut self, shape: &[usize]) -> Result<(), CollateProblem> {
        let [len, item @ ..] = shape else { return Err(CollateProblem::NotASequence) };
        match self.lengths.first() {
            None => self.item = item.to_vec(),
            Some(_) if self.item == item => {}
            Some(&first) => {
                let expected = [&[first as usize], &self.item[..]].concat();
                return Err(CollateProblem::Ragged { expected, found: shape.to_vec() });
            }
        }
        self.lengths.push(*len as u64);
        Ok(())
    }
}

/// Collects the sequences of a batch, then pads them to the longest.
#[derive(Debug)]
pub struct RaggedStack<R: Row> {
    sequences: Vec<Ragged<R>>,
    shapes: Shapes,
}

impl<R: Row> Stack for RaggedStack<R> {
    type Sample = Ragged<R>;
    type Batch = Padded<R::Element>;

    fn push(&mut self, sample: Ragged<R>) -> Result<(), CollateError> {
        self.shapes.add(&sample.row.shape())?;
        self.sequences.push(sample);
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<Padded<R::Element>, CollateError> {
        let sequences = self.sequences.iter().map(|sample| (&sample.row, sample.value));
        Padding::new(R::Element::default()).write(&self.shapes, sequences)
    }

    fn fill(batch: &Padded<R::Element>) -> Option<Fill> {
        let longest = batch.values.shape().get(1).copied().unwrap_or(0);
        let capacity = (batch.lengths.len() * longest) as u64;
        Some(Fill { tokens: batch.lengths.as_slice().iter().sum(), capacity })
    }
}

impl<R: Row> Sample for Ragged<R> {
    type Batch = Padded<R::Element>;
    type Stack = RaggedStack<R>;

    fn stack(samples: usize) -> RaggedStack<R> {
        RaggedStack { sequences: Vec::with_capacity(samples.min(MAX_RESERVED)), shapes: Shapes::default() }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash_row(&self.row, hash);
        hash.value(bytemuck::bytes_of(&self.value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::testing::stack, *};

    #[test]
    fn items_of_a_sequence_may_have_a_shape() {
        let sequence =
            |len: usize, item: usize| Tensor::from_vec(vec![len as u8; len * item], [len, item]).unwrap();
        let padded = stack([Ragged::new(sequence(1, 2)), Ragged::new(sequence(0, 2)).pad_with(9)]).unwrap();
        assert_eq!(
            (padded.values.shape(), padded.values.as_slice()),
            ([2, 1, 2].as_slice(), [1, 1, 9, 9].as_slice())
        );
        assert_eq!(padded.lengths.as_slice(), [1, 0]);

        let error = stack([(Ragged::new(sequence(1, 2)),), (Ragged::new(sequence(3, 4)),)]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("field `0`: shape [3, 4] differs from the batch's first sample, [1, 2]"),
            "{text}"
        );
        let error = pad_sequences(&[sequence(1, 2), sequence(3, 4)], 0).unwrap_err();
        assert_eq!(error.field, ["1"]);
        let error = pad_sequences(&[3.0f32], 0.0).unwrap_err();
        assert!(error.to_string().starts_with("field `0`: a single number is not a sequence"), "{error}");
    }

    #[test]
    fn empty_batches_and_empty_sequences_can_be_padded() {
        let padded = pad_sequences::<Vec<f32>>(&[], 0.0).unwrap();
        assert_eq!((padded.values.shape(), padded.lengths.shape()), ([0, 0].as_slice(), [0].as_slice()));
        let padded = Padding::new(0.0).multiple_of(8).pad(&[Vec::<f32>::new(), Vec::new()]).unwrap();
        assert_eq!(
            (padded.values.shape(), padded.lengths.as_slice()),
            ([2, 0].as_slice(), [0, 0].as_slice())
        );
    }

    proptest! {
        #[test]
        fn padded_rows_contain_the_sequence_and_padding_on_the_given_side(
            sequences in prop::collection::vec(prop::collection::vec(1i32..100, 0..9), 0..9),
            left: bool,
            multiple_of in 0usize..5,
        ) {
            let side = if left { Side::Left } else { Side::Right };
            let padded = Padding::new(-7).side(side).multiple_of(multiple_of).pad(&sequences).unwrap();
            let longest = sequences.iter().map(Vec::len).max().unwrap_or(0).next_multiple_of(multiple_of.max(1));
            prop_assert_eq!(padded.values.shape(), [sequences.len(), longest]);
            prop_assert!(padded.lengths.as_slice().iter().map(|&len| len as usize).eq(sequences.iter().map(Vec::len)));
            for (number, sequence) in sequences.iter().enumerate() {
                let padding = vec![-7; longest - sequence.len()];
                let expected = if left { [&padding[..], sequence].concat() } else { [&sequence[..], &padding].concat() };
                prop_assert_eq!(padded.values.row(number), expected);
            }
            let stacked = {
                let mut stack = <Ragged<Vec<i32>>>::stack(sequences.len());
                for sequence in &sequences {
                    stack.push(Ragged::new(sequence.clone())).unwrap();
                }
                stack.finish().unwrap()
            };
            prop_assert_eq!(stacked, pad_sequences(&sequences, 0).unwrap());
        }
    }
}
