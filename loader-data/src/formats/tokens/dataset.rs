//! The dataset [`Tokens`].

use std::{marker::PhantomData, path::Path};

use loader_core::{DType, Dataset, SampleContext, Tensor};
use serde::{Deserialize, Serialize};

use super::{element::Token, segments::SegmentedTokens, windows::Windows};
use crate::{
    error::{DataError, Result},
    options::SourceOptions,
};

/// A dataset of windows of tokens, for training language models.
///
/// A sample is a `Tensor<T>` of shape `[window]`, a batch a `Tensor<T>` of shape `[B, window]`. `T` is `i64`
/// (the default), `i32`, `u32` or `u16`, whatever the type of the tokens in the files is.
///
/// # Which windows
/// Window `i` starts at token `i * stride` of its file. By default the stride is one token less than the
/// window: each window starts with the last token of the window before it. So for inputs `window[..n]` and
/// targets `window[1..]` with `n = window - 1`, each token of a file except the first is a target once in an
/// epoch. This is the rule of Megatron's `GPTDataset` (`seq_length + 1` tokens, every `seq_length` tokens).
/// [`stride(1)`](Self::stride) with `shuffle` gives windows at any position, like nanoGPT's `get_batch`. `stride(window)` gives windows that share no
/// token.
///
/// A window lies in one file. Tokens after the last whole window of a file (fewer than `stride`, or all
/// tokens of a file shorter than a window) are in no sample. Documents do not matter: a window may contain
/// several, or a part of one.
///
/// # How it reads them
/// A sample is one read of the file (`pread`) and one conversion. Any order costs the same, so there is no
/// stream: use `shuffle(true)`. A file is opened when a worker first reads from it.
///
/// # Examples
/// ```
/// use loader_core::{DType, DataLoader};
/// use loader_data::Tokens;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.bin");
/// // 100 tokens of type uint16, as nanoGPT's `prepare.py` writes them.
/// let bytes: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
/// std::fs::write(&path, bytes)?;
///
/// let n = 8; // tokens of context
/// let tokens = Tokens::<i64>::open(&path, DType::U16, n + 1)?.vocabulary(50_257);
/// let loader = DataLoader::builder(tokens).batch_size(4).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.shape(), [4, n + 1]);
/// let (inputs, targets) = (&batch.row(1)[..n], &batch.row(1)[1..]);
/// assert_eq!(inputs, [8, 9, 10, 11, 12, 13, 14, 15]);
/// assert_eq!(targets, [9, 10, 11, 12, 13, 14, 15, 16]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Tokens<T: Token = i64> {
    windows: Windows,
    token: PhantomData<fn() -> T>,
}

impl<T: Token> Tokens<T> {
    /// Opens files that contain nothing but little-endian tokens of type `dtype`, such as nanoGPT's
    /// `train.bin`. A sample has `window` tokens.
    ///
    /// `path` is a file, a folder (all files in it and in its sub-folders whose names end with `.bin`), or a
    /// pattern such as `train_{000..009}.bin` or `data/*.bin`. The files have no header, so that their size
    /// is all that can be checked against the dtype: give [`vocabulary`](Self::vocabulary) to find a wrong
    /// dtype.
    ///
    /// # Errors
    /// Returns an error if no file is found, a file cannot be read, its size is not a multiple of the size of
    /// a token, `dtype` is not an integer of 8 to 32 bits or `int64`, `window` is 0, or all files are shorter
    /// than a window.
    pub fn open(path: impl AsRef<Path>, dtype: DType, window: usize) -> Result<Self, DataError> {
        Self::open_all([path], dtype, window)
    }

    /// Opens the files of several paths or patterns, in their order; see [`open`](Self::open).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        dtype: DType,
        window: usize,
    ) -> Result<Self, DataError> {
        Ok(Self {
            windows: Windows::open_raw(&SourceOptions::new(paths), dtype, window)?,
            token: PhantomData,
        })
    }

    /// Opens Megatron's pairs of an index (`.idx`) and a file of tokens (`.bin`), which `preprocess_data.py`
    /// writes. A sample has `window` tokens.
    ///
    /// `path` is the path without extension, as for Megatron's `--data-path`, or with `.idx`. It may also be
    /// a folder (all files in it and in its sub-folders whose names end with `.idx`), or a pattern such as
    /// `corpus_{00..15}_text_document`. The index gives the dtype. It is read once, by this function, and
    /// compared with the size of the `.bin` file: both must hold the same number of tokens, and each sequence
    /// must begin where the one before it ends, as Megatron's `IndexedDatasetBuilder` writes them.
    ///
    /// The windows are those of the documents in the order of the file, one after the other. `GPTDataset`
    /// shuffles the documents too, once for each epoch, before it cuts windows, with NumPy's generator; its
    /// exact order is not reproduced.
    ///
    /// # Errors
    /// As for [`open`](Self::open). Also returns an error if an index is damaged or has another version, if
    /// it does not fit its `.bin` file, or if the files have tokens of different types.
    pub fn open_megatron(path: impl AsRef<Path>, window: usize) -> Result<Self, DataError> {
        Self::open_megatron_all([path], window)
    }

    /// Opens the pairs of several paths or patterns, in their order; see
    /// [`open_megatron`](Self::open_megatron).
    ///
    /// # Errors
    /// As for [`open_megatron`](Self::open_megatron).
    pub fn open_megatron_all<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        window: usize,
    ) -> Result<Self, DataError> {
        Ok(Self { windows: Windows::open_megatron(&SourceOptions::new(paths), window)?, token: PhantomData })
    }

    /// Sets the number of tokens from the start of a window to the start of the next. The default is one less
    /// than the window, at least 1.
    ///
    /// # Errors
    /// Returns an error if `stride` is 0.
    pub fn stride(self, stride: usize) -> Result<Self, DataError> {
        Ok(Self { windows: self.windows.stride(stride)?, ..self })
    }

    /// Skips the first `bytes` bytes of each file, such as the 1024 bytes of llm.c's and modded-nanogpt's
    /// files. The default is 0. If the first file begins as theirs do and this method is not called, the workers
    /// cannot open the dataset. If only another file does, its first sample is an error.
    ///
    /// # Errors
    /// Returns an error if `bytes` is not a multiple of the size of a token, or all files are then shorter
    /// than a window.
    pub fn header_bytes(self, bytes: u64) -> Result<Self, DataError> {
        Ok(Self { windows: self.windows.header_bytes(bytes)?, ..self })
    }

    /// Sets the size of the vocabulary: a sample with a token of `size` or more, or with a negative one, is
    /// an error that names the file and the position. By default every token that `T` can hold is accepted. A
    /// size of 0 counts as 1.
    #[must_use]
    pub fn vocabulary(self, size: u64) -> Self {
        Self { windows: self.windows.vocabulary(size), ..self }
    }

    /// Adds to each window the position of each token in its document, and the number of the document.
    /// `token` ends a document and belongs to it. A sample is then a [`TokenWindow`](crate::TokenWindow).
    ///
    /// # Errors
    /// Returns an error if `T` cannot hold the number of tokens of a window.
    pub fn end_of_document(self, token: T) -> Result<SegmentedTokens<T>, DataError> {
        self.windows.check_positions::<T>()?;
        Ok(SegmentedTokens::new(self, token))
    }

    /// Number of tokens in a sample.
    pub fn window(&self) -> usize {
        self.windows.window()
    }

    /// Number of tokens in all files, also those that are in no window.
    pub fn total_tokens(&self) -> u64 {
        self.windows.tokens()
    }
}

impl<T: Token> Dataset for Tokens<T> {
    type Sample = Tensor<T>;

    fn len(&self) -> usize {
        self.windows.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Tensor<T>> {
        Ok(self.windows.read(index)?)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Tensor<T>>> {
        Ok(self.windows.read_many(indices, cx.is_collated::<Self>())?)
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        Ok(self.windows.check_header()?)
    }

    /// Returns the number and size of the files, a hash of their names and sizes, the dtype, the window and the stride.
    fn fingerprint(&self) -> String {
        self.windows.fingerprint()
    }
}
