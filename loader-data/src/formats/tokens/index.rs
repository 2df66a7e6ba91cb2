//! Megatron's index of a file of tokens.
//!
//! The layout, little-endian and without padding: 9 bytes `MMIDIDX\0\0`, version (u64), code of the dtype
//! (u8), number S of sequences (u64), number D of document boundaries (u64), S lengths in tokens (i32), S
//! byte offsets in the data (i64), D boundaries (i64; each is the number of sequences before it, the first is
//! 0), and for multimodal data S modes (i8), which are not read.

use std::{
    ffi::OsString,
    io::{self, Read},
    ops::Range,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use loader_core::DType;

use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    source::{Files, Location},
};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER: u64 = 34;
const EXTENSION: &str = ".idx";

/// What an index says.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    pub(super) dtype: DType,
    /// For each document, the number of tokens in it and in all documents before it.
    pub(super) ends: Vec<u64>,
    /// Number of tokens.
    pub(super) tokens: u64,
}

/// The files of tokens and what their indexes say.
pub(super) struct Indexed {
    pub(super) files: Files,
    pub(super) dtype: DType,
    pub(super) indexes: Vec<Index>,
}

/// Reads the indexes in `source`. A path may lack the extension `.idx`.
pub(super) fn open(source: &SourceOptions) -> Result<Indexed> {
    let listed = list(source)?;
    let data_paths: Vec<_> = (0..listed.len()).map(|index| data_path(&listed.get(index).location)).collect();
    let files = source.renamed(data_paths.iter().cloned()).files(&[])?;
    check_names(&data_paths, &files)?;
    let mut indexes = Vec::<Index>::with_capacity(listed.len());
    for number in 0..listed.len() {
        let blob = listed.open(number)?;
        let index = parse(blob.len(), |range| blob.reader(range))
            .map_err(|Invalid { offset, problem }| blob.error(offset, problem))?;
        let (dtype, data) = (index.dtype, files.get(number));
        if index.tokens.checked_mul(dtype.size() as u64) != Some(data.len) {
            let reason = format!("{} bytes, but the index says {} tokens of {dtype}", data.len, index.tokens);
            return Err(DataError::new(data.location, malformed("the file of a Megatron index", reason)));
        }
        if let Some(first) = indexes.first()
            && first.dtype != dtype
        {
            let reason = format!("tokens of {dtype} beside files of {}; open them apart", first.dtype);
            return Err(DataError::new(data.location, DataProblem::Unsupported(reason)));
        }
        indexes.push(index);
    }
    let dtype = indexes.first().map_or(DType::U16, |index| index.dtype);
    Ok(Indexed { files, dtype, indexes })
}

/// Fails if a name of `data_paths` was taken for a pattern of other `files`.
fn check_names(data_paths: &[PathBuf], files: &Files) -> Result<()> {
    let is_named = |number: usize| {
        number < files.len() && files.get(number).location == Location::new(&data_paths[number])
    };
    match (0..data_paths.len()).find(|&number| !is_named(number)) {
        None => Ok(()),
        Some(number) => {
            let reason = "this name of a token file beside an index has wildcards, and no file has exactly this name; add \
                          that file, or rename the token file and its index so that their names have none of `*?[{`";
            Err(DataError::new(Location::new(&data_paths[number]), DataProblem::Pattern(reason.to_owned())))
        }
    }
}

/// Lists the indexes in `source`.
pub(super) fn list(source: &SourceOptions) -> Result<Files> {
    let source = source.resolved(&[EXTENSION])?;
    let files = source.renamed(source.path.iter().map(|path| index_path(path))).files(&[EXTENSION]);
    files.map_err(|error| match error.file.strip_suffix(".bin.idx`") {
        Some(path) if matches!(error.problem, DataProblem::NotFound) => {
            let reason =
                "the name ends with `.bin`; give the path of Megatron's files without `.bin`".to_owned();
            DataError::new(format!("{path}.bin`"), DataProblem::InvalidOption { option: "path", reason })
        }
        _ => error,
    })
}

/// Adds the extension to a path that lacks it, as Megatron's options do.
fn index_path(path: &Path) -> PathBuf {
    let is_index = path.as_os_str().as_encoded_bytes().ends_with(EXTENSION.as_bytes());
    if is_index || path.is_dir() {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(EXTENSION);
    name.into()
}

/// The path or URL of the tokens beside an index.
fn data_path(index: &Location) -> PathBuf {
    let mut bytes = index.as_path().as_os_str().to_owned().into_vec();
    bytes.truncate(bytes.len().saturating_sub(EXTENSION.len()));
    bytes.extend_from_slice(b".bin");
    OsString::from_vec(bytes).into()
}

/// Why an index is invalid, and where.
#[derive(Debug)]
struct Invalid {
    offset: u64,
    problem: DataProblem,
}

fn malformed(format: &'static str, reason: impl Into<String>) -> DataProblem {
    DataProblem::Malformed { format, reason: reason.into() }
}

fn invalid(offset: u64, reason: impl Into<String>) -> Invalid {
    Invalid { offset, problem: malformed("a Megatron index", reason) }
}

/// Little-endian numbers of one part of an index.
struct Numbers<R> {
    reader: R,
    offset: u64,
}

impl<R: Read> Numbers<R> {
    fn next<const N: usize>(&mut self) -> Result<[u8; N], Invalid> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| Invalid {
            offset: self.offset,
            problem: match error.kind() {
                io::ErrorKind::UnexpectedEof => DataProblem::Truncated,
                _ => match error.downcast::<DataError>() {
                    Ok(error) => error.problem,
                    Err(error) => error.into(),
                },
            },
        })?;
        self.offset += N as u64;
        Ok(bytes)
    }
}

/// Parses an index of `len` bytes. `read` returns a reader of a range, which is within the index.
fn parse<R: Read>(len: u64, read: impl Fn(Range<u64>) -> R) -> Result<Index, Invalid> {
    let part = |range: Range<u64>| Numbers { offset: range.start, reader: read(range) };
    let mut header = part(0..len.min(HEADER));
    if header.next::<9>()? != *MAGIC {
        return Err(invalid(0, "it does not begin with `MMIDIDX`"));
    }
    let version = u64::from_le_bytes(header.next()?);
    if version != 1 {
        let problem =
            DataProblem::Unsupported(format!("version {version} of Megatron's index, only version 1"));
        return Err(Invalid { offset: 9, problem });
    }
    let [code] = header.next::<1>()?;
    let dtype = dtype(code).map_err(|problem| Invalid { offset: 17, problem })?;
    let sequences = u64::from_le_bytes(header.next()?);
    let boundaries = u64::from_le_bytes(header.next()?);

    let [lengths, offsets, documents] = layout(len, sequences, boundaries)?;
    let size = dtype.size() as u64;
    let (mut lengths, mut offsets, mut documents) = (part(lengths), part(offsets), part(documents));
    // `layout` has compared the number of boundaries with the size of the file.
    let mut ends = Vec::with_capacity(boundaries.saturating_sub(1) as usize);
    let (mut sequence, mut tokens) = (0, 0u64);
    for number in 0..boundaries {
        let at = documents.offset;
        let boundary = i64::from_le_bytes(documents.next()?);
        let is_valid = u64::try_from(boundary).is_ok_and(|boundary| {
            let (first, last) = (number == 0, number + 1 == boundaries);
            sequence <= boundary
                && boundary <= sequences
                && (!first || boundary == 0)
                && (!last || boundary == sequences)
        });
        if !is_valid {
            let reason = format!(
                "document boundary {number} is {boundary}, with {sequence} of {sequences} sequences before it"
            );
            return Err(invalid(at, reason));
        }
        while sequence < boundary as u64 {
            tokens = sequence_end(&mut lengths, &mut offsets, tokens, size)?;
            sequence += 1;
        }
        if number > 0 {
            ends.push(tokens);
        }
    }
    Ok(Index { dtype, ends, tokens })
}

/// Checks a sequence that begins after `tokens` tokens, and returns the number of tokens up to its end.
fn sequence_end<R: Read>(
    lengths: &mut Numbers<R>,
    offsets: &mut Numbers<R>,
    tokens: u64,
    size: u64,
) -> Result<u64, Invalid> {
    let (length_at, offset_at) = (lengths.offset, offsets.offset);
    let length = i32::from_le_bytes(lengths.next()?);
    let length =
        u64::try_from(length).map_err(|_| invalid(length_at, format!("a sequence has {length} tokens")))?;
    let offset = i64::from_le_bytes(offsets.next()?);
    if u64::try_from(offset).ok() != tokens.checked_mul(size) {
        let reason =
            format!("a sequence begins at byte {offset} instead of where the sequence before it ends");
        return Err(Invalid { offset: offset_at, problem: DataProblem::Unsupported(reason) });
    }
    Ok(tokens + length)
}

/// Returns the ranges of the lengths, the offsets and the boundaries in an index of `len` bytes.
fn layout(len: u64, sequences: u64, boundaries: u64) -> Result<[Range<u64>; 3], Invalid> {
    if boundaries == 0 {
        return Err(invalid(26, "it has no document boundaries"));
    }
    let ends = || {
        let lengths = HEADER.checked_add(sequences.checked_mul(4)?)?;
        let offsets = lengths.checked_add(sequences.checked_mul(8)?)?;
        Some((lengths, offsets, offsets.checked_add(boundaries.checked_mul(8)?)?))
    };
    let Some((lengths, offsets, documents)) = ends() else {
        return Err(invalid(
            18,
            format!("{sequences} sequences and {boundaries} boundaries fit into no file"),
        ));
    };
    match len.checked_sub(documents) {
        None => Err(Invalid { offset: len, problem: DataProblem::Truncated }),
        // Modes of sequences follow.
        Some(rest) if rest == 0 || rest == sequences => {
            Ok([HEADER..lengths, lengths..offsets, offsets..documents])
        }
        Some(rest) => Err(invalid(documents, format!("{rest} bytes follow its end"))),
    }
}

fn dtype(code: u8) -> Result<DType, DataProblem> {
    Ok(match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 | 7 => return Err(DataProblem::Unsupported("an index of floats; tokens are integers".to_owned())),
        8 => DType::U16,
        _ => return Err(malformed("a Megatron index", format!("{code} is not the code of a dtype"))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Index, Invalid> {
        parse(bytes.len() as u64, |range| &bytes[range.start as usize..range.end as usize])
    }

    /// An index of sequences of uint16.
    fn index(lengths: &[i32], boundaries: &[i64]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(8);
        bytes.extend((lengths.len() as u64).to_le_bytes());
        bytes.extend((boundaries.len() as u64).to_le_bytes());
        bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        let mut offset = 0i64;
        for &length in lengths {
            bytes.extend(offset.to_le_bytes());
            offset += i64::from(length) * 2;
        }
        bytes.extend(boundaries.iter().flat_map(|boundary| boundary.to_le_bytes()));
        bytes
    }

    #[test]
    fn documents_consist_of_sequences() {
        let read = parsed(&index(&[3, 4, 0, 5], &[0, 2, 2, 4])).unwrap();
        assert_eq!(read, Index { dtype: DType::U16, ends: vec![7, 7, 12], tokens: 12 });
        assert!(parsed(&index(&[], &[0])).unwrap().ends.is_empty());
        let mut with_modes = index(&[1, 2], &[0, 2]);
        with_modes.extend([0, 1]);
        assert_eq!(parsed(&with_modes).unwrap().tokens, 3);
    }

    #[test]
    fn a_truncated_index_is_refused_wherever_it_ends() {
        let whole = index(&[3, 4, 5], &[0, 1, 3]);
        for len in 0..whole.len() {
            let error = parsed(&whole[..len]).unwrap_err();
            assert!(matches!(error.problem, DataProblem::Truncated), "{len}: {error:?}");
            assert!(error.offset <= len as u64, "{len}: {error:?}");
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        let changed = |at: usize, bytes: &[u8]| {
            let mut index = index(&[3, 4], &[0, 1, 2]);
            index[at..at + bytes.len()].copy_from_slice(bytes);
            let error = parsed(&index).unwrap_err();
            (error.offset, error.problem.to_string())
        };
        let says = |(offset, text): (u64, String), at: u64, words: &str| {
            assert!(offset == at && text.contains(words), "{offset}: {text}");
        };
        says(changed(0, b"X"), 0, "does not begin with");
        says(changed(9, &2u64.to_le_bytes()), 9, "version 2");
        says(changed(17, &[7]), 17, "floats");
        says(changed(17, &[9]), 17, "9 is not the code");
        // Counts that overflow, or need more memory than there is, do not allocate.
        says(changed(18, &u64::MAX.to_le_bytes()), 18, "fit into no file");
        says(changed(18, &(1u64 << 40).to_le_bytes()), 82, "ends before");
        says(changed(26, &u64::MAX.to_le_bytes()), 18, "fit into no file");
        says(changed(26, &(1u64 << 40).to_le_bytes()), 82, "ends before");
        says(changed(26, &0u64.to_le_bytes()), 26, "no document boundaries");
        says(changed(26, &2u64.to_le_bytes()), 74, "8 bytes follow");
        says(changed(34, &(-1i32).to_le_bytes()), 34, "-1 tokens");
        says(changed(34, &1i32.to_le_bytes()), 50, "byte 6 instead");
        says(changed(42, &(-2i64).to_le_bytes()), 42, "byte -2 instead");
        says(changed(58, &1i64.to_le_bytes()), 58, "boundary 0 is 1");
        says(changed(66, &(-1i64).to_le_bytes()), 66, "boundary 1 is -1");
        says(changed(66, &3i64.to_le_bytes()), 66, "boundary 1 is 3");
        says(changed(74, &1i64.to_le_bytes()), 74, "boundary 2 is 1");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), is_index: bool) {
            let beginning = if is_index { &index(&[], &[])[..18] } else { &[] };
            drop(parsed(&[beginning, &bytes].concat()));
        }

        #[test]
        fn a_changed_index_is_refused_or_consistent(
            lengths in prop::collection::vec(0..9i32, 1..6),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = index(&lengths, &[0, 1, lengths.len() as i64]);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(index) = parsed(&bytes) {
                prop_assert!(index.ends.is_sorted());
                prop_assert_eq!(index.ends.last().copied().unwrap_or(0), index.tokens);
            }
        }
    }
}
