//! Records from self-describing formats, and records into types that implement `Deserialize`.

use std::{fmt, mem};

use loader_core::{AnyTensor, Bool, DType, Tensor};
use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use super::{
    Record, Scalar, Value,
    names::Name,
    number_stack::NumberStack,
    value::{Number, float},
};

type Error = de::value::Error;

/// Builds a [`Value`] from what a self-describing format contains, and passes it to a [`Sink`]. Integers
/// become `i64` (`u64` above its range), other numbers `f64`. An array of numbers, or of arrays of numbers
/// with equal shapes, becomes a tensor, of `f64` if one of the numbers is.
pub(super) struct AnyValue<S>(pub(super) S);

/// Takes a value.
pub(super) trait Sink: Sized {
    type Output;

    fn value(self, value: Value) -> Self::Output;

    fn integer(self, value: i64) -> Self::Output {
        self.value(value.into())
    }

    fn float(self, value: f64) -> Self::Output {
        self.value(value.into())
    }
}

/// Returns the value.
pub(super) struct Itself;

impl Sink for Itself {
    type Output = Value;

    fn value(self, value: Value) -> Value {
        value
    }
}

impl<'de, S: Sink> Visitor<'de> for AnyValue<S> {
    type Value = S::Output;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<S::Output, E> {
        Ok(self.0.value(Value::Null))
    }

    fn visit_none<E>(self) -> Result<S::Output, E> {
        Ok(self.0.value(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Output, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<S::Output, E> {
        Ok(self.0.value(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<S::Output, E> {
        Ok(self.0.integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<S::Output, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => self.0.integer(value),
            Err(_) => self.0.value(value.into()),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<S::Output, E> {
        Ok(self.0.float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<S::Output, E> {
        Ok(self.0.value(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<S::Output, E> {
        Ok(self.0.value(text.into()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<S::Output, E> {
        Ok(self.0.value(bytes.into()))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<S::Output, E> {
        Ok(self.0.value(bytes.to_vec().into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<S::Output, A::Error> {
        let mut list = Items::Integers(Vec::new());
        while items.next_element_seed(AnyValue(&mut list))?.is_some() {}
        Ok(self.0.value(list.finish()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<S::Output, A::Error> {
        let mut record = Record::new();
        while let Some((Name(name), value)) = map.next_entry::<Name, Value>()? {
            record.set(name, value);
        }
        Ok(self.0.value(record.into()))
    }
}

impl<'de, S: Sink> DeserializeSeed<'de> for AnyValue<S> {
    type Value = S::Output;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Output, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// The items of an array, as numbers as long as all of them are numbers.
enum Items {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    /// Numbers of several types, or of `u64`. `finish` makes a tensor of `f64` of them if one is an `f64`; otherwise
    /// they stay a list.
    Numbers(Vec<Scalar>),
    Mixed(Vec<Value>),
}

impl Sink for &mut Items {
    type Output = ();

    fn integer(self, value: i64) {
        match self {
            Items::Integers(list) => list.push(value),
            other => other.number(Scalar::new(value)),
        }
    }

    fn float(self, value: f64) {
        match self {
            Items::Floats(list) => list.push(value),
            Items::Integers(list) if list.is_empty() => *self = Items::Floats(vec![value]),
            other => other.number(Scalar::new(value)),
        }
    }

    fn value(self, value: Value) {
        if let Value::Number(number) = value {
            // An integer above the range of `i64`.
            return self.number(number);
        }
        let mut list = mem::replace(self, Items::Integers(Vec::new())).into_values();
        list.push(value);
        *self = Items::Mixed(list);
    }
}

impl Items {
    /// Adds a number that the list cannot hold as `i64` or `f64` alone.
    fn number(&mut self, number: Scalar) {
        let numbers = match self {
            Self::Integers(list) => list.iter().map(|&item| Scalar::new(item)).chain([number]).collect(),
            Self::Floats(list) => list.iter().map(|&item| Scalar::new(item)).chain([number]).collect(),
            Self::Numbers(list) => return list.push(number),
            Self::Mixed(list) => return list.push(number.into()),
        };
        *self = Self::Numbers(numbers);
    }

    fn into_values(self) -> Vec<Value> {
        match self {
            Self::Integers(list) => list.into_iter().map(Value::from).collect(),
            Self::Floats(list) => list.into_iter().map(Value::from).collect(),
            Self::Numbers(list) => list.into_iter().map(Value::from).collect(),
            Self::Mixed(list) => list,
        }
    }

    fn finish(self) -> Value {
        let tensor = match self {
            // The type of an array without items is not known.
            Self::Integers(list) if list.is_empty() => return Value::List(Vec::new()),
            Self::Integers(list) => Tensor::from_slice(&list, [list.len()]).map(AnyTensor::from),
            Self::Floats(list) => Tensor::from_slice(&list, [list.len()]).map(AnyTensor::from),
            Self::Numbers(list) if list.iter().any(|item| item.dtype() == DType::F64) => {
                let list: Vec<f64> = list.iter().map(|item| float(item.number())).collect();
                Tensor::from_slice(&list, [list.len()]).map(AnyTensor::from)
            }
            // No dtype has the ranges of both `i64` and `u64`.
            Self::Numbers(_) => return Value::List(self.into_values()),
            Self::Mixed(list) => return stacked(&list).map_or(Value::List(list), Value::Tensor),
        };
        tensor.map_or(Value::Null, Value::Tensor)
    }
}

/// Stacks tensors of one dtype and shape. Together, `i64` and `f64` are `f64`. Returns `None` if `list` is anything else.
pub(crate) fn stacked(list: &[Value]) -> Option<AnyTensor> {
    let mut stack = NumberStack::new(list.len());
    for item in list {
        let Value::Tensor(tensor) = item else { return None };
        stack.push_row(tensor.dtype(), tensor.shape(), tensor.as_bytes()).ok()?;
    }
    stack.finish().ok()
}

impl IntoDeserializer<'_, Error> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(number) => match number.number() {
                Number::Int(value) => match i64::try_from(value) {
                    Ok(value) => visitor.visit_i64(value),
                    Err(_) => visitor.visit_u64(value as u64),
                },
                Number::Float(value) => visitor.visit_f64(value),
            },
            Self::Text(text) => visitor.visit_string(text),
            Self::Bytes(bytes) => visitor.visit_byte_buf(bytes),
            Self::Tensor(tensor) | Self::Ragged(tensor, _) => visit_items(&tensor, visitor),
            Self::List(list) => visitor.visit_seq(SeqDeserializer::new(list.into_iter())),
            Self::Record(record) => record.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    /// A vector of bytes may be read as a sequence of numbers.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Bytes(bytes) => visitor.visit_seq(SeqDeserializer::new(bytes.into_iter())),
            value => value.deserialize_any(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    /// The fields of a serialised [`Tensor`], so that a row may have fields of this type.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Tensor(tensor) | Self::Ragged(tensor, _) if fields == ["dtype", "shape", "data"] => {
                let shape = tensor.shape().iter().map(|&size| (size as u64).into()).collect();
                let parts = [
                    ("dtype", Self::Text(tensor.dtype().name().to_owned())),
                    ("shape", Self::List(shape)),
                    ("data", Self::Bytes(tensor.as_bytes().to_vec())),
                ];
                visitor.visit_map(MapDeserializer::new(parts.into_iter()))
            }
            value => value.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// A text is a variant without fields; a record with one field is a variant with fields.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Text(text) => visitor.visit_enum(text.into_deserializer()),
            Self::Record(record) => visitor.visit_enum(MapAccessDeserializer::new(record.into_map())),
            other => {
                Err(de::Error::custom(format_args!("expected the name of a variant, found {}", other.kind())))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple_struct map identifier ignored_any
    }
}

impl Record {
    fn into_map<'de>(self) -> MapDeserializer<'de, impl Iterator<Item = (String, Value)>, Error> {
        MapDeserializer::new(
            self.fields.into_values().into_iter().map(|(name, value)| (name.to_string(), value)),
        )
    }
}

/// Passes the items of the first dimension to `visitor`; a tensor of rank 0 is a number.
fn visit_items<'de, V: Visitor<'de>>(tensor: &AnyTensor, visitor: V) -> Result<V::Value, Error> {
    if tensor.shape().len() == 1 {
        macro_rules! visit {
            ($($dtype:ident: $element:ty, $into:expr;)*) => {
                match tensor.dtype() {
                    $(DType::$dtype => {
                        let items = tensor.as_slice::<$element>().unwrap_or_default().iter().copied().map($into);
                        visitor.visit_seq(SeqDeserializer::new(items))
                    })*
                    _ => unreachable!("every dtype is listed"),
                }
            };
        }
        return visit! {
            U8: u8, |item| item;
            I8: i8, |item| item;
            U16: u16, |item| item;
            I16: i16, |item| item;
            U32: u32, |item| item;
            I32: i32, |item| item;
            U64: u64, |item| item;
            I64: i64, |item| item;
            F16: half::f16, f32::from;
            BF16: half::bf16, f32::from;
            F32: f32, |item| item;
            F64: f64, |item| item;
            Bool: Bool, Bool::get;
        };
    }
    let [count, item @ ..] = tensor.shape() else {
        return Value::from(Scalar::from_bytes(tensor.dtype(), tensor.as_bytes())).deserialize_any(visitor);
    };
    let len = tensor.as_bytes().len() / (*count).max(1);
    let items = (0..*count).map(|index| {
        let bytes = &tensor.as_bytes()[index * len..(index + 1) * len];
        AnyTensor::from_bytes(tensor.dtype(), item, bytes).map_or(Value::Null, Value::Tensor)
    });
    visitor.visit_seq(SeqDeserializer::new(items))
}

impl<'de> Deserializer<'de> for Record {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self.into_map())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[test]
    fn arrays_of_numbers_become_tensors() {
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        let tensor = |value: Value| match value {
            Value::Tensor(tensor) => (tensor.dtype(), tensor.shape().to_vec()),
            other => panic!("{other:?} is not a tensor"),
        };
        assert_eq!(tensor(value("[1, -2]")), (DType::I64, vec![2]));
        assert_eq!(tensor(value("[1, 2.5]")), (DType::F64, vec![2]));
        assert_eq!(tensor(value("[[1, 2], [3, 4], [5, 6]]")), (DType::I64, vec![3, 2]));
        assert_eq!(tensor(value("[[1, 2], [0.5, 4], [5, 6]]")), (DType::F64, vec![3, 2]));
        assert!(matches!(value("[[1, 2], [3]]"), Value::List(list) if list.len() == 2));
        assert_eq!(tensor(value("[0.5, 18446744073709551615, 1]")), (DType::F64, vec![3]));
        assert!(matches!(value("[1, 18446744073709551615]"), Value::List(list) if list.len() == 2));
        assert_eq!(tensor(value("[18446744073709551615, 0.5]")), (DType::F64, vec![2]));
        assert!(matches!(value("[0.5, true]"), Value::List(list) if list[0] == Value::from(0.5)));
        assert!(matches!(value(r#"[1, "a"]"#), Value::List(list) if list[0] == Value::from(1i64)));
        assert_eq!(value("[]"), Value::List(Vec::new()));
        assert_eq!(value("18446744073709551615"), Value::from(u64::MAX));
        assert_eq!(value("null"), Value::Null);
    }

    #[test]
    fn numbers_among_other_values_keep_their_types() {
        let list = |json: &str| match serde_json::from_str::<Value>(json).unwrap() {
            Value::List(list) => list,
            other => panic!("{other:?} is not a list"),
        };
        let (largest, half) = (Value::from(i64::MAX), Value::from(0.5));
        assert_eq!(
            list(r#"[9223372036854775807, 0.5, "x"]"#),
            [largest.clone(), half.clone(), Value::from("x")]
        );
        assert_eq!(list("[0.5, 9223372036854775807, null]"), [half.clone(), largest.clone(), Value::Null]);
        assert_eq!(
            list("[0.5, 18446744073709551615, null, 9223372036854775807, 0.5]"),
            [half.clone(), Value::from(u64::MAX), Value::Null, largest, half]
        );
        assert_eq!(list("[18446744073709551615, -1]"), [Value::from(u64::MAX), Value::from(-1i64)]);
    }

    #[test]
    fn a_record_becomes_a_row_of_any_type() {
        #[derive(Debug, PartialEq, Deserialize)]
        enum Split {
            Train,
            Other(u8),
        }

        #[derive(Debug, PartialEq, Deserialize)]
        struct Row {
            text: String,
            label: u8,
            weights: Vec<f32>,
            grid: Vec<Vec<i32>>,
            image: Tensor<f64>,
            split: Split,
            other: Split,
            missing: Option<u8>,
            nested: BTreeMap<String, bool>,
        }

        let json = r#"{"text": "a", "label": 3, "weights": [1, 2.5], "grid": [[1, 2], [3, 4]], "image": [[0.5, 1.5]],
            "split": "Train", "other": {"Other": 7}, "missing": null, "nested": {"yes": true}, "ignored": 1}"#;
        let record: Record = serde_json::from_str(json).unwrap();
        let row: Row = record.clone().into_row().unwrap();
        assert_eq!(row.weights, [1.0, 2.5]);
        assert_eq!(row.grid, [[1, 2], [3, 4]]);
        assert_eq!(row.image, Tensor::from_slice(&[0.5, 1.5], [1, 2]).unwrap());
        assert_eq!((row.split, row.other, row.missing), (Split::Train, Split::Other(7), None));
        assert!(row.nested["yes"] && row.text == "a" && row.label == 3);
        assert_eq!(record.clone().into_row::<Record>().unwrap(), record);

        let mut wrong = record;
        wrong.set("label", 300i64);
        let error = wrong.into_row::<Row>().unwrap_err().to_string();
        assert!(error.contains("300"), "{error}");
    }
}
