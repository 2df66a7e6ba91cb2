//! Batches that contain tensors.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, Hash},
};

use candle_core::{DType, Device};
use loader_core::{BytesArray, Element, collate::Padded, pack::PackedBatch};

use crate::{Error, ToCandle, ToCandleAs};

/// The tensors of a [`Padded`] batch of `B` sequences.
#[derive(Debug, Clone)]
pub struct PaddedCandle {
    /// The padded sequences, shape `[B, longest, ..S]`, where `S` is the shape of an element. The dtype is that of
    /// the batch.
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

/// The tensors of a [`PackedBatch`] of `B` windows. The first three have the dtype of the batch.
#[derive(Debug, Clone)]
pub struct PackedCandle {
    /// The tokens, shape `[B, window]`.
    pub tokens: candle_core::Tensor,
    /// Position of each token in its document, shape `[B, window]`.
    pub positions: candle_core::Tensor,
    /// Number of the document of each token in its window, from 1; 0 for padding. Shape `[B, window]`.
    pub segments: candle_core::Tensor,
    /// Where the documents of each window begin and end, as `I32`, shape `[B, most documents + 1]`. A row is filled
    /// with its last number, which stands for empty documents.
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

macro_rules! maps {
    ($([$($generics:tt)*] $map:ty => $converted:ty),* $(,)?) => {
        $(
            impl<$($generics)*> ToCandle for $map {
                type Candle = $converted;

                fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error> {
                    let converted = |(key, batch): (&K, &B)| match batch.to_candle(device) {
                        Ok(converted) => Ok((key.clone(), converted)),
                        Err(error) => Err(error.in_field(format!("{key:?}"))),
                    };
                    self.iter().map(converted).collect()
                }
            }
        )*
    };
}

maps!(
    [K: Clone + Ord + fmt::Debug, B: ToCandle] BTreeMap<K, B> => BTreeMap<K, B::Candle>,
    [K: Clone + Eq + Hash + fmt::Debug, B: ToCandle, S: BuildHasher] HashMap<K, B, S> => HashMap<K, B::Candle>,
);

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
