//! The content of a config file and of the files that it extends, with the lines of its keys.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use loader_ipc::whole_file;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::{ConfigError, Location, quoted},
    search::Step,
};
use crate::options::OptionInfo;

/// Key that names the config to extend.
pub(super) const EXTENDS: &str = "extends";

/// Maximum number of files of a config and the configs that it extends. Each one is parsed after as many line breaks as
/// the files before it have bytes.
const MAX_FILES: usize = 64;

/// Maximum number of bytes of all these files.
const MAX_BYTES: u64 = 16 << 20;

/// A config, or a text that was not read from a file, and after it the files that it extends.
#[derive(Default)]
pub(super) struct Files(Vec<File>);

struct File {
    path: Option<PathBuf>,
    /// Offset of the file. The offsets of all files differ.
    start: usize,
    /// The content, after `start` line breaks. So the spans of a parser are offsets.
    padded: String,
}

impl Files {
    pub(super) fn of_text(text: &str) -> Result<Self, ConfigError> {
        let mut files = Self::default();
        files.add(None, text);
        files.add_extended()?;
        Ok(files)
    }

    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        let mut files = Self::default();
        files.read(path.to_owned())?;
        files.add_extended()?;
        Ok(files)
    }

    /// Adds the files that the last file extends, and those that these extend.
    fn add_extended(&mut self) -> Result<(), ConfigError> {
        while let Some(file) = self.0.last() {
            let table = self.parse(file)?;
            let Some(value) = table.get(EXTENDS) else { break };
            let Some(extended) = value.get_ref().as_str() else {
                let location = self.location(value.span().start);
                let problem = format!("expected a path, found {}", value.get_ref().type_str());
                let (key, section) = (EXTENDS.to_owned(), String::new());
                return Err(ConfigError::WrongValue { location, key, section, problem });
            };
            let folder = file.path.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
            let path = folder.join(extended);
            if self.0.iter().any(|other| other.path.as_deref().is_some_and(|other| is_same(other, &path))) {
                return Err(ConfigError::ExtendsCycle { chain: self.chain(path) });
            }
            if self.0.len() == MAX_FILES {
                let location = self.location(value.span().start);
                return Err(ConfigError::TooManyExtended { location, max: MAX_FILES });
            }
            self.read(path)?;
        }
        Ok(())
    }

    fn read(&mut self, path: PathBuf) -> Result<(), ConfigError> {
        let max = MAX_BYTES.saturating_sub(self.next_start() as u64);
        let text = whole_file::read_text(&path, max).map_err(|source| {
            let (path, chain) = (path.clone(), self.chain(path.clone()));
            match source.kind() {
                io::ErrorKind::FileTooLarge => ConfigError::TooLarge { path, max: MAX_BYTES, chain },
                _ => ConfigError::Unreadable { path, source, chain },
            }
        })?;
        self.add(Some(path), &text);
        Ok(())
    }

    fn add(&mut self, path: Option<PathBuf>, text: &str) {
        let start = self.next_start();
        self.0.push(File { path, start, padded: "\n".repeat(start) + text });
    }

    /// Returns the offset of the file that is added next: the number of bytes before it.
    fn next_start(&self) -> usize {
        self.0.last().map_or(0, |file| file.padded.len() + 1)
    }

    /// Returns the paths of all files, and `last`.
    fn chain(&self, last: PathBuf) -> Vec<PathBuf> {
        self.0.iter().filter_map(|file| file.path.clone()).chain([last]).collect()
    }

    fn parse<'a>(&self, file: &'a File) -> Result<DeTable<'a>, ConfigError> {
        DeTable::parse(&file.padded).map(Spanned::into_inner).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let location = self.location(span.start.max(file.start));
            let mut problem = error.message().to_owned();
            if problem == "duplicate key" {
                problem += &format!(" {}", quoted(file.padded.get(span).unwrap_or_default()));
            }
            ConfigError::NotToml { location, problem }
        })
    }

    /// Returns the line that contains the byte at `offset`.
    fn location(&self, offset: usize) -> Location {
        let file = self.0.iter().rfind(|file| file.start <= offset);
        let before =
            file.map_or(&[][..], |file| &file.padded.as_bytes()[file.start..offset.min(file.padded.len())]);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Location { path: file.and_then(|file| file.path.clone()), line }
    }
}

fn is_same(path: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    path == other || canonical(path).is_some_and(|path| canonical(other) == Some(path))
}

/// A parsed config, merged with the files that it extends.
pub(super) struct Document<'a> {
    /// The spans are offsets into `files`.
    pub(super) table: DeTable<'a>,
    files: &'a Files,
}

impl<'a> Document<'a> {
    pub(super) fn parse(files: &'a Files) -> Result<Self, ConfigError> {
        let mut table = DeTable::new();
        for file in &files.0 {
            let mut extended = files.parse(file)?;
            extended.remove(EXTENDS);
            without_ignored(&mut extended, &table);
            merge(&mut table, extended);
        }
        Ok(Self { table, files })
    }

    /// Returns the line that contains the byte at `offset`.
    pub(super) fn location(&self, offset: usize) -> Location {
        self.files.location(offset)
    }

    /// Returns the line of each key outside of arrays, such as `loader.batch_size`.
    pub(super) fn locations(&self) -> BTreeMap<String, Location> {
        let mut locations = BTreeMap::new();
        let mut tables = vec![(String::new(), &self.table)];
        while let Some((prefix, table)) = tables.pop() {
            for (key, value) in table {
                let name = format!("{prefix}{}", key.get_ref());
                if let Some(table) = value.get_ref().as_table() {
                    tables.push((format!("{name}."), table));
                }
                locations.insert(name, self.location(key.span().start));
            }
        }
        locations
    }

    /// Returns the line of the key or the item to which `path` leads.
    pub(super) fn location_of(&self, path: &[Step]) -> Option<Location> {
        Some(self.location(self.offset_of(path)?))
    }

    fn offset_of(&self, path: &[Step]) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let Step::Key(first) = first else { return None };
        let (key, value) = self.table.get_key_value(first.as_str())?;
        let found = rest.iter().try_fold((key.span(), value), |(_, value), step| step_into(value, step));
        Some(found?.0.start)
    }
}

/// Returns the value to which `step` leads, and the span of its key.
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

/// Adds the keys of `below` that `above` does not have, also in tables that both have.
fn merge<'a>(above: &mut DeTable<'a>, below: DeTable<'a>) {
    for (key, value) in below {
        match above.get_mut::<str>(key.get_ref()) {
            None => drop(above.insert(key, value)),
            Some(upper) => {
                if let (DeValue::Table(above), DeValue::Table(below)) = (upper.get_mut(), value.into_inner())
                {
                    merge(above, below);
                }
            }
        }
    }
}

/// If `above` switches workers off, removes the options from `below` that need workers, as
/// [`LoaderOptions::over`](crate::LoaderOptions::over) does.
fn without_ignored(below: &mut DeTable<'_>, above: &DeTable<'_>) {
    let workers = above.get("loader").and_then(|loader| loader.get_ref().get("num_workers"));
    let switches_off =
        workers.and_then(|value| value.get_ref().as_integer()).is_some_and(|count| count.as_str() == "0");
    if switches_off && let Some(DeValue::Table(loader)) = below.get_mut("loader").map(Spanned::get_mut) {
        for option in OptionInfo::ALL.iter().filter(|option| option.needs_workers()) {
            loader.remove(option.name());
        }
    }
}
