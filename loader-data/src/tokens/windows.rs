//! Windows of tokens in files.

use std::cell::RefCell;

use loader_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::element::{Accepted, Token, check_dtype, convert};
use crate::{
    error::{DataError, DataProblem, Result},
    source::{Blob, Files},
};

thread_local! {
    /// The bytes of the last window that this thread has read.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Files that contain nothing but tokens, and the windows in them. The type of the tokens in a sample is not known
/// here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Windows {
    files: Files,
    dtype: DType,
    /// Number of tokens in a window.
    window: usize,
    /// Number of tokens from the start of a window to the start of the next.
    stride: usize,
    /// For each file, the number of windows in it and in all files before it. In shared memory.
    ends: Tensor<u64>,
    vocabulary: Option<u64>,
}

impl Windows {
    /// Finds the windows in `files`. The stride is one token less than the window.
    pub(super) fn new(files: Files, dtype: DType, window: usize) -> Result<Self> {
        let first = |problem| DataError::new(files.get(0).location, problem);
        check_dtype(dtype).map_err(first)?;
        for file in (0..files.len()).map(|file| files.get(file)) {
            if file.len % dtype.size() as u64 != 0 {
                let reason = format!("{} bytes are not a multiple of {}", file.len, dtype.size());
                let format = "a file of tokens of the given dtype";
                return Err(DataError::new(file.location, DataProblem::Malformed { format, reason }));
            }
        }
        if window == 0 {
            let reason = "a window needs at least 1 token".to_owned();
            return Err(first(DataProblem::InvalidOption { option: "window", reason }));
        }
        let stride = (window - 1).max(1);
        let ends = ends(&files, dtype, window, stride)?;
        let windows = Self { files, dtype, window, stride, ends, vocabulary: None };
        if windows.len() == 0 {
            let longest = (0..windows.files.len()).map(|file| windows.tokens_in(file)).max().unwrap_or(0);
            let reason = format!("a window has {window} tokens, but the longest file has {longest}");
            return Err(windows.invalid("window", reason));
        }
        Ok(windows)
    }

    pub(super) fn stride(self, stride: usize) -> Result<Self> {
        if stride == 0 {
            return Err(
                self.invalid("stride", "the next window must start at least 1 token later".to_owned())
            );
        }
        let ends = ends(&self.files, self.dtype, self.window, stride)?;
        Ok(Self { stride, ends, ..self })
    }

    pub(super) fn vocabulary(self, size: u64) -> Self {
        Self { vocabulary: Some(size), ..self }
    }

    /// An error about an option.
    fn invalid(&self, option: &'static str, reason: String) -> DataError {
        DataError::new(self.files.get(0).location, DataProblem::InvalidOption { option, reason })
    }

    /// Number of windows.
    pub(super) fn len(&self) -> usize {
        self.ends.as_slice().last().copied().unwrap_or(0) as usize
    }

    /// Number of tokens in a window.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Number of tokens in file `file`.
    fn tokens_in(&self, file: usize) -> u64 {
        self.files.get(file).len / self.dtype.size() as u64
    }

    /// Number of tokens in all files.
    pub(super) fn tokens(&self) -> u64 {
        (0..self.files.len()).map(|file| self.tokens_in(file)).sum()
    }

    /// Reads window `index`.
    pub(super) fn read<T: Token>(&self, index: usize) -> Result<Tensor<T>> {
        let index = index as u64;
        let ends = self.ends.as_slice();
        let file = ends.partition_point(|&end| end <= index);
        if file == ends.len() {
            let reason = format!("there is no window {index}, only {}", self.len());
            return Err(self.invalid("window", reason));
        }
        let before = file.checked_sub(1).map_or(0, |before| ends[before]);
        let offset = (index - before) * self.stride as u64 * self.dtype.size() as u64;
        let blob = self.files.open(file)?;
        read(&blob, offset, self.dtype, self.window, Accepted::new::<T>(self.vocabulary))
    }

    /// Text that identifies which tokens are at which index.
    pub(super) fn fingerprint(&self) -> String {
        let Self { files, dtype, window, stride, .. } = self;
        format!("tokens(#{:016x}, {dtype}, window {window}, stride {stride})", files.listing())
    }
}

/// For each file, the number of windows in it and in all files before it.
fn ends(files: &Files, dtype: DType, window: usize, stride: usize) -> Result<Tensor<u64>> {
    let mut ends = Vec::with_capacity(files.len());
    let mut end = 0;
    for file in 0..files.len() {
        let tokens = files.get(file).len / dtype.size() as u64;
        end += tokens.checked_sub(window as u64).map_or(0, |rest| rest / stride as u64 + 1);
        ends.push(end);
    }
    let shape = [ends.len()];
    Tensor::from_vec(ends, shape)
        .map_err(|error| DataError::new("the index", DataProblem::Memory(error.to_string())))
}

/// Reads `count` tokens of type `dtype` at `offset`, in one read.
pub(super) fn read<T: Token>(
    blob: &Blob,
    offset: u64,
    dtype: DType,
    count: usize,
    accepted: Accepted,
) -> Result<Tensor<T>> {
    let no_memory = |_| blob.error(offset, std::io::Error::from(std::io::ErrorKind::OutOfMemory));
    let mut tokens = Tensor::zeros([count]).map_err(no_memory)?;
    BYTES.with_borrow_mut(|bytes| {
        let len = count * dtype.size();
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        let bytes = &mut bytes[..len];
        blob.read_exact_at(bytes, offset)?;
        let row = tokens.as_mut_slice().expect("a new tensor has no clone");
        convert(dtype, bytes, row, accepted).map_err(|(position, token)| {
            blob.error(offset + (position * dtype.size()) as u64, accepted.refuse(token))
        })
    })?;
    Ok(tokens)
}
