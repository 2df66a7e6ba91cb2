//! The conformance of the adapter to safetensors, and what is special to it.

use loader::{AnyTensor, DType, Tensor};
use loader_conformance::{Adapter, Copies, Inspected};
use loader_safetensors::{Error, View};
use safetensors::{Dtype, SafeTensors, View as _};

loader::init_before_main!();

/// Writes a tensor with the name `x`.
struct Written;

impl Adapter for Written {
    type Tensor = Vec<u8>;
    type Error = Error;

    const COPIES: Copies = Copies::One;

    fn export(tensor: AnyTensor) -> Result<Vec<u8>, Error> {
        let view = View::new(&tensor)?;
        Ok(safetensors::serialize([("x", view)], None).unwrap())
    }

    fn inspect(written: &Vec<u8>) -> Inspected {
        let read = SafeTensors::deserialize(written).unwrap();
        let tensor = read.tensor("x").unwrap();
        Inspected {
            dtype: dtype_of(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            bytes: tensor.data().to_vec(),
            address: Some(tensor.data().as_ptr() as usize),
        }
    }

    fn fill(mut written: Vec<u8>, value: f32) -> Vec<u8> {
        let len = SafeTensors::deserialize(&written).unwrap().tensor("x").unwrap().data().len();
        let start = written.len() - len; // the elements of the only tensor are at the end
        written[start..].copy_from_slice(&value.to_le_bytes().repeat(len / 4));
        written
    }
}

loader_conformance::suite!(Written);

fn dtype_of(dtype: Dtype) -> DType {
    match dtype {
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::BOOL => DType::Bool,
        other => panic!("the adapter has made {other:?} of the tensor"),
    }
}

#[test]
fn a_tensor_is_lent_unless_booleans_must_change() {
    let address = |tensor: &AnyTensor| View::new(tensor).unwrap().data().as_ptr();
    for &dtype in DType::ALL {
        let tensor = AnyTensor::from_bytes(dtype, [2, 3], &vec![1; 6 * dtype.size()]).unwrap();
        assert_eq!(address(&tensor), tensor.as_bytes().as_ptr(), "{dtype}");
    }
    let odd = AnyTensor::from_bytes(DType::Bool, [3], &[0, 1, 7]).unwrap();
    assert_eq!(*View::new(&odd).unwrap().data(), [0, 1, 1]);
}

#[test]
fn a_shape_that_overflows_is_refused_in_each_order() {
    for shape in [[0, usize::MAX, 2], [2, 0, usize::MAX]] {
        let tensor = AnyTensor::from(Tensor::<f32>::zeros(shape).unwrap());
        let error = View::new(&tensor).unwrap_err();
        assert!(matches!(&error, Error::Shape(refused) if *refused == shape), "{error}");
    }
}
