//! The numbers that a tensor can hold.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it
pub enum DType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

/// A number that a [`Tensor`](crate::Tensor) can hold: the integers from 8 to 64 bits, `f16`, `bf16`, `f32`, `f64`.
///
/// `bool` is not among them (most bytes are not a `bool`); a batch of `bool`s is a `Tensor<u8>` of zeros and ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number that a tensor can hold",
    note = "a tensor holds integers of 8 to 64 bits, `f16`, `bf16`, `f32` or `f64`",
    note = "of samples that are sequences of sequences, such as `Vec<Vec<f32>>`, `List<Vec<f32>>` stacks each place of equally long lists, `Ragged` pads sequences of any length, and `Keep` leaves them as they are"
)]
pub trait Element: Pod + Default + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// Its dtype.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ty => $dtype:ident $name:literal),* $(,)?) => {
        $(
            impl sealed::Sealed for $element {}
            impl Element for $element {
                const DTYPE: DType = DType::$dtype;
            }
        )*

        impl DType {
            /// Size of one element in bytes.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => size_of::<$element>(),)*
                }
            }

            /// Name as NumPy and PyTorch write it, such as `float32`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$dtype => $name,)*
                }
            }
        }
    };
}

elements! {
    u8 => U8 "uint8",
    i8 => I8 "int8",
    u16 => U16 "uint16",
    i16 => I16 "int16",
    u32 => U32 "uint32",
    i32 => I32 "int32",
    u64 => U64 "uint64",
    i64 => I64 "int64",
    f16 => F16 "float16",
    bf16 => BF16 "bfloat16",
    f32 => F32 "float32",
    f64 => F64 "float64",
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
