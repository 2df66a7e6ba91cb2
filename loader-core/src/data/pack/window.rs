//! A window of packed documents, and its batch.

use std::fmt;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::data::{
    collate::{CollateError, ContentHash, Padded, Ragged, Sample, Stack, fill::Fill},
    tensor::{Element, Tensor},
};

/// Documents that fill a window, and which token is where in which document. The sample of
/// [`PackedDataset`](crate::PackedDataset).
#[derive(Debug, Clone, PartialEq)]
pub struct PackedWindow<T: Element> {
    /// The tokens, with padding after the last document. Shape `[window]`.
    pub tokens: Tensor<T>,
    /// Position of each token in its document, or in the part of it that is in this window; 0 for padding.
    /// Shape `[window]`.
    pub positions: Tensor<T>,
    /// Number of the document of each token, from 1; 0 for padding. Tokens with different numbers must not
    /// attend to each other. Shape `[window]`.
    pub segments: Tensor<T>,
    /// Where each document begins, and where the last one ends: 0, then the sum of the lengths of the
    /// documents up to each one. Shape `[documents + 1]`.
    pub cu_seqlens: Vec<i32>,
}

impl<T: Element + TryFrom<i64>> PackedWindow<T> {
    /// Makes a window of `window` tokens of `documents`.
    pub(super) fn new<'a>(
        documents: impl Iterator<Item = &'a [T]>,
        window: usize,
        pad: i64,
    ) -> anyhow::Result<Self> {
        let number =
            |number: i64| T::try_from(number).ok().context("a number does not fit the type of the tokens");
        let mut tokens = Tensor::zeros([window])?;
        let (mut positions, mut segments) = (Tensor::zeros([window])?, Tensor::zeros([window])?);
        let all = (tokens.as_mut_slice()?, positions.as_mut_slice()?, segments.as_mut_slice()?);
        let (mut end, mut cu_seqlens) = (0, vec![0]);
        for (segment, document) in (1..).zip(documents) {
            let range = end..end + document.len();
            all.0[range.clone()].copy_from_slice(document);
            for (position, element) in (0..).zip(&mut all.1[range.clone()]) {
                *element = number(position)?;
            }
            all.2[range.clone()].fill(number(segment)?);
            end = range.end;
            cu_seqlens.push(i32::try_from(end)?);
        }
        all.0[end..].fill(number(pad)?);
        Ok(Self { tokens, positions, segments, cu_seqlens })
    }
}

/// A batch of [`PackedWindow`]s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct PackedBatch<T: Element> {
    /// The tokens, shape `[B, window]`.
    pub tokens: Tensor<T>,
    /// Position of each token in its document, shape `[B, window]`.
    pub positions: Tensor<T>,
    /// Number of the document of each token in its window, from 1; 0 for padding. Shape `[B, window]`.
    pub segments: Tensor<T>,
    /// Where the documents of each window begin and end, shape `[B, most documents + 1]`. A row is filled
    /// with its last number, which stands for empty documents.
    pub cu_seqlens: Padded<i32>,
}

impl<T: Element> PackedBatch<T> {
    /// Number of tokens that are not padding, and of all tokens.
    pub fn fill(&self) -> Fill {
        let ends = (0..self.tokens.len())
            .map(|row| self.cu_seqlens.values.row(row).last().map_or(0, |&end| end as u64));
        Fill { tokens: ends.sum(), capacity: self.tokens.as_slice().len() as u64 }
    }
}

/// The [`Stack`] of [`PackedWindow`].
pub struct PackedStack<T: Element> {
    tensors: <Tensors<T> as Sample>::Stack,
}

type Tensors<T> = (Tensor<T>, Tensor<T>, Tensor<T>, Ragged<Vec<i32>>);

impl<T: Element> fmt::Debug for PackedStack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedStack").finish_non_exhaustive()
    }
}

impl<T: Element> Sample for PackedWindow<T> {
    type Batch = PackedBatch<T>;
    type Stack = PackedStack<T>;

    fn stack(samples: usize) -> PackedStack<T> {
        PackedStack { tensors: Tensors::stack(samples) }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        self.tokens.hash_content(hash);
        self.positions.hash_content(hash);
        self.segments.hash_content(hash);
        hash.value(&self.cu_seqlens);
    }
}

impl<T: Element> Stack for PackedStack<T> {
    type Sample = PackedWindow<T>;
    type Batch = PackedBatch<T>;

    fn push(&mut self, sample: PackedWindow<T>) -> Result<(), CollateError> {
        let end = sample.cu_seqlens.last().copied().unwrap_or(0);
        let ends = Ragged::new(sample.cu_seqlens).pad_with(end);
        self.tensors.push((sample.tokens, sample.positions, sample.segments, ends))
    }

    fn makes_tensors(&self) -> bool {
        self.tensors.makes_tensors()
    }

    fn finish(self) -> Result<PackedBatch<T>, CollateError> {
        let (tokens, positions, segments, cu_seqlens) = self.tensors.finish()?;
        Ok(PackedBatch { tokens, positions, segments, cu_seqlens })
    }

    fn fill(batch: &PackedBatch<T>) -> Option<Fill> {
        Some(batch.fill())
    }
}
