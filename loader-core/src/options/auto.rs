//! Options whose value is a number or `auto`: the loader then finds the number while batches are loaded.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::info::{OptionKind, ParseOptionError};

/// Number of worker processes; [`Fixed(0)`](Self::Fixed) by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumWorkers {
    /// This many workers. 0 loads in the main process.
    Fixed(usize),
    /// The loader finds the number while batches are loaded.
    Auto(AutoWorkers),
}

/// How the loader finds the number of workers; see [`NumWorkers::Auto`].
///
/// The loader begins with one worker less than the number of CPUs for the workers (by their
/// [affinity](crate::WorkerAffinity), the control group's quota, and the number of the launcher's processes
/// on this machine), within `min` and `max`. It then adds workers while it predicts that the program gets
/// batches sooner, and parks workers that are not needed. The batches stay the same, and so does their order
/// unless `in_order` is false.
///
/// [`EpochReport::tuning`](crate::EpochReport::tuning) lists the decisions.
/// [`WorkerInfo::num_workers`](crate::WorkerInfo::num_workers) returns `max`.
///
/// # Examples
/// ```
/// use loader_core::{AutoWorkers, LoaderOptions};
///
/// let options = LoaderOptions::default().num_workers(AutoWorkers::default().max(8));
/// assert_eq!(options, LoaderOptions::default().num_workers("auto:1-8".parse::<loader_core::NumWorkers>()?));
/// # Ok::<(), loader_core::ParseOptionError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AutoWorkers {
    /// Minimum number of workers, at least 1; 1 by default.
    pub min: usize,
    /// Maximum number of workers, at most 4096. By default four workers per CPU, at least 16 and at most 62,
    /// for which one page of counters has room. For an iterable dataset it is also the default number of
    /// shards, which determines the order of the batches: set `max` or `shards` if the order must not depend
    /// on the machine. If neither `max` nor `shards` is set, `build()` warns; for one of several ranks it
    /// returns an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// True to keep the number once it was found; false, the default, to search again when the load changes.
    pub freeze: bool,
}

impl AutoWorkers {
    /// Sets [`min`](#structfield.min).
    #[must_use]
    pub fn min(self, min: usize) -> Self {
        Self { min, ..self }
    }

    /// Sets [`max`](#structfield.max).
    #[must_use]
    pub fn max(self, max: usize) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Sets [`freeze`](#structfield.freeze).
    #[must_use]
    pub fn freeze(self, freeze: bool) -> Self {
        Self { freeze, ..self }
    }

    /// Returns the maximum for workers that may use `cpus` CPUs. It is at least `min` if it is the default.
    pub(crate) fn resolved_max(self, cpus: usize) -> usize {
        self.max.unwrap_or_else(|| (4 * cpus).clamp(16, 62).max(self.min))
    }

    /// Returns the number of workers with which the loader begins.
    pub(crate) fn first(self, cpus: usize) -> usize {
        cpus.saturating_sub(1).min(self.resolved_max(cpus)).max(self.min)
    }
}

impl Default for AutoWorkers {
    fn default() -> Self {
        Self { min: 1, max: None, freeze: false }
    }
}

impl NumWorkers {
    /// Returns [`Auto`](Self::Auto) with the default bounds.
    pub fn auto() -> Self {
        Self::Auto(AutoWorkers::default())
    }
}

impl Default for NumWorkers {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl From<usize> for NumWorkers {
    fn from(count: usize) -> Self {
        Self::Fixed(count)
    }
}

impl From<AutoWorkers> for NumWorkers {
    fn from(auto: AutoWorkers) -> Self {
        Self::Auto(auto)
    }
}

/// Number of batches that are loaded ahead per worker; [`Fixed(2)`](Self::Fixed) by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchFactor {
    /// This many batches.
    Fixed(usize),
    /// The loader chooses from 2 to 16 batches: more if some batches take much longer than others, and never
    /// more than `shared_memory_limit` allows.
    Auto,
}

impl Default for PrefetchFactor {
    fn default() -> Self {
        Self::Fixed(2)
    }
}

impl From<usize> for PrefetchFactor {
    fn from(count: usize) -> Self {
        Self::Fixed(count)
    }
}

impl FromStr for NumWorkers {
    type Err = ParseOptionError;

    /// Parses a number, `auto`, `auto:MIN-MAX` or `auto:MIN-`; the last three may end with `:freeze`.
    fn from_str(text: &str) -> Result<Self, ParseOptionError> {
        let parsed = match text.strip_prefix("auto") {
            None => text.parse().ok().map(Self::Fixed),
            Some(bounds) => auto_workers(bounds).map(Self::Auto),
        };
        parsed.ok_or_else(|| ParseOptionError::new(text, OptionKind::NumWorkers))
    }
}

fn auto_workers(bounds: &str) -> Option<AutoWorkers> {
    let (bounds, freeze) = bounds.strip_suffix(":freeze").map_or((bounds, false), |bounds| (bounds, true));
    let auto = AutoWorkers::default().freeze(freeze);
    if bounds.is_empty() {
        return Some(auto);
    }
    let (min, max) = bounds.strip_prefix(':')?.split_once('-')?;
    let max = (!max.is_empty()).then(|| max.parse()).transpose().ok()?;
    Some(AutoWorkers { min: min.parse().ok()?, max, ..auto })
}

impl fmt::Display for NumWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let auto = match self {
            Self::Fixed(count) => return count.fmt(f),
            Self::Auto(auto) => auto,
        };
        f.write_str("auto")?;
        if (auto.min, auto.max) != (1, None) {
            write!(f, ":{}-", auto.min)?;
            auto.max.map_or(Ok(()), |max| write!(f, "{max}"))?;
        }
        f.write_str(if auto.freeze { ":freeze" } else { "" })
    }
}

impl FromStr for PrefetchFactor {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, ParseOptionError> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => {
                let wrong = |_| ParseOptionError::new(text, OptionKind::NumberOrAuto);
                text.parse().map(Self::Fixed).map_err(wrong)
            }
        }
    }
}

impl fmt::Display for PrefetchFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(count) => count.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for NumWorkers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Table {
            auto: AutoWorkers,
        }
        match *self {
            Self::Fixed(count) => count.serialize(serializer),
            Self::Auto(auto) if auto == AutoWorkers::default() => serializer.serialize_str("auto"),
            Self::Auto(auto) => Table { auto }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for NumWorkers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumWorkersVisitor)
    }
}

impl Serialize for PrefetchFactor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(count) => count.serialize(serializer),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for PrefetchFactor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PrefetchFactorVisitor)
    }
}

/// Implements the methods of a visitor for the numbers and texts that a type is parsed from.
macro_rules! visit_numbers_and_texts {
    ($type:ident) => {
        type Value = $type;

        fn visit_i64<E: de::Error>(self, count: i64) -> Result<$type, E> {
            let wrong = || E::invalid_value(de::Unexpected::Signed(count), &self);
            usize::try_from(count).map($type::Fixed).map_err(|_| wrong())
        }

        fn visit_u64<E: de::Error>(self, count: u64) -> Result<$type, E> {
            let wrong = || E::invalid_value(de::Unexpected::Unsigned(count), &self);
            usize::try_from(count).map($type::Fixed).map_err(|_| wrong())
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
            // A number is not written in quotes.
            let parsed = text.parse().ok().filter(|parsed| !matches!(parsed, $type::Fixed(_)));
            parsed.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    };
}

struct NumWorkersVisitor;

impl<'de> de::Visitor<'de> for NumWorkersVisitor {
    visit_numbers_and_texts!(NumWorkers);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of workers, \"auto\" or { auto = { min = 1, max = 8 } }")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut table: A) -> Result<NumWorkers, A::Error> {
        let mut auto = None;
        while let Some(key) = table.next_key::<String>()? {
            if key != "auto" {
                return Err(de::Error::unknown_field(&key, &["auto"]));
            }
            auto = Some(table.next_value()?);
        }
        auto.map(NumWorkers::Auto).ok_or_else(|| de::Error::missing_field("auto"))
    }
}

struct PrefetchFactorVisitor;

impl de::Visitor<'_> for PrefetchFactorVisitor {
    visit_numbers_and_texts!(PrefetchFactor);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of batches or \"auto\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_workers_is_read_as_it_is_written() {
        let auto = AutoWorkers::default();
        for (text, expected) in [
            ("3", NumWorkers::Fixed(3)),
            ("auto", NumWorkers::auto()),
            ("auto:freeze", auto.freeze(true).into()),
            ("auto:2-", auto.min(2).into()),
            ("auto:2-8", auto.min(2).max(8).into()),
            ("auto:1-8:freeze", auto.max(8).freeze(true).into()),
        ] {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "-1", "auto:", "auto8", "auto:8", "auto:-8", "auto:1-8:", "auto:1-x", "Auto"] {
            assert_eq!(text.parse::<NumWorkers>().ok(), None, "{text}");
        }
        assert_eq!("auto".parse(), Ok(PrefetchFactor::Auto));
        assert_eq!("7".parse::<PrefetchFactor>().unwrap().to_string(), "7");
    }

    #[test]
    fn the_bounds_hold_for_the_first_number_of_workers() {
        let auto = AutoWorkers::default();
        assert_eq!([1, 8, 200].map(|cpus| auto.first(cpus)), [1, 7, 62]);
        assert_eq!((auto.min(100).first(8), auto.max(1).first(8)), (100, 1));
        assert_eq!((auto.resolved_max(8), auto.min(100).resolved_max(8)), (32, 100));
    }
}
