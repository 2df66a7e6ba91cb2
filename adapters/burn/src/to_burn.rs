//! Lends tensors of the loader to burn tensors.

use burn_core::tensor::{
    AllocationProperty, Bool, BoolStore, Bytes, DType as BurnDType, Device, Float, Int, Tensor as BurnTensor,
    TensorData, bf16, f16,
    kind::{Basic, Kind, TensorKind},
};
use loader_core::{AnyTensor, DType, Element, Tensor};

use crate::Error;

/// A batch that becomes burn tensors: a [`Tensor`], a batch that contains tensors, such as
/// [`Padded`](loader_core::collate::Padded) or a `Vec` of tensors, and the batch of a struct with
/// `#[derive(Sample)]` and [`#[sample(burn)]`](crate#structs). Strings and numbers stay as they are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not become a burn tensor",
    note = "call `to_burn` on each tensor of a tuple; name the kind of an `AnyTensor` with `to_burn_as`; a struct gets \
            `to_burn` with `#[derive(Sample)] #[sample(burn)]`"
)]
pub trait ToBurn {
    /// What the batch becomes. The tensors in it have rank `D`. That of a [`Tensor`] is a burn tensor of kind
    /// `Float` if the elements are floats, `Int` if they are integers, and `Bool` if they are booleans.
    type Burn<const D: usize>;

    /// Returns burn tensors over the same memory. The elements keep their type: an `i64` stays an `i64`,
    /// whatever the default of the device is.
    ///
    /// The burn tensors and their views keep the memory: for a batch from a worker, the loader reuses the
    /// slot when the last of them, and of the tensors of the batch, has been dropped. A backend on a GPU
    /// copies the elements to the device instead, and then releases the memory. From page-locked
    /// memory ([`Tensor::is_pinned`]) burn copies directly, without a buffer of its own.
    ///
    /// Bytes of booleans that are neither 0 nor 1 count as true. If there are such bytes, the tensor is
    /// copied. On a device that stores booleans in another way, burn converts them.
    ///
    /// Burn has no tensors of rank 0. A tensor of rank 0 becomes one of shape `[1]`, as burn's own scalars.
    ///
    /// # Errors
    /// - [`Error::WrongRank`]: the tensor does not have rank `D`.
    /// - [`Error::Shape`]: burn cannot represent the shape of the empty tensor.
    /// - [`Error::UnsupportedDType`]: the device has no tensors with these elements.
    /// - [`Error::Tensor`]: there is no memory for a copy of booleans.
    /// - [`Error::Field`]: one of these errors, in a part of the batch.
    ///
    /// For a tensor, `D` = 0 does not compile.
    ///
    /// # Examples
    /// ```
    /// use burn_core::tensor::{Device, Tensor};
    /// use loader_burn::ToBurn;
    ///
    /// let pixels = loader_core::Tensor::from_slice(&[0.5_f32, 0.25], [1, 2])?;
    /// let tensor: Tensor<2> = pixels.to_burn(&Device::default())?;
    /// assert_eq!(tensor.into_data().as_bytes().as_ptr(), pixels.as_bytes().as_ptr());
    /// # anyhow::Ok(())
    /// ```
    fn to_burn<const D: usize>(&self, device: &Device) -> Result<Self::Burn<D>, Error>;
}

/// A tensor that becomes a burn tensor of a kind that the program names: an [`AnyTensor`], and a tensor of
/// `u8` that has booleans.
pub trait ToBurnAs {
    /// Returns a burn tensor of kind `K` over the same memory, as [`ToBurn::to_burn`] does. Elements are not
    /// converted, but a `Bool` tensor can be made of `u8` that are all 0 or 1.
    ///
    /// # Errors
    /// - [`Error::WrongKind`]: the elements are not of kind `K`.
    /// - [`Error::NotBool`]: an element is neither 0 nor 1.
    /// - The errors of [`ToBurn::to_burn`].
    ///
    /// # Examples
    /// ```
    /// use burn_core::tensor::{Bool, Device};
    /// use loader_burn::ToBurnAs;
    ///
    /// let mask = loader_core::Tensor::from_slice(&[1_u8, 0, 1], [3])?;
    /// let mask = mask.to_burn_as::<1, Bool>(&Device::default())?;
    /// assert_eq!(mask.bool_not().into_data().try_to_vec::<bool>()?, [false, true, false]);
    /// # anyhow::Ok(())
    /// ```
    fn to_burn_as<const D: usize, K: Basic>(&self, device: &Device) -> Result<BurnTensor<D, K>, Error>;
}

/// An element that decides the kind of a burn tensor.
pub trait BurnElement: Element {
    /// `Float`, `Int`, or, for [`loader_core::Bool`], `Bool`.
    type Kind: Basic;
}

macro_rules! elements {
    ($($kind:ty: $($element:ty),*;)*) => {
        $($(
            impl BurnElement for $element {
                type Kind = $kind;
            }
        )*)*
    };
}

elements! {
    Bool: loader_core::Bool;
    Float: f16, bf16, f32, f64;
    Int: u8, i8, u16, i16, u32, i32, u64, i64;
}

impl<T: BurnElement> ToBurn for Tensor<T> {
    type Burn<const D: usize> = BurnTensor<D, T::Kind>;

    fn to_burn<const D: usize>(&self, device: &Device) -> Result<BurnTensor<D, T::Kind>, Error> {
        self.to_burn_as(device)
    }
}

impl<T: Element> ToBurnAs for Tensor<T> {
    fn to_burn_as<const D: usize, K: Basic>(&self, device: &Device) -> Result<BurnTensor<D, K>, Error> {
        convert(AnyTensor::from(self.clone()), device)
    }
}

impl ToBurnAs for AnyTensor {
    fn to_burn_as<const D: usize, K: Basic>(&self, device: &Device) -> Result<BurnTensor<D, K>, Error> {
        convert(self.clone(), device)
    }
}

fn convert<const D: usize, K: Basic>(tensor: AnyTensor, device: &Device) -> Result<BurnTensor<D, K>, Error> {
    const { assert!(D > 0, "burn has no tensors of rank 0") };
    let mut shape = tensor.shape().to_vec();
    if shape.is_empty() && D == 1 {
        shape.push(1);
    }
    if shape.len() != D {
        return Err(Error::WrongRank { expected: D, found: tensor.shape().len(), shape });
    }
    check_shape(&shape)?;
    let dtype = dtype_as::<K>(tensor.dtype())?;
    let tensor = if K::KIND == Kind::Bool { checked_bools(tensor)? } else { tensor };
    // Burn converts booleans to those of the device.
    if K::KIND != Kind::Bool && !device.supports_dtype(dtype) {
        return Err(Error::UnsupportedDType { dtype: tensor.dtype(), device: Box::new(device.clone()) });
    }
    // cubecl keeps the owner until the device has reached an event recorded after the copy
    // (`PendingDropQueue` of cubecl-server). `Pinned` spares it a copy of its own before that. A new version
    // of burn must be read again: see the README.
    let property = if tensor.is_pinned() { AllocationProperty::Pinned } else { AllocationProperty::Other };
    let bytes = bytes::Bytes::from_owner(Owner(tensor));
    let data = TensorData::from_bytes(Bytes::from_shared(bytes, property), shape, dtype);
    // Without the dtype, burn converts to the default of the device.
    Ok(BurnTensor::from_data(data, (device, dtype)))
}

/// Burn multiplies the sizes of a shape without a check, and an empty tensor may have any other sizes.
fn check_shape(shape: &[usize]) -> Result<(), Error> {
    let mut sizes = shape.iter().copied().filter(|&size| size != 0);
    let product = sizes.try_fold(1_usize, usize::checked_mul);
    product.map(|_| ()).ok_or_else(|| Error::Shape(shape.to_vec()))
}

/// Returns burn's name of the elements if they can be elements of kind `K`.
fn dtype_as<K: TensorKind>(dtype: DType) -> Result<BurnDType, Error> {
    Ok(match (K::KIND, dtype) {
        (Kind::Float, DType::F16) => BurnDType::F16,
        (Kind::Float, DType::BF16) => BurnDType::BF16,
        (Kind::Float, DType::F32) => BurnDType::F32,
        (Kind::Float, DType::F64) => BurnDType::F64,
        (Kind::Int, DType::U8) => BurnDType::U8,
        (Kind::Int, DType::I8) => BurnDType::I8,
        (Kind::Int, DType::U16) => BurnDType::U16,
        (Kind::Int, DType::I16) => BurnDType::I16,
        (Kind::Int, DType::U32) => BurnDType::U32,
        (Kind::Int, DType::I32) => BurnDType::I32,
        (Kind::Int, DType::U64) => BurnDType::U64,
        (Kind::Int, DType::I64) => BurnDType::I64,
        (Kind::Bool, DType::Bool | DType::U8) => BurnDType::Bool(BoolStore::Native),
        (_, dtype) => return Err(Error::WrongKind { kind: K::name(), dtype }),
    })
}

/// Returns the tensor with zeros and ones only, which burn does not check.
fn checked_bools(tensor: AnyTensor) -> Result<AnyTensor, Error> {
    let bytes = tensor.as_bytes();
    match bytes.iter().position(|&value| value > 1) {
        None => Ok(tensor),
        Some(position) if tensor.dtype() == DType::U8 => {
            Err(Error::NotBool { position, value: bytes[position] })
        }
        Some(_) => {
            let ones: Vec<u8> = bytes.iter().map(|&value| u8::from(value != 0)).collect();
            Ok(AnyTensor::from_bytes(DType::Bool, tensor.shape(), &ones)?)
        }
    }
}

/// Keeps the memory of a tensor for burn. Burn may drop it on any thread.
struct Owner(AnyTensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
