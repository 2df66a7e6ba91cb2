//! Finds the table of a folder, and opens it in its format.

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use super::{FILE_NAME, table::field_of};
use crate::{
    error::{DataError, DataProblem, Result},
    formats::{
        csv_files::{Csv, CsvOptions},
        json_lines::{JsonLines, JsonLinesOptions},
        parquet::{Parquet, ParquetOptions},
    },
    options::SourceOptions,
    record::Record,
    source::{Files, Location, StoreOptions},
};

/// Names of the tables that are looked for in a folder.
#[doc(hidden)]
pub const TABLE_NAMES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.parquet"];

/// A table of any format.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Rows {
    Csv(Csv),
    JsonLines(JsonLines),
    Parquet(Parquet),
}

impl Rows {
    /// Opens the table at `location`, in the format of its extension.
    pub(super) fn open(source: &SourceOptions, location: &Location) -> Result<Self> {
        let (path, store) = (location.as_path(), store_options(source));
        let extension = location.file_name().rsplit('.').next().unwrap_or_default().to_owned();
        Ok(match extension.as_str() {
            "csv" => Self::Csv(open_csv(location, &CsvOptions::new(path).store(store))?),
            "jsonl" => Self::JsonLines(JsonLinesOptions::new(path).store(store).open()?),
            "parquet" => Self::Parquet(ParquetOptions::new(path).store(store).open()?),
            _ => return Err(invalid(source, "a table has the extension .csv, .jsonl or .parquet")),
        })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Csv(rows) => rows.len(),
            Self::JsonLines(rows) => rows.len(),
            Self::Parquet(rows) => rows.len(),
        }
    }

    pub(super) fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        match self {
            Self::Csv(rows) => rows.get_many(indices, cx),
            Self::JsonLines(rows) => rows.get_many(indices, cx),
            Self::Parquet(rows) => rows.get_many(indices, cx),
        }
    }

    pub(super) fn fingerprint(&self) -> String {
        match self {
            Self::Csv(rows) => rows.fingerprint(),
            Self::JsonLines(rows) => rows.fingerprint(),
            Self::Parquet(rows) => rows.fingerprint(),
        }
    }
}

/// Finds the table that the options name: the only path, or the only table in the folder there.
pub(super) fn find(source: &SourceOptions) -> Result<Files> {
    let mut found = source.resolved(&TABLE_NAMES)?.into_owned();
    for path in &mut found.path {
        let mut location = Location::new(&*path);
        // An absolute path stays valid if the program changes its directory before workers start.
        if let Location::Path(relative) = &mut location
            && let Ok(absolute) = std::path::absolute(&*relative)
        {
            *relative = absolute.into();
        }
        let table = if location.is_folder() { find_in(source, &location)? } else { location };
        *path = table.as_path().to_owned();
    }
    let table = found.files(&[])?;
    if table.len() != 1 {
        return Err(invalid(source, "give one folder or one table"));
    }
    Ok(table)
}

/// Returns the only table in `folder`. Asks for each possible name, because an HTTP server does not list files.
/// Some servers refuse access to a name that does not exist, so that is an error only if no table is found.
fn find_in(source: &SourceOptions, folder: &Location) -> Result<Location> {
    let (mut found, mut refused) = (Vec::new(), None);
    for table in TABLE_NAMES.map(|name| folder.join(name)) {
        match Files::find(&table, &store_options(source)) {
            Ok(Some(_)) => found.push(table),
            Ok(None) => {}
            Err(error) if matches!(error.problem, DataProblem::PermissionDenied { status: 403, .. }) => {
                refused = Some(error)
            }
            Err(error) => return Err(error),
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(table), true) => Ok(table),
        (None, _) => {
            let none = || invalid(source, &format!("the folder has none of {}", TABLE_NAMES.join(", ")));
            Err(refused.unwrap_or_else(none))
        }
        _ => Err(invalid(source, "the folder has several tables; give the path of one of them")),
    }
}

/// Opens a table in CSV. Names of files are texts, even if the first ones look like numbers or booleans.
fn open_csv(location: &Location, options: &CsvOptions) -> Result<Csv> {
    let names_files = |column: &str| field_of(column, "").is_some();
    let rows = options.open_with_texts(names_files)?;
    let columns = rows.columns();
    let names = || columns.iter().map(|(column, _)| column.as_str());
    if !names().any(names_files) {
        return Err(DataError::new(location, DataProblem::missing_field(FILE_NAME, names())));
    }
    Ok(rows)
}

fn store_options(source: &SourceOptions) -> StoreOptions {
    source.store.clone().unwrap_or_else(StoreOptions::current)
}

fn invalid(source: &SourceOptions, reason: &str) -> DataError {
    source.error(DataProblem::InvalidOption { option: "path", reason: reason.to_owned() })
}
