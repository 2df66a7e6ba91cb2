//! Batches that contain tensors.

use std::collections::BTreeMap;

use burn_core::tensor::{self as burn_tensor, DType as BurnDType, Device, Int, Tensor as BurnTensor};
use loader::{
    Bool,
    collate::{Keep, Padded, Ragged, Stack},
    pack::PackedBatch,
    prelude::*,
};
use loader_burn::{Error, PackedBurn, PaddedBurn, ToBurn};
use serde::{Deserialize, Serialize};

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
    assert!(matches!(&error, Error::Field { field, .. } if field == "\"a\".0"));
    assert!(error.to_string().starts_with("field `\"a\".0`: a tensor of rank 1"), "{error}");
}

#[derive(Sample)]
#[sample(burn)]
struct Boxes {
    corners: [[f32; 2]; 2],
    class: u8,
}

/// A field of each kind.
#[derive(Sample)]
#[sample(burn)]
struct Photo {
    pixels: [[[f32; 4]; 2]; 3],
    label: i64,
    flipped: bool,
    mask: Vec<bool>,
    #[sample(rank = 3)]
    depth: Tensor<f64>,
    boxes: Boxes,
    name: String,
    tokens: Ragged<Vec<u32>>,
    notes: Option<Vec<i16>>,
    kept: Keep<Vec<[f32; 4]>>,
    truths: [Bool; 2],
    meta: Keep<Meta>,
    r#type: u8,
}

/// It is not `Debug`.
#[derive(Clone, Serialize, Deserialize)]
struct Meta {
    camera: String,
}

fn photo(flipped: bool) -> Photo {
    Photo {
        pixels: [[[0.5; 4]; 2]; 3],
        label: 7,
        flipped,
        mask: vec![true, false],
        depth: Tensor::from_slice(&[1.0, 2.0], [2, 1]).unwrap(),
        boxes: Boxes { corners: [[0.0, 0.1], [1.0, 1.1]], class: 3 },
        name: "a.jpg".to_owned(),
        tokens: Ragged::new(vec![1; 1 + usize::from(flipped)]),
        notes: None,
        kept: Keep(vec![[0.0; 4]]),
        truths: [Bool::new(flipped), Bool::new(true)],
        meta: Keep(Meta { camera: "left".to_owned() }),
        r#type: 2,
    }
}

#[test]
fn a_derived_batch_has_tensors_of_the_ranks_of_its_fields() {
    let mut stack = Photo::stack(2);
    [photo(true), photo(false)].into_iter().for_each(|photo| stack.push(photo).unwrap());
    let batch = stack.finish().unwrap();
    let PhotoBurn {
        pixels,
        label,
        flipped,
        mask,
        depth,
        boxes,
        name,
        tokens,
        notes,
        kept,
        truths,
        meta,
        r#type,
    } = batch.to_burn(&Device::flex()).unwrap();
    assert_eq!((truths.dims(), meta[1].camera.as_str(), r#type.dims()), ([2, 2], "left", [2]));
    let (pixels, label): (BurnTensor<4>, BurnTensor<1, Int>) = (pixels, label);
    assert_eq!((pixels.dims(), label.dtype()), ([2, 3, 2, 4], BurnDType::I64));
    assert_eq!(pixels.into_data().as_bytes().as_ptr(), batch.pixels.as_bytes().as_ptr());
    let (flipped, mask): (BurnTensor<1, burn_tensor::Bool>, BurnTensor<2, burn_tensor::Bool>) =
        (flipped, mask);
    assert_eq!(flipped.into_data().try_to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!((mask.dims(), depth.dims()), ([2, 2], [2, 2, 1]));
    assert_eq!((boxes.corners.dims(), boxes.class.dims()), ([2, 2, 2], [2]));
    assert_eq!((name, kept), (vec!["a.jpg".to_owned(); 2], vec![vec![[0.0; 4]]; 2]));
    assert_eq!((tokens.values.dims(), tokens.lengths.dims(), notes.is_none()), ([2, 2], [2], true));
}

#[derive(Sample)]
#[sample(burn)]
struct Digit([f32; 4], i64);

#[test]
fn a_tuple_struct_becomes_a_tuple_struct() {
    let mut stack = Digit::stack(2);
    [Digit([0.5; 4], 7), Digit([0.0; 4], 3)].into_iter().for_each(|digit| stack.push(digit).unwrap());
    let DigitBurn(pixels, label) = stack.finish().unwrap().to_burn(&Device::flex()).unwrap();
    assert_eq!((pixels.dims(), label.dims()), ([2, 4], [2]));
    assert_eq!(label.into_data().try_to_vec::<i64>().unwrap(), [7, 3]);
}

#[derive(Sample)]
#[sample(burn)]
struct WrongRank(u8, #[sample(rank = 4)] Tensor<f32>);

#[test]
fn the_error_names_the_field_of_a_wrong_rank() {
    let mut stack = WrongRank::stack(1);
    stack.push(WrongRank(1, Tensor::zeros([3]).unwrap())).unwrap();
    let converted = stack.finish().unwrap().to_burn(&Device::flex());
    let error = converted.map(|WrongRankBurn(class, depth)| (class.dims(), depth.dims())).unwrap_err();
    let expected = "field `1`: a tensor of rank 2 (shape [1, 3]) is not a burn tensor of rank 4";
    assert!(error.to_string().starts_with(expected), "{error}");
}
