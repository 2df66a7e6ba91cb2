//! Windows of tokens with the documents in them.

use loader_core::{
    Dataset, Sample, SampleContext, Tensor,
    collate::{CollateError, ContentHash, Stack},
};
use serde::{Deserialize, Serialize};

use super::{dataset::Tokens, element::Token};

/// A window of tokens, and which token is where in which document. See
/// [`Tokens::end_of_document`](crate::Tokens::end_of_document).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenWindow<T: Token> {
    /// The tokens, shape `[window]`.
    pub tokens: Tensor<T>,
    /// Position of each token: 0 at the start of the window and after each end of a document. Shape
    /// `[window]`.
    pub positions: Tensor<T>,
    /// Number of the document of each token, from 1 at the start of the window; 0 is left for padding. Tokens
    /// with different numbers must not attend to each other. Shape `[window]`.
    pub segments: Tensor<T>,
}

/// A batch of [`TokenWindow`]s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct TokenWindowBatch<T: Token> {
    /// The tokens, shape `[B, window]`.
    pub tokens: Tensor<T>,
    /// Position of each token in its document, shape `[B, window]`.
    pub positions: Tensor<T>,
    /// Number of the document of each token in its window, from 1, shape `[B, window]`.
    pub segments: Tensor<T>,
}

/// The [`Stack`] of [`TokenWindow`].
#[derive(Debug)]
pub struct TokenWindowStack<T: Token> {
    tensors: <Tensors<T> as Sample>::Stack,
}

type Tensors<T> = (Tensor<T>, Tensor<T>, Tensor<T>);

impl<T: Token> Sample for TokenWindow<T> {
    type Batch = TokenWindowBatch<T>;
    type Stack = TokenWindowStack<T>;

    fn stack(samples: usize) -> TokenWindowStack<T> {
        TokenWindowStack { tensors: Tensors::stack(samples) }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        self.tokens.hash_content(hash);
        self.positions.hash_content(hash);
        self.segments.hash_content(hash);
    }
}

impl<T: Token> Stack for TokenWindowStack<T> {
    type Sample = TokenWindow<T>;
    type Batch = TokenWindowBatch<T>;

    fn push(&mut self, sample: TokenWindow<T>) -> Result<(), CollateError> {
        self.tensors.push((sample.tokens, sample.positions, sample.segments))
    }

    fn makes_tensors(&self) -> bool {
        self.tensors.makes_tensors()
    }

    fn finish(self) -> Result<TokenWindowBatch<T>, CollateError> {
        let (tokens, positions, segments) = self.tensors.finish()?;
        Ok(TokenWindowBatch { tokens, positions, segments })
    }
}

/// Windows of tokens with positions that restart in each document. It is returned by
/// [`Tokens::end_of_document`](crate::Tokens::end_of_document).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct SegmentedTokens<T: Token = i64> {
    tokens: Tokens<T>,
    /// A token that `T` can hold.
    end: i64,
}

impl<T: Token> SegmentedTokens<T> {
    pub(super) fn new(tokens: Tokens<T>, end: T) -> Self {
        Self { tokens, end: end.to_wide() }
    }
}

impl<T: Token> Dataset for SegmentedTokens<T> {
    type Sample = TokenWindow<T>;

    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<TokenWindow<T>> {
        segmented(self.tokens.get(index, cx)?, T::from_wide(self.end))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<TokenWindow<T>>> {
        cx.pass_collated::<Self, Tokens<T>>();
        let windows = self.tokens.get_many(indices, cx)?.into_iter();
        windows.map(|window| segmented(window, T::from_wide(self.end))).collect()
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.tokens.setup(cx)
    }

    /// Returns the fingerprint of the windows, with the token that ends a document.
    fn fingerprint(&self) -> String {
        format!("{}, end_of_document {}", self.tokens.fingerprint(), self.end)
    }
}

/// Numbers the tokens of a window in its documents, which end with `end`. `T` can hold the size of a window.
pub(super) fn segmented<T: Token>(tokens: Tensor<T>, end: T) -> anyhow::Result<TokenWindow<T>> {
    let mut positions = Tensor::zeros([tokens.len()])?;
    let mut segments = Tensor::zeros([tokens.len()])?;
    let (mut position, mut segment) = (0, 1);
    let numbers = positions.as_mut_slice()?.iter_mut().zip(segments.as_mut_slice()?);
    for ((position_of, segment_of), &token) in numbers.zip(tokens.as_slice()) {
        (*position_of, *segment_of) = (T::from_wide(position), T::from_wide(segment));
        position += 1;
        if token == end {
            (position, segment) = (0, segment + 1);
        }
    }
    Ok(TokenWindow { tokens, positions, segments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_at_the_end_belongs_to_its_document() {
        let tokens = Tensor::from_slice(&[5u16, 6, 0, 7, 0, 0, 8, 9], [8]).unwrap();
        let window = segmented(tokens, 0).unwrap();
        assert_eq!(window.positions.as_slice(), [0, 1, 2, 0, 1, 0, 0, 1]);
        assert_eq!(window.segments.as_slice(), [1, 1, 1, 2, 2, 3, 4, 4]);
    }
}
