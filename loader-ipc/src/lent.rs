//! Reads a batch from its slot in main: the tensors become views of the slot. [`arena`](crate::arena) writes
//! the batch in the worker.

use std::{cell::RefCell, collections::BTreeMap, ops::Range, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{
    arena::Encoded,
    buffer::{ALIGNMENT, Buffer},
    codec::{self, CodecError},
    sys::{ChunkError, Loan},
};

/// Reasons why main cannot decode the batch that a worker has written to a slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The range of the encoding is invalid.
    #[error("the batch's encoding: {0}")]
    Chunk(#[from] ChunkError),
    /// The bytes do not encode a batch of this type, or the range of a tensor is invalid.
    #[error("the batch cannot be decoded: {0}")]
    Codec(#[from] CodecError),
}

struct Lent {
    loan: Loan,
    /// The tensors decoded so far, by offset and length.
    buffers: BTreeMap<(u64, u64), Arc<Buffer>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

/// Decodes the batch in a slot. Its tensors keep the slot lent until the last clone of the last tensor is
/// dropped.
///
/// # Errors
/// If the worker has written invalid bytes. Whatever it writes, this process never reads outside the slot.
pub fn decode<B: DeserializeOwned>(mut loan: Loan, encoded: Encoded) -> Result<B, DecodeError> {
    /// Puts the previous value of [`CURRENT`] back on drop, even when a `Deserialize` implementation panics.
    struct Restore(Option<Lent>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    // Copied: a worker that still writes to the slot could otherwise change a string after it was checked to
    // be UTF-8.
    let bytes = loan.take(to_range(encoded.start, encoded.len)?)?.as_bytes().to_vec();
    let _restore = Restore(CURRENT.replace(Some(Lent { loan, buffers: BTreeMap::new() })));
    Ok(codec::decode(&bytes)?)
}

/// Returns the buffer of `len` bytes at `offset` of the slot that this thread is decoding; the same range
/// gives the same buffer. Returns `None` if this thread decodes no slot: the bytes are then in the encoding
/// itself.
///
/// # Errors
/// If the range is outside the slot, overlaps another tensor, or is not aligned.
pub fn buffer_at(offset: u64, len: u64) -> Option<Result<Arc<Buffer>, ChunkError>> {
    CURRENT.with_borrow_mut(|current| {
        let lent = current.as_mut()?;
        Some(lent.buffer_at(offset, len))
    })
}

/// Returns true while this thread decodes a slot.
pub fn is_decoding() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

impl Lent {
    fn buffer_at(&mut self, offset: u64, len: u64) -> Result<Arc<Buffer>, ChunkError> {
        let range = to_range(offset, len)?;
        if let Some(buffer) = self.buffers.get(&(offset, len)).filter(|_| len > 0) {
            return Ok(Arc::clone(buffer));
        }
        if range.start % ALIGNMENT != 0 {
            return Err(ChunkError::OutOfBounds { start: range.start, end: range.end });
        }
        let buffer = Arc::new(Buffer::in_slot(self.loan.take(range)?));
        self.buffers.insert((offset, len), Arc::clone(&buffer));
        Ok(buffer)
    }
}

fn to_range(start: u64, len: u64) -> Result<Range<usize>, ChunkError> {
    let clamp = |value| usize::try_from(value).unwrap_or(usize::MAX);
    let (start, end) = (clamp(start), clamp(start.saturating_add(len)));
    if end == usize::MAX { Err(ChunkError::OutOfBounds { start, end }) } else { Ok(start..end) }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, time::Duration};

    use nix::time::{ClockId, clock_gettime};
    use serde::{Deserialize, Deserializer, de::Error as _};

    use super::*;
    use crate::sys::SlotMemory;

    /// A tensor of one byte, encoded as its offset.
    struct Byte(Arc<Buffer>);

    impl<'de> Deserialize<'de> for Byte {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let offset = u64::deserialize(deserializer)?;
            buffer_at(offset, 1).expect("a slot is being decoded").map(Self).map_err(D::Error::custom)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "200,000 tensors take minutes under Miri")]
    fn many_tensors_in_any_order_are_decoded_quickly() {
        const TENSORS: usize = 200_000;
        let descending: Vec<u64> = (0..TENSORS).rev().map(|tensor| (tensor * ALIGNMENT) as u64).collect();
        let encoding = codec::encode(&descending).unwrap();
        let start = TENSORS * ALIGNMENT;
        let slot = SlotMemory::of_this_process(NonZeroUsize::new(start + encoding.len()).unwrap()).unwrap();
        slot.lend(()).unwrap().put(start, &encoding).unwrap();
        let encoded = Encoded { start: start as u64, len: encoding.len() as u64 };
        let started = processor_time();
        let tensors: Vec<Byte> = decode(slot.lend(()).unwrap(), encoded).unwrap();
        let took = processor_time() - started;
        println!("{took:?}");
        assert!(tensors.iter().zip(&descending).all(|(tensor, &offset)| {
            tensor.0.chunk().is_some_and(|chunk| chunk.offset() as u64 == offset)
        }));
        // 0.1 s with optimisation and 0.6 s without. The bound is five times that; an implementation in
        // quadratic time took 16 s.
        assert!(took < Duration::from_secs(3), "{took:?}");
    }

    /// Processor time of this thread. Unlike wall-clock time, it hardly depends on the load of the machine.
    fn processor_time() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
    }
}
