//! The values of a record.

use std::fmt;

use loader_core::{AnyTensor, Bool, DType, Element, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeSeed};

use super::{
    Record,
    deserialize::{AnyValue, Itself},
};

/// A value of a [`Record`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")] // the encoding in formats that are not self-describing, such as bincode
#[non_exhaustive]
pub enum Value {
    /// No value.
    Null,
    /// A boolean. A batch of them is a tensor of [`Bool`].
    Bool(bool),
    /// A number of any dtype. A batch of them is a tensor of shape `[B]`.
    Number(Scalar),
    /// A text. A batch of them is a `Vec<String>`.
    Text(String),
    /// Bytes, such as an encoded image. A batch of them is a [`BytesArray`](loader_core::BytesArray).
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Numbers of one dtype in a shape. A batch of them is a tensor with one dimension more, so their shapes
    /// must be equal.
    Tensor(AnyTensor),
    /// Numbers whose first dimension may differ between the samples of a batch, which pads them with the
    /// scalar.
    Ragged(AnyTensor, Scalar),
    /// Values of different kinds.
    List(Vec<Self>),
    /// Named values. A batch of them is [`Columns`](super::Columns).
    Record(Record),
}

impl Value {
    /// Name of the kind of value, for errors.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(_) => "a boolean".to_owned(),
            Self::Number(number) => format!("a number of type {}", number.dtype()),
            Self::Text(_) => "a text".to_owned(),
            Self::Bytes(_) => "bytes".to_owned(),
            Self::Tensor(tensor) | Self::Ragged(tensor, _) => {
                format!("a tensor of {} with shape {:?}", tensor.dtype(), tensor.shape())
            }
            Self::List(_) => "a list".to_owned(),
            Self::Record(_) => "a record".to_owned(),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return Self::serialize(self, serializer);
        }
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize_number(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::Tensor(tensor) | Self::Ragged(tensor, _) => tensor.serialize(serializer),
            Self::List(list) => list.serialize(serializer),
            Self::Record(record) => record.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Self::deserialize(deserializer);
        }
        AnyValue(Itself).deserialize(deserializer)
    }
}

/// A number whose dtype is known only at run time.
///
/// # Examples
/// ```
/// use loader_core::DType;
/// use loader_data::Scalar;
///
/// let number = Scalar::new(1.5_f32);
/// assert_eq!((number.dtype(), number.get::<f32>(), number.get::<f64>()), (DType::F32, Some(1.5), None));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scalar {
    dtype: DType,
    /// The number in its first bytes, in the byte order of this machine.
    bytes: [u8; 8],
}

impl Scalar {
    /// Creates the number `value`.
    pub fn new<T: Element>(value: T) -> Self {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Self { dtype: T::DTYPE, bytes }
    }

    /// Creates a number from its bytes, in the byte order of this machine.
    ///
    /// # Panics
    /// Panics if `bytes` is not as long as `dtype` says.
    pub(crate) fn from_bytes(dtype: DType, number: &[u8]) -> Self {
        let mut bytes = [0; 8];
        bytes[..dtype.size()].copy_from_slice(number);
        Self { dtype, bytes }
    }

    /// Type of the number.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the number, or `None` if it is not of type `T`.
    pub fn get<T: Element>(self) -> Option<T> {
        (self.dtype == T::DTYPE).then(|| bytemuck::pod_read_unaligned(self.as_bytes()))
    }

    /// Returns the bytes of the number, in the byte order of this machine.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.dtype.size()]
    }

    fn serialize_number<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.number() {
            Number::Int(value) => match i64::try_from(value) {
                Ok(value) => serializer.serialize_i64(value),
                Err(_) => serializer.serialize_u64(value as u64),
            },
            Number::Float(value) => serializer.serialize_f64(value),
        }
    }
}

/// A number of any dtype, without loss.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

macro_rules! numbers {
    ($($dtype:ident $element:ty: $kind:ident $into:expr, $from:expr;)*) => {
        impl Scalar {
            pub(super) fn number(self) -> Number {
                match self.dtype {
                    $(DType::$dtype => {
                        let into: fn($element) -> _ = $into;
                        Number::$kind(into(bytemuck::pod_read_unaligned(self.as_bytes())))
                    })*
                    _ => unreachable!("every dtype is listed"),
                }
            }

            /// Converts the number, or returns `None` if `dtype` cannot hold it: an integer out of range, or
            /// a float for an integer dtype. Floats are rounded.
            pub(super) fn from_number(number: Number, dtype: DType) -> Option<Self> {
                match dtype {
                    $(DType::$dtype => {
                        let from: fn(Number) -> Option<$element> = $from;
                        from(number).map(Self::new)
                    })*
                    _ => unreachable!("every dtype is listed"),
                }
            }
        }
    };
}

fn integer<T: TryFrom<i128>>(number: Number) -> Option<T> {
    match number {
        Number::Int(value) => T::try_from(value).ok(),
        Number::Float(_) => None,
    }
}

pub(super) fn float(number: Number) -> f64 {
    match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
    }
}

/// Rounds a number to a float. Returns `None` if the number is finite and too large for the float.
fn rounded<T: Copy + Into<f64>>(number: Number, to: fn(f64) -> T) -> Option<T> {
    let number = float(number);
    let rounded = to(number);
    (rounded.into().is_finite() || !number.is_finite()).then_some(rounded)
}

numbers! {
    U8 u8: Int i128::from, integer;
    I8 i8: Int i128::from, integer;
    U16 u16: Int i128::from, integer;
    I16 i16: Int i128::from, integer;
    U32 u32: Int i128::from, integer;
    I32 i32: Int i128::from, integer;
    U64 u64: Int i128::from, integer;
    I64 i64: Int i128::from, integer;
    F16 half::f16: Float f64::from, |number| rounded(number, half::f16::from_f64);
    BF16 half::bf16: Float f64::from, |number| rounded(number, half::bf16::from_f64);
    F32 f32: Float f64::from, |number| rounded(number, |number| number as f32);
    F64 f64: Float f64::from, |number| Some(float(number));
    Bool Bool: Int |value| i128::from(value.get()), |number| match number {
        Number::Int(0) => Some(Bool::new(false)),
        Number::Int(1) => Some(Bool::new(true)),
        _ => None,
    };
}

impl fmt::Debug for Scalar {
    /// Writes the number and its dtype.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Number::Int(value) => write!(f, "{value}_{}", self.dtype),
            Number::Float(value) => write!(f, "{value:?}_{}", self.dtype),
        }
    }
}

impl From<Scalar> for Value {
    /// Returns a number, or a boolean for a scalar of type [`Bool`].
    fn from(scalar: Scalar) -> Self {
        scalar.get::<Bool>().map_or(Self::Number(scalar), |value| Self::Bool(value.get()))
    }
}

impl<T: Element> From<Tensor<T>> for Value {
    fn from(tensor: Tensor<T>) -> Self {
        Self::Tensor(tensor.into())
    }
}

macro_rules! from {
    ($($type:ty: $value:ident => $into:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $into
            }
        })*
    };
}

from! {
    u8: value => Self::Number(Scalar::new(value));
    i8: value => Self::Number(Scalar::new(value));
    u16: value => Self::Number(Scalar::new(value));
    i16: value => Self::Number(Scalar::new(value));
    u32: value => Self::Number(Scalar::new(value));
    i32: value => Self::Number(Scalar::new(value));
    u64: value => Self::Number(Scalar::new(value));
    i64: value => Self::Number(Scalar::new(value));
    half::f16: value => Self::Number(Scalar::new(value));
    half::bf16: value => Self::Number(Scalar::new(value));
    f32: value => Self::Number(Scalar::new(value));
    f64: value => Self::Number(Scalar::new(value));
    bool: value => Self::Bool(value);
    &str: text => Self::Text(text.to_owned());
    String: text => Self::Text(text);
    Vec<u8>: bytes => Self::Bytes(bytes);
    AnyTensor: tensor => Self::Tensor(tensor);
    Record: record => Self::Record(record);
    Vec<Value>: list => Self::List(list);
}
