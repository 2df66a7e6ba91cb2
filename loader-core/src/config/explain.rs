//! Turns errors of the TOML reader into errors that name the key, the line and the nearest known key.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{
    error::{ConfigError, Location, UnknownKey, hint, quoted},
    nearest, option_names,
};

/// Minimum similarity at which a hint names a known key. The minimum is lower than for environment variables:
/// an unknown key is an error with or without a hint, so a wrong hint does little harm.
const MIN_SIMILARITY: f64 = 0.7;

/// Explains an error from reading `text`.
pub(super) fn explain(error: &toml::de::Error, text: &str, path: Option<&Path>) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let mut location = Location::of(text, span.start, path);
    let Ok(document) = DeTable::parse(text) else {
        let mut problem = error.message().to_owned();
        let found = text.get(span).unwrap_or_default();
        if error.message() == "duplicate key" {
            problem = format!("{problem} {}", quoted(found));
        }
        return ConfigError::NotToml { location, problem };
    };
    let (mut keys, mut is_table) = keys_at(document.get_ref(), span.start);
    let Message { kind, names } = Message::new(error.message());
    match kind {
        Kind::UnknownField => {
            let key = names.first().cloned().unwrap_or_default();
            let unlocated = UnlocatedKey { key: &key, known: &names[1..] };
            if keys.last() != Some(&key)
                && let Some(found) = unlocated.find(document.get_ref(), &keys)
            {
                location = Location::of(text, found.offset, path);
                (keys, is_table) = (found.keys, found.is_table);
            }
            let section = keys[..keys.len().saturating_sub(1)].join(".");
            let known = names.get(1..).unwrap_or_default().to_vec();
            let mut likely =
                nearest(&key, known.iter().map(String::as_str), MIN_SIMILARITY).map(str::to_owned);
            if section.is_empty() && option_names().any(|name| name == key) {
                likely = Some(format!("loader.{key}"));
            }
            let is_section = is_table && section.is_empty();
            let unknown = UnknownKey { location, key, section, is_section, nearest: likely, known };
            ConfigError::UnknownKey(Box::new(unknown))
        }
        Kind::MissingField => {
            let key = names.into_iter().next().unwrap_or_default();
            ConfigError::MissingKey { location, key, section: keys.join(".") }
        }
        Kind::UnknownVariant => {
            let found = names.first().cloned().unwrap_or_default();
            let known = names.get(1..).unwrap_or_default();
            let likely = nearest(&found, known.iter().map(String::as_str), MIN_SIMILARITY);
            wrong_value(
                location,
                keys,
                format!("unknown value {}{}", quoted(&found), hint(likely, known, quoted)),
            )
        }
        Kind::WrongType { found, expected } => {
            wrong_value(location, keys, format!("expected {expected}, found {found}"))
        }
        Kind::Other => wrong_value(location, keys, error.message().to_owned()),
    }
}

/// Explains an error in a section that the file does not have. Such a section is read as an empty one.
pub(super) fn explain_absent(error: &toml::de::Error, section: &str, path: Option<&Path>) -> ConfigError {
    let location = Location::of("", 0, path);
    let Message { kind, names } = Message::new(error.message());
    match kind {
        Kind::MissingField => {
            let key = names.into_iter().next().unwrap_or_default();
            ConfigError::MissingKey { location, key, section: section.to_owned() }
        }
        _ => wrong_value(location, vec![section.to_owned()], error.message().to_owned()),
    }
}

fn wrong_value(location: Location, mut keys: Vec<String>, problem: String) -> ConfigError {
    let key = keys.pop().unwrap_or_default();
    ConfigError::WrongValue { location, key, section: keys.join("."), problem }
}

/// Returns the keys that lead to the key or value at `offset`, outermost first, and whether the last of them
/// names a table.
fn keys_at(table: &DeTable<'_>, offset: usize) -> (Vec<String>, bool) {
    // The span of a table is its header, such as `[a.b]` for `b`. The span includes the keys in the header,
    // so keys are searched before values. It does not include the content of the table, so every table is
    // searched.
    if let Some((key, value)) = table.iter().find(|(key, _)| key.span().contains(&offset)) {
        return (vec![key.get_ref().to_string()], value.get_ref().is_table());
    }
    for (key, value) in table {
        if let Some(inner) = value.get_ref().as_table() {
            let (mut keys, is_table) = keys_at(inner, offset);
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

/// An unknown key whose location is not in serde's error. For an enum with `#[serde(tag = "...")]`, serde
/// reads the whole table first, and its errors then have the location of the table.
struct UnlocatedKey<'a> {
    key: &'a str,
    /// The keys that the key's table may have.
    known: &'a [String],
}

/// The location of a key.
struct LocatedKey {
    /// The keys that lead to the key, outermost first; the last one is the key itself.
    keys: Vec<String>,
    offset: usize,
    is_table: bool,
    /// Number of known keys in the same table.
    known_keys: usize,
}

impl UnlocatedKey<'_> {
    /// Finds the key in the table to which `keys` lead, or in a table inside that table. If several tables
    /// have the key, returns its location in the table with the most known keys.
    fn find(&self, document: &DeTable<'_>, keys: &[String]) -> Option<LocatedKey> {
        let mut table = document;
        for key in keys {
            table = table.get(key.as_str())?.get_ref().as_table()?;
        }
        self.find_in(table, keys)
    }

    fn find_in(&self, table: &DeTable<'_>, keys: &[String]) -> Option<LocatedKey> {
        let here = table.get_key_value(self.key).map(|(key, value)| LocatedKey {
            keys: [keys, &[self.key.to_owned()]].concat(),
            offset: key.span().start,
            is_table: value.get_ref().is_table(),
            known_keys: table
                .keys()
                .filter(|key| self.known.iter().any(|known| known == key.get_ref()))
                .count(),
        });
        let inside = table.iter().flat_map(|(key, value)| {
            let keys = [keys, &[key.get_ref().to_string()]].concat();
            tables_of(value.get_ref()).filter_map(move |table| self.find_in(table, &keys))
        });
        here.into_iter().chain(inside).max_by_key(|found| found.known_keys)
    }
}

/// Returns the table that `value` is, or the tables in an array.
fn tables_of<'a, 'i>(value: &'a DeValue<'i>) -> impl Iterator<Item = &'a DeTable<'i>> {
    let items = value.as_array().into_iter().flatten();
    value.as_table().into_iter().chain(items.filter_map(|item| item.get_ref().as_table()))
}

/// A parsed error message of serde. Implementations of `Deserialize` report their errors only as text.
struct Message {
    kind: Kind,
    /// The names in backquotes, in order.
    names: Vec<String>,
}

enum Kind {
    UnknownField,
    UnknownVariant,
    MissingField,
    WrongType { found: String, expected: String },
    Other,
}

impl Message {
    fn new(message: &str) -> Self {
        let starts = |start: &str| message.starts_with(start);
        let kind = if starts("unknown field `") {
            Kind::UnknownField
        } else if starts("unknown variant `") {
            Kind::UnknownVariant
        } else if starts("missing field `") {
            Kind::MissingField
        } else if let Some((found, expected)) = wrong_type(message) {
            Kind::WrongType { found: in_words(found), expected: in_words(expected) }
        } else {
            Kind::Other
        };
        let names = message.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Self { kind, names }
    }
}

fn wrong_type(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

/// Describes a type, as serde names it, in words for users of config files.
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
