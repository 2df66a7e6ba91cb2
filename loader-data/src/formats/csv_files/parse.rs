//! From a record to a sample.

use std::{
    any::TypeId,
    borrow::Cow,
    iter,
    sync::{Arc, OnceLock},
};

use csv::{DeserializeErrorKind, ErrorKind, StringRecord};
use loader_core::{DatasetMemory, Phase, Shard};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    CsvOptions, malformed,
    split::{Fields, Splitter},
    types::{ColumnType, Inferred, is_number},
};
use crate::{
    error::{DataError, DataProblem, Result},
    lines::{CsvRules, LineRules, LineStream, first_line},
    parallel,
    record::{FieldOptions, Record, Value},
    source::Files,
};

/// Number of rows by which the types of columns are found.
const SAMPLED: usize = 1000;

/// Maximum number of characters of a field in an error.
const MAX_SHOWN: usize = 40;

/// Parses the records of files that have the same columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Parser {
    splitter: Splitter,
    names: Vec<String>,
    /// For each field of a sample, its column and its type.
    selected: Vec<(usize, Typed)>,
    /// Texts that mean that a value is missing.
    missing: Vec<String>,
    /// The options for records of the selected fields.
    fields: FieldOptions,
    /// Text of all options, for the fingerprint.
    pub(super) fingerprint: String,
    #[serde(skip)]
    prepared: OnceLock<Prepared>,
}

/// The type of a column, and whether the option `types` has set it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Typed {
    column: ColumnType,
    is_set: bool,
}

/// What is made once in each process.
#[derive(Debug, Clone)]
struct Prepared {
    header: StringRecord,
    names: Vec<Arc<str>>,
    /// For each column, the form in which its fields are given to the type of a row. Set once the type has refused a
    /// field as it is.
    forms: Vec<OnceLock<Form>>,
}

/// The form of a field that the crate `csv` reads as a number or as a boolean.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Without spaces around it.
    Number,
    /// Without spaces around it, and in lower case.
    TruthValue,
}

impl Parser {
    /// Reads the headers of `files`, and the first rows to find the types of columns. A column for which `is_text`
    /// returns true has texts.
    pub(super) fn open(
        files: &Files,
        options: &CsvOptions,
        rules: CsvRules,
        is_text: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let max = options.max_line_bytes;
        let of_first = |problem| DataError::new(files.get(0).location, problem);
        let without_header = LineRules::csv(CsvRules { has_header: false, ..rules });
        let mut parser = Self {
            splitter: Splitter::new(rules),
            names: Vec::new(),
            selected: Vec::new(),
            missing: options.missing.clone(),
            fields: options.fields.for_selected(),
            fingerprint: String::new(),
            prepared: OnceLock::new(),
        };
        let header = |file| {
            let failed = |problem| DataError::new(files.get(file).location, problem);
            let line = first_line(files, file, without_header, max)?;
            let line = line.ok_or_else(|| failed(malformed("it has no header")))?;
            parser.header(&line).map_err(failed)
        };
        parser.names = match &options.names {
            Some(names) => names.clone(),
            None => {
                let names = header(0)?;
                let other = |file| Ok::<_, DataError>((file + 1, header(file + 1)?));
                for (file, other) in parallel::map_on(parallel::READS, files.len() - 1, other)? {
                    if other != names {
                        let problem = DataProblem::OtherColumns {
                            found: other.join(", "),
                            first: files.get(0).location.to_string().into(),
                            expected: names.join(", "),
                        };
                        return Err(DataError::new(files.get(file).location, problem));
                    }
                }
                names
            }
        };
        parser.select(options, is_text).map_err(of_first)?;
        if parser.selected.iter().any(|(_, typed)| !typed.is_set) {
            let stream = LineStream::open(files.clone(), LineRules::csv(rules), None, max)?;
            parser.infer(&stream).map_err(|error| {
                let other = |error| DataError::new("the first rows", malformed(format!("{error:#}")));
                error.downcast::<DataError>().unwrap_or_else(other)
            })?;
        }
        parser.fields = options.fields.for_columns(|name| {
            match parser.selected.iter().find(|(column, _)| parser.names[*column] == name)?.1.column {
                ColumnType::Number(dtype) => Some(dtype),
                _ => None,
            }
        });
        let types: Vec<_> = parser.selected.iter().map(|(column, typed)| (column, typed.column)).collect();
        parser.fingerprint = format!(
            "{:?}, {:?}, {types:?}, {:?}{}",
            rules,
            parser.names,
            parser.missing,
            options.fields.fingerprint()
        );
        Ok(parser)
    }

    /// Parses a header.
    fn header(&self, line: &[u8]) -> Result<Vec<String>, DataProblem> {
        let names: Vec<String> = self.splitter.split(line, None)?.iter().map(str::to_owned).collect();
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        match twice {
            Some((_, name)) => Err(malformed(format!("two columns have the name `{name}`"))),
            None if names.iter().any(|name| name.contains('\r')) => {
                Err(malformed("its lines end with `\\r` alone; convert them to `\\n`"))
            }
            None => Ok(names),
        }
    }

    /// Finds the columns of a sample, and sets the types that the options and `is_text` give.
    fn select(&mut self, options: &CsvOptions, is_text: impl Fn(&str) -> bool) -> Result<(), DataProblem> {
        let find = |name: &String| {
            let missing = || DataProblem::missing_field(name, self.names.iter().map(String::as_str));
            self.names.iter().position(|column| column == name).ok_or_else(missing)
        };
        options.types.keys().try_for_each(|name| find(name).map(drop))?;
        let columns: Vec<usize> = match options.fields.selected() {
            Some(names) => names.iter().map(find).collect::<Result<_, _>>()?,
            None => (0..self.names.len()).collect(),
        };
        let typed = |column: usize| match options.types.get(&self.names[column]) {
            Some(&set) => (column, Typed { column: set, is_set: true }),
            None => (column, Typed { column: ColumnType::Text, is_set: is_text(&self.names[column]) }),
        };
        options.fields.check_names(columns.iter().map(|&column| &self.names[column]))?;
        self.selected = columns.into_iter().map(typed).collect();
        Ok(())
    }

    /// Finds the types of columns by the first rows. Rows that cannot be parsed are errors later.
    ///
    /// # Errors
    /// Returns an error if a file cannot be accessed: with fewer rows, the columns could have other types.
    fn infer(&mut self, stream: &LineStream) -> anyhow::Result<()> {
        let mut inferred = vec![Inferred::new(); self.selected.len()];
        let split = |line: &[u8]| {
            let fields = self.splitter.split(line, Some(self.names.len()))?;
            Ok(fields.iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let memory = DatasetMemory::default();
        let rows = stream.samples(Shard::new(0, 1), None, &memory, split)?;
        let is_access_error = |error: &anyhow::Error| {
            error.downcast_ref::<DataError>().is_some_and(|error| error.problem.is_access_error())
        };
        for row in rows.take(SAMPLED) {
            let row = match row {
                Ok(row) => row,
                Err(error) if is_access_error(&error) => return Err(error),
                Err(_) => continue,
            };
            for (inferred, (column, _)) in iter::zip(&mut inferred, &self.selected) {
                if !row[*column].is_empty() && !self.is_missing(&row[*column]) {
                    inferred.add(&row[*column]);
                }
            }
        }
        for ((_, typed), inferred) in iter::zip(&mut self.selected, inferred) {
            if !typed.is_set {
                typed.column = inferred.finish();
            }
        }
        Ok(())
    }

    /// Returns the name and the type of each field of a record.
    pub(super) fn columns(&self) -> Vec<(String, String)> {
        let column =
            |(column, typed): &(usize, Typed)| (self.names[*column].clone(), typed.column.to_string());
        self.selected.iter().map(column).collect()
    }

    fn is_missing(&self, text: &str) -> bool {
        self.missing.iter().any(|missing| missing == text)
    }

    fn prepared(&self) -> &Prepared {
        self.prepared.get_or_init(|| Prepared {
            header: self.names.iter().collect(),
            names: self.selected.iter().map(|(column, _)| self.names[*column].as_str().into()).collect(),
            forms: self.names.iter().map(|_| OnceLock::new()).collect(),
        })
    }

    /// Parses a record as a sample.
    pub(super) fn parse<R: DeserializeOwned + 'static>(&self, line: &[u8]) -> Result<R, DataProblem> {
        Phase::Decode.measure(|| self.decode(line))
    }

    fn decode<R: DeserializeOwned + 'static>(&self, line: &[u8]) -> Result<R, DataProblem> {
        let prepared = self.prepared();
        let fields = self.splitter.split(line, Some(self.names.len()))?;
        if TypeId::of::<R>() == TypeId::of::<Record>() || self.has_fields() {
            return self.fields.apply(self.record(&fields, prepared)?)?.into_row();
        }
        self.row(&fields, line.len(), prepared)
    }

    /// Makes a row of a type that is not [`Record`]. The type decides how a field is read, so the fields of a column
    /// get another form, such as `true` for `True`, only once the type has refused one of them.
    fn row<R: DeserializeOwned>(
        &self,
        fields: &Fields<'_>,
        len: usize,
        prepared: &Prepared,
    ) -> Result<R, DataProblem> {
        loop {
            let mut record = StringRecord::with_capacity(len, self.names.len());
            for (text, form) in iter::zip(fields.iter(), &prepared.forms) {
                match form.get() {
                    _ if self.is_missing(text) => record.push_field(""),
                    None => record.push_field(text),
                    Some(form) => record.push_field(&form.of(text)),
                }
            }
            let error = match record.deserialize(Some(&prepared.header)) {
                Ok(row) => return Ok(row),
                Err(error) => error,
            };
            let ErrorKind::Deserialize { err, .. } = error.kind() else {
                return Err(DataProblem::Record(error.to_string()));
            };
            let place = err.field().and_then(|column| usize::try_from(column).ok());
            let Some((column, text)) = place.and_then(|column| Some((column, record.get(column)?))) else {
                return Err(DataProblem::Record(err.kind().to_string()));
            };
            let form = Form::after(err.kind()).map(|form| *prepared.forms[column].get_or_init(|| form));
            if form.is_none_or(|form| form.of(text) == text) {
                let (name, text) = (&self.names[column], fields.get(column));
                return Err(DataProblem::Record(if record[column].is_empty() {
                    format!("column `{name}` has no value; make the field of the type an `Option`")
                } else {
                    format!("column `{name}` has `{}`: {}", shown(text), err.kind())
                }));
            }
        }
    }

    /// True if columns are selected or converted.
    fn has_fields(&self) -> bool {
        !self.fields.is_default() || self.selected.len() != self.names.len()
    }

    fn record(&self, fields: &Fields<'_>, prepared: &Prepared) -> Result<Record, DataProblem> {
        // `collect` would not reserve memory for results.
        let mut values = Vec::with_capacity(self.selected.len());
        for ((column, typed), name) in iter::zip(&self.selected, &prepared.names) {
            values.push((Arc::clone(name), self.value(fields.get(*column), *typed, name)?));
        }
        Ok(Record::from_fields(values))
    }

    fn value(&self, text: &str, typed: Typed, name: &str) -> Result<Value, DataProblem> {
        if self.is_missing(text) || text.is_empty() && typed.column != ColumnType::Text {
            return Ok(Value::Null);
        }
        // A code such as `01067` is no number of a column whose first fields look like numbers.
        let is_allowed = typed.is_set || !matches!(typed.column, ColumnType::Number(_)) || is_number(text);
        let value = typed.column.parse(text).filter(|_| is_allowed);
        value.ok_or_else(|| wrong(name, typed, text))
    }
}

impl Form {
    /// Returns the form in which a field is tried after `error`.
    fn after(error: &DeserializeErrorKind) -> Option<Self> {
        match error {
            DeserializeErrorKind::ParseBool(_) => Some(Self::TruthValue),
            DeserializeErrorKind::ParseInt(_) | DeserializeErrorKind::ParseFloat(_) => Some(Self::Number),
            _ => None,
        }
    }

    /// Returns `text` in this form. A text of spaces stays, because an empty one would mean that the value is missing.
    fn of(self, text: &str) -> Cow<'_, str> {
        let trimmed = text.trim_ascii();
        match self {
            _ if trimmed.is_empty() => text.into(),
            Self::TruthValue if trimmed.contains(|letter: char| letter.is_ascii_uppercase()) => {
                trimmed.to_ascii_lowercase().into()
            }
            Self::Number | Self::TruthValue => trimmed.into(),
        }
    }
}

/// Returns the beginning of a field, for an error.
fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// Returns the problem of a field that does not have the type of its column.
fn wrong(name: &str, typed: Typed, text: &str) -> DataProblem {
    let source = if typed.is_set {
        "as the option `types` says".to_owned()
    } else {
        format!("as in the first {SAMPLED} rows; the option `types` sets another type")
    };
    DataProblem::WrongType {
        field: name.to_owned(),
        expected: format!("{} ({source})", typed.column),
        found: format!("`{}`", shown(text)),
    }
}
