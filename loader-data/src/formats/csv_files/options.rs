//! Options of CSV.

use std::{borrow::Cow, collections::BTreeMap};

use super::{ColumnType, Csv, CsvStream, EXTENSIONS, parse::Parser};
use crate::options::dataset_card::{CsvSettings, FormatOptions};
use crate::{
    error::{DataError, DataProblem},
    index::{IndexPlace, StoredIndex},
    lines::{CsvRules, LineRules, LineStream, Lines, MAX_LINE_BYTES},
    options::format_options,
    record::{FieldOptions, Record},
    source::{Compression, Files},
};

format_options! {
    /// What to read as CSV or TSV, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::CsvOptions;
    ///
    /// let text = r#"{"path": "train/*.csv", "fields": ["age", "zip"], "types": {"age": "float64", "zip": "str"}}"#;
    /// let options: CsvOptions = serde_json::from_str(text)?;
    /// assert_eq!(options.open().unwrap_err().to_string(), "`train/*.csv`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct CsvOptions {
        /// Sets which columns a record has, and the dtypes of its numbers.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets the character between fields, which must be ASCII. The default is a tab if the name of the
        /// first file ends with `.tsv`, `.tsv.gz` or `.tsv.zst`, otherwise a comma.
        delimiter: Option<char> = None,
        /// Sets whether a field that begins with `"` ends at the next `"`, so that it may have delimiters and
        /// line breaks. The default is true.
        quotes: bool = true,
        /// Names the columns of files that have no header.
        names: Option<Vec<String>> = None,
        /// Sets texts that mean that a value is missing, such as `NA`. An empty field always does, except in
        /// a column of texts.
        missing: Vec<String> = Vec::new(),
        types: BTreeMap<String, ColumnType> = BTreeMap::new(),
        /// Sets where the index is stored; by default in the user's cache folder. A stream has no index.
        index: IndexPlace = IndexPlace::Cache,
        /// Sets the maximum number of bytes of a record, with its line break. The default is 64 MiB.
        #[serde(with = "loader_core::units::Size")]
        max_line_bytes: u64 = MAX_LINE_BYTES,
    }
}

impl CsvOptions {
    /// Sets the type of column `name` in records. The types of other columns are found by the first rows, see
    /// [`Csv`].
    #[must_use]
    pub fn column_type(mut self, name: impl Into<String>, column: ColumnType) -> Self {
        self.types.insert(name.into(), column);
        self
    }

    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`Csv::open`].
    pub fn open(&self) -> Result<Csv<Record>, DataError> {
        self.open_with_texts(|_| false)
    }

    /// Opens the files for random access. The columns for which `is_text` returns true have texts, unless their type is
    /// set.
    pub(crate) fn open_with_texts(&self, is_text: impl Fn(&str) -> bool) -> Result<Csv<Record>, DataError> {
        let options = self.resolved(&EXTENSIONS)?;
        let files = options.source.files(&EXTENSIONS)?;
        let rules = options.rules(&files)?;
        let lines = Lines::open(files, LineRules::csv(rules), &self.index, self.max_line_bytes)?;
        let parser = Parser::open(lines.files(), &options, rules, is_text)?;
        Ok(Csv::new(lines, parser))
    }

    /// Opens the files as a stream.
    ///
    /// # Errors
    /// As for [`CsvStream::open`].
    pub fn open_stream(&self) -> Result<CsvStream<Record>, DataError> {
        let options = self.resolved_stream()?;
        let files = options.source.stream_files(&EXTENSIONS)?;
        let rules = options.rules(&files)?;
        let parser = Parser::open(&files, &options, rules, |_| false)?;
        let stream = LineStream::open(files, LineRules::csv(rules), None, self.max_line_bytes)?;
        Ok(CsvStream::new(stream, parser))
    }

    /// Describes the stored index of each file, without making one: [`open`](Self::open) makes those that are
    /// not current.
    ///
    /// # Errors
    /// Returns an error if there is no such file, or one is not a regular file.
    pub fn indexes(&self) -> Result<Vec<StoredIndex>, DataError> {
        let options = self.resolved(&EXTENSIONS)?;
        let files = options.source.files(&EXTENSIONS)?;
        Lines::indexes(&files, LineRules::csv(options.rules(&files)?), &self.index)
    }

    /// Returns the options with the files and the options of the configuration in the header of the folder's README.md.
    /// Options that are set here are preferred to those of the header.
    ///
    /// # Errors
    /// As for [`SourceOptions::resolved`](crate::options::SourceOptions::resolved).
    fn resolved(&self, extensions: &[&str]) -> Result<Cow<'_, Self>, DataError> {
        if let Some((path, headers)) = self.source.of_cards(extensions)? {
            let settings = self.settings(&headers)?;
            let mut options = Self { source: self.source.narrowed(path), ..self.clone() };
            options.set(&settings);
            return Ok(Cow::Owned(options));
        }
        Ok(Cow::Borrowed(self))
    }

    /// Returns the options of CSV that the headers set.
    ///
    /// # Errors
    /// Returns an error if a header sets an option that is not read, or if two headers set different ones.
    fn settings(&self, headers: &[FormatOptions]) -> Result<CsvSettings, DataError> {
        let settings = headers.iter().map(FormatOptions::csv);
        let mut settings = settings.collect::<Result<Vec<_>, _>>()?;
        match settings.pop() {
            Some(last) if settings.iter().all(|other| *other == last) => Ok(last),
            Some(_) => {
                let reason =
                    "the folders have README.md files with different options of CSV; open each folder as a \
                     dataset of its own"
                        .to_owned();
                Err(self.source.error(DataProblem::InvalidOption { option: "path", reason }))
            }
            None => Ok(CsvSettings::default()),
        }
    }

    fn resolved_stream(&self) -> Result<Cow<'_, Self>, DataError> {
        let extensions = Compression::extensions(&EXTENSIONS);
        self.resolved(&extensions.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Takes over `settings`, except for options that are set.
    pub(crate) fn set(&mut self, settings: &CsvSettings) {
        self.delimiter = self.delimiter.or(settings.delimiter);
        self.names = self.names.take().or_else(|| settings.names.clone());
    }

    fn rules(&self, files: &Files) -> Result<CsvRules, DataError> {
        let name = files.get(0).location.file_name().to_ascii_lowercase();
        let is_tsv = Compression::split(&name).0.ends_with(".tsv");
        let delimiter = self.delimiter.unwrap_or(if is_tsv { '\t' } else { ',' });
        let is_allowed = delimiter.is_ascii() && !matches!(delimiter, '"' | '\n' | '\r');
        match u8::try_from(delimiter).ok().filter(|_| is_allowed) {
            Some(delimiter) => {
                Ok(CsvRules { delimiter, has_quotes: self.quotes, has_header: self.names.is_none() })
            }
            None => {
                let reason = format!("{delimiter:?} cannot separate fields; use another ASCII character");
                Err(self.source.error(DataProblem::InvalidOption { option: "delimiter", reason }))
            }
        }
    }
}

#[cfg(feature = "formats")]
impl CsvOptions {
    /// Lists the files for random access.
    pub(crate) fn files(&self) -> Result<Files, DataError> {
        self.resolved(&EXTENSIONS)?.source.files(&EXTENSIONS)
    }

    /// Lists the files for a stream.
    pub(crate) fn stream_files(&self) -> Result<Files, DataError> {
        self.resolved_stream()?.source.stream_files(&EXTENSIONS)
    }
}
