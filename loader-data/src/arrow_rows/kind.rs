//! The types of columns.

use std::fmt;

use arrow_schema::{DataType, Schema};
use loader_core::DType;
use serde::{Deserialize, Serialize};

use crate::{error::DataProblem, record::FieldOptions};

/// The type of the values of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ColumnKind {
    Null,
    Bool,
    Number(DType),
    /// A date, a time, a timestamp or a duration: a number in the unit of the type with this name.
    Time(DType, String),
    /// A decimal number, which is read as an `f64`.
    Decimal,
    Text,
    Bytes,
    List(Box<Self>),
    FixedList(Box<Self>, usize),
    Record(Vec<(String, Self)>),
}

impl ColumnKind {
    /// Returns the kind of the values of type `data_type`.
    ///
    /// # Errors
    /// Returns the name of the unsupported type: `data_type`, or the type of a part of it.
    pub(crate) fn of(data_type: &DataType) -> Result<Self, String> {
        Ok(match data_type {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Self::Bytes,
            DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..) => Self::Decimal,
            DataType::Dictionary(_, values) => Self::of(values)?,
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::Map(item, _) => Self::List(Self::of(item.data_type())?.into()),
            DataType::FixedSizeList(item, len) => {
                let len = usize::try_from(*len).map_err(|_| data_type.to_string())?;
                Self::FixedList(Self::of(item.data_type())?.into(), len)
            }
            DataType::Struct(fields) => {
                let fields =
                    fields.iter().map(|field| Ok((field.name().clone(), Self::of(field.data_type())?)));
                Self::Record(fields.collect::<Result<_, String>>()?)
            }
            other => {
                let dtype = number_type(other).ok_or_else(|| other.to_string())?;
                if other.is_temporal() { Self::Time(dtype, time_type(other)) } else { Self::Number(dtype) }
            }
        })
    }
}

impl ColumnKind {
    /// Returns the dtype of the numbers of a column.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match self {
            Self::Number(dtype) | Self::Time(dtype, _) => Some(*dtype),
            Self::Decimal => Some(DType::F64),
            _ => None,
        }
    }
}

/// Returns the name of a type of times without its time zone: the numbers count from the same instant in any zone.
fn time_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None).to_string(),
        other => other.to_string(),
    }
}

/// Returns the dtype of the numbers in a column of type `data_type`. Dates, times and durations are numbers
/// too, in the unit of the file.
pub(crate) fn number_type(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::Int8 => DType::I8,
        DataType::Int16 => DType::I16,
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => DType::I32,
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => DType::I64,
        DataType::UInt8 => DType::U8,
        DataType::UInt16 => DType::U16,
        DataType::UInt32 => DType::U32,
        DataType::UInt64 => DType::U64,
        DataType::Float16 => DType::F16,
        DataType::Float32 => DType::F32,
        DataType::Float64 => DType::F64,
        _ => return None,
    })
}

impl fmt::Display for ColumnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Number(dtype) => dtype.fmt(f),
            Self::Time(dtype, name) => write!(f, "{dtype} ({name})"),
            Self::Decimal => f.write_str("decimal"),
            Self::Text => f.write_str("text"),
            Self::Bytes => f.write_str("bytes"),
            Self::List(item) => write!(f, "list of {item}"),
            Self::FixedList(item, len) => write!(f, "list of {len} {item}"),
            Self::Record(fields) => {
                f.write_str("{")?;
                for (number, (name, kind)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {kind}", if number == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Columns with their names.
type NamedKinds = Vec<(String, ColumnKind)>;

/// Returns the columns of `schema` and of the folders, `partition`, that `fields` select, in the order of the record,
/// and the positions of those of `schema`. For each file but the first, `expected` has the columns of the first file.
/// Errors name `format`.
///
/// # Errors
/// Returns an error if a selected column does not exist, shares its name with another column, has an
/// unsupported type, or differs from the columns of the first file.
pub(crate) fn select_columns(
    format: &'static str,
    schema: &Schema,
    partition: &[(String, ColumnKind)],
    expected: Option<&[(String, ColumnKind)]>,
    fields: &FieldOptions,
) -> Result<(NamedKinds, Vec<usize>), DataProblem> {
    let mut columns = selected(format, schema, partition, fields)?;
    if let Some(expected) = expected {
        check_same(format, &columns, expected)?;
        columns = expected.to_vec();
    }
    fields.check_names(columns.iter().map(|(name, _)| name))?;
    let position =
        |(name, _): &(String, ColumnKind)| schema.fields().iter().position(|field| field.name() == name);
    let positions = columns.iter().filter_map(position).collect();
    Ok((columns, positions))
}

/// Returns the columns of `schema` and `partition` that `fields` select.
fn selected(
    format: &'static str,
    schema: &Schema,
    partition: &[(String, ColumnKind)],
    fields: &FieldOptions,
) -> Result<NamedKinds, DataProblem> {
    let in_file = || schema.fields().iter().map(|column| column.name());
    let available = || in_file().chain(partition.iter().map(|(name, _)| name));
    let all: Vec<String>;
    let names = match fields.selected() {
        Some(names) => names,
        None => {
            all = available().cloned().collect();
            &all
        }
    };
    let find = |name: &String| {
        let mut found = schema.fields().iter().filter(|column| column.name() == name);
        let mut of_folders = partition.iter().filter(|(column, _)| column == name);
        let column = match (found.next(), of_folders.next()) {
            (Some(column), None) => column,
            (None, Some(column)) if of_folders.next().is_none() => return Ok(column.clone()),
            (_, Some(_)) => return Err(DataProblem::PartitionColumn { column: name.clone() }),
            (None, None) => return Err(DataProblem::missing_field(name, available().map(String::as_str))),
        };
        if found.next().is_some() {
            let reason = format!("it has two columns with the name `{name}`");
            return Err(DataProblem::Malformed { format, reason });
        }
        let unsupported = |data_type| {
            let others = names.iter().filter(|other| *other != name).cloned().collect();
            DataProblem::UnsupportedColumn { column: name.clone(), data_type, others }
        };
        Ok((name.clone(), ColumnKind::of(column.data_type()).map_err(unsupported)?))
    };
    names.iter().map(find).collect()
}

/// Checks that a file has the columns of the first file, in any order.
fn check_same(
    format: &'static str,
    columns: &[(String, ColumnKind)],
    expected: &[(String, ColumnKind)],
) -> Result<(), DataProblem> {
    for (name, kind) in expected {
        let Some((_, found)) = columns.iter().find(|(column, _)| column == name) else {
            return Err(DataProblem::missing_field(name, columns.iter().map(|(name, _)| name.as_str())));
        };
        if found != kind {
            let (expected, found) = (format!("{kind}, as in the first file"), found.to_string());
            return Err(DataProblem::WrongType { field: name.clone(), expected, found });
        }
    }
    match columns.iter().find(|(name, _)| expected.iter().all(|(other, _)| other != name)) {
        Some((name, _)) => {
            let reason = format!(
                "it has a column `{name}` that the first file does not have; select the columns that all files have"
            );
            Err(DataProblem::Malformed { format, reason })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::TimeUnit;

    use super::*;

    #[test]
    fn times_in_different_units_are_different_kinds() {
        let timestamp = |unit| ColumnKind::of(&DataType::Timestamp(unit, None)).unwrap();
        let expected = [("created".to_owned(), timestamp(TimeUnit::Millisecond))];
        let found = [("created".to_owned(), timestamp(TimeUnit::Microsecond))];
        assert!(check_same("Parquet", &expected, &expected).is_ok());
        let error = check_same("Parquet", &found, &expected).unwrap_err().to_string();
        assert_eq!(
            error,
            "field `created`: expected int64 (Timestamp(ms)), as in the first file, found int64 (Timestamp(µs))"
        );
        assert_ne!(ColumnKind::of(&DataType::Date32), ColumnKind::of(&DataType::Int32));
        let in_utc = DataType::Timestamp(TimeUnit::Second, Some("UTC".into()));
        assert_eq!(ColumnKind::of(&in_utc).unwrap(), timestamp(TimeUnit::Second));
    }
}
