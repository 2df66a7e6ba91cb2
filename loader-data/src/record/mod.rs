//! Records: rows whose fields are known only at run time.

mod columns;
mod convert;
mod deserialize;
mod field_stack;
mod fields;
mod names;
mod number_stack;
mod rows;
mod stack;
mod value;

use std::{any::Any, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, MapAccess, Visitor},
    ser::SerializeMap,
};

pub use columns::{Column, ColumnError, Columns};
pub use fields::FieldOptions;
pub use stack::RecordStack;
pub use value::{Scalar, Value};

#[cfg(feature = "columnar")]
pub(crate) use self::{
    deserialize::stacked,
    rows::{Numbers, Rows},
};
pub(crate) use names::shared;

use self::{names::Name, rows::Fields};
use crate::error::DataProblem;

/// One row of a file: named values, in the order of the file.
///
/// It is the sample of a dataset whose row type is not given. A batch of records is [`Columns`]. A dataset
/// can also return rows of a type of your own that implements `Deserialize`.
///
/// # Examples
/// ```
/// use loader_data::{Record, Value};
///
/// let record: Record = serde_json::from_str(r#"{"text": "a cat", "label": 3}"#)?;
/// assert_eq!(record.get("label"), Some(&Value::from(3_i64)));
///
/// #[derive(serde::Deserialize)]
/// struct Row {
///     text: String,
///     label: u8,
/// }
/// let row: Row = record.into_row()?;
/// assert_eq!((row.text.as_str(), row.label), ("a cat", 3));
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Default)]
pub struct Record {
    fields: Fields,
}

#[cfg(test)]
thread_local! {
    /// Number of records of this thread that were made by [`Record::from_row`].
    pub(crate) static REFERENCES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Record {
    /// Creates a record without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a record from fields whose names differ.
    pub(crate) fn from_fields(fields: Vec<(Arc<str>, Value)>) -> Self {
        Self { fields: Fields::Values(fields) }
    }

    /// Creates the value of an encoded file: a record with its `bytes` and its `path`.
    #[cfg(any(feature = "audio", feature = "columnar"))]
    pub(crate) fn of_file(bytes: Vec<u8>, path: String) -> Self {
        [("bytes", Value::Bytes(bytes)), ("path", Value::Text(path))].into_iter().collect()
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.values().len()
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.values().is_empty()
    }

    /// Returns the value of field `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.values().iter().find(|(field, _)| &**field == name).map(|(_, value)| value)
    }

    /// Returns the value of field `name` for changing it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.fields.values_mut().iter_mut().find(|(field, _)| &**field == name).map(|(_, value)| value)
    }

    /// Sets field `name`, and adds it at the end if it does not exist.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<Value>) {
        let name = name.into();
        match self.get_mut(&name) {
            Some(field) => *field = value.into(),
            None => self.fields.values_mut().push((name, value.into())),
        }
    }

    /// Removes field `name` and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let fields = self.fields.values_mut();
        let position = fields.iter().position(|(field, _)| &**field == name)?;
        Some(fields.remove(position).1)
    }

    /// Returns the fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.values().iter().map(|(name, value)| (&**name, value))
    }

    /// Converts the record to a type that implements `Deserialize`. Fields that the type does not have are
    /// ignored.
    ///
    /// # Errors
    /// Returns [`DataProblem::Record`] if a field is missing or has another type.
    pub fn into_row<R: DeserializeOwned + 'static>(self) -> Result<R, DataProblem> {
        // A record is moved, not rebuilt field by field.
        let mut record = Some(self);
        if let Some(same) = (&mut record as &mut dyn Any).downcast_mut::<Option<R>>() {
            return Ok(same.take().expect("it was just set"));
        }
        R::deserialize(record.expect("it was not taken"))
            .map_err(|error| DataProblem::Record(error.to_string()))
    }
}

impl<N: Into<Arc<str>>, V: Into<Value>> FromIterator<(N, V)> for Record {
    /// Collects fields. If a name occurs twice, the last value remains.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut record = Self::new();
        fields.into_iter().for_each(|(name, value)| record.set(name, value));
        record
    }
}

/// Returns the fields in order, with their names.
impl IntoIterator for Record {
    type Item = (Arc<str>, Value);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.fields.into_values().into_iter()
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.fields.values() == other.fields.values()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Record;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with named fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
                let mut record = Record::new();
                while let Some((Name(name), value)) = map.next_entry::<Name, Value>()? {
                    record.set(name, value);
                }
                Ok(record)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}
