//! Describes an option: its names, its kind, its default and its help.

use std::{borrow::Borrow, fmt};

use super::{LoaderOptions, units::Measured};

/// An option of the loader: its names in config files, environment variables and command lines, and how its
/// values are written there. [`OptionInfo::ALL`] has one for each field of [`LoaderOptions`].
///
/// # Examples
/// A command line that has every option of the loader:
/// ```
/// use loader_core::{LoaderOptions, OptionInfo};
///
/// let mut options = LoaderOptions::default();
/// for argument in ["--batch-size=64", "--timeout=2.5"] {
///     let (flag, value) = argument.trim_start_matches('-').split_once('=').unwrap();
///     let option = OptionInfo::ALL.iter().find(|option| option.flag() == flag).unwrap();
///     option.set(&mut options, value)?;
/// }
/// assert_eq!(options.batch_size, Some(64));
/// # Ok::<(), loader_core::ParseOptionError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OptionInfo {
    pub(super) name: &'static str,
    pub(super) kind: OptionKind,
    pub(super) bounds: &'static str,
    pub(super) help: &'static str,
    /// Default in words, for an option without a default value; otherwise empty.
    pub(super) default_note: &'static str,
    pub(super) without_workers: WithoutWorkers,
    pub(super) set: fn(&mut LoaderOptions, &str) -> Option<()>,
    pub(super) get: fn(&LoaderOptions) -> Option<String>,
    /// If the option is `None` in the first options, takes it from the second ones.
    pub(super) inherit: fn(&mut LoaderOptions, &LoaderOptions),
}

/// What becomes of an option if the loader has no workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutWorkers {
    /// It has an effect.
    Used,
    /// It has no effect.
    Ignored,
    /// `build()` returns an error if it is set.
    Invalid,
}

impl OptionInfo {
    /// Name of the option: of the field of [`LoaderOptions`] and of the key in a config file.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Name of the environment variable, such as `LOADER_BATCH_SIZE`.
    pub fn variable(&self) -> String {
        format!("LOADER_{}", self.name.to_uppercase())
    }

    /// Name on a command line, without dashes before it, such as `batch-size`.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Kind of the option's values.
    pub fn kind(&self) -> OptionKind {
        self.kind
    }

    /// Bounds of the option's values in words; empty if it has none.
    pub fn bounds(&self) -> &'static str {
        self.bounds
    }

    /// One line for the help of a command.
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// Default as text; `None` if the option is off by default.
    pub fn default_text(&self) -> Option<String> {
        match self.default_note {
            "" => (self.get)(&LoaderOptions::DEFAULTS),
            note => Some(note.to_owned()),
        }
    }

    /// True if the default is a value; false if it depends on the machine or on other options, or if there is
    /// none.
    pub fn has_default_value(&self) -> bool {
        (self.get)(&LoaderOptions::DEFAULTS).is_some()
    }

    /// True if `build()` returns an error when the option is set and the loader has no workers.
    pub fn needs_workers(&self) -> bool {
        self.without_workers == WithoutWorkers::Invalid
    }

    /// Sets the option in `options` to the value that `text` stands for.
    ///
    /// Texts are written as in TOML, but strings without quotes and numbers without underscores. `1` and `0`
    /// also stand for true and false. Sizes and times may have [a unit](OptionKind::units), as in `2 GiB`.
    ///
    /// # Errors
    /// [`ParseOptionError`] if the text is not a value of the option's kind. `options` is unchanged.
    pub fn set(&self, options: &mut LoaderOptions, text: &str) -> Result<(), ParseOptionError> {
        let is_set = match self.kind {
            // The fields are of type `u64`, whose texts have no unit.
            OptionKind::Bytes => {
                <u64 as Measured>::from_text(text).and_then(|bytes| (self.set)(options, &bytes.to_string()))
            }
            _ => (self.set)(options, text),
        };
        is_set.ok_or_else(|| ParseOptionError::new(text, self.kind))
    }

    /// Returns the option's value in `options` as text; `None` if it is not set.
    pub fn get(&self, options: &LoaderOptions) -> Option<String> {
        (self.get)(options)
    }
}

/// Kind of an option's values. `Display` describes the values in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionKind {
    /// True or false.
    Switch,
    /// A whole number from 0.
    Number,
    /// A number of bytes, or a text with a unit, such as `2 GiB`.
    Bytes,
    /// A number of seconds from 0, which may have a fraction, or a text with a unit, such as `5 min`.
    Seconds,
    /// A number of workers, `auto`, `auto:MIN-MAX` or `auto:MIN-`; the last three may end with `:freeze`.
    NumWorkers,
    /// A whole number from 0, or `auto`.
    NumberOrAuto,
    /// A path.
    Path,
    /// An IP address with a port, such as `127.0.0.1:9100`.
    Address,
    /// `inherit`, `share`, `spread`, `pack`, or sets of CPUs with a space between them, such as `0-3 4-7`.
    Affinity,
    /// One of these names.
    Choice(&'static [&'static str]),
}

impl OptionKind {
    /// Placeholder of the value in the usage of a command, such as `N` or `native|torch`.
    pub fn value_name(self) -> String {
        match self {
            Self::Switch => "BOOL".to_owned(),
            Self::Number => "N".to_owned(),
            Self::Bytes => "SIZE".to_owned(),
            Self::Seconds => "TIME".to_owned(),
            Self::NumWorkers => "N|auto[:MIN-MAX]".to_owned(),
            Self::NumberOrAuto => "N|auto".to_owned(),
            Self::Path => "FILE".to_owned(),
            Self::Address => "ADDRESS:PORT".to_owned(),
            Self::Affinity => "inherit|share|spread|pack|CPUS".to_owned(),
            Self::Choice(names) => names.join("|"),
        }
    }

    fn listed_units(self) -> String {
        listed(&self.units(), "or")
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "true or false",
            Self::Number => "a whole number from 0",
            Self::Bytes => {
                return write!(f, "a number of bytes, optionally with a unit ({})", self.listed_units());
            }
            Self::Seconds => {
                return write!(
                    f,
                    "a number of seconds from 0, optionally with a unit ({})",
                    self.listed_units()
                );
            }
            Self::NumWorkers => "a number of workers, auto, or auto:MIN-MAX",
            Self::NumberOrAuto => "a whole number from 0 or auto",
            Self::Path => "a path",
            Self::Address => "an IP address with a port, such as 127.0.0.1:9100",
            Self::Affinity => "inherit, share, spread, pack, or sets of CPUs such as 0-3 4-7",
            Self::Choice(names) => return f.write_str(&listed(names, "or")),
        })
    }
}

/// A text that is not a value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseOptionError {
    text: String,
    kind: OptionKind,
}

impl ParseOptionError {
    pub(super) fn new(text: &str, kind: OptionKind) -> Self {
        Self { text: text.to_owned(), kind }
    }

    /// Kind of the values that the option has.
    pub fn expected(&self) -> OptionKind {
        self.kind
    }
}

impl fmt::Display for ParseOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, kind } = self;
        match kind {
            OptionKind::Choice([first, second]) => write!(f, "`{text}` is neither {first:?} nor {second:?}"),
            OptionKind::Choice(names) => {
                let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
                write!(f, "`{text}` is not one of {}", listed(&names, "and"))
            }
            OptionKind::NumWorkers => {
                write!(f, "`{text}` is not a number of workers, \"auto\" or \"auto:MIN-MAX\"")
            }
            _ => write!(f, "`{text}` is not {kind}"),
        }
    }
}

impl std::error::Error for ParseOptionError {}

/// Joins words as in "a, b or c".
pub(crate) fn listed(words: &[impl Borrow<str> + fmt::Display], conjunction: &str) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} {conjunction} {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
