//! The main process's half of a batch's way through a slot: the encoding is read and its tensors become views of the slot. The
//! worker's half is [`arena`](crate::arena).

use std::{cell::RefCell, collections::BTreeMap, ops::Range, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{
    arena::Encoded,
    buffer::{ALIGNMENT, Buffer},
    codec::{self, CodecError},
    sys::{ChunkError, Loan},
};

/// Why a slot's bytes are not the batch that its worker said they are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The encoding's place is wrong.
    #[error("the batch's encoding: {0}")]
    Chunk(#[from] ChunkError),
    /// The encoding is not such a batch, or a tensor in it is placed wrongly.
    #[error("the batch cannot be decoded: {0}")]
    Codec(#[from] CodecError),
}

struct Lent {
    loan: Loan,
    /// By first byte and length.
    adopted: BTreeMap<(u64, u64), Arc<Buffer>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

/// Decodes the batch in a slot. Its tensors hold the slot's bytes until the last clone of the last one is dropped.
///
/// # Errors
/// [`DecodeError`]: nothing that a worker writes can make this process read outside the slot.
pub fn decode<B: DeserializeOwned>(mut loan: Loan, encoded: Encoded) -> Result<B, DecodeError> {
    /// Ends the decoding, also when a `Deserialize` panics, and goes back to the one around it.
    struct Restore(Option<Lent>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    // Copied: a worker that still writes there could change a text between the look whether it is one and its use.
    let meta = loan.take(to_range(encoded.start, encoded.len)?)?.as_bytes().to_vec();
    let _restore = Restore(CURRENT.replace(Some(Lent { loan, adopted: BTreeMap::new() })));
    Ok(codec::decode(&meta)?)
}

/// The buffer at `offset` of the slot that this thread is decoding; `None` when no slot is being decoded, so that the bytes
/// follow in the encoding. The same place again gives the same buffer.
///
/// # Errors
/// When the place is outside the slot, overlaps another tensor, or is not aligned.
pub fn adopt(offset: u64, len: u64) -> Option<Result<Arc<Buffer>, ChunkError>> {
    CURRENT.with_borrow_mut(|current| {
        let lent = current.as_mut()?;
        Some(lent.adopt(offset, len))
    })
}

/// True while this thread decodes a slot.
pub fn is_decoding() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

impl Lent {
    fn adopt(&mut self, offset: u64, len: u64) -> Result<Arc<Buffer>, ChunkError> {
        let range = to_range(offset, len)?;
        if let Some(buffer) = self.adopted.get(&(offset, len)).filter(|_| len > 0) {
            return Ok(Arc::clone(buffer));
        }
        if range.start % ALIGNMENT != 0 {
            return Err(ChunkError::OutOfBounds { start: range.start, end: range.end });
        }
        let buffer = Arc::new(Buffer::in_slot(self.loan.take(range)?));
        self.adopted.insert((offset, len), Arc::clone(&buffer));
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

    /// A tensor of one byte, encoded as its place.
    struct Byte(Arc<Buffer>);

    impl<'de> Deserialize<'de> for Byte {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let place = u64::deserialize(deserializer)?;
            adopt(place, 1).expect("a slot is being decoded").map(Self).map_err(D::Error::custom)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "its 200,000 tensors take minutes there")]
    fn any_order_of_many_tensors_is_decoded_quickly() {
        const TENSORS: usize = 200_000;
        let descending: Vec<u64> = (0..TENSORS).rev().map(|place| (place * ALIGNMENT) as u64).collect();
        let encoding = codec::encode(&descending).unwrap();
        let start = TENSORS * ALIGNMENT;
        let slot = SlotMemory::of_this_process(NonZeroUsize::new(start + encoding.len()).unwrap()).unwrap();
        slot.lend(()).unwrap().put(start, &encoding).unwrap();
        let encoded = Encoded { start: start as u64, len: encoding.len() as u64 };
        let started = processor_time();
        let tensors: Vec<Byte> = decode(slot.lend(()).unwrap(), encoded).unwrap();
        let took = processor_time() - started;
        println!("{took:?}");
        assert!(tensors.iter().zip(&descending).all(|(tensor, &place)| {
            tensor.0.chunk().is_some_and(|chunk| chunk.offset() as u64 == place)
        }));
        // 0.1 s with optimisation and 0.6 s without. The bound is five times that; an implementation in quadratic time took 16 s.
        assert!(took < Duration::from_secs(3), "{took:?}");
    }

    /// Processor time of this thread. Unlike wall-clock time, it hardly depends on the load of the machine.
    fn processor_time() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
    }
}
