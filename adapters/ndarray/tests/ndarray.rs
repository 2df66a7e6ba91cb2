//! The conformance of views and of owned arrays, and what is special to ndarray.

use std::any::Any;

use loader::{AnyTensor, DType, Tensor, TensorError};
use loader_conformance::{Adapter, Copies, Importer, Inspected};
use loader_ndarray::{AnyTensorExt, ArrayExt, Error, TensorExt};
use ndarray::{Array2, ArrayD, Axis, Ix2, Ix3, ShapeBuilder};

loader::init_before_main!();

/// Calls `$body` with the name `$T` for the type of the dtype's elements.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_element!($dtype, $T => $body; U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, Bool loader::Bool)
    };
    ($dtype:expr, $T:ident => $body:expr; $($name:ident $element:ty),*) => {
        match $dtype {
            $(DType::$name => { type $T = $element; $body })*
            other => unreachable!("{other} has no array in this test"),
        }
    };
}

struct Views;

impl Adapter for Views {
    type Tensor = AnyTensor;
    type Error = Error;

    const COPIES: Copies = Copies::Zero;
    const BOOL_IS_ANY_BYTE: bool = true;

    fn export(tensor: AnyTensor) -> Result<AnyTensor, Error> {
        with_element!(tensor.dtype(), T => tensor.view::<T>().map(drop))?;
        Ok(tensor)
    }

    fn inspect(tensor: &AnyTensor) -> Inspected {
        with_element!(tensor.dtype(), T => {
            let view = tensor.view::<T>().unwrap();
            Inspected { address: Some(view.as_ptr() as usize), ..inspect_owned(&view.to_owned()) }
        })
    }

    fn fill(tensor: AnyTensor, value: f32) -> AnyTensor {
        let mut tensor = tensor.downcast::<f32>().unwrap();
        tensor.view_mut().unwrap().fill(value);
        tensor.into()
    }
}

fn inspect_owned<T: loader::Element>(array: &ArrayD<T>) -> Inspected {
    let elements: Vec<T> = array.iter().copied().collect();
    let bytes = Tensor::from_slice(&elements, [elements.len()]).unwrap().as_bytes().to_vec();
    Inspected {
        dtype: T::DTYPE,
        shape: array.shape().to_vec(),
        bytes,
        address: Some(array.as_ptr() as usize),
    }
}

/// An array of any dtype.
trait AnyArray: Send {
    fn inspect(&self) -> Inspected;
    fn transpose(&self) -> Box<dyn AnyArray>;
    /// Only of elements of the type of `value`.
    fn fill(&mut self, value: &dyn Any);
    fn to_any_tensor(&self) -> AnyTensor;
}

impl<T: loader::Element> AnyArray for ArrayD<T> {
    fn inspect(&self) -> Inspected {
        inspect_owned(self)
    }

    fn transpose(&self) -> Box<dyn AnyArray> {
        Box::new(self.clone().reversed_axes())
    }

    fn fill(&mut self, value: &dyn Any) {
        self.map_inplace(|element| *element = *value.downcast_ref().expect("it has this type"));
    }

    fn to_any_tensor(&self) -> AnyTensor {
        self.to_tensor().unwrap().into()
    }
}

struct Owned;

impl Adapter for Owned {
    type Tensor = Box<dyn AnyArray>;
    type Error = Error;

    const COPIES: Copies = Copies::One;
    const BOOL_IS_ANY_BYTE: bool = true;

    fn export(tensor: AnyTensor) -> Result<Self::Tensor, Error> {
        with_element!(tensor.dtype(), T => Ok(Box::new(tensor.downcast::<T>()?.to_array()?)))
    }

    fn inspect(tensor: &Self::Tensor) -> Inspected {
        tensor.inspect()
    }

    fn fill(mut tensor: Self::Tensor, value: f32) -> Self::Tensor {
        tensor.fill(&value);
        tensor
    }
}

impl Importer for Owned {
    fn import(tensor: Self::Tensor) -> Result<AnyTensor, Error> {
        Ok(tensor.to_any_tensor())
    }

    fn transpose(tensor: &Self::Tensor) -> Self::Tensor {
        tensor.transpose()
    }
}

mod views {
    loader_conformance::suite!(super::Views);
}

mod owned {
    loader_conformance::suite!(super::Owned);
    loader_conformance::import_suite!(super::Owned);
}

#[test]
fn the_number_of_dimensions_and_the_dtype_must_fit() {
    let tensor = Tensor::from_vec(vec![1_i32, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    assert_eq!(tensor.view_as::<Ix2>().unwrap()[[1, 0]], 4);
    let error = tensor.view_as::<Ix3>().unwrap_err();
    assert!(matches!(&error, Error::WrongRank { expected: 3, shape } if *shape == [2, 3]));
    assert_eq!(
        error.to_string(),
        "a tensor of shape [2, 3] has 2 dimensions, not 3; use `view`, or reshape the tensor"
    );
    let error = AnyTensor::from(tensor).view::<u32>().unwrap_err();
    assert!(matches!(
        error,
        Error::Tensor(TensorError::WrongDType { expected: DType::U32, found: DType::I32 })
    ));
    let huge = Tensor::<u8>::zeros([0, usize::MAX, 2]).unwrap();
    assert!(matches!(huge.view(), Err(Error::Shape { .. })));
}

#[test]
fn a_view_for_writing_changes_the_tensor() {
    let mut tensor = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
    tensor.view_mut().unwrap().index_axis_mut(Axis(0), 1).fill(0.5);
    assert_eq!(tensor.as_slice(), [1.0, 2.0, 0.5, 0.5]);
    let clone = tensor.clone();
    assert!(matches!(tensor.view_mut(), Err(Error::Tensor(TensorError::Shared))));
    drop(clone);
}

#[test]
fn arrays_of_any_layout_become_tensors_in_logical_order() {
    let columns = Array2::from_shape_vec((2, 3).f(), vec![1_u16, 4, 2, 5, 3, 6]).unwrap();
    assert_eq!(columns.to_tensor().unwrap().as_slice(), [1, 2, 3, 4, 5, 6]);
    let mut reversed = columns.slice(ndarray::s![.., ..;2]);
    reversed.invert_axis(Axis(1));
    let tensor = reversed.to_tensor().unwrap();
    assert_eq!((tensor.shape(), tensor.as_slice()), ([2, 2].as_slice(), [3, 1, 6, 4].as_slice()));
    assert_eq!(ndarray::arr0(7_i64).to_tensor().unwrap().shape(), [] as [usize; 0]);
}
