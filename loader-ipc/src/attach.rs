//! Attachments of an encoded value, to which its bytes refer by number.
//!
//! Large read-only content is sent as a descriptor of sealed memory, which each process maps. Content that is
//! in sealed memory already is not copied. Other content, which may come in thousands of pieces, is copied
//! into one memory, which costs one descriptor.
//!
//! Open files are attached as they are.
//!
//! Functions are attached too, so that only a function that was encoded can be decoded.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
    thread::LocalKey,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    buffer::{ALIGNMENT, Buffer},
    codec::{self, CodecError},
    entry::AnyFunction,
    held_fd::HeldFd,
    memory::{SealedMemory, SealedWriter},
};

/// The memory, the files and the functions that an encoded value refers to by number.
#[derive(Debug, Clone, Default)]
pub struct Attached {
    /// Large content.
    pub memories: Vec<Arc<SealedMemory>>,
    /// Open files.
    pub files: Vec<Arc<HeldFd>>,
    /// Functions.
    pub functions: Vec<AnyFunction>,
}

impl From<Vec<Arc<SealedMemory>>> for Attached {
    fn from(memories: Vec<Arc<SealedMemory>>) -> Self {
        Self { memories, ..Self::default() }
    }
}

/// The attachments of a value that is being encoded.
#[derive(Default)]
struct Encoding {
    /// `None` for the memory of `pieces`, which is still being written.
    memories: Vec<Option<Arc<SealedMemory>>>,
    pieces: Option<Pieces>,
    /// Why a piece has no memory.
    failed: Option<io::Error>,
    files: Vec<Arc<HeldFd>>,
    functions: Vec<AnyFunction>,
}

/// Content copied piece by piece into one memory.
struct Pieces {
    writer: io::BufWriter<SealedWriter>,
    /// Number of the memory.
    number: usize,
    /// Bytes written.
    end: usize,
    /// Offsets of the buffers written, by address and length, so that clones are written once. The map holds
    /// each buffer, so that no other buffer can get its address.
    known: BTreeMap<(usize, usize), (usize, Arc<Buffer>)>,
}

/// Where a piece is: the number of its memory, and the offset there in bytes.
pub type Piece = (u32, u64);

thread_local! {
    static ENCODING: RefCell<Option<Encoding>> = const { RefCell::new(None) };
    static DECODING: RefCell<Option<Attached>> = const { RefCell::new(None) };
}

/// Puts the previous value of a thread-local back on drop, even when user code panics.
struct Restore<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);

impl<T> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1.take());
    }
}

/// A piece has no shared memory. [`encode`] returns the system's error, which the error of a serialiser cannot
/// contain.
#[derive(Debug, thiserror::Error)]
#[error("no shared memory for a part of the value")]
pub struct PieceFailed;

/// Reasons why a value cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The value's `Serialize` implementation failed.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The system has no memory for the attachments.
    #[error("no shared memory for the value: {0}")]
    Memory(#[from] io::Error),
}

/// Encodes `value`. Returns its bytes and its attachments.
///
/// # Errors
/// If `value` cannot be serialised, or if the system is out of memory or descriptors.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<(Vec<u8>, Attached), AttachError> {
    let _restore = Restore(&ENCODING, ENCODING.replace(Some(Encoding::default())));
    let bytes = codec::encode(value);
    let Encoding { mut memories, pieces, failed, files, functions } = ENCODING.take().unwrap_or_default();
    if let Some(error) = failed {
        return Err(error.into());
    }
    let bytes = bytes?;
    if let Some(Pieces { writer, number, .. }) = pieces {
        let memory = writer.into_inner().map_err(io::IntoInnerError::into_error)?.seal()?;
        memories[number] = Some(Arc::new(memory));
    }
    Ok((bytes, Attached { memories: memories.into_iter().flatten().collect(), files, functions }))
}

/// Decodes a value with its attachments.
///
/// # Errors
/// If `bytes` do not encode a `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], attached: Attached) -> Result<T, CodecError> {
    let _restore = Restore(&DECODING, DECODING.replace(Some(attached)));
    codec::decode(bytes)
}

/// Attaches `memory` to the value that this thread is encoding. Returns the number to serialise instead of
/// the content; `None` if no value with attachments is being encoded, so that the caller must serialise the
/// content itself.
pub fn attach_memory(memory: &Arc<SealedMemory>) -> Option<u32> {
    ENCODING.with_borrow_mut(|encoding| {
        let list = &mut encoding.as_mut()?.memories;
        let is_same = |other: &Option<Arc<_>>| other.as_ref().is_some_and(|other| Arc::ptr_eq(other, memory));
        Some(number_in(list, is_same, || Some(Arc::clone(memory))))
    })
}

/// Attaches `file` to the value that this thread is encoding. Returns the number to serialise instead of the
/// file; `None` in the same case as [`attach_memory`].
pub(crate) fn attach_file(file: &Arc<HeldFd>) -> Option<u32> {
    ENCODING.with_borrow_mut(|encoding| {
        let list = &mut encoding.as_mut()?.files;
        Some(number_in(list, |other| Arc::ptr_eq(other, file), || Arc::clone(file)))
    })
}

/// Attaches `function` to the value that this thread is encoding. Returns the number to serialise instead of
/// the function; `None` in the same case as [`attach_memory`].
pub fn attach_function(function: AnyFunction) -> Option<u32> {
    ENCODING.with_borrow_mut(|encoding| {
        let list = &mut encoding.as_mut()?.functions;
        Some(number_in(list, |other| other.is_same(function), || function))
    })
}

/// Attaches the first `len` bytes of `buffer` to the value that this thread is encoding. One memory holds all
/// pieces of a value. Returns `None` in the same case as [`attach_memory`].
///
/// # Errors
/// If the system is out of memory or descriptors, or forbids a call.
pub fn attach_piece(buffer: &Arc<Buffer>, len: usize) -> Option<Result<Piece, PieceFailed>> {
    ENCODING.with_borrow_mut(|encoding| {
        let encoding = encoding.as_mut()?;
        Some(encoding.piece(buffer, len).map_err(|error| {
            encoding.failed.get_or_insert(error);
            PieceFailed
        }))
    })
}

impl Encoding {
    fn piece(&mut self, buffer: &Arc<Buffer>, len: usize) -> io::Result<Piece> {
        let pieces = match &mut self.pieces {
            Some(pieces) => pieces,
            None => {
                let writer = io::BufWriter::new(SealedWriter::create()?);
                let number = self.memories.len();
                self.memories.push(None);
                self.pieces.insert(Pieces { writer, number, end: 0, known: BTreeMap::new() })
            }
        };
        let key = (Arc::as_ptr(buffer).addr(), len);
        let start = match pieces.known.get(&key) {
            Some(&(start, _)) => start,
            None => {
                let start = pieces.end.next_multiple_of(ALIGNMENT);
                pieces.writer.write_all(&[0; ALIGNMENT][..start - pieces.end])?;
                pieces.writer.write_all(&buffer.as_bytes()[..len])?;
                pieces.end = start + len;
                // A buffer without other owners cannot be attached again, and may be a large temporary one.
                if Arc::strong_count(buffer) > 1 {
                    pieces.known.insert(key, (start, Arc::clone(buffer)));
                }
                start
            }
        };
        Ok((to_number(pieces.number), start as u64))
    }
}

/// Returns the number of the attachment in `list` for which `is_same` is true. If there is none, adds `new()`.
fn number_in<T>(list: &mut Vec<T>, is_same: impl FnMut(&T) -> bool, new: impl FnOnce() -> T) -> u32 {
    let known = list.iter().position(is_same);
    to_number(known.unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    }))
}

fn to_number(position: usize) -> u32 {
    u32::try_from(position).expect("fewer attachments than descriptors")
}

/// Hides the attachments of the value that this thread is encoding or decoding while `call` runs. Used for a
/// part of the value that is encoded separately.
pub fn without_attachments<R>(call: impl FnOnce() -> R) -> R {
    let _encoding = Restore(&ENCODING, ENCODING.take());
    let _decoding = Restore(&DECODING, DECODING.take());
    call()
}

/// True while this thread decodes a value with attachments.
pub fn is_decoding() -> bool {
    DECODING.with_borrow(Option::is_some)
}

/// Returns the memory attached under `number` to the value that this thread is decoding.
pub fn memory(number: u32) -> Option<Arc<SealedMemory>> {
    DECODING.with_borrow(|decoding| {
        decoding.as_ref()?.memories.get(usize::try_from(number).ok()?).map(Arc::clone)
    })
}

/// Returns the file attached under `number` to the value that this thread is decoding.
pub(crate) fn file(number: u32) -> Option<Arc<HeldFd>> {
    DECODING
        .with_borrow(|decoding| decoding.as_ref()?.files.get(usize::try_from(number).ok()?).map(Arc::clone))
}

/// Returns the function attached under `number` to the value that this thread is decoding.
pub fn function(number: u32) -> Option<AnyFunction> {
    DECODING.with_borrow(|decoding| decoding.as_ref()?.functions.get(usize::try_from(number).ok()?).copied())
}

/// Returns the `len` bytes attached as `piece` to the value that this thread is decoding; `None` if they do
/// not exist or are not aligned.
pub fn piece((number, start): Piece, len: usize) -> Option<Buffer> {
    let start = usize::try_from(start).ok().filter(|start| start.is_multiple_of(ALIGNMENT))?;
    Buffer::in_sealed(memory(number)?, start, len)
}
