//! Sizes and times with units, such as `2 GiB` and `30 s`: as text, and in serde's formats.
//!
//! A field of type `u64` (bytes) or `Duration`, or an `Option` of one, is read as a number or as a text with a
//! unit if it has the attribute `#[serde(with = "loader_core::units::Size")]` or
//! `#[serde(with = "loader_core::units::Time")]`. It is written as a number of bytes or seconds.
//!
//! # Examples
//! ```
//! #[derive(serde::Deserialize)]
//! struct Photos {
//!     #[serde(with = "loader_core::units::Size")]
//!     max_file_bytes: u64,
//! }
//!
//! let photos: Photos = serde_json::from_str(r#"{"max_file_bytes": "256 MiB"}"#)?;
//! assert_eq!(photos.max_file_bytes, 256 << 20);
//! assert_eq!(loader_core::units::parse::<u64>("2 kB")?, 2000);
//! # anyhow::Ok(())
//! ```
//!
//! Alternative considered: the crates bytesize and humantime. Rejected because their rules do not suit
//! options: bytesize returns the largest size if a size is too large and ignores case, so that `2 mb` is a
//! size; for humantime, `m` is a minute, `M` is a month, and a number without a unit is an error.

use std::{fmt, marker::PhantomData, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::info::{OptionKind, ParseOptionError};

/// Units of sizes, and their number of bytes.
const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1000),
    ("MB", 1000_u64.pow(2)),
    ("GB", 1000_u64.pow(3)),
    ("TB", 1000_u64.pow(4)),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Units of times, and their number of microseconds.
const TIMES: [(&str, u64); 5] =
    [("us", 1), ("ms", 1000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];

impl OptionKind {
    /// Names of the units that values of this kind may have; empty if they have no unit.
    ///
    /// # Examples
    /// ```
    /// use loader_core::OptionKind;
    ///
    /// assert_eq!(OptionKind::Seconds.units(), ["us", "ms", "s", "min", "h"]);
    /// ```
    pub fn units(self) -> Vec<&'static str> {
        match self {
            Self::Bytes => SIZES.map(|(name, _)| name).to_vec(),
            Self::Seconds => TIMES.map(|(name, _)| name).to_vec(),
            _ => Vec::new(),
        }
    }
}

impl OptionKind {
    /// Regular expression of the texts with a unit that a value of this kind may have.
    #[doc(hidden)]
    pub fn text_pattern(self) -> String {
        format!("^[0-9]+([.][0-9]+)? *({})$", self.units().join("|"))
    }
}

/// A size in bytes (`u64`) or a time (`Duration`). No other type implements it.
pub trait Measured: Sized + Copy + Serialize + for<'de> Deserialize<'de> {
    #[doc(hidden)]
    const KIND: OptionKind;

    // `None` stands for an invalid value.
    #[doc(hidden)]
    fn from_text(text: &str) -> Option<Self>;
    #[doc(hidden)]
    fn from_whole(number: u64) -> Option<Self>;
    #[doc(hidden)]
    fn from_fraction(number: f64) -> Option<Self>;
    /// Serialises the value as a number.
    #[doc(hidden)]
    fn serialize_number<S: Serializer>(value: Option<Self>, serializer: S) -> Result<S::Ok, S::Error>;
}

/// The type of a field that is a size or a time: a [`Measured`] type, or an `Option` of one.
pub trait MeasuredField: Sized + Serialize + for<'de> Deserialize<'de> {
    #[doc(hidden)]
    type Value: Measured;

    #[doc(hidden)]
    fn from_value(value: Option<Self::Value>) -> Option<Self>;
    #[doc(hidden)]
    fn value(&self) -> Option<Self::Value>;
}

impl<T: Measured> MeasuredField for T {
    type Value = T;

    fn from_value(value: Option<T>) -> Option<T> {
        value
    }

    fn value(&self) -> Option<T> {
        Some(*self)
    }
}

impl<T: Measured> MeasuredField for Option<T> {
    type Value = T;

    fn from_value(value: Self) -> Option<Self> {
        Some(value)
    }

    fn value(&self) -> Self {
        *self
    }
}

/// Parses a number, or a number with a unit.
///
/// # Errors
/// [`ParseOptionError`] if the text is neither, or if the value is too large.
pub fn parse<T: Measured>(text: &str) -> Result<T, ParseOptionError> {
    T::from_text(text).ok_or_else(|| ParseOptionError::new(text, T::KIND))
}

/// A number of bytes, or a text such as `2 GiB`, in serde's formats.
#[derive(Debug)]
pub struct Size;

/// A number of seconds, or a text such as `30 s`, in serde's formats.
#[derive(Debug)]
pub struct Time;

/// Implements what `#[serde(with = "...")]` and the derive of `JsonSchema` use.
macro_rules! with {
    ($name:ident, $value:ty, $number:literal) => {
        impl $name {
            /// Serialises the value as a number. A binary format gets it as it is.
            ///
            /// # Errors
            /// Those of the serializer.
            pub fn serialize<T: MeasuredField<Value = $value>, S: Serializer>(
                value: &T,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serialize(value, serializer)
            }

            /// Deserialises a number, or a text with a unit. A binary format has what `serialize` has written.
            ///
            /// # Errors
            /// Those of the deserializer, and an error if the value is invalid.
            pub fn deserialize<'de, T: MeasuredField<Value = $value>, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<T, D::Error> {
                deserialize(deserializer)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "anyOf": [
                    { "type": $number, "minimum": 0 },
                    { "type": "string", "pattern": <$value>::KIND.text_pattern() },
                ] })
            }
        }
    };
}

with!(Size, u64, "integer");
with!(Time, Duration, "number");

fn serialize<T: MeasuredField, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        T::Value::serialize_number(value.value(), serializer)
    } else {
        value.serialize(serializer)
    }
}

fn deserialize<'de, T: MeasuredField, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    if !deserializer.is_human_readable() {
        return T::deserialize(deserializer);
    }
    let expected = NumberOrText::<T::Value>(PhantomData);
    let value = deserializer.deserialize_any(NumberOrText::<T::Value>(PhantomData))?;
    T::from_value(value).ok_or_else(|| de::Error::invalid_type(de::Unexpected::Unit, &expected))
}

/// A number of bytes.
impl Measured for u64 {
    const KIND: OptionKind = OptionKind::Bytes;

    fn from_text(text: &str) -> Option<Self> {
        let (number, unit) = split(text, &SIZES)?;
        match (number.parse::<Self>(), unit) {
            (Ok(number), unit) => number.checked_mul(unit.unwrap_or(1)),
            // A fraction is rounded to whole bytes.
            (Err(_), Some(unit)) => {
                let bytes = number.parse::<f64>().ok()? * unit as f64;
                (bytes < Self::MAX as f64).then(|| bytes.round() as Self)
            }
            (Err(_), None) => None,
        }
    }

    fn from_whole(number: u64) -> Option<Self> {
        Some(number)
    }

    /// Returns `None`: bytes without a unit have no fraction.
    fn from_fraction(_number: f64) -> Option<Self> {
        None
    }

    fn serialize_number<S: Serializer>(value: Option<Self>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => serializer.serialize_u64(bytes),
            None => serializer.serialize_none(),
        }
    }
}

impl Measured for Duration {
    const KIND: OptionKind = OptionKind::Seconds;

    fn from_text(text: &str) -> Option<Self> {
        let (number, unit) = split(text, &TIMES)?;
        Self::from_fraction(number.parse::<f64>().ok()? * (unit.unwrap_or(1_000_000) as f64 / 1e6))
    }

    fn from_whole(number: u64) -> Option<Self> {
        Some(Self::from_secs(number))
    }

    /// Returns `None` if the number of seconds is negative, infinite or not a number. A time that is too long
    /// for a `Duration` becomes the longest one.
    fn from_fraction(seconds: f64) -> Option<Self> {
        if seconds.is_finite() && seconds >= u64::MAX as f64 {
            return Some(Self::MAX);
        }
        // A positive time that rounds to zero must not become zero, which stands for "no limit".
        let min = Self::from_nanos(u64::from(seconds > 0.0));
        Self::try_from_secs_f64(seconds).ok().map(|duration| duration.max(min))
    }

    fn serialize_number<S: Serializer>(value: Option<Self>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_f64(duration.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }
}

/// Splits `text` into a number and the factor of its unit, if it has one. Returns `None` if the unit is
/// unknown, or if the number before it has other characters than digits and a point.
fn split<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, Option<u64>)> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let name = &text[number.len()..];
    if name.is_empty() {
        return Some((text, None));
    }
    let &(_, factor) = units.iter().find(|(unit, _)| *unit == name)?;
    let number = number.trim_end_matches(' ');
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number.then_some((number, Some(factor)))
}

/// Reads a number, or a text with a unit.
struct NumberOrText<T>(PhantomData<T>);

impl<T: Measured> de::Visitor<'_> for NumberOrText<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&T::KIND, f)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<T>, E> {
        let value = u64::try_from(number).ok().and_then(T::from_whole);
        value.map(Some).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<T>, E> {
        let value = T::from_whole(number);
        value.map(Some).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Option<T>, E> {
        let value = T::from_fraction(number);
        value.map(Some).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
        let value = T::from_text(text);
        value.map(Some).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_decimal_or_a_binary_unit() {
        let size = <u64 as Measured>::from_text;
        for (text, bytes) in [
            ("0", 0),
            ("18446744073709551615", u64::MAX),
            ("7 B", 7),
            ("1 kB", 1000),
            ("1KiB", 1024),
            ("512 MB", 512_000_000),
            ("512 MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            ("2GB", 2_000_000_000),
            ("1.5 TiB", 3 << 39),
            ("3 TB", 3_000_000_000_000),
            ("1.001 kB", 1001),
            ("0.3 KiB", 307),
            ("9007199254740993 B", 9_007_199_254_740_993),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        let wrong = [
            "", " ", "GiB", "2 G", "2 gb", "2 GiB ", "2 s", "-1 kB", "1e3 kB", "1.5", "1.2.3 kB", "inf",
            "nan B",
        ];
        let too_large = ["18446744073709551616", "16777216 TiB", "16777216.5 TiB"];
        for text in wrong.into_iter().chain(too_large) {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn a_field_may_be_absent_or_have_a_unit() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Fields {
            #[serde(with = "Size")]
            size: u64,
            #[serde(default, with = "Size")]
            max: Option<u64>,
            #[serde(with = "Time")]
            time: Duration,
        }
        let read = serde_json::from_str::<Fields>;
        let fields = read(r#"{"size": "2 KiB", "time": "250 ms"}"#).unwrap();
        assert_eq!(fields, Fields { size: 2048, max: None, time: Duration::from_millis(250) });
        let text = serde_json::to_string(&Fields { max: Some(7), ..fields }).unwrap();
        assert_eq!(text, r#"{"size":2048,"max":7,"time":0.25}"#);
        assert_eq!(read(&text).unwrap().max, Some(7));
        let null = read(r#"{"size": null, "time": 1}"#).unwrap_err().to_string();
        assert!(null.starts_with("invalid type: null, expected a number of bytes"), "{null}");
        // A binary format does not say what comes next.
        let bytes = loader_ipc::codec::encode(&fields).unwrap();
        assert_eq!(loader_ipc::codec::decode::<Fields>(&bytes).unwrap(), fields);
    }

    #[test]
    fn a_time_is_a_number_of_seconds_unless_it_has_a_unit() {
        let time = <Duration as Measured>::from_text;
        for (text, expected) in [
            ("2.5", Duration::from_millis(2500)),
            ("1e-12", Duration::from_nanos(1)),
            ("0 h", Duration::ZERO),
            ("10us", Duration::from_micros(10)),
            ("250 ms", Duration::from_millis(250)),
            ("30 s", Duration::from_secs(30)),
            ("5 min", Duration::from_secs(300)),
            ("1.5 h", Duration::from_secs(5400)),
            ("0.0001 us", Duration::from_nanos(1)),
            ("9999999999999999999 h", Duration::MAX),
        ] {
            assert_eq!(time(text), Some(expected), "{text}");
        }
        for text in ["", "s", "5 m", "5 M", "5 MiB", "-1 s", "-1", "inf", "nan", "nan s", "1e3 s"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
