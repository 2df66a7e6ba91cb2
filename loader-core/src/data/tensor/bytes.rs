//! Byte strings of different lengths in one buffer.

use std::{fmt, iter::FusedIterator, ops::Index, sync::Arc};

use loader_ipc::{arena, buffer::Buffer, lent};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_bytes::{ByteBuf, Bytes};

use super::{Tensor, TensorError};

/// Byte strings of different lengths, such as the encoded images of a batch, in one buffer.
///
/// In a batch from a worker, the buffer is in a slot of shared memory, like that of a [`Tensor`]: clones
/// share it, and the loader reuses the slot when the last of them has been dropped.
///
/// # Examples
/// ```
/// use loader_core::BytesArray;
///
/// let array = BytesArray::new(&["one", "three"])?;
/// assert_eq!((array.len(), &array[1]), (2, b"three".as_slice()));
/// assert!(array.iter().map(<[u8]>::len).eq([3, 5]));
/// # Ok::<(), loader_core::TensorError>(())
/// ```
#[derive(Clone)]
pub struct BytesArray {
    /// The byte strings without gaps, shape `[total]`.
    data: Tensor<u8>,
    /// End of each byte string in `data`; ascending, and the last one is the length of `data`.
    ends: Vec<usize>,
}

impl BytesArray {
    /// Creates an array from copies of `items`, in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub fn new<B: AsRef<[u8]>>(items: &[B]) -> Result<Self, TensorError> {
        let mut total = 0;
        let ends: Vec<usize> = items
            .iter()
            .map(|item| {
                total += item.as_ref().len();
                total
            })
            .collect();
        let Some(mut buffer) = Buffer::for_overwrite(total) else {
            return Err(TensorError::TooLarge { shape: vec![total] });
        };
        let mut free = buffer.as_bytes_mut();
        for item in items {
            let (room, rest) = free.split_at_mut(item.as_ref().len());
            room.copy_from_slice(item.as_ref());
            free = rest;
        }
        Ok(Self { data: Tensor::over(Arc::new(buffer), vec![total]), ends })
    }

    /// Number of byte strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are no byte strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns byte string `index`, or `None` if there are not as many.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.data.as_slice()[start..end])
    }

    /// Returns the byte strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator + FusedIterator {
        (0..self.len()).map(|index| &self[index])
    }

    /// True if the bytes are in a slot of shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.data.is_shared_memory()
    }
}

impl Index<usize> for BytesArray {
    type Output = [u8];

    /// # Panics
    /// Panics if there are not as many byte strings.
    fn index(&self, index: usize) -> &[u8] {
        let len = self.len();
        self.get(index).unwrap_or_else(|| panic!("byte string {index} is out of range: the array has {len}"))
    }
}

impl PartialEq for BytesArray {
    fn eq(&self, other: &Self) -> bool {
        self.ends == other.ends && self.data == other.data
    }
}

impl fmt::Debug for BytesArray {
    /// Writes the number of byte strings and the first bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BytesArray[{}] {:?}", self.len(), self.data)
    }
}

impl Serialize for BytesArray {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if arena::is_encoding() {
            return (&self.data, &self.ends).serialize(serializer);
        }
        serializer.collect_seq(self.iter().map(Bytes::new))
    }
}

impl<'de> Deserialize<'de> for BytesArray {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !lent::is_decoding() {
            let items = Vec::<ByteBuf>::deserialize(deserializer)?;
            return Self::new(&items).map_err(D::Error::custom);
        }
        let (data, ends) = <(Tensor<u8>, Vec<usize>)>::deserialize(deserializer)?;
        if !ends.is_sorted() || ends.last().copied().unwrap_or(0) != data.as_slice().len() {
            return Err(D::Error::custom("the byte strings of an array do not fill its buffer"));
        }
        Ok(Self { data, ends })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use loader_ipc::{SlotMemory, arena::Arena, codec, memory};

    use super::*;

    const ITEMS: [&[u8]; 4] = [b"one", b"", b"three", b""];

    fn slot() -> Arc<SlotMemory> {
        let len = NonZeroUsize::new(4096).unwrap();
        SlotMemory::map(memory::reserve(len).unwrap(), len).unwrap()
    }

    #[test]
    fn byte_strings_are_found_by_index() {
        let array = BytesArray::new(&ITEMS).unwrap();
        assert!(array.iter().eq(ITEMS) && array.iter().rev().eq(ITEMS.into_iter().rev()));
        assert_eq!((array.get(3), array.get(4)), (Some(&[][..]), None));
        let empty = BytesArray::new::<&[u8]>(&[]).unwrap();
        assert!(empty.is_empty() && empty.get(0).is_none() && empty != array);
    }

    #[test]
    fn outside_of_a_slot_an_array_is_encoded_like_a_list() {
        let array = BytesArray::new(&ITEMS).unwrap();
        let encoded = codec::encode(&array).unwrap();
        assert_eq!(encoded, codec::encode(&ITEMS.map(<[u8]>::to_vec).to_vec()).unwrap());
        assert_eq!(codec::decode::<BytesArray>(&encoded).unwrap(), array);
        let json = serde_json::to_string(&array).unwrap();
        assert_eq!(serde_json::from_str::<BytesArray>(&json).unwrap(), array);
    }

    #[test]
    fn an_array_in_a_slot_is_decoded_as_a_view() {
        let slot = slot();
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let inside = arena.within(|| BytesArray::new(&ITEMS).unwrap());
        let outside = BytesArray::new(&[[7; 100]]).unwrap();
        assert!(inside.is_shared_memory() && !outside.is_shared_memory());
        let encoded = arena.encode(&(&inside, &outside)).unwrap();
        drop((arena, inside));
        let back: (BytesArray, BytesArray) = lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert!(back.0.iter().eq(ITEMS) && back.1 == outside);
        assert!(back.0.is_shared_memory() && back.1.is_shared_memory());
        drop(back);
        assert!(!slot.is_lent());
    }

    #[test]
    fn invalid_ends_are_refused() {
        for ends in [vec![2, 1, 3], vec![1, 4], vec![1, 2], vec![]] {
            let slot = slot();
            let mut arena = Arena::in_slot(slot.lend(()).unwrap());
            let data = Tensor::from_slice(&[1u8, 2, 3], [3]).unwrap();
            let encoded = arena.encode(&(data, &ends)).unwrap();
            drop(arena);
            assert!(lent::decode::<BytesArray>(slot.lend(()).unwrap(), encoded).is_err(), "{ends:?}");
        }
    }
}
