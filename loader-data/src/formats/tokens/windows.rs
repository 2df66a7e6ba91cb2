//! Windows of tokens in files.

use std::{cell::RefCell, io};

use loader_core::{BatchRows, DType, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    element::{Accepted, Token, check_dtype, convert},
    index,
};
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    source::{Blob, Files},
};

/// Extensions of the files of tokens that are read from a folder.
pub(super) const EXTENSIONS: &[&str] = &[".bin"];

/// Maximum number of bytes that are read and converted at once.
const MAX_READ: usize = 1 << 20;

/// First two numbers in the header of the files of llm.c and modded-nanogpt: the magic number of tokens of GPT-2
/// (`uint16`) or LLaMA-3 (`uint32`), and the version.
const LLM_C_STARTS: [[i32; 2]; 4] = [[20_240_520, 1], [20_240_520, 7], [20_240_801, 1], [20_240_801, 7]];

/// Number of bytes of this header.
const LLM_C_HEADER: u64 = 1024;

thread_local! {
    /// The bytes of the last window that this thread has read, at most [`MAX_READ`].
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Files that contain nothing but tokens, and the windows in them. The type of the tokens in a sample is not
/// known here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Windows {
    files: Files,
    dtype: DType,
    /// Number of bytes before the first token of each file.
    header: u64,
    /// True if the files are raw, and the size of the header was not given.
    has_unknown_header: bool,
    /// Number of tokens in a window.
    window: usize,
    /// Number of tokens from the start of a window to the start of the next.
    stride: usize,
    /// For each file, the number of windows in it and in all files before it. In shared memory.
    ends: Tensor<u64>,
    vocabulary: Option<u64>,
}

impl Windows {
    /// Opens files without header.
    pub(super) fn open_raw(source: &SourceOptions, dtype: DType, window: usize) -> Result<Self> {
        let windows = Self::new(source.files(EXTENSIONS)?, dtype, window)?;
        Ok(Self { has_unknown_header: true, ..windows })
    }

    /// Opens the files of Megatron's pairs. The documents are not used.
    pub(super) fn open_megatron(source: &SourceOptions, window: usize) -> Result<Self> {
        let indexed = index::open(source)?;
        Self::new(indexed.files, indexed.dtype, window)
    }

    /// Finds the windows in `files`. The stride is one token less than the window.
    fn new(files: Files, dtype: DType, window: usize) -> Result<Self> {
        let first = |problem| DataError::new(files.get(0).location, problem);
        check_dtype(dtype).map_err(first)?;
        for file in (0..files.len()).map(|file| files.get(file)) {
            if !file.len.is_multiple_of(dtype.size() as u64) {
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
        let ends = table(Vec::new())?;
        let (header, has_unknown_header) = (0, false);
        Self { files, dtype, header, has_unknown_header, window, stride, ends, vocabulary: None }.count()
    }

    /// Counts the windows of each file.
    fn count(self) -> Result<Self> {
        let mut longest = 0;
        let mut end = 0;
        let mut ends = Vec::with_capacity(self.files.len());
        for tokens in (0..self.files.len()).map(|file| self.tokens_in(file)) {
            let rest = tokens.checked_sub(self.window as u64);
            end += rest.map_or(0, |rest| rest / self.stride as u64 + 1);
            ends.push(end);
            longest = longest.max(tokens);
        }
        if end == 0 {
            let reason = format!("a window has {} tokens, but the longest file has {longest}", self.window);
            return Err(self.invalid("window", reason));
        }
        Ok(Self { ends: table(ends)?, ..self })
    }

    pub(super) fn header_bytes(self, header: u64) -> Result<Self> {
        if !header.is_multiple_of(self.dtype.size() as u64) {
            let reason = format!("{header} is not a multiple of the size of {}", self.dtype);
            return Err(self.invalid("header_bytes", reason));
        }
        Self { header, has_unknown_header: false, ..self }.count()
    }

    /// Returns an error if a header would be read as tokens. Reads the start of the first file.
    pub(super) fn check_header(&self) -> Result<()> {
        if self.has_unknown_header { check_start(&*self.files.open(0)?) } else { Ok(()) }
    }

    pub(super) fn stride(self, stride: usize) -> Result<Self> {
        if stride == 0 {
            return Err(
                self.invalid("stride", "the next window must start at least 1 token later".to_owned())
            );
        }
        Self { stride, ..self }.count()
    }

    pub(super) fn vocabulary(self, size: u64) -> Self {
        Self { vocabulary: Some(size), ..self }
    }

    /// Returns an error if `T` cannot hold the positions of a window.
    pub(super) fn check_positions<T: Token>(&self) -> Result<()> {
        match i64::try_from(self.window) {
            Ok(window) if window <= T::MAX => Ok(()),
            _ => {
                let reason = format!("positions in {} tokens do not fit into {}", self.window, T::DTYPE);
                Err(self.invalid("window", reason))
            }
        }
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
        self.files.get(file).len.saturating_sub(self.header) / self.dtype.size() as u64
    }

    /// Number of tokens in all files.
    pub(super) fn tokens(&self) -> u64 {
        (0..self.files.len()).map(|file| self.tokens_in(file)).sum()
    }

    /// Reads window `index`.
    pub(super) fn read<T: Token>(&self, index: usize) -> Result<Tensor<T>> {
        let place = self.locate(index)?;
        let blob = self.files.open(place.file)?;
        self.check_first(&blob, &place)?;
        read(&blob, place.offset, self.dtype, self.window, Accepted::new::<T>(self.vocabulary))
    }

    /// Reads the windows `indices`. Windows of one file are read together, and into memory of the batch if the dataset
    /// is collated.
    pub(super) fn read_many<T: Token>(&self, indices: &[usize], is_collated: bool) -> Result<Vec<Tensor<T>>> {
        let len = self.window * self.dtype.size();
        if len > MAX_READ {
            return indices.iter().map(|&index| self.read(index)).collect();
        }
        let places = indices.iter().map(|&index| self.locate(index)).collect::<Result<Vec<_>>>()?;
        let mut ordered: Vec<usize> = (0..places.len()).collect();
        ordered.sort_by_key(|&position| places[position].file);
        let mut windows = BatchRows::<T>::new(indices.len(), &[self.window], is_collated)
            .map_err(|error| DataError::new("the windows", DataProblem::Memory(error.to_string())))?;
        let accepted = Accepted::new::<T>(self.vocabulary);
        for of_file in ordered.chunk_by(|&one, &other| places[one].file == places[other].file) {
            let blob = self.files.open(places[of_file[0]].file)?;
            let mut ranges = Vec::with_capacity(of_file.len());
            for &position in of_file {
                let offset = places[position].offset;
                self.check_first(&blob, &places[position])?;
                ranges.push(offset..offset + len as u64);
            }
            BYTES.with_borrow_mut(|buffer| {
                blob.read_each(&ranges, buffer, |number, bytes| {
                    let tokens = windows.row_mut(of_file[number]);
                    convert_at(&blob, ranges[number].start, self.dtype, bytes, tokens, accepted)
                })
            })?;
        }
        Ok(windows.into_samples())
    }

    /// Checks how a file begins if `place` is its first window.
    fn check_first(&self, blob: &Blob, place: &Place) -> Result<()> {
        if self.has_unknown_header && place.is_first { check_start(blob) } else { Ok(()) }
    }

    /// Finds window `index`.
    fn locate(&self, index: usize) -> Result<Place> {
        let index = index as u64;
        let ends = self.ends.as_slice();
        let file = ends.partition_point(|&end| end <= index);
        if file == ends.len() {
            let reason = format!("there is no window {index}, only {}", self.len());
            return Err(self.invalid("window", reason));
        }
        let before = file.checked_sub(1).map_or(0, |before| ends[before]);
        let offset = self.header + (index - before) * self.stride as u64 * self.dtype.size() as u64;
        Ok(Place { file, offset, is_first: index == before })
    }

    /// Text that identifies which tokens are at which index.
    pub(super) fn fingerprint(&self) -> String {
        let Self { files, dtype, header, window, stride, .. } = self;
        let header = if *header == 0 { String::new() } else { format!(", header {header}") };
        format!("tokens({}, {dtype}, window {window}, stride {stride}{header})", files.fingerprint())
    }
}

/// Where a window lies.
struct Place {
    file: usize,
    offset: u64,
    /// True if it is the first window of its file.
    is_first: bool,
}

/// Returns an error if a header at the start of `blob` would be read as tokens.
fn check_start(blob: &Blob) -> Result<()> {
    let mut start = [0; 10];
    if blob.len() < start.len() as u64 {
        return Ok(());
    }
    blob.read_exact_at(&mut start, 0)?;
    let is_llm_c =
        LLM_C_STARTS.iter().any(|numbers| start.starts_with(numbers.map(i32::to_le_bytes).as_flattened()));
    let (found, advice) = match start {
        _ if is_llm_c && blob.len() >= LLM_C_HEADER => (
            "begins with the header of llm.c and modded-nanogpt",
            format!("set `header_bytes` to {LLM_C_HEADER}"),
        ),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, low, high] => (
            "begins with the header of a `.npy` file",
            format!("set `header_bytes` to {}", start.len() + usize::from(u16::from_le_bytes([low, high]))),
        ),
        [0x1F, 0x8B, 8, ..] => ("is compressed with gzip", "decompress it".to_owned()),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => ("is compressed with Zstandard", "decompress it".to_owned()),
        _ => return Ok(()),
    };
    let reason = format!("the file {found}; {advice}, or set `header_bytes` to 0 if these bytes are tokens");
    let problem = DataProblem::InvalidOption { option: "header_bytes", reason };
    Err(DataError::new(&blob.file().location, problem))
}

/// Puts a table into a tensor, which workers share.
pub(super) fn table(rows: Vec<u64>) -> Result<Tensor<u64>> {
    let shape = [rows.len()];
    Tensor::from_vec(rows, shape)
        .map_err(|error| DataError::new("the index", DataProblem::Memory(error.to_string())))
}

/// Reads `count` tokens of type `dtype` at `offset`. A window is one read; a very long document is several.
pub(super) fn read<T: Token>(
    blob: &Blob,
    mut offset: u64,
    dtype: DType,
    count: usize,
    accepted: Accepted,
) -> Result<Tensor<T>> {
    let mut tokens = zeros(count, blob, offset)?;
    let rows = tokens.as_mut_slice().expect("a new tensor has no clone").chunks_mut(MAX_READ / dtype.size());
    BYTES.with_borrow_mut(|bytes| {
        for row in rows {
            let len = row.len() * dtype.size();
            if bytes.len() < len {
                bytes.resize(len, 0);
            }
            blob.read_exact_at(&mut bytes[..len], offset)?;
            convert_at(blob, offset, dtype, &bytes[..len], row, accepted)?;
            offset += len as u64;
        }
        Ok(())
    })?;
    Ok(tokens)
}

/// Makes a tensor for `count` tokens at `offset`.
fn zeros<T: Token>(count: usize, blob: &Blob, offset: u64) -> Result<Tensor<T>> {
    Tensor::zeros([count]).map_err(|_| blob.error(offset, io::Error::from(io::ErrorKind::OutOfMemory)))
}

/// Converts the bytes at `offset` to tokens.
fn convert_at<T: Token>(
    blob: &Blob,
    offset: u64,
    dtype: DType,
    bytes: &[u8],
    tokens: &mut [T],
    accepted: Accepted,
) -> Result<()> {
    convert(dtype, bytes, tokens, accepted).map_err(|(position, token)| {
        blob.error(offset + (position * dtype.size()) as u64, accepted.refuse(token))
    })
}
