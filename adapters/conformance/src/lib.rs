//! The tests that the adapters to burn, candle, DLPack, ndarray and safetensors share.
//!
//! An adapter describes itself with the trait [`Adapter`], and its tests call [`suite!`]. The suite checks
//! dtypes, shapes, values bit for bit, the number of copies, and, with real workers, that a slot is reused
//! after the last tensor of the framework over it was dropped, and not before. An adapter that imports tensors
//! implements [`Importer`] too, and calls [`import_suite!`].
//!
//! Each check is also a function, so that a check can be called alone.

mod import;
mod layout;
mod slots;
mod values;
#[path = "../../../tests/src/watchdog.rs"]
pub mod watchdog;

use std::error::Error;

use loader::{AnyTensor, DType};

pub use import::{
    an_import_is_allocated_once, strided_tensors_are_copied_or_refused, what_is_exported_is_imported,
};
pub use layout::{a_copied_tensor_is_allocated_once, every_shape_arrives, shapes_that_overflow_are_refused};
#[doc(hidden)]
pub use loader::init_before_main;
pub use slots::{
    a_slot_is_reused_after_the_last_tensor_only, batches_are_exported_ahead,
    held_tensors_hold_slots_unless_copied, tensors_are_dropped_on_other_threads,
    writing_leaves_other_tensors_of_the_slot_alone,
};
pub use values::{every_dtype_arrives_bit_for_bit_or_is_refused, invalid_booleans_arrive_as_true};

/// How many times an adapter copies the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// The tensor of the framework borrows the memory.
    Zero,
    /// The tensor of the framework has its own memory.
    One,
}

/// What the framework says about one of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Type of the elements.
    pub dtype: DType,
    /// Size of each dimension.
    pub shape: Vec<usize>,
    /// The elements, row-major, in the byte order of this machine.
    pub bytes: Vec<u8>,
    /// Address of the first element, if the framework tells it.
    pub address: Option<usize>,
}

/// An adapter, as the suite sees it.
pub trait Adapter: 'static {
    /// A tensor of the framework. An adapter whose tensors borrow from an [`AnyTensor`] names `AnyTensor`
    /// here, and makes the borrowing tensor in each method.
    type Tensor: Send + 'static;
    /// The error of the adapter.
    type Error: Error + 'static;

    /// How many times [`export`](Self::export) copies the elements.
    const COPIES: Copies;

    /// Dtypes that the framework does not have. [`export`](Self::export) refuses them.
    const UNSUPPORTED: &'static [DType] = &[];

    /// A part of the error that refuses a dtype, which says what to do. The error must also name the dtype.
    const ADVICE: &'static str = "";

    /// True if a boolean of the framework may be any byte. Otherwise a byte of a `Bool` that is neither 0 nor
    /// 1 must arrive as 1.
    const BOOL_IS_ANY_BYTE: bool = false;

    /// Makes a tensor of the framework, on the CPU.
    ///
    /// # Errors
    /// Returns an error if the framework does not have the dtype.
    fn export(tensor: AnyTensor) -> Result<Self::Tensor, Self::Error>;

    /// Reads the tensor back with the means of the framework.
    fn inspect(tensor: &Self::Tensor) -> Inspected;

    /// Shape in the framework of a tensor of this shape. It differs where the framework has no rank 0.
    fn shape_of(shape: &[usize]) -> Vec<usize> {
        shape.to_vec()
    }

    /// Returns the last row of a tensor of rank 2 as a tensor `[1, len]` over the same memory; `None` if the
    /// framework has no such views, or they borrow from the tensor.
    fn last_row(tensor: &Self::Tensor) -> Option<Self::Tensor> {
        let _ = tensor;
        None
    }

    /// Sets all elements of a tensor of `f32` to `value`, in place if the framework can.
    fn fill(tensor: Self::Tensor, value: f32) -> Self::Tensor;
}

/// An adapter that also converts tensors of the framework to those of the loader.
pub trait Importer: Adapter {
    /// True if [`import`](Self::import) copies a tensor that is not contiguous, false if it refuses it with
    /// an error that contains the word "contiguous".
    const IMPORTS_STRIDED: bool = true;

    /// Makes a tensor of the loader.
    ///
    /// # Errors
    /// Returns an error if the tensor is not contiguous, and the adapter does not import such tensors.
    fn import(tensor: Self::Tensor) -> Result<AnyTensor, Self::Error>;

    /// Returns the transpose of a tensor of rank 2 without moving its elements.
    fn transpose(tensor: &Self::Tensor) -> Self::Tensor;
}

/// Defines a test for each check. Put it into a module of its own, and `loader::init_before_main!()` at the
/// top level of the test crate.
#[macro_export]
macro_rules! suite {
    ($adapter:ty) => {
        $crate::suite!(
            $adapter:
            every_dtype_arrives_bit_for_bit_or_is_refused
            invalid_booleans_arrive_as_true
            every_shape_arrives
            shapes_that_overflow_are_refused
            a_copied_tensor_is_allocated_once
            a_slot_is_reused_after_the_last_tensor_only
            batches_are_exported_ahead
            held_tensors_hold_slots_unless_copied
            tensors_are_dropped_on_other_threads
            writing_leaves_other_tensors_of_the_slot_alone
        );
    };
    ($adapter:ty: $($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                $crate::$check::<$adapter>();
            }
        )*
    };
}

/// Defines a test for each check of imports, beside those of [`suite!`].
#[macro_export]
macro_rules! import_suite {
    ($adapter:ty) => {
        $crate::suite!(
            $adapter:
            what_is_exported_is_imported
            an_import_is_allocated_once
            strided_tensors_are_copied_or_refused
        );
    };
}

/// The dtypes that the framework has.
fn dtypes<A: Adapter>() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| !A::UNSUPPORTED.contains(dtype))
}

/// Panics unless the tensor of the framework equals `tensor`.
#[track_caller]
fn assert_equal<A: Adapter>(tensor: &AnyTensor, of_framework: &A::Tensor) {
    let found = A::inspect(of_framework);
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    assert_eq!((found.dtype, &found.shape), (dtype, &A::shape_of(shape)), "{dtype} {shape:?}");
    assert_eq!(found.bytes, tensor.as_bytes(), "{dtype} {shape:?}");
}
