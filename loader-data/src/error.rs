//! The error of data files.

use std::{fmt, io, time::Duration};

use loader_core::MemoryLimitReached;

/// Why a data file, or a part of it, cannot be loaded.
///
/// When a dataset is opened, it is the error of `open`. Later, a loader reports it as the failure of the
/// batch that the sample is for, or applies [`OnBadSample`](loader_core::OnBadSample).
#[derive(Debug, thiserror::Error)]
#[error("{file}{position}: {problem}")]
pub struct DataError {
    /// Path or URL of the file, or the pattern that was given. It contains no credentials.
    pub file: String,
    /// Where in the file.
    pub position: Position,
    /// What is wrong. It is part of the text of this error, and therefore not its source as well.
    pub problem: DataProblem,
}

impl DataError {
    /// Creates an error about a whole file.
    pub fn new(file: impl fmt::Display, problem: impl Into<DataProblem>) -> Self {
        Self { file: file.to_string(), position: Position::File, problem: problem.into() }
    }

    /// Returns the same error with a position in the file.
    #[must_use]
    pub fn at(mut self, position: Position) -> Self {
        self.position = position;
        self
    }
}

/// A position in a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// The file as a whole.
    File,
    /// A line, counted from 1.
    Line(u64),
    /// A row, counted from 0.
    Row(u64),
    /// A byte, counted from 0.
    Offset(u64),
    /// A file inside an archive.
    Member(String),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Line(line) => write!(f, ", line {line}"),
            Self::Row(row) => write!(f, ", row {row}"),
            Self::Offset(offset) => write!(f, ", byte {offset}"),
            Self::Member(name) => write!(f, ", member `{name}`"),
        }
    }
}

/// Reason for a [`DataError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataProblem {
    /// There is no such file, or no file matches the pattern.
    #[error("no such file; check the path")]
    NotFound,
    /// The folder has no file with one of the format's extensions.
    #[error("the folder has no files with the extension {extensions}; give the files, or another folder")]
    NoFiles {
        /// The extensions, such as `.jsonl or .ndjson`.
        extensions: String,
    },
    /// A pattern for file names cannot be parsed.
    #[error("invalid pattern: {0}")]
    Pattern(String),
    /// The path leads to something other than a regular file, such as a named pipe, which may never end.
    #[error("is {found}, not a regular file; remove it or give another path")]
    NotAFile {
        /// The kind of file, such as "a named pipe".
        found: &'static str,
    },
    /// The system or the server cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// The server refuses the request: the credentials are missing, wrong, expired, or allow too little.
    #[error("the server refuses access; check the credentials in the environment, and their permissions")]
    PermissionDenied,
    /// There are no credentials for the store in any of the standard locations.
    #[error(
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or use ~/.aws/credentials, or set \
         `skip_signature` for a public bucket"
    )]
    NoCredentials,
    /// The server did not answer in time, with all retries.
    #[error("no complete answer from the server within {after:.1?}; check the network, or raise `timeout`")]
    Timeout {
        /// How long it was waited.
        after: Duration,
    },
    /// The server reports an error, and still does after all retries.
    #[error(
        "the server answers with status {status}; try again later, or check the URL, the endpoint and the region"
    )]
    Server {
        /// The HTTP status, such as 503.
        status: u16,
    },
    /// The client of a store cannot be made.
    #[error("the store cannot be used: {0}")]
    Store(String),
    /// The file is not the one that was there when the dataset was opened.
    #[error("has changed since the dataset was opened ({expected}, now {found}); open the dataset again")]
    Changed {
        /// Size and version when the dataset was opened.
        expected: String,
        /// Size and version now.
        found: String,
    },
    /// The file ends before its content does.
    #[error("the file ends before its content does; fetch it again or remove it")]
    Truncated,
    /// The content does not follow the format.
    #[error("is not valid {format}: {reason}")]
    Malformed {
        /// Name of the format.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// There is no such column or field.
    #[error("there is no field `{field}`; there are: {available}")]
    MissingField {
        /// The field that was asked for.
        field: String,
        /// The fields that exist, separated by commas.
        available: String,
    },
    /// A field has another type than is asked for.
    #[error("field `{field}`: expected {expected}, found {found}")]
    WrongType {
        /// The field.
        field: String,
        /// The type that is asked for.
        expected: String,
        /// The type of the field.
        found: String,
    },
    /// The arrays of two fields have different numbers of rows.
    #[error(
        "field `{field}` has {rows} rows, but field `{other}` has {other_rows}; select fields with the same number"
    )]
    UnequalRows {
        /// A field.
        field: String,
        /// Its number of rows.
        rows: usize,
        /// The field that it is compared with.
        other: String,
        /// Number of rows of that field.
        other_rows: usize,
    },
    /// A field is null, but a tensor cannot hold nulls.
    #[error(
        "field `{field}` is null, and a tensor cannot hold nulls; fill it, drop the row, or use `Option`"
    )]
    Null {
        /// The field.
        field: String,
    },
    /// The type of the sample refuses the record: a missing field, a wrong type.
    #[error("the record does not fit the type of the sample: {0}")]
    Record(String),
    /// A sample of an archive has the same field twice.
    #[error("the sample has the field `{field}` twice; names must differ, also in lower case")]
    DuplicateField {
        /// The field.
        field: String,
    },
    /// An image cannot be decoded.
    #[cfg(feature = "image-folder")]
    #[error("{0}")]
    Image(#[from] crate::ImageProblem),
    /// A file of a folder with one sub-folder per class is in none of these.
    #[error("is in no class folder of {folder}; move it into the sub-folder of its class")]
    NoClass {
        /// The folder, as in a message.
        folder: String,
    },
    /// A class folder has no files with one of the format's extensions.
    #[error("the class folder `{class}` has no files with the extension {extensions}; add some or remove it")]
    EmptyClass {
        /// Name of the class folder.
        class: String,
        /// The extensions, such as `.wav or .flac`.
        extensions: String,
    },
    /// A part of the file is larger than the limit, which keeps a damaged file from taking all memory.
    #[error("has {len} bytes (maximum: {max}); raise `{option}` if that is right")]
    TooLarge {
        /// Number of bytes.
        len: u64,
        /// The limit.
        max: u64,
        /// Name of the option that sets the limit.
        option: &'static str,
    },
    /// The dataset has to keep more decoded data than its part of the loader's
    /// [`memory_limit`](loader_core::Builder::memory_limit).
    #[error(transparent)]
    MemoryLimit(#[from] MemoryLimitReached),
    /// An option has a value that does not fit the files.
    #[error("option `{option}`: {reason}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with its value.
        reason: String,
    },
    /// The vocabulary does not contain a token, or the type of the tokens in a sample cannot hold it.
    #[error("token {token} is not between {min} and {max}; check the dtype of the file and the vocabulary")]
    TokenOutOfRange {
        /// The token.
        token: i64,
        /// Smallest token that is accepted.
        min: i64,
        /// Largest token that is accepted.
        max: i64,
    },
    /// The library of the format was asked for something that it does not support.
    #[error("is not supported: {0}")]
    Unsupported(String),
    /// The list of files or the index does not fit into shared memory.
    #[error("cannot be shared with workers: {0}")]
    Memory(String),
}

/// The result of what reads data files.
pub(crate) type Result<T, E = DataError> = std::result::Result<T, E>;
