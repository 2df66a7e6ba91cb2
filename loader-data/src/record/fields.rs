//! Which fields of a record a dataset returns, and how.

use std::collections::BTreeMap;

use loader_core::{AnyTensor, DType, internal::config_line};
use serde::{Deserialize, Serialize};

use super::{Record, Scalar, Value, rows::Fields};
use crate::error::DataProblem;

/// Which fields the records of a dataset have, and how their numbers are collated. By default a record has
/// all fields of the file, as they are.
///
/// # Examples
/// ```
/// use loader_core::DType;
/// use loader_data::{FieldOptions, Record};
///
/// let options = FieldOptions::new().select(["tokens", "label"]).dtype("label", DType::U8).pad("tokens", -1.0);
/// let record: Record = serde_json::from_str(r#"{"tokens": [5, 6], "label": 3, "note": "x"}"#)?;
/// let record = options.apply(record)?;
/// assert_eq!(record.len(), 2);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FieldOptions {
    /// The fields, in the order that the records have; `None` for all fields of the file.
    fields: Option<Vec<String>>,
    /// Dtype to which the numbers of a field are converted.
    dtypes: BTreeMap<String, DType>,
    /// Number that takes the place of nulls of a field.
    fill: BTreeMap<String, f64>,
    /// Number with which the sequences of a field are padded to the longest of a batch.
    pad: BTreeMap<String, f64>,
}

impl FieldOptions {
    /// Names of the keys, without `fields`.
    pub(crate) const OTHER_KEYS: &[&str] = &["dtypes", "fill", "pad"];

    /// Returns the options that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps only these fields, in this order. A record without one of them is an error.
    #[must_use]
    pub fn select<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.fields = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Converts the numbers of field `name` to `dtype`. A number that `dtype` cannot hold is an error; floats
    /// are rounded to the nearest. CSV, Parquet, Arrow files and arrays cannot be opened if their records have no
    /// field `name`.
    #[must_use]
    pub fn dtype(mut self, name: impl Into<String>, dtype: DType) -> Self {
        self.dtypes.insert(name.into(), dtype);
        self
    }

    /// Puts `value` in the place of a null in field `name`. It gets the dtype that [`dtype`](Self::dtype) gives the
    /// field, or else that of the column, which CSV, Parquet and Arrow files tell. Without either, as in JSON, a null is an
    /// error that says so, and so is a value that the dtype cannot hold. If the records have no such field, opening fails
    /// as for [`dtype`](Self::dtype). Nulls inside of lists stay.
    ///
    /// # Examples
    /// ```
    /// use loader_core::DType;
    /// use loader_data::{FieldOptions, Record};
    ///
    /// let options = FieldOptions::new().dtype("age", DType::F32).fill("age", -1.0);
    /// let record: Record = serde_json::from_str(r#"{"age": null}"#)?;
    /// assert_eq!(options.apply(record)?.get("age"), Some(&(-1_f32).into()));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn fill(mut self, name: impl Into<String>, value: f64) -> Self {
        self.fill.insert(name.into(), value);
        self
    }

    /// Lets the sequences of field `name` have different lengths: a batch pads them with `value` to the
    /// longest, and is a [`Column::Padded`](super::Column::Padded). If the records have no such field, opening fails
    /// as for [`dtype`](Self::dtype).
    #[must_use]
    pub fn pad(mut self, name: impl Into<String>, value: f64) -> Self {
        self.pad.insert(name.into(), value);
        self
    }

    /// The selected fields; `None` for all.
    pub(crate) fn selected(&self) -> Option<&[String]> {
        self.fields.as_deref()
    }

    /// True if the options change nothing.
    pub(crate) fn is_default(&self) -> bool {
        self.fields.is_none() && self.dtypes.is_empty() && self.fill.is_empty() && self.pad.is_empty()
    }

    /// Returns the same options for records that have only the selected fields, in order.
    pub(crate) fn for_selected(&self) -> Self {
        Self { fields: None, ..self.clone() }
    }

    /// As [`for_selected`](Self::for_selected), for columns of numbers of which `dtype_of` returns the dtype. Nulls are
    /// filled with numbers of this dtype.
    pub(crate) fn for_columns(&self, dtype_of: impl Fn(&str) -> Option<DType>) -> Self {
        let mut options = self.for_selected();
        for name in self.fill.keys() {
            if let Some(dtype) = dtype_of(name) {
                options.dtypes.entry(name.clone()).or_insert(dtype);
            }
        }
        options
    }

    /// Checks that each name in `dtypes`, `fill` and `pad` is one of `names`, which are the fields of all records.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] for the first name that is not.
    pub(crate) fn check_names<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), DataProblem> {
        let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
        let dtypes = self.dtypes.keys().map(|name| ("dtypes", name));
        let filled = self.fill.keys().map(|name| ("fill", name));
        let mut options = dtypes.chain(filled).chain(self.pad.keys().map(|name| ("pad", name)));
        match options.find(|(_, name)| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some((option, name)) => {
                let of_selected = if self.fields.is_some() { " that `fields` selects" } else { "" };
                let names = names.join(", ");
                let reason = format!(
                    "the records have no field `{name}`{of_selected}; they have: {names}; use one of these, or remove the \
                     option"
                );
                Err(DataProblem::InvalidOption { option, reason })
            }
        }
    }

    /// Text for the fingerprint of a dataset.
    pub(crate) fn fingerprint(&self) -> String {
        if self.is_default() { String::new() } else { format!(", {self:?}") }
    }

    /// Applies the options to `record`.
    ///
    /// # Errors
    /// Returns [`DataProblem::MissingField`] or [`DataProblem::WrongType`]. Returns [`DataProblem::InvalidOption`] if a field
    /// has nulls to fill, and the record does not tell its dtype.
    pub fn apply(&self, mut record: Record) -> Result<Record, DataProblem> {
        if let Some(names) = &self.fields {
            let mut fields = record.fields.into_values();
            let mut selected = Vec::with_capacity(names.len());
            for name in names {
                let Some(at) = fields.iter().position(|(field, _)| **field == **name) else {
                    return Err(DataProblem::missing_field(name, fields.iter().map(|(name, _)| &**name)));
                };
                selected.push(fields.swap_remove(at));
            }
            record = Record { fields: Fields::Values(selected) };
        }
        for (name, &number) in &self.fill {
            if let Some(value @ Value::Null) = record.get_mut(name) {
                *value = Value::Number(self.filling(name, number)?);
            }
        }
        for (name, &dtype) in &self.dtypes {
            if let Some(value) = record.get_mut(name) {
                let wrong = || DataProblem::WrongType {
                    field: name.clone(),
                    expected: format!(
                        "numbers that {dtype} can hold, because of {}",
                        config_line("dtypes", name, format!("\"{dtype}\""))
                    ),
                    found: value.kind(),
                };
                *value = value.convert(dtype).ok_or_else(wrong)?;
            }
        }
        for (name, &number) in &self.pad {
            if let Some(value) = record.get_mut(name) {
                pad(name, value, number)?;
            }
        }
        Ok(record)
    }
}

impl FieldOptions {
    /// Returns what takes the place of a null in field `name`.
    fn filling(&self, name: &str, number: f64) -> Result<Scalar, DataProblem> {
        let invalid = |reason| DataProblem::InvalidOption { option: "fill", reason };
        let Some(&dtype) = self.dtypes.get(name) else {
            return Err(invalid(format!(
                "the dtype of the field `{name}`, which is null here, is not known; set it too, for example with {}",
                config_line("dtypes", name, "\"float64\"")
            )));
        };
        Scalar::from_f64(number, dtype).ok_or_else(|| cannot_hold("fill", name, number, dtype))
    }
}

/// Returns the error of an `option` that gives field `name` a number that the dtype of the field cannot hold.
fn cannot_hold(option: &'static str, name: &str, number: f64, dtype: DType) -> DataProblem {
    let is_float = Scalar::from_f64(0.5, dtype).is_some();
    let wider =
        if !is_float && Scalar::from_f64(number, DType::I64).is_some() { DType::I64 } else { DType::F64 };
    let reason = format!(
        "{dtype}, the dtype of the field `{name}`, cannot hold {number}; set another number, or another dtype, for example \
         with {}",
        config_line("dtypes", name, format!("\"{wider}\""))
    );
    DataProblem::InvalidOption { option, reason }
}

/// Marks `value` as a sequence that is padded with `padding`.
fn pad(name: &str, value: &mut Value, padding: f64) -> Result<(), DataProblem> {
    let found = value.kind();
    let wrong = |expected: &str| DataProblem::WrongType {
        field: name.to_owned(),
        expected: format!("{expected}, because of {}", config_line("pad", name, padding)),
        found: found.clone(),
    };
    if matches!(value, Value::List(list) if list.is_empty()) {
        // Batches take the dtype of a sequence without items from the others. Alone, it has the one that a file without
        // types gives to such a number.
        let number = Scalar::from_f64(padding, DType::I64).unwrap_or(Scalar::new(padding));
        let items = AnyTensor::from_bytes(number.dtype(), [0], &[]).map_err(|_| wrong("numbers"))?;
        *value = Value::Ragged(items, number);
        return Ok(());
    }
    let Value::Tensor(tensor) = value else { return Err(wrong("a sequence of numbers")) };
    let number = Scalar::from_f64(padding, tensor.dtype());
    let number = number.ok_or_else(|| cannot_hold("pad", name, padding, tensor.dtype()))?;
    *value = Value::Ragged(tensor.clone(), number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(options: &FieldOptions, json: &str) -> Result<Record, DataProblem> {
        options.apply(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn fields_are_selected_in_order_and_converted() {
        let options = FieldOptions::new().select(["b", "a"]).dtype("a", DType::F32);
        let record = apply(&options, r#"{"a": 1, "b": "x", "c": null}"#).unwrap();
        let fields: Vec<_> = record.iter().map(|(name, _)| name).collect();
        assert_eq!(fields, ["b", "a"]);
        assert_eq!(record.get("a"), Some(&Value::from(1.0f32)));

        let missing = apply(&options, r#"{"a": 1, "c": 2}"#).unwrap_err();
        assert_eq!(missing.to_string(), "there is no field `b`; there are: a, c");
        let wrong = apply(&options, r#"{"a": "1", "b": 2}"#).unwrap_err();
        assert!(matches!(&wrong, DataProblem::WrongType { field, .. } if field == "a"));
        assert!(wrong.to_string().contains("because of `dtypes = { a = \"float32\" }`"), "{wrong}");
    }

    #[test]
    fn nulls_are_filled_with_numbers_of_the_dtype() {
        let options = FieldOptions::new().dtype("a", DType::I32).fill("a", -1.0).fill("b", 0.5);
        let record = apply(&options, r#"{"a": null, "b": 2}"#).unwrap();
        assert_eq!(
            (record.get("a"), record.get("b")),
            (Some(&Value::from(-1_i32)), Some(&Value::from(2_i64)))
        );
        let unknown = apply(&options, r#"{"a": 1, "b": null}"#).unwrap_err().to_string();
        assert!(unknown.contains("option `fill`") && unknown.contains("dtypes = { b = "), "{unknown}");
        let wrong = apply(&FieldOptions::new().dtype("a", DType::U8).fill("a", -1.0), r#"{"a": null}"#);
        assert!(wrong.unwrap_err().to_string().contains("cannot hold -1"));
    }

    #[test]
    fn a_number_that_the_dtype_of_the_field_cannot_hold_is_refused() {
        for (dtype, number, wider) in [
            (DType::I64, 0.5, "float64"),
            (DType::U8, 300.0, "int64"),
            (DType::U32, -1.0, "int64"),
            (DType::Bool, 2.0, "int64"),
            (DType::I64, 1e300, "float64"),
            (DType::F32, 1e39, "float64"),
        ] {
            let options = FieldOptions::new().dtype("a", dtype);
            for (option, options, json) in [
                ("fill", options.clone().fill("a", number), r#"{"a": null}"#),
                ("pad", options.clone().pad("a", number), r#"{"a": [1]}"#),
                ("pad", options.clone().pad("a", number), r#"{"a": []}"#),
            ] {
                let refused = apply(&options, json).unwrap_err().to_string();
                let expected = format!(
                    "option `{option}`: {dtype}, the dtype of the field `a`, cannot hold {number}; set another number, or \
                     another dtype, for example with `dtypes = {{ a = \"{wider}\" }}` in the section `[dataset]` of a config"
                );
                assert_eq!(refused, expected);
            }
        }
        // Without `dtypes`, the items tell the dtype.
        let refused = apply(&FieldOptions::new().pad("a", 0.5), r#"{"a": [1]}"#).unwrap_err().to_string();
        assert!(
            refused.starts_with("option `pad`: int64, the dtype of the field `a`, cannot hold 0.5;"),
            "{refused}"
        );
    }

    #[test]
    fn a_name_that_no_field_has_is_refused() {
        let names = ["stars".to_owned(), "text".to_owned()];
        let refused = |options: FieldOptions| options.check_names(&names).unwrap_err().to_string();
        assert_eq!(
            refused(FieldOptions::new().dtype("stars", DType::U8).dtype("strs", DType::U8)),
            "option `dtypes`: the records have no field `strs`; they have: stars, text; use one of these, or remove the option"
        );
        assert!(
            refused(FieldOptions::new().pad("txt", 0.0)).starts_with("option `pad`: the records have no")
        );
        assert!(FieldOptions::new().dtype("stars", DType::U8).pad("text", 0.0).check_names(&names).is_ok());
    }

    #[test]
    fn only_sequences_are_padded() {
        let options = FieldOptions::new().pad("a", 0.5);
        assert!(matches!(apply(&options, r#"{"a": [1.0]}"#).unwrap().get("a"), Some(Value::Ragged(..))));
        let single = apply(&options, r#"{"a": 1.0}"#).unwrap_err();
        assert!(matches!(single, DataProblem::WrongType { .. }));
        assert!(single.to_string().contains("because of `pad = { a = 0.5 }`"), "{single}");
    }
}
