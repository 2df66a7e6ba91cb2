//! Element types of tensors.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Data type of the elements of a tensor.
///
/// In a config it has its name in NumPy, such as `"float32"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[allow(missing_docs)] // each variant has the name of its Rust type
pub enum DType {
    #[serde(rename = "uint8")]
    U8,
    #[serde(rename = "int8")]
    I8,
    #[serde(rename = "uint16")]
    U16,
    #[serde(rename = "int16")]
    I16,
    #[serde(rename = "uint32")]
    U32,
    #[serde(rename = "int32")]
    I32,
    #[serde(rename = "uint64")]
    U64,
    #[serde(rename = "int64")]
    I64,
    #[serde(rename = "float16")]
    F16,
    #[serde(rename = "bfloat16")]
    BF16,
    #[serde(rename = "float32")]
    F32,
    #[serde(rename = "float64")]
    F64,
    #[serde(rename = "bool")]
    Bool,
}

/// A boolean in a tensor: one byte, 0 for false and 1 for true.
///
/// A `Tensor<bool>` does not exist, because a byte that is neither 0 nor 1 is not a valid `bool`, and the bytes
/// of a tensor may come from a file or from another process. Such a byte counts as true.
///
/// # Examples
/// ```
/// use loader_core::{Bool, Tensor};
///
/// let mask = Tensor::from_slice(&[true, false].map(Bool::new), [2])?;
/// assert!(mask.as_slice()[0].get());
/// assert_eq!(mask.as_bytes(), [1, 0]);
/// # Ok::<(), loader_core::TensorError>(())
/// ```
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// Returns the element for `value`.
    pub const fn new(value: bool) -> Self {
        Self(value as u8)
    }

    /// Returns the boolean.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self::new(value)
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl PartialEq<bool> for Bool {
    fn eq(&self, other: &bool) -> bool {
        self.get() == *other
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A type that a [`Tensor`](crate::Tensor) can contain: the integers of 8 to 64 bits, `f16`, `bf16`, `f32`,
/// `f64`, and [`Bool`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a tensor",
    note = "a tensor holds integers of 8 to 64 bits, `f16`, `bf16`, `f32`, `f64` or `Bool`",
    note = "instead of a sequence of sequences such as `Vec<Vec<f32>>`, use `List<Vec<f32>>` to stack lists of equal length position by position, `Ragged` to pad sequences of any length, or `Keep` to leave samples unchanged"
)]
pub trait Element: Pod + Default + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// Dtype of tensors with these elements.
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
            /// All dtypes.
            pub const ALL: &'static [Self] = &[$(Self::$dtype),*];

            /// Size of one element in bytes.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => size_of::<$element>(),)*
                }
            }

            /// Returns the dtype that `Tensor` encodes as the number `code`.
            pub(super) fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }

            /// Returns the dtype with the given [`name`](Self::name).
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
            }

            /// Name in NumPy and PyTorch, such as `float32`.
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
    Bool => Bool "bool",
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
