//! What can be wrong with a config.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why a config cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("{place}: not TOML: {problem}")]
    NotToml {
        /// Where.
        place: Place,
        /// What the parser said.
        problem: String,
    },
    /// A key, or a section, that nobody knows.
    #[error("{0}")]
    UnknownKey(Box<UnknownKey>),
    /// A value of the wrong type, or out of the type's bounds.
    #[error("{place}: {}: {problem}", name(key, section))]
    WrongValue {
        /// Where.
        place: Place,
        /// The key; empty where there is none to name.
        key: String,
        /// The section it is in; empty outside all sections.
        section: String,
        /// What was expected, and what was found.
        problem: String,
    },
    /// A key that must be there is not.
    #[error("{place}: {} is missing{}", quoted(key), within(section))]
    MissingKey {
        /// Where: the section's first line, or line 1 if there is no such section.
        place: Place,
        /// The key.
        key: String,
        /// The section it belongs in; empty outside all sections.
        section: String,
    },
    /// An environment variable has a value that cannot be read.
    #[error("the environment variable {name} is `{value}`; expected {expected}")]
    WrongVariable {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// An environment variable has a name that is almost one of the loader's.
    #[error("unknown environment variable {name}; did you mean {nearest}?")]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The known variable that is most like it.
        nearest: String,
    },
}

/// A key, or a section, that nobody knows.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnknownKey {
    /// Where.
    pub place: Place,
    /// The key, or the name of the section.
    pub key: String,
    /// The section that the key is in, such as `loader`; empty outside all sections.
    pub section: String,
    /// True when `key` is itself a section.
    pub is_section: bool,
    /// The known key that is most like it.
    pub nearest: Option<String>,
    /// All keys that are known there.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, key, section, is_section, nearest, known } = self;
        let nearest = nearest.as_deref();
        if *is_section {
            let bracketed = |name: &str| format!("[{}]", name.escape_debug());
            return write!(
                f,
                "{place}: unknown section {}{}",
                bracketed(key),
                hint(nearest, known, bracketed)
            );
        }
        write!(f, "{place}: unknown key {}{}{}", quoted(key), within(section), hint(nearest, known, quoted))
    }
}

/// A line in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The file; `None` for a text that came from elsewhere.
    pub path: Option<PathBuf>,
    /// The line, from 1.
    pub line: usize,
}

impl Place {
    /// The line of `text` that the byte at `offset` is in.
    pub(super) fn of(text: &str, offset: usize, path: Option<&Path>) -> Self {
        let before = text.bytes().take(offset);
        let line = 1 + before.filter(|&byte| byte == b'\n').count();
        Self { path: path.map(Path::to_owned), line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}, ", path.display())?;
        }
        write!(f, "line {}", self.line)
    }
}

/// "; did you mean ...?", or the list of what there is.
pub(super) fn hint(nearest: Option<&str>, known: &[String], quote: impl Fn(&str) -> String) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {}?", quote(nearest)),
        None if known.is_empty() => String::new(),
        None => {
            let known: Vec<_> = known.iter().map(|name| quote(name)).collect();
            format!("; there are {}", known.join(", "))
        }
    }
}

pub(super) fn quoted(key: &str) -> String {
    // A quoted key may contain anything, and the message is one line.
    format!("`{}`", key.escape_debug())
}

fn name(key: &str, section: &str) -> String {
    if key.is_empty() { "the file".to_owned() } else { format!("{}{}", quoted(key), within(section)) }
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in [{}]", section.escape_debug()) }
}
