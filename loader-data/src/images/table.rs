//! The dataset [`ImageTable`].

use std::{
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use crate::{
    csv_files::{ColumnType, Csv, CsvOptions},
    error::{DataError, DataProblem, Position, Result},
    image_folder::{MAX_FILE_BYTES, read_file},
    json_lines::{JsonLines, JsonLinesOptions},
    options::format_options,
    parquet::{Parquet, ParquetOptions},
    record::{FieldOptions, Record, Value},
    source::{Files, Location},
};

/// Field of a table that names the file of a row.
const FILE_NAME: &str = "file_name";

/// Field that the image gets.
const IMAGE: &str = "image";

/// Names of the tables that are looked for in a folder.
const TABLES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.parquet"];

/// A folder of images with a table of their labels, captions or boxes: the layout `imagefolder` of Hugging Face's
/// `datasets`, with `metadata.csv`, `metadata.jsonl` or `metadata.parquet`.
///
/// The field `file_name` of each row names an image, relative to the folder of the table. A sample is a [`Record`]: the
/// fields of the row, and the field `image`, a record of the encoded `bytes` and the `path` of the file.
/// [`ImageRecords`](super::ImageRecords) decodes it. Splits are folders: open `data/train` and `data/test`.
///
/// The files are on the local file system. A table in a folder above the images may name files in its sub-folders, but
/// a name that is absolute or has `..` in it is an error of its sample.
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{ImageColumn, ImageRecords, ImageTable, Transform};
///
/// # let folder = tempfile::tempdir()?;
/// # std::fs::copy("photos/table/coffee.jpg", folder.path().join("coffee.jpg"))?;
/// # let table = "{\"file_name\": \"coffee.jpg\", \"text\": \"a cup of coffee\"}\n";
/// # std::fs::write(folder.path().join("metadata.jsonl"), table)?;
/// # std::env::set_current_dir(&folder)?;
/// let captions = ImageTable::open(".")?; // has metadata.jsonl
/// let column = ImageColumn::u8(Transform::new().random_resized_crop(64))?;
/// let captions = ImageRecords::new(captions, [("image", column)]);
/// let sample = captions.get(0, &mut SampleContext::new(7))?;
/// assert_eq!(sample.get("text"), Some(&"a cup of coffee".into()));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageTable {
    rows: Rows,
    // Not `PathBuf`: serde refuses paths that are not Unicode.
    folder: OsString,
    fields: FieldOptions,
    max_file_bytes: u64,
}

/// A table of any format.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Rows {
    Csv(Csv),
    JsonLines(JsonLines),
    Parquet(Parquet),
}

impl Rows {
    fn len(&self) -> usize {
        match self {
            Self::Csv(rows) => rows.len(),
            Self::JsonLines(rows) => rows.len(),
            Self::Parquet(rows) => rows.len(),
        }
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        match self {
            Self::Csv(rows) => rows.get_many(indices, cx),
            Self::JsonLines(rows) => rows.get_many(indices, cx),
            Self::Parquet(rows) => rows.get_many(indices, cx),
        }
    }

    fn fingerprint(&self) -> String {
        match self {
            Self::Csv(rows) => rows.fingerprint(),
            Self::JsonLines(rows) => rows.fingerprint(),
            Self::Parquet(rows) => rows.fingerprint(),
        }
    }
}

impl ImageTable {
    /// Opens the table at `path`, or the one in the folder at `path`. Reads the table, and none of the images. The
    /// columns of a CSV have the types that [`Csv`] finds, and `file_name` is always text.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such table or it cannot be read, if the folder has several, or if a CSV has
    /// no column `file_name`. Which images exist is not checked.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        ImageTableOptions::new(path).open()
    }
}

format_options! {
    /// Which folder of images with a table to read, for example from a config file. `path` is the folder or the table.
    ///
    /// # Examples
    /// ```
    /// use loader_data::ImageTableOptions;
    ///
    /// let options: ImageTableOptions = serde_json::from_str(r#"{"path": "photos", "fields": ["image", "text"]}"#)?;
    /// let error = options.open().unwrap_err().to_string();
    /// assert!(error.contains("has none of metadata.csv, metadata.jsonl, metadata.parquet"), "{error}");
    /// # anyhow::Ok(())
    /// ```
    pub struct ImageTableOptions {
        /// Sets which fields a record has, and the dtypes of its numbers. Without `image`, no image is read.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets the max number of bytes of an image file. The default is 256 MiB.
        max_file_bytes: u64 = MAX_FILE_BYTES,
    }
}

impl ImageTableOptions {
    /// Opens the table.
    ///
    /// # Errors
    /// As for [`ImageTable::open`].
    pub fn open(&self) -> Result<ImageTable, DataError> {
        let files = self.files()?;
        let table = match files.get(0).location {
            Location::Path(table) if files.len() == 1 => PathBuf::from(table),
            _ => return Err(self.invalid("give one folder or one table, on the local file system")),
        };
        let rows = match table.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => {
                Rows::Csv(CsvOptions::new(&table).column_type(FILE_NAME, ColumnType::Text).open()?)
            }
            Some("jsonl") => Rows::JsonLines(JsonLinesOptions::new(&table).open()?),
            Some("parquet") => Rows::Parquet(ParquetOptions::new(&table).open()?),
            _ => return Err(self.invalid("a table has the extension .csv, .jsonl or .parquet")),
        };
        let folder = table.parent().unwrap_or(Path::new("")).into();
        let (fields, max_file_bytes) = (self.fields.clone(), self.max_file_bytes);
        Ok(ImageTable { rows, folder, fields, max_file_bytes })
    }

    /// Finds the table.
    pub(crate) fn files(&self) -> Result<Files> {
        let mut source = self.source.clone();
        for path in &mut source.path {
            // An absolute path stays valid if the program changes its directory before workers start.
            if let (Location::Path(_), Ok(absolute)) = (Location::new(&*path), std::path::absolute(&*path)) {
                *path = absolute;
            }
            if path.is_dir() {
                let mut found = TABLES.iter().map(|name| path.join(name)).filter(|table| table.exists());
                *path = match (found.next(), found.next()) {
                    (Some(table), None) => table,
                    (None, _) => {
                        return Err(self.invalid(&format!("the folder has none of {}", TABLES.join(", "))));
                    }
                    (Some(_), Some(_)) => {
                        let reason = "the folder has several tables; give the path of one of them";
                        return Err(self.invalid(reason));
                    }
                };
            }
        }
        source.files(&[])
    }

    fn invalid(&self, reason: &str) -> DataError {
        self.source.error(DataProblem::InvalidOption { option: "path", reason: reason.to_owned() })
    }
}

impl ImageTable {
    fn folder(&self) -> &Path {
        Path::new(&self.folder)
    }

    /// Adds the image to a row of the table.
    fn sample(&self, mut row: Record) -> Result<Record, DataProblem> {
        let is_wanted =
            |field: &str| self.fields.selected().is_none_or(|names| names.iter().any(|name| name == field));
        if is_wanted(IMAGE) {
            let name = match row.get(FILE_NAME) {
                Some(Value::Text(name)) => name.clone(),
                Some(other) => {
                    let (field, expected) = (FILE_NAME.to_owned(), "the name of a file".to_owned());
                    return Err(DataProblem::WrongType { field, expected, found: other.kind() });
                }
                None => {
                    let available = row.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
                    return Err(DataProblem::MissingField { field: FILE_NAME.to_owned(), available });
                }
            };
            let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            let path = Path::new(&name);
            if path.file_name().is_none() || !path.components().all(is_inside) {
                let reason = format!("`{name}` is not the name of a file in the folder of the table");
                return Err(DataProblem::Record(reason));
            }
            let bytes = read_file(&self.folder().join(&name), self.max_file_bytes)?;
            let image: Record =
                [("bytes", Value::Bytes(bytes)), ("path", Value::Text(name))].into_iter().collect();
            row.set(IMAGE, Value::Record(image));
        }
        self.fields.apply(row)
    }
}

impl Dataset for ImageTable {
    type Sample = Record;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        let mut samples = self.get_many(&[index], cx)?;
        Ok(samples.pop().expect("`get_many` returns a sample for each index"))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        let rows = self.rows.get_many(indices, cx)?;
        let sample = |(row, &index): (Record, &usize)| {
            let file = match row.get(FILE_NAME) {
                Some(Value::Text(name)) => self.folder().join(name),
                _ => self.folder().to_owned(),
            };
            let failed =
                |problem| DataError::new(Location::new(file), problem).at(Position::Row(index as u64));
            self.sample(row).map_err(|problem| failed(problem).into())
        };
        rows.into_iter().zip(indices).map(sample).collect()
    }

    /// Returns the fingerprint of the table, and the options of the fields.
    fn fingerprint(&self) -> String {
        format!("image_table({}{})", self.rows.fingerprint(), self.fields.fingerprint())
    }
}
