//! Turns what the TOML reader says into errors that name the key, the line and the nearest known key.

use std::path::Path;

use toml::de::DeTable;

use super::{
    OPTIONS,
    error::{ConfigError, Place, UnknownKey, hint, quoted},
    nearest,
};

/// How like a key must be to be suggested: a hint may well be wrong, so rather more than less.
const ALIKE: f64 = 0.7;

/// What `error`, from reading `text`, means.
pub(super) fn explain(error: &toml::de::Error, text: &str, path: Option<&Path>) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let place = Place::of(text, span.start, path);
    let Ok(document) = DeTable::parse(text) else {
        let mut problem = error.message().to_owned();
        let found = text.get(span).unwrap_or_default();
        if error.message() == "duplicate key" {
            problem = format!("{problem} {}", quoted(found));
        }
        return ConfigError::NotToml { place, problem };
    };
    let (keys, is_table) = find(document.get_ref(), span.start);
    let Said { what, names } = Said::new(error.message());
    match what {
        What::UnknownField => {
            let key = names.first().cloned().unwrap_or_default();
            let section = keys[..keys.len().saturating_sub(1)].join(".");
            let known = names.get(1..).unwrap_or_default().to_vec();
            let mut likely = nearest(&key, known.iter().map(String::as_str), ALIKE).map(str::to_owned);
            if section.is_empty() && OPTIONS.contains(&key.as_str()) {
                likely = Some(format!("loader.{key}"));
            }
            let is_section = is_table && section.is_empty();
            let unknown = UnknownKey { place, key, section, is_section, nearest: likely, known };
            ConfigError::UnknownKey(Box::new(unknown))
        }
        What::MissingField => {
            let key = names.into_iter().next().unwrap_or_default();
            ConfigError::MissingKey { place, key, section: keys.join(".") }
        }
        What::UnknownVariant => {
            let found = names.first().cloned().unwrap_or_default();
            let known = names.get(1..).unwrap_or_default();
            let likely = nearest(&found, known.iter().map(String::as_str), ALIKE);
            wrong_value(
                place,
                keys,
                format!("unknown value {}{}", quoted(&found), hint(likely, known, quoted)),
            )
        }
        What::WrongType { found, expected } => {
            wrong_value(place, keys, format!("expected {expected}, found {found}"))
        }
        What::Other => wrong_value(place, keys, error.message().to_owned()),
    }
}

/// What `error` means, from reading the section `section` that is not there, as if it were empty.
pub(super) fn explain_absent(error: &toml::de::Error, section: &str, path: Option<&Path>) -> ConfigError {
    let place = Place::of("", 0, path);
    let Said { what, names } = Said::new(error.message());
    match what {
        What::MissingField => {
            let key = names.into_iter().next().unwrap_or_default();
            ConfigError::MissingKey { place, key, section: section.to_owned() }
        }
        _ => wrong_value(place, vec![section.to_owned()], error.message().to_owned()),
    }
}

fn wrong_value(place: Place, mut keys: Vec<String>, problem: String) -> ConfigError {
    let key = keys.pop().unwrap_or_default();
    ConfigError::WrongValue { place, key, section: keys.join("."), problem }
}

/// The keys that lead to the key or value at `offset`, outermost first, and whether a table is there.
fn find(table: &DeTable<'_>, offset: usize) -> (Vec<String>, bool) {
    // A header is the span of the innermost table that it opens, and the names in it are keys: keys first, values last. What is
    // under a header lies outside of its span.
    if let Some((key, value)) = table.iter().find(|(key, _)| key.span().contains(&offset)) {
        return (vec![key.get_ref().to_string()], value.get_ref().is_table());
    }
    for (key, value) in table {
        if let Some(inner) = value.get_ref().as_table() {
            let (mut keys, is_table) = find(inner, offset);
            if !keys.is_empty() {
                keys.insert(0, key.get_ref().to_string());
                return (keys, is_table);
            }
        }
        if value.span().contains(&offset) {
            return (vec![key.get_ref().to_string()], value.get_ref().is_table());
        }
    }
    (Vec::new(), false)
}

/// What serde said. It says it in words alone: there is no other way through a `Deserialize` that is not ours.
struct Said {
    what: What,
    /// What stands in backquotes, in order.
    names: Vec<String>,
}

enum What {
    UnknownField,
    UnknownVariant,
    MissingField,
    WrongType { found: String, expected: String },
    Other,
}

impl Said {
    fn new(message: &str) -> Self {
        let starts = |start: &str| message.starts_with(start);
        let what = if starts("unknown field `") {
            What::UnknownField
        } else if starts("unknown variant `") {
            What::UnknownVariant
        } else if starts("missing field `") {
            What::MissingField
        } else if let Some((found, expected)) = wrong_type(message) {
            What::WrongType { found: in_words(found), expected: in_words(expected) }
        } else {
            What::Other
        };
        let names = message.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Self { what, names }
    }
}

fn wrong_type(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

/// Rust's names of types, in words.
fn in_words(kind: &str) -> String {
    match kind {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number from 0".to_owned(),
        "isize" | "i64" | "i32" | "i16" | "i8" => "a whole number".to_owned(),
        "f64" | "f32" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "map" => "a table".to_owned(),
        "sequence" => "an array".to_owned(),
        _ if kind.starts_with("struct ") => "a section".to_owned(),
        _ => kind.to_owned(),
    }
}
