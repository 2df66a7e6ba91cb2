//! The error of data files.

use std::{error::Error, fmt, io, time::Duration};

use loader_core::{MemoryLimitReached, Outage, internal::printable};

/// Why a data file, or a part of it, cannot be loaded.
///
/// When a dataset is opened, it is the error of `open`. Later, a loader reports it as the failure of the
/// batch that the sample is for, or applies [`OnBadSample`](loader_core::OnBadSample).
///
/// Its source is [`Outage`] if the server or the system does not give any file for now. In a stream, such an
/// error ends the shard, see [`EndsShard`](loader_core::EndsShard). So does an error that keeps the rest of a
/// file or of a block of lines from being read, with an unknown number of samples.
#[derive(Debug)]
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

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of files, members and fields come from others.
        f.write_str(&printable(format_args!("{}{}: {}", self.file, self.position, self.problem)))
    }
}

impl Error for DataError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.problem.is_outage().then_some(&Outage)
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
    /// The server has no bucket, or on Azure no container, of this name.
    #[error("there is no such bucket; check its name, the endpoint and the region")]
    NoSuchBucket,
    /// The folder has no file with one of the format's extensions.
    #[error("the folder has no files with the extension {extensions}; give the files, or another folder")]
    NoFiles {
        /// The extensions, such as `.jsonl or .ndjson`.
        extensions: String,
    },
    /// The folder is that of a table with a log of its own, whose files also have rows that were deleted or replaced,
    /// or never committed.
    #[error(
        "is the folder of a table of {format}, whose files also have rows that were deleted or replaced, or never committed; \
         write the rows of the table's present version to Parquet files in another folder, and give that folder"
    )]
    TableFormat {
        /// Name of the format of the table.
        format: &'static str,
    },
    /// The file is in a folder of a partition of a table, which was not named, and its format is read without the
    /// columns of folders.
    #[error(
        "this file is in a partition of a table: the names of its folders (`{folders}`) are values of columns, which would be \
         missing; only Parquet and Arrow files are read with such columns: write the table to such files, or without \
         partitions, or name the folder of one partition"
    )]
    Partition {
        /// The folders that are named `column=value`, such as `year=2024/month=1`.
        folders: String,
    },
    /// The path names the folders of several partitions of a table. A folder that the path names gives no column.
    #[error(
        "this file is in a partition of a table that the path names (`{folders}`), and other files are not: the columns of the \
         folders would be missing; give the folder that has all partitions, or a pattern with wildcards or braces for their \
         names, and Parquet and Arrow files are read with these columns; or give one partition"
    )]
    NamedPartitions {
        /// The named folders that are named `column=value`.
        folders: String,
    },
    /// The name of the folder of a partition cannot be decoded.
    #[error(
        "the name of its folder `{folder}` is not UTF-8 once its escapes (`%20`) are decoded; rename the folder"
    )]
    PartitionName {
        /// The name of the folder.
        folder: String,
    },
    /// The folders of the file give other columns than those of the first file.
    #[error(
        "the names of its folders give the columns {found}, but those of the first file, {first}, give {expected}; give only \
         files whose folders have the same columns"
    )]
    OtherPartition {
        /// The columns of the folders of the file, separated by commas; `(none)` without columns.
        found: String,
        /// Path or URL of the first file, as in a message.
        first: Box<str>,
        /// The columns of the folders of the first file, separated by commas; `(none)` without columns.
        expected: String,
    },
    /// The name of a folder gives a column that the file or another folder has too.
    #[error(
        "the name of one of its folders gives the column `{column}`, which the file itself or another folder has too; select \
         other columns with `fields`, or give the folder of one partition, which is no column then"
    )]
    PartitionColumn {
        /// The column.
        column: String,
    },
    /// The names of the files say how many parts the data set has, and one part is missing.
    #[error(
        "the part `{part}` is missing, although the names of the other parts say how many parts there are; add the missing \
         part to the folder, or name the parts that you want with a pattern such as `{pattern}`"
    )]
    MissingPart {
        /// Name of the part, without its extension.
        part: String,
        /// A pattern for the parts that are there.
        pattern: String,
    },
    /// The files are in different folders, each of which is a whole data set, such as two versions in a cache.
    #[error(
        "has the files of several data sets, or of several versions of one, whose rows would come one after the other: \
         {folders}; give one of these folders, or list all that you want"
    )]
    SeveralDataSets {
        /// The folders, each as in a message, separated by commas.
        folders: String,
    },
    /// The names of the files in a folder say that there are two data sets with one name: a writer has left parts of an
    /// older one.
    #[error(
        "has the parts of two data sets, `{one}` and `{other}`, perhaps because a writer has left those of an older one; \
         delete the parts of one, or name the parts of the other with its pattern"
    )]
    SeveralPartCounts {
        /// A pattern for the parts of one data set.
        one: String,
        /// A pattern for those of another.
        other: String,
    },
    /// Two files in a folder are the same part, and the hashes in their names differ: a writer has left parts of an
    /// older data set.
    #[error(
        "has two files of one part, `{one}` and `{other}`, so it has the parts of two data sets, perhaps because a writer has \
         left those of an older one; delete the parts of one, or list the files of the other"
    )]
    SamePart {
        /// Name of one file.
        one: String,
        /// Name of the other.
        other: String,
    },
    /// The header of a README.md names a file, and a symbolic link leads from this file out of the folder.
    #[error(
        "is named in the header of a README.md, but a symbolic link leads from it to {target}, outside the folder; give the \
         files themselves with `path`, or copy them into the folder"
    )]
    LinkOutside {
        /// Where the link leads, as in a message.
        target: String,
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
    #[error(
        "the server {server} refuses access with status {status}; check the credentials in the environment and what they \
         permit, or set `skip_signature` for a public bucket"
    )]
    PermissionDenied {
        /// Host and port of the server. For S3, the host may contain the name of the bucket.
        server: String,
        /// The HTTP status: 401 or 403.
        status: u16,
    },
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
    /// Git LFS has put a short text in place of the file.
    #[error("is a Git LFS pointer, not the file that it stands for; fetch the file with `git lfs pull`")]
    GitLfsPointer,
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
    /// The columns of the file, or their order, are not those of the first file.
    #[error(
        "has the columns {found}, but the first file, {first}, has {expected}; give only files with the same columns in \
         the same order"
    )]
    OtherColumns {
        /// The columns of the file, separated by commas.
        found: String,
        /// Path or URL of the first file, as in a message.
        first: Box<str>,
        /// The columns of the first file, separated by commas.
        expected: String,
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
    /// A shard has fewer samples than were read of it before the state or the snapshot was written.
    #[error(
        "a shard has only {found} samples now, and {position} of it were read before, so the data is not that of the run \
         before; restore the files and resume from the state again, or begin the epoch again"
    )]
    ShardTooShort {
        /// Number of samples that were read.
        position: u64,
        /// Number of samples that there are.
        found: u64,
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
    /// A field that is to be decoded is null.
    #[error(
        "field `{field}` is null, so it cannot be decoded; leave such records out of a stream (option `drop_nulls`), or \
         skip them with `on_bad_sample`"
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
    Image(#[from] crate::images::ImageProblem),
    /// A file of a folder with one sub-folder per class is in none of these.
    #[error("is in no class folder of {folder}; move it into the sub-folder of its class")]
    NoClass {
        /// The folder, as in a message.
        folder: String,
    },
    /// The names of two class folders are the same text, because they differ only in bytes that are not UTF-8.
    #[error(
        "two class folders have the name `{class}` once bytes that are not UTF-8 are replaced; rename one of them"
    )]
    SameClass {
        /// The name, with U+FFFD in place of these bytes.
        class: String,
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
    /// The compressed arrays of a dataset are larger together than the limit.
    #[error(
        "the compressed arrays up to this one have {len} bytes together after they are unpacked (maximum: {max}); \
         raise `max_unpacked_bytes`, or select fewer fields"
    )]
    UnpackedTooLarge {
        /// Number of bytes of all selected arrays up to this one.
        len: u64,
        /// The limit.
        max: u64,
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
    /// A column that is read has a type that is not supported.
    #[error(
        "column `{column}` has the type {data_type}, which is not supported; select other columns with `fields`"
    )]
    UnsupportedColumn {
        /// The column.
        column: String,
        /// Its type, or the type of a part of it.
        data_type: String,
        /// The other columns that were to be read.
        others: Box<[String]>,
    },
    /// The library of the format was asked for something that it does not support.
    #[error("is not supported: {0}")]
    Unsupported(String),
    /// The list of files or the index does not fit into shared memory.
    #[error("cannot be shared with workers: {0}")]
    Memory(String),
}

impl DataProblem {
    /// Returns the problem that the field `field` is not among the fields `available`.
    pub(crate) fn missing_field<'a>(field: &str, available: impl IntoIterator<Item = &'a str>) -> Self {
        let available = available.into_iter().collect::<Vec<_>>().join(", ");
        Self::MissingField { field: field.to_owned(), available }
    }

    /// True if the problem is that of the server, the network or the system, not of this file, so that other
    /// files fail too, and a later try may succeed.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::NoCredentials | Self::Timeout { .. } | Self::Store(_) => true,
            // 401 concerns who asks, such as a token that has expired, and 403 this file.
            Self::PermissionDenied { status, .. } => *status == 401,
            // S3 reports requests that were sent too slowly, and credentials that have expired, as 400.
            Self::Server { status } => !(401..500).contains(status) || matches!(status, 408 | 425 | 429),
            Self::Unreadable(error) => is_outage_of_system(error),
            _ => false,
        }
    }
}

/// True if the system could not read any file: the network has failed, or it has no memory or file descriptors.
///
/// `EIO` is no outage. On a local disk it is a damaged sector, which no later try can read.
///
/// Alternative considered: `EIO` as an outage, because a mount of NFS with the option `soft` and some file
/// systems of object stores report an outage so. Rejected because a damaged sector would then end the shards of a
/// dataset with random access and of Parquet in every epoch, where each sample that it costs is an error of its own.
fn is_outage_of_system(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    use rustix::io::Errno;

    let is_of_kind = matches!(
        error.kind(),
        Kind::TimedOut
            | Kind::NotConnected
            | Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::BrokenPipe
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::OutOfMemory
            | Kind::WouldBlock
            | Kind::Interrupted
            | Kind::ResourceBusy
    );
    // `ESTALE`: an NFS server has been replaced, and a file that is opened again can be read.
    let codes = [Errno::MFILE, Errno::NFILE, Errno::HOSTDOWN, Errno::NOBUFS, Errno::STALE];
    is_of_kind || error.raw_os_error().is_some_and(|code| codes.iter().any(|of| of.raw_os_error() == code))
}

/// The result of what reads data files.
pub(crate) type Result<T, E = DataError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_outage_concerns_more_than_one_file() {
        let server = |status| DataProblem::Server { status };
        let refused = |status| DataProblem::PermissionDenied { server: "host".to_owned(), status };
        let system = |errno: Errno| DataProblem::Unreadable(errno.into());
        for problem in [
            server(301),
            server(400),
            refused(401),
            server(429),
            server(503),
            DataProblem::NoCredentials,
            DataProblem::Timeout { after: Duration::ZERO },
            system(Errno::MFILE),
            system(Errno::TIMEDOUT),
            system(Errno::NOMEM),
            system(Errno::STALE),
        ] {
            assert!(problem.is_outage(), "{problem}");
            assert!(DataError::new("a", problem).source().is_some_and(<dyn Error>::is::<Outage>));
        }
        for problem in [
            server(451),
            DataProblem::NotFound,
            refused(403),
            system(Errno::IO),
            system(Errno::ACCESS),
            DataProblem::Truncated,
        ] {
            assert!(!problem.is_outage(), "{problem}");
            assert!(DataError::new("a", problem).source().is_none());
        }
    }
}
