//! Kinds, errors and memory of single tensors.

use burn_core::tensor::{
    Bool, BoolStore, DType as BurnDType, Device, Float, Int, IntDType, Tensor as BurnTensor,
};
use loader::{AnyTensor, DType, Tensor};
use loader_burn::{Error, FromBurn, ToBurn, ToBurnAs};

#[test]
fn the_rank_must_fit_and_the_error_names_both() {
    let tensor = Tensor::<f32>::zeros([2, 3]).unwrap();
    let error = tensor.to_burn::<4>(&Device::flex()).unwrap_err();
    assert!(matches!(&error, Error::WrongRank { expected: 4, found: 2, shape } if *shape == [2, 3]));
    assert_eq!(
        error.to_string(),
        "a tensor of rank 2 (shape [2, 3]) is not a burn tensor of rank 4; ask for rank 2, or reshape the tensor"
    );
    let scalar = Tensor::from_slice(&[7_i64], []).unwrap();
    assert_eq!(scalar.to_burn::<1>(&Device::flex()).unwrap().into_scalar::<i64>(), 7);
    assert!(matches!(
        scalar.to_burn::<2>(&Device::flex()),
        Err(Error::WrongRank { expected: 2, found: 0, shape }) if shape.is_empty()
    ));
}

#[test]
fn labels_are_not_converted_to_the_default_of_the_device() {
    let labels = Tensor::from_slice(&[1 << 40, -1_i64], [2]).unwrap();
    let tensor: BurnTensor<1, Int> = labels.to_burn(&Device::flex()).unwrap();
    assert_eq!(tensor.dtype(), BurnDType::I64);
    assert_eq!(tensor.into_data().try_to_vec::<i64>().unwrap(), [1 << 40, -1]);
}

#[test]
fn booleans_are_not_copied_unless_bytes_must_change() {
    let mask = Tensor::from_slice(&[false, true, true].map(loader::Bool::new), [3]).unwrap();
    let tensor: BurnTensor<1, Bool> = mask.to_burn(&Device::flex()).unwrap();
    assert_eq!(tensor.dtype(), BurnDType::Bool(BoolStore::Native));
    let data = tensor.into_data();
    assert_eq!(data.as_bytes().as_ptr(), mask.as_bytes().as_ptr());
    let tensor = BurnTensor::<1, Bool>::from_data(data, &Device::flex());
    assert_eq!(Tensor::<loader::Bool>::from_burn(tensor).unwrap(), mask);

    // Any byte but 0 is true.
    let odd = AnyTensor::from_bytes(DType::Bool, [3], &[0, 255, 1]).unwrap();
    let tensor = odd.to_burn_as::<1, Bool>(&Device::flex()).unwrap();
    assert_eq!(tensor.into_data().as_bytes(), [0, 1, 1]);
    // A `u8` is more likely a number.
    let numbers = Tensor::from_slice(&[0_u8, 1, 2], [3]).unwrap();
    let error = numbers.to_burn_as::<1, Bool>(&Device::flex()).unwrap_err();
    assert!(matches!(error, Error::NotBool { position: 2, value: 2 }), "{error}");
    let flags = Tensor::from_slice(&[0_u8, 1], [2]).unwrap();
    let tensor = flags.to_burn_as::<1, Bool>(&Device::flex()).unwrap();
    assert_eq!(tensor.into_data().as_bytes().as_ptr(), flags.as_bytes().as_ptr());
}

#[test]
fn a_wrong_kind_is_refused() {
    let bytes = AnyTensor::from_bytes(DType::U8, [1], &[1]).unwrap();
    let error = bytes.to_burn_as::<1, Float>(&Device::flex()).unwrap_err();
    assert!(matches!(error, Error::WrongKind { kind: "Float", dtype: DType::U8 }), "{error}");
    assert!(bytes.to_burn_as::<1, Int>(&Device::flex()).is_ok());
    let halves = AnyTensor::from(Tensor::from_slice(&[0.5_f64], [1]).unwrap());
    assert!(matches!(
        halves.to_burn_as::<1, Int>(&Device::flex()),
        Err(Error::WrongKind { kind: "Int", .. })
    ));
    assert!(matches!(
        halves.to_burn_as::<1, Bool>(&Device::flex()),
        Err(Error::WrongKind { kind: "Bool", .. })
    ));
}

#[test]
fn a_dtype_that_a_backend_lacks_is_refused_by_name() {
    #[expect(deprecated, reason = "no other backend without a GPU lacks a dtype")]
    let device = Device::ndarray();
    for dtype in [DType::F16, DType::BF16] {
        let tensor = AnyTensor::from_bytes(dtype, [1], &[0, 0]).unwrap();
        let error = tensor.to_burn_as::<1, Float>(&device).unwrap_err();
        assert!(matches!(&error, Error::UnsupportedDType { dtype: named, .. } if *named == dtype), "{error}");
        let text = error.to_string();
        assert!(text.contains("NdArray") && text.contains(dtype.name()) && text.contains("`map`"), "{text}");
    }
    let labels = Tensor::from_slice(&[1 << 40, -1_i64], [2]).unwrap();
    let labels: BurnTensor<1, Int> = labels.to_burn(&device).unwrap();
    assert_eq!(labels.into_data().try_to_vec::<i64>().unwrap(), [1 << 40, -1]);
}

#[test]
fn a_tensor_on_a_device_with_gradients_has_the_same_memory() {
    let device = Device::flex().autodiff();
    let pixels = Tensor::from_slice(&[1.0_f32, 2.0], [1, 2]).unwrap();
    let tensor: BurnTensor<2> = pixels.to_burn(&device).unwrap();
    let weights = BurnTensor::<2>::ones([2, 1], &device).require_grad();
    let gradients = tensor.clone().matmul(weights.clone()).sum().backward();
    assert_eq!(weights.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap(), [1.0, 2.0]);
    drop((gradients, weights));
    assert_eq!(tensor.into_data().as_bytes().as_ptr(), pixels.as_bytes().as_ptr());
}

#[test]
fn an_operation_in_place_leaves_the_batch_as_it_is() {
    let pixels = Tensor::from_slice(&[1.0_f32, 2.0], [2]).unwrap();
    let tensor: BurnTensor<1> = pixels.to_burn(&Device::flex()).unwrap();
    let changed = tensor.mul_scalar(10.0).add_scalar(1.0);
    assert_eq!(changed.into_data().try_to_vec::<f32>().unwrap(), [11.0, 21.0]);
    assert_eq!(pixels.as_slice(), [1.0, 2.0]);
}

#[test]
fn a_burn_tensor_becomes_a_tensor_of_its_own_type_only() {
    let logits = BurnTensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex());
    let error = Tensor::<f64>::from_burn(logits.clone()).unwrap_err();
    assert!(matches!(error, Error::WrongDType { expected: DType::F64, found: BurnDType::F32 }), "{error}");
    let transposed = Tensor::<f32>::from_burn(logits.transpose()).unwrap();
    assert_eq!(
        (transposed.shape(), transposed.as_slice()),
        ([2, 2].as_slice(), [1.0, 3.0, 2.0, 4.0].as_slice())
    );
}

#[test]
fn labels_are_compared_with_argmax_only_if_they_have_its_type() {
    let device = Device::flex();
    let correct = |labels: BurnTensor<1, Int>| {
        let scores = BurnTensor::<2>::from_floats([[0.1, 0.9], [0.8, 0.2]], &device);
        scores.argmax(1).squeeze_dim::<1>(1).equal(labels).into_data().try_to_vec::<bool>().unwrap()
    };
    let labels = Tensor::from_slice(&[1_i32, 1], [2]).unwrap().to_burn(&device).unwrap();
    assert_eq!(correct(labels), [true, false]);
    let wide = Tensor::from_slice(&[1_i64, 1], [2]).unwrap().to_burn(&device).unwrap();
    assert_eq!(correct(wide.clone().cast(IntDType::I32)), [true, false]);
    // This is burn's behaviour, not this crate's. If it changes, change the README too.
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| correct(wide))).is_err());
}
