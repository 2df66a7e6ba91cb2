//! Conversion of values to another dtype.

use loader_core::{AnyTensor, Bool, DType};

use super::{Scalar, Value, deserialize::stacked, number_stack::converted_bytes, value::Number};

impl Scalar {
    /// Converts the number to `dtype`. Returns `None` if `dtype` cannot hold it: a number out of range, or
    /// a float for an integer dtype. Floats are rounded to the nearest. Of the integers, [`Bool`] holds 0 and 1.
    pub fn convert(self, dtype: DType) -> Option<Self> {
        if self.dtype() == dtype { Some(self) } else { Self::from_number(self.number(), dtype) }
    }

    /// Converts a number of a config to `dtype`: an integer dtype needs a number without fraction.
    pub(super) fn from_f64(number: f64, dtype: DType) -> Option<Self> {
        // Every integer below 2^53 is exact. The config may have had 2^53 + 1 in place of 2^53.
        let is_exact = number.fract() == 0.0 && number.abs() < (1u64 << 53) as f64;
        let number = if is_exact { Number::Int(number as i128) } else { Number::Float(number) };
        Self::from_number(number, dtype)
    }
}

/// Converts all elements. Returns `None` if `dtype` cannot hold one of them.
fn converted(tensor: &AnyTensor, dtype: DType) -> Option<AnyTensor> {
    let bytes = converted_bytes(tensor.dtype(), tensor.as_bytes(), dtype)?;
    AnyTensor::from_bytes(dtype, tensor.shape(), &bytes).ok()
}

impl Value {
    /// Converts the numbers to `dtype`. Returns `None` if `dtype` cannot hold one of them, or the value does
    /// not consist of numbers.
    pub(crate) fn convert(&self, dtype: DType) -> Option<Self> {
        Some(match self {
            Self::Bool(value) => Scalar::new(Bool::new(*value)).convert(dtype)?.into(),
            Self::Number(number) => number.convert(dtype)?.into(),
            Self::Tensor(tensor) if tensor.dtype() == dtype => self.clone(),
            Self::Tensor(tensor) => Self::Tensor(converted(tensor, dtype)?),
            Self::List(list) if list.is_empty() => Self::Tensor(AnyTensor::from_bytes(dtype, [0], &[]).ok()?),
            Self::List(list) => {
                let items = list.iter().map(|item| item.convert(dtype));
                let items: Vec<_> = items.collect::<Option<_>>()?;
                stacked(&items).map_or(Self::List(items), Self::Tensor)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        assert_eq!(Scalar::new(200i64).convert(DType::U8), Some(Scalar::new(200u8)));
        assert_eq!(Scalar::new(300i64).convert(DType::U8), None);
        assert_eq!(Scalar::new(100_000i64).convert(DType::F16), None);
        assert_eq!(Scalar::new(1e39f64).convert(DType::F32), None);
        assert_eq!(Scalar::new(3.5e38f64).convert(DType::BF16), None);
        assert_eq!(Scalar::new(f64::INFINITY).convert(DType::F32), Some(Scalar::new(f32::INFINITY)));
        assert_eq!(Scalar::new(65_504i64).convert(DType::F16).map(|number| number.dtype()), Some(DType::F16));
        assert_eq!(Scalar::new(-1i8).convert(DType::U64), None);
        assert_eq!(Scalar::new(1.5f64).convert(DType::I64), None);
        assert_eq!(Scalar::new(3u16).convert(DType::F16), Some(Scalar::new(half::f16::from_f32(3.0))));
        assert_eq!(Scalar::new(1i8).convert(DType::Bool), Some(Scalar::new(Bool::new(true))));
        assert_eq!(Scalar::new(2i8).convert(DType::Bool), None);
        assert_eq!(Value::Bool(true).convert(DType::F32), Some(1.0f32.into()));
        assert_eq!(Value::from(0u8).convert(DType::Bool), Some(Value::Bool(false)));
        assert_eq!(Scalar::from_f64(-100.0, DType::I32), Some(Scalar::new(-100i32)));
        assert_eq!(Scalar::from_f64(0.5, DType::I32), None);
        let largest = (1i64 << 53) - 1;
        assert_eq!(Scalar::from_f64(largest as f64, DType::I64), Some(Scalar::new(largest)));
        assert_eq!(Scalar::from_f64("9007199254740993".parse().unwrap(), DType::I64), None);

        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let tensor = json("[[1, 2], [0.5, 4]]").convert(DType::F32).unwrap();
        assert!(matches!(&tensor, Value::Tensor(tensor) if tensor.shape() == [2, 2]), "{tensor:?}");
        assert!(
            matches!(json("[]").convert(DType::F32), Some(Value::Tensor(tensor)) if tensor.shape() == [0])
        );
        assert_eq!(json(r#"["a"]"#).convert(DType::F32), None);
    }
}
