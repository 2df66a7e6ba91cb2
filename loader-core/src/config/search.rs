//! Finds the key that an error is about where serde's error does not say it.
//!
//! For an enum with `#[serde(tag = "...")]` and for a struct with flattened fields, serde reads the whole
//! table first, and its errors have the location of that table. To find the key, the search changes one key
//! after the other, and reads the document again: the key whose change gives another error is the one.

use toml::{Table, Value, de::DeTable};

/// A step from a table or an array to a value in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// Returns the name of the table to which `path` leads, such as `dataset.parts`, without the numbers of
/// items.
pub(super) fn section_of(path: &[Step]) -> String {
    let keys: Vec<&str> = path
        .iter()
        .filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        })
        .collect();
    keys.join(".")
}

pub(super) struct Search<R> {
    document: Value,
    /// Reads a document, and returns the message of the error.
    read: R,
    /// The message for `document`.
    message: String,
}

impl<R: Fn(Table) -> Option<String>> Search<R> {
    /// Returns `None` if the error does not occur again.
    pub(super) fn new(document: &DeTable<'_>, read: R) -> Option<Self> {
        let document = plain(document);
        let message = read(document.clone())?;
        Some(Self { document: Value::Table(document), read, message })
    }

    /// Returns the path of the unknown key `name` in the table at `within`.
    pub(super) fn unknown_key(&self, within: &[Step], name: &str) -> Option<Vec<Step>> {
        let mut paths = self.paths_in(within);
        paths.retain(|path| path.last() == Some(&Step::Key(name.to_owned())));
        // If several tables have this unknown key, no removal of one changes the message.
        let found = paths.iter().position(|path| !self.is_error(&self.without(path)));
        (!paths.is_empty()).then(|| paths.swap_remove(found.unwrap_or(0)))
    }

    /// Returns the path of the value in the table at `within` that is wrong.
    pub(super) fn wrong_value(&self, within: &[Step]) -> Option<Vec<Step>> {
        let score = |path: &[Step]| {
            let after = self.without(path);
            // Without the key of a tag, the error is another one too, whatever is wrong.
            let is_required = after.as_ref().is_some_and(|message| message.starts_with("missing field"));
            let is_named = at(&self.document, path).is_some_and(|value| shows(&self.message, value));
            if self.is_error(&after) { 0 } else { 2 * u8::from(is_named) + u8::from(!is_required) }
        };
        let mut best = (0, None);
        for path in self.paths_in(within) {
            let score = score(&path);
            if score > best.0 {
                best = (score, Some(path));
            }
        }
        best.1
    }

    /// Returns the path of the table, at `within` or in it, in which the required key `name` is missing.
    pub(super) fn table_without(&self, within: &[Step], name: &str) -> Option<Vec<Step>> {
        let unknown = format!("unknown field `{name}`");
        let mut paths = self.paths_in(within);
        paths.push(within.to_vec());
        paths.into_iter().rev().find(|path| {
            let mut document = self.document.clone();
            let Some(Value::Table(table)) = at_mut(&mut document, path) else { return false };
            if table.contains_key(name) {
                return false;
            }
            table.insert(name.to_owned(), Value::String(String::new()));
            let after = self.read(document);
            !self.is_error(&after) && !after.is_some_and(|message| message.starts_with(&unknown))
        })
    }

    /// Returns the paths of all values in the table at `within`; those in a value come before it.
    fn paths_in(&self, within: &[Step]) -> Vec<Vec<Step>> {
        let mut paths = Vec::new();
        if let Some(value) = at(&self.document, within) {
            add_paths(value, within, &mut paths);
        }
        paths
    }

    fn is_error(&self, message: &Option<String>) -> bool {
        message.as_ref() == Some(&self.message)
    }

    fn without(&self, path: &[Step]) -> Option<String> {
        let mut document = self.document.clone();
        if let Some((last, outer)) = path.split_last() {
            match (at_mut(&mut document, outer), last) {
                (Some(Value::Table(table)), Step::Key(key)) => drop(table.remove(key)),
                (Some(Value::Array(items)), Step::Index(index)) => drop(items.remove(*index)),
                _ => {}
            }
        }
        self.read(document)
    }

    fn read(&self, document: Value) -> Option<String> {
        match document {
            Value::Table(table) => (self.read)(table),
            _ => None,
        }
    }
}

fn plain(document: &DeTable<'_>) -> Table {
    use serde::Deserialize;

    let root = toml::Spanned::new(0..0, document.clone());
    // Every TOML document is a table of values, except for numbers of more than 64 bits.
    Table::deserialize(toml::Deserializer::from(root)).unwrap_or_default()
}

/// True if serde's `message` shows `value`, or one of its items, as what was found.
fn shows(message: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => {
            message.contains(&format!("string {text:?}")) || message.contains(&format!("`{text}`"))
        }
        Value::Integer(number) => message.contains(&format!("integer `{number}`")),
        Value::Float(number) => message.contains(&format!("floating point `{number:?}`")),
        Value::Boolean(value) => message.contains(&format!("boolean `{value}`")),
        Value::Datetime(_) => message.contains("datetime"),
        Value::Array(items) => {
            message.contains(": sequence,") || items.iter().any(|item| shows(message, item))
        }
        Value::Table(_) => message.contains(": map,"),
    }
}

fn at<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(*index),
    })
}

fn at_mut<'a>(value: &'a mut Value, path: &[Step]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(*index),
    })
}

fn add_paths(value: &Value, path: &[Step], paths: &mut Vec<Vec<Step>>) {
    let mut add = |value: &Value, step: Step| {
        let path = [path, &[step]].concat();
        add_paths(value, &path, paths);
        paths.push(path);
    };
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                add(value, Step::Key(key.clone()));
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                // Other items are part of the value of the array.
                if value.is_table() {
                    add(value, Step::Index(index));
                }
            }
        }
        _ => {}
    }
}
