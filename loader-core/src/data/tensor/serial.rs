//! Encoding of tensors. In a batch in a slot, a tensor is encoded as an offset into the slot. In a dataset
//! that is sent to workers, it is encoded as a reference to shared memory. Everywhere else its elements are
//! encoded.

use std::{borrow::Cow, sync::Arc};

use loader_ipc::{arena, attach, buffer::Buffer, lent};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::Error as _,
    ser::{Error as _, SerializeStruct},
};
use serde_bytes::Bytes;

use super::{AnyTensor, DType, Element, Tensor, bytes_of};

/// Encoding in a slot: the offset of the elements.
#[derive(Serialize, Deserialize)]
struct InSlot<S> {
    dtype: u8,
    shape: S,
    offset: u64,
}

/// Encoding in a dataset: the attached piece of shared memory that contains the elements.
#[derive(Serialize, Deserialize)]
struct Attached<S> {
    dtype: u8,
    shape: S,
    piece: attach::Piece,
}

/// Encoding elsewhere: the elements themselves, in little-endian order, which is that of memory:
/// `loader-ipc` does not compile for big-endian processors.
#[derive(Deserialize)]
struct Written<'a> {
    dtype: String,
    shape: Vec<usize>,
    #[serde(borrow, with = "serde_bytes")]
    data: Cow<'a, [u8]>,
}

impl<T: Element> Serialize for Tensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.buffer, &self.shape, T::DTYPE, self.as_bytes(), serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for Tensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AnyTensor::deserialize(deserializer)?.downcast().map_err(D::Error::custom)
    }
}

impl Serialize for AnyTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.buffer, &self.shape, self.dtype, self.as_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for AnyTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if attach::is_decoding() {
            let Attached::<Vec<usize>> { dtype, shape, piece } = Attached::deserialize(deserializer)?;
            let (dtype, bytes) = received(dtype, &shape).map_err(D::Error::custom)?;
            let buffer = attach::piece(piece, bytes).ok_or_else(|| {
                D::Error::custom(format_args!("the memory of a tensor ({piece:?}) is missing or too small"))
            })?;
            return Ok(Self { buffer: Arc::new(buffer), shape, dtype });
        }
        if !lent::is_decoding() {
            return from_written(Written::deserialize(deserializer)?).map_err(D::Error::custom);
        }
        let InSlot::<Vec<usize>> { dtype, shape, offset } = InSlot::deserialize(deserializer)?;
        let (dtype, bytes) = received(dtype, &shape).map_err(D::Error::custom)?;
        match lent::buffer_at(offset, bytes as u64) {
            Some(Ok(buffer)) => Ok(Self { buffer, shape, dtype }),
            Some(Err(error)) => Err(D::Error::custom(error)),
            None => Err(D::Error::custom("a tensor in a slot cannot be decoded outside of the slot")),
        }
    }
}

/// Serialises a tensor whose elements are `bytes`, the beginning of `buffer`.
fn serialize<S: Serializer>(
    buffer: &Arc<Buffer>,
    shape: &[usize],
    dtype: DType,
    bytes: &[u8],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if let Some(offset) = arena::ensure_in_slot(buffer, bytes.len()) {
        return InSlot { dtype: dtype as u8, shape, offset }.serialize(serializer);
    }
    if let Some(piece) = attach::attach_piece(buffer, bytes.len()) {
        let piece = piece.map_err(S::Error::custom)?;
        return Attached { dtype: dtype as u8, shape, piece }.serialize(serializer);
    }
    let mut written = serializer.serialize_struct("Tensor", 3)?;
    written.serialize_field("dtype", dtype.name())?;
    written.serialize_field("shape", shape)?;
    written.serialize_field("data", Bytes::new(bytes))?;
    written.end()
}

/// Returns the dtype with the received code, and the number of bytes of a tensor with the received shape.
fn received(code: u8, shape: &[usize]) -> Result<(DType, usize), String> {
    let dtype = DType::from_code(code).ok_or_else(|| format!("{code} is not the code of a dtype"))?;
    let bytes = bytes_of(dtype, shape).ok_or_else(|| format!("{shape:?} is not a valid shape"))?;
    Ok((dtype, bytes))
}

fn from_written(written: Written<'_>) -> Result<AnyTensor, String> {
    let Written { dtype, shape, data } = written;
    let dtype = DType::from_name(&dtype).ok_or_else(|| format!("`{dtype}` is not a dtype"))?;
    if bytes_of(dtype, &shape) != Some(data.len()) {
        return Err(format!("{} bytes do not fill a tensor of {dtype} with shape {shape:?}", data.len()));
    }
    Ok(AnyTensor { buffer: Arc::new(Buffer::copy_of(&data)), shape, dtype })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use loader_ipc::{SlotMemory, arena::Arena, arena::EncodeError, codec, lent, memory};

    use super::*;

    type Batch = (Tensor<f32>, String, Vec<Tensor<u8>>);

    fn slot(len: usize) -> Arc<SlotMemory> {
        let len = NonZeroUsize::new(len).unwrap();
        SlotMemory::map(memory::reserve(len).unwrap(), len).unwrap()
    }

    fn batch() -> Batch {
        let floats = Tensor::from_vec(vec![1.0, 2.0, 3.0], [3, 1]).unwrap();
        (floats, "note".into(), vec![Tensor::zeros([5]).unwrap(), Tensor::from_slice(&[9], [1]).unwrap()])
    }

    #[test]
    fn tensors_are_encoded_by_value_in_json_and_in_bytes() {
        let json = serde_json::to_string(&batch()).unwrap();
        assert_eq!(serde_json::from_str::<Batch>(&json).unwrap(), batch());
        assert_eq!(codec::decode::<Batch>(&codec::encode(&batch()).unwrap()).unwrap(), batch());
        assert!(serde_json::from_str::<(Tensor<f64>, String, Vec<Tensor<u8>>)>(&json).is_err());
    }

    #[test]
    fn a_dataset_shares_its_tensors_until_one_is_changed() {
        let tensor = Tensor::from_vec((0..1000u32).collect(), [10, 100]).unwrap();
        let value = (tensor.clone(), Tensor::from_slice(&[1.5f64], []).unwrap(), tensor.clone());
        let (bytes, attached) = attach::encode(&value).unwrap();
        assert_eq!(attached.memories.len(), 1);
        assert!(attached.memories[0].bytes().len() < 2 * tensor.as_bytes().len(), "clones are written once");
        let attached_again = attached.clone();
        let mut back: (Tensor<u32>, Tensor<f64>, Tensor<u32>) = attach::decode(&bytes, attached).unwrap();
        assert_eq!(back, value);
        let within = attached_again.memories[0].bytes().as_ptr_range();
        assert!(within.contains(&back.0.as_bytes().as_ptr()), "the tensor was copied");
        back.0.as_mut_slice().unwrap()[0] = 7;
        assert_eq!((back.0.as_slice()[0], back.2.as_slice()[0]), (7, 0));
        assert!(attach::decode::<(Tensor<i32>, Tensor<f64>, Tensor<u32>)>(&bytes, attached_again).is_err());
    }

    /// Creates tensors while it is serialised, so that a later tensor can have the address of a dropped one.
    struct Made;

    impl Serialize for Made {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq((0..4u8).map(|value| Tensor::from_slice(&[value; 3], [3]).unwrap()))
        }
    }

    #[test]
    fn temporary_tensors_are_encoded_separately() {
        let (bytes, attached) = attach::encode(&Made).unwrap();
        let back: Vec<Tensor<u8>> = attach::decode(&bytes, attached).unwrap();
        assert!(back.iter().map(Tensor::as_slice).eq((0..4).map(|value| [value; 3])));
    }

    #[test]
    fn empty_tensors_and_shared_rows_of_tensors_can_be_attached() {
        let rows = [Tensor::from_slice(&[1u16, 2], [2]).unwrap(), Tensor::zeros([0]).unwrap()];
        let value = (Tensor::<f64>::zeros([0, 3]).unwrap(), crate::SharedVec::new(rows.clone()).unwrap());
        let (bytes, attached) = attach::encode(&value).unwrap();
        let (empty, shared): (Tensor<f64>, crate::SharedVec<Tensor<u16>>) =
            attach::decode(&bytes, attached).unwrap();
        assert_eq!((empty.shape(), empty.as_slice()), ([0, 3].as_slice(), [].as_slice()));
        assert!(shared.iter().map(Result::unwrap).eq(rows));
    }

    #[test]
    fn tensors_in_a_slot_are_decoded_as_views() {
        let slot = slot(8192);
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let outside = Tensor::from_slice(&[9], [1]).unwrap();
        let mut made = arena.within(batch);
        assert!(made.0.is_shared_memory());
        made.2[1] = outside.clone();
        let encoded = arena.encode(&made).unwrap();
        drop((arena, made));
        let (floats, note, bytes): Batch = lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert_eq!((&floats, note.as_str(), &bytes[1]), (&batch().0, "note", &outside));
        assert!(floats.is_shared_memory() && bytes[1].is_shared_memory());
        assert!(slot.is_lent());
        drop((floats, bytes));
        assert!(!slot.is_lent());
    }

    #[test]
    fn clones_in_a_batch_share_their_data_after_decoding() {
        let slot = slot(8192);
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let tensor = arena.within(|| Tensor::from_slice(&[1u16, 2], [2]).unwrap());
        let encoded = arena.encode(&(tensor.clone(), tensor)).unwrap();
        drop(arena);
        let (mut one, two): (Tensor<u16>, Tensor<u16>) =
            lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert_eq!(one, two);
        assert!(one.as_mut_slice().is_err());
    }

    #[test]
    fn the_error_about_a_small_slot_contains_the_size_that_is_needed() {
        let small = slot(4096);
        let mut arena = Arena::in_slot(small.lend(()).unwrap());
        let large =
            arena.within(|| (Tensor::<u8>::zeros([3000]).unwrap(), Tensor::<u8>::zeros([3000]).unwrap()));
        assert!(large.0.is_shared_memory() && !large.1.is_shared_memory());
        let Err(EncodeError::TooLarge { needed }) = arena.encode(&large) else { panic!("it does not fit") };
        let enough = slot(needed);
        let mut arena = Arena::in_slot(enough.lend(()).unwrap());
        let encoded = arena.encode(&large).unwrap();
        drop(arena);
        let back: (Tensor<u8>, Tensor<u8>) = lent::decode(enough.lend(()).unwrap(), encoded).unwrap();
        assert_eq!(back, large);
    }

    #[test]
    fn clones_share_their_data_in_a_slot_that_the_batch_was_copied_to() {
        let small = slot(4096);
        let mut arena = Arena::in_slot(small.lend(()).unwrap());
        let (inside, outside) = arena.within(|| {
            (Tensor::<u8>::zeros([3000]).unwrap(), Tensor::from_slice(&[1u8; 3000], [3000]).unwrap())
        });
        let batch = [inside.clone(), outside.clone(), inside, outside];
        let Err(EncodeError::TooLarge { needed }) = arena.encode(&batch) else { panic!("it does not fit") };
        assert!((6000..7000).contains(&needed), "{needed}");
        let enough = slot(needed);
        let mut arena = Arena::in_slot(enough.lend(()).unwrap());
        let encoded = arena.encode(&batch).unwrap();
        drop(arena);
        let mut back: [Tensor<u8>; 4] = lent::decode(enough.lend(()).unwrap(), encoded).unwrap();
        assert_eq!(back, batch);
        assert_eq!(back[0].as_slice().as_ptr(), back[2].as_slice().as_ptr());
        assert!(back.iter_mut().all(|tensor| tensor.as_mut_slice().is_err()), "each has a clone");
    }

    #[test]
    fn temporary_tensors_are_encoded_separately_in_a_slot() {
        let slot = slot(8192);
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let encoded = arena.encode(&Made).unwrap();
        drop(arena);
        let mut back: Vec<Tensor<u8>> = lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert!(back.iter().map(Tensor::as_slice).eq((0..4).map(|value| [value; 3])));
        assert!(back.iter_mut().all(|tensor| tensor.as_mut_slice().is_ok()));
    }

    #[test]
    fn changing_a_tensor_after_encoding_changes_a_copy() {
        let slot = slot(8192);
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let mut kept = arena.within(|| Tensor::from_slice(&[1u16, 2], [2]).unwrap());
        kept.as_mut_slice().unwrap()[0] = 7;
        let encoded = arena.encode(&kept).unwrap();
        kept.as_mut_slice().unwrap()[0] = 8;
        assert!(!kept.is_shared_memory());
        drop(arena);
        let sent: Tensor<u16> = lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert_eq!((sent.as_slice(), kept.as_slice()), ([7, 2].as_slice(), [8, 2].as_slice()));
    }

    #[test]
    fn invalid_offsets_and_shapes_are_refused() {
        let invalid = [
            InSlot { dtype: 0, shape: vec![8192], offset: 0 },
            InSlot { dtype: 0, shape: vec![usize::MAX, 2], offset: 0 },
            InSlot { dtype: 0, shape: vec![4], offset: u64::MAX - 1 },
            InSlot { dtype: 0, shape: vec![4], offset: 3 },
            InSlot { dtype: 1, shape: vec![4], offset: 0 },
            // Overlaps the encoding of the batch.
            InSlot { dtype: 0, shape: vec![4020], offset: 64 },
        ];
        for tensor in invalid {
            let slot = slot(4096);
            let bytes = codec::encode(&tensor).unwrap();
            let start = 4096 - bytes.len();
            let mut loan = slot.lend(()).unwrap();
            loan.put(start, &bytes).unwrap();
            drop(loan);
            let encoded = arena::Encoded { start: start as u64, len: bytes.len() as u64 };
            assert!(lent::decode::<Tensor<u8>>(slot.lend(()).unwrap(), encoded).is_err());
        }
    }
}
