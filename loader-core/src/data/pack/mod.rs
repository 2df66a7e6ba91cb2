//! Packing token sequences into windows of one length, as for the training of language models.
//!
//! [`IterableDataset::pack`](crate::IterableDataset::pack) makes a stream of [`PackedWindow`]s of a stream of
//! documents. A map-style dataset of documents is packed as a stream
//! ([`into_stream`](crate::Dataset::into_stream)).
//!
//! # Design
//! A packed stream collects documents, and forgets them when all their tokens are in windows. A snapshot has
//! no tokens: a resumed stream reads the documents that are not yet in windows again. So the windows depend
//! only on the order of the documents in their shard.
//!
//! With [`PackMethod::BestFit`] and [`PackMethod::FirstFit`], `look_ahead` documents are collected, all of
//! them are packed, and the windows are given before the next document is read. Alternatives considered:
//! - Keeping badly filled windows open, as Grain does. Rejected because the oldest document in an open window
//!   can be arbitrarily old, and would have to be read again. With 1,000 documents the last window of each
//!   round costs little.
//! - A plan over the lengths of all documents. Rejected for streams because their lengths are not known
//!   before they are read.
//! - A stage in `loader-data`, beside the token files. Rejected because packing needs no file format, and
//!   stands in a program beside `shuffle_buffer` and `map`.

mod bins;
mod packer;
mod window;

use serde::{Deserialize, Serialize};

use crate::data::{
    collate::{Ragged, Row},
    tensor::{Element, Tensor},
};

pub use crate::data::collate::fill::Fill;
pub(crate) use packer::Packer;
pub use window::{PackedBatch, PackedStack, PackedWindow};

/// Error returned when documents cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The window is 0, or its positions do not fit the type of the tokens.
    #[error(
        "a window of {window} tokens is invalid: it needs at least 1 token, and its length must fit the type of the tokens and i32"
    )]
    InvalidWindow {
        /// The window.
        window: usize,
    },
    /// The padding token does not fit the type of the tokens.
    #[error("the padding token {pad} does not fit the type of the tokens")]
    InvalidPad {
        /// The token.
        pad: i64,
    },
    /// The number of documents to collect is 0.
    #[error("look_ahead is 0; it must be at least 1")]
    NoLookAhead,
    /// A document is longer than a window.
    #[error(
        "a document of {tokens} tokens is longer than the window of {window}; see `Packing::long_documents` to split or \
         truncate it"
    )]
    TooLong {
        /// Length of the document.
        tokens: usize,
        /// Length of a window.
        window: usize,
    },
}

/// A sequence of tokens.
pub trait TokenSequence: Send + 'static {
    /// The type of a token: `i64`, `i32`, `u32` or `u16`.
    type Token: Element + TryFrom<i64>;

    /// The tokens.
    fn tokens(&self) -> &[Self::Token];
}

impl<T: Element + TryFrom<i64>> TokenSequence for Vec<T> {
    type Token = T;

    fn tokens(&self) -> &[T] {
        self
    }
}

impl<T: Element + TryFrom<i64>> TokenSequence for Tensor<T> {
    type Token = T;

    fn tokens(&self) -> &[T] {
        self.as_slice()
    }
}

impl<R: Row + TokenSequence> TokenSequence for Ragged<R> {
    type Token = <R as TokenSequence>::Token;

    fn tokens(&self) -> &[Self::Token] {
        self.row().tokens()
    }
}

/// How documents are put into windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PackMethod {
    /// The documents are concatenated in their order and cut every `window` tokens. Only the last window of a
    /// shard has padding, but most windows begin and end in the middle of a document.
    #[default]
    Concatenate,
    /// First-fit decreasing: of [`look_ahead`](Packing::look_ahead) documents, from the longest to the
    /// shortest, each goes to the first window with room for it.
    FirstFit,
    /// Best-fit decreasing: each document goes to the window with the least room that is enough. This is the
    /// method of "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830).
    BestFit,
}

/// What [`PackMethod::FirstFit`] and [`PackMethod::BestFit`] do with documents that are longer than a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LongDocuments {
    /// The document is the error [`PackError::TooLong`], as a bad sample.
    #[default]
    Error,
    /// It is cut into pieces of a window, and the rest is packed like a document.
    Split,
    /// Its first tokens fill a window, and the others are left out.
    Truncate,
}

/// How a stream of documents is packed. See [`IterableDataset::pack`](crate::IterableDataset::pack).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    window: usize,
    method: PackMethod,
    look_ahead: usize,
    long: LongDocuments,
    pad: i64,
    drop_last: bool,
    shuffle: bool,
}

impl Packing {
    /// Packs documents into windows of `window` tokens.
    pub fn new(window: usize) -> Self {
        let (method, long) = Default::default();
        Self { window, method, look_ahead: 1000, long, pad: 0, drop_last: false, shuffle: false }
    }

    /// Sets the method; [`PackMethod::Concatenate`] by default.
    #[must_use]
    pub fn method(self, method: PackMethod) -> Self {
        Self { method, ..self }
    }

    /// Sets the number of documents that [`PackMethod::FirstFit`] and [`PackMethod::BestFit`] collect before
    /// they pack them; 1,000 by default. More documents need less padding, and more memory in each shard.
    #[must_use]
    pub fn look_ahead(self, documents: usize) -> Self {
        Self { look_ahead: documents, ..self }
    }

    /// Sets what happens with documents longer than a window; [`LongDocuments::Error`] by default.
    #[must_use]
    pub fn long_documents(self, long: LongDocuments) -> Self {
        Self { long, ..self }
    }

    /// Sets the token that fills a window after its last document; 0 by default.
    #[must_use]
    pub fn pad(self, token: i64) -> Self {
        Self { pad: token, ..self }
    }

    /// If true, [`PackMethod::Concatenate`] leaves out the last window of a shard if it is not full; false by
    /// default.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        Self { drop_last, ..self }
    }

    /// If true, [`PackMethod::FirstFit`] and [`PackMethod::BestFit`] give the windows of `look_ahead`
    /// documents in random order, which depends on the seed of the loader, the epoch and the shard; false by
    /// default: the windows with the longest documents come first.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    /// Checks the options for tokens of type `T`.
    pub(crate) fn check<T: TryFrom<i64>>(&self) -> Result<(), PackError> {
        let Self { window, pad, look_ahead, .. } = *self;
        let last = i32::try_from(window).ok().and_then(|last| T::try_from(last.into()).ok());
        if window == 0 || last.is_none() {
            return Err(PackError::InvalidWindow { window });
        }
        if T::try_from(pad).is_err() {
            return Err(PackError::InvalidPad { pad });
        }
        if look_ahead == 0 { Err(PackError::NoLookAhead) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, Dataset, IterableDataset, TensorDataset};

    #[test]
    fn the_report_of_an_epoch_has_the_fill_of_its_batches() {
        let numbers =
            || TensorDataset::new(Tensor::<i64>::from_vec((0..20).collect(), [20]).unwrap()).unwrap();
        let documents = numbers().map(|row, _cx| Ok(vec![1i64; row[0] as usize % 7]));
        let packed = documents.into_stream().pack(Packing::new(8).method(PackMethod::BestFit)).unwrap();
        let mut batches = DataLoader::stream(packed).batch_size(3).build().unwrap().iter().unwrap();
        assert_eq!(batches.report().fill, None);
        let mut fill = Fill::default();
        while let Some(batch) = batches.next() {
            fill = fill + batch.unwrap().fill();
            assert_eq!(batches.report().fill, Some(fill));
        }
        let all = (0..20).map(|number| number % 7).sum::<u64>();
        assert_eq!(fill.tokens, all);
        assert!(fill.capacity > all && fill.capacity % 8 == 0);

        let padded = numbers().map(|row, _cx| Ok(Ragged::new(vec![1i64; row[0] as usize % 7])));
        let mut batches = DataLoader::builder(padded).batch_size(5).build().unwrap().iter().unwrap();
        let capacity =
            batches.by_ref().map(|batch| batch.unwrap().values.as_slice().len() as u64).sum::<u64>();
        assert_eq!(batches.report().fill, Some(Fill { tokens: all, capacity }));

        let mut batches = DataLoader::builder(numbers()).build().unwrap().iter().unwrap();
        assert_eq!(batches.by_ref().count(), 20);
        assert_eq!(batches.report().fill, None);
    }
}
