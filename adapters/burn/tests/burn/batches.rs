//! Batches that contain tensors.

use std::collections::BTreeMap;

use burn_core::tensor::{DType as BurnDType, Device, Int, Tensor as BurnTensor};
use loader::{collate::Padded, pack::PackedBatch, prelude::*};
use loader_burn::{Error, PackedBurn, PaddedBurn, ToBurn};

#[test]
fn padded_and_packed_batches_have_tensors_of_fixed_ranks() {
    let device = Device::flex();
    let padded = Padded {
        values: Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 0.0], [2, 2]).unwrap(),
        lengths: Tensor::from_slice(&[2_u64, 1], [2]).unwrap(),
    };
    let PaddedBurn { values, lengths } = padded.to_burn::<2>(&device).unwrap();
    assert_eq!((values.dims(), lengths.dims(), lengths.dtype()), ([2, 2], [2], BurnDType::U64));

    let row = |elements: &[i64]| Tensor::from_slice(elements, [1, elements.len()]).unwrap();
    let packed = PackedBatch {
        tokens: row(&[5, 6, 7, 0]),
        positions: row(&[0, 1, 0, 0]),
        segments: row(&[1, 1, 2, 0]),
        cu_seqlens: Padded {
            values: Tensor::from_slice(&[0_i32, 2, 3], [1, 3]).unwrap(),
            lengths: Tensor::from_slice(&[3_u64], [1]).unwrap(),
        },
    };
    let PackedBurn { tokens, cu_seqlens, .. } = packed.to_burn::<0>(&device).unwrap();
    assert_eq!(tokens.into_data().try_to_vec::<i64>().unwrap(), [5, 6, 7, 0]);
    assert_eq!(cu_seqlens.values.into_data().try_to_vec::<i32>().unwrap(), [0, 2, 3]);
}

#[test]
fn lists_maps_and_options_have_tensors_of_one_rank() {
    let tensor = |len| Tensor::<i64>::zeros([len]).unwrap();
    let batch = BTreeMap::from([("a", Some(vec![tensor(2), tensor(3)])), ("b", None)]);
    let converted: BTreeMap<&str, Option<Vec<BurnTensor<1, Int>>>> =
        batch.to_burn::<1>(&Device::flex()).unwrap();
    assert_eq!(converted["a"].as_ref().unwrap()[1].dims(), [3]);
    let error = batch.to_burn::<2>(&Device::flex()).unwrap_err();
    assert!(matches!(&error, Error::Field { field, .. } if field == "\"a\""));
    assert!(error.to_string().starts_with("field `\"a\"`: field `0`: a tensor of rank 1"), "{error}");
}
