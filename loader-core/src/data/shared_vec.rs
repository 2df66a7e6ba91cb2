//! A vector in memory that all processes share.

use std::{fmt, io, io::Write, marker::PhantomData, sync::Arc};

use loader_ipc::{
    attach, codec,
    memory::{SealedMemory, SealedWriter},
    schema,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _},
    ser::{Error as _, SerializeSeq},
};

/// An immutable vector of rows in shared memory, for the large tables of a dataset (file names, labels,
/// annotations). The rows are in memory once, with any number of workers: a worker receives a descriptor
/// instead of a copy. Each read of a row decodes it.
///
/// Cloning is cheap. A dataset that is sent to workers contains a reference to the memory; any other
/// serialisation writes the list of rows.
///
/// # Examples
/// ```
/// use loader_core::SharedVec;
///
/// let names = SharedVec::new(["cat.jpg", "dog.jpg"].map(String::from))?;
/// assert_eq!(names.len(), 2);
/// assert_eq!(names.get(1)?, "dog.jpg");
/// # anyhow::Ok(())
/// ```
pub struct SharedVec<T> {
    // The encoded rows, then for each row its end as a little-endian u64, then the number of rows.
    memory: Arc<SealedMemory>,
    len: usize,
    row: PhantomData<fn() -> T>,
}

/// Error returned when a [`SharedVec`] is created or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedVecError {
    /// The system has no memory or no descriptors left.
    #[error("no shared memory for the rows: {0}")]
    Memory(#[from] io::Error),
    /// A row cannot be encoded or decoded.
    #[error("row {row} cannot be encoded or decoded: {problem}")]
    Row {
        /// Index of the row.
        row: usize,
        /// Error of its `Serialize` or `Deserialize`.
        problem: String,
    },
    /// The index of the row is not below the number of rows.
    #[error("row {row} is out of range: there are {len} rows")]
    OutOfRange {
        /// Index of the row.
        row: usize,
        /// Number of rows.
        len: usize,
    },
}

const WORD: usize = size_of::<u64>();

impl<T: Serialize + DeserializeOwned> SharedVec<T> {
    /// Writes `rows` into shared memory.
    ///
    /// # Errors
    /// Returns [`SharedVecError::Memory`] if memory runs out, and [`SharedVecError::Row`] if a row cannot be
    /// encoded.
    pub fn new(rows: impl IntoIterator<Item = T>) -> Result<Self, SharedVecError> {
        let mut writer = io::BufWriter::with_capacity(1 << 16, SealedWriter::create()?);
        let mut ends = Vec::new();
        let mut end = 0u64;
        for (row, value) in rows.into_iter().enumerate() {
            let problem = |error: codec::CodecError| SharedVecError::Row { row, problem: error.to_string() };
            let bytes = attach::without_attachments(|| codec::encode(&value)).map_err(problem)?;
            writer.write_all(&bytes)?;
            end += bytes.len() as u64;
            ends.extend_from_slice(&end.to_le_bytes());
        }
        let len = ends.len() / WORD;
        writer.write_all(&ends)?;
        writer.write_all(&(len as u64).to_le_bytes())?;
        let memory = writer.into_inner().map_err(io::IntoInnerError::into_error)?.seal()?;
        Ok(Self { memory: Arc::new(memory), len, row: PhantomData })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Decodes row `row`.
    ///
    /// # Errors
    /// Returns [`SharedVecError::OutOfRange`] if `row` is not below the number of rows, and
    /// [`SharedVecError::Row`] if the row cannot be decoded.
    pub fn get(&self, row: usize) -> Result<T, SharedVecError> {
        if row >= self.len {
            return Err(SharedVecError::OutOfRange { row, len: self.len });
        }
        let start = if row == 0 { 0 } else { self.end_of(row - 1) };
        let bytes = self.memory.bytes().get(start..self.end_of(row)).unwrap_or_default();
        let decoded = attach::without_attachments(|| codec::decode(bytes));
        decoded.map_err(|error| SharedVecError::Row { row, problem: error.to_string() })
    }

    /// Returns an iterator that decodes the rows one by one.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, SharedVecError>> {
        (0..self.len).map(|row| self.get(row))
    }

    /// Returns `None` if `memory` is too short for its own table of ends.
    fn from_memory(memory: Arc<SealedMemory>) -> Option<Self> {
        let (_, last) = memory.bytes().split_last_chunk::<WORD>()?;
        let len = usize::try_from(u64::from_le_bytes(*last)).ok()?;
        let tail = len.checked_add(1)?.checked_mul(WORD)?;
        (tail <= memory.bytes().len()).then_some(Self { memory, len, row: PhantomData })
    }

    /// Returns where row `row` ends in the memory.
    fn end_of(&self, row: usize) -> usize {
        let bytes = self.memory.bytes();
        let offset = bytes.len() - (self.len + 1 - row) * WORD;
        let word = bytes[offset..]
            .first_chunk::<WORD>()
            .expect("`new` writes the table, `from_memory` checks its length");
        u64::from_le_bytes(*word) as usize
    }
}

impl<T: Serialize + DeserializeOwned> Serialize for SharedVec<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(number) = attach::attach_memory(&self.memory) {
            return number.serialize(serializer);
        }
        // A schema needs no more rows, and decoding all of them could take long.
        let rows = if schema::is_recording() { self.len.min(schema::ROWS) } else { self.len };
        let mut list = serializer.serialize_seq(Some(rows))?;
        for row in self.iter().take(rows) {
            list.serialize_element(&row.map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

impl<'de, T: Serialize + DeserializeOwned> Deserialize<'de> for SharedVec<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if attach::is_decoding() {
            let number = u32::deserialize(deserializer)?;
            let memory = attach::memory(number).and_then(Self::from_memory);
            return memory.ok_or_else(|| {
                D::Error::custom(format_args!("the memory of shared rows {number} is missing or invalid"))
            });
        }
        Self::new(Vec::<T>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<T> Clone for SharedVec<T> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), len: self.len, row: PhantomData }
    }
}

impl<T> fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedVec").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rows = SharedVec<(u8, String)>;

    #[test]
    fn rows_survive_attaching_and_serialising() {
        let rows = [(1u8, "one".to_owned()), (2, String::new()), (3, "three".to_owned())];
        let shared = SharedVec::new(rows.clone()).unwrap();
        assert!(shared.iter().map(Result::unwrap).eq(rows.clone()));
        assert!(matches!(shared.get(3), Err(SharedVecError::OutOfRange { row: 3, len: 3 })));

        let (bytes, attached) = attach::encode(&(shared.clone(), shared.clone())).unwrap();
        assert_eq!((bytes.len(), attached.memories.len()), (8, 1), "both refer to one memory");
        let (one, two): (Rows, Rows) = attach::decode(&bytes, attached).unwrap();
        assert!(one.iter().chain(two.iter()).map(Result::unwrap).eq([rows.clone(), rows.clone()].concat()));

        let json = serde_json::to_string(&shared).unwrap();
        assert_eq!(json, r#"[[1,"one"],[2,""],[3,"three"]]"#);
        let back: Rows = serde_json::from_str(&json).unwrap();
        assert!(back.iter().map(Result::unwrap).eq(rows));
    }

    #[test]
    fn a_vector_without_rows_is_empty() {
        assert!(SharedVec::<u8>::new([]).unwrap().is_empty());
    }
}
