//! The tests that the adapters to burn, candle, DLPack, ndarray and safetensors share.

use std::sync::Mutex;

use burn_core::tensor::{
    Bool, BoolStore, DType as BurnDType, Device, Float, Int, Tensor as BurnTensor, TensorData, kind::Basic,
};
use loader::{AnyTensor, DType};
use loader_burn::{Error, FromBurn, ToBurnAs};
use loader_conformance::{Adapter, Copies, Importer, Inspected};

/// A burn tensor of any rank and kind.
trait AnyBurn: Send {
    /// Reads the tensor. The address is `None` if burn had to copy it for that.
    fn inspect(&self) -> Inspected;
    fn last_row(&self) -> Box<dyn AnyBurn>;
    fn transpose(&self) -> Box<dyn AnyBurn>;
    fn fill(self: Box<Self>, value: f32) -> Box<dyn AnyBurn>;
    fn import(self: Box<Self>) -> Result<AnyTensor, Error>;
}

/// A tensor that `inspect` can read. Burn returns the data of a tensor only in exchange for the tensor, so `inspect`
/// takes the tensor out, and puts one with the same data back before it returns.
struct Held<const D: usize, K: Basic> {
    tensor: Mutex<Option<BurnTensor<D, K>>>,
    is_view: bool,
}

impl<const D: usize, K: Basic + 'static> Held<D, K> {
    fn boxed(tensor: BurnTensor<D, K>, is_view: bool) -> Box<dyn AnyBurn> {
        Box::new(Self { tensor: Mutex::new(Some(tensor)), is_view })
    }

    fn tensor(&self) -> BurnTensor<D, K> {
        self.tensor.lock().unwrap().clone().expect("it was put back")
    }
}

impl<const D: usize, K: Basic + 'static> AnyBurn for Held<D, K> {
    fn inspect(&self) -> Inspected {
        let mut held = self.tensor.lock().unwrap();
        if self.is_view {
            return Inspected {
                address: None,
                ..inspected(&held.clone().expect("it was put back").into_data())
            };
        }
        let data = held.take().expect("it was put back").into_data();
        let inspected = inspected(&data);
        let dtype = data.dtype();
        *held = Some(BurnTensor::from_data(data, (&Device::flex(), dtype)));
        inspected
    }

    fn last_row(&self) -> Box<dyn AnyBurn> {
        let tensor = self.tensor();
        let rows = tensor.dims()[0];
        Self::boxed(tensor.narrow(0, rows - 1, 1), true)
    }

    fn transpose(&self) -> Box<dyn AnyBurn> {
        Self::boxed(self.tensor().swap_dims(0, 1), true)
    }

    /// With operations that work in place if they may.
    fn fill(self: Box<Self>, value: f32) -> Box<dyn AnyBurn> {
        let data = self.tensor.into_inner().unwrap().expect("it was put back").into_data();
        let dtype = data.dtype();
        let floats = BurnTensor::<D, Float>::from_data(data, (&Device::flex(), dtype));
        Held::boxed(floats.mul_scalar(0.0).add_scalar(value), false)
    }

    fn import(self: Box<Self>) -> Result<AnyTensor, Error> {
        AnyTensor::from_burn(self.tensor.into_inner().unwrap().expect("it was put back"))
    }
}

fn inspected(data: &TensorData) -> Inspected {
    let dtype = match data.dtype() {
        BurnDType::Bool(BoolStore::Native) => DType::Bool,
        BurnDType::U8 => DType::U8,
        BurnDType::I8 => DType::I8,
        BurnDType::U16 => DType::U16,
        BurnDType::I16 => DType::I16,
        BurnDType::U32 => DType::U32,
        BurnDType::I32 => DType::I32,
        BurnDType::U64 => DType::U64,
        BurnDType::I64 => DType::I64,
        BurnDType::F16 => DType::F16,
        BurnDType::BF16 => DType::BF16,
        BurnDType::F32 => DType::F32,
        BurnDType::F64 => DType::F64,
        other => panic!("burn has made {other:?} of the tensor"),
    };
    let bytes = data.as_bytes();
    let address = Some(bytes.as_ptr() as usize);
    Inspected { dtype, shape: data.shape().to_vec(), bytes: bytes.to_vec(), address }
}

struct Flex;

impl Adapter for Flex {
    type Tensor = Box<dyn AnyBurn>;
    type Error = Error;

    const COPIES: Copies = Copies::Zero;

    fn export(tensor: AnyTensor) -> Result<Self::Tensor, Error> {
        fn of_kind<K: Basic + 'static>(tensor: &AnyTensor) -> Result<Box<dyn AnyBurn>, Error> {
            let device = Device::flex();
            Ok(match tensor.shape().len() {
                0 | 1 => Held::boxed(tensor.to_burn_as::<1, K>(&device)?, false),
                2 => Held::boxed(tensor.to_burn_as::<2, K>(&device)?, false),
                3 => Held::boxed(tensor.to_burn_as::<3, K>(&device)?, false),
                4 => Held::boxed(tensor.to_burn_as::<4, K>(&device)?, false),
                _ => Held::boxed(tensor.to_burn_as::<5, K>(&device)?, false),
            })
        }
        match tensor.dtype() {
            DType::Bool => of_kind::<Bool>(&tensor),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => of_kind::<Float>(&tensor),
            _ => of_kind::<Int>(&tensor),
        }
    }

    fn inspect(tensor: &Self::Tensor) -> Inspected {
        tensor.inspect()
    }

    /// Burn has no rank 0.
    fn shape_of(shape: &[usize]) -> Vec<usize> {
        if shape.is_empty() { vec![1] } else { shape.to_vec() }
    }

    fn last_row(tensor: &Self::Tensor) -> Option<Self::Tensor> {
        Some(tensor.last_row())
    }

    fn fill(tensor: Self::Tensor, value: f32) -> Self::Tensor {
        tensor.fill(value)
    }
}

impl Importer for Flex {
    fn import(tensor: Self::Tensor) -> Result<AnyTensor, Error> {
        tensor.import()
    }

    fn transpose(tensor: &Self::Tensor) -> Self::Tensor {
        tensor.transpose()
    }
}

loader_conformance::suite!(Flex);
loader_conformance::import_suite!(Flex);
