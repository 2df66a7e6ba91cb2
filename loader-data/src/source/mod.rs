//! Where the bytes of a dataset lie: paths, patterns, open files.

mod ahead;
mod blob;
mod compression;
mod files;
mod found;
mod local_pattern;
mod options;
mod patterns;
#[cfg_attr(not(feature = "cloud"), path = "no_remote.rs")]
mod remote;
mod roots;
#[cfg(feature = "columnar")]
mod unlisted;
mod whole;
mod zstd;

use std::{
    borrow::Cow,
    cmp::Ordering,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize};

pub(crate) use ahead::{NextPart, ReadAhead};
pub(crate) use blob::BlobCursor;
pub(crate) use blob::{Blob, BlobReader};
pub(crate) use compression::{Compression, Decompressor, problem};
#[cfg(feature = "formats")]
pub(crate) use files::without_bad;
pub(crate) use files::{DataFile, Files};
pub(crate) use found::is_dotted;
pub use found::is_hidden_in_rows;
pub(crate) use local_pattern::LocalPattern;
pub use options::{CacheOptions, StoreOptions};
pub(crate) use patterns::is_glob;
pub(crate) use roots::Roots;
pub(crate) use whole::check;
pub use whole::set_of_part;

use crate::error::{DataError, DataProblem};

/// A path of the local file system, or a URL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Location {
    // Not `PathBuf`: serde refuses paths that are not Unicode.
    Path(OsString),
    Url(String),
}

impl Location {
    /// Takes `text` as a URL if it begins with a scheme such as `s3://`. `file://` is a path.
    pub(crate) fn new(text: impl AsRef<Path>) -> Self {
        let path = text.as_ref();
        match path.to_str().and_then(|text| text.split_once("://").map(|(scheme, rest)| (text, scheme, rest)))
        {
            Some((_, "file", rest)) => Self::Path(rest.into()),
            Some((text, scheme, _)) if !scheme.is_empty() && scheme.bytes().all(is_scheme_byte) => {
                Self::Url(text.to_owned())
            }
            _ => Self::Path(path.as_os_str().to_owned()),
        }
    }

    /// Returns the path or URL itself, which may contain credentials.
    pub(crate) fn as_path(&self) -> &Path {
        match self {
            Self::Path(path) => Path::new(path),
            Self::Url(url) => Path::new(url),
        }
    }

    /// Returns the path or URL without credentials. `Display` writes it between backticks.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        match self {
            Self::Path(_) => self.as_path().to_string_lossy(),
            Self::Url(url) => shown(url).into(),
        }
    }

    /// Compares two locations as [`found::natural_order`] compares names.
    pub(crate) fn natural_order(&self, other: &Self) -> Ordering {
        let [one, other] = [self, other].map(|location| location.as_path().as_os_str().as_encoded_bytes());
        found::natural_order(one, other)
    }

    /// True if there is a folder at the path, or if the URL is that of a folder.
    pub(crate) fn is_folder(&self) -> bool {
        match self {
            Self::Path(path) => Path::new(path).is_dir(),
            Self::Url(url) => url.ends_with('/') && !url.contains('{') && !is_glob(url),
        }
    }

    /// The last component of the path.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Self::Path(_) => self.as_path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Url(url) => {
                let path = if is_http(url) { url.split('?').next().unwrap_or_default() } else { url };
                path.rsplit('/').next().unwrap_or_default().to_owned()
            }
        }
    }

    /// Returns the folder that the file is in, without the query of an HTTP URL.
    pub(crate) fn folder(&self) -> Self {
        match self {
            Self::Path(path) => Self::Path(Path::new(path).parent().unwrap_or(Path::new("")).into()),
            Self::Url(url) => {
                let path = if is_http(url) { url.split('?').next().unwrap_or_default() } else { url };
                let host = path.find("://").map_or(0, |end| end + 3);
                match path[host..].rfind('/') {
                    Some(slash) => Self::Url(path[..=host + slash].to_owned()),
                    None => Self::Url(format!("{path}/")),
                }
            }
        }
    }

    /// Returns the same folder, which is `.` if the path is empty.
    pub(crate) fn or_here(self) -> Self {
        match self {
            Self::Path(path) if path.is_empty() => Self::Path(".".into()),
            other => other,
        }
    }

    /// Returns the file `name`, a path relative to this folder. In the URL of an HTTP server, all characters
    /// but ASCII letters, digits and `-._~/` are escaped.
    pub(crate) fn join(&self, name: &str) -> Self {
        match self {
            Self::Path(folder) => Self::Path(Path::new(folder).join(name).into()),
            Self::Url(folder) if is_http(folder) => {
                let mut url = folder.clone();
                for byte in name.bytes() {
                    match byte {
                        b'-' | b'.' | b'_' | b'~' | b'/' => url.push(byte.into()),
                        _ if byte.is_ascii_alphanumeric() => url.push(byte.into()),
                        _ => url.push_str(&format!("%{byte:02X}")),
                    }
                }
                Self::Url(url)
            }
            Self::Url(folder) => Self::Url(format!("{folder}{name}")),
        }
    }
}

/// Returns a path or a URL as the errors of this crate show it: a URL without user name and password, and
/// with `?...` in place of a query, which may be a signature.
///
/// # Examples
/// ```
/// let url = "https://host/train.parquet?X-Amz-Signature=fe5f80";
/// assert_eq!(loader_data::without_credentials(url), "https://host/train.parquet?...");
/// ```
pub fn without_credentials(path_or_url: impl AsRef<Path>) -> String {
    Location::new(path_or_url).shown().into_owned()
}

/// Deserialises the patterns of an options struct: one, or a list of them.
pub(crate) fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(pattern) => vec![pattern],
        OneOrMany::Many(patterns) => patterns,
    })
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a path, or a list of paths")]
pub(crate) enum OneOrMany {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

/// True if the URL is that of an HTTP server, where `?` begins a query.
fn is_http(url: &str) -> bool {
    has_scheme(url, &["http", "https"])
}

/// True if the scheme of the URL is one of `schemes`, in upper or lower case.
fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    schemes.iter().any(|name| scheme.eq_ignore_ascii_case(name))
}

/// The error about a URL in a program without object stores.
fn without_cloud(location: &Location) -> DataError {
    DataError::new(location, needs_cloud())
}

fn needs_cloud() -> DataProblem {
    DataProblem::Unsupported(
        "URLs need the feature `cloud` of process-loader; build the program with it, or give a path"
            .to_owned(),
    )
}

fn is_scheme_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::Path(path.into_os_string())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.shown())
    }
}

impl fmt::Debug for Location {
    /// As `Display`, which shows no credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns `url` without a user name and a password before the host, and without a query, which may be a
/// signature. What Azure has before the host is a container. A `?` in the key of an object begins no query,
/// but the text after it is hidden too if it has a `=`: it may be a signature that the user put there.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let host = rest.split('/').next().unwrap_or_default();
    // If a password has a `/`, `host` ends in it, and the text after `:` is not a port.
    let ends_in_password = !host.contains('@')
        && host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().any(|byte| !byte.is_ascii_digit()))
        && !host.ends_with(']');
    let host_start = match if ends_in_password { rest } else { host }.rfind('@') {
        Some(at) if !has_scheme(url, &["abfs", "abfss"]) => at + 1,
        _ => 0,
    };
    let rest = &rest[host_start..];
    let is_store = has_scheme(url, &["s3", "s3a", "gs", "az", "abfs", "abfss"]);
    match rest.split_once('?') {
        Some((path, query)) if !is_store || query.contains('=') => format!("{scheme}://{path}?..."),
        _ => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_makes_a_url_and_credentials_are_not_shown() {
        assert_eq!(Location::new("data/a.jsonl"), Location::Path("data/a.jsonl".into()));
        assert_eq!(Location::new("file:///data/a"), Location::Path("/data/a".into()));
        let url = Location::new("https://me:secret@host/a@b/c.tar");
        assert_eq!(url.to_string(), "`https://host/a@b/c.tar`");
        assert_eq!(url.file_name(), "c.tar");
        let signed = Location::new("https://host/c.tar?X-Signature=secret/");
        assert_eq!(
            (signed.to_string().as_str(), signed.file_name().as_str()),
            ("`https://host/c.tar?...`", "c.tar")
        );
        assert_eq!(signed.folder().join("100% a?/b.png"), Location::new("https://host/100%25%20a%3F/b.png"));
        assert_eq!(
            Location::new("s3://bucket/a/b.csv").folder().join("c d?"),
            Location::new("s3://bucket/a/c d?")
        );
        let azure = Location::new("abfss://container@account.dfs.core.windows.net/c?.tar");
        assert_eq!(azure.to_string(), "`abfss://container@account.dfs.core.windows.net/c?.tar`");
    }

    #[test]
    fn credentials_of_urls_that_are_refused_are_not_shown() {
        for (url, expected) in [
            ("HTTPS://host/a.tar?X-Signature=secret", "HTTPS://host/a.tar?..."),
            ("ftp://host/a.tar?secret", "ftp://host/a.tar?..."),
            ("az://container/a.tar?sv=1&sig=secret", "az://container/a.tar?..."),
            ("https://me:sec/ret@host/a.tar", "https://host/a.tar"),
            ("s3://key:sec/ret@bucket/a.tar", "s3://bucket/a.tar"),
            // Without credentials.
            ("https://host:80/a@b/c.tar", "https://host:80/a@b/c.tar"),
            ("https://[::1]/a@b/c.tar", "https://[::1]/a@b/c.tar"),
            ("s3://bucket/a@b/c:d?.tar", "s3://bucket/a@b/c:d?.tar"),
        ] {
            assert_eq!(without_credentials(url), expected);
        }
    }

    #[test]
    fn the_folder_of_a_url_keeps_its_host() {
        for (url, expected) in [
            ("https://host", "https://host/a"),
            ("https://host?X-Signature=s", "https://host/a"),
            ("https://host/b.csv", "https://host/a"),
            ("s3://bucket", "s3://bucket/a"),
        ] {
            assert_eq!(Location::new(url).folder().join("a"), Location::new(expected));
        }
    }
}
