//! The content of a config file, with the lines of its keys.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::{ConfigError, Location, quoted},
    search::Step,
};

/// A file with a config, or a text that was not read from a file.
pub(super) struct File {
    path: Option<PathBuf>,
    text: String,
}

impl File {
    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self { path: Some(path.to_owned()), text })
    }

    pub(super) fn of_text(text: &str) -> Self {
        Self { path: None, text: text.to_owned() }
    }

    /// Returns the line that contains the byte at `offset`.
    fn location(&self, offset: usize) -> Location {
        let before = self.text.bytes().take(offset);
        let line = 1 + before.filter(|&byte| byte == b'\n').count();
        Location { path: self.path.clone(), line }
    }
}

/// A parsed config.
pub(super) struct Document<'a> {
    /// The spans are offsets into the text of the file.
    pub(super) table: DeTable<'a>,
    file: &'a File,
}

impl<'a> Document<'a> {
    pub(super) fn parse(file: &'a File) -> Result<Self, ConfigError> {
        match DeTable::parse(&file.text) {
            Ok(table) => Ok(Self { table: table.into_inner(), file }),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let location = file.location(span.start);
                let mut problem = error.message().to_owned();
                if problem == "duplicate key" {
                    problem += &format!(" {}", quoted(file.text.get(span).unwrap_or_default()));
                }
                Err(ConfigError::NotToml { location, problem })
            }
        }
    }

    pub(super) fn location(&self, offset: usize) -> Location {
        self.file.location(offset)
    }

    /// Returns the line of the key or the item to which `path` leads.
    pub(super) fn location_of(&self, path: &[Step]) -> Option<Location> {
        let (first, rest) = path.split_first()?;
        let Step::Key(first) = first else { return None };
        let (key, value) = self.table.get_key_value(first.as_str())?;
        let found = rest.iter().try_fold((key.span(), value), |(_, value), step| step_into(value, step));
        Some(self.location(found?.0.start))
    }
}

/// Returns the value behind `step`, and the span of its key.
fn step_into<'a>(
    value: &'a Spanned<DeValue<'a>>,
    step: &Step,
) -> Option<(Range<usize>, &'a Spanned<DeValue<'a>>)> {
    match step {
        Step::Key(key) => {
            let (key, value) = value.get_ref().as_table()?.get_key_value(key.as_str())?;
            Some((key.span(), value))
        }
        Step::Index(index) => value.get_ref().as_array()?.get(*index).map(|item| (item.span(), item)),
    }
}
