//! The dataset [`TokenDocuments`].

use std::{marker::PhantomData, path::Path};

use loader_core::{DType, Dataset, SampleContext, Tensor, collate::Ragged};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{
    element::{Accepted, Token},
    index::{self, Indexed},
    windows::{read, table},
};
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    source::Files,
};

/// A dataset of whole documents of tokens, from Megatron's pairs of `.idx` and `.bin`.
///
/// A sample is one document: a [`Ragged`] of a `Tensor<T>` of shape `[tokens]`, which may be empty. A batch
/// is a [`Padded`](loader_core::collate::Padded): a `Tensor<T>` of shape `[B, longest]`, padded after the end
/// with [`pad`](Self::pad), and the lengths. `T` is `i64` (the default), `i32`, `u32` or `u16`. The documents
/// are numbered in the order of the files.
///
/// [`Tokens::open_megatron`](crate::Tokens::open_megatron) reads the same files as windows of one length. Its
/// documentation says what is checked.
///
/// # Examples
/// ```no_run
/// use loader_core::DataLoader;
/// use loader_data::TokenDocuments;
///
/// let documents = TokenDocuments::<i64>::open("data/my_corpus_text_document")?.max_tokens(4096).pad(50_256);
/// let loader = DataLoader::builder(documents).batch_size(8).shuffle(true).num_workers(2).build()?;
/// for batch in loader.iter()? {
///     let batch = batch?;
///     println!("{:?}, padded from {:?}", batch.values.shape(), batch.lengths.as_slice());
/// }
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct TokenDocuments<T: Token = i64> {
    documents: Documents,
    /// A token that `T` can hold.
    pad: i64,
    token: PhantomData<fn() -> T>,
}

impl<T: Token> TokenDocuments<T> {
    /// Opens pairs of an index and a file of tokens. `path` is as for
    /// [`Tokens::open_megatron`](crate::Tokens::open_megatron).
    ///
    /// # Errors
    /// As for [`Tokens::open_megatron`](crate::Tokens::open_megatron).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::open_all([path])
    }

    /// Opens the pairs of several paths or patterns, in their order; see [`open`](Self::open).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        Ok(Self { documents: Documents::open(&SourceOptions::new(paths))?, pad: 0, token: PhantomData })
    }

    /// Cuts documents after `tokens` tokens. By default a document has all its tokens.
    #[must_use]
    pub fn max_tokens(self, tokens: usize) -> Self {
        Self { documents: self.documents.max_tokens(tokens), ..self }
    }

    /// Sets the token that fills a batch after the end of a document. The default is 0.
    #[must_use]
    pub fn pad(self, token: T) -> Self {
        Self { pad: token.to_wide(), ..self }
    }

    /// Sets the size of the vocabulary, see [`Tokens::vocabulary`](crate::Tokens::vocabulary).
    #[must_use]
    pub fn vocabulary(self, size: u64) -> Self {
        Self { documents: self.documents.vocabulary(size), ..self }
    }

    /// Returns the number of tokens of each document in order, for example to put documents of similar length
    /// into a batch. Reads no file.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        (0..self.documents.len()).map(|index| self.documents.locate(index).2)
    }
}

impl<T: Token> Dataset for TokenDocuments<T> {
    type Sample = Ragged<Tensor<T>>;

    fn len(&self) -> usize {
        self.documents.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        Ok(Ragged::new(self.documents.read(index)?).pad_with(T::from_wide(self.pad)))
    }

    /// Returns the number and size of the files, a hash of their names and sizes, the lengths of all documents, the
    /// dtype and the maximum number of tokens.
    fn fingerprint(&self) -> String {
        self.documents.fingerprint()
    }
}

/// Documents of tokens. The type of the tokens in a sample is not known here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Documents {
    files: Files,
    dtype: DType,
    /// For each file, the number of documents in it and in all files before it. In shared memory.
    file_ends: Tensor<u64>,
    /// For each document, the number of tokens in it and in the documents before it in its file. In shared
    /// memory.
    ends: Tensor<u64>,
    /// Hash of the lengths of all documents.
    lengths: u64,
    max_tokens: usize,
    vocabulary: Option<u64>,
}

impl Documents {
    pub(super) fn open(source: &SourceOptions) -> Result<Self> {
        let Indexed { files, dtype, indexes } = index::open(source)?;
        let mut file_ends = Vec::with_capacity(indexes.len());
        let mut ends = Vec::new();
        for index in indexes {
            if ends.is_empty() {
                ends = index.ends
            } else {
                ends.extend(index.ends)
            }
            file_ends.push(ends.len() as u64);
        }
        if ends.is_empty() {
            let reason = "it has no documents".to_owned();
            let problem = DataProblem::Malformed { format: "a file of documents", reason };
            return Err(DataError::new(files.get(0).location, problem));
        }
        let mut lengths = Xxh3::new();
        file_ends.iter().chain(&ends).for_each(|end| lengths.update(&end.to_le_bytes()));
        let (file_ends, ends) = (table(file_ends)?, table(ends)?);
        let lengths = lengths.digest();
        Ok(Self { files, dtype, file_ends, ends, lengths, max_tokens: usize::MAX, vocabulary: None })
    }

    pub(super) fn max_tokens(self, tokens: usize) -> Self {
        Self { max_tokens: tokens, ..self }
    }

    pub(super) fn vocabulary(self, size: u64) -> Self {
        Self { vocabulary: Some(size), ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The file of document `index`, the number of tokens before the document in the file, and the number of
    /// tokens in the sample.
    fn locate(&self, index: usize) -> (usize, u64, usize) {
        let (file_ends, ends) = (self.file_ends.as_slice(), self.ends.as_slice());
        let file = file_ends.partition_point(|&end| end <= index as u64);
        let first = file.checked_sub(1).map_or(0, |before| file_ends[before] as usize);
        let start = if index == first { 0 } else { ends[index - 1] };
        let len = usize::try_from(ends[index] - start).unwrap_or(usize::MAX);
        (file, start, len.min(self.max_tokens))
    }

    /// Reads document `index`.
    pub(super) fn read<T: Token>(&self, index: usize) -> Result<Tensor<T>> {
        if index >= self.len() {
            let reason = format!("there is no document {index}, only {}", self.len());
            let problem = DataProblem::InvalidOption { option: "index", reason };
            return Err(DataError::new(self.files.get(0).location, problem));
        }
        let (file, start, len) = self.locate(index);
        let blob = self.files.open(file)?;
        let offset = start * self.dtype.size() as u64;
        read(&blob, offset, self.dtype, len, Accepted::new::<T>(self.vocabulary))
    }

    /// Text that identifies which tokens are at which index.
    pub(super) fn fingerprint(&self) -> String {
        let (files, documents) = (self.files.fingerprint(), self.lengths);
        let max =
            if self.max_tokens == usize::MAX { String::new() } else { format!(", max {}", self.max_tokens) };
        format!("token_documents({files}, #{documents:016x}, {}{max})", self.dtype)
    }
}
