//! The errors of configs.

use std::{fmt, io, path::PathBuf};

use crate::text::printable::printable;

/// An error of a config file or of an environment variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}{}", printable(path.display()), extending(chain, "; "))]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
        /// The configs that extend each other, up to this file; it is the only one if no other extends it.
        chain: Vec<PathBuf>,
    },
    /// A config and the configs that it extends are too large.
    #[error(
        "{}: is too large: a config and the configs that it extends may have at most {} MiB together; check the path, or \
         shorten them{}",
        printable(path.display()), max >> 20, extending(chain, "; ")
    )]
    TooLarge {
        /// Path of the file that goes beyond the limit.
        path: PathBuf,
        /// Maximum number of bytes of all files.
        max: u64,
        /// The configs that extend each other, up to this file; it is the only one if no other extends it.
        chain: Vec<PathBuf>,
    },
    /// A config extends itself, maybe through others.
    #[error("configs extend each other in a cycle: {}; remove one `extends`", extending(chain, ""))]
    ExtendsCycle {
        /// The configs. Each extends the next one, and the last one is also an earlier one.
        chain: Vec<PathBuf>,
    },
    /// A config extends another one, which extends a third one, and so on, through too many files.
    #[error("{location}: `extends` is one too many: a config may be made of {max} files; merge some of them")]
    TooManyExtended {
        /// Line of the `extends` in the last file that was read.
        location: Location,
        /// Maximum number of files.
        max: usize,
    },
    /// The text is not TOML.
    #[error("{location}: not TOML: {problem}")]
    NotToml {
        /// Line of the error.
        location: Location,
        /// Message of the parser.
        problem: String,
    },
    /// A key or a section is unknown.
    #[error("{0}")]
    UnknownKey(Box<UnknownKey>),
    /// A value has the wrong type, or is out of the type's bounds.
    #[error("{location}: {}: {problem}", name(key, section))]
    WrongValue {
        /// Line of the value.
        location: Location,
        /// The key; empty if the error is not about a key.
        key: String,
        /// The section that the key is in; empty outside all sections.
        section: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// A required key is missing.
    #[error("{location}: {} is missing{}", quoted(key), within(section))]
    MissingKey {
        /// First line of the section, or line 1 if the section is missing.
        location: Location,
        /// The key.
        key: String,
        /// The section that the key belongs to; empty outside all sections.
        section: String,
    },
    /// The value of an environment variable cannot be read.
    #[error("the environment variable {name} is `{value}`; expected {expected}")]
    WrongVariable {
        /// Name of the variable.
        name: String,
        /// Its value.
        value: String,
        /// What was expected.
        expected: String,
    },
    /// The name of an environment variable is almost that of an option.
    #[error("unknown environment variable {name}; did you mean {nearest}?")]
    UnknownVariable {
        /// Name of the variable.
        name: String,
        /// The most similar known variable.
        nearest: String,
    },
}

/// An unknown key or section.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnknownKey {
    /// Line of the key.
    pub location: Location,
    /// The key, or the name of the section.
    pub key: String,
    /// The section that the key is in, such as `loader`; empty outside all sections.
    pub section: String,
    /// True if `key` is the name of a section.
    pub is_section: bool,
    /// The most similar known key, if there is a similar one.
    pub nearest: Option<String>,
    /// All keys that are known in the section.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, key, section, is_section, nearest, known } = self;
        let nearest = nearest.as_deref();
        if *is_section {
            let bracketed = |name: &str| format!("[{}]", printable(name));
            let hint = hint(nearest, known, bracketed);
            return write!(f, "{location}: unknown section {}{hint}", bracketed(key));
        }
        let hint = hint(nearest, known, quoted);
        write!(f, "{location}: unknown key {}{}{hint}", quoted(key), within(section))
    }
}

/// A line in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location {
    /// Path of the file; `None` for a text that was not read from a file.
    pub path: Option<PathBuf>,
    /// Number of the line, from 1.
    pub line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}, ", printable(path.display()))?;
        }
        write!(f, "line {}", self.line)
    }
}

/// "; did you mean ...?" if there is a nearest name, or else the list of known names.
pub(super) fn hint(nearest: Option<&str>, known: &[String], quote: impl Fn(&str) -> String) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {}?", quote(nearest)),
        None if known.is_empty() => String::new(),
        None => {
            let known: Vec<_> = known.iter().map(|name| quote(name)).collect();
            format!("; expected one of {}", known.join(", "))
        }
    }
}

/// "; a.toml extends b.toml, which extends c.toml", if the chain has several files and `before` is "; ".
fn extending(chain: &[PathBuf], before: &str) -> String {
    let names: Vec<String> = chain.iter().map(|path| printable(path.display())).collect();
    match &names[..] {
        [first, rest @ ..] if !rest.is_empty() => {
            format!("{before}{first} extends {}", rest.join(", which extends "))
        }
        _ => String::new(),
    }
}

pub(super) fn quoted(key: &str) -> String {
    format!("`{}`", printable(key))
}

fn name(key: &str, section: &str) -> String {
    if key.is_empty() { "the file".to_owned() } else { format!("{}{}", quoted(key), within(section)) }
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in [{}]", printable(section)) }
}
