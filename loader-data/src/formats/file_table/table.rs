//! The rows of a table with the files that they name.

use std::path::{Component, Path};

use loader_core::SampleContext;
use serde::{Deserialize, Serialize};

use super::{
    FILE_NAME,
    find::{Rows, find},
};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    options::SourceOptions,
    parallel,
    record::{FieldOptions, Record, Value},
    source::{Files, Location, Roots},
};

/// The rows of a table, and the files that they name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FileTable {
    // Boxed, because the enum of all formats would be much larger otherwise.
    rows: Box<Rows>,
    /// The file of the table.
    table: Files,
    folder: Location,
    roots: Roots,
    /// Field of the file that `file_name` names.
    field: String,
    fields: FieldOptions,
    max_file_bytes: u64,
}

impl FileTable {
    /// Opens the table that `source` names.
    pub(super) fn open(
        source: &SourceOptions,
        field: &str,
        fields: FieldOptions,
        max_file_bytes: u64,
    ) -> Result<Self> {
        let table = find(source)?;
        let location = table.get(0).location;
        let rows = Box::new(Rows::open(source, &location)?);
        let folder = location.folder();
        let roots = Roots::of(&location)?;
        Ok(Self { rows, table, folder, roots, field: field.to_owned(), fields, max_file_bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        let rows = self.rows.get_many(indices, cx)?;
        let Location::Url(_) = self.folder else {
            let sample = |(row, &index)| Ok(self.sample(row, index)?);
            return rows.into_iter().zip(indices).map(sample).collect();
        };
        // Waiting for a server takes longer than starting a thread.
        let sample = |number: usize| self.sample(rows[number].clone(), indices[number]);
        Ok(parallel::read(rows.len(), sample)?)
    }

    pub(super) fn fingerprint(&self) -> String {
        format!("{}_table({}{})", self.field, self.rows.fingerprint(), self.fields.fingerprint())
    }

    /// Adds the files to row `index` of the table.
    fn sample(&self, mut row: Record, index: usize) -> Result<Record> {
        let at_row = |error: DataError| error.at(Position::Row(index as u64));
        let of_table = |problem| at_row(DataError::new(&self.table.get(0).location, problem));
        for (column, field) in self.wanted_files(&row).map_err(of_table)? {
            let file = match file_name(&row, &column).map_err(of_table)? {
                None => Value::Null,
                Some(name) => {
                    let file = self.folder.join(name);
                    self.refuse_outside(&file).map_err(at_row)?;
                    let read = self.table.read_unlisted(&file, self.max_file_bytes, "max_file_bytes");
                    Value::Record(Record::of_file(read.map_err(at_row)?, name.to_owned()))
                }
            };
            if row.get(&field).is_some() {
                return Err(of_table(DataProblem::DuplicateField { field }));
            }
            row.set(field, file);
        }
        self.fields.apply(row).map_err(of_table)
    }

    /// Returns an error if a symbolic link on the way to `file` leads to another folder.
    fn refuse_outside(&self, file: &Location) -> Result<()> {
        let Some(target) = self.roots.target_outside(file)? else { return Ok(()) };
        let reason = format!(
            "a symbolic link leads from it to {target}, outside the folder of the table; move the table into the folder \
             of its files"
        );
        Err(DataError::new(file, DataProblem::Record(reason)))
    }

    /// Returns the columns that name the files to read, each with the field of its file.
    fn wanted_files(&self, row: &Record) -> Result<Vec<(String, String)>, DataProblem> {
        let is_wanted =
            |field: &str| self.fields.selected().is_none_or(|names| names.iter().any(|name| name == field));
        let columns = row.iter().map(|(column, _)| column);
        let named = |column: &str| Some((column.to_owned(), field_of(column, &self.field)?.to_owned()));
        let files: Vec<_> = columns.filter_map(named).collect();
        if files.is_empty() && is_wanted(&self.field) {
            return Err(DataProblem::missing_field(FILE_NAME, row.iter().map(|(name, _)| name)));
        }
        Ok(files.into_iter().filter(|(_, field)| is_wanted(field)).collect())
    }
}

/// Returns the field of the file that `column` names, which is `base` for `file_name`. Returns `None` if the
/// column does not name files.
pub(super) fn field_of<'a>(column: &'a str, base: &'a str) -> Option<&'a str> {
    match column.strip_suffix(FILE_NAME)? {
        "" => Some(base),
        prefix => prefix.strip_suffix('_').filter(|field| !field.is_empty()),
    }
}

/// Returns the name of a file in a row. It may be missing in the columns other than `file_name`.
fn file_name<'a>(row: &'a Record, column: &str) -> Result<Option<&'a str>, DataProblem> {
    let may_be_missing = column != FILE_NAME;
    let name = match row.get(column) {
        Some(Value::Text(name)) if name.is_empty() && may_be_missing => return Ok(None),
        Some(Value::Null) if may_be_missing => return Ok(None),
        Some(Value::Text(name)) => name,
        other => {
            let (field, expected) = (column.to_owned(), "the name of a file".to_owned());
            let found = other.unwrap_or(&Value::Null).kind();
            return Err(DataProblem::WrongType { field, expected, found });
        }
    };
    let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let path = Path::new(name);
    if path.file_name().is_none() || !path.components().all(is_inside) {
        let reason = format!("`{name}` is not the name of a file in the folder of the table");
        return Err(DataProblem::Record(reason));
    }
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_end_with_file_name_name_files() {
        for (column, field) in [
            ("file_name", Some("image")),
            ("mask_file_name", Some("mask")),
            ("a_b_file_name", Some("a_b")),
            ("_file_name", None),
            ("profile_name", None),
            ("file_names", None),
        ] {
            assert_eq!(field_of(column, "image"), field, "{column}");
        }
    }
}
