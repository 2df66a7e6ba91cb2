//! Batches that contain tensors.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash},
};

use candle_core::{DType, Device};
use loader_core::{BytesArray, Element, collate::Padded, pack::PackedBatch};

use crate::{Error, ToCandle, ToCandleAs};

/// The tensors of a [`Padded`] batch.
#[derive(Debug, Clone)]
pub struct PaddedCandle {
    /// The padded sequences, shape `[B, longest, ..S]`.
    pub values: candle_core::Tensor,
    /// Length of each sequence before padding, shape `[B]`, as `I64`, because candle has no `u64`.
    pub lengths: candle_core::Tensor,
}

impl<T: Element> ToCandle for Padded<T> {
    type Candle = PaddedCandle;

    fn to_candle(&self, device: &Device) -> Result<PaddedCandle, Error> {
        let values = self.values.to_candle(device).map_err(|error| error.in_field("values"))?;
        let lengths = self.lengths.to_candle_as(DType::I64, device);
        Ok(PaddedCandle { values, lengths: lengths.map_err(|error| error.in_field("lengths"))? })
    }
}

/// The tensors of a [`PackedBatch`], with the same names.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "`PackedBatch` describes them")]
pub struct PackedCandle {
    pub tokens: candle_core::Tensor,
    pub positions: candle_core::Tensor,
    pub segments: candle_core::Tensor,
    pub cu_seqlens: PaddedCandle,
}

impl<T: Element> ToCandle for PackedBatch<T> {
    type Candle = PackedCandle;

    fn to_candle(&self, device: &Device) -> Result<PackedCandle, Error> {
        Ok(PackedCandle {
            tokens: self.tokens.to_candle(device).map_err(|error| error.in_field("tokens"))?,
            positions: self.positions.to_candle(device).map_err(|error| error.in_field("positions"))?,
            segments: self.segments.to_candle(device).map_err(|error| error.in_field("segments"))?,
            cu_seqlens: self.cu_seqlens.to_candle(device).map_err(|error| error.in_field("cu_seqlens"))?,
        })
    }
}

macro_rules! unchanged {
    ($($batch:ty),*) => {
        $(
            impl ToCandle for $batch {
                type Candle = Self;

                fn to_candle(&self, _device: &Device) -> Result<Self, Error> {
                    Ok(self.clone())
                }
            }
        )*
    };
}

unchanged!((), String, char, bool, u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, BytesArray);

impl<B: ToCandle> ToCandle for Vec<B> {
    type Candle = Vec<B::Candle>;

    fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
        let converted = |(index, batch): (usize, &B)| {
            batch.to_candle(device).map_err(|error| error.in_field(index.to_string()))
        };
        self.iter().enumerate().map(converted).collect()
    }
}

impl<B: ToCandle> ToCandle for Option<B> {
    type Candle = Option<B::Candle>;

    fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
        self.as_ref().map(|batch| batch.to_candle(device)).transpose()
    }
}

impl<K: Clone + Eq + Hash, B: ToCandle, S: BuildHasher> ToCandle for HashMap<K, B, S> {
    type Candle = HashMap<K, B::Candle>;

    fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
        self.iter().map(|(key, batch)| Ok((key.clone(), batch.to_candle(device)?))).collect()
    }
}

impl<K: Clone + Ord, B: ToCandle> ToCandle for BTreeMap<K, B> {
    type Candle = BTreeMap<K, B::Candle>;

    fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
        self.iter().map(|(key, batch)| Ok((key.clone(), batch.to_candle(device)?))).collect()
    }
}

macro_rules! tuples {
    ($($name:ident $position:tt),*) => {
        impl<$($name: ToCandle),*> ToCandle for ($($name,)*) {
            type Candle = ($($name::Candle,)*);

            fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
                Ok(($(
                    self.$position.to_candle(device).map_err(|error| error.in_field(stringify!($position)))?,
                )*))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
