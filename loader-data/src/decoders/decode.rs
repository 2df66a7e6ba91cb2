//! What each kind of decoder implements, and how it finds its input in a record.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use rand::rngs::ChaCha8Rng;

use crate::{
    error::{DataError, DataProblem, Result},
    record::{Record, Value},
};

/// Decodes a field of records.
pub(super) trait Decode {
    /// Returns the name of what is decoded, for errors.
    fn kind(&self) -> &'static str;

    /// Checks the options, which may have been deserialised.
    fn validate(&self) -> Result<(), DataProblem>;

    /// Returns what takes the place of the field `name` of `record`. May also replace other fields.
    fn decode(&self, record: &mut Record, name: &str, rng: &mut ChaCha8Rng) -> Result<Value>;

    /// Returns a fingerprint of the decoder; `None` if it changes neither the number nor the order of samples.
    fn fingerprint(&self) -> Option<String> {
        None
    }
}

/// Calls `decode` with the value of the field `name`. An error names the field, and the path of its file if the record
/// has it.
pub(super) fn of_field<R>(
    record: &Record,
    kind: &str,
    name: &str,
    decode: impl FnOnce(&Value) -> Result<R, DataProblem>,
) -> Result<R> {
    let decoded = match record.get(name) {
        Some(value) => decode(value),
        None => Err(DataProblem::missing_field(name, record.iter().map(|(name, _)| name))),
    };
    decoded.map_err(|problem| {
        let path = path_of(record, name).map_or_else(String::new, |path| format!(" ({path})"));
        DataError::new(format!("{kind} `{name}`{path}"), problem)
    })
}

/// Returns the content of the encoded file in field `name`. `kind` is for errors.
pub(super) fn file<'a>(kind: &str, name: &str, value: &'a Value) -> Result<Cow<'a, [u8]>, DataProblem> {
    let wrong = |expected: &str, found: &Value| DataProblem::WrongType {
        field: name.to_owned(),
        expected: format!("{kind} {expected}"),
        found: found.kind(),
    };
    match value {
        Value::Bytes(file) => Ok(file.into()),
        Value::Text(text) => match STANDARD.decode(text.trim_ascii()) {
            Ok(file) => Ok(file.into()),
            Err(error) => Err(DataProblem::Malformed { format: "base64", reason: error.to_string() }),
        },
        Value::Record(record) => match record.get("bytes") {
            Some(bytes @ (Value::Bytes(_) | Value::Text(_))) => file(kind, name, bytes),
            Some(Value::Null) | None => Err(wrong("with its bytes, not only its path", value)),
            Some(other) => Err(wrong("whose field `bytes` is bytes", other)),
        },
        Value::Null => Err(DataProblem::Null { field: name.to_owned() }),
        other => Err(wrong("as bytes, a text in base64, or a record with `bytes`", other)),
    }
}

/// Returns the path or the name of the file in field `name`, or the key of `record` and its archive, for errors.
fn path_of(record: &Record, name: &str) -> Option<String> {
    fn text(value: Option<&Value>) -> Option<String> {
        match value {
            Some(Value::Text(text)) => Some(format!("`{text}`")),
            _ => None,
        }
    }
    let path = match record.get(name) {
        Some(Value::Record(file)) => text(file.get("path")),
        _ => None,
    };
    let of_archive = || {
        let key = text(record.get("__key__"))?;
        Some(text(record.get("__url__")).map_or_else(|| key.clone(), |archive| format!("{key} of {archive}")))
    };
    path.or_else(|| text(record.get("file_name"))).or_else(of_archive)
}
