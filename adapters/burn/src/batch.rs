//! Batches that contain tensors, and batches without tensors.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, Hash},
};

use burn_core::tensor::{Device, Int, Tensor as BurnTensor, kind::Basic};
use loader_core::{BytesArray, collate::Padded, pack::PackedBatch};

use crate::{BurnElement, Error, ToBurn};

/// A batch for which the parameter `D` of [`ToBurn::to_burn`] has no effect: its tensors have ranks of their own, or
/// it has no tensors. The code that `#[sample(burn)]` generates requires it of a field without a known rank.
#[diagnostic::on_unimplemented(
    message = "the rank of the burn tensors of this field is not known",
    label = "its batch is `{Self}`",
    note = "put `#[sample(rank = N)]` on the field, where N counts the dimension of the batch too: 4 for images of \
            shape [channels, height, width]"
)]
pub trait FixedRank: ToBurn {
    /// Returns burn tensors, as [`ToBurn::to_burn`] does.
    ///
    /// # Errors
    /// The errors of [`ToBurn::to_burn`].
    fn to_burn_fixed_rank(&self, device: &Device) -> Result<Self::Burn<0>, Error> {
        self.to_burn(device)
    }
}

/// A [`Padded`] batch of `B` sequences as burn tensors.
#[derive(Debug, Clone)]
pub struct PaddedBurn<const D: usize, K: Basic> {
    /// The padded sequences, shape `[B, longest, ..S]`, where `S` is the shape of an element. The elements keep their
    /// type.
    pub values: BurnTensor<D, K>,
    /// Length of each sequence before padding, shape `[B]`, as `u64`.
    pub lengths: BurnTensor<1, Int>,
}

impl<T: BurnElement> ToBurn for Padded<T> {
    type Burn<const D: usize> = PaddedBurn<D, T::Kind>;

    fn to_burn<const D: usize>(&self, device: &Device) -> Result<PaddedBurn<D, T::Kind>, Error> {
        Ok(PaddedBurn {
            values: self.values.to_burn(device).map_err(|error| error.in_field("values"))?,
            lengths: self.lengths.to_burn(device).map_err(|error| error.in_field("lengths"))?,
        })
    }
}

/// A [`PackedBatch`] of `B` windows as burn tensors. The first three have the elements of the batch.
#[derive(Debug, Clone)]
pub struct PackedBurn<K: Basic> {
    /// The tokens, shape `[B, window]`.
    pub tokens: BurnTensor<2, K>,
    /// Position of each token in its document, shape `[B, window]`.
    pub positions: BurnTensor<2, K>,
    /// Number of the document of each token in its window, from 1; 0 for padding. Shape `[B, window]`.
    pub segments: BurnTensor<2, K>,
    /// Where the documents of each window begin and end, as `i32`, shape `[B, most documents + 1]`. A row is filled
    /// with its last number, which stands for empty documents.
    pub cu_seqlens: PaddedBurn<2, Int>,
}

impl<T: BurnElement> ToBurn for PackedBatch<T> {
    type Burn<const D: usize> = PackedBurn<T::Kind>;

    fn to_burn<const D: usize>(&self, device: &Device) -> Result<PackedBurn<T::Kind>, Error> {
        Ok(PackedBurn {
            tokens: self.tokens.to_burn(device).map_err(|error| error.in_field("tokens"))?,
            positions: self.positions.to_burn(device).map_err(|error| error.in_field("positions"))?,
            segments: self.segments.to_burn(device).map_err(|error| error.in_field("segments"))?,
            cu_seqlens: self.cu_seqlens.to_burn(device).map_err(|error| error.in_field("cu_seqlens"))?,
        })
    }
}

impl<T: BurnElement> FixedRank for PackedBatch<T> {}

macro_rules! unchanged {
    ($($batch:ty),*) => {
        $(
            impl ToBurn for $batch {
                type Burn<const D: usize> = Self;

                fn to_burn<const D: usize>(&self, _device: &Device) -> Result<Self, Error> {
                    Ok(self.clone())
                }
            }

            impl FixedRank for $batch {}
        )*
    };
}

unchanged!((), String, char, bool, u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, BytesArray);

impl<B: ToBurn> ToBurn for Vec<B> {
    type Burn<const D: usize> = Vec<B::Burn<D>>;

    fn to_burn<const D: usize>(&self, device: &Device) -> Result<Self::Burn<D>, Error> {
        let convert = |(position, batch): (usize, &B)| {
            batch.to_burn(device).map_err(|error| error.in_field(position.to_string()))
        };
        self.iter().enumerate().map(convert).collect()
    }
}

impl<B: FixedRank> FixedRank for Vec<B> {}

impl<B: ToBurn> ToBurn for Option<B> {
    type Burn<const D: usize> = Option<B::Burn<D>>;

    fn to_burn<const D: usize>(&self, device: &Device) -> Result<Self::Burn<D>, Error> {
        self.as_ref().map(|batch| batch.to_burn(device)).transpose()
    }
}

impl<B: FixedRank> FixedRank for Option<B> {}

macro_rules! maps {
    ($([$($generics:tt)*] $map:ty: $value:ty => $burn:ty),* $(,)?) => {
        $(
            impl<$($generics)*> ToBurn for $map {
                type Burn<const D: usize> = $burn;

                fn to_burn<const D: usize>(&self, device: &Device) -> Result<Self::Burn<D>, Error> {
                    let convert = |(key, batch): (&K, &$value)| match batch.to_burn(device) {
                        Ok(converted) => Ok((key.clone(), converted)),
                        Err(error) => Err(error.in_field(format!("{key:?}"))),
                    };
                    self.iter().map(convert).collect()
                }
            }
        )*
    };
}

maps!(
    [K: Clone + Ord + fmt::Debug, B: ToBurn] BTreeMap<K, B>: B => BTreeMap<K, B::Burn<D>>,
    [K: Clone + Eq + Hash + fmt::Debug, B: ToBurn, S: BuildHasher] HashMap<K, B, S>: B => HashMap<K, B::Burn<D>>,
);

impl<K, B: FixedRank> FixedRank for BTreeMap<K, B> where Self: ToBurn {}
impl<K, B: FixedRank, S> FixedRank for HashMap<K, B, S> where Self: ToBurn {}
