//! Turns errors of the TOML reader into errors that name the key, the line and the nearest known key.

use toml::de::DeTable;

use super::{
    document::{Document, EXTENDS},
    error::{ConfigError, Location, UnknownKey, hint, quoted},
    nearest, option_names,
    search::{Search, Step, section_of},
};

/// Minimum similarity at which a hint names a known key. The minimum is lower than for environment variables:
/// an unknown key is an error with or without a hint, so a wrong hint does little harm.
const MIN_SIMILARITY: f64 = 0.7;

/// Explains an error from reading `document`. `read` reads a changed document, and returns the message of its
/// error.
pub(super) fn explain(
    error: &toml::de::Error,
    document: &Document<'_>,
    read: impl Fn(toml::Table) -> Option<String>,
) -> ConfigError {
    let offset = error.span().unwrap_or(0..0).start;
    let (keys, is_table) = keys_at(&document.table, offset);
    let mut path: Vec<Step> = keys.into_iter().map(Step::Key).collect();
    let mut location = document.location(offset);
    let message = Message::new(error.message());
    if is_table || path.is_empty() {
        let found = Search::new(&document.table, read).and_then(|search| match &message.kind {
            Kind::UnknownField => search.unknown_key(&path, message.names.first()?),
            Kind::MissingField => search.table_without(&path, message.names.first()?),
            _ => search.wrong_value(&path),
        });
        if let Some(found) = found {
            location = document.location_of(&found).unwrap_or(location);
            path = found;
        }
    }
    message.into_error(location, &path, is_table)
}

/// Explains an error in a section that the document does not have. Such a section is read as an empty one.
pub(super) fn explain_absent(error: &toml::de::Error, section: &str, document: &Document<'_>) -> ConfigError {
    let path = [Step::Key(section.to_owned())];
    Message::new(error.message()).into_error(document.location(0), &path, false)
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
    Other(String),
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
            Kind::Other(message.to_owned())
        };
        let names = message.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Self { kind, names }
    }

    /// Makes the error about the key to which `path` leads, or about a key that is missing in the table
    /// there.
    fn into_error(self, location: Location, path: &[Step], is_table: bool) -> ConfigError {
        let mut names = self.names.into_iter();
        let first = names.next().unwrap_or_default();
        let mut known: Vec<String> = names.collect();
        let is_unknown_outside = matches!(self.kind, Kind::UnknownField) && path.len() == 1;
        if is_unknown_outside && !is_table {
            known.push(EXTENDS.to_owned());
        }
        let likely = nearest(&first, known.iter().map(String::as_str), MIN_SIMILARITY);
        let problem = match self.kind {
            Kind::UnknownField => {
                let section = section_of(&path[..path.len().saturating_sub(1)]);
                let is_option = is_unknown_outside && option_names().any(|name| name == first);
                let nearest =
                    if is_option { Some(format!("loader.{first}")) } else { likely.map(str::to_owned) };
                let is_section = is_unknown_outside && is_table;
                let unknown = UnknownKey { location, key: first, section, is_section, nearest, known };
                return ConfigError::UnknownKey(Box::new(unknown));
            }
            Kind::MissingField => {
                return ConfigError::MissingKey { location, key: first, section: section_of(path) };
            }
            Kind::UnknownVariant => {
                format!("unknown value {}{}", quoted(&first), hint(likely, &known, quoted))
            }
            Kind::WrongType { found, expected } => format!("expected {expected}, found {found}"),
            Kind::Other(message) => message,
        };
        let (key, section) = match path {
            [section @ .., Step::Key(key)] => (key.clone(), section_of(section)),
            _ => (String::new(), section_of(path)),
        };
        ConfigError::WrongValue { location, key, section, problem }
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
        "path string" => "a path".to_owned(),
        "sequence" => "an array".to_owned(),
        _ if kind.starts_with("struct ") => "a section".to_owned(),
        _ => kind.to_owned(),
    }
}
