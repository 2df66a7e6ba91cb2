//! Moves the keys of the sections that divide `[loader]` and `[dataset]` into these two, so that the code after it
//! reads two sections only.
//!
//! Alternative considered: one struct per section in [`LoaderOptions`](crate::LoaderOptions). Rejected for two reasons: the
//! builder, the environment and the command line have no sections, and configs with all options in `[loader]` must stay
//! valid.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    MIN_SIMILARITY,
    error::{ConfigError, Location, UnknownKey},
    nearest,
};
use crate::options::OptionInfo;

/// Section whose keys belong to `[dataset]`. All other sections have options of the loader.
const TRANSFORMS: &str = "transforms";

/// The section in which a file has a key, by the offset of the key, for keys that were moved.
pub(super) type MovedKeys = BTreeMap<usize, &'static str>;

/// Returns the names of the sections whose keys are moved, those of options in alphabetical order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let of_options: BTreeSet<_> = OptionInfo::ALL.iter().map(OptionInfo::section).collect();
    [TRANSFORMS].into_iter().chain(of_options.into_iter().filter(|name| *name != "loader"))
}

/// Moves the keys of these sections of a file into `[loader]` and `[dataset]`. `location` returns the line of an offset.
///
/// # Errors
/// [`ConfigError::UnknownKey`] if a key is not an option of its section. [`ConfigError::WrongValue`] if a section is not a
/// table, or if the file has a key twice.
pub(super) fn gather(
    file: &mut DeTable<'_>,
    moved: &mut MovedKeys,
    location: impl Fn(usize) -> Location,
) -> Result<(), ConfigError> {
    for section in names() {
        let Some((header, keys)) = file.remove_entry(section) else { continue };
        let wrong = |offset: usize, key: &str, section: &str, problem: String| {
            let (key, section) = (key.to_owned(), section.to_owned());
            ConfigError::WrongValue { location: location(offset), key, section, problem }
        };
        let span = keys.span();
        let keys = match keys.into_inner() {
            DeValue::Table(keys) => keys,
            other => {
                let problem = format!("expected a section, found {}", other.type_str());
                return Err(wrong(header.span().start, section, "", problem));
            }
        };
        let target = if section == TRANSFORMS { "dataset" } else { "loader" };
        let empty = || Spanned::new(span, DeValue::Table(DeTable::new()));
        let target_key = Spanned::new(header.span(), Cow::Borrowed(target));
        // If `[loader]` or `[dataset]` is not a table, serde reports it later.
        let DeValue::Table(table) = file.entry(target_key).or_insert_with(empty).get_mut() else { continue };
        for (key, value) in keys {
            let (name, offset) = (key.get_ref().to_string(), key.span().start);
            if section != TRANSFORMS {
                check_option(&name, section, || location(offset))?;
            }
            if let Some((other, _)) = table.get_key_value(name.as_str()) {
                let first = other.span().start;
                let other = moved.get(&first).unwrap_or(&target);
                let problem =
                    format!("[{other}] has this key too, in {}; remove one of them", location(first));
                return Err(wrong(offset, &name, section, problem));
            }
            moved.insert(offset, section);
            table.insert(key, value);
        }
    }
    Ok(())
}

fn check_option(
    name: &str,
    section: &'static str,
    location: impl Fn() -> Location,
) -> Result<(), ConfigError> {
    let known: Vec<String> = OptionInfo::ALL
        .iter()
        .filter(|option| option.section() == section)
        .map(|option| option.name().to_owned())
        .collect();
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    let elsewhere = OptionInfo::ALL.iter().find(|option| option.name() == name);
    let nearest = match elsewhere {
        Some(option) => Some(format!("{}.{name}", option.section())),
        None => nearest(name, known.iter().map(String::as_str), MIN_SIMILARITY).map(str::to_owned),
    };
    let (key, section) = (name.to_owned(), section.to_owned());
    let unknown = UnknownKey { location: location(), key, section, is_section: false, nearest, known };
    Err(ConfigError::UnknownKey(Box::new(unknown)))
}
