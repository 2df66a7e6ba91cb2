//! The conformance of the adapter to candle, its conversions, and `#[sample(candle)]`.

use std::collections::BTreeMap;

use candle_core::{D, Device};
use loader::{
    AnyTensor, BytesArray, DType, Tensor,
    collate::{Keep, Ragged, Stack, pad_sequences},
    pack::PackedWindow,
    prelude::*,
};
use loader_candle::{Error, PaddedCandle, Problem, ToCandle, ToCandleAs, candle_core, from_candle};
use loader_conformance::{Adapter, Copies, Importer, Inspected};
use serde::{Deserialize, Serialize};

loader::init_before_main!();

const CPU: &Device = &Device::Cpu;

struct CandleAdapter;

impl Adapter for CandleAdapter {
    type Tensor = candle_core::Tensor;
    type Error = Error;

    const COPIES: Copies = Copies::One;
    const UNSUPPORTED: &'static [DType] = &[DType::I8, DType::U16, DType::U64, DType::Bool];
    const ADVICE: &'static str = "`to_candle_as`";

    fn export(tensor: AnyTensor) -> Result<candle_core::Tensor, Error> {
        tensor.to_candle(CPU)
    }

    fn inspect(tensor: &candle_core::Tensor) -> Inspected {
        let shape = tensor.dims().to_vec();
        let copy = from_candle(tensor).unwrap();
        let (storage, layout) = tensor.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { panic!("it is not on the CPU") };
        let address = address_of(storage, layout.start_offset());
        Inspected { dtype: copy.dtype(), shape, bytes: copy.as_bytes().to_vec(), address: Some(address) }
    }

    fn last_row(tensor: &candle_core::Tensor) -> Option<candle_core::Tensor> {
        let rows = tensor.dim(0).unwrap();
        Some(tensor.narrow(0, rows - 1, 1).unwrap())
    }

    fn fill(tensor: candle_core::Tensor, value: f32) -> candle_core::Tensor {
        tensor.const_set(value.into()).unwrap();
        tensor
    }
}

impl Importer for CandleAdapter {
    fn import(tensor: candle_core::Tensor) -> Result<AnyTensor, Error> {
        from_candle(&tensor)
    }

    fn transpose(tensor: &candle_core::Tensor) -> candle_core::Tensor {
        tensor.t().unwrap()
    }
}

loader_conformance::suite!(CandleAdapter);
loader_conformance::import_suite!(CandleAdapter);

fn address_of(storage: &candle_core::CpuStorage, offset: usize) -> usize {
    macro_rules! of {
        ($($dtype:ident),*) => {
            match storage {
                $(candle_core::CpuStorage::$dtype(elements) => elements[offset..].as_ptr() as usize,)*
                _ => panic!("the loader has no such dtype"),
            }
        };
    }
    of!(U8, U32, I16, I32, I64, BF16, F16, F32, F64)
}

#[test]
fn integers_are_converted_if_they_fit() {
    let tensor = Tensor::from_vec(vec![0_u64, 7, 1 << 40], [3]).unwrap();
    let as_i64 = tensor.to_candle_as(candle_core::DType::I64, CPU).unwrap();
    assert_eq!(as_i64.to_vec1::<i64>().unwrap(), [0, 7, 1 << 40]);
    let as_f32 = tensor.to_candle_as(candle_core::DType::F32, CPU).unwrap();
    assert_eq!(as_f32.to_vec1::<f32>().unwrap(), [0.0, 7.0, 1_099_511_627_776.0]);
    let error = tensor.to_candle_as(candle_core::DType::I32, CPU).unwrap_err();
    let expected = Problem::OutOfRange { position: 2, value: 1 << 40, dtype: candle_core::DType::I32 };
    assert_eq!(format!("{:?}", error.problem), format!("{expected:?}"));
    assert!(error.to_string().contains("element 2 is 1099511627776, which does not fit into i32"), "{error}");
    let mask = AnyTensor::from_bytes(DType::Bool, [3], &[0, 1, 7]).unwrap();
    let as_u8 = mask.to_candle_as(candle_core::DType::U8, CPU).unwrap();
    assert_eq!(as_u8.to_vec1::<u8>().unwrap(), [0, 1, 1]);
    let negative = Tensor::from_vec(vec![-1_i8], [1]).unwrap().to_candle_as(candle_core::DType::U8, CPU);
    assert!(matches!(negative.unwrap_err().problem, Problem::OutOfRange { value: -1, .. }));
    // The largest f16 is 65504.
    let large = Tensor::from_vec(vec![u16::MAX], []).unwrap().to_candle_as(candle_core::DType::F16, CPU);
    assert!(matches!(large.unwrap_err().problem, Problem::OutOfRange { .. }));
    let small = Tensor::from_vec(vec![1_u16], [1]).unwrap().to_candle_as(candle_core::DType::F8E4M3, CPU);
    assert!(matches!(small.unwrap_err().problem, Problem::NoConversion(candle_core::DType::F8E4M3)));
}

#[test]
fn floats_are_converted_by_candle_and_equal_dtypes_stay() {
    let tensor = Tensor::from_vec(vec![1.75_f32, -300.0], [2]).unwrap();
    let as_f64 = tensor.to_candle_as(candle_core::DType::F64, CPU).unwrap();
    assert_eq!(as_f64.to_vec1::<f64>().unwrap(), [1.75, -300.0]);
    let as_u8 = tensor.to_candle_as(candle_core::DType::U8, CPU).unwrap();
    assert_eq!(as_u8.to_vec1::<u8>().unwrap(), [1, 0]);
    let nan = Tensor::from_vec(vec![f32::from_bits(0x7f80_0001)], [1]).unwrap();
    let same = nan.to_candle_as(candle_core::DType::F32, CPU).unwrap();
    assert_eq!(same.to_vec1::<f32>().unwrap()[0].to_bits(), 0x7f80_0001);
}

#[test]
fn shapes_and_dtypes_that_one_side_lacks_are_refused() {
    let huge = Tensor::<u8>::zeros([0, usize::MAX, 2]).unwrap();
    assert!(matches!(huge.to_candle(CPU).unwrap_err().problem, Problem::Shape(_)));
    let float8 = candle_core::Tensor::zeros(2, candle_core::DType::F8E4M3, CPU).unwrap();
    let error = from_candle(&float8).unwrap_err();
    assert!(error.to_string().contains("f8e4m3"), "{error}");
}

/// A program without the feature `cuda` of candle gets an error, and no tensor on the CPU.
#[test]
fn a_device_of_cuda_without_the_feature_is_an_error() {
    assert!(!candle_core::utils::cuda_is_available(), "the tests are built without the feature");
    let error = Device::new_cuda(0).unwrap_err();
    assert!(error.to_string().contains("cuda support"), "{error}");
}

#[derive(Sample)]
#[sample(candle, derive(Debug))]
struct Inner {
    weight: f32,
}

/// A field of each kind.
#[derive(Sample)]
#[sample(candle)]
struct Outer {
    pixels: [[f32; 2]; 3],
    label: i64,
    inner: Inner,
    name: String,
    tokens: Ragged<Vec<u32>>,
    any: AnyTensor,
    pair: (u8, Option<f64>),
    parts: BTreeMap<String, [u32; 2]>,
    kept: Keep<u64>,
    objects: Keep<Tensor<f32>>,
    meta: Keep<Meta>,
    #[sample(candle = "i64")]
    count: usize,
    #[sample(candle = "u8")]
    mask: Vec<bool>,
    r#type: u8,
}

/// Neither `Debug` nor a batch of candle's.
#[derive(Clone, Serialize, Deserialize)]
struct Meta {
    camera: String,
}

fn outer(n: u8) -> Outer {
    Outer {
        pixels: [[n.into(); 2]; 3],
        label: n.into(),
        inner: Inner { weight: 0.5 },
        name: n.to_string(),
        tokens: Ragged::new(vec![1; usize::from(n)]),
        any: Tensor::from_slice(&[n], [1]).unwrap().into(),
        pair: (n, Some(0.25)),
        parts: BTreeMap::from([("left".to_owned(), [n.into(), 9])]),
        kept: Keep(n.into()),
        objects: Keep(Tensor::zeros([usize::from(n)]).unwrap()),
        meta: Keep(Meta { camera: "left".to_owned() }),
        count: n.into(),
        mask: vec![true, false],
        r#type: n,
    }
}

#[test]
fn a_derived_batch_is_converted_field_by_field() {
    let mut stack = Outer::stack(2);
    stack.push(outer(1)).unwrap();
    stack.push(outer(2)).unwrap();
    let batch = stack.finish().unwrap();
    let OuterCandle {
        pixels,
        label,
        inner,
        name,
        tokens,
        any,
        pair,
        parts,
        kept,
        objects,
        meta,
        count,
        mask,
        r#type,
    } = batch.to_candle(CPU).unwrap();
    let objects: Vec<Tensor<f32>> = objects;
    assert_eq!((objects[1].shape(), meta[0].camera.as_str()), ([2].as_slice(), "left"));
    assert_eq!(count.to_vec1::<i64>().unwrap(), [1, 2]);
    assert_eq!(mask.to_vec2::<u8>().unwrap(), [[1, 0], [1, 0]]);
    assert_eq!(r#type.to_vec1::<u8>().unwrap(), [1, 2]);
    assert_eq!(pixels.dims(), [2, 3, 2]);
    assert_eq!(
        pixels.mean(D::Minus1).unwrap().mean(D::Minus1).unwrap().to_vec1::<f32>().unwrap(),
        [1.0, 2.0]
    );
    assert_eq!(label.to_vec1::<i64>().unwrap(), [1, 2]);
    assert_eq!(inner.weight.to_vec1::<f32>().unwrap(), [0.5, 0.5]);
    assert_eq!((name, kept), (vec!["1".to_owned(), "2".to_owned()], vec![1_u64, 2]));
    let PaddedCandle { values, lengths } = tokens;
    assert_eq!(values.to_vec2::<u32>().unwrap(), [[1, 0], [1, 1]]);
    assert_eq!(lengths.to_vec1::<i64>().unwrap(), [1, 2]);
    assert_eq!(any.dims(), [2, 1]);
    assert_eq!(pair.0.to_vec1::<u8>().unwrap(), [1, 2]);
    assert_eq!(pair.1.unwrap().to_vec1::<f64>().unwrap(), [0.25, 0.25]);
    assert_eq!(parts["left"].to_vec2::<u32>().unwrap(), [[1, 9], [2, 9]]);
}

#[derive(Sample)]
#[sample(candle, derive(Debug, PartialEq))] // candle's tensors have no `PartialEq`
struct Counted(f32, (u8, u64));

#[derive(Sample)]
#[sample(candle)]
struct Labelled([f32; 2], #[sample(candle = "i64")] u64);

#[test]
fn a_tuple_struct_becomes_a_tuple_struct() {
    let mut stack = Labelled::stack(1);
    stack.push(Labelled([0.5, 1.0], 7)).unwrap();
    let LabelledCandle(pixels, label) = stack.finish().unwrap().to_candle(CPU).unwrap();
    assert_eq!(pixels.to_vec2::<f32>().unwrap(), [[0.5, 1.0]]);
    assert_eq!(label.to_vec1::<i64>().unwrap(), [7]);
}

#[test]
fn the_error_names_the_field() {
    let mut stack = Counted::stack(1);
    stack.push(Counted(0.5, (1, 2))).unwrap();
    let error = stack.finish().unwrap().to_candle(CPU).unwrap_err();
    assert_eq!(error.field, ["1", "1"]);
    assert_eq!(
        error.to_string(),
        "field `1.1`: candle has no dtype uint64; convert the tensor with `to_candle_as` or the field with \
         `#[sample(candle = \"i64\")]`, or give the field of the sample another type"
    );
    let maps = BTreeMap::from([("a", vec![Tensor::<u64>::zeros([1]).unwrap()])]);
    assert_eq!(maps.to_candle(CPU).unwrap_err().field, ["\"a\"", "0"]);
}

#[test]
fn what_is_no_tensor_stays() {
    let bytes = BytesArray::new(&["one", "three"]).unwrap();
    assert_eq!(bytes.to_candle(CPU).unwrap(), bytes);
    let padded = pad_sequences(&[vec![1.0_f32], vec![2.0, 3.0]], 0.0).unwrap();
    let converted = (vec![padded], None::<Tensor<u64>>, ()).to_candle(CPU).unwrap();
    assert_eq!(converted.0[0].values.dims(), [2, 2]);
    assert!(converted.1.is_none());
}

#[test]
fn packed_windows_are_converted() {
    let mut stack = PackedWindow::stack(1);
    let row = |numbers: [i64; 3]| Tensor::from_slice(&numbers, [3]).unwrap();
    let (tokens, positions, segments) = (row([7, 8, 9]), row([0, 1, 0]), row([1, 1, 2]));
    stack.push(PackedWindow { tokens, positions, segments, cu_seqlens: vec![0, 2, 3] }).unwrap();
    let packed = stack.finish().unwrap().to_candle(CPU).unwrap();
    assert_eq!(packed.tokens.to_vec2::<i64>().unwrap(), [[7, 8, 9]]);
    assert_eq!(packed.positions.to_vec2::<i64>().unwrap(), [[0, 1, 0]]);
    assert_eq!(packed.segments.to_vec2::<i64>().unwrap(), [[1, 1, 2]]);
    assert_eq!(packed.cu_seqlens.values.to_vec2::<i32>().unwrap(), [[0, 2, 3]]);
}
