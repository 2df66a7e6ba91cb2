//! The dataset [`ImageTable`].

use std::path::{Component, Path};

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use crate::{
    csv_files::{ColumnType, Csv, CsvOptions},
    error::{DataError, DataProblem, Position, Result},
    image_folder::{MAX_FILE_BYTES, read_file},
    json_lines::{JsonLines, JsonLinesOptions},
    options::format_options,
    parallel,
    parquet::{Parquet, ParquetOptions},
    record::{FieldOptions, Record, Value},
    source::{Files, Location, StoreOptions},
};

/// Field of a table that names the file of a row.
const FILE_NAME: &str = "file_name";

/// Field that the image gets.
const IMAGE: &str = "image";

/// Names of the tables that are looked for in a folder.
const TABLES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.parquet"];

/// A folder of images with a table of their labels, captions or boxes: the layout `imagefolder` of Hugging
/// Face's `datasets`, with `metadata.csv`, `metadata.jsonl` or `metadata.parquet`.
///
/// The field `file_name` of each row names an image, relative to the folder of the table. A sample is a
/// [`Record`]: the fields of the row, and the field `image`, a record of the encoded `bytes` and the `path`
/// of the file. [`DecodedRecords`](crate::DecodedRecords) decodes it. Splits are folders: open `data/train`
/// and `data/test`.
///
/// A name may have sub-folders. A name that is absolute or has `..` in it is an error of its sample.
///
/// # On a server
/// The table may be at a URL; the names of images are then relative to the folder of this URL. Images are not
/// listed when the table is opened: when a worker loads an image, it asks for the size and version, and then
/// for the bytes. It loads up to 16 images of a batch at the same time.
///
/// In the URLs of images on an HTTP server, names are escaped. These URLs have no query, so a signature in
/// the URL of the table does not sign the images.
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{DecodedRecords, ImageColumn, ImageTable, Transform};
///
/// # let folder = tempfile::tempdir()?;
/// # std::fs::copy("photos/table/coffee.jpg", folder.path().join("coffee.jpg"))?;
/// # let table = "{\"file_name\": \"coffee.jpg\", \"text\": \"a cup of coffee\"}\n";
/// # std::fs::write(folder.path().join("metadata.jsonl"), table)?;
/// # std::env::set_current_dir(&folder)?;
/// let captions = ImageTable::open(".")?; // has metadata.jsonl
/// let column = ImageColumn::u8(Transform::new().random_resized_crop(64))?;
/// let captions = DecodedRecords::new(captions, [("image", column)]);
/// let sample = captions.get(0, &mut SampleContext::new(7))?;
/// assert_eq!(sample.get("text"), Some(&"a cup of coffee".into()));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageTable {
    // Boxed, because the enum of all formats would be much larger otherwise.
    rows: Box<Rows>,
    /// The file of the table.
    table: Files,
    folder: Location,
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
    /// Opens the table at `path`, or the only table in the folder at `path`. The URL of a folder ends with
    /// `/`. Reads no images. The columns of a CSV table have the types that [`Csv`] finds, but `file_name` is
    /// always text.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no table or it cannot be read, if the folder has several tables, or
    /// if a CSV table has no column `file_name`. Does not check whether the images exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        ImageTableOptions::new(path).open()
    }
}

format_options! {
    /// Which folder of images with a table to read, for example from a config file. `path` is the folder or
    /// the table.
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
        #[serde(with = "loader_core::units::Size")]
        max_file_bytes: u64 = MAX_FILE_BYTES,
    }
}

impl ImageTableOptions {
    /// Opens the table.
    ///
    /// # Errors
    /// As for [`ImageTable::open`].
    pub fn open(&self) -> Result<ImageTable, DataError> {
        let table = self.files()?;
        if table.len() != 1 {
            return Err(self.invalid("give one folder or one table"));
        }
        let location = table.get(0).location;
        let (path, store) = (location.as_path(), self.store_options());
        let extension = location.file_name().rsplit('.').next().unwrap_or_default().to_owned();
        let rows = match extension.as_str() {
            "csv" => {
                let options = CsvOptions::new(path).column_type(FILE_NAME, ColumnType::Text);
                Rows::Csv(options.store(store).open()?)
            }
            "jsonl" => Rows::JsonLines(JsonLinesOptions::new(path).store(store).open()?),
            "parquet" => Rows::Parquet(ParquetOptions::new(path).store(store).open()?),
            _ => return Err(self.invalid("a table has the extension .csv, .jsonl or .parquet")),
        };
        let (fields, max_file_bytes) = (self.fields.clone(), self.max_file_bytes);
        Ok(ImageTable { rows: Box::new(rows), table, folder: location.folder(), fields, max_file_bytes })
    }

    /// Finds the table.
    pub(crate) fn files(&self) -> Result<Files> {
        let mut source = self.source.clone();
        for path in &mut source.path {
            let mut location = Location::new(&*path);
            // An absolute path stays valid if the program changes its directory before workers start.
            if let Location::Path(relative) = &mut location
                && let Ok(absolute) = std::path::absolute(&*relative)
            {
                *relative = absolute.into();
            }
            let table = if location.is_folder() { self.find_table(&location)? } else { location };
            *path = table.as_path().to_owned();
        }
        source.files(&[])
    }

    fn store_options(&self) -> StoreOptions {
        self.source.store.clone().unwrap_or_else(StoreOptions::current)
    }

    /// Returns the only table in `folder`. Asks for each possible name, because an HTTP server does not list
    /// files. Some servers refuse access to a name that does not exist, so that is an error only if no table
    /// is found.
    fn find_table(&self, folder: &Location) -> Result<Location> {
        let (mut found, mut refused) = (Vec::new(), None);
        for table in TABLES.map(|name| folder.join(name)) {
            match Files::find(&table, &self.store_options()) {
                Ok(Some(_)) => found.push(table),
                Ok(None) => {}
                Err(error) if matches!(error.problem, DataProblem::PermissionDenied) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        match (found.pop(), found.is_empty()) {
            (Some(table), true) => Ok(table),
            (None, _) => Err(refused
                .unwrap_or_else(|| self.invalid(&format!("the folder has none of {}", TABLES.join(", "))))),
            _ => Err(self.invalid("the folder has several tables; give the path of one of them")),
        }
    }

    fn invalid(&self, reason: &str) -> DataError {
        self.source.error(DataProblem::InvalidOption { option: "path", reason: reason.to_owned() })
    }
}

impl ImageTable {
    /// Adds the image to row `index` of the table.
    fn sample(&self, mut row: Record, index: usize) -> Result<Record> {
        let failed = |file: &Location, problem| DataError::new(file, problem).at(Position::Row(index as u64));
        let of_table = |problem| failed(&self.table.get(0).location, problem);
        let is_wanted =
            |field: &str| self.fields.selected().is_none_or(|names| names.iter().any(|name| name == field));
        if is_wanted(IMAGE) {
            let name = file_name(&row).map_err(of_table)?.to_owned();
            let file = self.folder.join(&name);
            let bytes = match &file {
                Location::Path(path) => read_file(Path::new(path), self.max_file_bytes)
                    .map_err(|problem| failed(&file, problem.into())),
                Location::Url(url) => {
                    let read = self.table.read_other(url, self.max_file_bytes, "max_file_bytes");
                    read.map_err(|error| failed(&file, error.problem))
                }
            }?;
            let image: Record =
                [("bytes", Value::Bytes(bytes)), ("path", Value::Text(name))].into_iter().collect();
            row.set(IMAGE, Value::Record(image));
        }
        self.fields.apply(row).map_err(of_table)
    }
}

/// Returns the name of the image of a row.
fn file_name(row: &Record) -> Result<&str, DataProblem> {
    let name = match row.get(FILE_NAME) {
        Some(Value::Text(name)) => name,
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
    let path = Path::new(name);
    if path.file_name().is_none() || !path.components().all(is_inside) {
        let reason = format!("`{name}` is not the name of a file in the folder of the table");
        return Err(DataProblem::Record(reason));
    }
    Ok(name)
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
        let Location::Url(_) = self.folder else {
            let sample = |(row, &index)| Ok(self.sample(row, index)?);
            return rows.into_iter().zip(indices).map(sample).collect();
        };
        // Waiting for a server takes longer than starting a thread.
        let sample = |number: usize| self.sample(rows[number].clone(), indices[number]);
        Ok(parallel::map_on(parallel::READS, rows.len(), sample)?)
    }

    /// Returns the fingerprint of the table, and the options of the fields.
    fn fingerprint(&self) -> String {
        format!("image_table({}{})", self.rows.fingerprint(), self.fields.fingerprint())
    }
}
