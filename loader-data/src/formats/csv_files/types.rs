//! The types of columns.

use std::fmt;

use loader_core::DType;
use serde::{
    Deserialize, Serialize,
    de::{IntoDeserializer, value::Error},
};

use crate::record::{Scalar, Value};

/// The type of a column of CSV. In a config it is `str`, `bool`, or the name of a dtype, such as `float64`.
///
/// # Examples
/// ```
/// use loader_core::DType;
/// use loader_data::ColumnType;
///
/// assert_eq!(serde_json::from_str::<ColumnType>("\"uint8\"")?, ColumnType::Number(DType::U8));
/// assert_eq!(serde_json::from_str::<ColumnType>("\"str\"")?, ColumnType::Text);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum ColumnType {
    /// Numbers of a dtype.
    Number(DType),
    /// Booleans: `true` or `false`, in any case.
    Bool,
    /// Texts.
    Text,
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(dtype) => dtype.fmt(f),
            Self::Bool => f.write_str("bool"),
            Self::Text => f.write_str("str"),
        }
    }
}

impl From<ColumnType> for String {
    fn from(column: ColumnType) -> Self {
        column.to_string()
    }
}

impl TryFrom<String> for ColumnType {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "bool" => Ok(Self::Bool),
            "str" => Ok(Self::Text),
            name => match DType::deserialize(IntoDeserializer::<Error>::into_deserializer(name)) {
                Ok(dtype) => Ok(Self::Number(dtype)),
                Err(error) => Err(format!("`{name}` is neither `str` nor `bool` nor a dtype: {error}")),
            },
        }
    }
}

impl ColumnType {
    /// Returns the value of a field that is not missing; `None` if it has another type.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let trimmed = text.trim_ascii();
        match self {
            Self::Text => Some(text.into()),
            Self::Bool | Self::Number(DType::Bool) if trimmed.eq_ignore_ascii_case("true") => {
                Some(true.into())
            }
            // Both have the name `bool`.
            Self::Bool | Self::Number(DType::Bool) => {
                trimmed.eq_ignore_ascii_case("false").then(|| false.into())
            }
            Self::Number(dtype @ (DType::F16 | DType::BF16 | DType::F32 | DType::F64)) => {
                Scalar::new(float(trimmed)?).convert(dtype).map(Value::from)
            }
            Self::Number(dtype) => {
                let signed = trimmed.parse::<i64>().map(Scalar::new);
                let number = signed.or_else(|_| trimmed.parse::<u64>().map(Scalar::new)).ok()?;
                number.convert(dtype).map(Value::from)
            }
        }
    }
}

/// Parses a float. Returns `None` for digits of a number that is too large for an `f64`, which parses as infinity.
fn float(text: &str) -> Option<f64> {
    let number = text.parse::<f64>().ok()?;
    let is_too_large = number.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit());
    (!is_too_large).then_some(number)
}

/// Finds the type of a column by its fields.
#[derive(Debug, Clone)]
pub(super) struct Inferred {
    is_integer: bool,
    is_number: bool,
    is_bool: bool,
    is_empty: bool,
}

impl Inferred {
    pub(super) fn new() -> Self {
        Self { is_integer: true, is_number: true, is_bool: true, is_empty: true }
    }

    /// Adds a field that is not missing.
    pub(super) fn add(&mut self, text: &str) {
        self.is_empty = false;
        self.is_integer &= is_integer(text);
        self.is_number &= is_number(text);
        self.is_bool &= ColumnType::Bool.parse(text).is_some();
    }

    /// Returns the first type that all fields have: `int64`, `float64`, `bool`, text. It is text if all
    /// fields are missing.
    pub(super) fn finish(&self) -> ColumnType {
        match self {
            Self { is_empty: true, .. } => ColumnType::Text,
            Self { is_integer: true, .. } => ColumnType::Number(DType::I64),
            Self { is_number: true, .. } => ColumnType::Number(DType::F64),
            Self { is_bool: true, .. } => ColumnType::Bool,
            _ => ColumnType::Text,
        }
    }
}

/// True if `text` is an `i64` without leading zeros, which codes such as `01067` have.
fn is_integer(text: &str) -> bool {
    let text = text.trim_ascii();
    !has_leading_zero(text) && text.parse::<i64>().is_ok()
}

/// True if `text` is an integer, or another number that is written with a point or an exponent, or `nan` or
/// `inf`. An integer that an `i64` cannot hold is none: it is likely a number by which something is called.
pub(super) fn is_number(text: &str) -> bool {
    let trimmed = text.trim_ascii();
    let is_whole = trimmed.trim_start_matches(['-', '+']).bytes().all(|byte| byte.is_ascii_digit());
    if is_whole { is_integer(text) } else { !has_leading_zero(trimmed) && float(trimmed).is_some() }
}

fn has_leading_zero(text: &str) -> bool {
    matches!(text.trim_start_matches(['-', '+']).as_bytes(), [b'0', b'0'..=b'9', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_first_type_that_fits_all_fields() {
        let found = |fields: &[&str]| {
            let mut inferred = Inferred::new();
            fields.iter().for_each(|field| inferred.add(field));
            inferred.finish().to_string()
        };
        for (fields, expected) in [
            (&["1", "-20", " 3 "][..], "int64"),
            (&["1", "2.5", "-1e3", "NaN", "inf"], "float64"),
            (&["true", "False", "TRUE"], "bool"),
            (&["01067", "2"], "str"),
            (&["0", "-0", "0.5"], "float64"),
            (&["18446744073709551616"], "str"),
            (&["1.5", "1e400", "12e4567"], "str"),
            (&["1", "true"], "str"),
            (&["2026-01-02"], "str"),
            (&[], "str"),
        ] {
            assert_eq!(found(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_type_reads_its_own_texts_only() {
        let parse = |name: &str, text: &str| ColumnType::try_from(name.to_owned()).unwrap().parse(text);
        assert_eq!(parse("uint8", "255"), Some(255_u8.into()));
        assert_eq!((parse("uint8", "256"), parse("int64", "1.5")), (None, None));
        assert_eq!((parse("float64", "1e400"), parse("float32", "1e39")), (None, None));
        assert_eq!(parse("float32", "-inf"), Some(f32::NEG_INFINITY.into()));
        assert_eq!(parse("uint64", "18446744073709551615"), Some(u64::MAX.into()));
        assert_eq!(
            (parse("float64", "-0"), parse("int64", "-0")),
            (Some((-0.0_f64).into()), Some(0_i64.into()))
        );
        assert_eq!(parse("float32", " 1 "), Some(1.0_f32.into()));
        assert_eq!((parse("bool", "1"), parse("str", " a ")), (None, Some(" a ".into())));
        assert!(ColumnType::try_from("text".to_owned()).unwrap_err().contains("neither `str` nor"));
    }
}
